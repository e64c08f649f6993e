// Package pgtest gives tests real PostgreSQL databases without docker: it starts a
// private server from the machine's own server programs, once per test binary, and
// copies a migrated template for each test. Before a server it can put a PgBouncer.
//
// Where there are no such programs a test that asks is skipped with one line that
// says what to install; with LANEGATE_TEST_PG=require it fails. They are looked
// for in the folder LANEGATE_TEST_PG_BIN, in PATH and below /usr/lib/postgresql.
package pgtest

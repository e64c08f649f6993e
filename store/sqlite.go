package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// sqliteDriver is the name under which modernc.org/sqlite registers itself.
const sqliteDriver = "sqlite"

// readers is how many connections read beside the one that writes.
const readers = 4

func init() { sqlx.BindDriver(sqliteDriver, sqlx.DOLLAR) }

func sqliteDialect(clock func() time.Time) *dialect {
	return &dialect{
		name: "sqlite", now: "NULL", lock: "", use: "INDEXED BY $1", clock: clock,
		spans: sqlSQLiteSpans, among: "IN (SELECT value FROM json_each($4))",
		lockAdmission: sqlReadAdmission, heads: sqlSQLiteHeads, first: sqlSQLiteFirst, groups: sqlSQLiteGroups, ready: (*tx).listReady, reads: sql.TxOptions{ReadOnly: true}, sort: sortSQLite,
	}
}

// The CROSS JOIN keeps SQLite from turning the loop round: for each class one
// seek in jobs_line_idx, which has all that is asked of it, then its rows. LIMIT has
// more than a parameter: for one alone SQLite plans the statement anew at each use.
const (
	sqlSQLiteHeads = `
SELECT j.id, j.class, j.first_at, j.place_at, j.place_id, j.worker
  FROM json_each($1) AS want
 CROSS JOIN jobs AS j
    ON j.rowid IN (SELECT h.rowid
                     FROM jobs AS h INDEXED BY jobs_line_idx
                    WHERE h.state = 'queued' AND h.due AND h.class = want.value
                    ORDER BY h.first_at, h.place_at, h.place_id
                    LIMIT CAST($2 AS integer))
 ORDER BY j.class, j.first_at, j.place_at, j.place_id`

	// The same with one of each class, in the order of the classes in $1.
	sqlSQLiteFirst = `
SELECT j.id, j.class, j.first_at, j.place_at, j.place_id, j.worker
  FROM json_each($1) AS want
 CROSS JOIN jobs AS j
    ON j.rowid = (SELECT h.rowid
                    FROM jobs AS h INDEXED BY jobs_line_idx
                   WHERE h.state = 'queued' AND h.due AND h.class = want.value
                   ORDER BY h.first_at, h.place_at, h.place_id
                   LIMIT 1)`
)

const sqlSQLiteGroups = `
SELECT given.value ->> 'i' AS i, j.id
  FROM json_each($1) AS given
 CROSS JOIN jobs AS j
    ON j.id IN (SELECT h.id
                  FROM jobs AS h INDEXED BY jobs_state_idx
                 WHERE h.state = given.value ->> 'state' AND h.class = given.value ->> 'class' AND h.id < given.value ->> 'before'
                 ORDER BY h.id DESC
                 LIMIT $2)`

const sqlSQLiteSpans = `SELECT value ->> 'i' AS i, value ->> 'from_first' AS from_first, value ->> 'from_at' AS from_at, value ->> 'from_id' AS from_id,
                               value ->> 'to_first' AS to_first, value ->> 'to_at' AS to_at, value ->> 'to_id' AS to_id,
                               value ->> 'moved_to' AS moved_to, value ->> 'low_at' AS low_at, value ->> 'low_id' AS low_id, value ->> 'last_id' AS last_id
                          FROM json_each($3)`

// openSQLite opens the write and the read pool of the file at path, which must exist.
func openSQLite(ctx context.Context, path string) (write, read *sqlx.DB, err error) {
	write, err = openPool(ctx, path, 1, url.Values{
		"_busy_timeout": {"5000"},
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"},
		"_foreign_keys": {"on"},
		"_dqs":          {"0"},
		"_pragma":       {"temp_store(MEMORY)", fmt.Sprintf("journal_size_limit(%d)", walKept)},
		"_txlock":       {"immediate"},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := checkPragmas(ctx, write, writePragmas); err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	read, err = openPool(ctx, path, readers, url.Values{
		"mode":          {"ro"},
		"_busy_timeout": {"5000"},
		"_dqs":          {"0"},
		"_query_only":   {"1"},
		"_pragma":       {"temp_store(MEMORY)"},
	})
	if err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	if err := checkPragmas(ctx, read, readPragmas); err != nil {
		return nil, nil, errors.Join(err, read.Close(), write.Close())
	}
	return write, read, nil
}

// walKept is how large the write-ahead log's file may stay after a checkpoint.
const walKept = 64 << 20

func openPool(ctx context.Context, path string, conns int, q url.Values) (*sqlx.DB, error) {
	// "file:" always: without it SQLite drops the query part, mode=ro included.
	dsn := (&url.URL{Scheme: "file", Path: path, OmitHost: true, RawQuery: q.Encode()}).String()
	db, err := sqlx.Open(sqliteDriver, dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

// pragma is a setting that must read back as want.
type pragma struct{ name, want, why string }

var (
	writePragmas = []pragma{
		{"journal_mode", "wal", "readers would block the writer; is the file on a network disk?"},
		{"synchronous", "2", "an accepted job would not survive a power loss"},
		{"foreign_keys", "1", "a deleted job would leave rows behind"},
		{"busy_timeout", "5000", "a backup that holds the file would make writes fail at once"},
		{"temp_store", "2", "large sorts would need a temporary directory"},
	}
	readPragmas = []pragma{
		{"journal_mode", "wal", "readers would block the writer"},
		{"query_only", "1", "a reader could write outside the one write connection"},
		{"temp_store", "2", "large sorts would need a temporary directory"},
	}
)

// checkPragmas reads settings back, since SQLite ignores what it doesn't know or
// can't do, and refuses to go on with others than the asked ones.
func checkPragmas(ctx context.Context, db *sqlx.DB, want []pragma) error {
	for _, p := range want {
		var got string
		if err := db.GetContext(ctx, &got, "PRAGMA "+p.name); err != nil {
			return fmt.Errorf("read back pragma %s: %w", p.name, err)
		}
		if !strings.EqualFold(got, p.want) {
			return fmt.Errorf("SQLite runs with %s = %s instead of %s: %s", p.name, got, p.want, p.why)
		}
	}
	// With double-quoted strings on, a mistyped column silently is a text.
	var text string
	if err := db.GetContext(ctx, &text, `SELECT "lanegate_no_such_column"`); err == nil {
		return errors.New("SQLite takes double-quoted names for strings (dqs is on)")
	}
	return nil
}

// sortSQLite sorts a driver error by SQLite's primary result code, the low byte.
func sortSQLite(err error) faultKind {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) || isClosed(err) {
			return faultAway
		}
		return faultNone
	}
	switch e.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return faultDuplicate
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return faultConflict
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL,
		sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_NOTADB,
		sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM:
		return faultAway
	}
	return faultBug
}

// isClosed recognises the answer of a closed pool, which has no exported value.
func isClosed(err error) bool { return strings.Contains(err.Error(), "sql: database is closed") }

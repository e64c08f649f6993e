//go:build linux

package store

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3/lock"

	"github.com/lanegate/lanegate/migrations"
	"github.com/lanegate/lanegate/store/pgtest"
)

// logLines sends each line of a log.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// While a replica of a later release migrates, one that has nothing to migrate starts,
// and one that has says that it waits before it does.
func TestPostgresStartsWhileAnotherReplicaMigrates(t *testing.T) {
	t.Parallel()
	o := Options{Path: pgtest.New(t).URL("test"), MaxConns: 8}
	s := newStore(t, o)
	p, err := migrator(s.write.DB, s.d.name, migrations.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.beat.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	hold := func(q string) {
		t.Helper()
		if _, err := other.ExecContext(t.Context(), q, lock.DefaultLockID); err != nil {
			t.Fatal(err)
		}
	}

	hold("SELECT pg_advisory_lock($1)")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	o.Logger = newTestLog()
	s2, err := Open(ctx, o)
	if err != nil {
		t.Fatalf("a start with nothing to migrate, while another replica migrates: %v", err)
	}
	if err := s2.Close(); err != nil {
		t.Error(err)
	}

	hold("SELECT pg_advisory_unlock($1)")
	if _, err := p.DownTo(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	hold("SELECT pg_advisory_lock($1)")
	lines, done := make(logLines, 100), make(chan error, 1)
	go func() {
		done <- migrate(ctx, s.write.DB, s.d.name, migrations.Postgres(), slog.New(slog.NewTextHandler(lines, nil)))
	}()
	select {
	case line := <-lines:
		if !strings.Contains(line, "or waiting for the replica that does") || !strings.Contains(line, "from=9") {
			t.Errorf("the first line while it waits is %q", line)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits without a word")
	}
	hold("SELECT pg_advisory_unlock($1)")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// migrateBeside migrates s's database from version 9 in the background, on one
// connection, whose lock_timeout is given.
func migrateBeside(t *testing.T, s *Store, lockTimeout string) (db *sql.DB, done chan error) {
	t.Helper()
	p, err := migrator(s.write.DB, s.d.name, migrations.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DownTo(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	cfg, err := postgresConfig(s.opts.Path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := connector(cfg, map[string]string{"lock_timeout": lockTimeout}, 0)
	if err != nil {
		t.Fatal(err)
	}
	db = sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	done = make(chan error, 1)
	return db, done
}

// An index waits for each transaction that is older, however long that takes, and
// leaves the connection's settings as they were.
func TestPostgresIndexesWaitForOldTransactions(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{Path: pgtest.New(t).URL("test"), MaxConns: 8})
	db, done := migrateBeside(t, s, "300")
	old, err := s.read.BeginTxx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback() }()
	var n int
	if err := old.Get(&n, "SELECT count(*) FROM lanes"); err != nil {
		t.Fatal(err)
	}
	go func() { done <- migrate(t.Context(), db, s.d.name, migrations.Postgres(), s.log) }()
	eventually(t, "an index that waits for longer than lock_timeout", func() bool {
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		if _, err := old.Exec("SELECT 1"); err != nil { // it must not be ended as an idle one
			t.Fatal(err)
		}
		err := s.beat.Get(&n, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event = 'virtualxid' AND now() - query_start > interval '1 second'")
		return err == nil && n == 1
	})
	if err := old.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var timeout string
	if err := db.QueryRowContext(t.Context(), "SHOW lock_timeout").Scan(&timeout); err != nil || timeout != "300ms" {
		t.Errorf("lock_timeout is %s behind it, %v", timeout, err)
	}
}

// The change of the run log's key lets those through who came while it waited.
func TestPostgresRunLogIsLockedForMoments(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{Path: pgtest.New(t).URL("test"), MaxConns: 8})
	db, done := migrateBeside(t, s, "60000")
	reader, err := s.read.Connx(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	run := func(q string) {
		t.Helper()
		if _, err := reader.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	waiting := func() bool {
		run("SELECT 1")
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		if err := s.beat.Get(&n, "SELECT count(*) FROM pg_locks WHERE relation = CAST('run_log' AS regclass) AND mode = 'AccessExclusiveLock' AND NOT granted"); err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	run("BEGIN")
	run("SELECT count(*) FROM run_log")
	go func() { done <- migrate(t.Context(), db, s.d.name, migrations.Postgres(), s.log) }()
	eventually(t, "the change of the key", waiting)
	if err := s.write.Get(&n, "SELECT count(*) FROM run_log"); err != nil { // within the lock_timeout of old replicas
		t.Errorf("a reader behind it: %v", err)
	}
	eventually(t, "its next try", waiting)
	run("ROLLBACK")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

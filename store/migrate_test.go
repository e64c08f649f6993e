//go:build linux

package store

import (
	"context"
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

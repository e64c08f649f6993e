//go:build linux

package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate/store/pgtest"
)

// A real PgBouncer that gives each client a session of its own is as good as the
// server itself, also for who comes after another one.
func TestPgBouncerWithSessions(t *testing.T) {
	t.Parallel()
	pooler := pgtest.New(t).NewPooler(t, "pool_mode=session", "default_pool_size=40")
	o := Options{Path: pooler.URL("test"), MaxConns: 8}
	s := newStore(t, o)
	addWide(t, s, 2, 8)
	use(t, "behind a pooler", s)
	heard, connected := make(chan string, 8), make(chan struct{}, 8)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Listen(ctx, "bell", func(text string) { heard <- text }, func() { connected <- struct{}{} })
	}()
	within(t, "the listener is there", connected)
	if err := s.Notify(t.Context(), "bell", "ding"); err != nil {
		t.Fatal(err)
	}
	if text := within(t, "the bell is heard", heard); text != "ding" {
		t.Errorf("heard %q", text)
	}
	cancel()
	within(t, "the listener ends", ended)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	use(t, "in sessions that others had before", newStore(t, o))
}

// within receives from ch, or fails after 20 seconds.
func within[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: did not happen within 20s", what)
	}
	return v
}

// A real PgBouncer that shares its sessions is refused with a sentence, before
// anything is written, whatever the size of its pool.
func TestPgBouncerThatSharesIsRefused(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	for name, settings := range map[string][]string{
		"transaction":           {"pool_mode=transaction"},
		"transaction, few":      {"pool_mode=transaction", "default_pool_size=2"},
		"transaction, one only": {"pool_mode=transaction", "default_pool_size=1"},
		"transaction, warm":     {"pool_mode=transaction", "min_pool_size=8"},
		"statement":             {"pool_mode=statement"},
		"session, one only":     {"pool_mode=session", "default_pool_size=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pooler := server.NewPooler(t, settings...)
			began := time.Now()
			_, err := Open(t.Context(), Options{Path: pooler.URL("test"), Logger: newTestLog()})
			if !errors.Is(err, errPooler) || !strings.Contains(err.Error(), "pool_mode = session") {
				t.Errorf("after %v: %v, want the refusal of a pooler", time.Since(began), err)
			}
			db, err := sql.Open("postgres", server.URL("test"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			var tables int
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables); err != nil || tables != 0 {
				t.Errorf("%d tables were made: %v", tables, err)
			}
		})
	}
}

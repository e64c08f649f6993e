//go:build linux

package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/store/pgtest"
)

// newPGServer is a store on a server of the test's own.
func newPGServer(t *testing.T, o Options) (*Store, *pgtest.Server) {
	t.Helper()
	server := pgtest.New(t)
	o.Path = server.URL("test")
	s := newStore(t, o)
	addClasses(t, s, 1)
	mustRegister(t, s, "w")
	return s, server
}

// works checks that every kind of call works.
func works(t *testing.T, when string, s *Store) {
	t.Helper()
	for name, err := range calls(t, s) {
		if err != nil {
			t.Errorf("%s, %s: %v", name, when, err)
		}
	}
}

// C69: after a failover, connections that lead to a server without writes are
// dropped, and the store is back as soon as there is one with.
func TestPostgresReadOnlyIsUnavailable(t *testing.T) {
	t.Parallel()
	s, server := newPGServer(t, Options{})
	works(t, "before", s)
	readOnly := func(v string) {
		t.Helper()
		for _, q := range []string{"ALTER SYSTEM SET default_transaction_read_only = " + v, "SELECT pg_reload_conf()"} {
			if err := server.Exec(t.Context(), "postgres", q); err != nil {
				t.Fatal(err)
			}
		}
	}
	readOnly("on")
	eventually(t, "writes are refused", func() bool { return errors.Is(s.Ping(t.Context()), lanegate.ErrUnavailable) })
	for name, err := range calls(t, s) {
		if !errors.Is(err, lanegate.ErrUnavailable) {
			t.Errorf("%s: %v, want unavailable", name, err)
		}
	}
	if n := s.write.Stats().OpenConnections; n != 0 {
		t.Errorf("%d connections to a server without writes are kept", n)
	}
	readOnly("off")
	eventually(t, "writes are taken again", func() bool { return s.Ping(t.Context()) == nil })
	works(t, "afterwards", s)
}

// C32, C69: while the server is away calls fail soon; once it is back they work
// at the first try, though the pools are full of dead connections.
func TestPostgresRestart(t *testing.T) {
	t.Parallel()
	s, server := newPGServer(t, Options{})
	together(8, func(int) { _, _ = s.Config(t.Context()) }) // open some connections
	mustSubmit(t, s, "class-000")
	fence := mustAdmit(t, s, "w").Grants[0].Attempt.Fence()
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for name, err := range calls(t, s) {
		if !errors.Is(err, lanegate.ErrUnavailable) {
			t.Errorf("%s while it is away: %v", name, err)
		}
	}
	if _, err := s.EndAttempt(t.Context(), fence, lanegate.Ending{Outcome: lanegate.Succeeded}); !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("finish: %v", err)
	}
	if _, err := s.Job(t.Context(), fence.Job); !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("read: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the failures took %v", took)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	works(t, "after the restart", s)
	if _, err := s.EndAttempt(t.Context(), fence, lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
		t.Errorf("finish, afterwards: %v", err)
	}
	// Restarted between two calls, so that only the pools have noticed nothing.
	if err := errors.Join(server.Stop(), server.Start()); err != nil {
		t.Fatal(err)
	}
	works(t, "after an unnoticed restart", s)
}

func TestPostgresMigratesOnceForManyProcesses(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	together(4, func(int) {
		s, err := Open(t.Context(), Options{Path: server.URL("test"), Logger: newTestLog()})
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(s.Ping(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestPostgresURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]pq.SSLMode{
		"postgres://u@127.0.0.1:5433/db?sslmode=disable":             pq.SSLModeDisable,
		"postgres://u@/db?host=/var/run/postgresql":                  pq.SSLModeDisable,
		"postgres://u@localhost/db?sslmode=require":                  pq.SSLModeRequire,
		"postgres://u@db.example/db?sslmode=verify-full":             pq.SSLModeVerifyFull,
		"postgres://u@10.0.0.7/db?sslmode=disable":                   pq.SSLModeDisable,
		"postgres://u@db1.example,db2.example/db?sslmode=verify-ca":  pq.SSLModeVerifyCA,
		"postgres://u@db.example/db?sslrootcert=system":              pq.SSLModeVerifyFull,
		"postgres://u:p%40ss@db.example/db?sslmode=require&port=444": pq.SSLModeRequire,
	} {
		cfg, err := postgresConfig(url)
		if err != nil || cfg.SSLMode != want || cfg.TargetSessionAttrs != pq.TargetSessionAttrsReadWrite {
			t.Errorf("%s: sslmode %q, %q, %v, want %q", url, cfg.SSLMode, cfg.TargetSessionAttrs, err, want)
		}
	}
	for url, want := range map[string]string{
		"postgres://u:secret@db.example/db":           "sslmode=verify-full",
		"postgres://u:secret@10.0.0.7/db":             "sslmode=verify-full",
		"postgres://u:secret@localhost,db.example/db": "sslmode=verify-full",
		"postgres://u:secret@localhost/db":            "sslmode=disable on a network that you trust",
		"postgresql://u:secret@[::1]/db":              "sslmode=verify-full",
		"postgres://u:secret@127.0.0.1/db":            "sslmode=verify-full",
		"postgres://u:secret@db.example:port/db":      "can't be read",
		"postgres://u:secret@db example/%zz":          "can't be read",
		"postgres://u:se%cret@h/db":                   "can't be read",
		"postgres://u:secret@h/db?sslmode=perhaps":    "can't be read",
	} {
		_, err := Open(t.Context(), Options{Path: url, Logger: newTestLog()})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q and no password", url, err, want)
		}
	}
	if _, err := Open(t.Context(), Options{Path: "postgres://localhost/db", MaxConns: 5, Logger: newTestLog()}); err == nil || !strings.Contains(err.Error(), "at least 6") {
		t.Errorf("too few connections: %v", err)
	}
}

func TestShownURL(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"postgres://u:s3cret@db.example:5433/jobs?sslmode=require":                           "postgres://u@db.example:5433/jobs?sslmode=require",
		"postgresql://u@/jobs?host=/run/pg&password=s3cret&sslpassword=s3cret&sslkey=s3cret": "postgresql://u@/jobs?host=/run/pg",
		"postgres://a:s3cret@db1,db2/jobs?sslmode=verify-full":                               "postgres://a@db1,db2/jobs?sslmode=verify-full",
		"postgres://u:s3%zzcret@h/db":                                                        "postgres://…",
	} {
		if got := ShownURL(dsn); got != want {
			t.Errorf("%s is shown as %s, want %s", dsn, got, want)
		}
	}
}

//go:build linux

package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// takeAll takes every connection of a pool until release is called.
func takeAll(t *testing.T, s *Store, db *sqlx.DB) (release func()) {
	t.Helper()
	conns := make([]*sqlx.Conn, 0, s.idle[db])
	release = sync.OnceFunc(func() {
		for _, c := range conns {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(release)
	for range db.Stats().MaxOpenConnections {
		c, err := db.Connx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	return release
}

// C71: with every connection of the writers taken, callers are answered after the
// wait, workers beat and readers read; and the other way round.
func TestPostgresWaitForConnectionsIsBounded(t *testing.T) {
	t.Parallel()
	const wait = 300 * time.Millisecond
	s := newPG(t, Options{MaxConns: leastConns, ConnWait: wait})
	addClasses(t, s, 1)
	mustRegister(t, s, "w")
	mustSubmit(t, s, "class-000")
	granted := mustAdmit(t, s, "w").Grants
	if len(granted) != 1 {
		t.Fatalf("%d grants", len(granted))
	}
	release := takeAll(t, s, s.write)
	before := s.Pools()["write"].Stats().WaitCount
	for name, call := range writers(s, newID(t), granted[0].Attempt.Fence()) {
		began := time.Now()
		err := call(t.Context())
		if !errors.Is(err, lanegate.ErrUnavailable) || !strings.Contains(causes(err), "no connection was free within 300ms") {
			t.Errorf("%s without a free connection: %v (%s)", name, err, causes(err))
		}
		if took := time.Since(began); took < wait || took > wait+5*time.Second {
			t.Errorf("%s was answered after %v, want the wait of %v", name, took, wait)
		}
	}
	if waits := s.Pools()["write"].Stats().WaitCount - before; waits < 4 {
		t.Errorf("%d waits were counted for 4 calls", waits)
	}
	held, err := s.Beat(t.Context(), "w")
	if err != nil || len(held) != 1 {
		t.Errorf("beat without a free connection: holds %v, %v", held, err)
	}
	if _, _, err := s.Jobs(t.Context(), service.JobFilter{}); err != nil {
		t.Errorf("list without a free connection of the writers: %v", err)
	}
	release()
	works(t, "afterwards", s)

	release = takeAll(t, s, s.read)
	if _, _, err := s.Jobs(t.Context(), service.JobFilter{}); !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("list without a free connection of the readers: %v", err)
	}
	works(t, "without one of the readers", s)
	release()
	if _, err := s.EndAttempt(t.Context(), granted[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
		t.Errorf("the outcome, in the end: %v", err)
	}
}

// writers are calls that need a connection of the writers.
func writers(s *Store, id string, f lanegate.Fence) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"submit": func(ctx context.Context) error {
			_, err := s.Submit(ctx, service.NewJob{ID: id, Class: "class-000", Payload: []byte("1")})
			return err
		},
		"admit": func(ctx context.Context) error {
			_, err := s.Admit(ctx, service.Ask{Worker: "w", Free: 8, SerialFree: true})
			return err
		},
		"outcome": func(ctx context.Context) error {
			_, err := s.EndAttempt(ctx, f, lanegate.Ending{Outcome: lanegate.Succeeded})
			return err
		},
		"ping": s.Ping,
	}
}

// causes is the text of an error with all that it wraps.
func causes(err error) string {
	var all []string
	for ; err != nil; err = errors.Unwrap(err) {
		all = append(all, err.Error())
	}
	return strings.Join(all, ": ")
}

// C71: ten workers and 500 callers at once on the fewest connections there may be.
// Nobody is turned away, every beat is answered in time for a lease that is shorter
// than any allowed, every job runs once, and the server sees no more connections.
func TestPostgresManyCallersOnFewConnections(t *testing.T) {
	t.Parallel()
	const workers, callers = 10, 500
	s := newPG(t, Options{MaxConns: leastConns})
	addWide(t, s, 4, 2*workers)
	crowd := make([]string, workers)
	for i := range crowd {
		crowd[i] = newID(t)
		mustRegister(t, s, crowd[i])
	}
	// The workers start to beat and to look for work before anybody submits.
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	stop := func() { cancel(); wg.Wait() }
	defer stop()
	for _, w := range crowd {
		wg.Go(func() { beatAlong(ctx, t, s, w) })
		wg.Go(func() { workAlong(ctx, t, s, w) })
	}
	ids := make([]string, callers)
	together(callers, func(i int) {
		ids[i] = newID(t)
		_, err := s.Submit(t.Context(), service.NewJob{ID: ids[i], Class: []string{"wide-00", "wide-01", "wide-02", "wide-03"}[i%4], Client: "c", Key: ids[i], Digest: []byte("d"), Payload: []byte("1")})
		if err != nil {
			t.Errorf("submit: %v", err)
		}
	})
	var most int
	eventually(t, "every job runs", func() bool {
		most = max(most, sessions(t, s))
		var left int
		if err := s.read.Get(&left, "SELECT count(*) FROM jobs WHERE state <> 'succeeded'"); err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	stop()
	var runs []int
	if err := s.read.Select(&runs, "SELECT count(*) FROM attempts WHERE outcome = 'succeeded' GROUP BY job_id"); err != nil {
		t.Fatal(err)
	}
	if len(runs) != callers || slices.Max(runs) != 1 {
		t.Errorf("%d jobs ran, one of them %d times; want %d, once", len(runs), slices.Max(runs), callers)
	}
	if most > leastConns {
		t.Errorf("the server saw %d sessions, want %d at most", most, leastConns)
	}
}

// sessions counts the server's sessions in the store's database, from one of them.
func sessions(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.read.Get(&n, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"); err != nil {
		t.Fatal(err)
	}
	return n
}

// beatAlong beats ten times a second until ctx ends.
func beatAlong(ctx context.Context, t *testing.T, s *Store, worker string) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		began := time.Now()
		if _, err := s.Beat(ctx, worker); err != nil && ctx.Err() == nil {
			t.Errorf("beat: %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a beat took %v", took)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// workAlong runs what it gets until ctx ends.
func workAlong(ctx context.Context, t *testing.T, s *Store, worker string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := endAll(ctx, s, worker); err != nil && ctx.Err() == nil {
			t.Errorf("work: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

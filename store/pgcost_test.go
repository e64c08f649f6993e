//go:build linux

package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

// What a job may cost PostgreSQL, whatever the machine is and does: bytes of its
// log, and syncs of that by 64 callers at once. They are counted, not timed.
// River v0.51, measured the same way, writes 1280 bytes for a job that it takes in
// and 3310 for one that it runs, with 339 and 32 syncs per 1,000. The bounds are a
// tenth to a fifth above what is counted here; lower them whenever that sinks.
const (
	maxAcceptedBytes  = 1110
	maxRunBytes       = 2150
	maxAcceptedFsyncs = 50 // per 1,000
	maxRunFsyncs      = 90
)

func TestPostgresCostOfAJob(t *testing.T) {
	t.Parallel()
	// With the durability that servers have by default, which the helper turns off,
	// and without what writes and syncs because time goes by.
	server := pgtest.New(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on",
		"max_wal_size=4GB", "checkpoint_timeout=1h", "wal_writer_delay=10s", "bgwriter_lru_maxpages=0")
	if err := migratePG(t.Context(), server.URL("test")); err != nil {
		t.Fatal(err)
	}
	const jobs = 2000
	in := costOf(t, server, func(s *Store) int64 {
		addLanes(t, s, 40, 20, 5)
		inParallel(t, jobs, func(ctx context.Context, i int) error {
			_, err := s.Submit(ctx, service.NewJob{
				ID: newID(t), Class: fmt.Sprintf("class-%03d", i%40), Client: "c", Payload: []byte(`{"day":"2026-11-29","store":1234}`),
			})
			return err
		})
		return jobs
	})
	t.Logf("accepted: %d bytes each, %d syncs per 1,000", in.bytes, in.fsyncs)
	if in.bytes > maxAcceptedBytes {
		t.Errorf("an accepted job costs %d bytes of WAL, want at most %d", in.bytes, maxAcceptedBytes)
	}
	if in.fsyncs > maxAcceptedFsyncs {
		t.Errorf("1,000 accepted jobs cost %d syncs of WAL, want at most %d", in.fsyncs, maxAcceptedFsyncs)
	}

	out := costOf(t, server, func(s *Store) int64 { return runSome(t, s, 800) })
	t.Logf("run: %d bytes each, %d syncs per 1,000", out.bytes, out.fsyncs)
	if out.bytes > maxRunBytes {
		t.Errorf("a run costs %d bytes of WAL, want at most %d", out.bytes, maxRunBytes)
	}
	if out.fsyncs > maxRunFsyncs {
		t.Errorf("1,000 runs cost %d syncs of WAL, want at most %d", out.fsyncs, maxRunFsyncs)
	}
}

// cost is what the server has written of its log: bytes for one job, syncs for 1,000.
type cost struct{ bytes, fsyncs int64 }

// costOf opens the store, lets do handle some jobs, and returns what each cost.
// Sessions may keep their counts of syncs to themselves for seconds, but not when
// they end: so the store is closed before the server is asked.
func costOf(t *testing.T, server *pgtest.Server, do func(s *Store) (jobs int64)) cost {
	t.Helper()
	db, err := sql.Open("postgres", server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var version int
	if err := db.QueryRowContext(t.Context(), "SELECT CAST(current_setting('server_version_num') AS int)").Scan(&version); err != nil {
		t.Fatal(err)
	}
	syncs := "(SELECT wal_sync FROM pg_stat_wal)"
	if version >= 180000 { // moved there
		syncs = "(SELECT CAST(sum(fsyncs) AS bigint) FROM pg_stat_io WHERE object = 'wal')"
	}
	read := func() (c cost) {
		err := db.QueryRowContext(t.Context(), "SELECT CAST(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') AS bigint), "+syncs).Scan(&c.bytes, &c.fsyncs)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	noSessions(t, db)
	before := read()
	s, err := Open(t.Context(), Options{Path: server.URL("test"), Logger: newTestLog()})
	if err != nil {
		t.Fatal(err)
	}
	jobs := do(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	noSessions(t, db)
	after := read()
	return cost{(after.bytes - before.bytes) / jobs, (after.fsyncs - before.fsyncs) * 1000 / jobs}
}

// noSessions waits until nobody is connected to the test's database.
func noSessions(t *testing.T, db *sql.DB) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = 'test'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions do not end", n)
		}
	}
}

// inParallel calls do for 0 … n−1 from 64 goroutines.
func inParallel(t *testing.T, n int, do func(ctx context.Context, i int) error) {
	t.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range next {
				if err := do(t.Context(), i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// runSome runs queued jobs in passes of up to 64 until n have been run, and
// returns how many were.
func runSome(t *testing.T, s *Store, n int) (ran int64) {
	t.Helper()
	w := service.WorkerInfo{ID: "w1", Host: "h", PID: 1, Slots: 64, Commands: map[string]string{"true": "d"}}
	if err := s.RegisterWorker(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for ran < int64(n) {
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w1", Free: 64, SerialFree: true})
		if err != nil || len(res.Grants) < 20 {
			t.Fatalf("grants = %d, want a slot in each of 20 lanes at least, err = %v", len(res.Grants), err)
		}
		inParallel(t, len(res.Grants), func(ctx context.Context, i int) error {
			_, err := s.EndAttempt(ctx, res.Grants[i].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second})
			return err
		})
		ran += int64(len(res.Grants))
	}
	return ran
}

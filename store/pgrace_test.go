//go:build linux

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

// twoPG are two stores, as of two processes, on one database.
func twoPG(t *testing.T, o Options) (a, b *Store) {
	t.Helper()
	server, name := pgtest.Database(t, migratePG)
	o.Path = server.URL(name)
	return newStore(t, o), newStore(t, o)
}

// together runs fn n times at once and waits for all.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-gate; fn(i) })
	}
	close(gate)
	wg.Wait()
}

// eventually polls cond until it holds or 20 seconds are over.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("%s: did not happen within 20s", what)
		case <-tick.C:
		}
	}
}

// Two processes that admit, finish and submit at once never have two runs in
// serial, and every job runs once.
func TestPostgresSerialNeverHasTwo(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	addClasses(t, a, 3)
	const jobs = 30
	for i := range jobs {
		mustSubmit(t, a, fmt.Sprintf("class-%03d", i%3))
	}
	stores := []*Store{a, b, a, b}
	for i, s := range stores {
		mustRegister(t, s, fmt.Sprint("w", i))
	}
	var mu sync.Mutex
	ran := map[string]int{}
	running := 0
	together(len(stores), func(i int) {
		s := stores[i]
		for {
			mu.Lock()
			done := len(ran) == jobs
			mu.Unlock()
			if done || t.Failed() {
				return
			}
			res, err := s.Admit(t.Context(), service.Ask{Worker: fmt.Sprint("w", i), Free: 8, SerialFree: true})
			if err != nil {
				t.Errorf("admit: %v", err)
				return
			}
			for _, g := range res.Grants {
				mu.Lock()
				if running++; running > 1 {
					t.Errorf("%d runs at once in serial", running)
				}
				ran[g.Job.ID]++
				mu.Unlock()
			}
			for _, g := range res.Grants {
				mu.Lock() // counted down before the slot is free again
				running--
				mu.Unlock()
				if _, err := s.EndAttempt(t.Context(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
					t.Errorf("end: %v", err)
				}
			}
		}
	})
	for id, n := range ran {
		if n != 1 {
			t.Errorf("job %s ran %d times", id, n)
		}
	}
}

// Batches over the same keys and classes in crossed order, on two processes,
// neither deadlock nor make two jobs of one key.
func TestPostgresCrossedKeysInBatches(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	addClasses(t, a, 6)
	deadlocks := countDeadlocks(t, a)
	for round := range 15 {
		var forth, back []service.NewJob
		for i := range 6 {
			key, class := fmt.Sprintf("k%d-%d", round, i), fmt.Sprintf("class-%03d", i)
			n := service.NewJob{Class: class, Client: "c", Key: key, Digest: []byte(key), Payload: []byte("1")}
			n.ID = newID(t)
			forth = append(forth, n)
			n.ID = newID(t)
			back = append([]service.NewJob{n}, back...)
		}
		ids := make([]map[string]string, 4)
		together(len(ids), func(i int) {
			s, batch := a, forth
			if i%2 == 1 {
				s, batch = b, back
			}
			if i >= 2 { // the same keys again, from new requests
				batch = append([]service.NewJob(nil), batch...)
				for j := range batch {
					batch[j].ID = newID(t)
				}
			}
			res, err := s.SubmitBatch(t.Context(), batch)
			if err != nil {
				t.Errorf("batch %d: %v", i, err)
				return
			}
			ids[i] = map[string]string{}
			for j, r := range res {
				if r.Err != nil {
					t.Errorf("item %d of batch %d: %v", j, i, r.Err)
				}
				ids[i][batch[j].Key] = r.Job.ID
			}
		})
		for i := 1; i < len(ids); i++ {
			for key, id := range ids[0] {
				if ids[i][key] != id {
					t.Errorf("key %s has jobs %s and %s", key, id, ids[i][key])
				}
			}
		}
	}
	if n := countDeadlocks(t, a) - deadlocks; n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// countDeadlocks asks the server how many deadlocks it has broken in the database.
func countDeadlocks(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.write.Get(&n, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPostgresFiftyEqualKeys(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	addClasses(t, a, 1)
	var mu sync.Mutex
	ids, made := map[string]int{}, 0
	together(50, func(i int) {
		s := a
		if i%2 == 1 {
			s = b
		}
		res, err := s.Submit(t.Context(), service.NewJob{ID: newID(t), Class: "class-000", Client: "c", Key: "k", Digest: []byte("d"), Payload: []byte("1")})
		if err != nil {
			t.Errorf("submit: %v", err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		ids[res.Job.ID]++
		if !res.Replayed {
			made++
		}
	})
	if len(ids) != 1 || made != 1 {
		t.Errorf("%d jobs, %d made, want one", len(ids), made)
	}
}

// hold opens a transaction by hand, without the store's own limits, as a process
// that is frozen would leave it.
func hold(t *testing.T, s *Store, lock string, args ...any) *sql.Tx {
	t.Helper()
	db, err := sql.Open("postgres", s.opts.Path)
	if err != nil {
		t.Fatal(err)
	}
	q, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = q.Rollback() // nothing when the test has ended it
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := q.Exec(lock, args...); err != nil {
		t.Fatal(err)
	}
	return q
}

// waitsForLock polls until a session of the database waits for a lock.
func waitsForLock(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "a wait for a lock", func() bool {
		var n int
		if err := s.read.Get(&n, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
}

// A finish never takes the admission row: it goes on beside an admission.
func TestPostgresFinishBesideAdmission(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addClasses(t, s, 2)
	mustSubmit(t, s, "class-000")
	mustRegister(t, s, "w")
	g := mustAdmit(t, s, "w").Grants
	hold(t, s, "SELECT 1 FROM admission FOR UPDATE")
	if _, err := s.EndAttempt(t.Context(), g[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
		t.Errorf("finish: %v", err)
	}
	queued := mustSubmit(t, s, "class-001")
	if _, err := s.Cancel(t.Context(), queued.ID, "ada"); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if _, err := s.Beat(t.Context(), "w"); err != nil {
		t.Errorf("beat: %v", err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// A frozen process that holds the admission row stops the others for seconds only.
func TestPostgresFrozenHolder(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{LockTimeout: 300 * time.Millisecond})
	addClasses(t, s, 1)
	mustSubmit(t, s, "class-000")
	mustRegister(t, s, "w")
	frozen := hold(t, s, "SELECT 1 FROM admission FOR UPDATE")
	began := time.Now()
	_, err := s.Admit(t.Context(), service.Ask{Worker: "w", SerialFree: true})
	if took := time.Since(began); !errors.Is(err, lanegate.ErrUnavailable) || took > 5*time.Second {
		t.Errorf("admit: %v after %v", err, took)
	}
	if err := s.Change(t.Context(), func(service.ConfigTx) error { return nil }); !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("change: %v", err)
	}
	if err := frozen.Rollback(); err != nil {
		t.Fatal(err)
	}
	if g := mustAdmit(t, s, "w").Grants; len(g) != 1 {
		t.Errorf("%d grants after it was gone", len(g))
	}
}

// The server itself ends a transaction of ours that says nothing for a while.
func TestPostgresOwnFrozenTransactionEnds(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{IdleTimeout: 300 * time.Millisecond})
	addClasses(t, a, 1)
	mustSubmit(t, a, "class-000")
	mustRegister(t, b, "w")
	locked, thaw := make(chan struct{}), make(chan struct{})
	frozen := make(chan error)
	go func() {
		frozen <- a.inAdmissionTx(t.Context(), "freeze", func(q *tx) error {
			close(locked)
			<-thaw
			return q.one(sqlBumpVersion, nil)
		})
	}()
	<-locked
	if g := mustAdmit(t, b, "w").Grants; len(g) != 1 {
		t.Errorf("%d grants beside a frozen process", len(g))
	}
	close(thaw)
	if err := <-frozen; !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("the frozen transaction, later: %v", err)
	}
	if err := a.Ping(t.Context()); err != nil {
		t.Errorf("its process afterwards: %v", err)
	}
}

// The time of an admission is read behind the lock: it is no earlier than that of
// the one it waited for.
func TestPostgresTimeIsReadBehindTheLock(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	locked, thaw := make(chan struct{}), make(chan struct{})
	first := make(chan time.Time, 1)
	go func() {
		err := a.inAdmissionTx(t.Context(), "first", func(q *tx) error {
			close(locked)
			<-thaw
			var end dbTime
			_, err := q.get(&end, "SELECT clock_timestamp()")
			first <- end.t
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-locked
	second := make(chan time.Time, 1)
	go func() {
		err := b.inAdmissionTx(t.Context(), "second", func(q *tx) error {
			second <- q.at
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}()
	waitsForLock(t, a)
	close(thaw)
	if f, s := <-first, <-second; s.Before(f) {
		t.Errorf("the second's time %v is before the first's end %v", s, f)
	}
}

// A job that is cancelled while an admission has chosen it is not started, and
// the next one is.
func TestPostgresChosenJobIsCancelled(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addClasses(t, s, 1)
	first, second := mustSubmit(t, s, "class-000"), mustSubmit(t, s, "class-000")
	mustRegister(t, s, "w")
	cancelled := hold(t, s, "UPDATE jobs SET state = 'cancelled', finished_at = now() WHERE id = $1", first.ID)
	got := make(chan service.Admitted, 1)
	go func() {
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", SerialFree: true})
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	waitsForLock(t, s)
	if err := cancelled.Commit(); err != nil {
		t.Fatal(err)
	}
	if res := <-got; len(res.Grants) != 1 || res.Grants[0].Job.ID != second.ID {
		t.Errorf("granted %+v, want the second job", res.Grants)
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// blockWriter keeps the writer busy inside a transaction until release is called.
func blockWriter(t *testing.T, s *Store) (release func()) {
	t.Helper()
	entered, gate := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.group.do(t.Context(), &item{run: func(*tx) error {
			close(entered)
			<-gate
			return nil
		}})
	}()
	<-entered
	return sync.OnceFunc(func() {
		close(gate)
		if err := <-done; err != nil {
			t.Errorf("the blocking item: %v", err)
		}
	})
}

func insertSetting(key string) func(t *tx) error {
	return func(t *tx) error { return t.one(sqlSetSetting, nil, key, "x") }
}

func settings(t *testing.T, s *Store) int {
	t.Helper()
	var n int
	if err := s.read.Get(&n, "SELECT count(*) FROM settings"); err != nil {
		t.Fatal(err)
	}
	return n
}

// sharing hands the items in while the writer is busy, so that they share one
// transaction, and returns their answers in order.
func sharing(t *testing.T, s *Store, runs ...func(t *tx) error) []error {
	t.Helper()
	release := blockWriter(t, s)
	defer release()
	items := make([]*item, len(runs))
	for i, run := range runs {
		items[i] = &item{run: run, done: make(chan struct{})}
		if err := s.group.hand(items[i]); err != nil {
			t.Fatal(err)
		}
	}
	release()
	errs := make([]error, len(items))
	for i, it := range items {
		<-it.done
		errs[i] = it.err
	}
	return errs
}

func TestGroupBadItemFailsAlone(t *testing.T) {
	s := newStore(t, Options{})
	boom := errors.New("boom")
	errs := sharing(t, s,
		insertSetting("a"),
		func(t *tx) error { return errors.Join(insertSetting("b")(t), boom) },
		func(t *tx) error { _, err := t.exec("INSERT INTO settings (key) VALUES ('c')"); return err },
		func(t *tx) error { _ = insertSetting("d")(t); panic("d") },
		insertSetting("e"),
	)
	if errs[0] != nil || errs[4] != nil {
		t.Errorf("good items: %v, %v", errs[0], errs[4])
	}
	if !errors.Is(errs[1], boom) {
		t.Errorf("the failing item: %v", errs[1])
	}
	if errs[2] == nil || errors.Is(errs[2], lanegate.ErrUnavailable) {
		t.Errorf("the item with a missing column value: %v", errs[2])
	}
	if lanegate.KindOf(errs[3]) != lanegate.KindInternal || errs[3] == nil {
		t.Errorf("the panicking item: %v", errs[3])
	}
	if n := settings(t, s); n != 2 {
		t.Errorf("%d settings, want those of the two good items", n)
	}
	if err := s.group.do(t.Context(), &item{run: insertSetting("f")}); err != nil {
		t.Errorf("the writer did not survive: %v", err)
	}
}

// An outcome that fails on its last step leaves no attempt, job or run log row changed.
func TestGroupOutcomeIsAllOrNothing(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	id := mustSubmit(t, s, "class-000").ID
	mustRegister(t, s, "w")
	fence := mustAdmit(t, s, "w").Grants[0].Attempt.Fence()
	boom := errors.New("boom")
	errs := sharing(t, s, func(t *tx) error {
		if _, err := t.endAttempt(fence, lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte("1")}, false); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(errs[0], boom) {
		t.Fatal(errs[0])
	}
	d, err := s.Job(t.Context(), id)
	if err != nil || d.State != lanegate.StateRunning || d.Result != nil {
		t.Errorf("job %+v, result %q, %v", d.Job, d.Result, err)
	}
	for _, table := range []string{"run_log", "job_results", "class_successes", "attempts WHERE outcome IS NOT NULL"} {
		var n int
		if err := s.read.Get(&n, "SELECT count(*) FROM "+table); err != nil || n != 0 {
			t.Errorf("%s: %d rows, %v", table, n, err)
		}
	}
	if _, err := s.EndAttempt(t.Context(), fence, lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
		t.Errorf("the repetition: %v", err)
	}
}

func TestGroupFailedCommitIsOutcomeUnknown(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	// A foreign key that is checked at the commit makes that fail.
	breakCommit := func(t *tx) error {
		if _, err := t.exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		return t.one(sqlInsertPayload, nil, "no such job", []byte("1"))
	}
	for i, err := range sharing(t, s, insertSetting("a"), breakCommit) {
		if !errors.Is(err, lanegate.ErrOutcomeUnknown) {
			t.Errorf("item %d: %v, want outcome unknown", i, err)
		}
	}
	if n := settings(t, s); n != 0 {
		t.Errorf("%d settings left", n)
	}
	if err := s.inTx(t.Context(), "test", breakCommit); !errors.Is(err, lanegate.ErrOutcomeUnknown) {
		t.Errorf("alone: %v", err)
	}
	mustSubmit(t, s, "class-000")
}

func TestGroupOverload(t *testing.T) {
	s := newStore(t, Options{MaxPending: 3})
	addClasses(t, s, 1)
	release := blockWriter(t, s)
	defer release()
	answers := make(chan error, 4)
	for i := range 3 {
		it := &item{run: insertSetting(fmt.Sprint(i)), done: make(chan struct{})}
		if err := s.group.hand(it); err != nil {
			t.Fatal(err)
		}
		go func() { <-it.done; answers <- it.err }()
	}
	_, err := s.Submit(t.Context(), service.NewJob{ID: newID(t), Class: "class-000", Payload: []byte("1")})
	if !errors.Is(err, lanegate.ErrOverloaded) {
		t.Errorf("error = %v, want overloaded", err)
	}
	release()
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	mustSubmit(t, s, "class-000")
}

func TestGroupContext(t *testing.T) {
	t.Run("an item that was not taken is dropped", func(t *testing.T) {
		s := newStore(t, Options{})
		release := blockWriter(t, s)
		defer release()
		ctx, cancel := context.WithCancel(t.Context())
		it := &item{run: insertSetting("a")}
		answer := make(chan error)
		go func() { answer <- s.group.do(ctx, it) }()
		cancel()
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want the context's", err)
		}
		release()
		if err := s.group.do(t.Context(), &item{run: insertSetting("b")}); err != nil {
			t.Fatal(err)
		}
		if n := settings(t, s); n != 1 {
			t.Errorf("%d settings, want the second only", n)
		}
	})
	t.Run("the outcome of one that was taken is unknown", func(t *testing.T) {
		s := newStore(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		gate := make(chan struct{})
		err := s.group.do(ctx, &item{run: func(t *tx) error {
			cancel()
			<-gate
			return insertSetting("a")(t)
		}})
		if !errors.Is(err, lanegate.ErrOutcomeUnknown) {
			t.Errorf("error = %v, want outcome unknown", err)
		}
		close(gate)
		if err := s.Close(); err != nil { // waits for the commit
			t.Fatal(err)
		}
		s = newStore(t, Options{Path: s.path})
		if n := settings(t, s); n != 1 {
			t.Errorf("%d settings: the commit was cut by its caller's end", n)
		}
	})
}

func TestCloseWaitsForWhatWasHandedIn(t *testing.T) {
	s := newStore(t, Options{})
	release := blockWriter(t, s)
	it := &item{run: insertSetting("a"), done: make(chan struct{})}
	if err := s.group.hand(it); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	release()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	<-it.done
	if it.err != nil {
		t.Errorf("an item handed in before the close: %v", it.err)
	}
	if err := s.group.hand(&item{}); !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("after the close: %v", err)
	}
}

// calls makes one call of each kind and returns their errors by name.
func calls(t *testing.T, s *Store) map[string]error {
	ctx := t.Context()
	_, submit := s.Submit(ctx, service.NewJob{ID: newID(t), Class: "class-000", Payload: []byte("1")})
	_, batch := s.SubmitBatch(ctx, []service.NewJob{{ID: newID(t), Class: "class-000", Payload: []byte("1")}})
	_, beat := s.Beat(ctx, "w")
	return map[string]error{
		"submit": submit, "batch": batch, "beat": beat, "ping": s.Ping(ctx),
		"change": s.Change(ctx, func(tx service.ConfigTx) error { return tx.SetSetting("k", "v") }),
	}
}

func TestLockedFileIsUnavailable(t *testing.T) {
	s := newStore(t, Options{Retry: Retry{Attempts: 2, Wait: 1}})
	addClasses(t, s, 1)
	mustRegister(t, s, "w")
	if _, err := s.write.Exec("PRAGMA busy_timeout = 5"); err != nil {
		t.Fatal(err)
	}
	other, reader, err := openSQLite(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(other.Close(), reader.Close()) }()
	hold, err := other.Beginx()
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range calls(t, s) {
		if !errors.Is(err, lanegate.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := hold.Rollback(); err != nil {
		t.Fatal(err)
	}
	for name, err := range calls(t, s) {
		if err != nil {
			t.Errorf("%s, afterwards: %v", name, err)
		}
	}
}

// C69: a database that takes no writes is told apart from one that does.
func TestReadOnlyDatabaseIsUnavailable(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	mustRegister(t, s, "w")
	for _, readOnly := range []bool{true, false} {
		if _, err := s.write.Exec(fmt.Sprintf("PRAGMA query_only = %v", readOnly)); err != nil {
			t.Fatal(err)
		}
		for name, err := range calls(t, s) {
			if errors.Is(err, lanegate.ErrUnavailable) != readOnly || (err != nil) != readOnly {
				t.Errorf("%s with query_only = %v: %v", name, readOnly, err)
			}
		}
	}
}

// A transaction that another one was in the way of runs again, and succeeds.
func TestConflictsAreRetried(t *testing.T) {
	s := newStore(t, Options{Retry: Retry{Attempts: 3, Wait: 1}})
	conflict := &faultError{kind: faultConflict, text: "deadlock"}
	for times := range 4 {
		for name, try := range map[string]func(fn func(t *tx) error) error{
			"alone":    func(fn func(t *tx) error) error { return s.inTx(t.Context(), "test", fn) },
			"in group": func(fn func(t *tx) error) error { return s.group.do(t.Context(), &item{run: fn}) },
		} {
			runs := 0
			err := try(func(t *tx) error {
				if runs++; runs <= times {
					return conflict
				}
				return insertSetting(fmt.Sprint(name, times))(t)
			})
			if want := min(times+1, 3); runs != want || (err == nil) != (times < 3) {
				t.Errorf("%s, %d conflicts: %d runs, %v", name, times, runs, err)
			}
		}
	}
	if n := settings(t, s); n != 6 {
		t.Errorf("%d settings, want 6", n)
	}
}

// Large batches don't share one commit without end: the first would wait for all.
func TestGroupIsBoundedByJobs(t *testing.T) {
	g := &group{queue: make(chan *item, 10)}
	for range 10 {
		g.queue <- &item{submits: make([]submission, 1000)}
	}
	sizes := []int{}
	for len(g.queue) > 0 {
		sizes = append(sizes, len(g.gather(<-g.queue)))
	}
	if !slices.Equal(sizes, []int{2, 2, 2, 2, 2}) {
		t.Errorf("groups of %v batches of 1000 jobs", sizes)
	}
}

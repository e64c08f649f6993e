package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// testClock is a process clock that stands until it is moved.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *testClock {
	return &testClock{now: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)}
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestLaneAvailability(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	available := func() bool {
		t.Helper()
		cfg, err := s.Config(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(cfg.Lanes, func(l lanegate.Lane) bool { return l.Name == lanegate.LaneParallel })
		return cfg.Lanes[i].Available
	}
	leave := map[string]func(id string) error{
		"leaves":    func(id string) error { _, err := s.LeaveWorker(ctx, id); return err },
		"is reaped": func(id string) error { _, err := s.ReapWorker(ctx, id, 0); return err },
		"stops serving it": func(id string) error {
			return s.UpdateWorker(ctx, service.WorkerInfo{ID: id, Lanes: []string{lanegate.LaneSerial}})
		},
	}
	if available() {
		t.Error("available before any worker")
	}
	for how, gone := range leave {
		id := newID(t)
		mustRegister(t, s, id)
		if !available() {
			t.Errorf("%s: not available while it serves", how)
		}
		clock.advance(time.Hour)
		if !available() {
			t.Errorf("%s: not available after an hour of serving", how)
		}
		if err := gone(id); err != nil {
			t.Fatal(err)
		}
		clock.advance(servedFor - time.Microsecond)
		if !available() {
			t.Errorf("when the worker %s: unavailable before 60s", how)
		}
		clock.advance(time.Microsecond)
		if available() {
			t.Errorf("when the worker %s: still available after 60s", how)
		}
	}
}

func TestLostDurationEndsAtTheLastBeat(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	addClasses(t, s, 1)
	mustSubmit(t, s, "class-000")
	mustRegister(t, s, "w")
	mustAdmit(t, s, "w")
	clock.advance(90 * time.Second)
	if _, err := s.Beat(ctx, "w"); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	ended, err := s.ReapWorker(ctx, "w", 1)
	if err != nil || len(ended) != 1 {
		t.Fatalf("ended %v, %v", ended, err)
	}
	if a := ended[0].Attempt; a.Duration != 90*time.Second || !a.Estimated {
		t.Errorf("duration %v (estimated %v), want 1m30s", a.Duration, a.Estimated)
	}
	// The next one dies before its first beat.
	mustRegister(t, s, "x")
	clock.advance(time.Minute)
	mustAdmit(t, s, "x")
	clock.advance(time.Hour)
	if ended, err = s.LeaveWorker(ctx, "x"); err != nil || ended[0].Attempt.Duration != 0 {
		t.Errorf("duration %v, %v, want 0", ended[0].Attempt.Duration, err)
	}
}

func TestDeferredAndBackoffTimesAreExact(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	s.jitter = func() float64 { return 0.5 }
	addClasses(t, s, 1)
	if err := s.Change(ctx, func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		c := cfg.Classes[0]
		c.MaxAttempts, c.Backoff = 3, &lanegate.Backoff{Base: lanegate.Duration(time.Minute), Max: lanegate.Duration(time.Hour)}
		return tx.SaveClass(c)
	}); err != nil {
		t.Fatal(err)
	}
	first, second := mustSubmit(t, s, "class-000"), mustSubmit(t, s, "class-000")
	mustRegister(t, s, "w")
	for _, c := range []struct {
		ending lanegate.Ending
		wait   time.Duration
	}{
		{lanegate.Ending{Outcome: lanegate.Failed}, 30 * time.Second},
		{lanegate.Ending{Outcome: lanegate.TimedOut}, time.Minute},
		{lanegate.Ending{Outcome: lanegate.Deferred, DeferFor: 90 * time.Second}, 90 * time.Second},
		{lanegate.Ending{Outcome: lanegate.Deferred}, time.Minute},
	} {
		g := mustAdmit(t, s, "w").Grants
		if len(g) != 1 || g[0].Job.ID != first.ID {
			t.Fatalf("granted %+v, want the first job again", g)
		}
		if _, err := s.EndAttempt(ctx, g[0].Attempt.Fence(), c.ending); err != nil {
			t.Fatal(err)
		}
		// It stands aside: the second one passes, and goes back for the next round.
		res := mustAdmit(t, s, "w")
		if len(res.Grants) != 1 || res.Grants[0].Job.ID != second.ID || res.NextDue != c.wait {
			t.Fatalf("after %+v: next due in %v, want %v; granted %+v", c.ending, res.NextDue, c.wait, res.Grants)
		}
		if _, err := s.EndAttempt(ctx, res.Grants[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Interrupted}); err != nil {
			t.Fatal(err)
		}
		clock.advance(c.wait)
	}
}

func TestManyJobsBecomeDueInSteps(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	addClasses(t, s, 1)
	at := clock.Now().Add(time.Hour)
	var batch []service.NewJob
	for range maxPromoted + 1 {
		batch = append(batch, service.NewJob{ID: newID(t), Class: "class-000", RunAt: &at, Payload: []byte("1")})
	}
	if _, err := s.SubmitBatch(ctx, batch); err != nil {
		t.Fatal(err)
	}
	mustRegister(t, s, "w")
	if res := mustAdmit(t, s, "w"); len(res.Grants) != 0 || res.NextDue != time.Hour {
		t.Fatalf("before the time: %d grants, next due in %v", len(res.Grants), res.NextDue)
	}
	clock.advance(time.Hour)
	res := mustAdmit(t, s, "w")
	if len(res.Grants) != 1 || res.Grants[0].Job.ID != batch[0].ID || res.NextDue != 0 {
		t.Errorf("granted %d, next due in %v, want the first job and 0 as more are ready", len(res.Grants), res.NextDue)
	}
	if res = mustAdmit(t, s, "w"); res.NextDue >= 0 {
		t.Errorf("next due in %v, want none", res.NextDue)
	}
}

func TestKeysAreKeptSevenDays(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	addClasses(t, s, 1)
	submit := func() service.Submitted {
		t.Helper()
		res, err := s.Submit(ctx, service.NewJob{ID: newID(t), Class: "class-000", Client: "c", Key: "k", Digest: []byte("d"), Payload: []byte("1")})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	prune := func() int {
		t.Helper()
		jobs, err1 := s.PruneJobs(ctx, clock.Now(), 100)
		runs, err2 := s.PruneRunLog(ctx, clock.Now(), 100)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return jobs + runs
	}
	first := submit().Job
	mustRegister(t, s, "w")
	fence := mustAdmit(t, s, "w").Grants[0].Attempt.Fence()
	if _, err := s.EndAttempt(ctx, fence, lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
		t.Fatal(err)
	}
	clock.advance(keyKept)
	if n := prune(); n != 1 { // its run log row only
		t.Errorf("pruned %d rows, want 1", n)
	}
	if res := submit(); !res.Replayed || res.Job.ID != first.ID {
		t.Errorf("after 7 days: %+v", res)
	}
	clock.advance(time.Microsecond)
	if n := prune(); n != 1 {
		t.Errorf("pruned %d rows, want the job", n)
	}
	if res := submit(); res.Replayed {
		t.Errorf("the key outlived its job: %+v", res)
	}
}

func TestPrunedWorkersAreThoseLongGone(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	for _, id := range []string{"live", "gone"} {
		mustRegister(t, s, id)
	}
	if _, err := s.LeaveWorker(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{2, 1} {
		if _, err := s.PruneRunLog(ctx, clock.Now(), 1); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := s.read.Get(&n, "SELECT count(*) FROM workers"); err != nil || n != want {
			t.Errorf("%d worker rows, %v, want %d", n, err, want)
		}
		clock.advance(workerKept + time.Second)
	}
}

func TestRunLogReadsEveryPage(t *testing.T) {
	ctx := t.Context()
	clock := newClock()
	s := newStore(t, Options{Now: clock.Now})
	start := clock.Now()
	const rows = 2*runPage + 7
	err := s.inTx(ctx, "fill", func(t *tx) error {
		for i := range rows {
			// Many rows share an instant, so pages end in the middle of one.
			if err := t.logRun(jobRow{SubmittedAt: at(start)}, attemptRow{
				Job: fmt.Sprint(i), Number: 1, Class: "c", Units: dbJSON[lanegate.Units]{lanegate.Units{}},
				ReadyAt: at(start), StartedAt: at(start), EndedAt: at(start.Add(time.Duration(i/300) * time.Second)),
				Outcome: new(lanegate.Failed),
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"", "c"} {
		seen := 0
		err := s.RunLog(ctx, class, start, start.Add(time.Hour), func(r lanegate.RunRecord) error {
			if r.Job != fmt.Sprint(seen) {
				return fmt.Errorf("row %d is of job %s", seen, r.Job)
			}
			seen++
			return nil
		})
		if err != nil || seen != rows {
			t.Errorf("class %q: %d rows, %v, want %d", class, seen, err, rows)
		}
	}
}

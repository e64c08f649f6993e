package service_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestAttemptsAreCounted(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	job := f.mustSubmit("c").ID
	f.clock.advance(90 * time.Second)
	fence := f.mustStart("w", 1, job)[job]
	if n := f.metric("lanegate_job_wait_seconds", "class=c", "lane=serial"); n != 1 {
		t.Errorf("%v waits observed", n)
	}
	f.bell.heard()
	f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Minute})
	if got := f.bell.heard(); !slices.Equal(got, []string{lanegate.LaneSerial}) {
		t.Errorf("rang %v", got)
	}
	select {
	case <-f.svc.Rings():
	default:
		t.Error("the worker of this process was not rung")
	}
	for _, name := range []string{"lanegate_attempts_finished_total", "lanegate_job_duration_seconds"} {
		if n := f.metric(name, "class=c", "lane=serial", "outcome=succeeded"); n != 1 {
			t.Errorf("%s: %v", name, n)
		}
	}
}

// Invariant 6: a zombie's write changes nothing, and is reported and counted.
func TestLateWriteIsCounted(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	job := f.mustSubmit("c").ID
	fence := f.mustStart("w", 1, job)[job]
	f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded})
	f.bell.heard()
	stranger := fence
	stranger.Token = "guess"
	for i, late := range []lanegate.Fence{fence, stranger} {
		_, err := f.svc.EndAttempt(t.Context(), late, lanegate.Ending{Outcome: lanegate.Failed})
		wantError(t, err, lanegate.ErrLateWrite)
		if n := f.metric("lanegate_late_writes_total"); n != float64(i+1) {
			t.Errorf("%v late writes counted, want %d", n, i+1)
		}
	}
	if f.mustState(job) != lanegate.StateSucceeded || f.metric("lanegate_attempts_finished_total", "outcome=failed") != 0 || f.bell.heard() != nil {
		t.Error("a late write had an effect")
	}
	if f.logs.count("late write refused") != 2 {
		t.Error("not logged")
	}
}

// unconfirmed is a store whose first outcome is committed without its answer
// arriving, as happens when the connection breaks in the commit.
type unconfirmed struct {
	service.Store
	broke bool
}

func (s *unconfirmed) EndAttempt(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (service.Ended, error) {
	ended, err := s.Store.EndAttempt(ctx, f, e)
	if err == nil && !s.broke {
		s.broke = true
		return service.Ended{}, lanegate.ErrOutcomeUnknown
	}
	return ended, err
}

// Invariant 6: an outcome whose commit was not confirmed is written again. When
// the first did land, the second is no late write, and what follows from the
// outcome follows once.
func TestRepeatedOutcomeIsNoLateWrite(t *testing.T) {
	f := newFixture(t, func(s *setup) {
		s.wrap = func(inner service.Store) service.Store { return &unconfirmed{Store: inner} }
	})
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	job := f.mustSubmit("c").ID
	fence := f.mustStart("w", 1, job)[job]
	f.bell.heard()
	own := lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Minute}
	_, err := f.svc.EndAttempt(t.Context(), fence, own)
	wantError(t, err, lanegate.ErrOutcomeUnknown)
	if got := f.bell.heard(); got != nil {
		t.Errorf("rang %v for an outcome that nobody confirmed", got)
	}
	ended := f.mustEnd(fence, own)
	if !ended.Repeated || ended.Job.State != lanegate.StateSucceeded {
		t.Errorf("ended = %+v", ended)
	}
	if got := f.bell.heard(); !slices.Equal(got, []string{lanegate.LaneSerial}) {
		t.Errorf("rang %v: the freed slot is for others", got)
	}
	if late, counted := f.metric("lanegate_late_writes_total"), f.metric("lanegate_attempts_finished_total", "class=c", "outcome=succeeded"); late != 0 || counted != 1 {
		t.Errorf("%v late writes and %v successes counted, want none and one", late, counted)
	}
	if n := f.logs.count("late write refused"); n != 0 {
		t.Errorf("%d late writes logged", n)
	}
}

// While parallel isn't served its classes run in serial: counted and alarmed.
func TestFallbackIsCounted(t *testing.T) {
	f := newFixture(t)
	f.mustPut("p", execSpec())
	f.mustPromote("p", lanegate.LaneParallel, 1)
	f.mustWorker("w", 1, lanegate.LaneSerial)
	job := f.mustSubmit("p").ID
	g := f.mustAdmit("w", 1).Grants
	if len(g) != 1 || g[0].Job.ID != job || g[0].Attempt.Lane != lanegate.LaneSerial {
		t.Fatalf("grants %+v", g)
	}
	if n := f.metric("lanegate_route_fallback_total", "lane=parallel", "reason=lane_unavailable"); n != 1 {
		t.Errorf("%v fallbacks counted", n)
	}
	if f.logs.count("job runs outside its class's lane") != 1 {
		t.Error("not logged")
	}
	view, err := f.svc.Job(t.Context(), job)
	if err != nil || view.Job.Route == nil || *view.Job.Route != (lanegate.Route{Lane: "serial", Reason: "lane_unavailable", Wanted: "parallel"}) {
		t.Errorf("route %+v, %v", view.Job.Route, err)
	}
}

func TestLostAttemptsAreCountedAndRung(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name string
		gone func(s *service.Service) error
	}{
		{"the worker leaves", func(s *service.Service) error { return s.LeaveWorker(ctx, "w") }},
		{"the worker is declared dead", func(s *service.Service) error { return s.ReapWorker(ctx, "w", 0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.mustPut("c", execSpec())
			f.mustWorker("w", 1)
			job := f.mustSubmit("c").ID
			f.mustStart("w", 1, job)
			f.bell.heard()
			f.must(tt.gone(f.svc))
			f.must(f.svc.ReapOrphans(ctx)) // finds nothing more
			if n := f.metric("lanegate_attempts_finished_total", "class=c", "outcome=lost"); n != 1 {
				t.Errorf("%v lost attempts counted", n)
			}
			if got := f.bell.heard(); !slices.Equal(got, []string{lanegate.LaneSerial}) {
				t.Errorf("rang %v", got)
			}
			if f.mustState(job) != lanegate.StateQueued {
				t.Errorf("state %s", f.mustState(job))
			}
			if _, err := f.svc.Beat(ctx, "w"); !errors.Is(err, lanegate.ErrWorkerGone) {
				t.Errorf("beat of a worker that is gone: %v", err)
			}
		})
	}
}

// A cancel reaches a run with its worker's next beat, which is asked for at once.
func TestCancelOfARunningJobNudges(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	running, queued := f.mustSubmit("c").ID, f.mustSubmit("c").ID
	fence := f.mustStart("w", 1, running)[running]
	nudged := func() bool {
		select {
		case <-f.svc.Nudges():
			return true
		default:
			return false
		}
	}
	f.bell.heard()
	if view, err := f.svc.Cancel(ctx, queued, "ann"); err != nil || view.State != lanegate.StateCancelled || nudged() {
		t.Errorf("state %s, %v", view.State, err)
	}
	if got := f.bell.heard(); !slices.Equal(got, []string{lanegate.LaneSerial}) {
		t.Errorf("rang %v: what was kept for the job is free", got)
	}
	for range 3 { // asked again and again, the worker is nudged once
		if view, err := f.svc.Cancel(ctx, running, "ann"); err != nil || view.State != lanegate.StateRunning || !view.CancelRequested {
			t.Errorf("state %s, asked %v, %v", view.State, view.CancelRequested, err)
		}
	}
	if !nudged() || nudged() {
		t.Error("not nudged once")
	}
	held, err := f.svc.Beat(ctx, "w")
	if err != nil || len(held) != 1 || !held[0].CancelRequested {
		t.Fatalf("held %+v, %v", held, err)
	}
	f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Cancelled})
	_, err = f.svc.Cancel(ctx, running, "ann")
	wantError(t, err, lanegate.ErrJobFinal)
}

func TestRetryRings(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	job := f.mustSubmit("c").ID
	_, err := f.svc.Retry(t.Context(), job, "ann")
	wantError(t, err, lanegate.ErrNotRetryable)
	f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: lanegate.Failed, Error: "exit 1"})
	f.bell.heard()
	view, err := f.svc.Retry(t.Context(), job, "ann")
	if err != nil || view.State != lanegate.StateQueued || !slices.Equal(f.bell.heard(), []string{lanegate.LaneSerial}) {
		t.Errorf("state %s, %v", view.State, err)
	}
	f.mustStart("w", 1, job)
	_, err = f.svc.RunNext(t.Context(), job, "ann")
	wantError(t, err, lanegate.ErrNotQueued)
}

func TestInterruptedAgainAndAgainIsFlagged(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	job := f.mustSubmit("c").ID
	want := func(n float64) {
		t.Helper()
		if got := f.metric("lanegate_class_interruptions_in_row", "class=c"); got != n {
			t.Errorf("%v interruptions in a row, want %v", got, n)
		}
	}
	for i := range lanegate.FlagInterruptions {
		want(float64(i)) // waiting, first in line
		if n := f.logs.count("interrupted again and again"); n != 0 {
			t.Errorf("flagged after %d interruptions", i)
		}
		f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: lanegate.Interrupted, Error: "drain"})
	}
	if n := f.logs.count("interrupted again and again"); n != 1 {
		t.Errorf("flagged %d times", n)
	}
	fence := f.mustStart("w", 1, job)[job]
	want(lanegate.FlagInterruptions) // and while it runs
	f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded})
	want(0)
}

func TestOutputOfTheLastAttempt(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	spec := execSpec()
	spec.MaxAttempts = 2
	spec.Backoff = &lanegate.Backoff{}
	f.mustPut("c", spec)
	f.mustWorker("w", 1)
	job := f.mustSubmit("c").ID
	if out, err := f.svc.Output(ctx, job, 0); err != nil || out != (lanegate.Output{}) {
		t.Errorf("before the first attempt: %+v, %v", out, err)
	}
	for _, text := range []string{"one", "two"} {
		f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: lanegate.Failed, Output: lanegate.Output{Head: text, Bytes: 3}})
	}
	for n, want := range []string{"two", "one", "two"} {
		if out, err := f.svc.Output(ctx, job, n); err != nil || out.Head != want {
			t.Errorf("output of attempt %d: %q, %v, want %q", n, out.Head, err, want)
		}
	}
	_, err := f.svc.Output(ctx, job, 3)
	wantError(t, err, lanegate.ErrAttemptNotFound)
	_, err = f.svc.Output(ctx, theJob, 0)
	wantError(t, err, lanegate.ErrJobNotFound)
	attempts, err := f.svc.Attempts(ctx, job)
	if err != nil || len(attempts) != 2 || attempts[0].Number != 1 {
		t.Errorf("attempts %+v, %v", attempts, err)
	}
}

// pruning deletes some jobs and rows of the run log, batch by batch, and notes which.
type pruning struct {
	service.Store
	jobs, runs          int
	calls               string
	jobsBefore, logFrom time.Time
	fail                error
	each                func()
}

func (s *pruning) PruneJobs(_ context.Context, before time.Time, limit int) (int, error) {
	s.jobsBefore = before
	return s.prune("j", &s.jobs, limit)
}

func (s *pruning) PruneRunLog(_ context.Context, before time.Time, limit int) (int, error) {
	s.logFrom = before
	return s.prune("r", &s.runs, limit)
}

func (s *pruning) prune(call string, rows *int, limit int) (int, error) {
	s.calls += call
	if s.each != nil {
		s.each()
	}
	n := min(*rows, limit)
	*rows -= n
	return n, s.fail
}

// Neither goes on for the other's sake.
func TestPruneGoesOnUntilNothingIsLeft(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		jobs, runs int
		calls      string
	}{{0, 0, "jr"}, {1, 0, "jr"}, {500, 0, "jjr"}, {1200, 0, "jjjr"}, {0, 1200, "jrrr"}, {700, 500, "jjrr"}} {
		s := &pruning{jobs: tt.jobs, runs: tt.runs}
		svc := newPruning(s)
		if err := svc.Prune(t.Context(), now); err != nil || s.jobs != 0 || s.runs != 0 || s.calls != tt.calls {
			t.Errorf("%d jobs and %d runs: %d and %d left after the batches %s, want %s, %v", tt.jobs, tt.runs, s.jobs, s.runs, s.calls, tt.calls, err)
		}
		if !s.jobsBefore.Equal(now.Add(-30*24*time.Hour)) || !s.logFrom.Equal(now.Add(-90*24*time.Hour)) {
			t.Errorf("jobs before %v, run log before %v", s.jobsBefore, s.logFrom)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &pruning{jobs: 10_000, each: cancel}
	if err := newPruning(s).Prune(ctx, now); !errors.Is(err, context.Canceled) || s.calls != "j" {
		t.Errorf("batches %s after ctx ended, %v", s.calls, err)
	}
	s = &pruning{jobs: 10_000, fail: lanegate.ErrUnavailable}
	if err := newPruning(s).Prune(t.Context(), now); !errors.Is(err, lanegate.ErrUnavailable) || s.calls != "j" {
		t.Errorf("batches %s after an error, %v", s.calls, err)
	}
}

func newPruning(s *pruning) *service.Service {
	return service.New(service.Options{Store: s, Doorbell: newBell(), Commands: &fakeCommands{}, Log: discard()})
}

// With the real tables: finished jobs go, open ones stay, and the run log outlives its jobs.
func TestPruneKeepsWhatIsOpen(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	done := f.mustSubmit("c").ID
	f.mustEnd(f.mustStart("w", 1, done)[done], lanegate.Ending{Outcome: lanegate.Succeeded})
	open := f.mustSubmit("c").ID
	f.clock.advance(31 * 24 * time.Hour)
	f.must(f.svc.Prune(ctx, f.clock.Now()))
	if _, err := f.svc.Job(ctx, done); !errors.Is(err, lanegate.ErrJobNotFound) {
		t.Errorf("the finished job: %v", err)
	}
	if f.mustState(open) != lanegate.StateQueued {
		t.Errorf("the open job: %s", f.mustState(open))
	}
	runs := 0
	f.must(f.store.RunLog(ctx, "c", time.Unix(0, 0), f.clock.Now(), func(lanegate.RunRecord) error { runs++; return nil }))
	if runs != 1 {
		t.Errorf("%d runs in the run log", runs)
	}
}

func TestNewWithoutItsPartsPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	service.New(service.Options{})
}

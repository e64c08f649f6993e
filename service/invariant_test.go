package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/worker"
	"github.com/lanegate/lanegate/worker/runner"
)

// Invariant 3, in flight is bounded directly: workers that ask, finish and die at
// the same moment, beside pauses and edits, never get more started than lane,
// class and resource allow, and never two in serial.
func TestInvariantInFlightIsBoundedInTheStore(t *testing.T) {
	f := newFixture(t)
	f.mustResource("db", 15, true)
	f.mustLane(overcommitting(lane("wide", 3)))
	for _, id := range []string{"s", "s2"} {
		f.mustPut(id, execSpec("db", 5))
	}
	for id, units := range map[string]int{"a": 5, "b": 2, "c": 1} {
		f.mustPut(id, execSpec("db", units))
		f.mustPromote(id, "wide", 2)
	}
	for i := range 100 {
		f.mustSubmit([]string{"s", "a", "b", "s2", "c"}[i%5])
	}
	ctx := t.Context()
	try := func(_ any, err error) { // f.must may not be called from other goroutines
		if err != nil {
			t.Error(err)
		}
	}
	check := func() int {
		in, err := f.store.Snapshot(ctx)
		try(in, err)
		if fault := aboveLimit(in.InFlight); fault != "" {
			t.Error(fault)
		}
		return len(in.InFlight)
	}
	var all sync.WaitGroup
	most := make([]int, 4)
	for n := range most {
		id := fmt.Sprintf("w%d", n)
		f.mustWorker(id, 3)
		all.Go(func() {
			for range 25 {
				res, err := f.svc.Admit(ctx, service.Ask{Worker: id, Free: 3, SerialFree: true})
				try(res, err)
				most[n] = max(most[n], check())
				for _, g := range res.Grants {
					try(f.svc.EndAttempt(ctx, g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}))
				}
			}
		})
	}
	all.Go(func() {
		for i := range 20 {
			try(f.svc.PauseClass(ctx, "a", admin))
			try(nil, f.svc.PauseLane(ctx, "wide", admin))
			spec := execSpec("db", 5)
			spec.Description = fmt.Sprint(i)
			_, _, err := f.svc.PutClass(ctx, "s", spec, acceptWidth)
			try(nil, err)
			try(nil, f.svc.ResumeLane(ctx, "wide", admin))
			try(f.svc.ResumeClass(ctx, "a", admin))
			check()
		}
	})
	all.Wait()
	if slices.Max(most) < 3 {
		t.Errorf("never more than %v in flight: the limits were not tried", most)
	}
}

// aboveLimit names a limit of TestInvariantInFlightIsBoundedInTheStore that is
// exceeded: db has 15, of which serial is kept 5.
func aboveLimit(running []admission.Running) string {
	limits := map[string]int{"lane serial": 1, "lane wide": 3, "class a": 2, "class b": 2, "class c": 2, "class s": 1, "class s2": 1, "db": 15, "db outside serial": 10}
	have := map[string]int{}
	for _, r := range running {
		have["lane "+r.Lane]++
		have["class "+r.Class]++
		have["db"] += r.Units["db"]
		if r.Lane != lanegate.LaneSerial {
			have["db outside serial"] += r.Units["db"]
		}
	}
	for name, n := range have {
		if n > limits[name] {
			return fmt.Sprintf("%s: %d of %d", name, n, limits[name])
		}
	}
	return ""
}

// Invariant 6, one outcome per attempt: of all who write about an attempt at once,
// runners that come back twice, a reaper, a person who cancels, one is heard. The
// others change no row and are told so.
func TestInvariantOneOutcomePerAttempt(t *testing.T) {
	f := newFixture(t)
	spec := execSpec()
	spec.MaxAttempts = 1
	f.mustPut("c", spec)
	ctx := t.Context()
	late := 0
	for round := range 12 {
		id := fmt.Sprintf("w%d", round)
		f.mustWorker(id, 1)
		job := f.mustSubmit("c").ID
		fence := f.mustStart(id, 1, job)[job]
		var mu sync.Mutex
		var heard []lanegate.Outcome // guarded by mu
		var all sync.WaitGroup
		for i, o := range []lanegate.Outcome{lanegate.Succeeded, lanegate.Failed, lanegate.TimedOut, lanegate.Interrupted, lanegate.Succeeded} {
			all.Go(func() {
				// No two runs take equally long and all were measured (0 is not); the same
				// words twice would be one writer's repeat.
				_, err := f.svc.EndAttempt(ctx, fence, lanegate.Ending{Outcome: o, Duration: time.Duration(i + 1)})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					heard = append(heard, o)
				case errors.Is(err, lanegate.ErrLateWrite):
					late++
				default:
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if err := f.svc.ReapWorker(ctx, id, 0); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := f.svc.Cancel(ctx, job, "ann"); err != nil && !errors.Is(err, lanegate.ErrJobFinal) {
				t.Error(err)
			}
		})
		all.Wait()

		attempts, err := f.svc.Attempts(ctx, job)
		f.must(err)
		var logged []lanegate.Outcome
		f.must(f.store.RunLog(ctx, "c", time.Unix(0, 0), f.clock.Now().Add(time.Hour), func(r lanegate.RunRecord) error {
			if r.Job == job {
				logged = append(logged, r.Outcome)
			}
			return nil
		}))
		if len(heard) > 1 || len(attempts) != 1 || !slices.Equal(logged, []lanegate.Outcome{attempts[0].Outcome}) {
			t.Fatalf("heard %v, attempts %+v, run log %v: want one outcome everywhere", heard, attempts, logged)
		}
		if got := attempts[0].Outcome; len(heard) == 1 && got != heard[0] || len(heard) == 0 && got != lanegate.Lost {
			t.Errorf("outcome %s, but %v was heard", got, heard)
		}
		for f.mustState(job) == lanegate.StateQueued { // interrupted or lost: out of the way of the next round
			_, err := f.svc.Cancel(ctx, job, "ann")
			f.must(err)
		}
	}
	if n := f.metric("lanegate_late_writes_total"); n != float64(late) || late == 0 {
		t.Errorf("%v late writes counted, want %d", n, late)
	}
}

// deafBell loses every ring.
type deafBell struct{}

func (deafBell) Ring(string)            {}
func (deafBell) Rings() <-chan struct{} { return nil }

// countingRunner counts the runs of each job.
type countingRunner struct {
	mu   sync.Mutex
	runs map[string]int // guarded by mu
}

func (r *countingRunner) Run(_ context.Context, job runner.Job, _ runner.Lease) lanegate.Ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[job.ID]++
	return lanegate.Ending{Outcome: lanegate.Succeeded}
}

// Invariant 9, the database is the truth: with every ring of the doorbell lost, all
// jobs run, and none twice, also when two workers find them at the same moment.
func TestInvariantDatabaseIsTheTruth(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.options.Doorbell = deafBell{} })
	f.mustLane(overcommitting(lane("wide", 4)))
	f.mustPut("serial", execSpec())
	f.mustPut("wide", execSpec())
	f.mustPromote("wide", "wide", 4)
	run := &countingRunner{runs: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	for n := range 2 {
		w := worker.New(worker.Options{
			Backend: f.svc, Log: discard(), Exec: run, HTTP: run, Slots: 3, Host: "h", PID: n, Commands: f.commands.Digests,
			NewID: func() string { return fmt.Sprintf("w%d", n) }, Poll: 10 * time.Millisecond, Beat: 50 * time.Millisecond,
		})
		workers.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	var jobs []string
	for i := range 60 {
		jobs = append(jobs, f.mustSubmit([]string{"serial", "wide"}[i%2]).ID)
	}
	deadline := time.After(30 * time.Second)
	for _, job := range jobs {
		for f.mustState(job) != lanegate.StateSucceeded {
			select {
			case <-deadline:
				t.Fatalf("job %s is %s although nothing is in its way", job, f.mustState(job))
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	for _, job := range jobs {
		if n := run.runs[job]; n != 1 {
			t.Errorf("job %s ran %d times", job, n)
		}
	}
}

// Invariant 12, nothing starves: a job that needs the whole of a resource starts
// behind a flood of small ones that never ends, within starve_after and the time
// that those running then need.
func TestInvariantNothingStarvesInTheStore(t *testing.T) {
	const starveAfter = 10 * time.Minute
	f := newFixture(t, func(s *setup) { s.starveAfter = starveAfter })
	f.wideLane("small", 5, "big", 15)
	f.mustWorker("w", 9)
	type run struct {
		fence lanegate.Fence
		until time.Time
	}
	var running []run
	flood := func() { // small jobs of 5 minutes, more than fit
		for range 3 {
			f.mustSubmit("small")
		}
	}
	flood()
	began := f.clock.Now()
	var big string
	for f.clock.Now().Sub(began) < time.Hour {
		for _, g := range f.mustAdmit("w", 9).Grants {
			if g.Job.ID == big {
				if took := f.clock.Now().Sub(began); took > starveAfter+6*time.Minute {
					t.Errorf("the big job started after %v", took)
				}
				return
			}
			running = append(running, run{g.Attempt.Fence(), f.clock.Now().Add(5 * time.Minute)})
		}
		if big == "" {
			big = f.mustSubmit("big").ID
		}
		f.clock.advance(time.Minute)
		flood()
		running = slices.DeleteFunc(running, func(r run) bool {
			if r.until.After(f.clock.Now()) {
				return false
			}
			f.mustEnd(r.fence, lanegate.Ending{Outcome: lanegate.Succeeded})
			return true
		})
	}
	t.Errorf("the big job waits for ever: %+v", f.mustWaiting(big).On)
}

// Invariant 13, clocks: due times follow the database's clock, whatever this
// process's says, and durations those who measured them, also when the database's
// clock is set back meanwhile.
func TestInvariantClocks(t *testing.T) {
	for name, skew := range map[string]time.Duration{"the database is behind": -48 * time.Hour, "the database is ahead": 48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.clock.advance(skew)
			f.mustPut("c", execSpec())
			f.mustWorker("w", 1)
			at := f.clock.Now().Add(time.Minute)
			job := f.mustSubmit("c", func(s *service.Submission) { s.RunAt = &at }).ID
			f.clock.advance(time.Minute - time.Microsecond)
			f.mustStart("w", 1)
			f.clock.advance(time.Microsecond)
			fence := f.mustStart("w", 1, job)[job]

			f.clock.advance(-30 * time.Minute) // somebody sets it right
			ended := f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 90 * time.Second})
			if got := ended.Attempt.Duration; got != 90*time.Second {
				t.Errorf("duration %v, want the 90s that were measured", got)
			}
			rows := 0
			f.must(f.store.RunLog(t.Context(), "c", time.Unix(0, 0), f.clock.Now().Add(100*time.Hour), func(r lanegate.RunRecord) error {
				if rows++; r.Duration != 90*time.Second {
					t.Errorf("the run log says %v", r.Duration)
				}
				return nil
			}))
			if rows != 1 {
				t.Errorf("%d rows in the run log", rows)
			}
		})
	}
}

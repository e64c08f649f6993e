package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// toldAttempt is what service.Ended promises of an attempt.
func toldAttempt(a lanegate.Attempt) lanegate.Attempt {
	return lanegate.Attempt{
		Job: a.Job, Number: a.Number, Token: a.Token, Class: a.Class, Lane: a.Lane, Verification: a.Verification, EndedAt: a.EndedAt,
		Outcome: a.Outcome, Duration: a.Duration, Estimated: a.Estimated, Error: a.Error, ExitCode: a.ExitCode, Signal: a.Signal, Status: a.Status,
		Trouble: a.Trouble, Measured: a.Measured,
	}
}

// toldJob is what service.Ended promises of a job that has ended.
func toldJob(j lanegate.Job) lanegate.Job {
	return lanegate.Job{
		ID: j.ID, Class: j.Class, State: j.State, Reason: j.Reason, Attempts: j.Attempts,
		Failures: j.Failures, Losses: j.Losses, Deferrals: j.Deferrals, Interruptions: j.Interruptions, FinishedAt: j.FinishedAt,
	}
}

var outcomeCases = []testCase{
	{"an outcome ends the attempt and the job and writes the run log", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		g := e.start(e.worker(), id)[0]
		code := 0
		ended := e.endAs(g, lanegate.Ending{
			Outcome: lanegate.Succeeded, Duration: 90*time.Second + 1, ExitCode: &code, Result: []byte(`{"rows": 1}`),
			Output: lanegate.Output{Head: "hello\n", Tail: "bye\n", Bytes: 100, Dropped: 90},
		})
		j := e.wantState(id, lanegate.StateSucceeded)
		if diff := cmp.Diff(toldJob(j.Job), toldJob(ended.Job)); diff != "" {
			e.Errorf("job (-stored +answered):\n%s", diff)
		}
		equal(e, "result", string(j.Result), `{"rows": 1}`)
		stored, err := e.s.Attempts(e.ctx(), id)
		e.must(err)
		if len(stored) != 1 {
			e.Fatalf("%d attempts", len(stored))
		}
		a := stored[0]
		if diff := cmp.Diff(toldAttempt(a), toldAttempt(ended.Attempt)); diff != "" {
			e.Errorf("attempt (-stored +answered):\n%s", diff)
		}
		if a.Outcome != lanegate.Succeeded || a.Duration != 90*time.Second+1 || a.EndedAt == nil || a.ExitCode == nil || *a.ExitCode != 0 || a.Estimated {
			e.Errorf("attempt %+v", a)
		}
		if j.FinishedAt == nil || !j.FinishedAt.Equal(*a.EndedAt) || j.PlaceID != id {
			e.Errorf("finished %v, place %s", j.FinishedAt, j.PlaceID)
		}
		out, err := e.s.Output(e.ctx(), id, 1)
		e.must(err)
		equal(e, "output", out, lanegate.Output{Head: "hello\n", Tail: "bye\n", Bytes: 100, Dropped: 90})
		log := e.runLog("")
		want := []lanegate.RunRecord{{
			Job: id, Attempt: 1, Class: "c", Lane: lanegate.LaneSerial, Fingerprint: g.Class.Fingerprint, Units: lanegate.Units{},
			SubmittedAt: &j.SubmittedAt, ReadyAt: &j.ReadyAt, StartedAt: a.StartedAt, EndedAt: *a.EndedAt,
			Duration: 90*time.Second + 1, Outcome: lanegate.Succeeded, Source: "own",
		}}
		if diff := cmp.Diff(want, log); diff != "" {
			e.Errorf("run log (-want +got):\n%s", diff)
		}
		equal(e, "in flight", e.inFlight(), 0)
	}},
	{"every outcome settles its job as lanegate.Settle says", func(e *env) {
		e.class("c", attempts(2, time.Hour))
		w := e.worker()
		for _, o := range lanegate.Outcomes {
			id := e.submit("c").Job.ID
			g := e.start(w, id)[0]
			ended := e.endAs(g, lanegate.Ending{Outcome: o, DeferFor: time.Minute, Error: "why"})
			set := ended.Settlement
			want := lanegate.Settle(g.Job, g.Class.ClassSpec, lanegate.Ending{Outcome: o, DeferFor: time.Minute, Error: "why"}, 0.5)
			if set.Event != want.Event || set.State != want.State || set.Reason != want.Reason {
				e.Errorf("%s: settled %+v, want %+v", o, set, want)
			}
			j := e.wantState(id, want.State)
			if j.Failures != want.Failures || j.Losses != want.Losses || j.Deferrals != want.Deferrals || j.Interruptions != want.Interruptions || j.Reason != want.Reason {
				e.Errorf("%s: job %+v, want the counters of %+v", o, j.Job, want)
			}
			if j.PlaceID != id || !j.PlaceAt.Equal(j.SubmittedAt) || j.Attempts != 1 {
				e.Errorf("%s: place or attempts changed: %+v", o, j.Job)
			}
			if o == lanegate.Deferred && !j.ReadyAt.Equal(ended.Attempt.EndedAt.Add(time.Minute)) {
				e.Errorf("deferred until %v, want a minute after %v", j.ReadyAt, ended.Attempt.EndedAt)
			}
			if j.State == lanegate.StateQueued {
				_, err := e.s.Cancel(e.ctx(), id, "test")
				e.must(err)
			}
		}
		equal(e, "run log rows", len(e.runLog("c")), len(lanegate.Outcomes))
	}},
	{"an interrupted job keeps its place and counts no failure", func(e *env) {
		e.class("c")
		ids := e.queue("c", 2)
		w := e.worker()
		for n := range lanegate.FlagInterruptions {
			ended := e.end(e.start(w, ids[0])[0], lanegate.Interrupted)
			equal(e, "failures", ended.Job.Failures, 0)
			equal(e, "flagged", ended.Settlement.Flagged, n+1 >= lanegate.FlagInterruptions)
			most, err := e.s.Interruptions(e.ctx(), []string{ids[1], ids[0], "unknown"})
			e.must(err)
			equal(e, "interruptions", fmt.Sprint(most), fmt.Sprint(map[string]int{"c": n + 1}))
		}
		most, err := e.s.Interruptions(e.ctx(), ids[1:])
		e.must(err)
		equal(e, "interruptions of the other job", len(most), 0)
		if most, err = e.s.Interruptions(e.ctx(), nil); err != nil || len(most) > 0 {
			e.Errorf("interruptions of no jobs: %v, %v", most, err)
		}
		e.end(e.start(w, ids[0])[0], lanegate.Succeeded)
		e.start(w, ids[1])
	}},
	{"C64 a job that kills its worker ends after five losses, the line moves on", func(e *env) {
		e.class("c", attempts(10, time.Hour))
		ids := e.queue("c", 2)
		for n := range lanegate.MaxLosses {
			w := e.worker()
			g := e.start(w, ids[0])
			equal(e, "attempt", g[0].Attempt.Number, n+1)
			ended, err := e.s.ReapWorker(e.ctx(), w, 0)
			e.must(err)
			equal(e, "ended", len(ended), 1)
		}
		j := e.wantState(ids[0], lanegate.StateFailed)
		if !strings.Contains(j.Reason, "lost 5 times") || j.Failures != 0 {
			e.Errorf("reason %q, failures %d", j.Reason, j.Failures)
		}
		e.start(e.worker(), ids[1])
		if _, err := e.s.Retry(e.ctx(), ids[0], "ada"); err != nil {
			e.Error(err)
		}
		equal(e, "losses after a retry", e.job(ids[0]).Losses, lanegate.MaxLosses-1)
	}},
	{"twenty deferrals in a row end a job", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		for n := range lanegate.MaxDeferrals {
			var g []service.Grant
			e.eventually("it is due again", func() bool { g = e.admit(w).Grants; return len(g) == 1 })
			ended := e.endAs(g[0], lanegate.Ending{Outcome: lanegate.Deferred, DeferFor: time.Microsecond})
			equal(e, "deferrals", ended.Job.Deferrals, n+1)
		}
		e.wantState(id, lanegate.StateFailed)
	}},
	{"one outcome per attempt: late writes change nothing", func(e *env) {
		e.class("c", attempts(3, time.Hour))
		id := e.submit("c").Job.ID
		g := e.start(e.worker(), id)[0]
		f := g.Attempt.Fence()
		for name, fence := range map[string]lanegate.Fence{
			"another token":  {Job: f.Job, Number: f.Number, Token: strings.Repeat("0", 32)},
			"another number": {Job: f.Job, Number: f.Number + 1, Token: f.Token},
			"another job":    {Job: newID(), Number: f.Number, Token: f.Token},
			"no token":       {Job: f.Job, Number: f.Number},
		} {
			_, err := e.s.EndAttempt(e.ctx(), fence, lanegate.Ending{Outcome: lanegate.Succeeded})
			if !errors.Is(err, lanegate.ErrLateWrite) {
				e.Errorf("%s: error = %v, want a late write", name, err)
			}
		}
		e.end(g, lanegate.Succeeded)
		_, err := e.s.EndAttempt(e.ctx(), f, lanegate.Ending{Outcome: lanegate.Failed, Result: []byte(`"late"`)})
		e.wantErr(err, lanegate.ErrLateWrite)
		j := e.wantState(id, lanegate.StateSucceeded)
		if j.Result != nil || j.Failures != 0 {
			e.Errorf("the late write left a trace: %+v, result %q", j.Job, j.Result)
		}
		equal(e, "run log rows", len(e.runLog("")), 1)
	}},
	{"a writer that repeats its own outcome is told that it stands", func(e *env) {
		e.class("c", attempts(3, time.Hour))
		w := e.worker()
		one, three := 1, 3
		for name, own := range map[string]lanegate.Ending{
			"success":     {Outcome: lanegate.Succeeded, Duration: 90*time.Second + 1, Result: []byte(`1`), Output: lanegate.Output{Head: "o", Bytes: 1}},
			"failure":     {Outcome: lanegate.Failed, Duration: time.Second, Error: "a\x00b", ExitCode: &three},
			"interrupted": {Outcome: lanegate.Interrupted, Duration: time.Second, Error: "why", Signal: "SIGTERM"},
			"http":        {Outcome: lanegate.Failed, Duration: time.Second, Error: "why", Status: 500},
		} {
			id := e.submit("c").Job.ID
			g := e.start(w, id)[0]
			f := g.Attempt.Fence()
			first := e.endAs(g, own)
			equal(e, name+": repeated at first", first.Repeated, false)
			rows := len(e.runLog(""))
			again, err := e.s.EndAttempt(e.ctx(), f, own)
			e.must(err)
			equal(e, name+": repeated", again.Repeated, true)
			if diff := cmp.Diff(toldAttempt(first.Attempt), toldAttempt(again.Attempt)); diff != "" {
				e.Errorf("%s: attempt (-first +again):\n%s", name, diff)
			}
			if diff := cmp.Diff(toldJob(first.Job), toldJob(again.Job)); diff != "" {
				e.Errorf("%s: job (-first +again):\n%s", name, diff)
			}
			equal(e, name+": run log rows", len(e.runLog("")), rows)
			// Whatever differs is another's write and comes too late.
			others := map[string]func(*lanegate.Ending){
				"outcome":  func(o *lanegate.Ending) { o.Outcome = lanegate.TimedOut },
				"duration": func(o *lanegate.Ending) { o.Duration++ },
				"error":    func(o *lanegate.Ending) { o.Error += "!" },
				"code":     func(o *lanegate.Ending) { o.ExitCode = &one },
				"signal":   func(o *lanegate.Ending) { o.Signal = "SIGKILL" },
				"status":   func(o *lanegate.Ending) { o.Status = 502 },
			}
			for what, differ := range others {
				o := own
				differ(&o)
				if _, err := e.s.EndAttempt(e.ctx(), f, o); !errors.Is(err, lanegate.ErrLateWrite) {
					e.Errorf("%s with another %s: error = %v, want a late write", name, what, err)
				}
			}
			if _, err := e.s.Cancel(e.ctx(), id, "test"); err != nil && !errors.Is(err, lanegate.ErrJobFinal) {
				e.Error(err)
			}
		}
	}},
	{"a repeated outcome says where the job is now", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		g := e.start(w, id)[0]
		own := lanegate.Ending{Outcome: lanegate.Interrupted, Duration: time.Second, Error: "why"}
		e.endAs(g, own)
		e.start(w, id)
		again, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), own)
		e.must(err)
		equal(e, "repeated", again.Repeated, true)
		equal(e, "state", again.Job.State, lanegate.StateRunning)
		equal(e, "attempt", again.Attempt.Number, 1)
		equal(e, "in flight", e.inFlight(), 1)
	}},
	{"a loss that the reaper recorded is not the writer's own", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		f := e.start(w, id)[0].Attempt.Fence()
		ended, err := e.s.ReapWorker(e.ctx(), w, 0)
		e.must(err)
		a := ended[0].Attempt
		_, err = e.s.EndAttempt(e.ctx(), f, lanegate.Ending{Outcome: lanegate.Lost, Duration: a.Duration, Error: a.Error})
		e.wantErr(err, lanegate.ErrLateWrite)
	}},
	{"C16 a reaper between read and write overwrites neither a completion nor a newer attempt", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		old := e.worker()
		g := e.start(old, id)[0]
		// The reaper has read (beat 0); meanwhile the run ends and another worker starts the job again.
		e.end(g, lanegate.Interrupted)
		newer := e.worker()
		again := e.start(newer, id)[0]
		ended, err := e.s.ReapWorker(e.ctx(), old, 0)
		e.must(err)
		equal(e, "attempts ended by the reaper", len(ended), 0)
		e.wantState(id, lanegate.StateRunning)
		_, err = e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed})
		e.wantErr(err, lanegate.ErrLateWrite)
		e.end(again, lanegate.Succeeded)
		e.wantState(id, lanegate.StateSucceeded)
	}},
	{"C20 a reaper and a completion at once leave exactly one outcome", func(e *env) {
		e.class("c")
		for range 30 {
			id := e.submit("c").Job.ID
			w := e.worker()
			f := e.start(w, id)[0].Attempt.Fence()
			var reaped []service.Ended
			var completed error
			e.together(2, func(i int) (err error) {
				if i == 0 {
					reaped, err = e.s.ReapWorker(e.ctx(), w, 0)
					return err
				}
				_, completed = e.s.EndAttempt(e.ctx(), f, lanegate.Ending{Outcome: lanegate.Succeeded})
				return nil
			})
			switch {
			case completed == nil && len(reaped) == 0:
				e.wantState(id, lanegate.StateSucceeded)
			case errors.Is(completed, lanegate.ErrLateWrite) && len(reaped) == 1:
				e.wantState(id, lanegate.StateQueued)
				_, err := e.s.Cancel(e.ctx(), id, "test")
				e.must(err)
			default:
				e.Fatalf("completion: %v, reaped: %d", completed, len(reaped))
			}
		}
		equal(e, "run log rows", len(e.runLog("")), 30)
	}},
	{"many outcomes at once each get their own answer", func(e *env) {
		e.width(16)
		e.class("p", parallel(16))
		e.queue("p", 16)
		w := e.worker(func(w *service.WorkerInfo) { w.Slots = 16 })
		res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, Free: 16})
		e.must(err)
		equal(e, "grants", len(res.Grants), 16)
		var mu sync.Mutex
		wins := map[string]int{}
		e.together(32, func(i int) error {
			g := res.Grants[i/2]
			// Two writers, not one that repeats itself: they measured different times.
			_, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Duration(i + 1)})
			if errors.Is(err, lanegate.ErrLateWrite) {
				return nil
			}
			mu.Lock()
			wins[g.Job.ID]++
			mu.Unlock()
			return err
		})
		for id, n := range wins {
			equal(e, "recorded outcomes of "+id, n, 1)
		}
		equal(e, "jobs with an outcome", len(wins), 16)
	}},
	{"a cancel of a running job wins over a failure, not over a success", func(e *env) {
		e.class("c", attempts(5, time.Hour))
		w := e.worker()
		for outcome, want := range map[lanegate.Outcome]lanegate.State{
			lanegate.Failed: lanegate.StateCancelled, lanegate.Cancelled: lanegate.StateCancelled,
			lanegate.Lost: lanegate.StateCancelled, lanegate.Succeeded: lanegate.StateSucceeded,
		} {
			id := e.submit("c").Job.ID
			g := e.start(w, id)[0]
			_, err := e.s.Cancel(e.ctx(), id, "ada")
			e.must(err)
			equal(e, fmt.Sprintf("state after %s", outcome), e.end(g, outcome).Job.State, want)
		}
	}},
	{"a deleted class settles by the defaults", func(e *env) {
		e.class("c", attempts(5, time.Hour))
		id := e.submit("c").Job.ID
		g := e.start(e.worker(), id)[0]
		err := e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.DeleteClass("c") })
		e.wantErr(err, lanegate.ErrInUse)
		e.end(g, lanegate.Succeeded)
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.DeleteClass("c") }))
		e.wantState(id, lanegate.StateSucceeded)
	}},
	{"no byte of an error or an output keeps an outcome from being written", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		g := e.start(e.worker(), id)[0]
		e.endAs(g, lanegate.Ending{Outcome: lanegate.Failed, Error: "a\x00b\xff", Output: lanegate.Output{Head: "\x00\xf8\xed\xa0\xb5", Bytes: 3}})
		j := e.wantState(id, lanegate.StateFailed)
		if strings.ContainsRune(j.Reason, 0) || !strings.Contains(j.Reason, `a\x00b`) {
			e.Errorf("reason %q", j.Reason)
		}
		out, err := e.s.Output(e.ctx(), id, 1)
		e.must(err)
		if !strings.HasPrefix(out.Head, `\x00`) {
			e.Errorf("output %q", out.Head)
		}
	}},
	{"the last result stays, outputs are kept per attempt", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		e.endAs(e.start(w, id)[0], lanegate.Ending{Outcome: lanegate.Interrupted, Result: []byte(`1`), Output: lanegate.Output{Head: "one", Bytes: 3}})
		e.endAs(e.start(w, id)[0], lanegate.Ending{Outcome: lanegate.Interrupted})
		e.endAs(e.start(w, id)[0], lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`3`), Output: lanegate.Output{Head: "three", Bytes: 5}})
		equal(e, "result", string(e.job(id).Result), "3")
		for n, want := range []string{"one", "", "three"} {
			out, err := e.s.Output(e.ctx(), id, n+1)
			e.must(err)
			equal(e, fmt.Sprintf("output %d", n+1), out.Head, want)
		}
		_, err := e.s.Output(e.ctx(), id, 4)
		e.wantErr(err, lanegate.ErrAttemptNotFound)
		_, err = e.s.Output(e.ctx(), newID(), 1)
		e.wantErr(err, lanegate.ErrJobNotFound)
	}},
}

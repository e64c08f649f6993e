package storetest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

var trialCases = []testCase{
	{"a round of queued jobs is taken, held and started in one step", func(e *env) {
		e.resource("db", 15)
		a, b := e.class("a", units(lanegate.Units{"db": 5})), e.class("b")
		jobs := []string{e.submit("a", payload(`{"n": 1}`)).Job.ID, e.submit("b").Job.ID}
		later := e.submit("a").Job.ID
		v := e.trial(lanegate.SourceQueue, "a", "b")
		w := e.worker()
		res := e.admit(w)
		equal(e, "trial", res.Trial, v.ID)
		if !slices.Equal(granted(res), jobs) {
			e.Fatalf("granted %v, want %v", granted(res), jobs)
		}
		for i, g := range res.Grants {
			at := g.Attempt
			if at.Verification != v.ID || at.Round != 1 || at.Worker != w || at.Lane != lanegate.LaneSerial || at.Number != 1 {
				e.Errorf("attempt %+v", at)
			}
			equal(e, "fingerprint", at.Fingerprint, []lanegate.Class{a, b}[i].Fingerprint)
			if j := e.wantState(jobs[i], lanegate.StateRunning); j.Verification != "" {
				e.Error("a job that somebody submitted counts as made up")
			}
			stored, err := e.s.Attempts(e.ctx(), jobs[i])
			e.must(err)
			if diff := cmp.Diff([]lanegate.Attempt{at}, stored); diff != "" {
				e.Errorf("attempts (-granted +stored):\n%s", diff)
			}
		}
		equal(e, "payload", string(res.Grants[0].Payload), `{"n": 1}`)
		got := e.verification(v.ID)
		if got.State != lanegate.VerificationRunning || got.Owner != w || got.StartedAt == nil || !got.Holds() || !got.Started || got.Round != 0 {
			e.Errorf("run %+v is not taken, held and started", got)
		}
		in := e.snapshot()
		if in.Hold != v.ID || in.Trial == nil || in.Trial.Owner != w || len(in.Trial.Round) != 0 || len(in.InFlight) != 2 {
			e.Errorf("snapshot: hold %q, trial %+v, %d in flight", in.Hold, in.Trial, len(in.InFlight))
		}
		if free := in.Workers[0]; free.Free != 8 || !free.SerialFree {
			e.Errorf("the worker has %d slots left, serial %v; a trial takes none", free.Free, free.SerialFree)
		}
		if again := e.admit(w); len(again.Grants) != 0 || again.Trial != "" {
			e.Errorf("a second ask was granted %v, trial %q", granted(again), again.Trial)
		}
		e.wantState(later, lanegate.StateQueued)
	}},
	{"what admission knows of a trial is what was planned", func(e *env) {
		e.class("a")
		first, second := newVerification(lanegate.SourcePayloads, "a", "b", "a"), newVerification(lanegate.SourceQueue, "c")
		first.Spec.HoldSerial = false
		first.CreatedAt, second.CreatedAt = stamp(1), stamp(2)
		if in := e.snapshot(); in.Trial != nil || in.Hold != "" {
			e.Errorf("trial %+v out of nothing", in.Trial)
		}
		e.plan(second)
		e.plan(first)
		want := &admission.Trial{ID: first.ID, PlaceAt: stamp(1), Members: []string{"a", "b"}, Round: []string{"a", "b", "a"}}
		if diff := cmp.Diff(want, e.snapshot().Trial); diff != "" {
			e.Errorf("trial (-want +got):\n%s", diff)
		}
		e.save(first.ID, func(v *lanegate.Verification) { v.State = lanegate.VerificationAborted })
		want = &admission.Trial{ID: second.ID, PlaceAt: stamp(2), Members: []string{"c"}, Round: []string{"c"}, FromQueue: true, WantsHold: true}
		if diff := cmp.Diff(want, e.snapshot().Trial); diff != "" {
			e.Errorf("the next trial (-want +got):\n%s", diff)
		}
		e.finish(second.ID, lanegate.VerdictInconclusive)
		if in := e.snapshot(); in.Trial != nil {
			e.Errorf("trial %+v when all are over", in.Trial)
		}
	}},
	{"a run that can't be carried out stops no other", func(e *env) {
		e.class("a")
		e.trial(lanegate.SourcePayloads, "gone")
		e.trial(lanegate.SourceQueue, "a") // nothing is due
		second := e.trial(lanegate.SourcePayloads, "a")
		if res := e.admit(e.worker()); res.Trial != second.ID || len(res.Grants) != 1 {
			e.Errorf("trial %q with %v, want %q", res.Trial, granted(res), second.ID)
		}
	}},
	{"attempts of a run that did not pass take the slots of their lane and class until they end", func(e *env) {
		for _, verdict := range []lanegate.Verdict{lanegate.VerdictFailed, lanegate.VerdictInconclusive, lanegate.VerdictPassed} {
			e.class("a")
			e.class("b")
			e.submit("a")
			v := e.trial(lanegate.SourceQueue, "a")
			w := e.worker()
			left := e.admit(w).Grants[0]
			e.finish(v.ID, verdict)
			same, other := e.submit("a").Job.ID, e.submit("b").Job.ID
			want := []string(nil)
			if verdict == lanegate.VerdictPassed {
				want = []string{other} // it goes on beside others, but not beside its own class
			}
			res := e.admit(w)
			if got := granted(res); !slices.Equal(got, want) {
				e.Errorf("%s: started %v, want %v", verdict, got, want)
			}
			for _, g := range res.Grants {
				e.end(g, lanegate.Succeeded)
			}
			e.end(left, lanegate.Succeeded)
			for range 2 {
				for _, g := range e.admit(w).Grants {
					e.end(g, lanegate.Succeeded)
				}
			}
			e.wantState(same, lanegate.StateSucceeded)
			e.wantState(other, lanegate.StateSucceeded)
		}
	}},
	{"concurrent asks give a trial one owner and its round one start", func(e *env) {
		e.class("a")
		e.class("b")
		e.queue("a", 3)
		e.queue("b", 3)
		v := e.trial(lanegate.SourceQueue, "a", "a", "b")
		const asks = 8
		workers, results := make([]string, asks), make([]service.Admitted, asks)
		for i := range workers {
			workers[i] = e.worker()
		}
		var wg sync.WaitGroup
		for i, w := range workers {
			wg.Go(func() {
				res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, Free: 8, SerialFree: true})
				if err != nil {
					e.Errorf("admit: %v", err)
				}
				results[i] = res
			})
		}
		wg.Wait()
		owner := e.verification(v.ID).Owner
		for i, res := range results {
			switch {
			case workers[i] == owner && (len(res.Grants) != 3 || res.Trial != v.ID):
				e.Errorf("the owner got %v, trial %q", granted(res), res.Trial)
			case workers[i] != owner && (len(res.Grants) != 0 || res.Trial != ""):
				e.Errorf("another worker got %v, trial %q", granted(res), res.Trial)
			}
		}
		equal(e, "in flight", e.inFlight(), 3)
	}},
	{"a round needs all its jobs, whatever max_in_flight and free slots say", func(e *env) {
		e.class("a")
		jobs := e.queue("a", 3)
		v := e.trial(lanegate.SourceQueue, "a", "a", "a", "a")
		w := e.worker()
		res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, SerialFree: true})
		e.must(err)
		if len(res.Grants) != 0 || res.Trial != v.ID {
			e.Errorf("granted %v, trial %q; want it taken and waiting for a fourth job", granted(res), res.Trial)
		}
		if got := e.verification(v.ID); got.Owner != w || !got.Holds() || got.Started {
			e.Errorf("run %+v", got)
		}
		equal(e, "jobs in the snapshot", len(e.snapshot().Due), 3)
		_, err = e.s.Cancel(e.ctx(), jobs[1], "ada")
		e.must(err)
		jobs = append(jobs, e.submit("a").Job.ID)
		e.start(w)
		jobs = append(jobs, e.submit("a").Job.ID)
		res, err = e.s.Admit(e.ctx(), service.Ask{Worker: w})
		e.must(err)
		if want := slices.Delete(jobs, 1, 2); !slices.Equal(granted(res), want) || res.Trial != v.ID {
			e.Errorf("granted %v, want %v", granted(res), want)
		}
	}},
	{"made-up jobs run from their first moment, with the payloads in turn, and are in no list", func(e *env) {
		e.class("a")
		e.class("b", parallel(1))
		v := newVerification(lanegate.SourcePayloads, "a", "b")
		v.Plan = []lanegate.Round{
			{Kind: lanegate.RoundBaseline, Classes: []string{"a"}},
			{Kind: lanegate.RoundBeside, Classes: []string{"a", "a", "b"}},
		}
		v.Spec.Members[0].Payloads = []json.RawMessage{json.RawMessage(`{"big":  12345678901234567890}`), json.RawMessage(`"<2>"`)}
		e.plan(v)
		w := e.worker()
		var payloads []string
		for round := range v.Plan {
			res := e.admit(w)
			equal(e, "starts", len(res.Grants), len(v.Plan[round].Classes))
			for _, g := range res.Grants {
				payloads = append(payloads, g.Class.ID+" "+string(g.Payload))
				if g.Attempt.Round != round+1 || g.Attempt.Verification != v.ID || g.Attempt.Number != 1 {
					e.Errorf("attempt %+v", g.Attempt)
				}
				d := e.wantState(g.Job.ID, lanegate.StateRunning)
				if d.Verification != v.ID || d.Client != "lanegate" || d.Attempts != 1 || d.StartedAt == nil || string(d.Payload) != string(g.Payload) {
					e.Errorf("job %+v", d)
				}
				if diff := cmp.Diff(d.Job, g.Job); diff != "" {
					e.Errorf("job (-stored +granted):\n%s", diff)
				}
				e.end(g, lanegate.Succeeded)
			}
			e.save(v.ID, func(v *lanegate.Verification) { v.Round, v.Started = round+1, false })
		}
		want := []string{`a {"big":  12345678901234567890}`, `a "<2>"`, `a {"big":  12345678901234567890}`, "b null"}
		if diff := cmp.Diff(want, payloads); diff != "" {
			e.Errorf("payloads (-want +got):\n%s", diff)
		}
		e.start(w) // all rounds are over
		for with, n := range map[bool]int{false: 0, true: 4} {
			jobs, _, err := e.s.Jobs(e.ctx(), service.JobFilter{Verification: with})
			e.must(err)
			equal(e, fmt.Sprintf("jobs listed (with made-up ones: %v)", with), len(jobs), n)
		}
		last, err := e.s.LastSuccess(e.ctx())
		e.must(err)
		equal(e, "successes of classes", len(last), 0)
		log := e.runLog("")
		if len(log) != 4 || slices.ContainsFunc(log, func(r lanegate.RunRecord) bool { return r.Verification != v.ID }) {
			e.Errorf("run log %+v", log)
		}
	}},
	{"a made-up job ends with its one attempt, however that ends", func(e *env) {
		e.class("a", attempts(5, time.Millisecond), func(c *lanegate.Class) { c.Repeatable = new(true) })
		w := e.worker()
		for _, o := range lanegate.Outcomes {
			g := e.madeUp(w, "a")
			d := e.end(g, o)
			want := map[lanegate.Outcome]lanegate.State{lanegate.Succeeded: lanegate.StateSucceeded, lanegate.Cancelled: lanegate.StateCancelled}[o]
			if want == "" {
				want = lanegate.StateFailed
			}
			if d.Job.State != want || d.Job.FinishedAt == nil {
				e.Errorf("%s: job %+v, want it %s", o, d.Job, want)
			}
			e.wantState(g.Job.ID, want)
			_, err := e.s.Retry(e.ctx(), g.Job.ID, "ada")
			e.wantErr(err, lanegate.ErrNotRetryable)
			if !strings.Contains(err.Error(), g.Attempt.Verification) {
				e.Errorf("the refusal %q doesn't say why", err)
			}
			_, err = e.s.RunNext(e.ctx(), g.Job.ID, "ada")
			e.wantErr(err, lanegate.ErrNotQueued)
			_, err = e.s.Cancel(e.ctx(), g.Job.ID, "ada")
			e.wantErr(err, lanegate.ErrJobFinal)
			_, err = e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed})
			e.wantErr(err, lanegate.ErrLateWrite)
		}
		if lines, err := e.s.Lines(e.ctx()); err != nil || len(lines) != 0 {
			e.Errorf("lines %+v, %v: made-up jobs stand in one", lines, err)
		}
	}},
	{"a made-up job can be cancelled", func(e *env) {
		e.class("a")
		w := e.worker()
		g := e.madeUp(w, "a")
		j, err := e.s.Cancel(e.ctx(), g.Job.ID, "ada")
		e.must(err)
		if !j.CancelRequested || j.State != lanegate.StateRunning {
			e.Errorf("job %+v", j)
		}
		if held := e.beat(w); len(held) != 1 || !held[0].CancelRequested {
			e.Errorf("held %+v", held)
		}
		e.end(g, lanegate.Failed)
		e.wantState(g.Job.ID, lanegate.StateCancelled)
	}},
	{"a queued job that runs in a trial is a job like any other afterwards", func(e *env) {
		e.class("a", attempts(2, time.Hour))
		e.class("b")
		jobs := []string{e.submit("a").Job.ID, e.submit("b").Job.ID}
		v := e.trial(lanegate.SourceQueue, "a", "b")
		w := e.worker()
		gs := e.start(w, jobs...)
		e.finish(v.ID, lanegate.VerdictFailed) // their ends come late
		if d := e.end(gs[0], lanegate.Failed); d.Job.State != lanegate.StateQueued || d.Job.Failures != 1 {
			e.Errorf("failed job %+v, want it back in its line", d.Job)
		}
		e.end(gs[1], lanegate.Succeeded)
		last, err := e.s.LastSuccess(e.ctx())
		e.must(err)
		if last["b"].IsZero() || len(last) != 1 {
			e.Errorf("last successes %v, want b's: its work was done", last)
		}
		listed, _, err := e.s.Jobs(e.ctx(), service.JobFilter{})
		e.must(err)
		equal(e, "jobs listed", len(listed), 2)
		if runs := e.trialRuns(v.ID); len(runs) != 2 || runs[0].MadeUp || runs[1].MadeUp {
			e.Errorf("runs %+v", runs)
		}
	}},
	{"the runs of a trial show what its evidence needs", func(e *env) {
		e.class("a")
		e.class("b")
		w := e.worker()
		e.queue("a", 1)
		e.queue("b", 1)
		queued := e.trial(lanegate.SourceQueue, "a", "b")
		gs := e.admit(w).Grants
		match := []lanegate.PhraseMatch{{Phrase: "deadlock", Line: "ERROR: deadlock \x00 detected", Before: "x", After: "y"}}
		a := e.endAs(gs[0], lanegate.Ending{
			Outcome: lanegate.Failed, Duration: time.Second, Error: "exit 1", Result: []byte(`{"r": 1}`), Trouble: match, Measured: map[string]int{"db": 3},
			Output: lanegate.Output{Head: "deadlock", Bytes: 100, Dropped: 92},
		})
		b := e.endAs(gs[1], lanegate.Ending{Outcome: lanegate.Succeeded})
		if diff := cmp.Diff(match, a.Attempt.Trouble); diff != "" {
			e.Errorf("trouble (-reported +answered):\n%s", diff)
		}
		empty := sha256.Sum256([]byte(`{}`))
		result := sha256.Sum256([]byte(`{"r": 1}`))
		want := []service.TrialRun{
			{Attempt: a.Attempt, PayloadDigest: empty[:], ResultDigest: result[:], Dropped: 92},
			{Attempt: b.Attempt, PayloadDigest: empty[:]},
		}
		if want[0].Job > want[1].Job {
			slices.Reverse(want)
		}
		if diff := cmp.Diff(want, e.trialRuns(queued.ID)); diff != "" {
			e.Errorf("runs (-want +got):\n%s", diff)
		}
		e.finish(queued.ID, lanegate.VerdictFailed)
		// Another attempt's result doesn't become this one's.
		if _, err := e.s.Retry(e.ctx(), gs[0].Job.ID, "ada"); err != nil {
			e.Fatal(err)
		}
		e.endAs(e.start(w, gs[0].Job.ID)[0], lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`2`)})
		if diff := cmp.Diff(want, e.trialRuns(queued.ID)); diff != "" {
			e.Errorf("runs after another attempt (-want +got):\n%s", diff)
		}
		g := e.madeUp(w, "a")
		null := sha256.Sum256([]byte("null"))
		if diff := cmp.Diff([]service.TrialRun{{Attempt: g.Attempt, MadeUp: true, PayloadDigest: null[:]}}, e.trialRuns(g.Attempt.Verification)); diff != "" {
			e.Errorf("a made-up run (-want +got):\n%s", diff)
		}
	}},
	{"cancelling a trial asks its made-up runs to end, and nobody else", func(e *env) {
		e.class("a")
		e.class("b", parallel(1))
		w := e.worker()
		made := e.madeUp(w, "a")
		e.finish(made.Attempt.Verification, lanegate.VerdictInconclusive)
		e.queue("b", 1)
		queued := e.trial(lanegate.SourceQueue, "b")
		e.admit(w)
		for range 2 { // asking twice changes nothing
			e.change(func(tx service.ConfigTx) error { return tx.CancelTrial(queued.ID) })
		}
		for _, h := range e.beat(w) {
			if h.CancelRequested {
				e.Errorf("%+v is cancelled", h)
			}
		}
		for range 2 {
			e.change(func(tx service.ConfigTx) error { return tx.CancelTrial(made.Attempt.Verification) })
		}
		held := e.beat(w)
		equal(e, "attempts held", len(held), 2)
		for _, h := range held {
			equal(e, "cancel requested", h.CancelRequested, h.Fence == made.Attempt.Fence())
		}
		e.end(made, lanegate.Cancelled)
		e.change(func(tx service.ConfigTx) error { return tx.CancelTrial(made.Attempt.Verification) })
	}},
}

// trial plans a run of one round.
func (e *env) trial(source lanegate.VerificationSource, classes ...string) lanegate.Verification {
	e.Helper()
	v := newVerification(source, classes...)
	e.plan(v)
	return v
}

// madeUp starts a trial of one made-up run, whose verdict then falls.
func (e *env) madeUp(worker, class string) service.Grant {
	e.Helper()
	v := e.trial(lanegate.SourcePayloads, class)
	res := e.admit(worker)
	if len(res.Grants) != 1 || res.Trial != v.ID {
		e.Fatalf("granted %v, trial %q, want one made-up run of %s", granted(res), res.Trial, v.ID)
	}
	e.finish(v.ID, lanegate.VerdictInconclusive)
	return res.Grants[0]
}

func (e *env) snapshot() admission.Input {
	e.Helper()
	in, err := e.s.Snapshot(e.ctx())
	e.must(err)
	return in
}

func (e *env) trialRuns(id string) []service.TrialRun {
	e.Helper()
	runs, err := e.s.TrialRuns(e.ctx(), id)
	e.must(err)
	return runs
}

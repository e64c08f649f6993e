package storetest

import (
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var ownerCases = []testCase{
	{"whatever takes the owner away ends its run, frees serial and loses its attempts", func(e *env) {
		e.class("a", attempts(3, time.Millisecond))
		e.class("other")
		for name, end := range map[string]func(w string) ([]service.Ended, error){
			"leave": func(w string) ([]service.Ended, error) { return e.s.LeaveWorker(e.ctx(), w) },
			"reap":  func(w string) ([]service.Ended, error) { return e.s.ReapWorker(e.ctx(), w, 0) },
		} {
			for _, source := range []lanegate.VerificationSource{lanegate.SourceQueue, lanegate.SourcePayloads} {
				what := fmt.Sprintf("%s, source %s", name, source)
				if source == lanegate.SourceQueue {
					e.queue("a", 2)
				}
				v := e.trial(source, "a", "a")
				w := e.worker()
				gs := e.admit(w).Grants
				equal(e, what+": starts", len(gs), 2)
				waiting := e.submit("other").Job.ID
				e.start(e.worker()) // serial is held
				ended, err := end(w)
				e.must(err)
				equal(e, what+": attempts ended", len(ended), 2)
				for _, d := range ended {
					want := lanegate.StateQueued
					if source == lanegate.SourcePayloads {
						want = lanegate.StateFailed
					}
					if d.Attempt.Outcome != lanegate.Lost || d.Job.State != want {
						e.Errorf("%s: attempt %s, job %s, want it %s", what, d.Attempt.Outcome, d.Job.State, want)
					}
				}
				e.wantOwnerLost(what, v.ID)
				if proofs := e.proofs("a"); len(proofs) != 0 {
					e.Errorf("%s: proofs %+v", what, proofs)
				}
				next := e.worker()
				started := false // the line moves again: with what was lost, or the one that waited
				for range 3 {
					for _, g := range e.admit(next).Grants {
						started = started || g.Job.ID == waiting
						e.end(g, lanegate.Succeeded)
					}
				}
				if !started {
					e.Errorf("%s: job %s of serial never started", what, waiting)
				}
			}
		}
	}},
	{"an owner that goes before any round leaves no hold", func(e *env) {
		e.class("a")
		id := e.submit("a").Job.ID
		v := e.trial(lanegate.SourceQueue, "a", "a") // waits for a second job
		w := e.worker()
		e.start(w)
		equal(e, "hold", e.snapshot().Hold, v.ID)
		ended, err := e.s.ReapWorker(e.ctx(), w, 7)
		if err != nil || ended != nil || e.verification(v.ID).State.Final() {
			e.Errorf("a reaper that saw another beat ended %v, %v", ended, err)
		}
		_, err = e.s.ReapWorker(e.ctx(), w, 0)
		e.must(err)
		e.wantOwnerLost("reaped", v.ID)
		e.start(e.worker(), id)
	}},
	{"a planned run and others' runs outlive a worker", func(e *env) {
		e.class("a")
		e.queue("a", 1)
		running, planned := e.trial(lanegate.SourceQueue, "a"), e.trial(lanegate.SourceQueue, "a")
		owner, other := e.worker(), e.worker()
		e.admit(owner)
		for range 2 {
			_, err := e.s.LeaveWorker(e.ctx(), other)
			e.must(err)
			_, err = e.s.ReapOrphans(e.ctx())
			e.must(err)
		}
		equal(e, "the owner's", e.verification(running.ID).State, lanegate.VerificationRunning)
		_, err := e.s.LeaveWorker(e.ctx(), owner)
		e.must(err)
		e.wantOwnerLost("left", running.ID)
		equal(e, "the planned", e.verification(planned.ID).State, lanegate.VerificationPlanned)
		if got := e.admit(e.worker()); got.Trial != planned.ID {
			e.Errorf("trial %q, want the planned one to go on", got.Trial)
		}
	}},
	{"a run that is done is nobody's to lose", func(e *env) {
		e.class("a")
		w := e.worker()
		g := e.madeUp(w, "a")
		e.save(g.Attempt.Verification, func(v *lanegate.Verification) { v.Verdict = lanegate.VerdictPassed })
		_, err := e.s.ReapWorker(e.ctx(), w, 0)
		e.must(err)
		equal(e, "verdict", e.verification(g.Attempt.Verification).Verdict, lanegate.VerdictPassed)
		e.wantState(g.Job.ID, lanegate.StateFailed)
	}},
	{"made-up runs that go on without their owner are asked to end", func(e *env) {
		e.class("h", func(c *lanegate.Class) {
			c.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://target", Mode: lanegate.ModeAsync}
		})
		v := e.trial(lanegate.SourcePayloads, "h")
		w := e.worker()
		g := e.admit(w).Grants[0]
		ended, err := e.s.ReapWorker(e.ctx(), w, 0)
		e.must(err)
		equal(e, "ended", len(ended), 0)
		e.wantOwnerLost("reaped", v.ID)
		if runs := e.trialRuns(v.ID); len(runs) != 1 || !runs[0].CancelRequested || runs[0].Outcome != "" {
			e.Errorf("runs %+v, want one that is asked to end", runs)
		}
		e.end(g, lanegate.Cancelled)
		e.wantState(g.Job.ID, lanegate.StateCancelled)
	}},
}

// wantOwnerLost checks that a run ended because its owner is gone.
func (e *env) wantOwnerLost(what, id string) {
	e.Helper()
	v := e.verification(id)
	if v.State != lanegate.VerificationDone || v.Verdict != lanegate.VerdictInconclusive || v.EndedAt == nil ||
		len(v.Reasons) != 1 || v.Reasons[0].Code != "owner_lost" || v.Reasons[0].Message == "" {
		e.Errorf("%s: run %s is %s, %s with %+v, want it inconclusive for owner_lost", what, id, v.State, v.Verdict, v.Reasons)
	}
	if in := e.snapshot(); in.Hold != "" {
		e.Errorf("%s: serial is held by %s", what, in.Hold)
	}
}

var findingCases = []testCase{
	{"an outcome leaves a finding when it is evidence of concurrency, and only then", func(e *env) {
		e.width(8)
		e.resource("db", 100)
		e.class("s", units(lanegate.Units{"db": 2}))
		p := e.class("p", parallel(8), units(lanegate.Units{"db": 2}))
		trouble := []lanegate.PhraseMatch{{Phrase: "too many connections", Line: "FATAL: too many connections", Before: "b"}}
		w := e.worker()
		for _, c := range []struct {
			class string
			end   lanegate.Ending
			want  bool
		}{
			{"p", lanegate.Ending{Outcome: lanegate.Failed, Trouble: trouble}, true},
			{"p", lanegate.Ending{Outcome: lanegate.TimedOut, Trouble: trouble}, true},
			{"p", lanegate.Ending{Outcome: lanegate.Succeeded, Trouble: trouble}, false},
			{"p", lanegate.Ending{Outcome: lanegate.Failed}, false},
			{"p", lanegate.Ending{Outcome: lanegate.Succeeded, Measured: map[string]int{"db": 3}}, true},
			{"p", lanegate.Ending{Outcome: lanegate.Succeeded, Measured: map[string]int{"db": 2}}, false},
			{"p", lanegate.Ending{Outcome: lanegate.Succeeded, Measured: map[string]int{"undeclared": 1}}, true},
			{"s", lanegate.Ending{Outcome: lanegate.Failed, Trouble: trouble, Measured: map[string]int{"db": 9}}, false},
		} {
			id := e.submit(c.class).Job.ID
			ended := e.endAs(e.start(w, id)[0], c.end)
			findings, err := e.s.Findings(e.ctx(), 0)
			e.must(err)
			if (len(findings) == 1) != c.want {
				e.Errorf("%s ended as %+v: findings %+v, want one: %v", c.class, c.end, findings, c.want)
			}
			if len(findings) != 1 {
				continue
			}
			f := findings[0]
			want := service.Finding{
				ID: f.ID, Job: id, Attempt: 1, Class: "p", Lane: lanegate.LaneParallel, Fingerprint: p.Fingerprint, Outcome: c.end.Outcome,
				Units: lanegate.Units{"db": 2}, Trouble: c.end.Trouble, Measured: c.end.Measured, At: *ended.Attempt.EndedAt,
			}
			e.same("finding", want, f)
			e.change(func(tx service.ConfigTx) error { return tx.DropFinding(f.ID) })
		}
	}},
	{"a trial's runs leave findings in serial, too, oldest first", func(e *env) {
		e.class("a")
		w := e.worker()
		trouble := []lanegate.PhraseMatch{{Phrase: "x", Line: "x"}}
		var runs []string
		for range 3 {
			g := e.madeUp(w, "a")
			runs = append(runs, g.Attempt.Verification)
			e.endAs(g, lanegate.Ending{Outcome: lanegate.Lost, Trouble: trouble})
			_, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed, Trouble: trouble})
			e.wantErr(err, lanegate.ErrLateWrite) // and leaves nothing
		}
		e.pruneAll()
		findings, err := e.s.Findings(e.ctx(), 2)
		e.must(err)
		if len(findings) != 2 || findings[0].Verification != runs[0] || findings[1].Verification != runs[1] {
			e.Fatalf("findings %+v, want those of the first two runs, though their jobs are gone", findings)
		}
		e.change(func(tx service.ConfigTx) error { return tx.DropFinding(findings[0].ID) })
		rest, err := e.s.Findings(e.ctx(), 10)
		e.must(err)
		if len(rest) != 2 || rest[0].Verification != runs[1] || rest[1].Verification != runs[2] {
			e.Errorf("findings %+v", rest)
		}
		for _, id := range runs {
			e.verification(id)
		}
	}},
}

package service_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestVerificationFromQueuePasses(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec())
	f.look()
	if v := f.get(id); v.State != lanegate.VerificationPlanned || len(v.Plan) != 1 || v.Evidence.Baseline["a"].N != 5 || v.Evidence.Baseline["a"].P50 != 60 {
		t.Fatalf("planned: %+v", v)
	}
	f.submitPair()
	f.mustRound(3)
	f.look()
	serial, err := f.svc.Lane(t.Context(), lanegate.LaneSerial)
	f.must(err)
	if serial.Hold != id || serial.InFlight != 1 || len(serial.Running) != 0 {
		t.Errorf("serial: hold %q, in flight %d", serial.Hold, serial.InFlight)
	}
	if f.metric("lanegate_verification_running") != 1 {
		t.Error("no run is under way by the metric")
	}
	if v := f.get(id); !v.Started || v.Round != 0 || len(v.Evidence.Rounds) != 1 || len(v.Evidence.Rounds[0].Runs) != 0 {
		t.Errorf("under way: %+v", v.Evidence.Rounds)
	}
	f.endRound(nil)
	f.look()
	v := f.wantVerdict(id, lanegate.VerdictPassed)
	if r := v.Evidence.Rounds[0]; len(r.Runs) != 3 || len(r.Picture) != 3 || !r.EndedAt.Equal(f.clock.Now()) || r.Kind != lanegate.RoundBeside {
		t.Errorf("round %+v", r)
	}
	for class, copies := range map[string]int{"a": 2, "b": 1} {
		proofs, err := f.svc.Proofs(t.Context(), class)
		f.must(err)
		other := map[string]string{"a": "b", "b": "a"}[class]
		if len(proofs) != 1 || proofs[0].Copies != copies || !slices.Equal(proofs[0].Beside, []string{other}) || proofs[0].Fingerprint != f.mustClass(class).Fingerprint {
			t.Errorf("proofs of %s: %+v", class, proofs)
		}
		events := f.events("class:" + class)
		if !slices.Equal(events[len(events)-3:], []string{"verification_planned", "verification_started", "verification_finished"}) {
			t.Errorf("history of %s: %v", class, events)
		}
	}
	if s := v.Evidence.Slowdown["a"]; s.N != 2 || s.Ratio != 1 {
		t.Errorf("slowdown %+v", s)
	}
	last := f.fixture.history("class:a")
	if e := last[len(last)-1]; e.Actor != service.ActorLanegate || e.Evidence["verdict"] != "passed" || e.Evidence["verification"] != id {
		t.Errorf("event %+v", e)
	}
	if f.metric("lanegate_verification_runs_total", "verdict=passed") != 1 || f.metric("lanegate_verification_running") != 0 {
		t.Error("not counted")
	}
}

// Every way in which one thing goes wrong has its verdict and its reason.
func TestVerificationVerdicts(t *testing.T) {
	fail := func(code int) lanegate.Ending {
		return lanegate.Ending{Outcome: lanegate.Failed, Duration: usual, ExitCode: &code, Error: "exit code 3"}
	}
	said := func(e lanegate.Ending, line string) lanegate.Ending {
		e.Output.Head = "start\n" + line + "\nend\n"
		return e
	}
	measured := good
	measured.Measured = map[string]int{"db": 7}
	late := lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second}
	for _, tt := range []struct {
		name    string
		endings map[string]lanegate.Ending // of the round, by class
		takes   time.Duration              // more than the usual time
		edit    func(*lanegate.VerificationSpec)
		check   lanegate.Ending
		verdict lanegate.Verdict
		codes   []string
	}{
		{name: "failed", endings: map[string]lanegate.Ending{"b": fail(3)}, verdict: lanegate.VerdictFailed, codes: []string{"run_failed"}},
		{name: "timed out", endings: map[string]lanegate.Ending{"b": {Outcome: lanegate.TimedOut, Duration: usual}}, verdict: lanegate.VerdictFailed, codes: []string{"run_failed"}},
		{name: "phrase", endings: map[string]lanegate.Ending{"a": said(good, "ERROR: deadlock detected")}, verdict: lanegate.VerdictFailed, codes: []string{"phrase"}},
		{name: "failed with a phrase", endings: map[string]lanegate.Ending{"a": said(fail(1), "FATAL:  sorry, too many clients already")}, verdict: lanegate.VerdictFailed, codes: []string{"phrase", "run_failed"}},
		{name: "measured", endings: map[string]lanegate.Ending{"a": measured}, verdict: lanegate.VerdictFailed, codes: []string{"units_above_declared"}},
		{name: "slow", takes: 2 * time.Minute, endings: map[string]lanegate.Ending{
			"a": {Outcome: lanegate.Succeeded, Duration: 3 * time.Minute}, "b": {Outcome: lanegate.Succeeded, Duration: usual},
		}, verdict: lanegate.VerdictFailed, codes: []string{"slowdown"}},
		{name: "check", edit: withCheck, check: lanegate.Ending{Outcome: lanegate.Failed, ExitCode: new(1), Output: lanegate.Output{Head: "3 of 4"}}, verdict: lanegate.VerdictFailed, codes: []string{"check_failed"}},
		{name: "check stopped", edit: withCheck, check: lanegate.Ending{Outcome: lanegate.Interrupted}, verdict: lanegate.VerdictInconclusive, codes: []string{"check_not_judged"}},
		{name: "check passes", edit: withCheck, check: lanegate.Ending{Outcome: lanegate.Succeeded}, verdict: lanegate.VerdictPassed},
		{name: "deferred", endings: map[string]lanegate.Ending{"b": {Outcome: lanegate.Deferred, Duration: usual}}, verdict: lanegate.VerdictInconclusive, codes: []string{"run_not_finished"}},
		// Whether a's second was at the beginning or at the end of the minute is not known.
		{name: "hardly at once", endings: map[string]lanegate.Ending{"a": late}, verdict: lanegate.VerdictInconclusive, codes: []string{"overlap"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newTrial(t)
			f.checker.ending = tt.check
			edits := []func(*lanegate.VerificationSpec){}
			if tt.edit != nil {
				edits = append(edits, tt.edit)
			}
			id := f.mustCreate(pairSpec(edits...))
			f.submitPair()
			f.mustRound(3)
			f.look()
			f.clock.advance(tt.takes)
			f.endRound(tt.endings)
			f.look()
			v := f.wantVerdict(id, tt.verdict, tt.codes...)
			proofs, err := f.svc.Proofs(t.Context(), "a")
			f.must(err)
			if conclusive := tt.verdict != lanegate.VerdictInconclusive; conclusive != (len(proofs) == 1) || conclusive && proofs[0].Verdict != tt.verdict {
				t.Errorf("proofs %+v", proofs)
			}
			if f.metric("lanegate_verification_runs_total", "verdict="+string(tt.verdict)) != 1 {
				t.Error("not counted")
			}
			if tt.edit != nil && f.checker.count() != 1 {
				t.Errorf("checked %d times", f.checker.count())
			}
			if tt.name == "phrase" {
				if p := v.Evidence.Rounds[0].Runs[0].Phrases; len(p) != 1 || p[0].Before != "start" || p[0].After != "end" {
					t.Errorf("phrases %+v", p)
				}
			}
		})
	}
}

// Runs that were granted together and yet did not run at once prove nothing.
func TestVerificationWithoutOverlap(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec(func(s *lanegate.VerificationSpec) {
		s.Members = []lanegate.VerificationMember{{Class: "a", Copies: 1}, {Class: "b", Copies: 1}}
	}))
	f.mustSubmit("a")
	f.mustSubmit("b")
	f.mustRound(2)
	f.clock.advance(30 * time.Second)
	f.end("a", lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 30 * time.Second})
	f.clock.advance(30 * time.Second)
	f.end("b", lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 20 * time.Second}) // its process came up only then
	f.look()
	f.wantVerdict(id, lanegate.VerdictInconclusive, "overlap")
}

// The first failed criterion ends a run at once: no further round, made-up runs
// are asked to end.
func TestVerificationFailsAtOnce(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec(fromPayloads))
	for range 2 { // each alone
		f.mustRound(1)
		f.endRound(nil)
		f.look()
	}
	f.mustRound(3)
	f.clock.advance(10 * time.Second)
	f.end("b", lanegate.Ending{Outcome: lanegate.Failed, Duration: 10 * time.Second, Error: "boom"})
	f.look()
	v := f.wantVerdict(id, lanegate.VerdictFailed, "run_failed")
	held, err := f.svc.Beat(t.Context(), "w")
	f.must(err)
	if len(held) != 2 || !held[0].CancelRequested || !held[1].CancelRequested {
		t.Errorf("still in flight: %+v", held)
	}
	if n := f.admit(); n != 0 {
		t.Errorf("%d more runs started", n)
	}
	f.end("a", lanegate.Ending{Outcome: lanegate.Cancelled, Duration: 11 * time.Second})
	f.look()
	after := f.get(id)
	if r := after.Evidence.Rounds[len(after.Evidence.Rounds)-1]; r.Runs[0].EndedAt == nil || r.Runs[0].Outcome != lanegate.Cancelled {
		t.Errorf("the end of the others is not in the evidence: %+v", r.Runs)
	}
	if after.Verdict != v.Verdict || len(after.Reasons) != len(v.Reasons) {
		t.Errorf("the verdict moved: %+v", after.Reasons)
	}
}

// An edit between two rounds that is taken back again proves nothing either.
func TestVerificationOfAnotherFingerprint(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec(fromPayloads))
	for range 2 { // each alone
		f.mustRound(1)
		f.endRound(nil)
		f.look()
	}
	before := f.mustClass("a").ClassSpec
	other := before
	other.Units = lanegate.Units{"db": 4}
	f.mustPut("a", other)
	f.mustRound(3)
	f.mustPut("a", before)
	f.endRound(nil)
	f.look()
	f.wantVerdict(id, lanegate.VerdictInconclusive, "fingerprint_changed")
}

// A run that fails takes its members' proofs, and so those outside serial go back.
func TestFailedVerificationMovesMembersBack(t *testing.T) {
	f := newTrial(t)
	f.trial(passed("a", "b"))
	f.promote(to(parallel), "a")
	id := f.mustCreate(pairSpec(fromPayloads))
	for range 2 { // each alone
		f.mustRound(1)
		f.endRound(nil)
		f.look()
	}
	f.mustRound(3)
	f.endRound(map[string]lanegate.Ending{"b": {Outcome: lanegate.Failed, Duration: usual, Error: "boom"}})
	f.look()
	f.wantVerdict(id, lanegate.VerdictFailed, "run_failed")
	if c := f.mustClass("a"); c.Lane != lanegate.LaneSerial || c.MaxInFlight != 1 {
		t.Errorf("a is in lane %s with max_in_flight %d", c.Lane, c.MaxInFlight)
	}
	if n := f.logs.count("class demoted: its proof no longer holds"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// What goes wrong alone says nothing about running at once.
func TestVerificationBaselineFails(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec(fromPayloads))
	f.mustRound(1)
	f.endRound(map[string]lanegate.Ending{"a": {Outcome: lanegate.Failed, Duration: usual}})
	f.look()
	f.wantVerdict(id, lanegate.VerdictInconclusive, "baseline_failed")
}

func TestVerificationSameResult(t *testing.T) {
	result := func(text string) lanegate.Ending {
		e := good
		e.Result = []byte(text)
		return e
	}
	for name, tt := range map[string]struct {
		beside  string
		verdict lanegate.Verdict
		codes   []string
	}{
		"alike":   {`{"rows":1}`, lanegate.VerdictPassed, nil},
		"differs": {`{"rows":2}`, lanegate.VerdictFailed, []string{"result_differs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTrial(t)
			id := f.mustCreate(pairSpec(fromPayloads, func(s *lanegate.VerificationSpec) { s.Criteria.SameResult = true }))
			for range 2 {
				f.mustRound(1)
				f.endRound(map[string]lanegate.Ending{"a": result(`{"rows":1}`), "b": result(`{}`)})
				f.look()
			}
			f.mustRound(3)
			f.endRound(map[string]lanegate.Ending{"a": result(tt.beside), "b": result(`{}`)})
			f.look()
			f.wantVerdict(id, tt.verdict, tt.codes...)
		})
	}
}

// What ends a run without a conclusion, at each point where it can.
func TestVerificationEndsInconclusive(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		happens    func(f *trial)
	}{
		{"too long", "max_hold", func(f *trial) { f.clock.advance(15 * time.Minute) }},
		{"edited", "fingerprint_changed", func(f *trial) { f.mustPut("b", execSpec("db", 4)) }},
		{"paused", "class_paused", func(f *trial) {
			_, err := f.svc.PauseClass(f.t.Context(), "b", admin)
			f.must(err)
		}},
		{"somebody's deadline", "fresh", func(f *trial) {
			spec := execSpec("db", 5)
			spec.FreshWithin = lanegate.Duration(6 * time.Minute)
			f.mustPut("urgent", spec)
			f.mustSubmit("urgent")
			f.look()
			if v, err := f.store.Verifications(f.t.Context(), service.VerificationFilter{Limit: 1}); err != nil || v[0].State.Final() {
				f.t.Fatalf("ended a minute too early: %+v, %v", v, err)
			}
			f.clock.advance(time.Minute)
		}},
		{"stopped", "stopped", func(f *trial) { f.coord.Stop(f.t.Context()) }},
		{"owner left", "owner_lost", func(f *trial) { f.must(f.svc.LeaveWorker(f.t.Context(), "w")) }},
		{"owner dead", "owner_lost", func(f *trial) { f.must(f.svc.ReapWorker(f.t.Context(), "w", 0)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newTrial(t)
			id := f.mustCreate(pairSpec())
			f.submitPair()
			f.mustRound(3)
			f.look()
			tt.happens(f)
			f.look()
			v := f.wantVerdict(id, lanegate.VerdictInconclusive, tt.code)
			if len(v.Evidence.Rounds) != 1 || len(v.Evidence.Rounds[0].Runs) != 3 {
				t.Errorf("evidence %+v", v.Evidence.Rounds)
			}
			if proofs, err := f.svc.Proofs(t.Context(), "a"); err != nil || len(proofs) != 0 {
				t.Errorf("proofs %+v, %v", proofs, err)
			}
			events := f.events("class:a")
			if n := len(slices.DeleteFunc(slices.Clone(events), func(e string) bool { return e != "verification_finished" })); n != 1 {
				t.Errorf("history %v", events)
			}
			f.look()
			if f.metric("lanegate_verification_runs_total", "verdict=inconclusive") != 1 {
				t.Error("not counted once")
			}
		})
	}
}

// A class that was late before the hold began doesn't end it: that would not help.
func TestVerificationGoesOnBesideAStaleClass(t *testing.T) {
	f := newTrial(t)
	spec := execSpec("db", 5)
	spec.FreshWithin = lanegate.Duration(time.Minute)
	f.mustPut("late", spec)
	f.mustRun("late", time.Second)
	f.clock.advance(time.Hour)
	id := f.mustCreate(pairSpec())
	f.submitPair()
	f.mustRound(3)
	f.mustSubmit("late")
	f.look()
	if v := f.get(id); v.State != lanegate.VerificationRunning {
		t.Errorf("state %s, %+v", v.State, v.Reasons)
	}
}

// A planned run whose member is gone never takes anybody's turn.
func TestPlannedVerificationEndsWithItsMember(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec())
	f.must(f.svc.DeleteClass(t.Context(), "b", admin))
	f.look()
	f.wantVerdict(id, lanegate.VerdictInconclusive, "class_deleted")
}

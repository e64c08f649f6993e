package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// deadlocked is how a run ends that met another one.
func deadlocked(o lanegate.Outcome) lanegate.Ending {
	return lanegate.Ending{Outcome: o, Error: "exit status 1", Output: lanegate.Output{Head: "begin\nERROR:  deadlock detected\n", Bytes: 32}}
}

// measuring is a good run that used so many of db.
func measuring(n int) lanegate.Ending {
	return lanegate.Ending{Outcome: lanegate.Succeeded, Measured: map[string]int{"db": n}}
}

// running is a started attempt of the class.
func (f *fixture) running(class string) lanegate.Fence {
	f.t.Helper()
	job := f.mustSubmit(class)
	return f.mustStart("w", 8, job.ID)[job.ID]
}

func (f *fixture) findings() []service.Finding {
	f.t.Helper()
	found, err := f.store.Findings(f.t.Context(), 100)
	f.must(err)
	return found
}

func (f *fixture) mustJudge() {
	f.t.Helper()
	f.must(f.svc.JudgeFindings(f.t.Context()))
}

// promoted is gated with a worker and the class a in parallel.
func promoted(t *testing.T) *fixture {
	t.Helper()
	f := gated(t)
	f.mustWorker("w", 8)
	f.trial(passed("a"))
	f.promote(to(parallel), "a")
	return f
}

// Only evidence of concurrency moves a class back by itself.
func TestFindings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ending lanegate.Ending
		before func(f *fixture) // after the start
		cause  string           // "": it stays
	}{
		{"a failure with a phrase", deadlocked(lanegate.Failed), nil, "phrase"},
		{"a time-out with a phrase", deadlocked(lanegate.TimedOut), nil, "phrase"},
		{"a plain failure", lanegate.Ending{Outcome: lanegate.Failed, Error: "vendor is down"}, nil, ""},
		{"a success with a phrase", deadlocked(lanegate.Succeeded), nil, ""},
		{"a deferral with a phrase", deadlocked(lanegate.Deferred), nil, ""},
		{"a cancelled run with a phrase", deadlocked(lanegate.Cancelled), nil, ""},
		{"more units than declared", measuring(6), nil, "measured_units"},
		{"as many units as declared", measuring(5), nil, ""},
		{"it was edited meanwhile", deadlocked(lanegate.Failed), func(f *fixture) {
			f.mustDemote("a")
			f.mustPut("a", execSpec("db", 4))
			f.trial(passed("a"))
			f.promote(to(parallel), "a")
		}, ""},
		{"it is in serial meanwhile", deadlocked(lanegate.Failed), func(f *fixture) { f.mustDemote("a") }, ""},
		{"it is gone meanwhile", lanegate.Ending{}, func(f *fixture) {
			for _, h := range f.mustHeld("w") {
				f.mustEnd(h.Fence, deadlocked(lanegate.Failed))
			}
			f.must(f.svc.DeleteClass(f.t.Context(), "a", admin))
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := promoted(t)
			fence := f.running("a")
			f.clock.advance(time.Second)
			if tt.before != nil {
				tt.before(f)
			}
			manual := f.metric("lanegate_class_demotions_total", "class=a", "reason=manual")
			if tt.ending.Outcome != "" {
				f.mustEnd(fence, tt.ending)
			}
			f.mustJudge()
			demotions := f.metric("lanegate_class_demotions_total", "class=a", "reason=phrase") +
				f.metric("lanegate_class_demotions_total", "class=a", "reason=measured_units")
			if want := float64(len(tt.cause)); (demotions == 1) != (want > 0) {
				t.Errorf("%v demotions by evidence", demotions)
			}
			if f.metric("lanegate_class_demotions_total", "class=a", "reason=manual") != manual {
				t.Error("a person did it")
			}
			if left := f.findings(); len(left) > 0 {
				t.Errorf("findings left: %+v", left)
			}
			if tt.cause != "" && (f.mustClass("a").Lane != lanegate.LaneSerial || f.logs.count("class demoted") != 1) {
				t.Errorf("class %+v", f.mustClass("a"))
			}
		})
	}
}

func (f *fixture) mustDemote(class string) {
	f.t.Helper()
	_, err := f.svc.Demote(f.t.Context(), class, admin)
	f.must(err)
}

func TestDemotionKeepsItsEvidence(t *testing.T) {
	f := promoted(t)
	one, two := f.mustSubmit("a"), f.mustSubmit("a")
	fences := f.mustStart("w", 8, one.ID, two.ID)
	f.mustEnd(fences[one.ID], deadlocked(lanegate.Failed))
	f.mustEnd(fences[two.ID], deadlocked(lanegate.Failed))
	f.mustJudge()
	f.mustJudge()
	events := f.history("class:a")
	last := events[len(events)-1]
	want := map[string]any{
		"cause": "phrase", "from": parallel, "max_in_flight_before": 2., "fingerprint": f.mustClass("a").Fingerprint,
		"job": one.ID, "attempt": 1., "lane": parallel, "outcome": "failed",
		"phrase": `\bdeadlock detected\b`, "line": "ERROR:  deadlock detected",
		"widths": []any{map[string]any{"lane": parallel, "before": 2., "after": 1.}},
	}
	if diff := cmp.Diff(want, last.Evidence); diff != "" || last.Event != "demoted" || last.Actor != service.ActorLanegate {
		t.Errorf("event %+v:\n%s", last, diff)
	}
	if n := f.metric("lanegate_class_demotions_total", "class=a", "reason=phrase"); n != 1 {
		t.Errorf("%v demotions counted", n)
	}
	// The proof still holds, so a person may promote again: by what was found before, it stays.
	f.promote(to(parallel), "a")
	f.mustJudge()
	if c := f.mustClass("a"); c.Lane != parallel {
		t.Error("demoted again")
	}
}

// stale hands findings out again that were dealt with, as a second replica does
// that has read them before the first one's change.
type stale struct {
	service.Store
	found []service.Finding
}

func (s *stale) Findings(ctx context.Context, limit int) ([]service.Finding, error) {
	if s.found != nil {
		return s.found, nil
	}
	return s.Store.Findings(ctx, limit)
}

func TestFindingIsJudgedOnce(t *testing.T) {
	var second *stale
	f := gated(t, func(s *setup) {
		s.wrap = func(st service.Store) service.Store {
			second = &stale{Store: st}
			return second
		}
	})
	f.mustWorker("w", 8)
	f.trial(passed("a"))
	f.promote(to(parallel), "a")
	f.mustEnd(f.running("a"), deadlocked(lanegate.Failed))
	found := f.findings()
	f.clock.advance(time.Microsecond)
	f.mustJudge()
	f.promote(to(parallel), "a") // at once, by a person who knows better
	second.found = found
	f.mustJudge()
	if c := f.mustClass("a"); c.Lane != parallel {
		t.Error("demoted twice by one finding")
	}
}

// underWay is a verification run from the queue whose round of these classes runs;
// with their fences, by class.
func (f *fixture) underWay(classes ...string) (run string, fences map[string]lanegate.Fence) {
	f.t.Helper()
	copies := map[string]int{}
	for _, c := range classes {
		copies[c] = 1
		f.mustSubmit(c)
	}
	run = f.trialAs("", copies, func(v *lanegate.Verification) {
		v.State, v.Spec.Source = lanegate.VerificationPlanned, lanegate.SourceQueue
		v.Plan = []lanegate.Round{{Kind: lanegate.RoundBeside, Classes: classes}}
	})
	fences = map[string]lanegate.Fence{}
	for range 3 { // taken, then started
		for _, g := range f.mustAdmit("w", 8).Grants {
			if g.Attempt.Verification != run {
				f.t.Fatalf("%s started outside of the run", g.Job.Class)
			}
			fences[g.Job.Class] = g.Attempt.Fence()
		}
	}
	if len(fences) != len(classes) {
		f.t.Fatalf("started %v, want %v", fences, classes)
	}
	return run, fences
}

// conclude ends a run that is under way.
func (f *fixture) conclude(run string, verdict lanegate.Verdict) {
	f.t.Helper()
	f.must(f.store.Change(f.t.Context(), func(tx service.ConfigTx) error {
		v, err := tx.Verification(run)
		if err != nil {
			return err
		}
		v.State, v.Verdict, v.Round = lanegate.VerificationDone, verdict, len(v.Plan)
		return tx.SaveVerification(v)
	}))
}

// A run that goes on after its verification has passed, and then fails with a
// phrase while another of the trial ran beside it, takes the verdict back.
func TestLateFailure(t *testing.T) {
	for _, tt := range []struct {
		name    string
		beside  bool
		ending  lanegate.Ending
		verdict lanegate.Verdict
		serial  []string // where they were moved back to
	}{
		{"with a phrase beside others", true, deadlocked(lanegate.Failed), lanegate.VerdictFailed, []string{"a", "b"}},
		{"with a phrase, alone", false, deadlocked(lanegate.Failed), lanegate.VerdictPassed, nil},
		{"plainly", true, lanegate.Ending{Outcome: lanegate.Failed}, lanegate.VerdictPassed, nil},
		{"a success above its units", true, measuring(6), lanegate.VerdictFailed, []string{"a", "b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := gated(t)
			f.mustWorker("w", 8)
			f.mustPut("c", execSpec("db", 1))
			f.trial(passed("c"))
			f.promote(to(parallel, accepting), "c")
			members := []string{"a"}
			if tt.beside {
				members = append(members, "b")
			}
			run, fences := f.underWay(members...)
			if tt.beside {
				f.clock.advance(time.Minute)
			}
			f.conclude(run, lanegate.VerdictPassed)
			f.promote(to(parallel, accepting, by(run)), members...)
			f.clock.advance(time.Minute)
			f.mustEnd(fences["a"], tt.ending)
			f.mustJudge()

			v, err := f.store.Verification(t.Context(), run)
			f.must(err)
			if v.Verdict != tt.verdict || v.State != lanegate.VerificationDone {
				t.Errorf("%s, %s; want %s", v.State, v.Verdict, tt.verdict)
			}
			if tt.verdict == lanegate.VerdictFailed && (len(v.Reasons) != 1 || v.Reasons[0].Code != "late_failure" || v.Reasons[0].Class != "a") {
				t.Errorf("reasons %+v", v.Reasons)
			}
			var serial []string
			for _, id := range append(members, "c") {
				if f.mustClass(id).Lane == lanegate.LaneSerial {
					serial = append(serial, id)
				}
			}
			if diff := cmp.Diff(tt.serial, serial); diff != "" {
				t.Errorf("in serial:\n%s", diff)
			}
			for _, id := range members {
				st, err := f.svc.Standing(t.Context(), id)
				f.must(err)
				if st.Latest.Verdict != tt.verdict {
					t.Errorf("proof of %s: %+v", id, st.Latest)
				}
			}
			if left := f.findings(); len(left) > 0 {
				t.Errorf("findings left: %+v", left)
			}
		})
	}
}

// What a run leaves while its verification is on is judged when that is over.
func TestFindingOfATrialWaitsForItsEnd(t *testing.T) {
	f := promoted(t)
	run, fences := f.underWay("a", "b")
	f.clock.advance(time.Minute)
	f.mustEnd(fences["a"], deadlocked(lanegate.Failed))
	f.mustJudge()
	if len(f.findings()) != 1 || f.mustClass("a").Lane != parallel {
		t.Fatalf("findings %+v, class %+v", f.findings(), f.mustClass("a"))
	}
	f.conclude(run, lanegate.VerdictInconclusive)
	f.mustJudge()
	if len(f.findings()) != 0 || f.mustClass("a").Lane != lanegate.LaneSerial {
		t.Errorf("findings %+v, class %+v", f.findings(), f.mustClass("a"))
	}
	events := f.history("class:a")
	if last := events[len(events)-1]; last.Evidence["verification"] != run || !strings.Contains(last.Reason, "phrase") {
		t.Errorf("event %+v", last)
	}
}

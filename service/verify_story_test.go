package service_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// storyOf is a passing run with baselines, two rounds and a check, as steps
// between which anything may happen.
func storyOf(f *trial) (id string, steps []func()) {
	id = f.mustCreate(pairSpec(fromPayloads, withCheck, func(s *lanegate.VerificationSpec) { s.Rounds = 2 }))
	round := func(runs int) {
		steps = append(steps,
			func() { f.mustRound(runs) },
			func() { f.look() },
			func() { f.endRound(nil) },
			func() { f.look() },
		)
	}
	for range 4 { // a and b, each alone in two rounds
		round(1)
	}
	round(3)
	round(3)
	return id, steps
}

// A coordinator has nothing in memory that matters: between any two steps it may
// be replaced, and every look may be done twice.
func TestVerificationSurvivesForgetting(t *testing.T) {
	f := newTrial(t)
	id, steps := storyOf(f)
	for _, step := range steps {
		step()
		f.look()
		f.restart()
		f.look()
	}
	v := f.wantVerdict(id, lanegate.VerdictPassed)
	if n := f.checker.count(); n != 6 {
		t.Errorf("%d checks after 6 rounds", n)
	}
	if len(v.Evidence.Rounds) != 6 || v.Evidence.Baseline["a"].N != 2 || v.Evidence.Slowdown["a"].N != 4 {
		t.Errorf("evidence of %d rounds, baseline %+v, slowdown %+v", len(v.Evidence.Rounds), v.Evidence.Baseline, v.Evidence.Slowdown)
	}
	events := f.events("class:a")
	if got := events[len(events)-3:]; !slices.Equal(got, []string{"verification_planned", "verification_started", "verification_finished"}) {
		t.Errorf("history %v", events)
	}
}

// Whenever the worker dies, the run ends without a conclusion and without a hold,
// with what it had seen; one that was not taken yet waits for the next worker.
func TestVerificationWhenTheWorkerDies(t *testing.T) {
	_, all := storyOf(newTrial(t))
	for at := range all {
		t.Run(fmt.Sprintf("after %d steps", at), func(t *testing.T) {
			t.Parallel()
			f := newTrial(t)
			id, steps := storyOf(f)
			for _, step := range steps[:at] {
				step()
			}
			f.must(f.svc.ReapWorker(t.Context(), "w", 0))
			f.restart()
			f.look()
			f.look()
			if at == 0 {
				if v := f.get(id); v.State != lanegate.VerificationPlanned {
					t.Fatalf("state %s", v.State)
				}
				f.mustWorker("w2", 4)
				if res := f.mustAdmit("w2", 4); len(res.Grants) != 1 || f.get(id).Owner != "w2" {
					t.Errorf("the next worker got %+v", res)
				}
				return
			}
			v := f.wantVerdict(id, lanegate.VerdictInconclusive, "owner_lost")
			if begun := (at + 2) / 4; len(v.Evidence.Rounds) < begun {
				t.Errorf("%d rounds in the evidence after %d steps", len(v.Evidence.Rounds), at)
			}
			if f.metric("lanegate_verification_runs_total", "verdict=inconclusive") != 1 {
				t.Error("not counted once")
			}
			f.mustWorker("w2", 4)
			f.mustSubmit("a")
			if res := f.mustAdmit("w2", 4); len(res.Grants) != 1 || res.Grants[0].Attempt.Verification != "" {
				t.Errorf("afterwards: %+v", res.Grants)
			}
		})
	}
}

// A class that runs for hours needs only the window; it goes on after the verdict,
// and if it then fails of what ran beside it, the verdict is taken back.
func TestVerificationWindowAndLateFailure(t *testing.T) {
	long := func(t *testing.T) (*trial, string) {
		f := newTrial(t)
		spec := execSpec("db", 5)
		f.mustPut("heavy", spec)
		for range lanegate.BaselineRuns {
			job := f.mustSubmit("heavy").ID
			fence := f.mustStart("w", 4, job)[job]
			f.clock.advance(30 * time.Hour)
			f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 30 * time.Hour})
		}
		id := f.mustCreate(lanegate.VerificationSpec{
			Members:  []lanegate.VerificationMember{{Class: "heavy", Copies: 1}, {Class: "a", Copies: 1}},
			Criteria: lanegate.Criteria{Window: lanegate.Duration(5 * time.Minute)}, HoldSerial: true,
		})
		f.mustSubmit("heavy")
		f.mustSubmit("a")
		f.mustRound(2)
		f.look()
		f.clock.advance(usual)
		f.end("a", good)
		f.look()
		f.wantVerdict(id, lanegate.VerdictPassed)
		return f, id
	}
	t.Run("goes on", func(t *testing.T) {
		f, id := long(t)
		f.mustPut("other", execSpec("db", 5))
		job := f.mustSubmit("other").ID
		f.mustStart("w", 4, job) // the line flows, heavy or not
		f.clock.advance(30 * time.Hour)
		f.end("heavy", lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 30 * time.Hour})
		f.look()
		v := f.wantVerdict(id, lanegate.VerdictPassed)
		if r := v.Evidence.Rounds[0].Runs; len(r) != 2 || r[0].EndedAt == nil || r[1].EndedAt == nil {
			t.Errorf("its end is not in the evidence: %+v", r)
		}
	})
	t.Run("fails of concurrency", func(t *testing.T) {
		f, id := long(t)
		f.clock.advance(time.Hour)
		f.end("heavy", lanegate.Ending{Outcome: lanegate.Failed, Duration: time.Hour, Output: lanegate.Output{Head: "ERROR:  deadlock detected\n"}})
		f.look()
		f.wantVerdict(id, lanegate.VerdictFailed, "late_failure")
		proofs, err := f.svc.Proofs(t.Context(), "a")
		f.must(err)
		if len(proofs) != 1 || proofs[0].Verdict != lanegate.VerdictFailed {
			t.Errorf("proofs %+v", proofs)
		}
	})
	t.Run("fails of something else", func(t *testing.T) {
		f, id := long(t)
		f.clock.advance(time.Hour)
		f.end("heavy", lanegate.Ending{Outcome: lanegate.Failed, Duration: time.Hour, Output: lanegate.Output{Head: "vendor is down\n"}})
		f.look()
		f.wantVerdict(id, lanegate.VerdictPassed)
	})
}

func conditionCodes(t *testing.T, err error) []string {
	t.Helper()
	e := wantError(t, err, lanegate.ErrVerificationRefused)
	conditions, ok := e.Details["conditions"].([]service.Condition)
	if !ok {
		t.Fatalf("details %+v", e.Details)
	}
	var codes []string
	for _, c := range conditions {
		if c.Message == "" {
			t.Errorf("%s says nothing", c.Code)
		}
		codes = append(codes, strings.TrimRight(c.Code+" "+c.Class, " "))
	}
	return codes
}

func TestVerificationRefused(t *testing.T) {
	f := newTrial(t)
	yes := true
	repeatable := func(s lanegate.ClassSpec) lanegate.ClassSpec { s.Repeatable = &yes; return s }
	f.mustPut("bare", repeatable(execSpec()))
	f.mustPut("huge", repeatable(execSpec("db", 12)))
	f.mustPut("new", execSpec("db", 1))
	because := execSpec("db", 1)
	because.SerialBecause = "one session per account"
	f.mustPut("vendor", repeatable(because))
	f.commands.set("gone", "g1")
	gone := repeatable(execSpec("db", 1))
	gone.Run.Command = "gone"
	f.mustPut("gone", gone)
	_, err := f.svc.PauseClass(t.Context(), "new", admin)
	f.must(err)
	type member = lanegate.VerificationMember
	payloads := func(members ...member) lanegate.VerificationSpec {
		return lanegate.VerificationSpec{Source: lanegate.SourcePayloads, Members: members, HoldSerial: true}
	}
	queue := func(edit func(*lanegate.VerificationSpec)) lanegate.VerificationSpec { return pairSpec(edit) }
	for _, tt := range []struct {
		name string
		spec lanegate.VerificationSpec
		want []string
	}{
		{"nobody", payloads(), []string{"members"}},
		{"one run", payloads(member{Class: "a", Copies: 1}), []string{"nothing_to_prove a"}},
		{"copies", payloads(member{Class: "a", Copies: 0}, member{Class: "b", Copies: 11}), []string{"copies a", "copies b", "over_capacity b"}},
		{"twice", payloads(member{Class: "a", Copies: 2}, member{Class: "a", Copies: 2}), []string{"duplicate_member a"}},
		{"unknown", payloads(member{Class: "a", Copies: 2}, member{Class: "nobody", Copies: 1}), []string{"unknown_class nobody"}},
		{"undeclared", payloads(member{Class: "bare", Copies: 2}), []string{"units_undeclared bare"}},
		{"too large", payloads(member{Class: "huge", Copies: 2}, member{Class: "a", Copies: 1}), []string{"over_capacity a", "over_capacity huge"}},
		{"everything at once", payloads(member{Class: "new", Copies: 2}, member{Class: "vendor", Copies: 2}),
			[]string{"class_paused new", "not_repeatable new", "serial_because vendor"}},
		{"no history", queue(func(s *lanegate.VerificationSpec) { s.Members[0].Class = "huge" }), []string{"baseline_missing huge", "over_capacity b", "over_capacity huge"}},
		{"no worker", payloads(member{Class: "gone", Copies: 2}), []string{"no_worker gone"}},
		{"settings", queue(func(s *lanegate.VerificationSpec) {
			s.Source, s.Rounds, s.MaxHold, s.HoldSerial = "magic", 21, lanegate.Duration(time.Second), false
			s.Criteria = lanegate.Criteria{MaxSlowdown: .5, MinOverlap: 1.5, Window: lanegate.Duration(time.Minute)}
		}), []string{"criteria", "criteria", "criteria", "hold_reason", "max_hold", "over_capacity a", "over_capacity b", "rounds", "source"}},
		{"payloads from the queue", queue(func(s *lanegate.VerificationSpec) {
			s.Members[0].Payloads, s.Criteria.SameResult = []json.RawMessage{json.RawMessage(`1`)}, true
		}), []string{"criteria", "payloads a"}},
		{"bad payload", payloads(member{Class: "a", Copies: 2, Payloads: []json.RawMessage{json.RawMessage(`{"a":1,"a":2}`)}}), []string{"payloads a"}},
		{"check", queue(func(s *lanegate.VerificationSpec) {
			s.Check = &lanegate.Run{Kind: lanegate.RunExec, Command: "nobody-has-it"}
		}), []string{"unknown_check"}},
		{"check elsewhere", queue(func(s *lanegate.VerificationSpec) {
			s.Check = &lanegate.Run{Kind: lanegate.RunSQS, Queue: "q"}
		}), []string{"check"}},
		{"too long", queue(func(s *lanegate.VerificationSpec) { s.Rounds = 20 }), []string{"too_long"}},
		{"beside serial", queue(func(s *lanegate.VerificationSpec) {
			s.HoldSerial, s.HoldReason = false, "the line must flow"
			s.Members = []member{{Class: "a", Copies: 2}}
		}), []string{"over_capacity a"}}, // 15 − 12 for serial's largest
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := f.svc.CreateVerification(t.Context(), tt.spec, service.VerifyOptions{Actor: "ann"})
			codes := conditionCodes(t, err)
			slices.Sort(codes)
			if diff := cmp.Diff(tt.want, codes); diff != "" {
				t.Errorf("conditions (-want +got):\n%s\n%v", diff, err)
			}
		})
	}
	if runs, _, err := f.svc.Verifications(t.Context(), service.VerificationFilter{}); err != nil || len(runs) != 0 {
		t.Errorf("refused, and yet there: %+v, %v", runs, err)
	}
	if _, err := f.svc.CreateVerification(t.Context(), payloads(member{Class: "vendor", Copies: 2}), service.VerifyOptions{ConfirmSerial: true}); err != nil {
		t.Errorf("confirmed: %v", err)
	}
	f.must(f.svc.LeaveWorker(t.Context(), "w"))
	_, err = f.svc.CreateVerification(t.Context(), pairSpec(), service.VerifyOptions{})
	if codes := conditionCodes(t, err); !slices.Equal(codes, []string{"no_worker a", "no_worker b"}) {
		t.Errorf("without workers: %v", codes)
	}
}

func TestVerificationDryRun(t *testing.T) {
	f := newTrial(t)
	v, err := f.svc.CreateVerification(t.Context(), pairSpec(fromPayloads), service.VerifyOptions{Actor: "ann", DryRun: true})
	f.must(err)
	if v.ID != "" || v.State != lanegate.VerificationPlanned || len(v.Plan) != 3 || v.Plan[0].Kind != lanegate.RoundBaseline || !slices.Equal(v.Plan[2].Classes, []string{"a", "a", "b"}) {
		t.Errorf("planned %+v", v)
	}
	want := lanegate.Criteria{MaxSlowdown: lanegate.DefaultMaxSlowdown, MinOverlap: lanegate.DefaultMinOverlap}
	if v.Spec.Criteria != want || v.Spec.MaxHold != lanegate.DefaultMaxHold {
		t.Errorf("defaults %+v", v.Spec)
	}
	if runs, _, err := f.svc.Verifications(t.Context(), service.VerificationFilter{}); err != nil || len(runs) != 0 {
		t.Errorf("inserted: %+v, %v", runs, err)
	}
	if events := f.events("class:a"); slices.Contains(events, "verification_planned") {
		t.Errorf("history %v", events)
	}
}

// An edit between reading the run log and the insert is noticed.
func TestVerificationJudgesTheClassAsItIs(t *testing.T) {
	var f *trial
	edits := 0
	f = newTrial(t, func(s *setup) {
		s.wrap = func(inner service.Store) service.Store {
			return editBeforeChange{inner, func() {
				if edits == 1 {
					edits++
					f.mustPut("a", execSpec("db", 4))
				}
			}}
		}
	})
	edits = 1
	_, err := f.svc.CreateVerification(t.Context(), pairSpec(), service.VerifyOptions{})
	if codes := conditionCodes(t, err); !slices.Equal(codes, []string{"baseline_missing a"}) {
		t.Errorf("conditions %v", codes)
	}
}

type editBeforeChange struct {
	service.Store
	edit func()
}

func (s editBeforeChange) Change(ctx context.Context, fn func(service.ConfigTx) error) error {
	s.edit()
	return s.Store.Change(ctx, fn)
}

// Runs outside serial, and those of trials, are searched; others are not.
func TestTroubleOfOutcomes(t *testing.T) {
	f := newTrial(t)
	f.look() // no run is open
	trouble := lanegate.Output{Head: "ERROR:  deadlock detected\n"}
	failed := lanegate.Ending{Outcome: lanegate.Failed, Duration: usual, Output: trouble}
	found := func(class string, e lanegate.Ending) int {
		t.Helper()
		job := f.mustSubmit(class).ID
		return len(f.mustEnd(f.mustStart("w", 4, job)[job], e).Attempt.Trouble)
	}
	if n := found("a", failed); n != 0 {
		t.Errorf("in serial: %d", n)
	}
	f.mustPromote("b", lanegate.LaneParallel, 1)
	spec := f.mustClass("b").ClassSpec
	spec.Phrases, spec.IgnorePhrases = []string{"vendor busy"}, []string{"rehearsal"}
	f.mustPut("b", spec)
	for _, tt := range []struct {
		name string
		e    lanegate.Ending
		want int
	}{
		{"failed", failed, 1},
		{"succeeded", lanegate.Ending{Outcome: lanegate.Succeeded, Duration: usual, Output: trouble}, 0},
		{"own phrase", lanegate.Ending{Outcome: lanegate.TimedOut, Duration: usual, Error: "vendor busy"}, 1},
		{"ignored", lanegate.Ending{Outcome: lanegate.TimedOut, Duration: usual, Error: "rehearsal: vendor busy"}, 0},
	} {
		f.mustPromote("b", lanegate.LaneParallel, 1) // the trouble before has demoted it
		if n := found("b", tt.e); n != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, n, tt.want)
		}
	}
}

func TestTryPhrases(t *testing.T) {
	f := newTrial(t)
	spec := f.mustClass("a").ClassSpec
	spec.IgnorePhrases = []string{"rehearsal"}
	f.mustPut("a", spec)
	run := func(e lanegate.Ending) string {
		job := f.mustSubmit("a").ID
		f.mustEnd(f.mustStart("w", 4, job)[job], e)
		return job
	}
	locked := run(lanegate.Ending{Outcome: lanegate.Succeeded, Output: lanegate.Output{Head: "x\ndatabase is locked\ny"}})
	run(lanegate.Ending{Outcome: lanegate.Succeeded, Output: lanegate.Output{Head: "rehearsal: database is locked"}})
	busy := run(lanegate.Ending{Outcome: lanegate.Failed, Error: "vendor busy"})
	for _, tt := range []struct {
		name     string
		trial    service.PhraseTrial
		hits     []string
		searched int
	}{
		{"as it is", service.PhraseTrial{}, []string{locked}, 8},
		{"new", service.PhraseTrial{Expressions: []string{"vendor busy"}}, []string{busy}, 8},
		{"the last one", service.PhraseTrial{Expressions: []string{"database"}, Last: 1}, nil, 1},
		{"two", service.PhraseTrial{Expressions: []string{"database", "busy"}, Last: 3}, []string{busy, locked}, 3},
	} {
		hits, searched, err := f.svc.TryPhrases(t.Context(), "a", tt.trial)
		f.must(err)
		var got []string
		for _, h := range hits {
			got = append(got, h.Job)
			if h.Attempt != 1 || h.EndedAt.IsZero() || h.Outcome == "" || len(h.Matches) != 1 {
				t.Errorf("%s: hit %+v", tt.name, h)
			}
		}
		if !slices.Equal(got, tt.hits) || searched != tt.searched {
			t.Errorf("%s: hits %v of %d, want %v of %d", tt.name, got, searched, tt.hits, tt.searched)
		}
	}
	_, _, err := f.svc.TryPhrases(t.Context(), "a", service.PhraseTrial{Expressions: []string{"ok", "("}, Last: -1})
	wantFields(t, err, "/expressions/1", "/last")
	_, _, err = f.svc.TryPhrases(t.Context(), "nobody", service.PhraseTrial{})
	wantError(t, err, lanegate.ErrClassNotFound)
}

package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var verificationCases = []testCase{
	{"a planned run is read back as it was asked for, payloads verbatim", func(e *env) {
		v := newVerification(lanegate.SourcePayloads, "a", "b")
		v.Spec.Members[0].Payloads = []json.RawMessage{
			json.RawMessage(`{"z": 1.0,  "a": "<&>", "n": 12345678901234567890}`), json.RawMessage("[ ]"),
		}
		v.Spec.Check = &lanegate.Run{Kind: lanegate.RunExec, Command: "count"}
		v.Spec.Reason, v.Actor = "try \x00 it", "ada"
		v.Evidence.Baseline = map[string]lanegate.Baseline{"a": {From: "run_log", N: 5, P50: 1.5}}
		v.Spec.HoldSerial, v.Spec.HoldReason = false, "the line must flow"
		e.plan(v)
		got := e.verification(v.ID)
		if got.CreatedAt.IsZero() {
			e.Error("no time of creation")
		}
		v.CreatedAt = got.CreatedAt
		if diff := cmp.Diff(v, got); diff != "" {
			e.Errorf("run (-planned +read):\n%s", diff)
		}
		equal(e, "first payload", string(got.Spec.Members[0].Payloads[0]), `{"z": 1.0,  "a": "<&>", "n": 12345678901234567890}`)
		e.change(func(tx service.ConfigTx) error {
			inside, err := tx.Verification(v.ID)
			if diff := cmp.Diff(v, inside); diff != "" {
				e.Errorf("run inside a change (-planned +read):\n%s", diff)
			}
			return err
		})
	}},
	{"a run that does not exist is not found, wherever it is named", func(e *env) {
		_, err := e.s.Verification(e.ctx(), newID())
		e.wantErr(err, lanegate.ErrVerificationNotFound)
		for what, fn := range map[string]func(tx service.ConfigTx) error{
			"read": func(tx service.ConfigTx) error { _, err := tx.Verification("x"); return err },
			"save": func(tx service.ConfigTx) error {
				return tx.SaveVerification(newVerification(lanegate.SourceQueue, "a"))
			},
			"cancel": func(tx service.ConfigTx) error { return tx.CancelTrial("x") },
		} {
			if err := e.s.Change(e.ctx(), fn); !errors.Is(err, lanegate.ErrVerificationNotFound) {
				e.Errorf("%s: %v", what, err)
			}
		}
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.DropFinding(7) }))
		runs, err := e.s.TrialRuns(e.ctx(), "x")
		if err != nil || len(runs) != 0 {
			e.Errorf("runs of nothing: %v, %v", runs, err)
		}
		if proofs := e.proofs("nobody"); len(proofs) != 0 {
			e.Errorf("proofs of nobody: %v", proofs)
		}
	}},
	{"lists are by class and state, newest first, in pages", func(e *env) {
		var all []string
		for i := range 7 {
			v := newVerification(lanegate.SourceQueue, "a", fmt.Sprint("b", i%2))
			e.plan(v)
			all = append(all, v.ID)
			if i < 4 {
				e.finish(v.ID, lanegate.VerdictInconclusive)
			}
		}
		slices.Reverse(all)
		list := func(f service.VerificationFilter) (ids []string) {
			runs, err := e.s.Verifications(e.ctx(), f)
			e.must(err)
			for _, v := range runs {
				ids = append(ids, v.ID)
			}
			return ids
		}
		for _, c := range []struct {
			what string
			f    service.VerificationFilter
			want []string
		}{
			{"all", service.VerificationFilter{}, all},
			{"of a member of all", service.VerificationFilter{Class: "a"}, all},
			{"of a member of some", service.VerificationFilter{Class: "b1"}, []string{all[1], all[3], all[5]}},
			{"of nobody", service.VerificationFilter{Class: "c"}, nil},
			{"planned", service.VerificationFilter{States: []lanegate.VerificationState{lanegate.VerificationPlanned}}, all[:3]},
			{"over", service.VerificationFilter{States: []lanegate.VerificationState{lanegate.VerificationDone, lanegate.VerificationAborted}}, all[3:]},
			{"both at once", service.VerificationFilter{Class: "b1", States: []lanegate.VerificationState{lanegate.VerificationDone}}, []string{all[3], all[5]}},
			{"a page", service.VerificationFilter{Limit: 3}, all[:3]},
			{"the next page", service.VerificationFilter{Limit: 3, Before: all[2]}, all[3:6]},
			{"the next page of a class", service.VerificationFilter{Limit: 1, Before: all[1], Class: "b1"}, all[3:4]},
			{"the end", service.VerificationFilter{Before: all[6]}, nil},
		} {
			if diff := cmp.Diff(c.want, list(c.f)); diff != "" {
				e.Errorf("%s (-want +got):\n%s", c.what, diff)
			}
		}
	}},
	{"open runs come in the order of their turns, the running one first", func(e *env) {
		a, b, c, d := newVerification(lanegate.SourceQueue, "a"), newVerification(lanegate.SourceQueue, "a"), newVerification(lanegate.SourceQueue, "a"), newVerification(lanegate.SourceQueue, "a")
		a.CreatedAt, b.CreatedAt, c.CreatedAt = stamp(3), stamp(1), stamp(2)
		d.CreatedAt = c.CreatedAt // of one instant the smaller id goes first
		for _, v := range []lanegate.Verification{a, b, c, d} {
			e.plan(v)
		}
		open := func() (ids []string) {
			e.change(func(tx service.ConfigTx) error {
				runs, err := tx.OpenVerifications()
				for _, v := range runs {
					ids = append(ids, v.ID)
				}
				return err
			})
			return ids
		}
		if diff := cmp.Diff([]string{b.ID, c.ID, d.ID, a.ID}, open()); diff != "" {
			e.Errorf("planned runs (-want +got):\n%s", diff)
		}
		e.save(a.ID, func(v *lanegate.Verification) {
			v.State, v.Owner, v.StartedAt = lanegate.VerificationRunning, "w", &a.CreatedAt
		})
		e.finish(c.ID, lanegate.VerdictPassed)
		if diff := cmp.Diff([]string{a.ID, b.ID, d.ID}, open()); diff != "" {
			e.Errorf("open runs (-want +got):\n%s", diff)
		}
		err := e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			v, err := tx.Verification(b.ID)
			if err != nil {
				return err
			}
			v.State, v.Owner, v.StartedAt = lanegate.VerificationRunning, "w2", &a.CreatedAt
			return tx.SaveVerification(v)
		})
		if err == nil {
			e.Error("two runs are running at once")
		}
		equal(e, "state of the second", e.verification(b.ID).State, lanegate.VerificationPlanned)
	}},
	{"evidence of 10,000 bytes a run is kept whole, and for good", func(e *env) {
		var ids []string
		for i := range 20 {
			v := newVerification(lanegate.SourceQueue, "a")
			e.plan(v)
			e.save(v.ID, func(v *lanegate.Verification) {
				now := stamp(i)
				v.State, v.Verdict, v.EndedAt, v.Round = lanegate.VerificationDone, lanegate.VerdictFailed, &now, len(v.Plan)
				v.Reasons = []lanegate.VerificationReason{{Code: "phrase", Class: "a", Message: "it said so"}}
				v.Evidence = longEvidence(now)
			})
			ids = append(ids, v.ID)
		}
		e.pruneAll()
		for i, id := range ids {
			v := e.verification(id)
			if diff := cmp.Diff(longEvidence(stamp(i)), v.Evidence); diff != "" {
				e.Fatalf("evidence (-saved +read):\n%s", diff)
			}
			if len(v.Reasons) != 1 || v.Reasons[0].Message != "it said so" || v.Round != len(v.Plan) {
				e.Errorf("run %+v", v)
			}
		}
		equal(e, "proofs after pruning", len(e.proofs("a")), 20)
	}},
	{"a passed run proves what its pairs really did, for each member", func(e *env) {
		v := newVerification(lanegate.SourceQueue, "a", "b", "c")
		e.plan(v)
		equal(e, "proofs of a planned run", len(e.proofs("a")), 0)
		ended := stamp(5)
		e.save(v.ID, func(v *lanegate.Verification) {
			v.State, v.Verdict, v.EndedAt = lanegate.VerificationDone, lanegate.VerdictPassed, &ended
			v.Evidence.Pairs = []lanegate.PairEvidence{
				{A: "a", B: "a", Proven: true, Copies: 3}, {A: "a", B: "b", Proven: true},
				{A: "b", B: "c", Proven: true}, {A: "a", B: "c"}, {A: "c", B: "c", Copies: 2},
			}
		})
		for class, want := range map[string]lanegate.Proof{
			"a": {Copies: 3, Beside: []string{"b"}},
			"b": {Copies: 1, Beside: []string{"a", "c"}},
			"c": {Copies: 1, Beside: []string{"b"}},
		} {
			want.Verification, want.Class, want.Fingerprint = v.ID, class, "fp-"+class
			want.Verdict, want.EndedAt = lanegate.VerdictPassed, ended
			if diff := cmp.Diff([]lanegate.Proof{want}, e.proofs(class)); diff != "" {
				e.Errorf("proofs of %s (-want +got):\n%s", class, diff)
			}
		}
	}},
	{"a verdict that turns later replaces the proofs and is newer than other runs'", func(e *env) {
		first, second := newVerification(lanegate.SourceQueue, "a", "b"), newVerification(lanegate.SourceQueue, "a")
		e.plan(first)
		e.plan(second)
		e.finish(first.ID, lanegate.VerdictPassed)
		e.finish(second.ID, lanegate.VerdictPassed)
		before := e.proofs("a")
		if len(before) != 2 || before[0].Verification != second.ID || before[1].Verification != first.ID {
			e.Fatalf("proofs %+v, want the newest first", before)
		}
		// Evidence alone, with the same verdict, is no new verdict.
		e.save(first.ID, func(v *lanegate.Verification) { v.Evidence.NotChecked = []string{"the moon"} })
		if diff := cmp.Diff(before, e.proofs("a")); diff != "" {
			e.Errorf("proofs after more evidence (-before +after):\n%s", diff)
		}
		ended := e.verification(first.ID).EndedAt
		e.save(first.ID, func(v *lanegate.Verification) { v.Verdict = lanegate.VerdictFailed })
		after := e.proofs("a")
		if len(after) != 2 || after[0].Verification != first.ID || after[0].Verdict != lanegate.VerdictFailed || after[0].Copies != 0 {
			e.Fatalf("proofs %+v, want the failed one first", after)
		}
		if latest, copies, _ := lanegate.Proven(after, "fp-a"); latest.Verdict != lanegate.VerdictFailed || copies != 0 {
			e.Errorf("proven: %+v, %d copies; a later failure voids what was proven before", latest, copies)
		}
		equal(e, "proofs of b", len(e.proofs("b")), 1)
		if got := e.verification(first.ID).EndedAt; !got.Equal(*ended) {
			e.Errorf("the run ended at %v, then at %v", ended, got)
		}
		e.save(first.ID, func(v *lanegate.Verification) { v.Verdict = lanegate.VerdictInconclusive })
		equal(e, "proofs of a without a verdict", len(e.proofs("a")), 1)
		equal(e, "proofs of b without a verdict", len(e.proofs("b")), 0)
	}},
	{"a run that is over stays over", func(e *env) {
		done, aborted := newVerification(lanegate.SourceQueue, "a"), newVerification(lanegate.SourceQueue, "a")
		e.plan(done)
		e.plan(aborted)
		e.finish(done.ID, lanegate.VerdictInconclusive)
		e.save(aborted.ID, func(v *lanegate.Verification) { v.State = lanegate.VerificationAborted })
		if v := e.verification(aborted.ID); v.EndedAt == nil || v.Verdict != "" {
			e.Errorf("aborted run %+v", v)
		}
		for id, states := range map[string][]lanegate.VerificationState{
			done.ID:    {lanegate.VerificationPlanned, lanegate.VerificationRunning, lanegate.VerificationAborted},
			aborted.ID: {lanegate.VerificationPlanned, lanegate.VerificationRunning, lanegate.VerificationDone},
		} {
			for _, state := range states {
				before := e.verification(id)
				err := e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
					v := before
					v.State, v.Owner, v.Verdict = state, "w", ""
					return tx.SaveVerification(v)
				})
				e.wantErr(err, lanegate.ErrVerificationOver)
				if diff := cmp.Diff(before, e.verification(id)); diff != "" {
					e.Errorf("a refused save to %s changed the run:\n%s", state, diff)
				}
			}
		}
	}},
	{"a failing change leaves no run, no proof and no finding's loss behind", func(e *env) {
		kept, boom := newVerification(lanegate.SourceQueue, "a"), errors.New("boom")
		e.plan(kept)
		added := newVerification(lanegate.SourceQueue, "a")
		err := e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			if err := tx.InsertVerification(added); err != nil {
				return err
			}
			v, err := tx.Verification(kept.ID)
			if err != nil {
				return err
			}
			v.State, v.Verdict = lanegate.VerificationDone, lanegate.VerdictPassed
			if err := tx.SaveVerification(v); err != nil {
				return err
			}
			if proofs, err := tx.Proofs("a"); err != nil || len(proofs) != 1 {
				e.Errorf("inside the change: proofs %v, %v", proofs, err)
			}
			return boom
		})
		e.wantErr(err, boom)
		_, err = e.s.Verification(e.ctx(), added.ID)
		e.wantErr(err, lanegate.ErrVerificationNotFound)
		equal(e, "state", e.verification(kept.ID).State, lanegate.VerificationPlanned)
		equal(e, "proofs", len(e.proofs("a")), 0)
	}},
}

// stamp is a time in the past that the database keeps exactly.
func stamp(minute int) time.Time {
	return time.Date(2024, 2, 29, 12, minute, 0, 123456000, time.UTC)
}

// newVerification is a plan of one round, each class once, with the hold.
func newVerification(source lanegate.VerificationSource, classes ...string) lanegate.Verification {
	v := lanegate.Verification{
		ID: newID(), State: lanegate.VerificationPlanned, Actor: "ada", Fingerprints: map[string]string{},
		Plan: []lanegate.Round{{Kind: lanegate.RoundBeside, Classes: classes}},
		Spec: lanegate.VerificationSpec{
			Source: source, Rounds: 1, HoldSerial: true, MaxHold: lanegate.DefaultMaxHold,
			Criteria: lanegate.Criteria{MaxSlowdown: lanegate.DefaultMaxSlowdown, MinOverlap: lanegate.DefaultMinOverlap},
		},
	}
	for _, class := range classes {
		if _, ok := v.Fingerprints[class]; ok {
			continue
		}
		v.Fingerprints[class] = "fp-" + class
		v.Spec.Members = append(v.Spec.Members, lanegate.VerificationMember{Class: class, Copies: 1})
	}
	return v
}

// longEvidence is about 10,000 bytes, with what JSON and databases trip over.
func longEvidence(now time.Time) lanegate.Evidence {
	line := strings.Repeat("too many connections <&> ÿ \x00 \u2028 ", 30)
	ev := lanegate.Evidence{NotChecked: []string{"output beyond 64 KiB"}}
	for i := range 10 {
		ev.Rounds = append(ev.Rounds, lanegate.RoundEvidence{
			Round: i + 1, Kind: lanegate.RoundBeside, StartedAt: now, EndedAt: now,
			Runs: []lanegate.RunEvidence{{
				Job: "j", Attempt: 1, Class: "a", StartedAt: now, Seconds: 1.25, Outcome: lanegate.Failed,
				Phrases: []lanegate.PhraseMatch{{Phrase: "too many", Line: line}}, Measured: map[string]int{"db": 7},
			}},
		})
	}
	return ev
}

func (e *env) change(fn func(tx service.ConfigTx) error) {
	e.Helper()
	e.must(e.s.Change(e.ctx(), fn))
}

// plan adds a run.
func (e *env) plan(v lanegate.Verification) {
	e.Helper()
	e.change(func(tx service.ConfigTx) error { return tx.InsertVerification(v) })
}

func (e *env) verification(id string) lanegate.Verification {
	e.Helper()
	v, err := e.s.Verification(e.ctx(), id)
	e.must(err)
	return v
}

// save edits a run in one change.
func (e *env) save(id string, edit func(v *lanegate.Verification)) {
	e.Helper()
	e.change(func(tx service.ConfigTx) error {
		v, err := tx.Verification(id)
		if err != nil {
			return err
		}
		edit(&v)
		return tx.SaveVerification(v)
	})
}

// finish ends a run with a verdict.
func (e *env) finish(id string, verdict lanegate.Verdict) {
	e.Helper()
	e.save(id, func(v *lanegate.Verification) { v.State, v.Verdict = lanegate.VerificationDone, verdict })
}

// proofs reads a class's proofs in both ways, which must agree.
func (e *env) proofs(class string) []lanegate.Proof {
	e.Helper()
	proofs, err := e.s.Proofs(e.ctx(), class)
	e.must(err)
	e.change(func(tx service.ConfigTx) error {
		inside, err := tx.Proofs(class)
		if diff := cmp.Diff(proofs, inside); diff != "" {
			e.Errorf("proofs of %s (-outside +inside a change):\n%s", class, diff)
		}
		return err
	})
	return proofs
}

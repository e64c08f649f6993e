package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// mustPlan plans a verification run of one round with the hold.
func mustPlan(t *testing.T, s *Store, source lanegate.VerificationSource, classes ...string) string {
	t.Helper()
	v := lanegate.Verification{
		ID: newID(t), Actor: "ada", Plan: []lanegate.Round{{Kind: lanegate.RoundBeside, Classes: classes}},
		Spec: lanegate.VerificationSpec{Source: source, HoldSerial: true, MaxHold: lanegate.DefaultMaxHold},
	}
	seen := map[string]bool{}
	for _, class := range classes {
		if !seen[class] {
			seen[class] = true
			v.Spec.Members = append(v.Spec.Members, lanegate.VerificationMember{Class: class, Copies: 1})
		}
	}
	if err := s.Change(t.Context(), func(tx service.ConfigTx) error { return tx.InsertVerification(v) }); err != nil {
		t.Fatal(err)
	}
	return v.ID
}

func mustVerification(t *testing.T, s *Store, id string) lanegate.Verification {
	t.Helper()
	v, err := s.Verification(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A kill between any two steps of a trial leaves a run that is planned, or one
// that ends with its dead owner: never a hold, never half a round.
func TestTrialAfterCrash(t *testing.T) {
	for _, source := range []lanegate.VerificationSource{lanegate.SourceQueue, lanegate.SourcePayloads} {
		for step, taken := range []bool{false, true, true} {
			t.Run(fmt.Sprintf("%s, step %d", source, step), func(t *testing.T) {
				s := newStore(t, Options{})
				addClasses(t, s, 3)
				waiting := mustSubmit(t, s, "class-002").ID
				id := mustPlan(t, s, source, "class-000", "class-001")
				if source == lanegate.SourceQueue {
					mustSubmit(t, s, "class-000")
					mustSubmit(t, s, "class-001")
				}
				mustRegister(t, s, "w0")
				first := mustAdmit(t, s, "w0").Grants // the waiting job stands before the trial
				if len(first) != 1 || first[0].Job.ID != waiting {
					t.Fatalf("granted %+v, want %s", first, waiting)
				}
				if step > 0 {
					if _, err := s.EndAttempt(t.Context(), first[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
						t.Fatal(err)
					}
					gang := mustAdmit(t, s, "w0").Grants
					if len(gang) != 2 {
						t.Fatalf("granted %+v, want the round", gang)
					}
					if step > 1 {
						if _, err := s.EndAttempt(t.Context(), gang[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
							t.Fatal(err)
						}
					}
				}
				s = newStore(t, Options{Path: crashed(t, s)})
				if _, err := s.ReapWorker(t.Context(), "w0", 0); err != nil {
					t.Fatal(err)
				}
				v := mustVerification(t, s, id)
				if !taken && v.State != lanegate.VerificationPlanned {
					t.Errorf("run %+v, want it planned still", v)
				}
				if taken && (v.Verdict != lanegate.VerdictInconclusive || len(v.Reasons) != 1 || v.Reasons[0].Code != ownerLost) {
					t.Errorf("run %+v, want it ended with its owner", v)
				}
				in, err := s.Snapshot(t.Context())
				if err != nil || in.Hold != "" || len(in.InFlight) != 0 {
					t.Errorf("hold %q, in flight %v, %v", in.Hold, in.InFlight, err)
				}
			})
		}
	}
}

// C15: a run whose owner's row is gone ends, too.
func TestTrialOfNobodyEnds(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	id := mustPlan(t, s, lanegate.SourcePayloads, "class-000")
	mustRegister(t, s, "w")
	mustAdmit(t, s, "w")
	if _, err := s.write.Exec("DELETE FROM workers"); err != nil {
		t.Fatal(err)
	}
	ended, err := s.ReapOrphans(t.Context())
	if err != nil || len(ended) != 1 || ended[0].Job.State != lanegate.StateFailed {
		t.Errorf("ended %+v, %v", ended, err)
	}
	if v := mustVerification(t, s, id); v.Verdict != lanegate.VerdictInconclusive || v.Reasons[0].Code != ownerLost {
		t.Errorf("run %+v", v)
	}
}

// A round of which one run can't start starts none, whatever the cause; when the
// database gives up, the trial is not taken either.
func TestRoundStartsWholeOrNotAtAll(t *testing.T) {
	for name, c := range map[string]struct {
		source lanegate.VerificationSource
		breaks string
		taken  bool
	}{
		"a payload is missing": {lanegate.SourceQueue, "DELETE FROM job_payloads WHERE job_id = (SELECT max(id) FROM jobs)", true},
		"a row is refused": {lanegate.SourcePayloads, `CREATE TRIGGER broken BEFORE INSERT ON attempts WHEN new.class = 'class-001'
			BEGIN SELECT RAISE(ABORT, 'broken'); END`, true},
		"the transaction is lost": {lanegate.SourcePayloads, `CREATE TRIGGER broken BEFORE INSERT ON attempts WHEN new.class = 'class-001'
			BEGIN SELECT RAISE(ROLLBACK, 'broken'); END`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{})
			addClasses(t, s, 2)
			id := mustPlan(t, s, c.source, "class-000", "class-001")
			mustRegister(t, s, "w")
			if c.source == lanegate.SourceQueue {
				mustSubmit(t, s, "class-000")
				mustSubmit(t, s, "class-001")
			}
			if _, err := s.write.Exec(c.breaks); err != nil {
				t.Fatal(err)
			}
			res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 8, SerialFree: true})
			if (err == nil) != c.taken || len(res.Grants) != 0 {
				t.Errorf("granted %+v, %v", res.Grants, err)
			}
			v := mustVerification(t, s, id)
			if v.Started || v.Holds() != c.taken || (v.Owner == "w") != c.taken {
				t.Errorf("run %+v; taken: want %v", v, c.taken)
			}
			in, err := s.Snapshot(t.Context())
			if err != nil || len(in.InFlight) != 0 || len(in.Due) != len(v.Spec.Members) && c.source == lanegate.SourceQueue {
				t.Errorf("in flight %v, due %v, %v", in.InFlight, in.Due, err)
			}
		})
	}
}

// As long as no verification run is open, admission asks nothing about them: one
// that comes by is seen with the next version only, as every change makes one.
func TestAdmissionCostsNothingWithoutTrials(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	seen := func() bool {
		in, err := s.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return in.Trial != nil
	}
	change := func(fn func(tx service.ConfigTx) error) {
		if err := s.Change(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	id := mustPlan(t, s, lanegate.SourceQueue, "class-000")
	if !seen() {
		t.Error("a new trial is not seen")
	}
	change(func(tx service.ConfigTx) error {
		v, err := tx.Verification(id)
		if err != nil {
			return err
		}
		v.State = lanegate.VerificationAborted
		return tx.SaveVerification(v)
	})
	if seen() {
		t.Error("a trial that is over is seen")
	}
	if _, err := s.write.Exec("UPDATE verification_runs SET state = 'planned', ended_at = NULL"); err != nil {
		t.Fatal(err)
	}
	if seen() {
		t.Error("trials are looked for though none was there at this version")
	}
	change(func(service.ConfigTx) error { return nil })
	if !seen() {
		t.Error("the next version doesn't look")
	}
}

func TestVerificationStatementsUseTheirIndexes(t *testing.T) {
	s := newStore(t, Options{})
	byClass, args := listVerifications(service.VerificationFilter{Class: "a", Before: "x"})
	for name, c := range map[string]struct {
		sql, want string
		args      []any
	}{
		"trial":      {sqlListTrials, "USING INDEX verification_runs_open_idx", nil},
		"any open":   {sqlFindOpenVerification, "verification_runs_open_idx", nil},
		"an owner's": {sqlListTrialsOf, "verification_runs_running_idx", nil},
		"orphans":    {sqlListOrphanTrials, "verification_runs_running_idx", nil},
		"runs":       {sqlListTrialRuns, "attempts_verification_idx (verification=?)", nil},
		"counts":     {sqlCountTrialRuns, "attempts_verification_idx (verification=?)", nil},
		"made up":    {sqlListMadeUp, "attempts_verification_idx (verification=?)", nil},
		"by class":   {byClass, "verification_members_class_idx (class=?", args},
	} {
		if got := plan(t, s, c.sql, c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%s: plan\n%s\nlacks %q", name, got, c.want)
		}
	}
}

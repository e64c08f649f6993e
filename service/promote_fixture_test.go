package service_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// trial is a verification run of these classes with these copies, as they are
// now, that ended now with this verdict; all pairs ran at once.
func (f *fixture) trial(verdict lanegate.Verdict, copies map[string]int) string {
	f.t.Helper()
	return f.trialAs(verdict, copies, func(*lanegate.Verification) {})
}

// trialAs is trial with the run changed before it ends. A run left without a
// state that is over stays planned.
func (f *fixture) trialAs(verdict lanegate.Verdict, copies map[string]int, edit func(*lanegate.Verification)) string {
	f.t.Helper()
	v := lanegate.Verification{
		ID: uuid.Must(uuid.NewV7()).String(), State: lanegate.VerificationDone, Verdict: verdict, Actor: "ann",
		Spec:         lanegate.VerificationSpec{Source: lanegate.SourcePayloads, Rounds: 1},
		Fingerprints: map[string]string{},
	}
	classes := slices.Sorted(maps.Keys(copies))
	for i, id := range classes {
		v.Spec.Members = append(v.Spec.Members, lanegate.VerificationMember{Class: id, Copies: copies[id]})
		v.Fingerprints[id] = f.mustClass(id).Fingerprint
		if copies[id] > 1 {
			v.Evidence.Pairs = append(v.Evidence.Pairs, lanegate.PairEvidence{A: id, B: id, Proven: true, Copies: copies[id]})
		}
		for _, other := range classes[i+1:] {
			v.Evidence.Pairs = append(v.Evidence.Pairs, lanegate.PairEvidence{A: id, B: other, Proven: true})
		}
	}
	edit(&v)
	f.must(f.svc.ChangeForEvidence(f.t.Context(), func(tx service.ConfigTx) error {
		now := tx.Now()
		v.CreatedAt = now
		if err := tx.InsertVerification(v); err != nil {
			return err
		}
		if !v.State.Final() {
			return nil
		}
		if err := tx.SaveVerification(v); err != nil || v.Verdict != lanegate.VerdictFailed {
			return err
		}
		return service.DemoteVoided(tx, v)
	}))
	return v.ID
}

func passed(classes ...string) (lanegate.Verdict, map[string]int) {
	return lanegate.VerdictPassed, twoOf(classes...)
}

func failed(classes ...string) (lanegate.Verdict, map[string]int) {
	return lanegate.VerdictFailed, twoOf(classes...)
}

// twoOf is a run with two copies of each class.
func twoOf(classes ...string) map[string]int {
	m := map[string]int{}
	for _, c := range classes {
		m[c] = 2
	}
	return m
}

// to is the admin's promotion to a lane.
func to(lane string, edits ...func(*service.PromoteOptions)) service.PromoteOptions {
	o := service.PromoteOptions{ChangeOptions: admin, Lane: lane}
	for _, edit := range edits {
		edit(&o)
	}
	return o
}

func upTo(n int) func(*service.PromoteOptions) {
	return func(o *service.PromoteOptions) { o.MaxInFlight = n }
}

func by(run string) func(*service.PromoteOptions) {
	return func(o *service.PromoteOptions) { o.Verification = run }
}

func accepting(o *service.PromoteOptions) { o.AcceptWidth = true }

func (f *fixture) promote(o service.PromoteOptions, classes ...string) service.Promotion {
	f.t.Helper()
	p, err := f.svc.Promote(f.t.Context(), classes, o)
	f.must(err)
	return p
}

// wantUnmet checks that err is the gate's refusal for exactly these conditions,
// "code class" each, and returns them.
func wantUnmet(t testing.TB, err error, want ...string) []service.Condition {
	t.Helper()
	e := wantError(t, err, lanegate.ErrPromotionRefused)
	conditions, ok := e.Details["conditions"].([]service.Condition)
	if !ok {
		t.Fatalf("conditions are %T", e.Details["conditions"])
	}
	var got []string
	for _, c := range conditions {
		name := c.Code
		if c.Class != "" {
			name += " " + c.Class
		}
		got = append(got, name)
		if c.Message == "" {
			t.Errorf("%s has no message", name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("unmet %q, want %q", got, want)
	}
	return conditions
}

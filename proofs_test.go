package lanegate

import (
	"slices"
	"testing"
	"time"
)

func TestVerificationProofs(t *testing.T) {
	ended := time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC)
	v := Verification{
		ID: "v", State: VerificationDone, Verdict: VerdictPassed, EndedAt: &ended,
		Fingerprints: map[string]string{"a": "1", "b": "2", "c": "3"},
		Spec:         VerificationSpec{Members: []VerificationMember{{Class: "c"}, {Class: "a"}, {Class: "b"}}},
		Evidence: Evidence{Pairs: []PairEvidence{
			{A: "a", B: "a", Proven: true, Copies: 2}, {A: "b", B: "a", Proven: true}, {A: "a", B: "b", Proven: true},
			{A: "a", B: "c"}, {A: "b", B: "b", Copies: 4}, // too little overlap
		}},
	}
	want := []Proof{
		{Verification: "v", Class: "a", Fingerprint: "1", Verdict: VerdictPassed, Copies: 2, Beside: []string{"b"}, EndedAt: ended},
		{Verification: "v", Class: "b", Fingerprint: "2", Verdict: VerdictPassed, Copies: 1, Beside: []string{"a"}, EndedAt: ended},
		{Verification: "v", Class: "c", Fingerprint: "3", Verdict: VerdictPassed, Copies: 1, EndedAt: ended},
	}
	same := func(a, b Proof) bool {
		beside := slices.Equal(a.Beside, b.Beside)
		return beside && a.Verification == b.Verification && a.Class == b.Class && a.Fingerprint == b.Fingerprint &&
			a.Verdict == b.Verdict && a.Copies == b.Copies && a.EndedAt.Equal(b.EndedAt)
	}
	if got := v.Proofs(); !slices.EqualFunc(got, want, same) {
		t.Errorf("passed: %+v, want %+v", got, want)
	}
	v.Verdict = VerdictFailed
	for _, p := range v.Proofs() {
		if p.Verdict != VerdictFailed || p.Copies != 0 || p.Beside != nil || p.Fingerprint != v.Fingerprints[p.Class] {
			t.Errorf("failed: %+v", p)
		}
	}
	for _, none := range []Verification{
		{State: VerificationDone, Verdict: VerdictInconclusive, Spec: v.Spec}, {State: VerificationAborted, Spec: v.Spec},
		{State: VerificationRunning, Verdict: VerdictPassed, Spec: v.Spec}, {State: VerificationPlanned, Spec: v.Spec},
	} {
		if got := none.Proofs(); got != nil {
			t.Errorf("%s, %s: %+v, want no proofs", none.State, none.Verdict, got)
		}
	}
}

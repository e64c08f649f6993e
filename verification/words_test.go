package verification_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

func drawn(class string, from, to float64, outcome lanegate.Outcome) lanegate.RunEvidence {
	r := lanegate.RunEvidence{Job: class, Class: class, StartedAt: at(from), Seconds: to - from, Outcome: outcome}
	if outcome != "" {
		end := at(to)
		r.EndedAt = &end
	}
	return r
}

func TestPicture(t *testing.T) {
	for _, tt := range []struct {
		name string
		runs []lanegate.RunEvidence
		want string
	}{
		{"nobody", nil, ""},
		{"a round", []lanegate.RunEvidence{
			drawn("weather", 0, 30, lanegate.Succeeded), drawn("pos-sales", 0, 60, lanegate.Succeeded),
			drawn("pos-sales", 20, 45, lanegate.Failed), drawn("stock", 59, 60, lanegate.TimedOut),
		}, `
pos-sales |============================================|   0.0 -  60.0 s
weather   |=====================|                          0.0 -  30.0 s
pos-sales                |=================X              20.0 -  45.0 s
stock                                                 |X  59.0 -  60.0 s`},
		{"it goes on", []lanegate.RunEvidence{
			drawn("heavy", 0, 1800, ""), drawn("a-class-with-a-name-as-long-as-it-can-be", 600, 700, lanegate.Succeeded),
		}, `
heavy                    |===========================>   0.0 -  30.0 min
a-class-with-a-name-as-…          ||                    10.0 -  11.7 min`},
		{"at one moment", []lanegate.RunEvidence{drawn("a", 0, 0, lanegate.Succeeded)}, `
a ||                                                       0.0 -   0.0 s`},
		{"short", []lanegate.RunEvidence{drawn("a", 0, .5, lanegate.Succeeded), drawn("b", .2, .3, lanegate.Succeeded)}, `
a |===================================================|     0 -   500 ms
b                     |==========|                        200 -   300 ms`},
		{"days", []lanegate.RunEvidence{drawn("a", 0, 36*3600, lanegate.Lost)}, `
a |====================================================X   0.0 -  36.0 h`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := verification.Picture(tt.runs, verification.PictureWidth)
			text := strings.Join(got, "\n")
			if text != "" {
				text = "\n" + text
			}
			if diff := cmp.Diff(tt.want, text); diff != "" {
				t.Errorf("picture (-want +got):\n%s", diff)
			}
			slices.Reverse(tt.runs)
			if again := verification.Picture(tt.runs, verification.PictureWidth); tt.name != "a round" && !slices.Equal(again, got) {
				t.Errorf("in another order:\n%s", strings.Join(again, "\n"))
			}
		})
	}
}

func TestPictureWidth(t *testing.T) {
	for n := range 400 {
		runs := []lanegate.RunEvidence{
			drawn(strings.Repeat("x", 1+n%63), float64(n%7), float64(n), lanegate.Succeeded),
			drawn("y", 0, float64(n*n), ""),
		}
		for _, line := range verification.Picture(runs, verification.PictureWidth) {
			if w := utf8.RuneCountInString(line); w > verification.PictureWidth {
				t.Fatalf("%d columns: %q", w, line)
			}
		}
	}
}

func TestWords(t *testing.T) {
	spec := lanegate.VerificationSpec{Members: []lanegate.VerificationMember{{Class: "pos-sales", Copies: 2}, {Class: "weather", Copies: 1}}}
	plan := []lanegate.Round{{Kind: lanegate.RoundBeside, Classes: []string{"pos-sales", "pos-sales", "weather"}}}
	held := zero.Add(time.Second)
	pairs := []lanegate.PairEvidence{{A: "pos-sales", B: "pos-sales", Proven: true, Copies: 2}, {A: "pos-sales", B: "weather", Proven: true}}
	for want, v := range map[string]lanegate.Verification{
		"Waits for its turn: pos-sales × 2 and weather in 1 round.":                       {State: lanegate.VerificationPlanned},
		"Round 1 of 1 waits to start: pos-sales × 2 and weather.":                         {State: lanegate.VerificationRunning},
		"Round 1 of 1 is running: pos-sales × 2 and weather, the serial line is held.":    {State: lanegate.VerificationRunning, Started: true, HeldAt: &held},
		"All rounds of pos-sales × 2 and weather are over; the verdict is being written.": {State: lanegate.VerificationRunning, Round: 1},
		"Aborted: aborted by ann. It says nothing about pos-sales × 2 and weather.":       {State: lanegate.VerificationAborted, Reasons: []lanegate.VerificationReason{{Message: "aborted by ann"}}},
		"Over, without a verdict.": {State: lanegate.VerificationDone},
		"Inconclusive: too long. Nothing is proven and nothing is taken back; ask for a new run when you want to repeat it.": {State: lanegate.VerificationDone, Verdict: lanegate.VerdictInconclusive, Reasons: []lanegate.VerificationReason{{Message: "too long."}}},
		"Failed: a deadlock (and 1 more reason). Earlier proofs of pos-sales × 2 and weather at these fingerprints no longer count.": {State: lanegate.VerificationDone, Verdict: lanegate.VerdictFailed,
			Reasons: []lanegate.VerificationReason{{Message: "a deadlock"}, {Message: "slow"}}},
		"Passed: 2 copies of pos-sales ran at once, and pos-sales and weather ran beside each other without a sign of trouble. What was not checked is listed with the evidence.": {
			State: lanegate.VerificationDone, Verdict: lanegate.VerdictPassed, Evidence: lanegate.Evidence{Pairs: pairs}},
	} {
		v.Spec, v.Plan = spec, plan
		if got := verification.Words(v); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

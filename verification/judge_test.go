package verification_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

var zero = time.Date(2026, 1, 31, 2, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }

// ran is a good run of round 1 from second to second; to below 0 means in flight.
func ran(class string, from, to float64, edits ...func(*verification.Run)) verification.Run {
	r := verification.Run{Job: class + "-job", Attempt: 1, Class: class, Round: 1, StartedAt: at(from), Declared: lanegate.Units{"db": 5}}
	if to >= 0 {
		end := at(to)
		r.EndedAt, r.Duration, r.Outcome = &end, end.Sub(r.StartedAt), lanegate.Succeeded
	}
	for _, edit := range edits {
		edit(&r)
	}
	return r
}

func inRound(n int) func(*verification.Run) { return func(r *verification.Run) { r.Round = n } }

// pairCase is a beside b, by default criteria, with baselines of 60 s.
func pairCase(runs ...verification.Run) verification.Case {
	base := lanegate.Baseline{From: verification.FromRunLog, N: 5, P50: 60, P90: 60, Max: 60}
	return verification.Case{
		Spec: lanegate.VerificationSpec{
			Members:  []lanegate.VerificationMember{{Class: "a", Copies: 1}, {Class: "b", Copies: 1}},
			Source:   lanegate.SourceQueue,
			Criteria: lanegate.Criteria{MaxSlowdown: 2, MinOverlap: .5},
		},
		Plan:     []lanegate.Round{{Kind: lanegate.RoundBeside, Classes: []string{"a", "b"}}},
		Runs:     runs,
		Evidence: lanegate.Evidence{Baseline: map[string]lanegate.Baseline{"a": base, "b": base}},
		Now:      at(1000),
	}
}

func codes(j verification.Judgement) []string {
	var out []string
	for _, r := range j.Reasons {
		out = append(out, strings.TrimRight(r.Code+" "+r.Class, " "))
	}
	return out
}

// over is the case after its last round.
func over(c verification.Case) verification.Case { c.Round = len(c.Plan); return c }

func pairOf(j verification.Judgement, a, b string) lanegate.PairEvidence {
	for _, p := range j.Evidence.Pairs {
		if p.A == a && p.B == b {
			return p
		}
	}
	return lanegate.PairEvidence{}
}

func TestOverlap(t *testing.T) {
	lag := func(d time.Duration) func(*verification.Run) {
		return func(r *verification.Run) { r.Duration = r.EndedAt.Sub(r.StartedAt) - d }
	}
	window := func(c *verification.Case) { c.Spec.Criteria.Window = lanegate.Duration(10 * time.Second) }
	failed := func(r *verification.Run) { r.Outcome = lanegate.Deferred }
	for _, tt := range []struct {
		name            string
		runs            []verification.Run
		edit            func(*verification.Case)
		overlap, needed float64
		proven          bool
	}{
		{"whole", []verification.Run{ran("a", 0, 60), ran("b", 0, 60)}, nil, 60, 30, true},
		{"the shorter within", []verification.Run{ran("a", 0, 60), ran("b", 20, 24)}, nil, 4, 2, true},
		{"just half", []verification.Run{ran("a", 0, 60), ran("b", 30, 90)}, nil, 30, 30, true},
		{"less than half", []verification.Run{ran("a", 0, 60), ran("b", 31, 91)}, nil, 29, 30, false},
		{"one after the other", []verification.Run{ran("a", 0, 60), ran("b", 60, 61)}, nil, 0, .5, false},
		{"a slow start is taken off", []verification.Run{ran("a", 0, 10, lag(time.Second)), ran("b", 0, 2)}, nil, 1, 1, true},
		{"a late record proves nothing", []verification.Run{ran("a", 0, 600, lag(590*time.Second)), ran("b", 300, 400)}, nil, 0, 5, false},
		{"the window is enough", []verification.Run{ran("a", 0, 60), ran("b", 45, 105)}, window, 15, 10, true},
		{"in flight, with the window", []verification.Run{ran("a", 0, -1), ran("b", 900, -1)}, window, 100, 10, true},
		{"in flight, without", []verification.Run{ran("a", 0, -1), ran("b", 900, -1)}, nil, 100, 0, false},
		{"one in flight", []verification.Run{ran("a", 0, -1), ran("b", 900, 990)}, nil, 90, 45, true},
		{"deferred", []verification.Run{ran("a", 0, 60, failed), ran("b", 0, 60)}, nil, 0, 0, false},
		{"the best of two rounds", []verification.Run{ran("a", 0, 60), ran("b", 59, 119), ran("a", 200, 260, inRound(2)), ran("b", 210, 270, inRound(2))}, nil, 50, 30, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := pairCase(tt.runs...)
			if tt.edit != nil {
				tt.edit(&c)
			}
			got := pairOf(verification.Judge(over(c)), "a", "b")
			want := lanegate.PairEvidence{A: "a", B: "b", Overlap: tt.overlap, Needed: tt.needed, Proven: tt.proven}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestCopiesAtOnce(t *testing.T) {
	of := func(wanted int, runs ...verification.Run) lanegate.PairEvidence {
		c := pairCase(runs...)
		c.Spec.Members = []lanegate.VerificationMember{{Class: "a", Copies: wanted}}
		return pairOf(verification.Judge(over(c)), "a", "a")
	}
	for _, tt := range []struct {
		name   string
		got    lanegate.PairEvidence
		copies int
		proven bool
	}{
		{"two", of(2, ran("a", 0, 60), ran("a", 1, 61)), 2, true},
		{"three asked, two seen", of(3, ran("a", 0, 60), ran("a", 1, 61), ran("a", 59, 119)), 2, false},
		{"three", of(3, ran("a", 0, 60), ran("a", 1, 61), ran("a", 2, 62)), 3, true},
		{"more than asked", of(2, ran("a", 0, 60), ran("a", 1, 61), ran("a", 2, 62)), 3, true},
		{"never three at one moment", of(3, ran("a", 0, 60), ran("a", 30, 90), ran("a", 60, 120)), 2, false},
		{"one after the other", of(2, ran("a", 0, 60), ran("a", 60, 120)), 1, false},
	} {
		if tt.got.Copies != tt.copies || tt.got.Proven != tt.proven {
			t.Errorf("%s: %+v", tt.name, tt.got)
		}
	}
}

func TestRoundOver(t *testing.T) {
	window := lanegate.Duration(10 * time.Second)
	for _, tt := range []struct {
		name   string
		window lanegate.Duration
		now    float64
		runs   []verification.Run
		want   bool
	}{
		{"not begun", 0, 5, nil, false},
		{"all in flight", 0, 5, []verification.Run{ran("a", 0, -1), ran("b", 0, -1)}, false},
		{"one in flight", 0, 5, []verification.Run{ran("a", 0, 4), ran("b", 0, -1)}, false},
		{"all ended", 0, 5, []verification.Run{ran("a", 0, 4), ran("b", 0, 5)}, true},
		{"window open", window, 9, []verification.Run{ran("a", 0, -1), ran("b", 0, -1)}, false},
		{"window closed", window, 10, []verification.Run{ran("a", 0, -1), ran("b", 0, -1)}, true},
		{"the short one has ended", window, 3, []verification.Run{ran("a", 0, -1), ran("b", 0, 2)}, true},
		{"a long one of an earlier round", window, 105, []verification.Run{ran("a", 0, -1, inRound(0)), ran("b", 100, -1)}, false},
	} {
		c := pairCase(tt.runs...)
		c.Spec.Criteria.Window, c.Now = tt.window, at(tt.now)
		if got := verification.Judge(c).RoundOver; got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	c := pairCase(ran("a", 0, -1))
	c.Plan[0] = lanegate.Round{Kind: lanegate.RoundBaseline, Classes: []string{"a"}}
	for now, want := range map[float64]bool{9: false, 10: true} {
		c.Spec.Criteria.Window, c.Now = window, at(now)
		if got := verification.Judge(c).RoundOver; got != want {
			t.Errorf("alone for %v of a window of %v: over is %v", now, window, got)
		}
	}
	c.Spec.Criteria.Window, c.Now = 0, at(1000)
	if verification.Judge(c).RoundOver {
		t.Error("without a window a baseline is over before its end")
	}
}

// A run too long to wait for that was started alone is evidence of the rounds into
// which it goes on: of overlap, and of trouble. It is no baseline.
func TestLongBaselineGoesOn(t *testing.T) {
	long := func(edits ...func(*verification.Run)) verification.Case {
		c := pairCase(ran("a", 0, -1, edits...), ran("b", 20, 80, inRound(2)), ran("b", 100, 160, inRound(3)))
		c.Spec.Source, c.Spec.Criteria.Window, c.Evidence.Baseline = lanegate.SourcePayloads, lanegate.Duration(10*time.Second), nil
		c.Plan = []lanegate.Round{
			{Kind: lanegate.RoundBaseline, Classes: []string{"a"}}, {Kind: lanegate.RoundBaseline, Classes: []string{"b"}},
			{Kind: lanegate.RoundBeside, Classes: []string{"a", "b"}},
		}
		c.Round, c.Now = 3, at(170)
		return c
	}
	j := verification.Judge(long())
	if j.Verdict != lanegate.VerdictPassed || len(j.Evidence.Pairs) != 1 || !j.Evidence.Pairs[0].Proven {
		t.Errorf("%s %+v, pairs %+v", j.Verdict, j.Reasons, j.Evidence.Pairs)
	}
	if _, ok := j.Evidence.Baseline["a"]; ok || !slices.Contains(j.Evidence.NotChecked, "a was not compared with how long it takes alone.") {
		t.Errorf("baseline %+v, not checked %q", j.Evidence.Baseline, j.Evidence.NotChecked)
	}
	j = verification.Judge(long(func(r *verification.Run) {
		end := at(150)
		r.EndedAt, r.Outcome = &end, lanegate.Failed
	}))
	if diff := cmp.Diff([]string{"run_failed a"}, codes(j)); diff != "" || j.Verdict != lanegate.VerdictFailed {
		t.Errorf("%s:\n%s", j.Verdict, diff)
	}
}

func TestJudge(t *testing.T) {
	with := func(edit func(*verification.Run)) []verification.Run {
		return []verification.Run{ran("a", 0, 60, edit), ran("b", 0, 60)}
	}
	code := 3
	for _, tt := range []struct {
		name    string
		runs    []verification.Run
		edit    func(*verification.Case)
		verdict lanegate.Verdict
		codes   []string
		says    string
	}{
		{"good", with(func(*verification.Run) {}), nil, lanegate.VerdictPassed, nil, ""},
		{"failed", with(func(r *verification.Run) { r.Outcome, r.ExitCode, r.Error = lanegate.Failed, &code, "boom\nmore" }), nil, lanegate.VerdictFailed, []string{"run_failed a"}, "exit code 3: boom"},
		{"http", with(func(r *verification.Run) { r.Outcome, r.Status = lanegate.Failed, 500 }), nil, lanegate.VerdictFailed, []string{"run_failed a"}, "HTTP status 500"},
		{"killed", with(func(r *verification.Run) { r.Outcome, r.Signal = lanegate.Failed, "SIGKILL" }), nil, lanegate.VerdictFailed, []string{"run_failed a"}, "SIGKILL"},
		{"phrase before failure", with(func(r *verification.Run) {
			r.Outcome, r.Trouble = lanegate.Failed, []lanegate.PhraseMatch{{Phrase: "x", Line: "deadlock detected"}}
		}), nil, lanegate.VerdictFailed, []string{"phrase a", "run_failed a"}, "deadlock detected"},
		{"measured", with(func(r *verification.Run) { r.Measured = map[string]int{"db": 6, "other": 1} }), nil, lanegate.VerdictFailed, []string{"units_above_declared a", "units_above_declared a"}, "used 6 of db at its peak and declares 5"},
		{"measured as declared", with(func(r *verification.Run) { r.Measured = map[string]int{"db": 5} }), nil, lanegate.VerdictPassed, nil, ""},
		{"lost", with(func(r *verification.Run) { r.Outcome = lanegate.Lost }), nil, lanegate.VerdictInconclusive, []string{"run_not_finished a", "overlap a"}, ""},
		{"slow", []verification.Run{ran("a", 0, 121), ran("b", 0, 60)}, nil, lanegate.VerdictFailed, []string{"slowdown a"}, "2.0 times as long"},
		{"slow by less than a second", []verification.Run{ran("a", 0, .9), ran("b", 0, .9)}, func(c *verification.Case) {
			for class, b := range c.Evidence.Baseline {
				b.P50 = .1
				c.Evidence.Baseline[class] = b
			}
		}, lanegate.VerdictPassed, nil, ""},
		{"alone with a phrase", []verification.Run{ran("a", 0, 60, func(r *verification.Run) { r.Trouble = []lanegate.PhraseMatch{{Line: "database is locked"}} })}, func(c *verification.Case) {
			c.Plan[0].Kind = lanegate.RoundBaseline
		}, lanegate.VerdictInconclusive, []string{"baseline_failed a", "overlap a"}, "ignore_phrases"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := pairCase(tt.runs...)
			if tt.edit != nil {
				tt.edit(&c)
			}
			j := verification.Judge(over(c))
			if j.Verdict != tt.verdict || !slices.Equal(codes(j), tt.codes) {
				t.Errorf("%s for %v, want %s for %v", j.Verdict, codes(j), tt.verdict, tt.codes)
			}
			if tt.says != "" && !slices.ContainsFunc(j.Reasons, func(r lanegate.VerificationReason) bool { return strings.Contains(r.Message, tt.says) }) {
				t.Errorf("says %+v", j.Reasons)
			}
			early := verification.Judge(c) // while the round is under way
			if slices.Contains([]string{"good", "slow", "measured as declared"}, tt.name) != (early.Verdict == "") && tt.name != "slow by less than a second" {
				t.Errorf("within the round: %q for %v", early.Verdict, codes(early))
			}
		})
	}
}

func TestJudgeResults(t *testing.T) {
	c := pairCase(
		ran("a", 0, 10, func(r *verification.Run) { r.Payload, r.Result = "p1", "r1" }),
		ran("a", 10, 20, inRound(2), func(r *verification.Run) { r.Payload, r.Result = "p2", "r2" }),
		ran("b", 20, 30, inRound(3), func(r *verification.Run) { r.Payload = "p" }),
		ran("a", 30, 40, inRound(4), func(r *verification.Run) { r.Payload, r.Result = "p2", "r2" }),
		ran("b", 30, 40, inRound(4), func(r *verification.Run) { r.Payload = "p" }),
	)
	alone := lanegate.Round{Kind: lanegate.RoundBaseline, Classes: []string{"x"}}
	c.Plan = []lanegate.Round{alone, alone, alone, c.Plan[0]}
	c.Spec.Source, c.Spec.Criteria.SameResult = lanegate.SourcePayloads, true
	j := verification.Judge(over(c))
	if j.Verdict != lanegate.VerdictPassed || j.Evidence.Baseline["a"].N != 2 || j.Evidence.Baseline["a"].P50 != 10 || j.Evidence.Baseline["a"].From != verification.FromAlone {
		t.Errorf("%s for %v, baseline %+v", j.Verdict, codes(j), j.Evidence.Baseline)
	}
	c.Runs[3].Result = "r1"
	if j := verification.Judge(over(c)); j.Verdict != lanegate.VerdictFailed || !slices.Equal(codes(j), []string{"result_differs a"}) {
		t.Errorf("%s for %v", j.Verdict, codes(j))
	}
	c.Runs[1].Payload = "p1" // alone, one payload gives r1 and r2
	if j := verification.Judge(over(c)); j.Verdict != lanegate.VerdictInconclusive || !slices.Equal(codes(j), []string{"result_varies a"}) {
		t.Errorf("%s for %v", j.Verdict, codes(j))
	}
}

func TestNotChecked(t *testing.T) {
	c := pairCase(ran("a", 0, 60, func(r *verification.Run) { r.Dropped = 1000; r.Measured = map[string]int{"db": 5} }), ran("b", 0, -1))
	c.Others = []string{"k9", "k8", "k7", "k6", "k5", "k4", "k3", "k2", "k1", "k0"}
	got := strings.Join(verification.Judge(over(c)).Evidence.NotChecked, "\n")
	want := `How much of db the runs of b use was not measured: it has no probe, or the probe saw nothing of them.
1000 bytes that runs of a printed were not kept, and so not searched for phrases of trouble.
1 of b: what happens after this point was not awaited; a failure with a phrase of trouble later still changes the verdict.
Results were not compared.
No check looked at the data afterwards: silent damage would not be seen.
b was not compared with how long it takes alone.
Other data than that of these runs, and other moments of start, were not tried: the runs of a round start together.
A race that is lost once in many runs may not have shown itself in 1 round.
Nothing was run on purpose beside k0, k1, k2, k3, k4, k5, k6, k7 and 2 more.`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not checked (-want +got):\n%s", diff)
	}
}

// Whatever happened: a verdict falls once all rounds are over, passed has neither
// reasons nor an unproven pair, failed has a reason that fails; judging twice, or
// in another order of the runs, says the same; the case is left as it was.
func TestJudgeProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	seen := map[lanegate.Verdict]int{}
	for n := range 3000 {
		var runs []verification.Run
		for i := range r.IntN(6) {
			from := float64(r.IntN(20))
			run := ran([]string{"a", "b"}[r.IntN(2)], from, from+float64(r.IntN(100)), inRound(1+r.IntN(2)))
			run.Job = fmt.Sprint("job", i)
			if r.IntN(10) == 0 {
				run.EndedAt, run.Duration, run.Outcome = nil, 0, ""
			} else if r.IntN(8) == 0 {
				run.Outcome = lanegate.Outcomes[r.IntN(len(lanegate.Outcomes))]
			}
			if r.IntN(12) == 0 {
				run.Measured = map[string]int{"db": r.IntN(8)}
			}
			runs = append(runs, run)
		}
		c := pairCase(runs...)
		c.Plan = append(c.Plan, c.Plan[0])
		c.Spec.Members[0].Copies = 1 + r.IntN(2)
		if r.IntN(2) == 0 {
			c.Spec.Criteria.Window = lanegate.Duration(r.IntN(50)) * lanegate.Duration(time.Second)
		}
		before := fmt.Sprintf("%+v", c)
		j := verification.Judge(over(c))
		seen[j.Verdict]++
		fails := slices.ContainsFunc(j.Reasons, func(r lanegate.VerificationReason) bool { return verification.Fails(r.Code) })
		unproven := slices.ContainsFunc(j.Evidence.Pairs, func(p lanegate.PairEvidence) bool { return !p.Proven })
		switch {
		case j.Verdict == "" || fails != (j.Verdict == lanegate.VerdictFailed),
			j.Verdict == lanegate.VerdictPassed && (unproven || len(j.Reasons) > 0),
			j.Verdict == lanegate.VerdictInconclusive && len(j.Reasons) == 0:
			t.Fatalf("case %d: %s for %v, pairs %+v", n, j.Verdict, codes(j), j.Evidence.Pairs)
		case len(j.Evidence.NotChecked) == 0:
			t.Fatalf("case %d: everything was checked", n)
		case before != fmt.Sprintf("%+v", c):
			t.Fatalf("case %d was changed", n)
		}
		again := over(c)
		again.Runs = slices.Clone(runs)
		slices.Reverse(again.Runs)
		if k := verification.Judge(again); k.Verdict != j.Verdict || !slices.Equal(k.Reasons, j.Reasons) || !slices.Equal(k.Evidence.Pairs, j.Evidence.Pairs) {
			t.Fatalf("case %d: %s for %v, in another order %s for %v", n, j.Verdict, codes(j), k.Verdict, codes(k))
		}
	}
	for _, v := range []lanegate.Verdict{lanegate.VerdictPassed, lanegate.VerdictFailed, lanegate.VerdictInconclusive} {
		if seen[v] < 100 {
			t.Errorf("%s came up %d times", v, seen[v])
		}
	}
}

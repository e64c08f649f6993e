package verification_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

// Only a check that looked at the data after running at once, and said no,
// accuses running at once.
func TestJudgeCheck(t *testing.T) {
	exited := func(code int, output string) lanegate.CheckEvidence {
		return lanegate.CheckEvidence{Outcome: lanegate.Failed, ExitCode: &code, Error: "the command exited", Output: output}
	}
	answered := func(status int) lanegate.CheckEvidence {
		return lanegate.CheckEvidence{Outcome: lanegate.Failed, Status: status, Error: "the target answered"}
	}
	signalled := lanegate.CheckEvidence{Outcome: lanegate.Failed, Error: "the command was ended by SIGKILL"}
	code := 143
	late := lanegate.CheckEvidence{Outcome: lanegate.TimedOut, ExitCode: &code, Error: "the time limit was reached"}
	const no, mute = "check_failed", "check_not_judged"
	for _, tt := range []struct {
		name  string
		check lanegate.CheckEvidence
		code  string
		says  string
	}{
		{"well", lanegate.CheckEvidence{Outcome: lanegate.Succeeded}, "", ""},
		{"no", exited(1, "counting\nexpected 2 got 1\n\n"), no, "expected 2 got 1 (the command exited)"},
		{"no, without a word", exited(3, " \n"), no, "not right: the command exited"},
		{"cannot be executed", exited(126, ""), mute, "the check after round 1 could not judge: the command exited"},
		{"not found by its shell", exited(127, "check: not found"), mute, "check: not found"},
		{"did not start", lanegate.CheckEvidence{Outcome: lanegate.Failed, Error: "no such program"}, mute, "no such program"},
		{"killed", signalled, mute, "SIGKILL"},
		{"time was up", late, mute, "time limit"},
		{"stopped", lanegate.CheckEvidence{Outcome: lanegate.Interrupted}, mute, "it was stopped"},
		{"asked to wait", lanegate.CheckEvidence{Outcome: lanegate.Deferred}, mute, "run later"},
		{"lost", lanegate.CheckEvidence{Outcome: lanegate.Lost}, mute, "was lost"},
		{"http no", answered(500), no, "the target answered"},
		{"http says why", lanegate.CheckEvidence{Outcome: lanegate.Failed, Status: 422, Error: "the target answered 422", Output: "rows differ"}, no, "rows differ (the target answered 422)"},
		{"http conflict", answered(409), no, ""},
		{"no answer", lanegate.CheckEvidence{Outcome: lanegate.Failed, Error: "no connection"}, mute, "no connection"},
		{"redirected", answered(302), mute, ""},
		{"no login", answered(401), mute, ""},
		{"forbidden", answered(403), mute, ""},
		{"no such page", answered(404), mute, ""},
		{"no such method", answered(405), mute, ""},
		{"too many", answered(429), mute, ""},
		{"gateway", answered(502), mute, ""},
		{"unavailable", answered(503), mute, ""},
		{"gateway's patience", answered(504), mute, ""},
	} {
		for _, kind := range []lanegate.RoundKind{lanegate.RoundBeside, lanegate.RoundBaseline} {
			c := pairCase(ran("a", 0, 60), ran("b", 0, 60))
			want, verdict := tt.code, lanegate.Verdict("")
			if kind == lanegate.RoundBaseline {
				c.Plan = append([]lanegate.Round{{Kind: kind, Classes: []string{"a"}}}, c.Plan...)
				c.Runs = c.Runs[:1]
				if want == no {
					want = "baseline_failed a"
				}
			}
			c.Evidence.Rounds = []lanegate.RoundEvidence{{Round: 1, Check: &tt.check}}
			var codesWanted []string
			switch {
			case want == no:
				verdict, codesWanted = lanegate.VerdictFailed, []string{want}
			case want != "":
				verdict, codesWanted = lanegate.VerdictInconclusive, []string{want}
			}
			j := verification.Judge(c)
			if j.Verdict != verdict || !slices.Equal(codes(j), codesWanted) {
				t.Errorf("%s after %s: %q for %v, want %q for %v", tt.name, kind, j.Verdict, codes(j), verdict, codesWanted)
				continue
			}
			if tt.says != "" && !strings.Contains(j.Reasons[0].Message, tt.says) && kind == lanegate.RoundBeside {
				t.Errorf("%s after %s says %q, want %q", tt.name, kind, j.Reasons[0].Message, tt.says)
			}
		}
	}
}

// A round meant for one run alone is no such thing while a long run of an earlier
// round goes on beside it.
func TestJudgeCheckBesideALongRun(t *testing.T) {
	one := 1
	c := pairCase(ran("a", 0, -1), ran("b", 20, 80, inRound(2)))
	c.Spec.Criteria.Window = lanegate.Duration(10e9)
	c.Plan = []lanegate.Round{{Kind: lanegate.RoundBaseline, Classes: []string{"a"}}, {Kind: lanegate.RoundBaseline, Classes: []string{"b"}}}
	c.Round = 1
	c.Evidence.Rounds = []lanegate.RoundEvidence{{Round: 1, StartedAt: at(0)}, {Round: 2, StartedAt: at(20), Check: &lanegate.CheckEvidence{Outcome: lanegate.Failed, ExitCode: &one}}}
	if j := verification.Judge(c); j.Verdict != lanegate.VerdictFailed || !slices.Equal(codes(j), []string{"check_failed"}) {
		t.Errorf("%q for %v", j.Verdict, codes(j))
	}
}

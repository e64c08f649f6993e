package service_test

import (
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

// A check that could not judge, or found the data wrong before anything had run
// beside anything, voids no proof and demotes nobody; one that said no does both.
func TestChecksThatAccuse(t *testing.T) {
	one, notFound := 1, 127
	long := strings.Repeat("line\n", 1000)
	for _, tt := range []struct {
		name    string
		ending  lanegate.Ending
		source  func(*lanegate.VerificationSpec)
		verdict lanegate.Verdict
		code    string
	}{
		{"said no", lanegate.Ending{Outcome: lanegate.Failed, ExitCode: &one, Output: lanegate.Output{Head: long + "expected 2 got 1\n"}}, withCheck, lanegate.VerdictFailed, "check_failed"},
		{"said no by its end", lanegate.Ending{Outcome: lanegate.Failed, ExitCode: &one, Output: lanegate.Output{Head: long, Tail: long + "expected 2 got 1\n", Dropped: 10}}, withCheck, lanegate.VerdictFailed, "check_failed"},
		{"not found", lanegate.Ending{Outcome: lanegate.Failed, ExitCode: &notFound}, withCheck, lanegate.VerdictInconclusive, "check_not_judged"},
		{"did not start", lanegate.Ending{Outcome: lanegate.Failed, Error: "no such program"}, withCheck, lanegate.VerdictInconclusive, "check_not_judged"},
		{"no before anything ran at once", lanegate.Ending{Outcome: lanegate.Failed, ExitCode: &one}, func(s *lanegate.VerificationSpec) { withCheck(s); fromPayloads(s) }, lanegate.VerdictInconclusive, "baseline_failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTrial(t)
			proven := f.mustCreate(pairSpec())
			f.submitPair()
			f.mustRound(3)
			f.look()
			f.endRound(nil)
			f.look()
			f.wantVerdict(proven, lanegate.VerdictPassed)

			f.checker.ending = tt.ending
			id := f.mustCreate(pairSpec(tt.source))
			f.submitPair()
			f.mustRound(map[bool]int{true: 3, false: 1}[f.get(id).Plan[0].Kind == lanegate.RoundBeside])
			f.look()
			f.endRound(nil)
			f.until("verdict", func() bool { f.look(); return f.get(id).State.Final() })
			v := f.wantVerdict(id, tt.verdict, tt.code)
			proofs, err := f.svc.Proofs(t.Context(), "a")
			f.must(err)
			_, copies, _ := lanegate.Proven(proofs, v.Fingerprints["a"])
			if (copies == 0) != (tt.verdict == lanegate.VerdictFailed) {
				t.Errorf("%d copies of a are proven", copies)
			}
			said := v.Evidence.Rounds[0].Check
			if tt.ending.Output.Head != "" && (!strings.HasPrefix(said.Output, "line\n") || len(said.Output) > 2100 || !strings.Contains(v.Reasons[0].Message, "expected 2 got 1")) {
				t.Errorf("output of %d bytes; %q", len(said.Output), v.Reasons[0].Message)
			}
			if tt.ending.ExitCode != nil && (said.ExitCode == nil || *said.ExitCode != *tt.ending.ExitCode) {
				t.Errorf("exit code %v, want %d", said.ExitCode, *tt.ending.ExitCode)
			}
		})
	}
}

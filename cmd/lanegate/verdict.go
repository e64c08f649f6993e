package main

import (
	"fmt"
	"strings"

	"github.com/lanegate/lanegate"
)

// showVerdict prints a run with its evidence: what ran when, what was seen, and
// the verdict in words.
func showVerdict(t terminal, v verificationRun) {
	seen := map[string]bool{}
	for _, r := range v.Evidence.Rounds {
		showRound(t, v, r, seen)
	}
	showPairs(t, v.Evidence.Pairs)
	showSlowdown(t, v.Evidence)
	if len(v.Evidence.Rounds) > 0 {
		t.printf("\n")
	}
	t.printf("%s\n", v.Sentence)
	for _, r := range v.Reasons {
		t.printf("  %s\n", r.Message)
	}
	if len(v.Evidence.NotChecked) > 0 && v.State.Final() {
		t.printf("not checked:\n")
		for _, line := range v.Evidence.NotChecked {
			t.printf("  %s\n", line)
		}
	}
	if v.Verdict == lanegate.VerdictPassed {
		var classes []string
		for _, m := range v.Spec.Members {
			classes = append(classes, m.Class)
		}
		t.printf("next: lanegate promote %s --run %s\n", strings.Join(classes, " "), v.ID)
	}
}

// showRound prints a round; what a run showed is printed where it first appears,
// as a long one is in several rounds. seen remembers the runs printed so far.
func showRound(t terminal, v verificationRun, r lanegate.RoundEvidence, seen map[string]bool) {
	what := ""
	if r.Round >= 1 && r.Round <= len(v.Plan) {
		what = ": " + roundText(v.Plan[r.Round-1])
	}
	t.printf("round %d%s\n", r.Round, what)
	for _, line := range r.Picture {
		t.printf("  %s\n", line)
	}
	if len(r.Beside) > 0 {
		const shown = 5
		more := ""
		if n := len(r.Beside) - shown; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		t.printf("  beside: %s%s\n", strings.Join(r.Beside[:min(len(r.Beside), shown)], ", "), more)
	}
	if r.Check != nil {
		t.printf("  check: %s\n", checkText(*r.Check))
	}
	for _, run := range r.Runs {
		if id := fmt.Sprintf("%s/%d", run.Job, run.Attempt); !seen[id] {
			seen[id] = true
			showRun(t, run)
		}
	}
}

// showRun prints what one run showed beside its times.
func showRun(t terminal, run lanegate.RunEvidence) {
	who := run.Class + " " + run.Job
	if run.Outcome != "" && run.Outcome != lanegate.Succeeded {
		t.printf("  %s: %s%s\n", who, run.Outcome, inBrackets(run.Error))
	}
	for _, p := range run.Phrases {
		t.printf("  %s printed a phrase of trouble:\n", who)
		for _, line := range []struct{ mark, text string }{{" ", p.Before}, {">", p.Line}, {" ", p.After}} {
			if line.text != "" {
				t.printf("    %s %s\n", line.mark, line.text)
			}
		}
	}
	for _, name := range sortedKeys(run.Measured) {
		t.printf("  %s used %d of %s at its peak and declares %d\n", who, run.Measured[name], name, run.Declared[name])
	}
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// checkText is how a check ended, and the last line that it printed.
func checkText(c lanegate.CheckEvidence) string {
	if c.Outcome == lanegate.Succeeded {
		return "well"
	}
	text := string(c.Outcome) + inBrackets(c.Error)
	out := strings.TrimSpace(c.Output)
	if line := strings.TrimSpace(out[strings.LastIndexByte(out, '\n')+1:]); line != "" {
		text += ": " + line
	}
	return text
}

func showPairs(t terminal, pairs []lanegate.PairEvidence) {
	for i, p := range pairs {
		if i == 0 {
			t.printf("ran at once\n")
		}
		proven := "not proven"
		switch {
		case p.Proven && p.A == p.B:
			proven = fmt.Sprintf("proven, %d copies", p.Copies)
		case p.Proven:
			proven = "proven"
		}
		t.printf("  %s + %s: %s, needed %s: %s\n", p.A, p.B, secondsText(p.Overlap), secondsText(p.Needed), proven)
	}
}

func showSlowdown(t terminal, e lanegate.Evidence) {
	for i, class := range sortedKeys(e.Slowdown) {
		if i == 0 {
			t.printf("took\n")
		}
		s, b := e.Slowdown[class], e.Baseline[class]
		t.printf("  %s: %s beside others (median of n=%d), %s alone (median of n=%d): × %.2f\n", class, secondsText(s.P50), s.N, secondsText(s.Baseline), b.N, s.Ratio)
	}
}

// secondsText is a length in seconds, in milliseconds below one.
func secondsText(seconds float64) string {
	if seconds > 0 && seconds < 1 {
		return fmt.Sprintf("%.0f ms", seconds*1000)
	}
	return fmt.Sprintf("%.1f s", seconds)
}

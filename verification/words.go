package verification

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// Words says in a sentence or two, for people, where a verification run stands
// or what it found.
func Words(v lanegate.Verification) string {
	names := memberNames(v.Spec.Members)
	switch v.State {
	case lanegate.VerificationPlanned:
		return fmt.Sprintf("Waits for its turn: %s in %s.", names, plural(len(v.Plan), "round"))
	case lanegate.VerificationRunning:
		return running(v, names)
	case lanegate.VerificationAborted:
		return "Aborted" + reasonWords(v) + " It says nothing about " + names + "."
	}
	switch v.Verdict {
	case lanegate.VerdictPassed:
		return "Passed: " + provenWords(v) + " without a sign of trouble. What was not checked is listed with the evidence."
	case lanegate.VerdictFailed:
		return "Failed" + reasonWords(v) + fmt.Sprintf(" Earlier proofs of %s at these fingerprints no longer count.", names)
	case lanegate.VerdictInconclusive:
		return "Inconclusive" + reasonWords(v) + " Nothing is proven and nothing is taken back; ask for a new run when you want to repeat it."
	}
	return "Over, without a verdict."
}

func running(v lanegate.Verification, names string) string {
	held := ""
	if v.Holds() {
		held = ", the serial line is held"
	}
	switch {
	case v.Round >= len(v.Plan):
		return fmt.Sprintf("All rounds of %s are over; the verdict is being written.", names)
	case v.Started:
		return fmt.Sprintf("Round %d of %d is running: %s%s.", v.Round+1, len(v.Plan), countNames(v.Plan[v.Round].Classes), held)
	}
	return fmt.Sprintf("Round %d of %d waits to start: %s%s.", v.Round+1, len(v.Plan), countNames(v.Plan[v.Round].Classes), held)
}

// reasonWords is the worst reason, and how many there are beside it.
func reasonWords(v lanegate.Verification) string {
	if len(v.Reasons) == 0 {
		return "."
	}
	out := ": " + strings.TrimRight(v.Reasons[0].Message, ".")
	if n := len(v.Reasons) - 1; n > 0 {
		out += fmt.Sprintf(" (and %s)", plural(n, "more reason"))
	}
	return out + "."
}

// provenWords says what ran at once.
func provenWords(v lanegate.Verification) string {
	var copies []string
	beside := map[string]bool{}
	for _, p := range v.Evidence.Pairs {
		switch {
		case !p.Proven:
		case p.A == p.B:
			copies = append(copies, fmt.Sprintf("%d copies of %s", p.Copies, p.A))
		default:
			beside[p.A], beside[p.B] = true, true
		}
	}
	var parts []string
	if len(copies) > 0 {
		parts = append(parts, join(copies)+" ran at once")
	}
	if len(beside) > 0 {
		parts = append(parts, join(sortedKeys(beside))+" ran beside each other")
	}
	if len(parts) == 0 {
		return "the members ran at once"
	}
	return strings.Join(parts, ", and ")
}

func memberNames(members []lanegate.VerificationMember) string {
	names := make([]string, 0, len(members))
	for _, m := range members {
		if m.Copies > 1 {
			names = append(names, fmt.Sprintf("%s × %d", m.Class, m.Copies))
		} else {
			names = append(names, m.Class)
		}
	}
	return join(names)
}

// countNames names classes that may repeat: "pos-sales × 2 and weather".
func countNames(classes []string) string {
	sorted := slices.Sorted(slices.Values(classes))
	var members []lanegate.VerificationMember
	for _, class := range sorted {
		if n := len(members); n > 0 && members[n-1].Class == class {
			members[n-1].Copies++
		} else {
			members = append(members, lanegate.VerificationMember{Class: class, Copies: 1})
		}
	}
	return memberNames(members)
}

// join lists names as a sentence does: "a, b and c".
func join(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

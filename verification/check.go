package verification

import (
	"fmt"
	"strings"

	"github.com/lanegate/lanegate"
)

// judgeCheck weighs what the check said after a round. Only one that ran and said
// no accuses running at once, and only after a round in which runs were beside
// each other: data that is wrong before that was wrong already.
func (j *judge) judgeCheck(r *lanegate.RoundEvidence) {
	c := r.Check
	// Runs that earlier rounds started and that went on were beside the baseline's.
	alone := r.Kind == lanegate.RoundBaseline && len(r.Runs) < 2
	switch {
	case c == nil || c.Outcome == lanegate.Succeeded:
	case !saidNo(*c):
		mend := ""
		if c.Outcome == lanegate.Failed || c.Outcome == lanegate.TimedOut {
			mend = "; mend the check"
		}
		j.reason(CodeCheckMute, "", "the check after round %d could not judge: %s%s", r.Round, checkSays(*c), mend)
	case alone:
		class := ""
		if len(r.Runs) == 1 {
			class = r.Runs[0].Class
		}
		j.reason(CodeBaseline, class, "the check after round %d says that the data is not right although nothing had run beside anything: %s; mend the data or the check first", r.Round, checkSays(*c))
	default:
		j.reason(CodeCheckFailed, "", "the check after round %d says that the data is not right: %s", r.Round, checkSays(*c))
	}
}

// saidNo says whether a check that did not succeed looked at the data and found
// it wrong, rather than failing to look.
func saidNo(c lanegate.CheckEvidence) bool {
	switch {
	case c.Outcome != lanegate.Failed:
		return false
	case c.ExitCode != nil:
		return *c.ExitCode > 0 && *c.ExitCode != notExecutable && *c.ExitCode != notFound
	}
	return answered(c.Status)
}

// What POSIX shells exit with when a command could not be started (XCU 2.8.2).
const (
	notExecutable = 126
	notFound      = 127
)

// answered says whether an HTTP status, 0 for none, can come from the check itself
// rather than from what stands before it: a missing login or address, a redirect
// that was not followed, a limit, a gateway without its target.
func answered(status int) bool {
	switch status {
	case 401, 403, 404, 405, 407, 408, 425, 429, 502, 503, 504:
		return false
	}
	return status >= 400
}

// checkSays is the last line that a check printed, as scripts end with what is
// wrong, and how it ended.
func checkSays(c lanegate.CheckEvidence) string {
	how := c.Error
	if how == "" {
		how = "it " + did(c.Outcome)
	}
	how = cut(firstLine(how), 0)
	if line := lastLine(c.Output); line != "" {
		return fmt.Sprintf("%s (%s)", cut(line, 0), how)
	}
	return how
}

// lastLine is the last line with anything in it.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

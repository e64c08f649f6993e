package verification

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
)

// Run is one attempt that belongs to a verification run.
type Run struct {
	Job       string
	Attempt   int
	Class     string
	Round     int // it was started for, from 1
	StartedAt time.Time
	EndedAt   *time.Time    // nil while it is in flight
	Duration  time.Duration // monotonic; 0 when nobody measured it
	Outcome   lanegate.Outcome
	ExitCode  *int
	Signal    string
	Status    int
	Error     string
	Result    string // SHA-256 in hex, "" when there is none
	Payload   string // SHA-256 in hex
	Trouble   []lanegate.PhraseMatch
	Declared  lanegate.Units
	Measured  map[string]int
	Dropped   int64 // bytes of output that were not kept
}

// Case is everything a verdict depends on. Of Evidence, the baseline of the
// source "queue", and each round's times, check and list of others that ran
// beside, are input; Judge fills in the rest.
type Case struct {
	Spec lanegate.VerificationSpec
	Plan []lanegate.Round
	// Round is the index of the round that is under way; len(Plan) when all are over.
	Round    int
	Runs     []Run
	Evidence lanegate.Evidence
	// Now is the end of what is known; runs in flight last up to it.
	Now time.Time
	// Others are classes that are no members.
	Others []string
}

// Judgement is what a case shows so far.
type Judgement struct {
	// Verdict is "" while the experiment should go on. It is failed as soon as a
	// criterion is, inconclusive as soon as nothing can be concluded any more, and
	// one of the three once all rounds are over.
	Verdict lanegate.Verdict
	// Reasons for a verdict that is not passed, worst first.
	Reasons []lanegate.VerificationReason
	// RoundOver: all runs of the round under way have ended, or have overlapped as
	// long as they must.
	RoundOver bool
	Evidence  lanegate.Evidence
}

// Codes of reasons. Those up to CodeSlowdown make a run fail, the others leave it
// without a conclusion.
const (
	CodeLateFailure = "late_failure"
	CodeCheckFailed = "check_failed"
	CodePhrase      = "phrase"
	CodeRunFailed   = "run_failed"
	CodeResult      = "result_differs"
	CodeUnits       = "units_above_declared"
	CodeSlowdown    = "slowdown"

	CodeAborted     = "aborted"
	CodeOwnerLost   = "owner_lost"
	CodeStopped     = "stopped"
	CodeDeleted     = "class_deleted"
	CodeChanged     = "fingerprint_changed"
	CodePaused      = "class_paused"
	CodeFresh       = "fresh"
	CodeMaxHold     = "max_hold"
	CodeObstacle    = "obstacle"
	CodeBaseline    = "baseline_failed"
	CodeCheckMute   = "check_not_judged"
	CodeVaries      = "result_varies"
	CodeNotFinished = "run_not_finished"
	CodeOverlap     = "overlap"
)

// severity is the order of reasons, worst first.
var severity = []string{
	CodeLateFailure, CodeCheckFailed, CodePhrase, CodeRunFailed, CodeResult, CodeUnits, CodeSlowdown,
	CodeAborted, CodeOwnerLost, CodeStopped, CodeDeleted, CodeChanged, CodePaused, CodeFresh, CodeObstacle, CodeMaxHold,
	CodeBaseline, CodeCheckMute, CodeVaries, CodeNotFinished, CodeOverlap,
}

// Fails says whether a reason of this code makes a run fail.
func Fails(code string) bool {
	return slices.Index(severity, code) >= 0 && slices.Index(severity, code) <= slices.Index(severity, CodeSlowdown)
}

// SortReasons puts reasons in order, worst first, then by class and message, and
// drops repetitions.
func SortReasons(reasons []lanegate.VerificationReason) []lanegate.VerificationReason {
	slices.SortFunc(reasons, func(a, b lanegate.VerificationReason) int {
		return cmp.Or(cmp.Compare(slices.Index(severity, a.Code), slices.Index(severity, b.Code)),
			cmp.Compare(a.Class, b.Class), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(reasons)
}

// Judge says what a case shows. It is deterministic and doesn't change its input.
func Judge(c Case) Judgement {
	j := &judge{Case: c}
	j.spans = make([]span, len(c.Runs))
	for i := range c.Runs {
		j.spans[i] = spanOf(&c.Runs[i], c.Now)
	}
	e := c.Evidence
	e.Baseline = j.baselines()
	e.Slowdown = j.slowdowns(e.Baseline)
	e.Pairs = j.pairs()
	e.Rounds = j.rounds()
	for i := range c.Runs {
		j.judgeRun(i)
	}
	j.judgeResults()
	for i := range e.Rounds {
		j.judgeCheck(&e.Rounds[i])
	}
	over := c.Round >= len(c.Plan)
	if over {
		j.judgeSlowdown(e.Slowdown)
		if !j.fails() {
			j.judgeOverlap(e.Pairs)
		}
	}
	out := Judgement{Reasons: SortReasons(j.reasons), RoundOver: !over && j.roundOver()}
	switch {
	case j.fails():
		out.Verdict = lanegate.VerdictFailed
	case len(out.Reasons) > 0:
		out.Verdict = lanegate.VerdictInconclusive
	case over:
		out.Verdict = lanegate.VerdictPassed
	}
	e.NotChecked = j.notChecked(&e)
	out.Evidence = e
	return out
}

// judge is the state of one call of Judge.
type judge struct {
	Case
	spans   []span // parallel to Runs
	reasons []lanegate.VerificationReason
}

func (j *judge) reason(code, class, format string, args ...any) {
	j.reasons = append(j.reasons, lanegate.VerificationReason{Code: code, Class: class, Message: fmt.Sprintf(format, args...)})
}

func (j *judge) fails() bool {
	return slices.ContainsFunc(j.reasons, func(r lanegate.VerificationReason) bool { return Fails(r.Code) })
}

// kind is what a run is evidence of: of its class alone, or beside others. A run
// too long to wait for that was started alone and went on into later rounds is
// evidence of these.
func (j *judge) kind(i int) lanegate.RoundKind {
	r := &j.Runs[i]
	if r.Round >= 1 && r.Round <= len(j.Plan) && !j.wentOn(i) {
		return j.Plan[r.Round-1].Kind
	}
	return lanegate.RoundBeside
}

// wentOn says whether a run was in flight when a round after its own began.
func (j *judge) wentOn(i int) bool {
	r := &j.Runs[i]
	if j.Spec.Criteria.Window <= 0 {
		return false
	}
	if r.EndedAt == nil {
		return j.Round+1 > r.Round
	}
	return slices.ContainsFunc(j.Runs, func(other Run) bool { return other.Round > r.Round && other.StartedAt.Before(*r.EndedAt) })
}

// judgeRun looks at one run by itself. What goes wrong in a baseline can't come
// of running at once, so it concludes nothing; units above the declaration are
// wrong anywhere.
func (j *judge) judgeRun(i int) {
	r := &j.Runs[i]
	for _, name := range sortedKeys(r.Measured) {
		if seen, declared := r.Measured[name], r.Declared[name]; seen > declared {
			j.reason(CodeUnits, r.Class, "a run of %s used %d of %s at its peak and declares %d; declare what it uses", r.Class, seen, name, declared)
		}
	}
	alone := j.kind(i) == lanegate.RoundBaseline
	if len(r.Trouble) > 0 {
		line := r.Trouble[0].Line
		if alone {
			j.reason(CodeBaseline, r.Class, "%s prints a phrase of trouble although it runs alone: %q; if that is no trouble, add it to the class's ignore_phrases", r.Class, line)
		} else {
			j.reason(CodePhrase, r.Class, "%s printed a phrase of trouble beside others: %q", r.Class, line)
		}
	}
	switch r.Outcome {
	case "", lanegate.Succeeded:
	case lanegate.Failed, lanegate.TimedOut:
		if alone {
			j.reason(CodeBaseline, r.Class, "%s %s although it ran alone%s; mend it first", r.Class, did(r.Outcome), because(r))
		} else {
			j.reason(CodeRunFailed, r.Class, "%s %s beside others%s", r.Class, did(r.Outcome), because(r))
		}
	default:
		j.reason(CodeNotFinished, r.Class, "a run of %s %s before it could show anything%s", r.Class, did(r.Outcome), because(r))
	}
}

func did(o lanegate.Outcome) string {
	switch o {
	case lanegate.Failed:
		return "failed"
	case lanegate.TimedOut:
		return "ran into its time limit"
	case lanegate.Deferred:
		return "asked to be run later"
	case lanegate.Cancelled:
		return "was cancelled"
	case lanegate.Interrupted:
		return "was stopped"
	case lanegate.Lost:
		return "was lost with its worker"
	}
	return string(o)
}

func because(r *Run) string {
	var facts []string
	switch {
	case r.Signal != "":
		facts = append(facts, "ended by "+r.Signal)
	case r.ExitCode != nil && *r.ExitCode != 0:
		facts = append(facts, fmt.Sprintf("exit code %d", *r.ExitCode))
	case r.Status != 0:
		facts = append(facts, fmt.Sprintf("HTTP status %d", r.Status))
	}
	if r.Error != "" {
		facts = append(facts, cut(firstLine(r.Error), 0))
	}
	if len(facts) == 0 {
		return ""
	}
	return " (" + strings.Join(facts, ": ") + ")"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// judgeResults compares each result with those of the same payload alone.
func (j *judge) judgeResults() {
	if !j.Spec.Criteria.SameResult {
		return
	}
	type key struct{ class, payload string }
	alone := map[key]string{}
	varies := map[key]bool{}
	for i := range j.Runs {
		r := &j.Runs[i]
		if j.kind(i) != lanegate.RoundBaseline || r.Outcome != lanegate.Succeeded {
			continue
		}
		k := key{r.Class, r.Payload}
		if before, ok := alone[k]; ok && before != r.Result {
			varies[k] = true
			j.reason(CodeVaries, r.Class, "%s gives differing results for one payload although it runs alone; same_result can't be judged", r.Class)
		}
		alone[k] = r.Result
	}
	for i := range j.Runs {
		r := &j.Runs[i]
		k := key{r.Class, r.Payload}
		want, ok := alone[k]
		if j.kind(i) == lanegate.RoundBaseline || r.Outcome != lanegate.Succeeded || !ok || varies[k] || want == r.Result {
			continue
		}
		j.reason(CodeResult, r.Class, "a result of %s beside others differs from the one it gave alone (SHA-256 %s, alone %s)", r.Class, short(r.Result), short(want))
	}
}

func short(digest string) string {
	if digest == "" {
		return "none"
	}
	return digest[:min(12, len(digest))]
}

// judgeSlowdown compares medians; a loss of less than a second is noise.
func (j *judge) judgeSlowdown(all map[string]lanegate.Slowdown) {
	limit := j.Spec.Criteria.MaxSlowdown
	for _, class := range sortedKeys(all) {
		s := all[class]
		if limit > 0 && s.Ratio > limit && s.P50-s.Baseline >= 1 {
			j.reason(CodeSlowdown, class, "%s takes %s beside others (median of %d) and %s alone: %.1f times as long, at most %.1f times is allowed",
				class, lasted(s.P50), s.N, lasted(s.Baseline), s.Ratio, limit)
		}
	}
}

func (j *judge) judgeOverlap(pairs []lanegate.PairEvidence) {
	for _, p := range pairs {
		if p.Proven {
			continue
		}
		who := p.A + " and " + p.B
		if p.A == p.B {
			who = fmt.Sprintf("%d copies of %s", j.copies(p.A), p.A)
		}
		needed := ""
		if p.Needed > 0 {
			needed = fmt.Sprintf("; %s were needed", lasted(p.Needed))
		}
		if p.Overlap > 0 {
			j.reason(CodeOverlap, p.A, "%s ran at once for %s at most%s", who, lasted(p.Overlap), needed)
		} else {
			j.reason(CodeOverlap, p.A, "%s never ran at once%s", who, needed)
		}
	}
}

// lasted is a length given in seconds, in a unit in which it is not nothing.
func lasted(seconds float64) string {
	switch {
	case seconds >= 1 || seconds <= 0:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds < .001:
		return "less than 1 ms"
	}
	return fmt.Sprintf("%.0f ms", seconds*1000)
}

func (j *judge) copies(class string) int {
	for _, m := range j.Spec.Members {
		if m.Class == class {
			return max(1, m.Copies)
		}
	}
	return 1
}

package verification

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// Origins of a baseline.
const (
	FromRunLog = "run_log"
	FromAlone  = "alone"
)

// BaselineOf describes durations, in seconds, by their nearest-rank quantiles
// (Hyndman & Fan 1996, type 1). It sorts them in place.
func BaselineOf(from string, seconds []float64) lanegate.Baseline {
	slices.Sort(seconds)
	b := lanegate.Baseline{From: from, N: len(seconds), P50: quantile(seconds, .5), P90: quantile(seconds, .9)}
	if len(seconds) > 0 {
		b.Max = seconds[len(seconds)-1]
	}
	return b
}

// quantile is the nearest-rank q of sorted values, 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// seconds is how long a run took, or has taken so far.
func (j *judge) seconds(i int) float64 { return j.spans[i].took.Seconds() }

// good lists, by class, the durations of good runs in rounds of one kind.
func (j *judge) good(kind lanegate.RoundKind) map[string][]float64 {
	out := map[string][]float64{}
	for i := range j.Runs {
		if r := &j.Runs[i]; r.Outcome == lanegate.Succeeded && j.kind(i) == kind {
			out[r.Class] = append(out[r.Class], j.seconds(i))
		}
	}
	return out
}

// baselines are those of the run log as they were, or those of the runs alone.
func (j *judge) baselines() map[string]lanegate.Baseline {
	if j.Spec.Source != lanegate.SourcePayloads {
		return j.Evidence.Baseline
	}
	out := map[string]lanegate.Baseline{}
	for class, seconds := range j.good(lanegate.RoundBaseline) {
		out[class] = BaselineOf(FromAlone, seconds)
	}
	return out
}

func (j *judge) slowdowns(base map[string]lanegate.Baseline) map[string]lanegate.Slowdown {
	out := map[string]lanegate.Slowdown{}
	for class, seconds := range j.good(lanegate.RoundBeside) {
		b, ok := base[class]
		if !ok || b.N == 0 {
			continue
		}
		slices.Sort(seconds)
		s := lanegate.Slowdown{N: len(seconds), P50: quantile(seconds, .5), Baseline: b.P50}
		if b.P50 > 0 {
			s.Ratio = math.Round(s.P50/b.P50*1000) / 1000
		}
		out[class] = s
	}
	return out
}

// rounds is one entry for each round that has begun.
func (j *judge) rounds() []lanegate.RoundEvidence {
	begun := len(j.Evidence.Rounds)
	for i := range j.Runs {
		begun = max(begun, j.Runs[i].Round)
	}
	var out []lanegate.RoundEvidence
	for n := 1; n <= begun; n++ {
		if e, ok := j.round(n); ok {
			out = append(out, e)
		}
	}
	return out
}

// round is one round with its runs, and those that earlier rounds started and
// that were in flight when it began.
func (j *judge) round(n int) (lanegate.RoundEvidence, bool) {
	e := lanegate.RoundEvidence{Round: n}
	known := false
	for _, old := range j.Evidence.Rounds {
		if old.Round == n {
			e, known = old, true
		}
	}
	e.Runs, e.Picture = nil, nil
	if n >= 1 && n <= len(j.Plan) {
		e.Kind = j.Plan[n-1].Kind
	}
	for i := range j.Runs {
		if r := &j.Runs[i]; r.Round == n && (e.StartedAt.IsZero() || r.StartedAt.Before(e.StartedAt)) {
			e.StartedAt = r.StartedAt
		}
	}
	for i := range j.Runs {
		r := &j.Runs[i]
		carried := r.Round < n && !e.StartedAt.IsZero() && (r.EndedAt == nil || r.EndedAt.After(e.StartedAt))
		if r.Round == n || carried {
			e.Runs = append(e.Runs, j.runEvidence(i))
		}
	}
	e.Picture = Picture(e.Runs, PictureWidth)
	return e, known || len(e.Runs) > 0
}

func (j *judge) runEvidence(i int) lanegate.RunEvidence {
	r := &j.Runs[i]
	return lanegate.RunEvidence{
		Job: r.Job, Attempt: r.Attempt, Class: r.Class, StartedAt: r.StartedAt, EndedAt: r.EndedAt, Seconds: j.seconds(i),
		Outcome: r.Outcome, ExitCode: r.ExitCode, Signal: r.Signal, Status: r.Status, Error: r.Error,
		Result: r.Result, Payload: r.Payload, Phrases: r.Trouble, Declared: r.Declared, Measured: r.Measured, Dropped: r.Dropped,
	}
}

// namedOthers is how many classes a sentence names before it only counts.
const namedOthers = 8

// notChecked says what this run can't tell, the most telling first.
func (j *judge) notChecked(e *lanegate.Evidence) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	out = append(out, j.unmeasured()...)
	for _, class := range j.classes() {
		open, dropped := 0, int64(0)
		for i := range j.Runs {
			if r := &j.Runs[i]; r.Class == class {
				dropped += r.Dropped
				if r.EndedAt == nil {
					open++
				}
			}
		}
		if dropped > 0 {
			say("%d bytes that runs of %s printed were not kept, and so not searched for phrases of trouble.", dropped, class)
		}
		if open > 0 {
			say("%d of %s: what happens after this point was not awaited; a failure with a phrase of trouble later still changes the verdict.", open, class)
		}
	}
	if j.Spec.Criteria.SameResult {
		for _, class := range j.withoutResult() {
			say("Runs of %s left no result to compare.", class)
		}
	} else {
		say("Results were not compared.")
	}
	if j.Spec.Check == nil {
		say("No check looked at the data afterwards: silent damage would not be seen.")
	}
	for _, class := range j.classes() {
		if _, ok := e.Slowdown[class]; !ok {
			say("%s was not compared with how long it takes alone.", class)
		}
	}
	say("Other data than that of these runs, and other moments of start, were not tried: the runs of a round start together.")
	if n := j.besideRounds(); n > 0 {
		say("A race that is lost once in many runs may not have shown itself in %s.", plural(n, "round"))
	} else {
		say("No round in which several run at once took place.")
	}
	if len(j.Others) > 0 {
		names := slices.Sorted(slices.Values(j.Others))
		rest := ""
		if len(names) > namedOthers {
			rest = fmt.Sprintf(" and %d more", len(names)-namedOthers)
			names = names[:namedOthers]
		}
		say("Nothing was run on purpose beside %s%s.", strings.Join(names, ", "), rest)
	}
	return out
}

// unmeasured names the units whose use nobody saw.
func (j *judge) unmeasured() []string {
	var out []string
	for _, class := range j.classes() {
		declared, seen := map[string]bool{}, map[string]bool{}
		for i := range j.Runs {
			if r := &j.Runs[i]; r.Class == class {
				for name, n := range r.Declared {
					declared[name] = declared[name] || n > 0
				}
				for name := range r.Measured {
					seen[name] = true
				}
			}
		}
		for _, name := range sortedKeys(declared) {
			if declared[name] && !seen[name] {
				out = append(out, fmt.Sprintf("How much of %s the runs of %s use was not measured: it has no probe, or the probe saw nothing of them.", name, class))
			}
		}
	}
	return out
}

func (j *judge) withoutResult() []string {
	var out []string
	for _, class := range j.classes() {
		if !slices.ContainsFunc(j.Runs, func(r Run) bool { return r.Class == class && r.Result != "" }) {
			out = append(out, class)
		}
	}
	return out
}

// classes of the members, sorted.
func (j *judge) classes() []string {
	out := make([]string, 0, len(j.Spec.Members))
	for _, m := range j.Spec.Members {
		out = append(out, m.Class)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (j *judge) besideRounds() int {
	rounds := map[int]bool{}
	for i := range j.Runs {
		if r := &j.Runs[i]; j.kind(i) == lanegate.RoundBeside {
			rounds[r.Round] = true
		}
	}
	return len(rounds)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

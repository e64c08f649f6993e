package verification

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// startLag is how much of the time between a start's commit and an outcome's that
// the run itself did not take is believed to lie before the run. What is beyond it
// was spent on recording the outcome, while the run was over.
const startLag = time.Second

// span is when a run surely ran.
type span struct {
	from, to time.Time
	took     time.Duration // the run's own length, which may be more than is sure of it
	// counts: what it overlapped with is evidence; runs that ended badly have none.
	counts bool
	// open: it is still in flight, so its length is not known yet.
	open bool
}

// spanOf takes a run's monotonic duration back from its recorded end, and believes
// no more than startLag of delay at its start.
func spanOf(r *Run, now time.Time) span {
	if r.EndedAt == nil {
		to := later(r.StartedAt, now)
		return span{from: r.StartedAt, to: to, took: to.Sub(r.StartedAt), counts: true, open: true}
	}
	s := span{from: r.StartedAt, to: *r.EndedAt, counts: r.Outcome == lanegate.Succeeded}
	if s.took = r.Duration; s.took <= 0 {
		s.took = s.to.Sub(s.from)
		return s
	}
	if from := s.to.Add(-r.Duration); from.After(s.from) {
		s.from = from
	}
	if to := r.StartedAt.Add(r.Duration + startLag); to.Before(s.to) {
		s.to = later(s.from, to)
	}
	return s
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// together is how long all of them ran at once; 0 when they did not.
func together(spans ...span) time.Duration {
	from, to := spans[0].from, spans[0].to
	for _, s := range spans[1:] {
		from = later(from, s.from)
		if s.to.Before(to) {
			to = s.to
		}
	}
	return max(0, to.Sub(from))
}

// needed is how long spans must run at once, by the criteria: a share of the
// shortest, or the window where that is less. Of spans in flight the length is
// unknown: the shortest that has ended bounds it from above, and while none has,
// only the window is enough. ok is false when nothing known would be.
func needed(c lanegate.Criteria, spans ...span) (d time.Duration, ok bool) {
	shortest := time.Duration(-1)
	for _, s := range spans {
		if !s.open && (shortest < 0 || s.took < shortest) {
			shortest = s.took
		}
	}
	window := c.Window.Std()
	if shortest < 0 {
		return window, window > 0
	}
	d = time.Duration(c.MinOverlap * float64(shortest))
	if window > 0 {
		d = min(d, window)
	}
	return d, true
}

// enough says whether spans have run at once long enough.
func enough(c lanegate.Criteria, spans ...span) bool {
	need, ok := needed(c, spans...)
	got := together(spans...)
	return ok && got > 0 && got >= need
}

// pairs has an entry for each two members that shall run at once, and one for
// each member with copies.
func (j *judge) pairs() []lanegate.PairEvidence {
	members := slices.Clone(j.Spec.Members)
	slices.SortFunc(members, func(a, b lanegate.VerificationMember) int { return cmp.Compare(a.Class, b.Class) })
	var all []lanegate.PairEvidence
	for i, a := range members {
		if a.Copies > 1 {
			all = append(all, j.copiesAtOnce(a.Class, a.Copies))
		}
		for _, b := range members[i+1:] {
			all = append(all, j.pair(a.Class, b.Class))
		}
	}
	return all
}

// beside lists the spans of a class's runs that count as evidence.
func (j *judge) beside(class string) []span {
	var out []span
	for i := range j.Runs {
		if r := &j.Runs[i]; r.Class == class && j.spans[i].counts && j.kind(i) == lanegate.RoundBeside {
			out = append(out, j.spans[i])
		}
	}
	return out
}

// pair looks for the two runs that prove most: the longest stretch of those that
// were long enough, else the longest.
func (j *judge) pair(a, b string) lanegate.PairEvidence {
	best := stretch{PairEvidence: lanegate.PairEvidence{A: a, B: b}}
	for _, x := range j.beside(a) {
		for _, y := range j.beside(b) {
			best.take(j.stretch(x, y))
		}
	}
	return best.PairEvidence
}

// stretch is a candidate for a pair's evidence.
type stretch struct {
	lanegate.PairEvidence
	seen bool
}

func (j *judge) stretch(spans ...span) lanegate.PairEvidence {
	need, _ := needed(j.Spec.Criteria, spans...)
	return lanegate.PairEvidence{Overlap: together(spans...).Seconds(), Needed: need.Seconds(), Proven: enough(j.Spec.Criteria, spans...)}
}

// take keeps the better of two.
func (s *stretch) take(p lanegate.PairEvidence) {
	better := !s.seen
	switch {
	case better:
	case p.Proven != s.Proven:
		better = p.Proven
	case p.Overlap != s.Overlap:
		better = p.Overlap > s.Overlap
	default:
		better = p.Needed < s.Needed
	}
	if better {
		s.Overlap, s.Needed, s.Proven, s.seen = p.Overlap, p.Needed, p.Proven, true
	}
}

// copiesAtOnce finds the most runs of a class that really ran at once: for each
// moment at which one began, of the runs under way those that lasted longest.
func (j *judge) copiesAtOnce(class string, wanted int) lanegate.PairEvidence {
	all := j.beside(class)
	best := stretch{PairEvidence: lanegate.PairEvidence{A: class, B: class}}
	for _, first := range all {
		var under []span
		for _, s := range all {
			if !s.from.After(first.from) && s.to.After(first.from) {
				under = append(under, s)
			}
		}
		slices.SortStableFunc(under, func(a, b span) int {
			return cmp.Or(b.to.Compare(a.to), a.from.Compare(b.from), cmp.Compare(a.took, b.took))
		})
		for k := 2; k <= len(under); k++ {
			at := j.stretch(under[:k]...)
			if at.Proven {
				best.Copies = max(best.Copies, k)
			}
			if k == wanted {
				best.take(at)
			}
		}
	}
	best.Copies = max(best.Copies, 1)
	best.Proven = best.Copies >= wanted
	return best.PairEvidence
}

// roundOver says whether the round under way has nothing left to show: at most
// its windowed runs are in flight, and each of these has been beside every other
// one that is for long enough; one that runs alone, as long as the window.
func (j *judge) roundOver() bool {
	begun := false
	var flying []span
	for i := range j.Runs {
		begun = begun || j.Runs[i].Round == j.Round+1
		if j.spans[i].open {
			flying = append(flying, j.spans[i])
		}
	}
	if !begun || len(flying) == 0 {
		return begun
	}
	window := j.Spec.Criteria.Window.Std()
	if window <= 0 {
		return false
	}
	if j.Plan[j.Round].Kind == lanegate.RoundBaseline {
		return !slices.ContainsFunc(flying, func(s span) bool { return s.took < window })
	}
	for i, a := range flying {
		for _, b := range flying[i+1:] {
			if !enough(j.Spec.Criteria, a, b) {
				return false
			}
		}
	}
	return true
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/runlog"
)

// FreshStatus says how a class stands with its fresh_within.
type FreshStatus string

// What a class with fresh_within can be.
const (
	Fresh FreshStatus = "fresh"
	// AtRisk: half of the played-out lines have a success in time, but not nine of ten.
	AtRisk FreshStatus = "at_risk"
	// ExpectedLate: the next success is expected after it is due; or nobody can say
	// when, and even a run that started now would end too late.
	ExpectedLate FreshStatus = "expected_late"
	Late         FreshStatus = "late"
)

// Freshness is how a class stands with its fresh_within.
type Freshness struct {
	Class       string
	Status      FreshStatus
	Lane        string // where its jobs go now
	FreshWithin time.Duration
	LastSuccess *time.Time // nil: none yet
	// Since is what FreshWithin counts from: the last success, or what From says.
	Since time.Time
	From  FreshFrom
	DueBy time.Time
	// Running and Queued are its jobs, the first by place; at most jobsNamed.
	Running, Queued []string
	// Finish is when its next success is expected; its Why is set when that is not known.
	Finish   runlog.Foretold
	InTheWay []InTheWay
	Help     []Help
	Sentence string
}

// InTheWay is a class whose jobs go before the first queued job of another.
type InTheWay struct {
	Class   string
	Running []string  // jobs in flight
	Since   time.Time // when the first of them started; zero when none runs
	Queued  int       // jobs that stand before it in its lane
}

// Help is something that a person can do about it.
type Help struct {
	Action   string // "submit", "resume", "run_next", "promote", "verify", "cancel"
	Sentence string
	Command  string // for a shell; "" when it can't be said in one
}

// jobsNamed bounds the jobs that are named for a class.
const jobsNamed = 5

// FreshnessView is the answer to a look at all classes with fresh_within.
type FreshnessView struct {
	Now time.Time
	// ForetoldAt is when the expectations are from, zero when there are none yet.
	ForetoldAt time.Time
	Classes    []Freshness // the latest first, then by when they are due
}

// Freshness says how every class with fresh_within stands. Expectations are the
// latest that the background has; looking makes it look again.
func (s *Service) Freshness(ctx context.Context) (FreshnessView, error) {
	f := s.oracle.look()
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return FreshnessView{}, err
	}
	if f == nil {
		f = &foresight{Forecast: &runlog.Forecast{}, line: Line{Input: in}}
	}
	return s.freshness(ctx, f, in)
}

// freshness judges the classes of in, which is f's line or newer.
func (s *Service) freshness(ctx context.Context, f *foresight, in admission.Input) (FreshnessView, error) {
	counts, err := freshCounts(ctx, s.store, in.Classes)
	if err != nil {
		return FreshnessView{}, err
	}
	view := FreshnessView{Now: in.Now, ForetoldAt: f.At}
	decision := f.decision()
	var worried []string
	for _, c := range in.Classes {
		if c.FreshWithin <= 0 {
			continue
		}
		fr := f.judge(c, counts[c.ID], in.Now)
		if fr.Status != Fresh {
			worried = append(worried, c.ID)
			fr.InTheWay = f.inTheWay(c.ID, fr.Lane, decision)
		}
		view.Classes = append(view.Classes, fr)
	}
	if len(worried) > 0 {
		if err := s.help(ctx, in, worried, view.Classes); err != nil {
			return FreshnessView{}, err
		}
	}
	for i := range view.Classes {
		view.Classes[i].Sentence = view.Classes[i].sentence(in.Now)
	}
	slices.SortStableFunc(view.Classes, func(a, b Freshness) int {
		return cmp.Or(cmp.Compare(rankOf(b.Status), rankOf(a.Status)), a.DueBy.Compare(b.DueBy))
	})
	return view, nil
}

func rankOf(s FreshStatus) int {
	return slices.Index([]FreshStatus{Fresh, AtRisk, ExpectedLate, Late}, s)
}

// decision explains the waits of the line that f is from.
func (f *foresight) decision() admission.Decision {
	in := f.line.Input
	in.Asking, in.Due = "", nil
	seen := map[string]bool{}
	for _, q := range f.line.Queued {
		if !seen[q.Class] && !q.ReadyAt.After(in.Now) {
			seen[q.Class] = true
			in.Due = append(in.Due, q.Due)
		}
	}
	return admission.Plan(in)
}

// judge says whether a class is, or will be, late.
func (f *foresight) judge(c lanegate.Class, count freshCount, now time.Time) Freshness {
	route, _ := admission.RouteOf(c, f.line.Input.Lanes)
	fr := Freshness{Class: c.ID, Status: Fresh, Lane: route.Lane, FreshWithin: c.FreshWithin.Std(), Since: count.at, From: count.from, DueBy: count.by(c)}
	if count.from == FromSuccess {
		fr.LastSuccess = &count.at
	}
	for _, r := range f.line.Input.InFlight {
		if r.Class == c.ID && len(fr.Running) < jobsNamed {
			fr.Running = append(fr.Running, r.Job)
		}
	}
	for _, q := range f.line.Queued {
		if q.Class == c.ID && len(fr.Queued) < jobsNamed {
			fr.Queued = append(fr.Queued, q.Job)
		}
	}
	var ok bool
	if fr.Finish, ok = f.Finishes[c.ID]; !ok {
		fr.Finish = runlog.Foretold{Why: "nothing is queued or running for it"}
		if f.At.IsZero() {
			fr.Finish = notForetold
		}
	}
	fr.Finish = notBefore(fr.Finish, now)
	switch typical := median(f.histories[c.ID].Good); {
	case now.After(fr.DueBy):
		fr.Status = Late
	case fr.Finish.Known() && fr.Finish.P50.After(fr.DueBy):
		fr.Status = ExpectedLate
	case fr.Finish.Known() && fr.Finish.P90.After(fr.DueBy):
		fr.Status = AtRisk
	case !fr.Finish.Known() && len(fr.Running) == 0 && typical > 0 && now.Add(typical).After(fr.DueBy):
		fr.Status = ExpectedLate
	}
	return fr
}

// median is that of a few durations, 0 when there are none.
func median(d []time.Duration) time.Duration { return QuantilesOf(slices.Clone(d)).P50 }

// inTheWay lists the classes whose jobs go before the first queued job of a class:
// those that the planner names as what it waits for, those that run in its lane, and
// those that stand before it there. With a run of its own under way, nobody is.
func (f *foresight) inTheWay(class, lane string, d admission.Decision) []InTheWay {
	in := f.line.Input
	if slices.ContainsFunc(in.InFlight, func(r admission.Running) bool { return r.Class == class }) {
		return nil
	}
	first := slices.IndexFunc(f.line.Queued, func(w runlog.Waiting) bool { return w.Class == class })
	if first < 0 {
		return nil
	}
	named := map[string]bool{}
	if w, ok := d.WaitOf(class); ok {
		for _, r := range w.Reasons {
			for _, j := range r.Jobs {
				named[j] = true
			}
		}
	}
	found := map[string]*InTheWay{}
	of := func(class string) *InTheWay {
		if found[class] == nil {
			found[class] = &InTheWay{Class: class}
		}
		return found[class]
	}
	for _, r := range in.InFlight {
		if !named[r.Job] && (len(named) > 0 || r.Lane != lane) {
			continue
		}
		w := of(r.Class)
		if w.Running = append(w.Running, r.Job); w.Since.IsZero() || r.StartedAt.Before(w.Since) {
			w.Since = r.StartedAt
		}
	}
	lanes := map[string]string{}
	for _, c := range in.Classes {
		route, _ := admission.RouteOf(c, in.Lanes)
		lanes[c.ID] = route.Lane
	}
	for _, q := range f.line.Queued[:first] {
		if lanes[q.Class] == lane && !q.ReadyAt.After(in.Now) {
			of(q.Class).Queued++
		}
	}
	list := []InTheWay{}
	for _, class := range slices.Sorted(maps.Keys(found)) {
		list = append(list, *found[class])
	}
	slices.SortStableFunc(list, func(a, b InTheWay) int {
		return cmp.Or(cmp.Compare(len(b.Running), len(a.Running)), cmp.Compare(b.Queued, a.Queued))
	})
	return list
}

// what names the success that is due.
func (fr *Freshness) what() string {
	if fr.From == FromSuccess {
		return "a success"
	}
	return "its first success"
}

// sentence says it all in one.
func (fr *Freshness) sentence(now time.Time) string {
	var s strings.Builder
	due := fr.DueBy.UTC().Format("2006-01-02 15:04:05 MST")
	left := fr.DueBy.Sub(now).Round(time.Second)
	switch fr.Status {
	case Fresh:
		return fmt.Sprintf("%s is fresh until %s.", fr.Class, due)
	case Late:
		fmt.Fprintf(&s, "%s is late: %s was due by %s, %s ago", fr.Class, fr.what(), due, -left)
	case ExpectedLate:
		fmt.Fprintf(&s, "%s will be late: %s is due by %s, in %s", fr.Class, fr.what(), due, left)
	case AtRisk:
		fmt.Fprintf(&s, "%s may be late: %s is due by %s, in %s", fr.Class, fr.what(), due, left)
	}
	if fr.Finish.Known() {
		fmt.Fprintf(&s, "; the next one is expected at %s", fr.Finish.P50.UTC().Format("2006-01-02 15:04:05 MST"))
	} else {
		fmt.Fprintf(&s, "; when the next one comes is not known: %s", fr.Finish.Why)
	}
	var way []string
	for _, w := range fr.InTheWay {
		switch {
		case len(w.Running) > 0 && w.Queued > 0:
			way = append(way, fmt.Sprintf("%s (runs for %s, %d more queued before it)", w.Class, now.Sub(w.Since).Round(time.Second), w.Queued))
		case len(w.Running) > 0:
			way = append(way, fmt.Sprintf("%s (runs for %s)", w.Class, now.Sub(w.Since).Round(time.Second)))
		default:
			way = append(way, fmt.Sprintf("%s (%d queued before it)", w.Class, w.Queued))
		}
	}
	if len(way) > 0 {
		s.WriteString("; in the way: " + strings.Join(way, ", "))
	}
	return s.String() + "."
}

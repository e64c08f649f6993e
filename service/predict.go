package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/runlog"
)

// Bounds of what is foretold.
const (
	// MaxForetold is how many queued jobs have an expected start, the first by place.
	MaxForetold = 2000
	// maxForetoldLater is how many of those that wait for their time are among them.
	maxForetoldLater = 200
	// historyRuns is how many of a class's latest runs are drawn from.
	historyRuns = 200
	historyAge  = 30 * time.Second
	// foreseeEvery and foreseeCost bound how often the line is played out: neither
	// sooner, nor for more than this part of the time.
	foreseeEvery = 2 * time.Second
	foreseeCost  = 20
	// viewerAge is how long somebody who looked may look again.
	viewerAge = 30 * time.Second
	// freshLook is how often freshness is looked after while nobody looks: this part
	// of the shortest fresh_within, between foreseeEvery and freshLookMost.
	freshLook     = 60
	freshLookMost = time.Minute
)

// oracle keeps what was foretold last, for everybody who looks.
type oracle struct {
	mu     sync.Mutex
	last   *foresight // guarded by mu
	looked time.Time  // when somebody last looked; guarded by mu
	// late is, for each class with fresh_within, whether its next success is
	// expected to be late or already is; nil before the first look. Guarded by mu.
	late map[string]bool
	said map[lateEvent]bool // guarded by mu

	// The rest belongs to Foresee, of which one runs at a time (running).
	running   sync.Mutex
	histories map[string]keptHistory
	next      time.Time // no sooner is the line played out again
	quiet     time.Time // when it is due though nobody looks
}

// foresight is one forecast with what it is from.
type foresight struct {
	*runlog.Forecast
	line      Line
	histories map[string]runlog.History
	// behind: jobs stand behind those that were foretold.
	behind bool
}

type keptHistory struct {
	runlog.History
	at time.Time
}

func newOracle() *oracle {
	return &oracle{histories: map[string]keptHistory{}, said: map[lateEvent]bool{}}
}

// look returns the latest foresight, nil when there is none, and asks for a newer one.
func (o *oracle) look() *foresight {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looked = time.Now()
	return o.last
}

func (o *oracle) watched(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.looked.IsZero() && now.Sub(o.looked) < viewerAge
}

// Foresee plays the present line out, if it is time to: while somebody looks at
// waits, every few seconds; otherwise as often as the classes with fresh_within
// need, and never without them. It then announces classes that will be late. It is
// for a loop that calls it about every second.
func (s *Service) Foresee(ctx context.Context) error {
	o := s.oracle
	o.running.Lock()
	defer o.running.Unlock()
	now := time.Now()
	if now.Before(o.next) || !o.watched(now) && now.Before(o.quiet) {
		return nil
	}
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return err
	}
	o.quiet = now.Add(quietFor(cfg.Classes))
	if !o.watched(now) && !slices.ContainsFunc(cfg.Classes, func(c lanegate.Class) bool { return c.FreshWithin > 0 }) {
		return nil
	}
	f, err := s.foresee(ctx)
	took := time.Since(now)
	o.next = time.Now().Add(max(foreseeEvery, foreseeCost*took))
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.last = f
	o.mu.Unlock()
	return s.watchFreshness(ctx, f)
}

// quietFor is how long nothing has to be foretold while nobody looks.
func quietFor(classes []lanegate.Class) time.Duration {
	wait := freshLookMost
	for _, c := range classes {
		if c.FreshWithin > 0 {
			wait = min(wait, c.FreshWithin.Std()/freshLook)
		}
	}
	return max(wait, foreseeEvery)
}

func (s *Service) foresee(ctx context.Context) (*foresight, error) {
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	perClass := min(MaxForetold, max(50, MaxForetold/max(1, len(in.Due)))) // Due: the heads of the classes that have any
	line, err := s.store.Line(ctx, perClass, maxForetoldLater)
	if err != nil {
		return nil, err
	}
	f := &foresight{line: line}
	f.cut()
	if f.histories, err = s.histories(ctx, f.line); err != nil {
		return nil, err
	}
	f.Forecast, err = runlog.ForecastLine(ctx, runlog.Line{Input: f.line.Input, Queued: f.line.Queued, History: f.histories, Seed: 1})
	if err != nil {
		return nil, err
	}
	f.forgetCutLanes()
	return f, nil
}

// cut sorts the queued jobs by place and leaves out those behind the first that was
// not read, whose lines are not known, and those that are too many.
func (f *foresight) cut() {
	q := f.line.Queued
	slices.SortFunc(q, func(a, b runlog.Waiting) int {
		if admission.Before(a.Due, b.Due) {
			return -1
		}
		return 1
	})
	end := min(len(q), MaxForetold)
	for _, class := range f.line.Cut {
		last := -1
		for i, w := range q {
			if w.Class == class && !w.ReadyAt.After(f.line.Input.Now) {
				last = i
			}
		}
		end = min(end, last+1)
	}
	f.behind = end < len(q) || len(f.line.Cut) > 0 || f.line.NotDueCut
	f.line.Queued = q[:end]
}

// forgetCutLanes takes back when lanes are empty that have jobs which were not read.
func (f *foresight) forgetCutLanes() {
	if len(f.line.Cut) == 0 && len(f.line.Queued) < MaxForetold {
		return
	}
	for lane := range f.Empty {
		f.Empty[lane] = runlog.Foretold{Why: fmt.Sprintf("only the first %d queued jobs are looked at, and more wait", len(f.line.Queued))}
	}
}

// histories returns how long the runs of the classes in the line took, and of those
// with fresh_within.
func (s *Service) histories(ctx context.Context, line Line) (map[string]runlog.History, error) {
	want := map[string]bool{}
	for _, c := range line.Input.Classes {
		want[c.ID] = c.FreshWithin > 0
	}
	for _, q := range line.Queued {
		want[q.Class] = true
	}
	for _, r := range line.Input.InFlight {
		want[r.Class] = true
	}
	o, now := s.oracle, time.Now()
	var missing []string
	for class, wanted := range want {
		h, ok := o.histories[class]
		age := historyAge
		if len(h.Good) < runlog.MinHistory {
			age = foreseeEvery
		}
		if wanted && (!ok || now.Sub(h.at) >= age) {
			missing = append(missing, class)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		recent, err := s.store.RecentDurations(ctx, missing, historyRuns)
		if err != nil {
			return nil, err
		}
		for _, class := range missing {
			h := keptHistory{at: now}
			for _, r := range recent[class] {
				h.Busy = append(h.Busy, r.Duration)
				if r.Outcome == lanegate.Succeeded {
					h.Good = append(h.Good, r.Duration)
				}
			}
			o.histories[class] = h
		}
	}
	out := map[string]runlog.History{}
	maps.DeleteFunc(o.histories, func(class string, _ keptHistory) bool { return !want[class] })
	for class, h := range o.histories {
		out[class] = h.History
	}
	return out, nil
}

// Reasons for having no expectation that come from not having looked.
var (
	notForetold = runlog.Foretold{Why: "not foretold yet; ask again in a few seconds"}
	tooFar      = runlog.Foretold{Why: fmt.Sprintf("it stands behind the first jobs of the line, and no more than %d are foretold", MaxForetold)}
)

// start is when a queued job is expected to start.
func (f *foresight) start(job string, now time.Time) runlog.Foretold {
	if f == nil {
		return notForetold
	}
	t, ok := f.Starts[job]
	switch {
	case !ok && f.behind:
		return tooFar
	case !ok:
		return notForetold
	}
	return notBefore(t, now)
}

// empty is when a lane is expected to be empty; false when nothing is in it.
func (f *foresight) empty(lane string, now time.Time) (runlog.Foretold, bool) {
	if f == nil {
		return notForetold, true
	}
	t, ok := f.Empty[lane]
	return notBefore(t, now), ok
}

// notBefore moves an expectation that has passed meanwhile to now.
func notBefore(t runlog.Foretold, now time.Time) runlog.Foretold {
	if t.Known() && t.P50.Before(now) {
		t.P50 = now
	}
	if t.Known() && t.P90.Before(now) {
		t.P90 = now
	}
	return t
}

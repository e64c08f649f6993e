package runlog

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// MinHistory is how many good runs a class must have before anything is foretold
// from it.
const MinHistory = 5

// forecastRuns is how often the line is played out, unless it is so long that
// forecastStarts, which bounds the work, allows fewer; never fewer than leastRuns.
const (
	forecastRuns   = 100
	forecastStarts = 60_000
	leastRuns      = 20
)

// Waiting is a queued job of a Line.
type Waiting struct {
	admission.Due
	ReadyAt time.Time // not before this time
}

// History is the durations of a class's finished runs, in any order.
type History struct {
	// Good is of those that succeeded. Busy is of all that ended by themselves, by
	// success, failure or time limit: as long did they hold what others waited for.
	Good, Busy []time.Duration
}

// Line is what a forecast starts from: the planner's input as it is now, the queued
// jobs, and how long each class's runs take.
type Line struct {
	Input   admission.Input // Due is not looked at
	Queued  []Waiting
	History map[string]History
	// Seed makes forecasts of the same line alike.
	Seed uint64
}

// Foretold is when something is expected: half of the played-out lines had it by
// P50, nine of ten by P90. When it can't be said, both are zero and Why says why, in
// a sentence, with the classes that are the reason.
type Foretold struct {
	P50, P90 time.Time
	Why      string
	Classes  []string
}

// Known says whether there is an expectation.
func (f Foretold) Known() bool { return !f.P50.IsZero() }

// Forecast is what a Line is expected to do.
type Forecast struct {
	At   time.Time // the Line's
	Runs int       // how often it was played out
	// Starts has each queued job, Finishes each class with a job queued or running:
	// when the first of them succeeds, if it does at its first try.
	Starts, Finishes map[string]Foretold
	// Empty is when all that is due in a lane now, or runs in it, has ended. Lanes
	// with nothing in them have no entry.
	Empty map[string]Foretold
}

// ForecastLine plays the line out through the planner that decides in production,
// with durations drawn from each class's history (with replacement; of a running
// job, from those longer than it has run so far), and says when jobs start, when
// classes finish and lanes become empty. Nothing that is submitted later is in it.
//
// A job whose duration nobody knows is taken to run for ever: fewer than MinHistory
// good runs, or running for longer than any run before. What waits for it has no
// expectation; neither has what had to wait in a lane beside it.
//
// ctx ends it with ctx's error.
func ForecastLine(ctx context.Context, l Line) (*Forecast, error) {
	p := newForecaster(l)
	for i := range p.runs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p.play(rand.New(rand.NewPCG(l.Seed, uint64(i))))
	}
	return p.forecast(), nil
}

// forecaster is the state over all plays of one line.
type forecaster struct {
	line    Line
	planner *admission.Planner
	runs    int
	jobs    []Waiting // by place; those that can't start are in stuck instead
	index   map[string]int
	classes map[string]*lineClass
	widths  map[string]int
	stuck   map[string]Foretold // by job: what nothing but a person or a worker mends

	starts   [][]float64           // by job, seconds from now; unknown when it never started
	finishes map[string][]float64  // by class, the first success
	empty    map[string][]float64  // by lane
	blockers map[string]blockerSet // by lane, what nobody knows the end of
}

type blockerSet map[string]string // class → why nobody knows

// lineClass is a class as a forecast needs it.
type lineClass struct {
	lane       string
	limit      int
	good, busy []time.Duration // sorted; nil when there are too few good runs
	n          int             // good runs
	// twins names, in a lane that is first in, first out, what a run needs of
	// resources and workers; "" in other lanes.
	twins string
}

// unknown stands for a time that never came.
const unknown = 1e18

func newForecaster(l Line) *forecaster {
	f := &forecaster{
		line: l, index: map[string]int{}, classes: map[string]*lineClass{}, widths: map[string]int{}, stuck: map[string]Foretold{},
		finishes: map[string][]float64{}, empty: map[string][]float64{}, blockers: map[string]blockerSet{},
	}
	in := l.Input
	for i := range in.Classes {
		c := &in.Classes[i]
		route, _ := admission.RouteOf(*c, in.Lanes)
		k := &lineClass{lane: route.Lane, limit: max(1, c.MaxInFlight), n: len(l.History[c.ID].Good)}
		if k.n >= MinHistory {
			k.good, k.busy = slices.Sorted(slices.Values(l.History[c.ID].Good)), slices.Sorted(slices.Values(l.History[c.ID].Busy))
		}
		if fifo := slices.ContainsFunc(in.Lanes, func(l lanegate.Lane) bool { return l.Name == k.lane && l.Order == lanegate.OrderFIFO }); fifo {
			k.twins = fmt.Sprint(k.lane, c.Run.Kind, c.Run.Command, c.CommandDigest, c.Using(in.Resources))
		}
		f.classes[c.ID] = k
	}
	for name, w := range admission.Widths(in.Lanes, in.Classes, in.Resources) {
		f.widths[name] = w.InForce
	}
	f.planner = admission.NewPlanner(in.Lanes, in.Classes, in.Resources)
	f.sortOut()
	f.starts = make([][]float64, len(f.jobs))
	f.runs = max(leastRuns, min(forecastRuns, forecastStarts/max(1, len(f.jobs))))
	return f
}

// sortOut keeps apart the jobs that nothing in the line can ever start.
func (f *forecaster) sortOut() {
	in := f.line.Input
	jobs := slices.Clone(f.line.Queued)
	slices.SortFunc(jobs, func(a, b Waiting) int {
		if admission.Before(a.Due, b.Due) {
			return -1
		}
		return 1
	})
	heads := map[string]bool{}
	in.Due, in.Asking, in.NoWaits = nil, "", false
	for _, j := range jobs {
		if !heads[j.Class] {
			heads[j.Class] = true
			in.Due = append(in.Due, j.Due)
		}
	}
	why := map[string]string{}
	for _, w := range admission.Plan(in).Waits {
		if text := standingReason(w.Reasons); text != "" {
			why[w.Class] = text
		}
	}
	if t := in.Trial; t != nil {
		for _, m := range t.Members {
			why[m] = "verification run " + t.ID + " decides when jobs of this class start"
		}
	}
	for _, j := range jobs {
		k := f.classes[j.Class]
		switch {
		case k == nil:
			f.stuck[j.Job] = Foretold{Why: "its class does not exist any more"}
		case why[j.Class] != "":
			f.stuck[j.Job] = Foretold{Why: why[j.Class]}
		case in.Hold != "" && k.lane == lanegate.LaneSerial:
			f.stuck[j.Job] = Foretold{Why: "verification run " + in.Hold + " holds serial"}
		default:
			f.index[j.Job] = len(f.jobs)
			f.jobs = append(f.jobs, j)
		}
	}
}

// standingReason words what no finish can mend, "" when there is nothing of the kind.
func standingReason(reasons []admission.Reason) string {
	for _, r := range reasons {
		switch r.Code {
		case admission.Paused:
			return "its " + r.Subject + " is paused"
		case admission.LaneWait:
			return "its lane is not available"
		case admission.NoWorker:
			return "no live worker serves " + r.Subject
		case admission.OverCapacity:
			return "it needs more of " + r.Subject + " than there is"
		}
	}
	return ""
}

// drawn is a random duration of a class's runs that is longer than done; false when
// nobody knows.
func drawn(rng *rand.Rand, sorted []time.Duration, done time.Duration) (time.Duration, bool) {
	i, _ := slices.BinarySearch(sorted, done+1)
	if i == len(sorted) {
		return 0, false
	}
	return sorted[i+rng.IntN(len(sorted)-i)], true
}

// ignorance says why nobody knows how long a run of the class takes that has run
// for done, "" when its history tells.
func (f *forecaster) ignorance(class string, done time.Duration) string {
	k := f.classes[class]
	switch {
	case k == nil:
		return class + " does not exist any more"
	case k.good == nil:
		return fmt.Sprintf("%s has %s, and %d are needed", class, count(k.n, "good run", "good runs"), MinHistory)
	case done >= k.busy[len(k.busy)-1]:
		return class + " runs longer than any of its runs before"
	}
	return ""
}

// forecast sums the plays up.
func (f *forecaster) forecast() *Forecast {
	out := &Forecast{At: f.line.Input.Now, Runs: f.runs, Starts: maps.Clone(f.stuck), Finishes: map[string]Foretold{}, Empty: map[string]Foretold{}}
	for i, j := range f.jobs {
		out.Starts[j.Job] = f.foretell(f.starts[i], f.classes[j.Class].lane)
	}
	for class, at := range f.finishes {
		lane := ""
		if k := f.classes[class]; k != nil {
			lane = k.lane
		}
		t := f.foretell(at, lane)
		if why := f.ignorance(class, 0); !t.Known() && why != "" {
			t = Foretold{Why: why, Classes: []string{class}}
		}
		out.Finishes[class] = t
	}
	for lane, at := range f.empty {
		out.Empty[lane] = f.foretell(at, lane)
	}
	f.tellStuck(out)
	return out
}

// tellStuck says of classes and lanes what their jobs are stuck for.
func (f *forecaster) tellStuck(out *Forecast) {
	said := map[string]bool{}
	for _, w := range f.line.Queued {
		t, ok := f.stuck[w.Job]
		if !ok {
			continue
		}
		if _, known := out.Finishes[w.Class]; !known {
			out.Finishes[w.Class] = t
		}
		if k := f.classes[w.Class]; k != nil && !said[k.lane] && !w.ReadyAt.After(out.At) {
			said[k.lane] = true
			out.Empty[k.lane] = Foretold{Why: "job " + w.Job + " can't start: " + t.Why, Classes: []string{w.Class}}
		}
	}
}

// foretell turns seconds from now into times; one that never came in some play is
// no expectation.
func (f *forecaster) foretell(at []float64, lane string) Foretold {
	slices.Sort(at)
	if len(at) == 0 || at[len(at)-1] >= unknown {
		return f.reason(lane)
	}
	rank := func(q float64) time.Time {
		i := int(q*float64(len(at))+0.999999) - 1
		return f.line.Input.Now.Add(time.Duration(at[max(0, i)] * 1e9)).UTC()
	}
	return Foretold{P50: rank(0.5), P90: rank(0.9)}
}

// reason says what in a lane, or else anywhere, nobody knows the end of.
func (f *forecaster) reason(lane string) Foretold {
	set := f.blockers[lane]
	if len(set) == 0 {
		set = blockerSet{}
		for _, s := range f.blockers {
			maps.Copy(set, s)
		}
	}
	classes := sortedKeys(set)
	var why []string
	for _, c := range classes {
		why = append(why, set[c])
	}
	if len(why) == 0 {
		return Foretold{Why: "it did not start in the time that was looked ahead"}
	}
	return Foretold{Why: strings.Join(why, "; "), Classes: classes}
}

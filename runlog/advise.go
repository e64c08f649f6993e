package runlog

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// Options are what the log itself doesn't say. The zero value is usable.
type Options struct {
	// Tolerable is a wait that nobody minds; 0 means DefaultTolerable.
	Tolerable time.Duration
	// Resources that runs share, and the units that one run of a class takes. With a
	// resource, a class without an entry counts as 1 of each pool resource.
	Resources []lanegate.Resource
	Units     map[string]lanegate.Units
	// Present is how the gateway that the log is of stands now, nil when there is none.
	Present *Present
	// Parallel is how many replays may go on at once; 0 means one for each processor.
	Parallel int
	// Progress, when set, is told how many of the replays are done: never by two
	// goroutines at once.
	Progress func(done, all int)
}

// Present is the lanes of a gateway as they are, and where its classes stand.
type Present struct {
	Lanes   []lanegate.Lane
	Classes []lanegate.Class
}

// DefaultTolerable is the Options.Tolerable that stands for 0.
const DefaultTolerable = 15 * time.Minute

// maxWorkers is how many workers the what-if tries.
const maxWorkers = 8

// Analyse says what a log shows. It sorts the log and reads it otherwise only.
//
// Errors are *lanegate.Error with the code bad_run_log (no runs), or
// bad_advise_options (units of an unknown class or resource, or above a
// capacity); ctx ends a long analysis with its own error.
func Analyse(ctx context.Context, log *Log, opts Options) (*Report, error) {
	if opts.Tolerable <= 0 {
		opts.Tolerable = DefaultTolerable
	}
	if len(log.Runs) == 0 {
		return nil, invalid("the log has no finished run")
	}
	if len(log.Runs) > math.MaxInt32 {
		return nil, invalid("the log has more than %d runs; give a part of it", math.MaxInt32)
	}
	if err := opts.check(log); err != nil {
		return nil, err
	}
	log.sort()
	a := &analysis{log: log, opts: opts, groups: log.group()}
	a.named = nameClasses(log.Classes, a.groups)
	a.describe()
	if err := a.whatIf(ctx); err != nil {
		return nil, err
	}
	a.judge()
	return a.report, nil
}

// analysis is the state of one Analyse.
type analysis struct {
	log    *Log
	opts   Options
	groups []grouped // parallel to log.Classes
	named  named
	report *Report

	matrix *matrix
	heavy  []int  // the classes that make others wait, the worst first
	kind   string // of the verdict
	// candidates could leave the line for parallel, the one that waits most first.
	candidates []int
	leftOut    []LeftOut // the other classes, with why not; the one that waits most first
	layouts    map[string]*Layout
}

// describe fills in what needs no replay.
func (a *analysis) describe() {
	l := a.log
	r := &Report{Schema: SchemaVersion, Tolerable: a.opts.Tolerable.Seconds(), Mend: []Mend{}, Blockers: []Blocker{}, Blame: []Blame{}, Layouts: []Layout{}, Order: []Order{}, Notes: []string{}, Files: l.Accounts}
	a.report = r
	from, to := l.Runs[0].Ready, l.Runs[0].Ready
	all := make([]int64, len(l.Runs))
	var waits []int64
	busy := int64(0)
	for i, run := range l.Runs {
		to = max(to, run.End())
		all[i] = run.Took
		busy += run.Took
		if run.HasReady && run.HasStart {
			waits = append(waits, run.Start-run.Ready)
		}
	}
	r.Span = Span{From: time.UnixMicro(from).UTC(), To: time.UnixMicro(to).UTC(), Days: round(float64(to-from)/86400e6, 100), Runs: len(l.Runs)}
	r.Span.Relative = r.Span.From.Before(firstDate)
	slices.Sort(all)
	r.Mix = Split{TooFew: true}
	if long := fromSecond(all); len(long) >= minSplitRuns {
		r.Mix = split(long, 3, 10)
	}
	if len(waits) > 0 {
		w := waitsOf(waits)
		r.Recorded = &w
	}
	r.Load = l.load()
	r.Classes = make([]ClassReport, len(l.Classes))
	for i := range a.groups {
		r.Classes[i] = a.groups[i].report(l.Classes[i], busy)
	}
	r.Order = hiddenOrder(l.Classes, a.groups)
	a.note(len(waits))
}

// firstDate: times before it are no dates. No log of jobs is that old; its seconds
// count from a start of its own.
var firstDate = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// note says what can't be known.
func (a *analysis) note(waits int) {
	add := func(s string) { a.report.Notes = append(a.report.Notes, s) }
	ready, started := 0, 0
	for i := range a.log.Runs {
		if a.log.Runs[i].HasReady {
			ready++
		}
		if a.log.Runs[i].HasStart {
			started++
		}
	}
	n := len(a.log.Runs)
	switch {
	case ready == 0:
		add("No row says when its job was submitted, so who waited, and for whom, can't be known.")
	case started == 0:
		add("No row says when its run started, so recorded waits, overlaps and hidden orders can't be known; the replays need only submit times and durations.")
	case waits < n:
		add(count(n-waits, "run has", "runs have") + " no recorded wait (no submit or no start time, or a repeated attempt).")
	}
	if a.report.Span.Relative {
		add("Its times count from a start that it does not name, so days are given from there, and no dates.")
	}
	if a.log.NoStatus {
		add("No row says how its run ended, so all count as good.")
	}
}

// analysable says whether the replays mean anything: there must be submit times.
func (a *analysis) analysable() bool {
	ready := 0
	for i := range a.log.Runs {
		if a.log.Runs[i].HasReady {
			ready++
		}
	}
	return len(a.log.Runs) >= minRuns && 2*ready >= len(a.log.Runs)
}

// minRuns is the least that a verdict is made from.
const minRuns = 20

// findHeavy names the classes that make others wait because their runs are long:
// by harm to others, the worst first, until four fifths of all waiting for others
// is named, as long as what they put in the line (lengthBiased) is at least ten
// times what the other classes' runs typically take.
//
// How much of the waiting they cause is no test: when a long run is over, the jobs
// that it held up wait for each other, and are charged with that. Whether a lane
// apart would help is what its replay says, see isolationHelps.
func (a *analysis) findHeavy() {
	if a.matrix.cross == 0 {
		return
	}
	type cause struct {
		class int
		harm  float64
	}
	var causes []cause
	for class := range a.groups {
		slot := a.named.slot[class]
		if a.matrix.names[slot] == a.log.Classes[class] {
			if harm, _ := a.matrix.harm(slot); harm > 0 {
				causes = append(causes, cause{class, harm})
			}
		}
	}
	slices.SortStableFunc(causes, func(x, y cause) int { return cmp.Compare(y.harm, x.harm) })
	covered := 0.0
	heavy := map[int]bool{}
	for _, c := range causes {
		if covered >= 0.8*a.matrix.cross || c.harm < 0.05*a.matrix.cross {
			break
		}
		if float64(lengthBiased(a.groups[c.class].runs)) < 10*float64(a.medianWithout(c.class, heavy)) {
			continue
		}
		heavy[c.class] = true
		a.heavy = append(a.heavy, c.class)
		covered += c.harm
	}
}

// medianWithout is the median duration of all runs but those of a class and of
// the heavy ones.
func (a *analysis) medianWithout(class int, heavy map[int]bool) int64 {
	var took []int64
	for i := range a.log.Runs {
		if c := int(a.log.Runs[i].Class); c != class && !heavy[c] {
			took = append(took, a.log.Runs[i].Took)
		}
	}
	slices.Sort(took)
	return quantile(took, 0.5)
}

package runlog

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// Names of the layouts; workers_N has its number.
const (
	layoutOneLine = "one_line"
	layoutPresent = "present"
	layoutIsolate = "isolate"
	layoutPromote = "promote"
	layoutWorkers = "workers_"

	laneLong    = "long"
	laneWorkers = "workers"
)

// check refuses units that no class or resource has, or that no run could get.
func (o *Options) check(log *Log) error {
	bad := func(format string, args ...any) error {
		return &lanegate.Error{Kind: lanegate.KindInvalid, Code: "bad_advise_options", Message: fmt.Sprintf(format, args...)}
	}
	capacity := map[string]int{}
	for _, r := range o.Resources {
		if r.Capacity < 1 {
			return bad("resource %s has capacity %d; it must be at least 1", r.Name, r.Capacity)
		}
		if _, ok := capacity[r.Name]; ok {
			return bad("resource %s is given twice", r.Name)
		}
		capacity[r.Name] = r.Capacity
	}
	for _, class := range sortedKeys(o.Units) {
		if _, ok := log.index[class]; !ok {
			return bad("units are given for class %q, which the log doesn't have; it has %s", class, list(log.Classes))
		}
		for _, name := range sortedKeys(o.Units[class]) {
			units := o.Units[class][name]
			limit, ok := capacity[name]
			switch {
			case !ok:
				return bad("class %s has units of %q, which is no resource; declare it with --resource %s=CAPACITY", class, name, name)
			case units < 0 || units > limit:
				return bad("class %s takes %d of %s, which has %d: it could never run", class, units, name, limit)
			}
		}
	}
	return nil
}

// newPlan is the log's classes, all in one lane.
func (a *analysis) newPlan(lane string, limit int) *plan {
	p := &plan{resources: a.opts.Resources}
	for _, id := range a.log.Classes {
		c := lanegate.Class{ID: id, Lane: lane, MaxInFlight: limit}
		c.Run.Kind = lanegate.RunHTTP // needs no command that a worker would have to have
		c.Units = a.opts.Units[id]
		p.classes = append(p.classes, c)
	}
	return p
}

func newLane(name string, width int, order lanegate.Order) lanegate.Lane {
	return lanegate.Lane{Name: name, WidthSetting: width, Order: order, WhenUnavailable: lanegate.FallbackWait, Available: true}
}

func (a *analysis) oneLine() *plan { return a.newPlan(lanegate.LaneSerial, 1) }

// isolate gives the heavy classes one lane of width 1.
func (a *analysis) isolate() *plan {
	p := a.oneLine()
	p.lanes = []lanegate.Lane{newLane(laneLong, 1, lanegate.OrderFIFO)}
	for _, h := range a.heavy {
		p.classes[h].Lane = laneLong
	}
	return p
}

// promote moves the candidates to parallel, as wide as the arithmetic says: victims
// one run of each at a time. Peers run beside themselves, so many that with serial's
// slot there are as many as the workers that the verdict is about; where no resource
// is given, which would limit it, that is the width.
func (a *analysis) promote() *plan {
	p := a.oneLine()
	width, limit := lanegate.WidthAuto, 1
	if a.kind == AddWorkers {
		n, _ := a.enoughWorkers()
		if limit = min(n, maxWorkers); len(a.candidates) < len(a.log.Classes) {
			limit-- // serial's
		}
		if len(a.opts.Resources) == 0 {
			width = limit
		}
	}
	p.lanes = []lanegate.Lane{newLane(lanegate.LaneParallel, width, lanegate.OrderFair)}
	for _, c := range a.candidates {
		p.classes[c].Lane, p.classes[c].MaxInFlight = lanegate.LaneParallel, limit
	}
	return p
}

// apart lists the log's classes that are outside serial now.
func (a *analysis) apart() []lanegate.Class {
	if a.opts.Present == nil {
		return nil
	}
	var list []lanegate.Class
	for _, c := range a.opts.Present.Classes {
		if _, known := a.log.index[c.ID]; known && c.Lane != lanegate.LaneSerial {
			list = append(list, c)
		}
	}
	return list
}

// present has the lanes and limits as they are now; a class of the log that the
// gateway doesn't have is in serial.
func (a *analysis) present() *plan {
	p := a.oneLine()
	for _, l := range a.opts.Present.Lanes {
		l.Available, l.Paused = true, false // the log is not about an outage of today
		p.lanes = append(p.lanes, l)
	}
	for _, c := range a.apart() {
		i := a.log.index[c.ID]
		p.classes[i].Lane, p.classes[i].MaxInFlight = c.Lane, c.MaxInFlight
	}
	for _, c := range a.opts.Present.Classes {
		if _, known := a.log.index[c.ID]; !known { // its units count in the widths
			c.Run = lanegate.Run{Kind: lanegate.RunHTTP}
			p.classes = append(p.classes, c)
		}
	}
	return p
}

// workers lets n jobs run at once, whichever they are. Resources are left out: it
// is what the line itself would gain.
func (a *analysis) workers(n int) *plan {
	p := a.newPlan(laneWorkers, n)
	p.resources = nil
	for i := range p.classes {
		p.classes[i].Units = nil
	}
	p.lanes = []lanegate.Lane{newLane(laneWorkers, n, lanegate.OrderFIFO)}
	return p
}

// whatIf replays the log under every layout.
func (a *analysis) whatIf(ctx context.Context) error {
	a.layouts = map[string]*Layout{}
	if !a.analysable() {
		return nil
	}
	base := a.oneLine()
	out, err := simulate(ctx, a.log.Runs, base)
	if err != nil {
		return err
	}
	a.keep(layoutOneLine, "all classes in serial, one at a time", base, out)
	a.matrix = blame(a.log.Runs, out.starts, a.named)
	a.report.Blockers, a.report.Blame = a.matrix.blockers(), a.matrix.pairs()
	a.findHeavy()
	progress, err := a.replayOthers(ctx)
	if err != nil {
		return err
	}
	a.kind = a.decide()
	a.choose()
	if len(a.candidates) > 0 {
		p := a.promote()
		if out, err = simulate(ctx, a.log.Runs, p); err != nil {
			return err
		}
		a.keepPromoted(p, out)
	}
	progress()
	return nil
}

// keepPromoted puts the layout before those of workers, with a word on how it compares.
func (a *analysis) keepPromoted(p *plan, out *outcome) {
	l := a.layout(layoutPromote, a.names(a.candidates)+" in parallel, the rest in serial", p, out)
	l.Note = a.comparePromoted(l)
	for i := range l.Lanes {
		if lane := &l.Lanes[i]; lane.Name == lanegate.LaneParallel && p.lanes[0].WidthSetting != lanegate.WidthAuto {
			lane.Arithmetic = fmt.Sprintf("%d: with serial's slot as many as %d workers", lane.Width, lane.Width+1)
			if len(l.Lanes) == 1 {
				lane.Arithmetic = fmt.Sprintf("%d: as many as %d workers", lane.Width, lane.Width)
			}
		}
	}
	a.layouts[layoutPromote] = l
	at := slices.IndexFunc(a.report.Layouts, func(l Layout) bool { return strings.HasPrefix(l.Name, layoutWorkers) })
	a.report.Layouts = slices.Insert(a.report.Layouts, at, *l)
}

// comparePromoted says why the classes in parallel wait more or less than with as many
// workers for everything, "" where no such replay is.
func (a *analysis) comparePromoted(l *Layout) string {
	slots, each := 0, []string{}
	for _, lane := range slices.Backward(l.Lanes) {
		slots += lane.Width
		each = append(each, fmt.Sprintf("%s %d", lane.Name, lane.Width))
	}
	twin, ok := a.layouts[layoutWorkers+strconv.Itoa(slots)]
	if !ok {
		return ""
	}
	why := [2]string{
		"a worker takes any job, while a free slot of one lane takes none of the other's",
		"a long run in one lane holds no slot of the other, while long runs can hold all workers, and in parallel the class with the fewest runs goes first",
	}
	if len(l.Lanes) == 1 {
		order := "in parallel the class with the fewest runs goes first, and units are kept to"
		why = [2]string{order, order}
	}
	s := fmt.Sprintf("At most %d runs at once (%s), as with %d workers, ", slots, strings.Join(each, ", "), slots)
	switch mine, theirs := digits3(l.Waits.Hours), digits3(twin.Waits.Hours); {
	case mine == theirs:
		s += "and the waits are the same"
	case l.Waits.Hours > twin.Waits.Hours:
		s += fmt.Sprintf("but jobs wait more, %s hours in all instead of %s: %s", mine, theirs, why[0])
	default:
		s += fmt.Sprintf("and jobs wait less, %s hours in all instead of %s: %s", mine, theirs, why[1])
	}
	if len(a.opts.Resources) > 0 {
		s += "; the rows of workers leave resources out"
	}
	return s + "."
}

// scenario is a layout to try.
type scenario struct {
	name, description string
	plan              *plan
}

func (a *analysis) scenarios() []scenario {
	var list []scenario
	if len(a.apart()) > 0 {
		list = append(list, scenario{layoutPresent, "the lanes as they are now", a.present()})
	}
	if len(a.heavy) > 0 {
		list = append(list, scenario{layoutIsolate, a.names(a.heavy) + " in a lane of its own, the rest in serial", a.isolate()})
	}
	for n := 2; n <= maxWorkers; n++ {
		list = append(list, scenario{layoutWorkers + strconv.Itoa(n), fmt.Sprintf("%d workers, every class beside every other", n), a.workers(n)})
	}
	return list
}

// progress makes a function that counts one more replay as done.
func (a *analysis) progress(all int) func() {
	var mu sync.Mutex
	done := 0
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if done++; a.opts.Progress != nil {
			a.opts.Progress(done, all)
		}
	}
}

// replayOthers replays the layouts that need no verdict, as many at a time as there
// are processors. It returns what counts the last replay, that of the promotion.
func (a *analysis) replayOthers(ctx context.Context) (progress func(), err error) {
	list := a.scenarios()
	progress = a.progress(len(list) + 2) // with the one line, which is done, and the promotion
	progress()
	outs := make([]*Layout, len(list))
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	parallel := a.opts.Parallel
	if parallel < 1 {
		parallel = runtime.GOMAXPROCS(0)
	}
	free := make(chan struct{}, parallel) // a token is a processor in use
	for i := range list {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			out, err := simulate(ctx, a.log.Runs, list[i].plan)
			if err != nil {
				errs[i] = err
				return
			}
			outs[i] = a.layout(list[i].name, list[i].description, list[i].plan, out)
			progress()
		})
	}
	wg.Wait()
	for i := range list {
		if errs[i] != nil {
			return nil, errs[i]
		}
		a.report.Layouts = append(a.report.Layouts, *outs[i])
		a.layouts[list[i].name] = outs[i]
	}
	return progress, nil
}

func (a *analysis) keep(name, description string, p *plan, out *outcome) {
	l := a.layout(name, description, p, out)
	a.report.Layouts = append(a.report.Layouts, *l)
	a.layouts[name] = l
}

// layout sums up a replay.
func (a *analysis) layout(name, description string, p *plan, out *outcome) *Layout {
	l := &Layout{Name: name, Description: description, Peaks: out.peaks, MostAtOnce: out.mostAtOnce, Classes: []ClassWaits{}, Lanes: []LaneReport{}}
	l.Lanes = p.lanesInUse()
	waits := make([][]int64, len(a.named.names))
	all := make([]int64, len(out.starts))
	for i, start := range out.starts {
		run := &a.log.Runs[i]
		wait := start - run.Ready
		slot := a.named.slot[run.Class]
		waits[slot] = append(waits[slot], wait)
		all[i] = wait
	}
	l.Waits = waitsOf(all)
	if name == layoutOneLine || name == layoutIsolate {
		l.starts = out.starts
	}
	for slot, w := range waits {
		l.Classes = append(l.Classes, ClassWaits{Class: a.named.names[slot], Waits: waitsOf(w)})
	}
	return l
}

// lanesInUse lists the lanes that have classes, with the reason for their width.
func (p *plan) lanesInUse() []LaneReport {
	list := []LaneReport{}
	widths := admission.Widths(p.lanes, p.classes, p.resources)
	for _, lane := range sortedKeys(widths) {
		if !slices.ContainsFunc(p.classes, func(c lanegate.Class) bool { return c.Lane == lane }) {
			continue
		}
		w := widths[lane]
		r := LaneReport{Name: lane, Width: w.InForce, Arithmetic: w.Sentence}
		if lane != lanegate.LaneSerial && w.Setting != lanegate.WidthAuto {
			r.Arithmetic = strconv.Itoa(w.Setting) + ": chosen for this what-if"
		}
		list = append(list, r)
	}
	return list
}

// of is the waits of a class, zero when the layout doesn't name it.
func (l *Layout) of(class string) Waits {
	i := slices.IndexFunc(l.Classes, func(c ClassWaits) bool { return c.Class == class })
	if i < 0 {
		return Waits{}
	}
	return l.Classes[i].Waits
}

// names joins the first names of classes for a sentence.
func (a *analysis) names(classes []int) string {
	const most = 3
	var names []string
	for _, c := range classes[:min(most, len(classes))] {
		names = append(names, a.log.Classes[c])
	}
	if more := len(classes) - most; more > 0 {
		return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", more)
	}
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

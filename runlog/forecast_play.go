package runlog

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// play is one way in which the line may go on.
type play struct {
	f       *forecaster
	rng     *rand.Rand
	now     time.Time
	in      admission.Input
	queues  map[string][]int // class → its due jobs, by place
	active  []string         // classes with due jobs, in a fixed order
	taken   map[string]int   // lane → ordinary attempts in flight
	busy    map[string]int   // class → ordinary attempts in flight
	ends    lineEnds
	due     []int // not yet due, by ReadyAt
	started []float64
	first   map[string]float64 // class → its first success
	last    map[string]float64 // lane → the end of what is due or runs now
	twins   map[string][]int   // scratch of show: heads that need the same
	tainted map[string]bool    // lanes in which something of unknown length has run
}

// lineEnd is an attempt that ends in a play.
type lineEnd struct {
	at  time.Time
	run admission.Running
}

type lineEnds []lineEnd

func (h lineEnds) Len() int           { return len(h) }
func (h lineEnds) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h lineEnds) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lineEnds) Push(x any)        { *h = append(*h, x.(lineEnd)) }
func (h *lineEnds) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// play plays the line out once and keeps what came of it.
func (f *forecaster) play(rng *rand.Rand) {
	p := &play{
		f: f, rng: rng, now: f.line.Input.Now, in: f.line.Input, queues: map[string][]int{}, taken: map[string]int{}, busy: map[string]int{},
		started: make([]float64, len(f.jobs)), first: map[string]float64{}, last: map[string]float64{}, twins: map[string][]int{}, tainted: map[string]bool{},
	}
	p.in.Trial, p.in.NoWaits, p.in.Asking = nil, true, ""
	p.in.Workers = slices.Clone(p.in.Workers)
	p.in.InFlight = slices.Clone(p.in.InFlight)
	p.begin()
	p.admit()
	for p.step() {
		p.admit()
	}
	p.keep()
}

// begin draws how long the attempts in flight go on, and lines the jobs up.
func (p *play) begin() {
	for _, r := range p.in.InFlight {
		if r.Verification == "" {
			p.taken[r.Lane]++
			p.busy[r.Class]++
		}
		done := max(0, p.now.Sub(r.StartedAt))
		p.runs(r, done, true, true)
	}
	for i, j := range p.f.jobs {
		p.started[i] = unknown
		if j.ReadyAt.After(p.now) {
			p.due = append(p.due, i)
			continue
		}
		p.arrive(i)
	}
	slices.SortStableFunc(p.due, func(a, b int) int { return p.f.jobs[a].ReadyAt.Compare(p.f.jobs[b].ReadyAt) })
}

// runs draws when an attempt that has run for done ends. now says that the lane is
// empty only after it; told, that it is known when it started.
func (p *play) runs(r admission.Running, done time.Duration, now, told bool) {
	k := p.f.classes[r.Class]
	took, ok := time.Duration(0), false
	if k != nil {
		took, ok = drawn(p.rng, k.busy, done)
	}
	end := unknown
	if ok {
		at := p.now.Add(took - done)
		heap.Push(&p.ends, lineEnd{at, r})
		end = at.Sub(p.f.line.Input.Now).Seconds()
	} else {
		p.taint(r, done)
	}
	if now && r.Verification == "" {
		p.last[r.Lane] = max(p.last[r.Lane], end)
	}
	if r.Verification != "" {
		return
	}
	success := unknown
	if k != nil && told {
		if took, ok = drawn(p.rng, k.good, done); ok {
			success = p.now.Add(took - done).Sub(p.f.line.Input.Now).Seconds()
		}
	}
	if old, seen := p.first[r.Class]; !seen || success < old {
		p.first[r.Class] = success
	}
}

// taint notes that a lane has an attempt of which nobody knows when it ends.
func (p *play) taint(r admission.Running, done time.Duration) {
	if r.Verification == "" {
		p.tainted[r.Lane] = true
	}
	set := p.f.blockers[r.Lane]
	if set == nil {
		set = blockerSet{}
		p.f.blockers[r.Lane] = set
	}
	set[r.Class] = p.f.ignorance(r.Class, done)
}

func (p *play) arrive(i int) {
	class := p.f.jobs[i].Class
	q := p.queues[class]
	if len(q) == 0 {
		at, _ := slices.BinarySearch(p.active, class)
		p.active = slices.Insert(p.active, at, class)
	}
	at, _ := slices.BinarySearch(q, i)
	p.queues[class] = slices.Insert(q, at, i)
}

// show puts what could start into the planner's input. As in the replay of a log,
// heads whose lane is full or whose class is at its limit are left out, unless they
// are remembered as blocked. Of classes in a first in, first out lane that need the
// same (see lineClass.twins), only as many heads as the lane has slots are shown, by
// place: one behind them starts no sooner than they.
func (p *play) show() {
	p.in.Due = p.in.Due[:0]
	clear(p.twins)
	for _, class := range p.active {
		k, q := p.f.classes[class], p.queues[class]
		free := p.f.widths[k.lane] - p.taken[k.lane]
		n := min(len(q), k.limit-p.busy[class], free)
		_, remembered := p.in.BlockedSince[p.f.jobs[q[0]].Job]
		switch {
		case remembered:
			n = max(n, 1)
		case n <= 0:
			continue
		case k.twins != "":
			p.twins[k.twins] = append(p.twins[k.twins], q[:n]...)
			continue
		}
		for _, i := range q[:n] {
			p.in.Due = append(p.in.Due, p.f.jobs[i].Due)
		}
	}
	for _, heads := range p.twins {
		slices.Sort(heads)
		lane := p.f.classes[p.f.jobs[heads[0]].Class].lane
		for _, i := range heads[:min(len(heads), p.f.widths[lane]-p.taken[lane])] {
			p.in.Due = append(p.in.Due, p.f.jobs[i].Due)
		}
	}
	slices.SortFunc(p.in.Due, func(a, b admission.Due) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(p.f.index[a.Job], p.f.index[b.Job]))
	})
}

// admit asks the planner until it starts nothing more.
func (p *play) admit() {
	for {
		p.show()
		if len(p.in.Due) == 0 {
			return
		}
		p.in.Now = p.now
		d := p.f.planner.Plan(p.in)
		p.in.BlockedSince = d.Blocked
		if len(d.Grants) == 0 {
			return
		}
		for _, g := range d.Grants {
			p.start(g)
		}
	}
}

func (p *play) start(g admission.Grant) {
	i := p.f.index[g.Job]
	at := p.now.Sub(p.f.line.Input.Now).Seconds()
	if at > 0 && p.tainted[g.Route.Lane] {
		at = unknown // who it waited for may have gone on for any time
	}
	p.started[i] = at
	class := g.Class
	q := p.queues[class]
	k, _ := slices.BinarySearch(q, i)
	if q = slices.Delete(q, k, k+1); len(q) == 0 {
		p.active = slices.DeleteFunc(p.active, func(c string) bool { return c == class })
	}
	p.queues[class] = q
	p.taken[g.Route.Lane]++
	p.busy[class]++
	p.slot(g.Worker, g.Route.Lane, -1)
	r := admission.Running{Job: g.Job, Class: class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker, StartedAt: p.now}
	p.in.InFlight = append(p.in.InFlight, r)
	p.runs(r, 0, !p.f.jobs[i].ReadyAt.After(p.f.line.Input.Now), at < unknown)
}

// slot gives a local slot of a worker back, or takes it.
func (p *play) slot(worker, lane string, n int) {
	for i := range p.in.Workers {
		if w := &p.in.Workers[i]; w.ID == worker {
			if lane == lanegate.LaneSerial {
				w.SerialFree = n > 0
			} else {
				w.Free += n
			}
		}
	}
}

// step goes on to the next moment at which something can start; false when there is none.
func (p *play) step() bool {
	next := time.Time{}
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if len(p.ends) > 0 {
		sooner(p.ends[0].at)
	}
	if len(p.due) > 0 {
		sooner(p.f.jobs[p.due[0]].ReadyAt)
	}
	starve := p.in.StarveAfter
	if starve == 0 {
		starve = admission.DefaultStarveAfter
	}
	for _, since := range p.in.BlockedSince {
		if t := since.Add(starve); t.After(p.now) {
			sooner(t)
		}
	}
	if next.IsZero() || len(p.active) == 0 && len(p.due) == 0 {
		return false
	}
	p.now = next
	for len(p.ends) > 0 && !p.ends[0].at.After(p.now) {
		p.end(heap.Pop(&p.ends).(lineEnd).run)
	}
	for len(p.due) > 0 && !p.f.jobs[p.due[0]].ReadyAt.After(p.now) {
		p.arrive(p.due[0])
		p.due = p.due[1:]
	}
	return true
}

func (p *play) end(r admission.Running) {
	i := slices.IndexFunc(p.in.InFlight, func(x admission.Running) bool { return x.Job == r.Job })
	p.in.InFlight = slices.Delete(p.in.InFlight, i, i+1)
	if r.Verification != "" {
		return
	}
	p.taken[r.Lane]--
	p.busy[r.Class]--
	p.slot(r.Worker, r.Lane, 1)
}

// keep adds the play to the samples.
func (p *play) keep() {
	f := p.f
	for i, at := range p.started {
		f.starts[i] = append(f.starts[i], at)
		j := f.jobs[i]
		if at < unknown {
			continue
		}
		if _, seen := p.first[j.Class]; !seen {
			p.first[j.Class] = unknown
		}
		if !j.ReadyAt.After(f.line.Input.Now) {
			lane := f.classes[j.Class].lane
			p.last[lane] = unknown
		}
	}
	for class, at := range p.first {
		f.finishes[class] = append(f.finishes[class], at)
	}
	for lane, at := range p.last {
		f.empty[lane] = append(f.empty[lane], at)
	}
}

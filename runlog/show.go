package runlog

import (
	"math"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// simpleLanes finds the lanes in which only the lane's own slots can hold up a
// job: first in, first out, no class with a limit below the width, and units of
// which enough is free whatever runs elsewhere. That is so when there are none,
// or, in serial, when no class takes more than the reserve, because a start
// outside serial never touches that.
func (r *replay) simpleLanes() {
	orders := map[string]lanegate.Order{}
	for _, l := range r.plan.lanes {
		orders[l.Name] = l.Order
	}
	for i := range r.lanes {
		l := &r.lanes[i]
		l.simple = l.name == lanegate.LaneSerial || orders[l.name] == lanegate.OrderFIFO
	}
	for i := range r.plan.classes {
		c := &r.plan.classes[i]
		l := &r.lanes[r.laneOf[i]]
		if max(1, c.MaxInFlight) < l.width {
			l.simple = false
		}
		for name, units := range c.Using(r.plan.resources) {
			if units > 0 && (l.name != lanegate.LaneSerial || units > r.plan.reserve(name)) {
				l.simple = false
			}
		}
	}
}

func (p *plan) reserve(resource string) int {
	for _, res := range p.resources {
		if res.Name == resource {
			return admission.Reserve(res, p.classes)
		}
	}
	return 0
}

// skeleton lists one class with the largest units for each lane and resource.
func (p *plan) skeleton() []int {
	type key struct{ lane, resource string }
	best := map[key]int{}
	for i := range p.classes {
		c := &p.classes[i]
		for name, units := range c.Using(p.resources) {
			k := key{c.Lane, name}
			at, ok := best[k]
			if !ok || units > p.classes[at].Using(p.resources)[name] {
				best[k] = i
			}
		}
	}
	var list []int
	for _, i := range best {
		list = append(list, i)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// show fills the planner's input.
func (r *replay) show(now int64) {
	in := &r.input
	in.Due = in.Due[:0]
	in.Classes = in.Classes[:0]
	for i := range r.lanes {
		if l := &r.lanes[i]; l.simple {
			r.showSimple(l)
		} else {
			r.showHeads(l, now)
		}
	}
	if len(in.Due) == 0 {
		return
	}
	for _, class := range r.skeleton {
		r.showClass(class)
	}
	clear(r.shown)
	in.Now = time.UnixMicro(now).UTC()
	in.InFlight = r.running
	in.BlockedSince = r.blocked
	in.Workers[0].SerialFree = !slices.ContainsFunc(r.lanes, func(l replayLane) bool {
		return l.name == lanegate.LaneSerial && l.taken > 0
	})
}

func (r *replay) showSimple(l *replayLane) {
	free := l.width - l.taken
	for i := range min(free, l.queue.len()) {
		job := l.queue.jobs[l.queue.head+i]
		r.showJob(job)
	}
}

func (r *replay) showHeads(l *replayLane, now int64) {
	last := int32(math.MaxInt32)
	if l.name == lanegate.LaneSerial {
		last = r.lastSerial(l, now)
	}
	for _, class := range l.due {
		q := &r.queues[class]
		if _, remembered := r.blocked[jobID(q.jobs[q.head])]; q.jobs[q.head] > last && !remembered {
			continue
		}
		limit := max(1, r.plan.classes[class].MaxInFlight)
		count := min(q.len(), limit-r.inFlight[class], l.width-l.taken)
		if _, remembered := r.blocked[jobID(q.jobs[q.head])]; remembered {
			count = max(count, 1)
		}
		for i := range max(0, count) {
			r.showJob(q.jobs[q.head+i])
		}
	}
}

// lastSerial is the head with the smallest place that surely fits beside what is in
// use and whatever the other lanes may start in the same pass. There is no such
// when units may be kept for somebody.
func (r *replay) lastSerial(l *replayLane, now int64) int32 {
	last := int32(math.MaxInt32)
	for _, since := range r.blocked {
		if since.Add(admission.DefaultStarveAfter).UnixMicro() <= now {
			return last
		}
	}
	free := map[string]int{}
	for _, res := range r.plan.resources {
		free[res.Name] = res.Capacity
	}
	for i := range r.running {
		for name, units := range r.running[i].Units {
			free[name] -= units
		}
	}
	for i := range r.lanes {
		if other := &r.lanes[i]; other.name != l.name {
			r.reserveStarts(other, free)
		}
	}
	for _, class := range l.due {
		head := r.queues[class].jobs[r.queues[class].head]
		if head >= last || r.inFlight[class] > 0 {
			continue
		}
		fits := true
		for name, units := range r.plan.classes[class].Using(r.plan.resources) {
			fits = fits && units <= free[name]
		}
		if fits {
			last = head
		}
	}
	return last
}

// reserveStarts takes off what a lane could start now at most.
func (r *replay) reserveStarts(l *replayLane, free map[string]int) {
	if l.simple { // outside serial that means: no units
		return
	}
	most := map[string]int{}
	for _, class := range l.due {
		for name, units := range r.plan.classes[class].Using(r.plan.resources) {
			most[name] = max(most[name], units)
		}
	}
	for name, units := range most {
		free[name] -= units * (l.width - l.taken)
	}
}

func (r *replay) showJob(job int32) {
	class := int(r.runs[job].Class)
	r.showClass(class)
	id := jobID(job)
	r.input.Due = append(r.input.Due, admission.Due{
		Job: id, Class: r.plan.classes[class].ID, PlaceAt: time.UnixMicro(r.runs[job].Ready), PlaceID: id,
	})
}

func (r *replay) showClass(class int) {
	if !r.shown[class] {
		r.shown[class] = true
		r.input.Classes = append(r.input.Classes, r.plan.classes[class])
	}
}

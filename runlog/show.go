package runlog

import (
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

// show fills the planner's input.
func (r *replay) show(now int64) {
	in := &r.input
	in.Due = in.Due[:0]
	for i := range r.lanes {
		switch l := &r.lanes[i]; {
		case l.simple:
			r.showSimple(l)
		case l.name == lanegate.LaneSerial:
			r.showTwins(l, now)
		default:
			r.showHeads(l)
		}
	}
	if len(in.Due) == 0 {
		return
	}
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

func (r *replay) showHeads(l *replayLane) {
	for _, class := range l.due {
		q := &r.queues[class]
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

func (r *replay) showJob(job int32) {
	class := int(r.runs[job].Class)
	id := jobID(job)
	r.input.Due = append(r.input.Due, admission.Due{
		Job: id, Class: r.plan.classes[class].ID, PlaceAt: time.UnixMicro(r.runs[job].Ready), PlaceID: id,
	})
}

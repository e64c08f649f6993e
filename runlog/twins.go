package runlog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate/admission"
)

// twins are the heads of a serial lane that is not simple, grouped by the units
// they need. A long line of many classes has few groups, and the planner needs to
// see few heads of each:
//
//   - The first by place. If it can't start, neither can another of its group,
//     whose turn comes later, when no more units are free; if it starts, serial is
//     full.
//   - The first two by place that have starved. They go before all others, also
//     while serial is full; when the first starts, the second is what the units
//     are kept for.
//
// What the planner would remember of the heads that it doesn't see follows from
// its answer. Those that come before the head that started have had their turn in
// vain, and all of them have when nothing started; but nobody has a turn when
// serial was full, or when a starved head took it before the turns began. Starved
// heads do so by place up to the one that the units are kept for.
type twins struct {
	groups  [][]int32 // the heads of each group, as indexes of runs, by place
	groupOf []int     // of each class, -1 when it is not in serial
	// since is when the head of a class was first blocked, never when it was not.
	since []int64
	due   int // heads in all groups
}

func newTwins(p *plan, laneOf []int, serial int) *twins {
	t := &twins{groupOf: make([]int, len(p.classes)), since: make([]int64, len(p.classes))}
	index := map[string]int{}
	for i := range p.classes {
		t.groupOf[i], t.since[i] = -1, never
		if laneOf[i] != serial {
			continue
		}
		var key strings.Builder
		units := maps.Clone(p.classes[i].Using(p.resources))
		maps.DeleteFunc(units, func(_ string, n int) bool { return n <= 0 })
		for _, name := range sortedKeys(units) {
			fmt.Fprintf(&key, "%q %d ", name, units[name])
		}
		group, ok := index[key.String()]
		if !ok {
			group = len(t.groups)
			index[key.String()] = group
			t.groups = append(t.groups, nil)
		}
		t.groupOf[i] = group
	}
	return t
}

func (t *twins) enter(class int, job int32) {
	heads := t.groups[t.groupOf[class]]
	at, _ := slices.BinarySearch(heads, job)
	t.groups[t.groupOf[class]] = slices.Insert(heads, at, job)
	t.due++
}

func (t *twins) leave(class int, job int32) {
	heads := t.groups[t.groupOf[class]]
	at, _ := slices.BinarySearch(heads, job)
	t.groups[t.groupOf[class]] = slices.Delete(heads, at, at+1)
	t.since[class] = never
	t.due--
}

// starved says whether a head has been blocked for so long that it goes first.
func (t *twins) starved(class int, now int64) bool {
	return t.since[class] != never && now-t.since[class] >= patience
}

// wake is when the next head starves.
func (t *twins) wake(now int64) int64 {
	at := int64(never)
	for _, since := range t.since {
		if since != never && since+patience > now {
			at = min(at, since+patience)
		}
	}
	return at
}

// patience is how long a head is blocked until it starves, in microseconds.
const patience = int64(admission.DefaultStarveAfter / time.Microsecond)

func (r *replay) isTwin(class int) bool { return r.twins != nil && r.twins.groupOf[class] >= 0 }

// open says whether the class may start another run at all.
func (r *replay) open(class int) bool {
	return r.inFlight[class] < max(1, r.plan.classes[class].MaxInFlight)
}

func (r *replay) showTwins(l *replayLane, now int64) {
	for _, heads := range r.twins.groups {
		first := l.taken < l.width // and not yet shown
		starved := 0
		for _, job := range heads {
			class := int(r.runs[job].Class)
			if !r.open(class) {
				continue
			}
			starving := r.twins.starved(class, now)
			if !first && !starving {
				continue
			}
			r.showJob(job)
			if since := r.twins.since[class]; since != never {
				r.blocked[jobID(job)] = time.UnixMicro(since)
			}
			first = false
			if starving {
				if starved++; starved == 2 {
					break
				}
			}
		}
	}
}

// rememberTwins takes over what the decision says of the heads of serial that it
// saw, and what follows from it for those that it didn't see. It leaves in
// Blocked what is about other lanes.
func (r *replay) rememberTwins(now int64, d *admission.Decision) {
	l := &r.lanes[r.serial]
	until := int32(-1) // jobs before this one have had their turn in vain
	if l.taken < l.width {
		until = int32(len(r.runs))
	}
	for i := range d.Grants {
		job := jobOf(d.Grants[i].Job)
		if class := int(r.runs[job].Class); r.isTwin(class) {
			until = min(until, job)
			if r.twins.starved(class, now) && (d.Kept == "" || job < jobOf(d.Kept)) {
				until = -1
			}
		}
	}
	for _, heads := range r.twins.groups {
		for _, job := range heads {
			if job >= until {
				break
			}
			if class := int(r.runs[job].Class); r.twins.since[class] == never && r.open(class) {
				r.twins.since[class] = now
			}
		}
	}
	for id, since := range d.Blocked {
		job := jobOf(id)
		if class := int(r.runs[job].Class); r.isTwin(class) {
			r.twins.since[class] = since.UnixMicro()
			delete(d.Blocked, id)
		}
	}
}

package runlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// plan is a layout to replay a log under.
type plan struct {
	lanes     []lanegate.Lane
	classes   []lanegate.Class // parallel to Log.Classes
	resources []lanegate.Resource
}

// outcome is what a replay gave.
type outcome struct {
	starts []int64 // parallel to Log.Runs
	peaks  map[string]int
	// mostAtOnce is the largest number of runs in flight.
	mostAtOnce int
	decisions  int
}

// slots is the one worker of a replay: it has room for everything, so that only
// lanes, classes and resources decide.
const slots = 1 << 30

// never is later than everything.
const never = math.MaxInt64

// replay simulates one history: it hands the planner what is due and what is in
// flight whenever a slot is free and something may take it, on a clock that jumps
// from one arrival or finish to the next.
//
// What the planner is shown is a part of the truth, chosen so that its answer
// is the same as if it were shown all of it:
//
//   - A head whose lane is full, or whose class is at its limit, can't start, and
//     is not newly remembered as blocked. It is left out unless it is remembered.
//   - In a simple lane (see simpleLanes) nothing but a slot can hold up a head, so
//     with f free slots only the f jobs with the smallest places can start.
//   - In serial, of the heads that need the same units only the first by place can
//     start, and only the first two that starve can matter to others. See twins.
//   - When neither a slot or units came free, nor a head appeared, nor the patience
//     of a blocked one ended, the last answer stands and nobody is asked.
//
// TestReplayShowsThePlannerEnough compares it with a replay that leaves nothing out.
type replay struct {
	plan     *plan
	runs     []Run
	lanes    []replayLane
	laneOf   []int   // of each class
	queues   []queue // of each class; simple lanes have one queue for all
	inFlight []int   // of each class
	running  []admission.Running
	ends     endHeap
	blocked  map[string]time.Time
	planner  *admission.Planner
	twins    *twins // of serial, nil when it is simple
	serial   int    // the index of serial in lanes
	// wake is when the patience of the next blocked head ends; changed says whether
	// the planner could answer differently than it did last time.
	wake    int64
	changed bool
	input   admission.Input
	out     outcome
}

type replayLane struct {
	name   string
	width  int
	taken  int
	simple bool
	queue  queue // of a simple lane: all its jobs, by place
	// due lists the classes with a job due; those of simple lanes and of twins are
	// kept there.
	due []int
}

// queue is a first in, first out line of jobs, as indexes of runs.
type queue struct {
	jobs []int32
	head int
}

func (q *queue) len() int       { return len(q.jobs) - q.head }
func (q *queue) push(job int32) { q.jobs = append(q.jobs, job) }

func (q *queue) pop() {
	if q.head++; q.head > 1024 && q.head*2 > len(q.jobs) {
		q.jobs = q.jobs[:copy(q.jobs, q.jobs[q.head:])]
		q.head = 0
	}
}

// simulate replays runs (sorted by Ready) under p. Every class's units must fit
// the capacities, see plan.check; ctx ends a long one.
func simulate(ctx context.Context, runs []Run, p *plan) (*outcome, error) {
	return newReplay(runs, p).run(ctx)
}

func newReplay(runs []Run, p *plan) *replay {
	r := &replay{
		plan: p, runs: runs,
		laneOf:   make([]int, len(p.classes)),
		queues:   make([]queue, len(p.classes)),
		inFlight: make([]int, len(p.classes)),
		blocked:  map[string]time.Time{},
		wake:     never,
	}
	r.out = outcome{starts: make([]int64, len(runs)), peaks: map[string]int{}}
	widths := admission.Widths(p.lanes, p.classes, p.resources)
	index := map[string]int{}
	for name, w := range widths {
		index[name] = len(r.lanes)
		r.lanes = append(r.lanes, replayLane{name: name, width: w.InForce})
	}
	for i := range p.classes {
		route, _ := admission.RouteOf(p.classes[i], p.lanes)
		r.laneOf[i] = index[route.Lane]
	}
	r.simpleLanes()
	r.serial = index[lanegate.LaneSerial]
	if i := r.serial; !r.lanes[i].simple {
		r.twins = newTwins(p, r.laneOf, i)
	}
	r.planner = admission.NewPlanner(p.lanes, p.classes, p.resources)
	r.input = admission.Input{
		Workers: []admission.Worker{{ID: "replay", Free: slots}}, Asking: "replay", NoWaits: true,
	}
	return r
}

// run is the event loop.
func (r *replay) run(ctx context.Context) (*outcome, error) {
	next := 0
	for next < len(r.runs) || len(r.ends) > 0 {
		if r.out.decisions&1023 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		now := r.nextEvent(next)
		if now == never {
			break
		}
		for len(r.ends) > 0 && r.ends[0].at <= now {
			r.finish(r.ends.pop())
		}
		for next < len(r.runs) && r.runs[next].Ready <= now {
			r.arrive(int32(next))
			next++
		}
		r.admit(now)
	}
	for i := range r.lanes {
		if r.lanes[i].queue.len() > 0 || len(r.lanes[i].due) > 0 {
			return nil, fmt.Errorf("replay: lane %s still has jobs that nothing could start", r.lanes[i].name)
		}
	}
	if r.twins != nil && r.twins.due > 0 {
		return nil, errors.New("replay: serial still has jobs that nothing could start")
	}
	return &r.out, nil
}

// nextEvent is the next arrival, finish, or moment at which a blocked head has
// waited long enough for its resources to be kept.
func (r *replay) nextEvent(next int) int64 {
	at := int64(never)
	if next < len(r.runs) {
		at = r.runs[next].Ready
	}
	if len(r.ends) > 0 {
		at = min(at, r.ends[0].at)
	}
	return min(at, r.wake)
}

// remember keeps what the planner told to, and when it is to be asked again for it.
func (r *replay) remember(now int64, blocked map[string]time.Time) {
	r.blocked, r.wake = blocked, never
	for _, since := range blocked {
		if patience := since.Add(admission.DefaultStarveAfter).UnixMicro(); patience > now {
			r.wake = min(r.wake, patience)
		}
	}
	if r.twins != nil {
		r.wake = min(r.wake, r.twins.wake(now))
	}
}

func (r *replay) arrive(job int32) {
	class := int(r.runs[job].Class)
	l := &r.lanes[r.laneOf[class]]
	if l.simple {
		l.queue.push(job)
		r.changed = r.changed || l.taken < l.width
		return
	}
	q := &r.queues[class]
	switch {
	case q.len() > 0:
	case r.isTwin(class):
		r.twins.enter(class, job)
	default:
		l.due = append(l.due, class)
	}
	q.push(job)
	if l.taken < l.width && q.len()+r.inFlight[class] <= max(1, r.plan.classes[class].MaxInFlight) {
		r.changed = true
	}
}

func (r *replay) finish(e end) {
	r.changed = true
	r.inFlight[e.class]--
	r.lanes[r.laneOf[e.class]].taken--
	i := slices.IndexFunc(r.running, func(x admission.Running) bool { return jobOf(x.Job) == e.job })
	last := len(r.running) - 1
	r.running[i] = r.running[last]
	r.running = r.running[:last]
}

// admit asks the planner, if anything could start.
func (r *replay) admit(now int64) {
	if !r.changed && now < r.wake {
		return
	}
	r.changed = false
	r.show(now)
	if len(r.input.Due) == 0 {
		clear(r.blocked)
		r.remember(now, r.blocked)
		return
	}
	r.out.decisions++
	decision := r.planner.Plan(r.input)
	if r.twins != nil {
		r.rememberTwins(now, &decision)
	}
	r.remember(now, decision.Blocked)
	for _, g := range decision.Grants {
		r.start(now, g)
	}
	if len(decision.Grants) > 0 {
		r.peaks()
	}
}

func (r *replay) start(now int64, g admission.Grant) {
	job := jobOf(g.Job)
	class := int(r.runs[job].Class)
	l := &r.lanes[r.laneOf[class]]
	l.taken++
	r.inFlight[class]++
	r.out.starts[job] = now
	r.running = append(r.running, admission.Running{Job: g.Job, Class: g.Class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker})
	r.ends.push(end{now + r.runs[job].Took, job, int32(class)})
	if l.simple {
		l.queue.pop() // grants of a lane come in the order of its line
		return
	}
	r.queues[class].pop()
	if r.isTwin(class) {
		r.twins.leave(class, job)
		if q := &r.queues[class]; q.len() > 0 {
			r.twins.enter(class, q.jobs[q.head])
		}
		return
	}
	if r.queues[class].len() == 0 {
		l.due = slices.DeleteFunc(l.due, func(c int) bool { return c == class })
	}
}

func (r *replay) peaks() {
	r.out.mostAtOnce = max(r.out.mostAtOnce, len(r.running))
	for _, res := range r.plan.resources {
		used := 0
		for i := range r.running {
			used += r.running[i].Units[res.Name]
		}
		r.out.peaks[res.Name] = max(r.out.peaks[res.Name], used)
	}
}

// jobID is the index of a run as an id that sorts like it.
func jobID(job int32) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(job))
	return string(b[:])
}

func jobOf(id string) int32 { return int32(binary.BigEndian.Uint32([]byte(id))) }

// Replay plays a log under the lanes, classes and resources of a gateway, and
// returns when each run would have started, in microseconds since the Unix epoch,
// parallel to log.Runs, which it sorts. A class of the log that is not among
// classes is in serial. It is an error when a class needs more units than there are.
func Replay(ctx context.Context, log *Log, lanes []lanegate.Lane, classes []lanegate.Class, resources []lanegate.Resource) ([]int64, error) {
	log.sort()
	opts := Options{Resources: resources, Present: &Present{Lanes: lanes, Classes: classes}, Units: map[string]lanegate.Units{}}
	for _, c := range classes {
		if _, ok := log.index[c.ID]; ok && c.Units != nil {
			opts.Units[c.ID] = c.Units
		}
	}
	if err := opts.check(log); err != nil {
		return nil, err
	}
	a := &analysis{log: log, opts: opts}
	out, err := simulate(ctx, log.Runs, a.present())
	if err != nil {
		return nil, err
	}
	return out.starts, nil
}

package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// state is the database at one moment of the sweep.
type state struct {
	lanes     map[string]Lane
	classes   map[string]Class
	resources map[string]Resource
	proofs    map[[2]string][]Proof // by class and fingerprint, in order
	holds     map[string]bool
	jobs      map[string]known
	waiting   map[string]map[string]bool // due queued jobs by class
	running   map[Ref]Attempt
	last      map[string]int // highest attempt number by job
}

// known is a job's row and since when others could see it as it is.
type known struct {
	Job
	since time.Time
}

func newState() state {
	return state{
		lanes: map[string]Lane{}, classes: map[string]Class{}, resources: map[string]Resource{}, proofs: map[[2]string][]Proof{},
		holds: map[string]bool{}, jobs: map[string]known{}, waiting: map[string]map[string]bool{}, running: map[Ref]Attempt{}, last: map[string]int{},
	}
}

// sweep follows the changes. Their order needs no clock: a finish writes its row
// before others can see it, and a start writes its own after it has looked, so a
// start that was allowed always comes behind the end that made room for it.
func (j *judge) sweep() {
	for _, c := range j.Before {
		j.apply(c)
	}
	j.found = nil // what was promoted before is judged at its starts
	for _, c := range j.Changes {
		j.apply(c)
	}
	for ref := range j.now.running {
		j.fault(RuleFinal, "attempt %v has no outcome", ref)
	}
}

func (j *judge) apply(c Change) {
	s := &j.now
	switch {
	case c.Class != nil:
		j.applyClass(c)
	case c.Lane != nil:
		if delete(s.lanes, c.Lane.Name); !c.Gone {
			s.lanes[c.Lane.Name] = *c.Lane
		}
	case c.Resource != nil:
		if delete(s.resources, c.Resource.Name); !c.Gone {
			s.resources[c.Resource.Name] = *c.Resource
		}
	case c.Proof != nil:
		if c.Proof.Verdict != "" {
			of := [2]string{c.Proof.Class, c.Proof.Fingerprint}
			s.proofs[of] = append(s.proofs[of], *c.Proof)
		}
	case c.Hold != nil:
		j.applyHold(c)
	case c.Job != nil:
		j.applyJob(c)
	case c.Attempt != nil:
		j.applyAttempt(c)
	}
}

// applyClass also judges promotion itself: a lane other than serial needs a proof
// of as many copies as the class may have in flight.
func (j *judge) applyClass(c Change) {
	if delete(j.now.classes, c.Class.ID); c.Gone {
		return
	}
	j.now.classes[c.Class.ID] = *c.Class
	if c.Class.Lane == lanegate.LaneSerial || j.PastTheGate {
		return
	}
	if copies, ok := j.proven(c.Class.ID, c.Class.Fingerprint); !ok || copies < c.Class.MaxInFlight {
		j.fault(RuleProof, "class %s is in %s with %d in flight; %d copies are proven at fingerprint %.12s", c.Class.ID, c.Class.Lane, c.Class.MaxInFlight, copies, c.Class.Fingerprint)
	}
}

// proven is how many copies are proven: the most of the runs that passed since the
// last one that failed.
func (j *judge) proven(class, fingerprint string) (copies int, ok bool) {
	for _, p := range j.now.proofs[[2]string{class, fingerprint}] {
		if p.Verdict != "passed" {
			copies, ok = 0, false
			continue
		}
		copies, ok = max(copies, p.Copies), true
	}
	return copies, ok
}

func (j *judge) applyHold(c Change) {
	if delete(j.now.holds, c.Hold.Run); c.Gone || !c.Hold.Held {
		return
	}
	j.now.holds[c.Hold.Run] = true
	if n := j.inSerial(); n > 1 {
		j.fault(RuleSerial, "verification run %s took serial's slot, %d are in it", c.Hold.Run, n)
	}
}

// inSerial counts attempts and holds.
func (j *judge) inSerial() int {
	n := len(j.now.holds)
	for _, a := range j.now.running {
		if a.Lane == lanegate.LaneSerial && a.Verification == "" {
			n++
		}
	}
	return n
}

func (j *judge) applyJob(c Change) {
	s, next := &j.now, *c.Job
	before, existed := s.jobs[next.ID]
	if existed {
		delete(s.waiting[before.Class], next.ID)
	}
	if c.Gone {
		if existed && !before.State.Final() {
			j.fault(RuleLost, "job %s was deleted while it was %s", next.ID, before.State)
		}
		delete(s.jobs, next.ID)
		return
	}
	if existed {
		if before.State.Final() && next.State != before.State && before.State != lanegate.StateFailed {
			j.fault(RuleState, "job %s was %s and became %s", next.ID, before.State, next.State)
		}
		if next.Attempts < before.Attempts {
			j.fault(RuleNumber, "job %s had %d attempts and then %d", next.ID, before.Attempts, next.Attempts)
		}
	}
	since := c.seen()
	if existed && sameInLine(before.Job, next) {
		since = before.since
	}
	s.jobs[next.ID] = known{next, since}
	if next.State == lanegate.StateQueued && next.Due {
		if s.waiting[next.Class] == nil {
			s.waiting[next.Class] = map[string]bool{}
		}
		s.waiting[next.Class][next.ID] = true
	}
}

// sameInLine says whether nothing changed that admission orders by.
func sameInLine(a, b Job) bool {
	return a.State == b.State && a.Due == b.Due && a.FirstAt.Equal(b.FirstAt) && a.PlaceAt.Equal(b.PlaceAt) && a.PlaceID == b.PlaceID
}

func (j *judge) applyAttempt(c Change) {
	a := *c.Attempt
	ref := a.ref()
	_, started := j.starts[ref]
	_, ended := j.ends[ref]
	switch {
	case c.Gone:
		j.fault(RuleLost, "attempt %v was deleted", ref)
	case !started:
		j.start(c)
		j.starts[ref] = c
		j.now.running[ref] = a
		j.now.last[a.Job] = max(j.now.last[a.Job], a.Number)
		if a.Outcome != "" {
			j.fault(RuleOutcome, "attempt %v was born %s", ref, a.Outcome)
		}
	case a.Outcome == "":
		if ended {
			j.fault(RuleOutcome, "attempt %v lost its outcome %s", ref, j.ends[ref].Attempt.Outcome)
		}
	case ended:
		j.fault(RuleOutcome, "attempt %v was %s and became %s", ref, j.ends[ref].Attempt.Outcome, a.Outcome)
	default:
		j.ends[ref] = c
		delete(j.now.running, ref)
	}
}

// start judges one start against everything in force.
func (j *judge) start(c Change) {
	a := *c.Attempt
	if want := j.now.last[a.Job] + 1; a.Number != want {
		j.fault(RuleNumber, "attempt %v started, the next number is %d", a.ref(), want)
	}
	for ref, r := range j.now.running {
		if r.Job == a.Job {
			j.fault(RuleOutcome, "attempt %v started while %v had no outcome", a.ref(), ref)
		}
	}
	if job, ok := j.now.jobs[a.Job]; ok && job.State.Final() {
		j.fault(RuleState, "attempt %v started although its job was %s", a.ref(), job.State)
	}
	j.resources(a)
	if a.Verification != "" {
		return // its plan bounds it
	}
	class, ok := j.now.classes[a.Class]
	if !ok {
		j.fault(RuleNotJudged, "attempt %v is of class %q, which the history doesn't have", a.ref(), a.Class)
		return
	}
	j.lane(a, class)
	inFlight := 1
	for _, r := range j.now.running {
		if r.Class == a.Class && r.Verification == "" {
			inFlight++
		}
	}
	if inFlight > class.MaxInFlight {
		j.fault(RuleClass, "attempt %v is number %d of class %s in flight, %d are allowed", a.ref(), inFlight, a.Class, class.MaxInFlight)
	}
	if class.Paused {
		j.fault(RulePaused, "attempt %v started while class %s was paused", a.ref(), a.Class)
	}
	if a.Lane != lanegate.LaneSerial && !j.PastTheGate {
		if _, ok := j.proven(a.Class, a.Fingerprint); !ok {
			j.fault(RuleProof, "attempt %v ran in %s, nothing is proven of class %s at fingerprint %.12s", a.ref(), a.Lane, a.Class, a.Fingerprint)
		}
	}
	j.order(c)
}

func (j *judge) lane(a Attempt, class Class) {
	fallback := a.Lane == lanegate.LaneSerial && a.Reason == lanegate.ReasonLaneUnavailable && a.Wanted == class.Lane
	if a.Lane != class.Lane && !fallback {
		j.fault(RuleRoute, "attempt %v ran in %s (%s), class %s belongs to %s", a.ref(), a.Lane, a.Reason, a.Class, class.Lane)
	}
	lane, ok := j.now.lanes[a.Lane]
	if !ok || lane.Width < 1 {
		j.fault(RuleNotJudged, "attempt %v ran in %q, whose width the history doesn't have", a.ref(), a.Lane)
		return
	}
	if lane.Paused {
		j.fault(RulePaused, "attempt %v started while lane %s was paused", a.ref(), a.Lane)
	}
	if a.Lane == lanegate.LaneSerial {
		if n := j.inSerial() + 1; n > 1 {
			j.fault(RuleSerial, "attempt %v started in serial, where %d were in flight: %s", a.ref(), n-1, j.those(func(r Attempt) bool { return r.Lane == a.Lane }))
		}
		return
	}
	inFlight := 1
	for _, r := range j.now.running {
		if r.Lane == a.Lane && r.Verification == "" {
			inFlight++
		}
	}
	if inFlight > lane.Width {
		j.fault(RuleLane, "attempt %v is number %d in %s, which has room for %d", a.ref(), inFlight, a.Lane, lane.Width)
	}
}

// those lists what is in flight and is meant.
func (j *judge) those(meant func(Attempt) bool) (text string) {
	var all []string
	for ref, r := range j.now.running {
		if meant(r) {
			all = append(all, fmt.Sprintf("%v of %s on %s", ref, r.Class, r.Worker))
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// resources: in use and asked for never exceed a capacity, nor, outside serial,
// what is left beside the larger of serial's reserve and serial's use.
func (j *judge) resources(a Attempt) {
	for name, units := range a.Units {
		if units == 0 {
			continue
		}
		r, ok := j.now.resources[name]
		if !ok {
			j.fault(RuleNotJudged, "attempt %v uses %q, whose capacity the history doesn't have", a.ref(), name)
			continue
		}
		all, serial, outside := 0, 0, 0
		for _, other := range j.now.running {
			all += other.Units[name]
			switch {
			case other.Lane != lanegate.LaneSerial:
				outside += other.Units[name]
			case other.Verification == "": // else it depends on how its run goes
				serial += other.Units[name]
			}
		}
		if all+units > r.Capacity {
			j.fault(RuleResource, "attempt %v takes %d of %s, %d of %d are in use", a.ref(), units, name, all, r.Capacity)
		}
		if a.Lane == lanegate.LaneSerial || a.Verification != "" {
			continue
		}
		if kept := max(j.reserve(r), serial); outside+units > r.Capacity-kept {
			j.fault(RuleResource, "attempt %v takes %d of %s outside serial, %d are in use there, %d of %d are kept for serial", a.ref(), units, name, outside, kept, r.Capacity)
		}
	}
}

// reserve is what is kept for serial: its largest unpaused class, but no more than
// the largest promoted class leaves.
func (j *judge) reserve(r Resource) int {
	serial, promoted := 0, 0
	for _, c := range j.now.classes {
		units := c.Units[r.Name]
		if c.Units == nil && r.Pool {
			units = 1
		}
		switch {
		case c.Lane != lanegate.LaneSerial:
			promoted = max(promoted, units)
		case !c.Paused:
			serial = max(serial, units)
		}
	}
	return max(0, min(serial, r.Capacity-promoted))
}

// order: no due job of the class with a smaller place was passed by.
func (j *judge) order(c Change) {
	a := *c.Attempt
	me, ok := j.now.jobs[a.Job]
	if !ok {
		j.fault(RuleLost, "attempt %v is of a job that the database doesn't have", a.ref())
		return
	}
	for id := range j.now.waiting[a.Class] {
		other := j.now.jobs[id]
		if id == a.Job || !goesBefore(other.Job, me.Job) || !other.since.Add(j.OrderSlack).Before(a.StartedAt) {
			continue
		}
		j.fault(RuleOrder, "attempt %v of class %s started at %s, job %s has been before it in the line since %s",
			a.ref(), a.Class, a.StartedAt.Format(time.RFC3339Nano), id, other.since.Format(time.RFC3339Nano))
	}
}

// goesBefore is the order of a class's line.
func goesBefore(a, b Job) bool {
	if a.FirstAt.IsZero() != b.FirstAt.IsZero() {
		return b.FirstAt.IsZero()
	}
	if !a.FirstAt.Equal(b.FirstAt) {
		return a.FirstAt.Before(b.FirstAt)
	}
	if !a.PlaceAt.Equal(b.PlaceAt) {
		return a.PlaceAt.Before(b.PlaceAt)
	}
	return a.PlaceID < b.PlaceID
}

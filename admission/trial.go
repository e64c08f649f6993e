package admission

import (
	"maps"
	"slices"
)

// A trial goes through three steps; one pass may take several of them.
//
// Turn. A worker that has the commands of all members becomes the owner, and the
// trial takes serial's slot with it (WantsHold), when serial has its slot free
// and no head there that could start has a smaller place, members' aside. The
// trial's place is its own, or that of its smallest due job, as the experiment
// starts just these (FromQueue). With FromQueue a member must have a due job.
// Until then due jobs of members that would start in serial are reserved
// (WantsHold): serial's next slot is the trial's. Members elsewhere go on.
//
// Gathering. Once the trial has an owner, members start nothing but for it. A
// round starts when no ordinary attempt of a member is in flight, each class of
// it has enough due jobs (FromQueue), and the units of what is not in flight yet
// are to be had: within the capacity less serial's use while serial's slot is
// held, else less serial's reserve as for any start outside serial. When it
// waits for nothing but units, they are withheld from every other start outside
// serial, where what it lacks then only ever becomes less; in serial it goes first
// whenever a job ends. So it can't starve.
//
// Start. The owner gets all runs that are lacking, or none. They take no slot of
// a lane, a class or a worker.
//
// A trial that can't be carried out however idle everything is (a class paused or
// gone, no worker with all commands, an owner that is not live, a round above the
// capacities) takes and reserves nothing, so that it never stops a line. What it
// holds already is not the planner's to end.
//
// When a worker asks that is not the one to act, serial's slot and the round's
// units are left to that one in this pass, as starts are.

// trial is the verification run whose turn it is, during one pass.
type trial struct {
	*Trial
	members []*line // by class id; those that exist
	unknown []string
	// lacking are the runs of the round that are not in flight, by class id.
	lacking []gangRuns
	// whole is what the whole round takes, needs what is lacking.
	whole, needs []need
	// worker owns the trial, or would take it; nil when none can.
	worker *worker
	// standing says why the trial can't be carried out; empty when it can.
	standing []Reason
	holds    bool // serial's slot, this pass included
	// leftHold and leftRound are left to worker, which is not asking.
	leftHold, leftRound bool
	step                TrialStep
}

// Choose returns the candidate whose turn it is: the first that has an owner or
// could be carried out now and has something to start with; the first of all when
// none could, which then takes and reserves nothing. in has what Plan needs, but
// for Trial. It returns nil of none.
func Choose(in Input, candidates []*Trial) *Trial {
	if len(candidates) < 2 || candidates[0].Owner != "" {
		return slices.Concat(candidates, []*Trial{nil})[0]
	}
	for _, c := range candidates {
		in.Trial = c
		p := newPass(in, newStanding(in.Lanes, in.Classes, in.Resources))
		t := p.trial
		t.worker = p.trialWorker(t)
		if len(p.obstacles(t)) == 0 && !(t.FromQueue && t.nothingDue()) {
			return c
		}
	}
	return candidates[0]
}

// owns says whether an attempt is part of the trial; t may be nil.
func (t *Trial) owns(r *Running) bool { return t != nil && r.Verification == t.ID }

// gangRuns is so many runs of one class.
type gangRuns struct {
	line *line
	runs int
}

func newTrial(in *Trial, hold string, lines map[string]*line) *trial {
	t := &trial{Trial: in, holds: hold != "" && hold == in.ID}
	for _, id := range distinct(slices.Concat(in.Members, in.Round)) {
		if ln, ok := lines[id]; ok {
			t.members = append(t.members, ln)
		} else {
			t.unknown = append(t.unknown, id)
		}
	}
	return t
}

// taken says whether the trial has an owner, this pass included.
func (t *trial) taken() bool { return t.Owner != "" || t.step.Take }

// started says whether the round was started before this pass.
func (t *trial) started() bool { return t.Owner != "" && len(t.Round) == 0 }

// sizeRound works out what the round lacks, before anything starts.
func (p *pass) sizeRound() {
	t := p.trial
	if t == nil {
		return
	}
	present := map[string]int{}
	for i := range p.in.InFlight {
		if r := &p.in.InFlight[i]; r.Verification == t.ID {
			present[r.Class]++
		}
	}
	wanted := map[string]int{}
	for _, class := range t.Round {
		wanted[class]++
	}
	var whole []gangRuns
	for _, ln := range t.members {
		n := wanted[ln.class.ID]
		whole = append(whole, gangRuns{ln, n})
		if n -= present[ln.class.ID]; n > 0 {
			t.lacking = append(t.lacking, gangRuns{ln, n})
		}
	}
	t.whole, t.needs = p.ledger.total(whole), p.ledger.total(t.lacking)
}

// startTrial takes the trial as far as it comes now.
func (p *pass) startTrial() {
	t := p.trial
	if t == nil {
		return
	}
	t.worker = p.trialWorker(t)
	if t.standing = p.obstacles(t); len(t.standing) > 0 {
		for _, ln := range t.members {
			ln.verifying = 0 // nothing guards their classes but the limit
		}
		return
	}
	p.reserve(t)
	mine := p.in.Asking == "" || p.in.Asking == t.worker.ID
	if needsHold := t.WantsHold && !t.holds; t.Owner == "" || needsHold {
		if !p.turn(t) {
			return
		}
		if needsHold {
			p.serial.taken++
		}
		if !mine {
			t.leftHold = needsHold
			return
		}
		t.step.Take, t.step.Hold = t.Owner == "", needsHold
		if needsHold {
			t.holds, p.hold = true, t.ID
		}
		p.reserve(t)
	}
	p.startRound(t, mine)
}

// reserve keeps members' due jobs for the trial.
func (p *pass) reserve(t *trial) {
	for _, ln := range t.members {
		ln.reserved = t.taken() || (t.WantsHold && ln.lane.serial)
	}
}

// turn says whether an owner may take the trial, and serial's slot if wanted.
func (p *pass) turn(t *trial) bool {
	if t.Owner == "" && t.FromQueue && t.nothingDue() {
		return false
	}
	return !t.WantsHold || t.holds || (!p.serial.full() && p.earlier(t) == nil)
}

func (t *trial) nothingDue() bool {
	return !slices.ContainsFunc(t.members, func(ln *line) bool { return len(ln.due) > 0 })
}

// earlier is the line with the head in serial that goes before the trial, nil
// when there is none. Members' heads there are reserved and so don't count.
func (p *pass) earlier(t *trial) *line {
	place := Due{PlaceAt: t.PlaceAt, PlaceID: t.ID}
	if t.FromQueue {
		for _, ln := range t.members {
			if len(ln.due) > 0 && Before(*ln.due[0], place) {
				place = *ln.due[0]
			}
		}
	}
	var first *line
	for _, ln := range p.lines {
		if ln.lane.serial && p.open(ln) && Before(*ln.next(), place) && (first == nil || comparePlaces(ln, first) < 0) {
			first = ln
		}
	}
	return first
}

// startRound starts what the round lacks, or leaves it to the owner, or
// withholds its units when it lacks nothing else.
func (p *pass) startRound(t *trial, mine bool) {
	if len(t.Round) == 0 || slices.ContainsFunc(t.members, func(ln *line) bool { return ln.ordinary() > 0 }) {
		return
	}
	if t.FromQueue && slices.ContainsFunc(t.lacking, func(r gangRuns) bool { return len(r.line.due) < r.runs }) {
		return
	}
	if p.ledger.roundFull(t.needs, t.holds) != nil {
		p.ledger.keepRound(t.needs, t.holds)
		return
	}
	p.moveRound(t, 1)
	if !mine {
		t.leftRound = true
		return
	}
	t.step.Start = true
	for _, r := range t.lacking {
		for i := range r.runs {
			g := Grant{
				Class:        r.line.class.ID,
				Route:        r.line.route,
				Units:        maps.Clone(r.line.class.Using(p.in.Resources)),
				Worker:       t.worker.ID,
				Verification: t.ID,
			}
			if t.FromQueue {
				g.Job = r.line.due[i].Job
				r.line.granted++
			}
			t.step.Gang = append(t.step.Gang, g)
		}
	}
}

// moveRound enters the start of the round everywhere (sign 1) or takes it back
// (sign −1). Units of verification count outside serial, whatever the lane.
func (p *pass) moveRound(t *trial, sign int) {
	p.ledger.take(t.needs, false, sign)
	for _, r := range t.lacking {
		r.line.inFlight += sign * r.runs
		r.line.verifying += sign * r.runs
		if t.FromQueue {
			r.line.started += sign * r.runs
		}
	}
}

// leaveTrial takes back what was left to the trial's worker.
func (p *pass) leaveTrial() {
	t := p.trial
	if t.leftHold {
		p.serial.taken--
	}
	if t.leftRound {
		p.moveRound(t, -1)
	}
}

// trialWorker is the owner; before there is one, the worker that would take the
// trial: the asking one if it can.
func (p *pass) trialWorker(t *trial) *worker {
	var first *worker
	for _, w := range p.workers {
		switch {
		case t.Owner != "":
			if w.ID == t.Owner {
				return w
			}
		case w.Agent || !t.runsOn(w):
		case w.ID == p.in.Asking:
			return w
		case first == nil:
			first = w
		}
	}
	return first
}

func (t *trial) runsOn(w *worker) bool {
	return !slices.ContainsFunc(t.members, func(ln *line) bool { return !w.has(ln.class) })
}

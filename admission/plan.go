package admission

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
)

// Plan decides what may start now. It is deterministic, does not change its
// input, and fills all free slots in one pass.
//
// Order. The lanes take turns: of the lanes with a free slot, the one whose next
// job has the smallest place goes first. Within a lane the next job is the head
// with the smallest place (fifo, serial), or that of the class with the fewest
// attempts in flight, then the smallest place (fair). A head that can't start
// stands aside for the rest of the pass; the other classes go on, its own class
// does not. A slot is only looked for while the lane has one, so what follows
// never takes a job out of its line in vain.
//
// Reservation. A head that had its turn and found its units, or a slot on every
// worker that can run it, taken is remembered (Decision.Blocked) until it starts
// or is its class's head no more. A full lane, a pause or a lost worker in
// between does not set the clock back: while a large job gathers its units,
// other classes may use its lane's slots, and that must not cost it its claim.
// Once remembered for StarveAfter, heads that nothing but slots and units holds
// up go before all others, by place over all lanes. The first that still can't
// start is Kept: its units count as in use for every other start, except that
// what is kept outside serial never eats into serial's reserve; and one free
// slot of one worker that can run it stays free for it. As it goes first in each
// pass, the next slot of its lane is its own as soon as its units are there. A
// job none of whose workers has a free slot keeps nothing yet: units that nobody
// could use would stand idle for as long as that worker's longest run; it gets
// the worker's next slot, and then keeps its units too.
//
// So nothing starves: a reservation never gives back what it has gathered
// (worker's slot, then units, then the lane's slot) but to one with a smaller
// place, and only finitely many jobs have a smaller place than a given one.
//
// Workers. All live workers are planned for together, the asking one first
// choice for whatever it can run. A start that falls to another worker with a
// free slot is left to it: it takes its slots and units in this pass as if it
// had started, so that the asking worker neither overtakes it nor takes its
// units; only the asking worker's own starts are granted. When no worker that
// can run a head has a free slot, nothing is left to anybody, and the head is
// remembered as above.
//
// Trial. Before all others, the verification run whose turn it is takes what it
// needs: an owner, serial's slot, and the starts of its round, all or none; see
// trial.go for the rules.
//
// Due jobs whose class is not in Classes are left out.
func Plan(in Input) Decision {
	return newPass(in, newStanding(in.Lanes, in.Classes, in.Resources)).run()
}

func (p *pass) run() Decision {
	p.startTrial()
	p.startStarved()
	p.fill()
	return p.decide()
}

// pass is the state of one call of Plan.
type pass struct {
	in       Input
	standing *standing
	room     *room
	ledger   *ledger
	lanes    []*lane   // serial included, in a fixed order
	lines    []*line   // by class id; classes with due jobs only
	serial   *lane     // one of lanes
	workers  []*worker // by id
	hold     string    // the verification run that holds serial's slot
	trial    *trial    // nil when there is none
	kept     *line     // whose next job has the reservation
	grants   []Grant
	left     []start
}

// start is a start that is left to another worker.
type start struct {
	line   *line
	worker *worker
}

func newPass(in Input, s *standing) *pass {
	p := &pass{in: in, standing: s, room: s.room, hold: in.Hold}
	if p.room == nil {
		p.room = &room{}
	}
	p.addLanes()
	lines := p.addLines()
	p.addInFlight(lines)
	p.addWorkers()
	p.sizeRound()
	return p
}

func (p *pass) addLanes() {
	ledger, lanes := p.standing.open()
	p.ledger = ledger
	p.lanes = p.room.lanes[:0]
	for i := range lanes {
		p.lanes = append(p.lanes, &lanes[i])
	}
	p.room.lanes = p.lanes
	p.serial = p.lane(lanegate.LaneSerial)
	if p.hold != "" {
		p.serial.taken++
	}
}

// lane finds a lane that exists, serial always.
func (p *pass) lane(name string) *lane { return p.lanes[p.standing.index[name]] }

// addLines opens a line for every class with due jobs.
func (p *pass) addLines() map[string]*line {
	known := p.standing.lines
	byClass := p.room.linesByClass(min(len(p.in.Due), len(p.in.Classes)))
	if known == nil {
		for i := range p.in.Classes {
			byClass[p.in.Classes[i].ID] = &line{class: &p.in.Classes[i]}
		}
	}
	dues, blanks := p.room.forDue(len(p.in.Due)) // most classes have one due job
	p.lines = p.room.lines[:0]
	for i := range p.in.Due {
		d := &p.in.Due[i]
		ln, ok := byClass[d.Class]
		if !ok {
			blank, ok := known[d.Class]
			if !ok {
				continue
			}
			blanks = append(blanks, blank)
			ln = &blanks[len(blanks)-1]
			byClass[d.Class] = ln
		}
		if len(ln.due) == 0 {
			p.lines = append(p.lines, ln)
			ln.due = dues[i : i : i+1]
		}
		ln.due = append(ln.due, d)
	}
	p.room.lines = p.lines
	slices.SortFunc(p.lines, func(a, b *line) int { return strings.Compare(a.class.ID, b.class.ID) })
	complete := func(lines []*line) {
		for _, ln := range lines {
			if known == nil {
				p.standing.enter(ln)
			}
			ln.lane = p.lane(ln.route.Lane)
		}
	}
	complete(p.lines)
	if p.in.Trial != nil {
		for id, ln := range known { // members may have nothing due
			if _, ok := byClass[id]; !ok {
				byClass[id] = &ln
			}
		}
		p.trial = newTrial(p.in.Trial, p.in.Hold, byClass)
		complete(p.trial.members)
	}
	return byClass
}

// addInFlight enters attempts as they were written down when they started: a
// class that has moved since, or a lane that is gone, changes nothing about them.
func (p *pass) addInFlight(lines map[string]*line) {
	for i := range p.in.InFlight {
		r := &p.in.InFlight[i]
		p.ledger.enter(r)
		if i, ok := p.standing.index[r.Lane]; ok && r.Verification == "" {
			p.lanes[i].taken++
		}
		if ln, ok := lines[r.Class]; ok {
			ln.inFlight++
			if p.in.Trial.owns(r) {
				ln.verifying++
			}
		}
	}
}

func (p *pass) addWorkers() {
	for i := range p.in.Workers {
		w := &p.in.Workers[i]
		p.workers = append(p.workers, &worker{Worker: w, free: w.Free, serialFree: w.SerialFree})
	}
	slices.SortFunc(p.workers, func(a, b *worker) int { return strings.Compare(a.ID, b.ID) })
	for _, w := range p.workers {
		for _, l := range p.lanes {
			l.served = l.served || w.serves(l.name)
		}
		for _, ln := range p.lines {
			if w.serves(ln.lane.name) && w.has(ln.class) {
				ln.able = append(ln.able, w)
			}
		}
	}
	for _, ln := range p.lines {
		ln.all = p.workers
	}
}

// startStarved lets the heads that have been held up too long go first, and
// keeps what the first of them needs that can't start yet.
func (p *pass) startStarved() {
	for _, ln := range p.starved() {
		if !ln.lane.serial && ln.freeWorker() == nil {
			continue
		}
		if !p.start(ln) {
			p.keep(ln)
			return
		}
	}
}

// starved lists the heads remembered for StarveAfter that nothing but slots and
// units holds up, by place.
func (p *pass) starved() []*line {
	patience := p.in.StarveAfter
	if patience <= 0 {
		patience = DefaultStarveAfter
	}
	var lines []*line
	for _, ln := range p.lines {
		if ln.reserved {
			continue
		}
		since, ok := p.in.BlockedSince[ln.next().Job]
		if ok && p.in.Now.Sub(since) >= patience && p.open(ln) {
			lines = append(lines, ln)
		}
	}
	slices.SortFunc(lines, comparePlaces)
	return lines
}

// freeWorker is the first worker that can run the class and has a free slot
// outside serial, nil when there is none. "First" makes the choice last: the
// slot stays free, so the next pass finds the same worker, or an earlier one.
func (ln *line) freeWorker() *worker {
	for _, w := range ln.runners() {
		if w.free > 0 {
			return w
		}
	}
	return nil
}

func (p *pass) keep(ln *line) {
	p.kept = ln
	p.ledger.keep(ln.needs, ln.lane.serial)
	// Serial's local slot is free whenever serial is; it needs no keeping.
	if !ln.lane.serial {
		ln.freeWorker().held = 1
	}
}

// fill starts what can start, in the order of Plan's description. Every turn
// starts a job or takes a class out of its line, so it ends.
func (p *pass) fill() {
	for _, ln := range p.lines {
		if p.open(ln) && ln != p.kept { // whose turn this pass was the first
			ln.lane.line = append(ln.lane.line, ln)
		}
	}
	for _, l := range p.lanes {
		slices.SortFunc(l.line, l.compare)
	}
	for l := p.nextLane(); l != nil; l = p.nextLane() {
		ln := l.line[0]
		l.line = l.line[1:]
		switch {
		case !p.start(ln):
			ln.passed = ln.next()
		case p.open(ln):
			l.enter(ln)
		}
	}
}

// nextLane is the lane whose turn it is, nil when no lane can start anything.
func (p *pass) nextLane() *lane {
	var next *lane
	for _, l := range p.lanes {
		if len(l.line) > 0 && !l.full() && (next == nil || comparePlaces(l.line[0], next.line[0]) < 0) {
			next = l
		}
	}
	return next
}

// start starts the next job of an open line, or leaves it to another worker. It
// returns false, and changes nothing, when a slot or units are lacking.
func (p *pass) start(ln *line) bool {
	serial := ln.lane.serial
	if ln.lane.full() || p.ledger.full(ln.needs, serial) != nil || p.ledger.withheld(ln.needs, serial) != nil {
		return false
	}
	if p.trial != nil && p.ledger.roundWithheld(ln.needs, serial) != nil {
		return false
	}
	w := p.workerFor(ln)
	if w == nil {
		return false
	}
	job := ln.next()
	p.move(ln, w, 1)
	ln.more = !ln.lane.full() && ln.ordinary() < ln.limit()
	// Nothing is granted behind what is left to another worker: a class's jobs
	// start in their order.
	if p.in.Asking != "" && (w.ID != p.in.Asking || ln.started-1 > ln.granted) {
		p.left = append(p.left, start{ln, w})
		return true
	}
	ln.granted++
	p.grants = append(p.grants, Grant{
		Job:    job.Job,
		Class:  ln.class.ID,
		Route:  ln.route,
		Units:  maps.Clone(ln.class.Using(p.in.Resources)),
		Worker: w.ID,
	})
	return true
}

// workerFor picks the worker for a start: the asking one if it can take it,
// else the one with the most free slots, nil when all are full.
func (p *pass) workerFor(ln *line) *worker {
	var best *worker
	for _, w := range ln.runners() {
		free := w.slots(ln.lane.serial, false)
		if free <= 0 {
			continue
		}
		if w.ID == p.in.Asking {
			return w
		}
		if best == nil || free > best.slots(ln.lane.serial, false) {
			best = w
		}
	}
	return best
}

// move enters a start everywhere (sign 1) or takes it back (sign −1).
func (p *pass) move(ln *line, w *worker, sign int) {
	ln.started += sign
	ln.inFlight += sign
	ln.lane.taken += sign
	p.ledger.take(ln.needs, ln.lane.serial, sign)
	w.take(ln.lane.serial, sign)
}

// decide takes back what was left to other workers, which has not started, and
// explains what waits in the state that then is true.
func (p *pass) decide() Decision {
	var emptied []string
	for _, ln := range p.lines {
		if ln.started == len(ln.due) && (ln.more || len(p.in.BlockedSince) > 0) {
			emptied = append(emptied, ln.class.ID)
		}
	}
	for _, s := range p.left {
		p.move(s.line, s.worker, -1)
	}
	d := Decision{Grants: p.grants, Blocked: map[string]time.Time{}, Emptied: emptied}
	if p.kept != nil {
		d.Kept = p.kept.waiting().Job
	}
	var explain *explainer
	if p.trial != nil {
		p.leaveTrial()
		explain = newExplainer(p)
		d.Trial = &p.trial.step
		d.Trial.Reasons = explain.trial(p.trial)
	}
	for _, ln := range p.lines {
		job := ln.waiting()
		if job == nil {
			continue
		}
		since, remembered := p.in.BlockedSince[job.Job]
		switch {
		case remembered && since.Before(p.in.Now):
			d.Blocked[job.Job] = since
		case remembered || ln.passed == job:
			d.Blocked[job.Job] = p.in.Now
		}
		if p.in.NoWaits {
			continue
		}
		if explain == nil {
			explain = newExplainer(p)
		}
		if reasons := explain.reasons(ln); len(reasons) > 0 {
			d.Waits = append(d.Waits, Wait{Job: job.Job, Class: ln.class.ID, Route: ln.route, Reasons: reasons})
		}
	}
	return d
}

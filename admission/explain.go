package admission

import (
	"slices"

	"github.com/lanegate/lanegate"
)

// WaitOf returns why the first waiting job of a class waits, and false when the
// decision names no such job.
func (d Decision) WaitOf(class string) (Wait, bool) {
	for _, w := range d.Waits {
		if w.Class == class {
			return w, true
		}
	}
	return Wait{}, false
}

// ReasonsOf explains any due job of a class from a decision that was made with
// Asking "" and each class's head: the head waits for the reasons of its Wait,
// every other job for the one that stands first. It is empty for a job that the
// decision starts. A job that is not due waits for its time: Reason{Code: NotDue}.
func (d Decision) ReasonsOf(class, job string) []Reason {
	for _, g := range d.Grants {
		if g.Job == job {
			return nil
		}
	}
	if w, ok := d.WaitOf(class); ok {
		if w.Job == job {
			return w.Reasons
		}
		return []Reason{{Code: EarlierOf, Jobs: []string{w.Job}}}
	}
	for _, g := range slices.Backward(d.Grants) {
		if g.Class == class {
			return []Reason{{Code: EarlierOf, Jobs: []string{g.Job}}}
		}
	}
	return nil
}

// explainer finds the reasons for waits in the final state of a pass.
type explainer struct {
	p *pass
	// now holds the attempts in flight and this pass's grants.
	now []Running
	// Who holds what: jobs by name of resource, lane (verification left out, as
	// it holds no slot), class and verification run. Sorted when read.
	resource, lane, class, run map[string][]string
	// runs lists the verification runs that hold attempts of a class.
	runs map[string][]string
}

func newExplainer(p *pass) *explainer {
	e := &explainer{
		p:        p,
		now:      slices.Clone(p.in.InFlight),
		resource: map[string][]string{},
		lane:     map[string][]string{},
		class:    map[string][]string{},
		run:      map[string][]string{},
		runs:     map[string][]string{},
	}
	for _, g := range p.grants {
		e.now = append(e.now, Running{Job: g.Job, Class: g.Class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker})
	}
	for _, r := range e.now {
		e.class[r.Class] = append(e.class[r.Class], r.Job)
		for name, units := range r.Units {
			if units > 0 {
				e.resource[name] = append(e.resource[name], r.Job)
			}
		}
		if r.Verification == "" {
			e.lane[r.Lane] = append(e.lane[r.Lane], r.Job)
			continue
		}
		e.run[r.Verification] = append(e.run[r.Verification], r.Job)
		e.runs[r.Class] = append(e.runs[r.Class], r.Verification)
	}
	for _, m := range []map[string][]string{e.resource, e.lane, e.class, e.run, e.runs} {
		for name, list := range m {
			m[name] = distinct(list)
		}
	}
	return e
}

// reasons lists everything that holds up the line's next job now, in the order
// of the codes in this package's documentation of Wait.
func (e *explainer) reasons(ln *line) []Reason {
	var rs []Reason
	add := func(code Code, subject string, jobs []string) {
		rs = append(rs, Reason{Code: code, Subject: subject, Jobs: slices.Clone(jobs)})
	}
	e.standing(ln, add)
	slotTaken := e.slots(ln, add)
	serial := ln.lane.serial
	for _, n := range ln.needs {
		if a := &e.p.ledger.accounts[n.resource]; a.full(n.units, serial) && !a.never(n.units, serial) {
			add(ResourceFull, a.name, e.resource[a.name])
		}
	}
	kept := e.p.kept
	full, onlyHeld := e.workersFull(ln)
	if kept != nil && kept != ln && (onlyHeld || e.p.ledger.withheld(ln.needs, serial) != nil) {
		job := kept.waiting().Job
		add(KeptFor, job, []string{job})
	}
	// Serial's slot on a worker is busy only while serial itself is.
	if full && !(serial && slotTaken) {
		add(WorkerFull, "", e.onWorkers(ln))
	}
	return rs
}

// standing adds what no finish can mend: a person, an operator or a worker must.
func (e *explainer) standing(ln *line, add func(Code, string, []string)) {
	if ln.class.Paused {
		add(Paused, "class", nil)
	}
	if ln.lane.paused {
		add(Paused, "lane", nil)
	}
	if ln.wait {
		add(LaneWait, "", nil)
	}
	if !ln.lane.served {
		add(NoWorker, ln.lane.name, nil)
	}
	if len(ln.able) == 0 && needsCommand(ln.class) && !e.elsewhere(ln) {
		add(NoWorker, ln.class.Run.Command, nil)
	}
	for _, n := range ln.needs {
		if a := &e.p.ledger.accounts[n.resource]; a.never(n.units, ln.lane.serial) {
			add(OverCapacity, a.name, nil)
		}
	}
}

// elsewhere says whether a worker has the class's command while nobody at all
// serves its lane, so that the command is not what is missing.
func (e *explainer) elsewhere(ln *line) bool {
	return !ln.lane.served && slices.ContainsFunc(e.p.workers, func(w *worker) bool { return w.has(ln.class) })
}

// slots adds what takes the slots of the lane and of the class; it says whether
// the lane's are all taken.
func (e *explainer) slots(ln *line, add func(Code, string, []string)) bool {
	var runs []string
	if ln.lane.serial && e.p.in.Hold != "" {
		runs = append(runs, e.p.in.Hold)
	}
	over := ln.inFlight >= ln.limit()
	onlyVerifying := over && ln.inFlight-ln.verifying < ln.limit()
	if onlyVerifying {
		runs = append(runs, e.runs[ln.class.ID]...)
	}
	for _, run := range distinct(runs) {
		add(Verification, run, e.run[run])
	}
	attempts := ln.lane.taken
	if ln.lane.serial && e.p.in.Hold != "" {
		attempts--
	}
	if attempts >= ln.lane.width {
		add(LaneFull, "", e.lane[ln.lane.name])
	}
	if over && !onlyVerifying {
		add(ClassLimit, "", e.class[ln.class.ID])
	}
	return ln.lane.full()
}

// workersFull says whether every worker that can run the class is full, and
// whether the only free slot left is held for the job with the reservation.
func (e *explainer) workersFull(ln *line) (full, onlyHeld bool) {
	if len(ln.able) == 0 {
		return false, false
	}
	free := func(held bool) bool {
		return slices.ContainsFunc(ln.able, func(w *worker) bool { return w.slots(ln.lane.serial, held) > 0 })
	}
	full = !free(true)
	return full, !full && !free(false)
}

// onWorkers lists the jobs in the local slots that the line's job could use.
func (e *explainer) onWorkers(ln *line) []string {
	var jobs []string
	for _, r := range e.now {
		if (r.Lane == lanegate.LaneSerial) == ln.lane.serial &&
			slices.ContainsFunc(ln.able, func(w *worker) bool { return w.ID == r.Worker }) {
			jobs = append(jobs, r.Job)
		}
	}
	return distinct(jobs)
}

// distinct sorts list in place and drops doubles.
func distinct(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

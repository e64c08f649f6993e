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
	for _, g := range d.starts() {
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
	for _, g := range slices.Backward(d.starts()) {
		if g.Class == class && g.Job != "" {
			return []Reason{{Code: EarlierOf, Jobs: []string{g.Job}}}
		}
	}
	return nil
}

// starts lists the grants and those of the trial's round.
func (d Decision) starts() []Grant {
	if d.Trial == nil || len(d.Trial.Gang) == 0 {
		return d.Grants
	}
	return slices.Concat(d.Grants, d.Trial.Gang)
}

// explainer finds the reasons for waits in the final state of a pass.
type explainer struct {
	p *pass
	// now holds the attempts in flight and this pass's grants.
	now []Running
	// Who holds what: jobs by name of resource, lane and class (verification left
	// out, as it takes no slot), and verification run. Sorted, and without the jobs
	// that are made up only when this decision is carried out.
	resource, lane, class, run map[string][]string
}

func newExplainer(p *pass) *explainer {
	e := &explainer{
		p:        p,
		now:      slices.Clone(p.in.InFlight),
		resource: map[string][]string{},
		lane:     map[string][]string{},
		class:    map[string][]string{},
		run:      map[string][]string{},
	}
	add := func(grants []Grant) {
		for _, g := range grants {
			if g.Job != "" {
				e.now = append(e.now, Running{
					Job: g.Job, Class: g.Class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker, Verification: g.Verification,
				})
			}
		}
	}
	add(p.grants)
	if p.trial != nil {
		add(p.trial.step.Gang)
	}
	for _, r := range e.now {
		for name, units := range r.Units {
			if units > 0 {
				e.resource[name] = append(e.resource[name], r.Job)
			}
		}
		if r.Verification != "" {
			e.run[r.Verification] = append(e.run[r.Verification], r.Job)
		} else {
			e.lane[r.Lane] = append(e.lane[r.Lane], r.Job)
		}
		if p.trial == nil || len(p.trial.standing) > 0 || !p.trial.owns(&r) {
			e.class[r.Class] = append(e.class[r.Class], r.Job)
		}
	}
	for _, m := range []map[string][]string{e.resource, e.lane, e.class, e.run} {
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
	switch able := ln.runners(); {
	case len(able) > 0:
	case needsCommand(ln.class) && !e.elsewhere(ln):
		add(NoWorker, ln.class.Run.Command, nil)
	case ln.class.Run.Kind == lanegate.RunSQS && !e.elsewhere(ln):
		add(NoWorker, string(lanegate.RunSQS), nil)
	case !needsCommand(ln.class) && ln.lane.served: // by agents, which send no requests
		add(NoWorker, ln.lane.name, nil)
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

// slots adds what takes the slots of the lane and of the class, and the trial
// that the head must wait for; it says whether the lane's slots are all taken.
func (e *explainer) slots(ln *line, add func(Code, string, []string)) bool {
	var runs []string
	attempts := ln.lane.taken
	if ln.lane.serial && e.p.hold != "" {
		runs = append(runs, e.p.hold)
		attempts--
	}
	if t := e.p.trial; t != nil && (ln.reserved || e.p.ledger.roundWithheld(ln.needs, ln.lane.serial) != nil) {
		runs = append(runs, t.ID)
	}
	for _, run := range distinct(runs) {
		add(Verification, run, e.run[run])
	}
	if attempts >= ln.lane.width {
		add(LaneFull, "", e.lane[ln.lane.name])
	}
	if ln.ordinary() >= ln.limit() {
		add(ClassLimit, "", e.class[ln.class.ID])
	}
	return ln.lane.full()
}

// workersFull says whether every worker that can run the class is full, and
// whether the only free slot left is held for the job with the reservation.
func (e *explainer) workersFull(ln *line) (full, onlyHeld bool) {
	able := ln.runners()
	if len(able) == 0 {
		return false, false
	}
	free := func(held bool) bool {
		return slices.ContainsFunc(able, func(w *worker) bool { return w.slots(ln.lane.serial, held) > 0 })
	}
	full = !free(true)
	return full, !full && !free(false)
}

// onWorkers lists the jobs in the local slots that the line's job could use.
func (e *explainer) onWorkers(ln *line) []string {
	var jobs []string
	for _, r := range e.now {
		if r.Verification == "" && (r.Lane == lanegate.LaneSerial) == ln.lane.serial &&
			slices.ContainsFunc(ln.runners(), func(w *worker) bool { return w.ID == r.Worker }) {
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

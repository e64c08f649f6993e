package admission

import (
	"maps"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// obstacles lists what no finish can mend: a person, an operator or a worker must.
func (p *pass) obstacles(t *trial) []Reason {
	var rs []Reason
	add := func(code Code, subject string) { rs = append(rs, Reason{Code: code, Subject: subject}) }
	if t.Owner != "" && t.worker == nil {
		add(NoWorker, t.Owner)
	}
	if t.started() {
		return rs // the rest concerns rounds to come
	}
	for _, id := range t.unknown {
		add(UnknownClass, id)
	}
	paused, missing := map[string]bool{}, map[string]bool{}
	if t.WantsHold && p.serial.paused {
		paused[p.serial.name] = true
	}
	for _, ln := range t.members {
		if ln.class.Paused {
			add(Paused, "class:"+ln.class.ID)
		}
		if ln.lane.paused {
			paused[ln.lane.name] = true
		}
		if ln.wait {
			missing[ln.lane.name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(paused)) {
		add(Paused, "lane:"+name)
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		add(LaneWait, name)
	}
	for _, command := range p.missingCommands(t) {
		add(NoWorker, command)
	}
	for _, n := range t.whole {
		if a := &p.ledger.accounts[n.resource]; a.roundNever(n.units, t.WantsHold) {
			add(OverCapacity, a.name)
		}
	}
	return rs
}

// missingCommands lists the commands that the owner lacks or, before there is
// one, every worker; all commands, joined by "+", when each is on some worker but
// no worker has them all; and "" when no worker lives and no command is needed.
func (p *pass) missingCommands(t *trial) []string {
	candidates := slices.DeleteFunc(slices.Clone(p.workers), func(w *worker) bool { return w.Agent })
	if t.Owner != "" {
		if t.worker == nil {
			return nil
		}
		candidates = []*worker{t.worker}
	} else if t.worker != nil {
		return nil
	}
	var all, missing []string
	for _, ln := range t.members {
		if !needsCommand(ln.class) {
			continue
		}
		all = append(all, ln.class.Run.Command)
		if !slices.ContainsFunc(candidates, func(w *worker) bool { return w.has(ln.class) }) {
			missing = append(missing, ln.class.Run.Command)
		}
	}
	if len(missing) == 0 && t.worker == nil {
		missing = []string{strings.Join(distinct(all), "+")}
	}
	return distinct(missing)
}

// trial lists why the round does not start, in the state once everything else of
// the decision has started.
func (e *explainer) trial(t *trial) []Reason {
	switch {
	case t.step.Start || t.started():
		return nil
	case len(t.standing) > 0:
		return t.standing
	}
	var rs []Reason
	add := func(code Code, subject string, jobs []string) {
		rs = append(rs, Reason{Code: code, Subject: subject, Jobs: slices.Clone(jobs)})
	}
	if !t.taken() && t.FromQueue && t.nothingDue() {
		add(NotDue, "", nil)
	}
	if t.WantsHold && !t.holds {
		e.beforeTrial(t, add)
	}
	for _, ln := range t.members {
		if ln.ordinary() > 0 {
			add(ClassLimit, ln.class.ID, e.class[ln.class.ID])
		}
	}
	for _, r := range t.lacking {
		if t.FromQueue && len(r.line.due) < r.runs {
			add(NotDue, r.line.class.ID, nil)
		}
	}
	for _, n := range t.needs {
		if a := &e.p.ledger.accounts[n.resource]; n.units+a.outside > a.room(t.WantsHold) {
			add(ResourceFull, a.name, e.resource[a.name])
		}
	}
	return rs
}

// beforeTrial adds who has serial's slot, or gets it first.
func (e *explainer) beforeTrial(t *trial, add func(Code, string, []string)) {
	if e.p.hold != "" {
		add(Verification, e.p.hold, e.run[e.p.hold])
	}
	if jobs := e.lane[lanegate.LaneSerial]; len(jobs) > 0 {
		add(LaneFull, lanegate.LaneSerial, jobs)
	} else if ln := e.p.earlier(t); ln != nil && e.p.hold == "" {
		job := ln.next().Job
		add(KeptFor, job, []string{job})
	}
}

package admission

import (
	"slices"
	"sort"
	"strings"

	"github.com/lanegate/lanegate"
)

// oracleTrial is what the oracle knows of the trial during a pass. As with the
// oracle, its rules stay together.
type oracleTrial struct {
	step     TrialStep
	obstacle []Reason
	serial   bool // members' jobs in serial are reserved
	all      bool // members' jobs are reserved everywhere
	left     bool // serial's slot is left to another worker
	gathers  map[string]int
}

// serveTrial follows the rules at the top of trial.go.
func (o *oracle) serveTrial() {
	t := o.in.Trial
	if t == nil {
		return
	}
	ot := &o.trial
	if ot.obstacle = o.obstacles(); len(ot.obstacle) > 0 {
		return
	}
	ot.serial, ot.all = t.WantsHold, t.Owner != ""
	who := o.trialWorker()
	mine := o.in.Asking == "" || o.in.Asking == who
	needsHold := t.WantsHold && o.hold != t.ID
	if t.Owner == "" && t.FromQueue && o.membersDue() == 0 {
		return
	}
	if needsHold && (!o.laneFree("serial") || o.firstBeforeTrial() != "") {
		return
	}
	if needsHold {
		o.hold = t.ID
		ot.left = !mine
	}
	if mine {
		ot.step.Hold = needsHold
		ot.step.Take = t.Owner == ""
		ot.all = true
	} else if t.Owner == "" || needsHold {
		return
	}
	o.startGang(who)
}

func (o *oracle) startGang(who string) {
	t := o.in.Trial
	if len(t.Round) == 0 || len(o.gangObstacles()) > 0 {
		return
	}
	lacking := o.lacking()
	units := o.unitsOf(lacking)
	if len(o.gangFull(o.hold == t.ID)) > 0 {
		o.trial.gathers = units
		return
	}
	if o.in.Asking == "" || o.in.Asking == who {
		o.trial.step.Start = true
	}
	for _, id := range lacking {
		c := o.class(id)
		lane, _ := o.home(c)
		r := Running{Class: id, Lane: lane, Units: c.Using(o.in.Resources), Worker: who, Verification: t.ID}
		if t.FromQueue {
			r.Job = o.head(c).Job
		}
		o.runs = append(o.runs, oracleRun{Running: r, fresh: true})
	}
}

// trialDecision comes after what was left to others is out of o.runs.
func (o *oracle) trialDecision() *TrialStep {
	t := o.in.Trial
	if t == nil {
		return nil
	}
	if o.trial.left {
		o.hold = o.in.Hold
	}
	step := o.trial.step
	for _, r := range o.runs {
		if r.fresh && r.Verification != "" {
			g := Grant{Job: r.Job, Class: r.Class, Units: r.Units, Worker: r.Worker, Verification: t.ID}
			g.Route = o.route(o.class(r.Class))
			step.Gang = append(step.Gang, g)
		}
	}
	if !step.Start && !(t.Owner != "" && len(t.Round) == 0) {
		step.Reasons = o.trialReasons(step.Take)
	}
	return &step
}

func (o *oracle) members() []string {
	ids := append(slices.Clone(o.in.Trial.Members), o.in.Trial.Round...)
	sort.Strings(ids)
	return slices.Compact(ids)
}

func (o *oracle) isMember(id string) bool {
	return o.in.Trial != nil && slices.Contains(o.members(), id)
}

func (o *oracle) membersDue() int {
	n := 0
	for _, d := range o.in.Due {
		if o.isMember(d.Class) {
			n++
		}
	}
	return n
}

func (o *oracle) exists(id string) bool {
	for _, c := range o.in.Classes {
		if c.ID == id {
			return true
		}
	}
	return false
}

// lacking is the round without what is in flight of it.
func (o *oracle) lacking() []string {
	var rest []string
	have := map[string]int{}
	for _, r := range o.in.InFlight {
		if r.Verification == o.in.Trial.ID {
			have[r.Class]++
		}
	}
	round := slices.Clone(o.in.Trial.Round)
	sort.Strings(round)
	for _, id := range round {
		if have[id] > 0 {
			have[id]--
			continue
		}
		rest = append(rest, id)
	}
	return rest
}

func (o *oracle) unitsOf(ids []string) map[string]int {
	sum := map[string]int{}
	for _, id := range ids {
		for name, u := range o.needs(o.class(id)) {
			sum[name] += u
		}
	}
	return sum
}

func sortedNames(m map[string]int) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// runsAll says whether a worker has the commands of all members.
func (o *oracle) runsAll(w Worker) bool {
	for _, id := range o.members() {
		if o.exists(id) && !hasCommand(w, o.class(id)) {
			return false
		}
	}
	return true
}

func (o *oracle) trialWorker() string {
	if o.in.Trial.Owner != "" {
		return o.in.Trial.Owner
	}
	var ids []string
	for _, w := range o.in.Workers {
		if o.runsAll(w) {
			ids = append(ids, w.ID)
		}
	}
	sort.Strings(ids)
	switch {
	case len(ids) == 0:
		return ""
	case slices.Contains(ids, o.in.Asking):
		return o.in.Asking
	}
	return ids[0]
}

func (o *oracle) obstacles() []Reason {
	t := o.in.Trial
	var rs []Reason
	candidates := o.in.Workers
	if t.Owner != "" {
		candidates = nil
		for _, w := range o.in.Workers {
			if w.ID == t.Owner {
				candidates = append(candidates, w)
			}
		}
		if candidates == nil {
			rs = append(rs, Reason{Code: "no_worker", Subject: t.Owner})
		}
		if len(t.Round) == 0 {
			return rs
		}
	}
	members := o.members()
	var known []string
	for _, id := range members {
		if o.exists(id) {
			known = append(known, id)
		} else {
			rs = append(rs, Reason{Code: "unknown_class", Subject: id})
		}
	}
	for _, id := range known {
		if o.class(id).Paused {
			rs = append(rs, Reason{Code: "paused", Subject: "class:" + id})
		}
	}
	paused, waiting := map[string]int{}, map[string]int{}
	if t.WantsHold && o.lanePaused("serial") {
		paused["serial"]++
	}
	for _, id := range known {
		lane, wait := o.home(o.class(id))
		if o.lanePaused(lane) {
			paused[lane]++
		}
		if wait {
			waiting[lane]++
		}
	}
	for _, lane := range sortedNames(paused) {
		rs = append(rs, Reason{Code: "paused", Subject: "lane:" + lane})
	}
	for _, lane := range sortedNames(waiting) {
		rs = append(rs, Reason{Code: "lane_unavailable", Subject: lane})
	}
	rs = append(rs, o.commandObstacles(known, candidates)...)
	var whole []string
	for _, id := range t.Round {
		if o.exists(id) {
			whole = append(whole, id)
		}
	}
	units := o.unitsOf(whole)
	for _, name := range sortedNames(units) {
		room := o.capacity(name)
		if !t.WantsHold {
			room -= o.reserve(name)
		}
		if units[name] > room {
			rs = append(rs, Reason{Code: "over_capacity", Subject: name})
		}
	}
	return rs
}

func (o *oracle) commandObstacles(known []string, candidates []Worker) []Reason {
	if o.in.Trial.Owner != "" && len(candidates) == 0 {
		return nil // said already
	}
	if slices.ContainsFunc(candidates, o.runsAll) {
		return nil
	}
	all, missing := map[string]int{}, map[string]int{}
	for _, id := range known {
		c := o.class(id)
		if c.Run.Command == "" {
			continue
		}
		all[c.Run.Command]++
		if !slices.ContainsFunc(candidates, func(w Worker) bool { return hasCommand(w, c) }) {
			missing[c.Run.Command]++
		}
	}
	if len(missing) == 0 {
		return []Reason{{Code: "no_worker", Subject: strings.Join(sortedNames(all), "+")}}
	}
	var rs []Reason
	for _, command := range sortedNames(missing) {
		rs = append(rs, Reason{Code: "no_worker", Subject: command})
	}
	return rs
}

// reserved says whether the class's jobs start for the trial only.
func (o *oracle) reserved(c lanegate.Class) bool {
	if !o.isMember(c.ID) {
		return false
	}
	lane, _ := o.home(c)
	return o.trial.all || (o.trial.serial && lane == "serial")
}

// firstBeforeTrial is the job in serial that goes before the trial, "" for none.
func (o *oracle) firstBeforeTrial() string {
	place := Due{PlaceAt: o.in.Trial.PlaceAt, PlaceID: o.in.Trial.ID}
	if o.in.Trial.FromQueue {
		for _, d := range o.in.Due {
			if o.isMember(d.Class) && Before(d, place) {
				place = d
			}
		}
	}
	best := Due{}
	for _, c := range o.in.Classes {
		lane, _ := o.home(c)
		if lane != "serial" || o.isMember(c.ID) || !o.mayRun(c) {
			continue
		}
		if h := o.head(c); Before(h, place) && (best.Job == "" || Before(h, best)) {
			best = h
		}
	}
	return best.Job
}

// gangObstacles: ordinary attempts of members, and jobs that are not due.
func (o *oracle) gangObstacles() []Reason {
	var rs []Reason
	for _, id := range o.members() {
		if all, verification := o.ofClass(id); all > verification {
			jobs := o.jobs(func(r Running) bool { return r.Class == id && !o.tried(r) })
			rs = append(rs, Reason{Code: "class_limit", Subject: id, Jobs: jobs})
		}
	}
	if !o.in.Trial.FromQueue {
		return rs
	}
	wants := map[string]int{}
	for _, id := range o.lacking() {
		wants[id]++
	}
	for _, id := range sortedNames(wants) {
		due := 0
		for _, d := range o.in.Due {
			if d.Class == id {
				due++
			}
		}
		if due < wants[id] {
			rs = append(rs, Reason{Code: "not_due", Subject: id})
		}
	}
	return rs
}

// gangFull lists the resources that the gang can't have enough of.
func (o *oracle) gangFull(holds bool) []Reason {
	var rs []Reason
	units := o.unitsOf(o.lacking())
	for _, name := range sortedNames(units) {
		room := o.capacity(name) - o.used(name, true)
		if !holds {
			room = min(room, o.capacity(name)-o.reserve(name))
		}
		if o.used(name, false)+units[name] > room {
			rs = append(rs, Reason{Code: "resource", Subject: name, Jobs: o.jobs(func(r Running) bool { return r.Units[name] > 0 })})
		}
	}
	return rs
}

// gatheredAgainst: would a start of c take what the gang waits for?
func (o *oracle) gatheredAgainst(c lanegate.Class) bool {
	if lane, _ := o.home(c); lane == "serial" {
		return false
	}
	for name, u := range o.needs(c) {
		gathers := o.trial.gathers[name]
		if gathers == 0 {
			continue
		}
		room := o.capacity(name) - o.used(name, true)
		if o.hold != o.in.Trial.ID {
			room = min(room, o.capacity(name)-o.reserve(name))
		}
		if o.used(name, false)+u+gathers > room {
			return true
		}
	}
	return false
}

func (o *oracle) trialReasons(take bool) []Reason {
	if len(o.trial.obstacle) > 0 {
		return o.trial.obstacle
	}
	t := o.in.Trial
	var rs []Reason
	if t.Owner == "" && !take && t.FromQueue && o.membersDue() == 0 {
		rs = append(rs, Reason{Code: "not_due"})
	}
	if t.WantsHold && o.hold != t.ID {
		if o.hold != "" {
			rs = append(rs, Reason{Code: "verification", Subject: o.hold, Jobs: o.jobs(func(r Running) bool { return r.Verification == o.hold })})
		}
		if jobs := o.attempts("serial"); len(jobs) > 0 {
			sort.Strings(jobs)
			rs = append(rs, Reason{Code: "lane_full", Subject: "serial", Jobs: jobs})
		} else if job := o.firstBeforeTrial(); job != "" && o.hold == "" {
			rs = append(rs, Reason{Code: "kept_for", Subject: job, Jobs: []string{job}})
		}
	}
	rs = append(rs, o.gangObstacles()...)
	return append(rs, o.gangFull(t.WantsHold)...)
}

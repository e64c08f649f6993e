package admission

import (
	"slices"
	"sort"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// oracle is the rules of admission a second time, in the plainest way: one list
// of everything that runs, and every number counted from it anew whenever it is
// asked for. It shares nothing with Plan but the types and Before, and stays in
// one file, and one more for trials, so that the rules can be read from top to
// bottom.
type oracle struct {
	in   Input
	runs []oracleRun
	out  map[string]bool // classes that had their turn in vain
	turn map[string]bool // jobs that had it

	widths map[string]int // as they do not change during a pass

	kept     string // job
	keptOf   string // its class
	keptSlot string // worker of whose slots one is kept

	hold  string // the verification run with serial's slot
	trial oracleTrial
}

type oracleRun struct {
	Running
	fresh bool // started in this pass
}

// oraclePlan is Plan by the oracle.
func oraclePlan(in Input) Decision {
	o := &oracle{in: in, out: map[string]bool{}, turn: map[string]bool{}, hold: in.Hold}
	o.widths = o.allWidths()
	for _, r := range in.InFlight {
		o.runs = append(o.runs, oracleRun{Running: r})
	}
	o.serveTrial()
	o.serveStarved()
	for {
		c, ok := o.pick()
		if !ok {
			break
		}
		if !o.tryStart(c) {
			o.out[c.ID] = true
			o.turn[o.head(c).Job] = true
		}
	}
	return o.decision()
}

func (o *oracle) class(id string) lanegate.Class {
	for _, c := range o.in.Classes {
		if c.ID == id {
			return c
		}
	}
	panic("unknown class")
}

// home is the lane where the class's jobs start, and whether they wait for it.
func (o *oracle) home(c lanegate.Class) (lane string, wait bool) {
	if c.Lane == "serial" || c.Lane == "" {
		return "serial", false
	}
	for _, l := range o.in.Lanes {
		if l.Name != c.Lane {
			continue
		}
		if l.Available {
			return l.Name, false
		}
		if l.Paused || l.WhenUnavailable == lanegate.FallbackWait {
			return l.Name, true
		}
	}
	return "serial", false
}

func (o *oracle) lanePaused(name string) bool {
	for _, l := range o.in.Lanes {
		if l.Name == name {
			return l.Paused
		}
	}
	return false
}

// head is the first job of the class that was not started in this pass.
func (o *oracle) head(c lanegate.Class) Due {
	for _, d := range o.in.Due {
		if d.Class == c.ID && !o.started(d.Job) {
			return d
		}
	}
	return Due{}
}

func (o *oracle) started(job string) bool {
	return slices.ContainsFunc(o.runs, func(r oracleRun) bool { return r.fresh && r.Job == job })
}

func (o *oracle) needs(c lanegate.Class) map[string]int {
	m := map[string]int{}
	for name, u := range c.Using(o.in.Resources) {
		if u > 0 {
			m[name] = u
		}
	}
	return m
}

func (o *oracle) capacity(name string) int {
	for _, r := range o.in.Resources {
		if r.Name == name {
			return r.Capacity
		}
	}
	return 0
}

func (o *oracle) reserve(name string) int {
	serial, promoted := 0, 0
	for _, c := range o.in.Classes {
		u := o.needs(c)[name]
		if c.Lane == "serial" || c.Lane == "" {
			if !c.Paused && u > serial {
				serial = u
			}
		} else if u > promoted {
			promoted = u
		}
	}
	r := max(min(serial, o.capacity(name)-promoted), 0)
	return r
}

// used counts the units in use by the serial line, or by everything else.
func (o *oracle) used(name string, serial bool) int {
	sum := 0
	for _, r := range o.runs {
		if (r.Lane == "serial" && r.Verification == "") == serial && r.Units[name] > 0 {
			sum += r.Units[name]
		}
	}
	return sum
}

// largest is the most that a class of the lane takes of a resource.
func (o *oracle) largest(lane, resource string) int {
	most := 0
	for _, c := range o.in.Classes {
		if c.Lane == lane {
			most = max(most, o.needs(c)[resource])
		}
	}
	return most
}

func (o *oracle) width(name string) int {
	if name == "serial" {
		return 1
	}
	return o.widths[name]
}

// allWidths follows the documentation of Widths, number by number.
func (o *oracle) allWidths() map[string]int {
	widths := map[string]int{}
	var autos []string
	for _, l := range o.in.Lanes {
		if l.Name == "serial" {
			continue
		}
		widths[l.Name] = l.WidthSetting
		if l.WidthSetting == lanegate.WidthAuto {
			widths[l.Name] = 1
			autos = append(autos, l.Name)
		}
	}
	sort.Slice(autos, func(i, j int) bool {
		if (autos[i] == "parallel") != (autos[j] == "parallel") {
			return autos[i] == "parallel"
		}
		return autos[i] < autos[j]
	})
	for _, a := range autos {
		best := -1
		for _, resource := range o.allResources() {
			units := o.largest(a, resource)
			if units == 0 {
				continue
			}
			left := o.capacity(resource) - o.reserve(resource)
			for other, w := range widths {
				if other != a {
					left -= w * o.largest(other, resource)
				}
			}
			fits := 0
			for (fits+1)*units <= left {
				fits++
			}
			if best < 0 || fits < best {
				best = fits
			}
		}
		widths[a] = max(1, best)
	}
	return widths
}

func (o *oracle) allResources() []string {
	seen := map[string]bool{}
	for _, c := range o.in.Classes {
		for name := range o.needs(c) {
			seen[name] = true
		}
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// attempts lists the jobs that hold a slot of the lane.
func (o *oracle) attempts(lane string) []string {
	var jobs []string
	for _, r := range o.runs {
		if r.Lane == lane && r.Verification == "" {
			jobs = append(jobs, r.Job)
		}
	}
	return jobs
}

func (o *oracle) laneFree(lane string) bool {
	n := len(o.attempts(lane))
	if lane == "serial" && o.hold != "" {
		n++
	}
	return n < o.width(lane)
}

// tried says whether an attempt is part of the trial, and the trial goes on.
func (o *oracle) tried(r Running) bool {
	return o.in.Trial != nil && len(o.trial.obstacle) == 0 && r.Verification == o.in.Trial.ID
}

// ofClass counts the class's attempts: all, and those of the trial.
func (o *oracle) ofClass(id string) (all, verification int) {
	for _, r := range o.runs {
		if r.Class == id {
			all++
			if o.tried(r.Running) {
				verification++
			}
		}
	}
	return all, verification
}

// atLimit: attempts of the trial don't count.
func (o *oracle) atLimit(c lanegate.Class) bool {
	all, verification := o.ofClass(c.ID)
	return all-verification >= limitOf(c)
}

func limitOf(c lanegate.Class) int {
	if c.MaxInFlight < 1 {
		return 1
	}
	return c.MaxInFlight
}

func servesLane(w Worker, lane string) bool {
	if w.Lanes == nil {
		return true
	}
	return slices.Contains(w.Lanes, lane)
}

func hasCommand(w Worker, c lanegate.Class) bool {
	if c.Run.Kind == lanegate.RunSQS {
		_, reaches := w.Commands["sqs:"]
		return reaches
	}
	if c.Run.Kind != lanegate.RunExec && c.Run.Kind != lanegate.RunAgent {
		return true
	}
	digest, ok := w.Commands[c.Run.Command]
	return ok && digest == c.CommandDigest
}

// able lists the workers that can run the class, by id.
func (o *oracle) able(c lanegate.Class) []Worker {
	lane, _ := o.home(c)
	var ws []Worker
	for _, w := range o.in.Workers {
		if servesLane(w, lane) && hasCommand(w, c) {
			ws = append(ws, w)
		}
	}
	sort.Slice(ws, func(i, j int) bool { return ws[i].ID < ws[j].ID })
	return ws
}

// localSlots is what a worker has left after the starts of this pass; what is
// kept for another job is not counted, unless all is true.
func (o *oracle) localSlots(w Worker, serial, all bool) int {
	taken := 0
	for _, r := range o.runs {
		if r.fresh && r.Verification == "" && r.Worker == w.ID && (r.Lane == "serial") == serial {
			taken++
		}
	}
	if serial {
		if w.SerialFree && taken == 0 {
			return 1
		}
		return 0
	}
	n := w.Free - taken
	if !all && o.keptSlot == w.ID {
		n--
	}
	return n
}

// mayRun: nothing but slots and units can stand in the way.
func (o *oracle) mayRun(c lanegate.Class) bool {
	lane, wait := o.home(c)
	if o.head(c).Job == "" || wait || c.Paused || o.lanePaused(lane) || o.atLimit(c) || len(o.able(c)) == 0 || o.reserved(c) {
		return false
	}
	for name, u := range o.needs(c) {
		if o.never(name, u, lane == "serial") {
			return false
		}
	}
	return true
}

func (o *oracle) never(name string, units int, serial bool) bool {
	if serial {
		return units > o.capacity(name)
	}
	return units > o.capacity(name)-o.reserve(name)
}

func (o *oracle) noUnits(name string, units int, serial bool) bool {
	if serial {
		return units+o.used(name, true)+o.used(name, false) > o.capacity(name)
	}
	return units+o.used(name, false) > o.capacity(name)-max(o.reserve(name), o.used(name, true))
}

// taken away from the kept job by a start of c?
func (o *oracle) keptAgainst(c lanegate.Class) bool {
	if o.kept == "" || o.keptOf == c.ID {
		return false
	}
	lane, _ := o.home(c)
	keptLane, _ := o.home(o.class(o.keptOf))
	for name, u := range o.needs(c) {
		k := o.needs(o.class(o.keptOf))[name]
		if k == 0 {
			continue
		}
		serialUse, otherUse := o.used(name, true), o.used(name, false)
		room := o.capacity(name)
		var over bool
		if lane == "serial" {
			over = u+k+serialUse+otherUse > room
			if keptLane != "serial" && u <= o.reserve(name) {
				over = false
			}
		} else if keptLane == "serial" {
			over = u+otherUse > room-max(o.reserve(name), serialUse, k)
		} else {
			over = u+k+otherUse > room-max(o.reserve(name), serialUse)
		}
		if over {
			return true
		}
	}
	return false
}

func (o *oracle) tryStart(c lanegate.Class) bool {
	lane, _ := o.home(c)
	serial := lane == "serial"
	if !o.laneFree(lane) || o.keptAgainst(c) || o.gatheredAgainst(c) {
		return false
	}
	for name, u := range o.needs(c) {
		if o.noUnits(name, u, serial) {
			return false
		}
	}
	chosen, most := "", 0
	for _, w := range o.able(c) {
		n := o.localSlots(w, serial, o.keptOf == c.ID)
		if n <= 0 {
			continue
		}
		if w.ID == o.in.Asking {
			chosen = w.ID
			break
		}
		if n > most {
			chosen, most = w.ID, n
		}
	}
	if chosen == "" {
		return false
	}
	o.runs = append(o.runs, oracleRun{
		Running: Running{Job: o.head(c).Job, Class: c.ID, Lane: lane, Units: o.needs(c), Worker: chosen},
		fresh:   true,
	})
	return true
}

func (o *oracle) serveStarved() {
	patience := o.in.StarveAfter
	if patience == 0 {
		patience = DefaultStarveAfter
	}
	var old []lanegate.Class
	for _, c := range o.in.Classes {
		since, ok := o.in.BlockedSince[o.head(c).Job]
		if ok && !since.Add(patience).After(o.in.Now) && o.mayRun(c) {
			old = append(old, c)
		}
	}
	sort.Slice(old, func(i, j int) bool { return Before(o.head(old[i]), o.head(old[j])) })
	for _, c := range old {
		lane, _ := o.home(c)
		slot := ""
		for _, w := range slices.Backward(o.able(c)) {
			if w.Free-o.freshOutsideSerial(w.ID) > 0 {
				slot = w.ID
			}
		}
		if lane != "serial" && slot == "" {
			continue
		}
		if o.tryStart(c) {
			continue
		}
		o.kept, o.keptOf = o.head(c).Job, c.ID
		if lane != "serial" {
			o.keptSlot = slot
		}
		return
	}
}

func (o *oracle) freshOutsideSerial(worker string) int {
	n := 0
	for _, r := range o.runs {
		if r.fresh && r.Verification == "" && r.Worker == worker && r.Lane != "serial" {
			n++
		}
	}
	return n
}

// pick scans all classes for each lane's next one, and takes the one with the
// smallest place.
func (o *oracle) pick() (lanegate.Class, bool) {
	next := map[string]lanegate.Class{}
	for _, c := range o.in.Classes {
		lane, _ := o.home(c)
		if o.out[c.ID] || !o.mayRun(c) || !o.laneFree(lane) {
			continue
		}
		other, ok := next[lane]
		if !ok || o.goesFirst(lane, c, other) {
			next[lane] = c
		}
	}
	var best lanegate.Class
	found := false
	for _, c := range next {
		if !found || Before(o.head(c), o.head(best)) {
			best, found = c, true
		}
	}
	return best, found
}

func (o *oracle) goesFirst(lane string, a, b lanegate.Class) bool {
	for _, l := range o.in.Lanes {
		if l.Name == lane && lane != "serial" && l.Order == lanegate.OrderFair {
			na, _ := o.ofClass(a.ID)
			nb, _ := o.ofClass(b.ID)
			if na != nb {
				return na < nb
			}
		}
	}
	return Before(o.head(a), o.head(b))
}

func (o *oracle) decision() Decision {
	d := Decision{Kept: o.kept, Blocked: map[string]time.Time{}}
	var stay []oracleRun
	for _, r := range o.runs {
		if r.fresh && o.in.Asking != "" && r.Worker != o.in.Asking {
			continue // left to another worker: it does not run
		}
		stay = append(stay, r)
		if r.fresh && r.Verification == "" {
			c := o.class(r.Class)
			g := Grant{Job: r.Job, Class: r.Class, Route: lanegate.Route{Lane: r.Lane}, Units: c.Using(o.in.Resources), Worker: r.Worker}
			g.Route = o.route(c)
			d.Grants = append(d.Grants, g)
		}
	}
	o.runs = stay
	d.Trial = o.trialDecision()
	classes := slices.Clone(o.in.Classes)
	sort.Slice(classes, func(i, j int) bool { return classes[i].ID < classes[j].ID })
	for _, c := range classes {
		job := o.head(c).Job
		if job == "" {
			continue
		}
		since, known := o.in.BlockedSince[job]
		if known && since.After(o.in.Now) {
			since = o.in.Now
		}
		if known {
			d.Blocked[job] = since
		} else if o.turn[job] {
			d.Blocked[job] = o.in.Now
		}
		if rs := o.reasons(c); len(rs) > 0 {
			d.Waits = append(d.Waits, Wait{Job: job, Class: c.ID, Route: o.route(c), Reasons: rs})
		}
	}
	return d
}

func (o *oracle) route(c lanegate.Class) lanegate.Route {
	lane, _ := o.home(c)
	if lane == "serial" && c.Lane != "serial" && c.Lane != "" {
		return lanegate.Route{Lane: "serial", Reason: "lane_unavailable", Wanted: c.Lane}
	}
	return lanegate.Route{Lane: lane}
}

func (o *oracle) reasons(c lanegate.Class) []Reason {
	var rs []Reason
	lane, wait := o.home(c)
	serial := lane == "serial"
	if c.Paused {
		rs = append(rs, Reason{Code: "paused", Subject: "class"})
	}
	if o.lanePaused(lane) {
		rs = append(rs, Reason{Code: "paused", Subject: "lane"})
	}
	if wait {
		rs = append(rs, Reason{Code: "lane_unavailable"})
	}
	rs = append(rs, o.workerReasons(c, lane)...)
	var names []string
	for name := range o.needs(c) {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if o.never(name, o.needs(c)[name], serial) {
			rs = append(rs, Reason{Code: "over_capacity", Subject: name})
		}
	}
	rs = append(rs, o.slotReasons(c, lane)...)
	for _, name := range names {
		if u := o.needs(c)[name]; !o.never(name, u, serial) && o.noUnits(name, u, serial) {
			rs = append(rs, Reason{Code: "resource", Subject: name, Jobs: o.jobs(func(r Running) bool { return r.Units[name] > 0 })})
		}
	}
	return append(rs, o.lastReasons(c, lane)...)
}

func (o *oracle) jobs(which func(Running) bool) []string {
	var jobs []string
	for _, r := range o.runs {
		if r.Job != "" && which(r.Running) && !slices.Contains(jobs, r.Job) {
			jobs = append(jobs, r.Job)
		}
	}
	sort.Strings(jobs)
	return jobs
}

func (o *oracle) workerReasons(c lanegate.Class, lane string) []Reason {
	var rs []Reason
	serving, having := false, false
	for _, w := range o.in.Workers {
		serving = serving || servesLane(w, lane)
		having = having || hasCommand(w, c)
	}
	if !serving {
		rs = append(rs, Reason{Code: "no_worker", Subject: lane})
	}
	if !having || (serving && len(o.able(c)) == 0) {
		if c.Run.Command != "" {
			rs = append(rs, Reason{Code: "no_worker", Subject: c.Run.Command})
		}
		if c.Run.Kind == lanegate.RunSQS {
			rs = append(rs, Reason{Code: "no_worker", Subject: "sqs"})
		}
	}
	return rs
}

func (o *oracle) slotReasons(c lanegate.Class, lane string) []Reason {
	ids := map[string]bool{}
	if lane == "serial" && o.hold != "" {
		ids[o.hold] = true
	}
	if o.reserved(c) || o.gatheredAgainst(c) {
		ids[o.in.Trial.ID] = true
	}
	var sorted []string
	for id := range ids {
		sorted = append(sorted, id)
	}
	sort.Strings(sorted)
	var rs []Reason
	for _, id := range sorted {
		rs = append(rs, Reason{Code: "verification", Subject: id, Jobs: o.jobs(func(r Running) bool { return r.Verification == id })})
	}
	if len(o.attempts(lane)) >= o.width(lane) {
		rs = append(rs, Reason{Code: "lane_full", Jobs: o.jobs(func(r Running) bool { return r.Lane == lane && r.Verification == "" })})
	}
	if o.atLimit(c) {
		rs = append(rs, Reason{Code: "class_limit", Jobs: o.jobs(func(r Running) bool { return r.Class == c.ID && !o.tried(r) })})
	}
	return rs
}

// lastReasons: what is kept for another job, and full workers.
func (o *oracle) lastReasons(c lanegate.Class, lane string) []Reason {
	serial := lane == "serial"
	able := o.able(c)
	free, freeForKept := false, false
	for _, w := range able {
		free = free || o.localSlots(w, serial, o.keptOf == c.ID) > 0
		freeForKept = freeForKept || o.localSlots(w, serial, true) > 0
	}
	var rs []Reason
	if o.keptAgainst(c) || (len(able) > 0 && freeForKept && !free) {
		rs = append(rs, Reason{Code: "kept_for", Subject: o.kept, Jobs: []string{o.kept}})
	}
	if len(able) > 0 && !freeForKept && (!serial || o.laneFree(lane)) {
		rs = append(rs, Reason{Code: "worker_full", Jobs: o.jobs(func(r Running) bool {
			return r.Verification == "" && (r.Lane == "serial") == serial && slices.ContainsFunc(able, func(w Worker) bool { return w.ID == r.Worker })
		})})
	}
	return rs
}

// diffOracle is "" when Plan's decision d agrees with the oracle's.
func diffOracle(in Input, d Decision) string {
	d.Emptied = nil // judged by TestPlanFromPartsOfTheLines
	return cmp.Diff(oraclePlan(in), d)
}

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	loadClasses = 20
	loadChanges = 1000
	loadGang    = 5 // classes proven by one run
	// loadMoment is how long nothing may start while something waits; generous, as
	// the machine may be busy with other tests.
	loadMoment = 10 * time.Second
)

// TestChangesAtFullLoad: a thousand changes of lanes, limits, widths, capacities
// and pauses while twenty classes flow. Every change is made, no start exceeds a
// limit in force, no job is lost, none runs twice, and nothing stops for more than
// a moment.
func TestChangesAtFullLoad(t *testing.T) {
	l := newFullLoad(t)
	l.prove()
	began := time.Now()
	stop := l.flow(2)
	for i := range loadChanges {
		l.change(i)
	}
	stop()
	t.Logf("%d changes in %v while %d jobs were accepted", loadChanges, time.Since(began), len(l.posted))
	l.settle()
	l.w.eventually(3*time.Minute, "every job is final", func() bool { return l.w.count("queued")+l.w.count("running") == 0 })
	l.judgeRecord()
	starts := l.starts()
	l.judgeStarts(starts)
	l.judgeGaps(starts)
	l.judgeChanges()
}

// fullLoad is twenty classes that flow while everything about them changes.
type fullLoad struct {
	t     *testing.T
	w     *world
	names []string

	mu     sync.Mutex
	posted []string // guarded by mu

	// limits are those in force one after the other, each from a moment within the
	// call that made it.
	limits []limits
	// took counts the changes that changed something, by kind, and by kind and class.
	took map[string]int
	// slowest is the longest call.
	slowest time.Duration
}

// limits are what a start must keep to, as asked for between before and after.
type limits struct {
	before, after   time.Time
	what            string
	capacity, width int
	class           map[string]classLimits
}

type classLimits struct {
	lane        string
	maxInFlight int
	paused      bool
	units       int
}

func newFullLoad(t *testing.T) *fullLoad {
	l := &fullLoad{t: t, w: newWorld(t), took: map[string]int{}}
	l.w.write("tick.sh", `#!/bin/sh
note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"; }
note start
if [ -n "$LANEGATE_VERIFICATION" ]; then sleep 0.2; else sleep 0.05; fi
note end
`)
	l.w.config("\nresources:\n  gate: {capacity: 1}\ncommands:\n  quick: {argv: [sh, $DIR/tick.sh], env: {EVENTS: $DIR/events}}\n")
	l.w.start()
	now := limits{what: "the beginning", class: map[string]classLimits{}}
	l.w.must("PUT", "/resources/db", `{"capacity": 30, "pool": true}`, nil)
	for i := range loadClasses {
		name, units := fmt.Sprintf("c%02d", i), 1+i%loadGang
		l.names = append(l.names, name)
		now.class[name] = classLimits{lane: "serial", maxInFlight: 1, units: units}
		l.w.must("PUT", "/job-classes/"+name, fmt.Sprintf(`{"run": {"kind": "exec", "command": "quick"}, "units": {"db": %d}, "repeatable": true}`, units), nil)
	}
	l.w.ready()
	now.capacity, now.width = 15, 2
	l.limits = []limits{now}
	return l
}

// prove records verification runs that prove each class with two copies. Each is
// tried beside four others only: what is proven beside whom is not what is tested.
func (l *fullLoad) prove() {
	l.t.Helper()
	for group := range slices.Chunk(l.names, loadGang) {
		var members []string
		for _, name := range group {
			members = append(members, fmt.Sprintf(`{"class": %q, "copies": 2}`, name))
		}
		v := l.w.verify(`{"source": "payloads", "rounds": 1, "max_hold": "30m", "criteria": {"min_overlap": 0.01, "max_slowdown": 50}, "members": [` + strings.Join(members, ",") + `]}`)
		if v = l.w.verdict(v.ID, 5*time.Minute); v.Verdict != "passed" {
			l.t.Fatalf("verdict %s: %v", v.Verdict, v.Reasons)
		}
	}
	if err := os.Remove(l.w.path("events")); err != nil {
		l.t.Fatal(err)
	}
	l.w.must("PUT", "/resources/db?accept=width", `{"capacity": 15, "pool": true}`, nil)
	l.w.must("PUT", "/lanes/parallel?accept=width", `{"width": 2, "allow_overcommit": true, "order": "fair"}`, nil)
}

// flow posts jobs of all classes in turn until stop is called, never far ahead of
// the line.
func (l *fullLoad) flow(clients int) (stop func()) {
	ctx, cancel := context.WithCancel(l.t.Context())
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := c; ctx.Err() == nil; i += clients {
				if err := l.post(l.names[i/clients%len(l.names)]); err != nil {
					l.t.Error(err)
					return
				}
				l.await(ctx)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

func (l *fullLoad) post(class string) error {
	status, text, err := l.w.do("POST", "/jobs", fmt.Sprintf(`{"class": %q}`, class))
	if err != nil || status != http.StatusCreated {
		return fmt.Errorf("POST /jobs: %d %s %w", status, text, err)
	}
	var j job
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posted = append(l.posted, j.ID)
	return nil
}

// await returns once few jobs are queued.
func (l *fullLoad) await(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		var page struct {
			Items []job `json:"items"`
		}
		status, text, err := l.w.do("GET", "/jobs?limit=500&state=queued", "")
		if err != nil || status != http.StatusOK || json.Unmarshal(text, &page) != nil {
			l.t.Errorf("GET /jobs: %d %s %v", status, text, err)
			return
		}
		if len(page.Items) < 3*loadClasses {
			return
		}
		<-tick.C
	}
}

// change makes the change with the number i: of six kinds in turn, each of which
// goes round all classes. A class is promoted ten turns after it was demoted, and
// resumed two turns after it was paused.
func (l *fullLoad) change(i int) {
	l.t.Helper()
	turn := i / 6
	class := func(ahead int) string { return l.names[(turn+ahead)%len(l.names)] }
	edit := func(name string, change func(*classLimits)) func(*limits) {
		return func(now *limits) {
			c := now.class[name]
			change(&c)
			now.class[name] = c
		}
	}
	switch i % 6 {
	case 0:
		name := class(0)
		l.apply("demote "+name, "PATCH", "/job-classes/"+name+"/demote", "{}", edit(name, func(c *classLimits) { c.lane, c.maxInFlight = "serial", 1 }))
	case 1:
		name, most := class(10), 1+turn/len(l.names)%2
		l.apply("promote "+name, "PATCH", "/job-classes/"+name+"/promote?accept=width", fmt.Sprintf(`{"max_in_flight": %d}`, most),
			edit(name, func(c *classLimits) { c.lane, c.maxInFlight = "parallel", most }))
	case 2:
		n := 8 + turn%8
		l.apply("capacity db", "PUT", "/resources/db?accept=width", fmt.Sprintf(`{"capacity": %d, "pool": true}`, n), func(now *limits) { now.capacity = n })
	case 3:
		n := 1 + turn%4
		l.apply("width parallel", "PUT", "/lanes/parallel?accept=width", fmt.Sprintf(`{"width": %d, "allow_overcommit": true, "order": "fair"}`, n), func(now *limits) { now.width = n })
	case 4:
		name := class(5)
		l.apply("pause "+name, "POST", "/job-classes/"+name+"/pause", "", edit(name, func(c *classLimits) { c.paused = true }))
	case 5:
		name := class(3)
		l.apply("resume "+name, "POST", "/job-classes/"+name+"/resume", "", edit(name, func(c *classLimits) { c.paused = false }))
	}
}

// apply makes a change, which has to be accepted, and writes down what is in force then.
func (l *fullLoad) apply(what, method, path, body string, edit func(*limits)) {
	l.t.Helper()
	last := l.limits[len(l.limits)-1]
	next := limits{what: what, capacity: last.capacity, width: last.width, class: maps.Clone(last.class)}
	edit(&next)
	next.before = time.Now()
	l.w.must(method, path, body, nil)
	next.after = time.Now()
	l.slowest = max(l.slowest, next.after.Sub(next.before))
	l.limits = append(l.limits, next)
	if next.capacity != last.capacity || next.width != last.width || !maps.Equal(next.class, last.class) {
		l.took[what]++
		l.took[strings.Fields(what)[0]]++
	}
}

// settle makes room for what is left.
func (l *fullLoad) settle() {
	l.t.Helper()
	l.apply("capacity db", "PUT", "/resources/db?accept=width", `{"capacity": 15, "pool": true}`, func(now *limits) { now.capacity = 15 })
	for _, name := range l.names {
		l.apply("settle "+name, "POST", "/job-classes/"+name+"/resume", "", func(now *limits) {
			c := now.class[name]
			c.paused = false
			now.class[name] = c
		})
	}
}

// judgeRecord compares the jobs' own record with what was accepted.
func (l *fullLoad) judgeRecord() {
	t := l.t
	t.Helper()
	starts, ends := map[string]int{}, map[string]int{}
	events := l.w.events()
	for _, e := range events {
		switch e.kind {
		case "start":
			starts[e.job]++
		case "end":
			ends[e.job]++
		}
	}
	serial := map[string]bool{}
	for _, id := range l.posted {
		if starts[id] != 1 || ends[id] != 1 {
			t.Errorf("job %s started %d and ended %d times", id, starts[id], ends[id])
		}
		j := l.w.job(id)
		if j.State != "succeeded" {
			t.Errorf("job %s is %s: %s", id, j.State, j.Reason)
			continue
		}
		serial[id] = j.Route.Lane == "serial"
	}
	if len(starts) != len(l.posted) {
		t.Errorf("%d jobs ran, %d were accepted", len(starts), len(l.posted))
	}
	// Four in parallel at the widest, and one in serial.
	if most := mostAtOnce(events, l.names...); most > 5 {
		t.Errorf("%d jobs at once", most)
	}
	inSerial := slices.DeleteFunc(slices.Clone(events), func(e event) bool { return !serial[e.job] })
	if most := mostAtOnce(inSerial, l.names...); most > 1 {
		t.Errorf("serial had %d at once", most)
	}
}

// loadRun is one attempt as the gateway has it.
type loadRun struct {
	job, class, lane      string
	units                 int
	ready, started, ended time.Time
}

// starts lists all attempts in the order of their starts.
func (l *fullLoad) starts() []loadRun {
	l.t.Helper()
	var runs []loadRun
	for _, id := range l.posted {
		class := l.w.job(id).Class
		for _, a := range l.w.attempts(id) {
			if a.EndedAt == nil {
				l.t.Fatalf("job %s is final, its attempt %d has no end", id, a.Number)
			}
			runs = append(runs, loadRun{id, class, a.Lane, a.Units["db"], a.ReadyAt, a.StartedAt, *a.EndedAt})
		}
	}
	slices.SortFunc(runs, func(a, b loadRun) int {
		return cmp.Or(a.started.Compare(b.started), strings.Compare(a.job, b.job))
	})
	return runs
}

// clockSlack covers the rounding of stored times.
const clockSlack = time.Millisecond

// judgeStarts compares what each start made of what was in flight with the limits
// that may have been in force at that moment: while a change is being made that is
// those before it or those after it.
func (l *fullLoad) judgeStarts(runs []loadRun) {
	l.t.Helper()
	lanes, classes := map[string]int{}, map[string]map[string]bool{}
	first := 0 // the oldest limits that may still be in force
	for i := 0; i < len(runs); {
		at := runs[i].started
		n := i
		for n < len(runs) && runs[n].started.Equal(at) {
			n++
		}
		var inFlight []loadRun
		for _, r := range runs[:n] {
			if r.ended.After(at) || !r.started.Before(at) {
				inFlight = append(inFlight, r)
			}
		}
		for first+1 < len(l.limits) && l.limits[first+1].after.Add(clockSlack).Before(at) {
			first++
		}
		var faults []string
		for k := first; k < len(l.limits) && (k == first || !l.limits[k].before.Add(-clockSlack).After(at)); k++ {
			fault := l.limits[k].exceeded(runs[i:n], inFlight)
			if fault == "" {
				faults = nil
				break
			}
			faults = append(faults, fmt.Sprintf("after %q (change %d): %s", l.limits[k].what, k, fault))
		}
		if len(faults) > 0 {
			l.t.Errorf("start of %+v at %s: %s", runs[i:n], at.Format(time.RFC3339Nano), strings.Join(faults, "; "))
		}
		for _, r := range runs[i:n] {
			lanes[r.lane]++
			if classes[r.lane] == nil {
				classes[r.lane] = map[string]bool{}
			}
			classes[r.lane][r.class] = true
		}
		i = n
	}
	l.t.Logf("%d starts: %v, of so many classes: serial %d, parallel %d", len(runs), lanes, len(classes["serial"]), len(classes["parallel"]))
	if lanes["serial"] < 50 || lanes["parallel"] < 50 {
		l.t.Error("too few starts to show anything")
	}
	for _, name := range l.names {
		if !classes["serial"][name] && !classes["parallel"][name] {
			l.t.Errorf("%s never ran", name)
		}
	}
}

// exceeded names a limit that some starts exceeded, given all that is in flight
// with them; "" when none.
func (l limits) exceeded(starts, inFlight []loadRun) string {
	lane, class, serial, outside := map[string]int{}, map[string]int{}, 0, 0
	for _, r := range inFlight {
		lane[r.lane]++
		class[r.class]++
		if r.lane == "serial" {
			serial += r.units
		} else {
			outside += r.units
		}
	}
	for _, r := range starts {
		c := l.class[r.class]
		width := 1
		if r.lane == "parallel" {
			width = l.width
		}
		switch {
		case c.paused:
			return r.class + " is paused"
		case c.lane != r.lane:
			return fmt.Sprintf("%s belongs to %s, it started in %s", r.class, c.lane, r.lane)
		case r.units != c.units:
			return fmt.Sprintf("%s takes %d units, %d are written down", r.class, c.units, r.units)
		case class[r.class] > c.maxInFlight:
			return fmt.Sprintf("%d of %s in flight, the limit is %d", class[r.class], r.class, c.maxInFlight)
		case lane[r.lane] > width:
			return fmt.Sprintf("%d in flight in %s, its width is %d", lane[r.lane], r.lane, width)
		case serial+outside > l.capacity:
			return fmt.Sprintf("%d units of db in use, there are %d", serial+outside, l.capacity)
		case r.lane != "serial" && outside > l.capacity-max(l.reserve(), serial):
			return fmt.Sprintf("%d units of db in use outside serial, there are %d, %d kept for serial, which uses %d", outside, l.capacity, l.reserve(), serial)
		}
	}
	return ""
}

// reserve is what is kept for serial: its largest unpaused class, but no more than
// the largest promoted class leaves.
func (l limits) reserve() int {
	serial, promoted := 0, 0
	for _, c := range l.class {
		switch {
		case c.lane != "serial":
			promoted = max(promoted, c.units)
		case !c.paused:
			serial = max(serial, c.units)
		}
	}
	return max(0, min(serial, l.capacity-promoted))
}

// judgeGaps bounds the time in which nothing started although a job was ready.
func (l *fullLoad) judgeGaps(runs []loadRun) {
	l.t.Helper()
	ready := make([]time.Time, len(runs)+1) // the earliest of runs[i:]
	for i := len(runs) - 1; i >= 0; i-- {
		if ready[i] = runs[i].ready; i+1 < len(runs) && ready[i+1].Before(ready[i]) {
			ready[i] = ready[i+1]
		}
	}
	longest := time.Duration(0)
	for i := 1; i < len(runs); i++ {
		since := runs[i-1].started
		if ready[i].After(since) {
			since = ready[i]
		}
		longest = max(longest, runs[i].started.Sub(since))
	}
	l.t.Logf("longest time without a start while jobs waited: %v; slowest change: %v", longest, l.slowest)
	if longest > loadMoment || l.slowest > loadMoment {
		l.t.Errorf("for %v nothing started although a job was ready; the slowest change took %v", longest, l.slowest)
	}
}

// judgeChanges wants each kind to have changed something often, and for each class.
func (l *fullLoad) judgeChanges() {
	l.t.Helper()
	total := 0
	for _, kind := range []string{"demote", "promote", "capacity", "width", "pause", "resume"} {
		total += l.took[kind]
		if l.took[kind] < loadChanges/6*8/10 {
			l.t.Errorf("%s changed something %d times only", kind, l.took[kind])
		}
		if kind == "capacity" || kind == "width" {
			continue
		}
		for _, name := range l.names {
			if l.took[kind+" "+name] < 5 {
				l.t.Errorf("%s of %s changed something %d times only", kind, name, l.took[kind+" "+name])
			}
		}
	}
	l.t.Logf("%d of %d changes changed something", total, loadChanges)
}

package e2e

import (
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
	loadJobs    = 300 // at least, meanwhile
	loadGang    = 5   // classes proven by one run
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
		if i%50 == 49 { // changes without jobs in between show nothing
			l.w.eventually(time.Minute, "the jobs flow", func() bool { return l.accepted() >= i*loadJobs/loadChanges })
		}
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
if [ -n "$LANEGATE_VERIFICATION" ]; then sleep 0.8; else sleep 0.05; fi
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
		spec := `{"source": "payloads", "rounds": 1, "max_hold": "30m", "criteria": {"min_overlap": 0.01, "max_slowdown": 50}, "members": [` + strings.Join(members, ",") + `]}`
		l.w.mustPass(spec)
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

func (l *fullLoad) accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.posted)
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

package admission

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
)

// picker makes choices: rapid's, so that failures shrink, or a fuzzer's bytes.
type picker interface {
	// pick returns a number from 0 to n−1.
	pick(n int) int
}

type rapidPicker struct{ t *rapid.T }

func (p rapidPicker) pick(n int) int { return rapid.IntRange(0, n-1).Draw(p.t, "pick") }

type bytePicker struct{ bytes []byte }

func (p *bytePicker) pick(n int) int {
	if len(p.bytes) == 0 {
		return 0
	}
	b := p.bytes[0]
	p.bytes = p.bytes[1:]
	return int(b) % n
}

// world is a gateway in miniature: a database, people, jobs and workers, in
// which Plan alone starts jobs.
type world struct {
	picker
	now       time.Time
	lanes     []lanegate.Lane
	classes   []lanegate.Class
	resources []lanegate.Resource
	queued    []queuedJob
	running   []Running
	workers   []simWorker
	blocked   map[string]time.Time
	hold      string
	trial     *simTrial
	made      int
	// starveAfter is Input.StarveAfter.
	starveAfter time.Duration
}

type queuedJob struct {
	Due
	readyAt time.Time
}

type simWorker struct {
	id       string
	lanes    []string
	slots    int
	commands map[string]string
	draining bool
}

var (
	laneNames     = []string{"serial", "parallel", "long", "night"}
	resourceNames = []string{"db", "vendor", "disk"}
)

func newWorld(p picker) *world {
	w := &world{picker: p, now: noon, blocked: map[string]time.Time{}}
	w.starveAfter = time.Duration(p.pick(3)) * 5 * time.Minute // 0 is the default
	for _, name := range laneNames[:2+p.pick(3)] {
		l := newLane(name, p.pick(4), lanegate.OrderFIFO)
		if p.pick(2) == 0 {
			l.Order = lanegate.OrderFair
		}
		if p.pick(4) == 0 {
			l.WhenUnavailable = lanegate.FallbackWait
		}
		w.lanes = append(w.lanes, l)
	}
	for _, name := range resourceNames[:1+p.pick(3)] {
		w.resources = append(w.resources, lanegate.Resource{Name: name, Capacity: 1 + p.pick(15), Pool: p.pick(2) == 0})
	}
	for i := range 1 + p.pick(6) {
		w.classes = append(w.classes, w.newClass(fmt.Sprintf("c%d", i)))
	}
	for range 1 + p.pick(3) {
		w.joinWorker()
	}
	return w
}

func (w *world) newClass(id string) lanegate.Class {
	c := newClass(id, laneNames[w.pick(len(laneNames))], w.newUnits())
	c.MaxInFlight = w.pick(4)
	if w.pick(3) == 0 {
		c.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "cmd-" + id}
		c.CommandDigest = "v1"
	}
	return c
}

func (w *world) newUnits() lanegate.Units {
	if w.pick(4) == 0 {
		return nil
	}
	u := lanegate.Units{}
	for _, name := range resourceNames {
		if n := w.pick(10); n < 7 {
			u[name] = n
		}
	}
	return u
}

func (w *world) joinWorker() {
	w.made++
	s := simWorker{id: fmt.Sprintf("w%03d", w.made), slots: w.pick(5), commands: map[string]string{}}
	if w.pick(3) == 0 {
		for _, name := range laneNames {
			if w.pick(2) == 0 {
				s.lanes = append(s.lanes, name)
			}
		}
	}
	for _, c := range w.classes {
		if c.Run.Command != "" && w.pick(3) > 0 {
			s.commands[c.Run.Command] = fmt.Sprintf("v%d", 1+w.pick(4)/3)
		}
	}
	w.workers = append(w.workers, s)
}

func leftPad(n int) string { return fmt.Sprintf("%05d", n) }

// submit queues a job whose place is where the line ends now.
func (w *world) submit(class string) {
	w.made++
	id := "j" + leftPad(w.made)
	w.queued = append(w.queued, queuedJob{
		Due:     Due{Job: id, Class: class, PlaceAt: w.now, PlaceID: id},
		readyAt: w.now,
	})
}

// input reads the database for one ask; with asking "", for an explanation.
func (w *world) input(asking string) Input {
	in := Input{
		Now:          w.now,
		Lanes:        w.lanes,
		Classes:      w.classes,
		Resources:    w.resources,
		InFlight:     w.running,
		BlockedSince: w.blocked,
		Hold:         w.hold,
		StarveAfter:  w.starveAfter,
		Asking:       asking,
	}
	if w.trial != nil {
		in.Trial = w.trial.input()
	}
	for _, j := range w.queued {
		if !j.readyAt.After(w.now) {
			in.Due = append(in.Due, j.Due)
		}
	}
	sort.Slice(in.Due, func(i, j int) bool { return Before(in.Due[i], in.Due[j]) })
	for _, s := range w.workers {
		if s.draining {
			continue
		}
		ordinary := func(r Running) bool { return r.Worker == s.id && r.Verification == "" }
		serial := count(w.running, func(r Running) bool { return ordinary(r) && r.Lane == lanegate.LaneSerial })
		others := count(w.running, ordinary) - serial
		in.Workers = append(in.Workers, Worker{
			ID: s.id, Lanes: s.lanes, Free: s.slots - others, SerialFree: serial == 0, Commands: s.commands,
		})
	}
	return in
}

// apply writes down a decision that was made for asking, as the store does.
func (w *world) apply(asking string, d Decision) {
	for _, g := range d.Grants {
		w.begin(g)
	}
	w.applyTrial(asking, d.Trial)
	w.blocked = d.Blocked
}

func (w *world) begin(g Grant) {
	w.queued = slices.DeleteFunc(w.queued, func(j queuedJob) bool { return j.Job == g.Job })
	w.running = append(w.running, Running{
		Job: g.Job, Class: g.Class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker, Verification: g.Verification,
	})
}

// settle lets the workers ask, in an order that the picker chooses, until
// nobody gets anything any more. Every decision is checked.
func (w *world) settle(t failer) {
	t.Helper()
	for again := true; again; {
		again = false
		order := slices.Clone(w.workers)
		for i := range order {
			j := i + w.pick(len(order)-i)
			order[i], order[j] = order[j], order[i]
			if w.ask(t, order[i].id) > 0 {
				again = true
			}
		}
	}
}

func (w *world) ask(t failer, worker string) int {
	t.Helper()
	in := w.input(worker)
	d := Plan(in)
	checkDecision(t, in, d)
	w.apply(worker, d)
	return steps(d)
}

// steps counts what a decision changes, but for what it remembers.
func steps(d Decision) int {
	n := len(d.Grants)
	if d.Trial != nil {
		n += len(d.Trial.Gang)
		for _, step := range []bool{d.Trial.Take, d.Trial.Hold, d.Trial.Start} {
			if step {
				n++
			}
		}
	}
	return n
}

// finish ends the i-th attempt; its job goes away, or back to its place, at
// once or after a backoff.
func (w *world) finish(i int) {
	r := w.running[i]
	w.running = slices.Delete(slices.Clone(w.running), i, i+1)
	if r.Job[0] != 'j' || w.pick(4) > 0 { // made up for a trial, or done
		return
	}
	w.queued = append(w.queued, queuedJob{
		Due:     Due{Job: r.Job, Class: r.Class, PlaceAt: w.now.Add(-time.Hour), PlaceID: r.Job},
		readyAt: w.now.Add(time.Duration(w.pick(3)*w.pick(20)) * time.Minute),
	})
}

// act is one event of a day: mostly jobs that come and go, now and then a person
// who changes something.
func (w *world) act() {
	w.now = w.now.Add(time.Duration(w.pick(10)) * time.Minute)
	w.coordinate()
	switch w.pick(22) {
	case 0, 1, 2, 3, 4, 5, 6:
		for range 1 + w.pick(3) {
			w.submit(w.classes[w.pick(len(w.classes))].ID)
		}
	case 7, 8, 9, 10, 11:
		for range 1 + w.pick(3) {
			if len(w.running) > 0 {
				w.finish(w.pick(len(w.running)))
			}
		}
	case 12:
		w.now = w.now.Add(15 * time.Minute)
	case 13:
		if len(w.queued) > 0 {
			w.queued[w.pick(len(w.queued))].FirstAt = w.now // run-next
		}
	case 14, 20, 21:
		w.verify()
	case 15:
		w.changeWorkers()
	case 16, 17:
		w.editClass()
	case 18:
		w.editLane()
	case 19:
		w.resources = slices.Clone(w.resources)
		w.resources[w.pick(len(w.resources))].Capacity = w.pick(16)
	}
}

// verify plans a trial, or ends the one there is; its runs go on. Now and then a
// run of an older trial is still there.
func (w *world) verify() {
	switch {
	case w.pick(5) == 0:
		w.made++
		c := w.classes[w.pick(len(w.classes))]
		w.running = append(slices.Clone(w.running), Running{
			Job: "made" + leftPad(w.made), Class: c.ID, Lane: laneNames[w.pick(2)],
			Units: c.Using(w.resources), Worker: w.workers[0].id, Verification: "v0",
		})
	case w.trial == nil:
		w.newTrial()
	case w.pick(4) == 0:
		w.endTrial()
	}
}

// changeWorkers lets a worker join, drain or die. An owner's death ends its
// trial in the same moment; its drain does not.
func (w *world) changeWorkers() {
	if len(w.workers) == 1 || w.pick(2) == 0 {
		w.joinWorker()
		return
	}
	i := w.pick(len(w.workers))
	w.workers = slices.Clone(w.workers)
	if !w.workers[i].draining && w.pick(3) == 0 {
		w.workers[i].draining = true
		return
	}
	gone := w.workers[i].id
	w.workers = slices.Delete(w.workers, i, i+1)
	if w.trial != nil && w.trial.Owner == gone {
		w.endTrial()
	}
	w.running = slices.Clone(w.running)
	for j := len(w.running) - 1; j >= 0; j-- {
		if w.running[j].Worker == gone && w.pick(4) > 0 { // the rest is detached
			w.finish(j)
		}
	}
}

func (w *world) editClass() {
	w.classes = slices.Clone(w.classes)
	c := &w.classes[w.pick(len(w.classes))]
	switch w.pick(5) {
	case 0:
		c.Paused = !c.Paused
	case 1:
		c.Units = w.newUnits()
	case 2:
		c.Lane = laneNames[w.pick(len(laneNames))]
	case 3:
		c.MaxInFlight = w.pick(4)
	case 4:
		if c.CommandDigest != "" {
			c.CommandDigest = fmt.Sprintf("v%d", 1+w.pick(2))
		}
	}
}

func (w *world) editLane() {
	w.lanes = slices.Clone(w.lanes)
	l := &w.lanes[w.pick(len(w.lanes))]
	switch w.pick(3) {
	case 0:
		l.Paused = !l.Paused
	case 1:
		l.Available = !l.Available
	case 2:
		l.WidthSetting = w.pick(5)
	}
}

// heal undoes everything that may rightly keep a job waiting for ever: pauses,
// holds, missing lanes and workers that can't run it.
func (w *world) heal() {
	w.endTrial()
	w.classes = slices.Clone(w.classes)
	for i := range w.classes {
		w.classes[i].Paused = false
	}
	w.lanes = slices.Clone(w.lanes)
	for i := range w.lanes {
		w.lanes[i].Paused = false
		w.lanes[i].Available = true
	}
	w.made++
	all := simWorker{id: fmt.Sprintf("w%03d", w.made), slots: 1, commands: map[string]string{}}
	for _, c := range w.classes {
		if c.Run.Command != "" {
			all.commands[c.Run.Command] = c.CommandDigest
		}
	}
	w.workers = append(w.workers, all)
}

package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// maker makes histories that keep every rule: a small gateway that takes one
// decision at a time, and jobs that write down what they do.
type maker struct {
	rng *rand.Rand
	now time.Time
	h   History

	lanes    map[string]Lane
	classes  map[string]Class
	resource Resource
	jobs     []*Job
	running  []*Attempt
	made     int
}

var laneOf = map[string]string{"a": lanegate.LaneSerial, "b": lanegate.LaneSerial, "c": lanegate.LaneParallel, "d": lanegate.LaneParallel}

const testLease = 6 * time.Second

func makeHistory(seed uint64, steps int) History {
	m := &maker{
		rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 11, 30, 2, 0, 0, 0, time.UTC),
		lanes: map[string]Lane{}, classes: map[string]Class{},
		h: History{Lease: testLease, OrderSlack: 10 * time.Millisecond, ClockSlack: time.Millisecond},
	}
	m.configure()
	m.h.Before, m.h.Changes = m.h.Changes, nil
	for range steps {
		m.step()
	}
	m.unpause()
	for slices.ContainsFunc(m.jobs, func(j *Job) bool { return !j.State.Final() }) {
		m.flow()
	}
	for _, j := range m.jobs {
		m.h.Jobs = append(m.h.Jobs, *j)
	}
	return m.h
}

func (m *maker) pass() { m.now = m.now.Add(time.Duration(2+m.rng.IntN(40)) * time.Millisecond) }

func (m *maker) log(c Change) {
	c.At = m.now
	m.h.Changes = append(m.h.Changes, c)
}

func (m *maker) configure() {
	m.setLane(Lane{Name: lanegate.LaneSerial, Width: 1})
	m.setLane(Lane{Name: lanegate.LaneParallel, Width: 3})
	m.setResource(Resource{"db", 6, true})
	for i, id := range []string{"a", "b", "c", "d"} {
		print := "print-" + id
		if laneOf[id] != lanegate.LaneSerial {
			m.log(Change{Proof: &Proof{"v1", id, print, "passed", 2}})
		}
		c := Class{ID: id, Lane: laneOf[id], MaxInFlight: 1 + i/2, Units: lanegate.Units{"db": 1 + i%2}, Fingerprint: print}
		m.setClass(c)
	}
}

func (m *maker) setLane(l Lane)         { m.lanes[l.Name] = l; m.log(Change{Lane: &l}) }
func (m *maker) setClass(c Class)       { m.classes[c.ID] = c; m.log(Change{Class: &c}) }
func (m *maker) setResource(r Resource) { m.resource = r; m.log(Change{Resource: &r}) }

func (m *maker) step() {
	if m.rng.IntN(12) == 0 {
		m.pass()
		m.edit()
		return
	}
	m.flow()
}

// flow submits, starts or ends something.
func (m *maker) flow() {
	m.pass()
	m.fallDue()
	waiting := 0
	for _, j := range m.jobs {
		if j.State == lanegate.StateQueued {
			waiting++
		}
	}
	switch n := m.rng.IntN(10); {
	case n < 4 && waiting < 8 && len(m.jobs) < 200:
		m.submit()
	case n < 7:
		m.start()
	default:
		m.end()
	}
}

func (m *maker) edit() {
	class := m.classes[[]string{"a", "b", "c", "d"}[m.rng.IntN(4)]]
	switch m.rng.IntN(4) {
	case 0:
		m.setLane(Lane{Name: lanegate.LaneParallel, Width: 1 + m.rng.IntN(3)})
	case 1:
		m.setResource(Resource{"db", 4 + m.rng.IntN(3), true})
	case 2:
		class.Paused = !class.Paused
		m.setClass(class)
	case 3:
		if laneOf[class.ID] == lanegate.LaneSerial {
			return
		}
		if class.Lane == lanegate.LaneSerial {
			class.Lane, class.MaxInFlight = lanegate.LaneParallel, 2
		} else {
			class.Lane, class.MaxInFlight = lanegate.LaneSerial, 1
		}
		m.setClass(class)
	}
}

func (m *maker) unpause() {
	for _, id := range []string{"a", "b", "c", "d"} {
		c := m.classes[id]
		c.Paused = false
		m.setClass(c)
	}
	m.setResource(Resource{"db", 6, true})
}

func (m *maker) submit() {
	m.made++
	id := fmt.Sprintf("j%03d", m.made)
	j := &Job{
		ID: id, Class: []string{"a", "b", "c", "d"}[m.rng.IntN(4)], Client: "cron", Key: "k" + id,
		State: lanegate.StateQueued, Due: true, PlaceAt: m.now, PlaceID: id,
	}
	var runAt time.Time
	if m.rng.IntN(4) == 0 {
		runAt = m.now.Add(time.Duration(m.rng.IntN(300)) * time.Millisecond)
		j.Due, j.PlaceAt = false, runAt
	}
	m.jobs = append(m.jobs, j)
	m.logJob(j)
	for range 1 + m.rng.IntN(2) { // some answers are lost, and asked for again
		m.h.Accepted = append(m.h.Accepted, Accepted{"cron", j.Key, id, runAt})
	}
}

// fallDue notices the jobs whose time has come.
func (m *maker) fallDue() {
	for _, j := range m.jobs {
		if !j.Due && !m.now.Before(j.PlaceAt) {
			j.Due = true
			m.logJob(j)
		}
	}
}

func (m *maker) logJob(j *Job) {
	row := *j
	m.log(Change{Job: &row})
}

// start starts the head of a class that may start.
func (m *maker) start() {
	for _, i := range m.rng.Perm(4) {
		class := m.classes[[]string{"a", "b", "c", "d"}[i]]
		var head *Job
		for _, j := range m.jobs {
			if j.Class == class.ID && j.State == lanegate.StateQueued && j.Due && (head == nil || goesBefore(*j, *head)) {
				head = j
			}
		}
		if head != nil && m.fits(class) {
			m.grant(head, class)
			return
		}
	}
}

// fits is the rules in yet other words: it looks at all that would be in flight.
func (m *maker) fits(class Class) bool {
	if class.Paused {
		return false
	}
	lane, of, serial, all := 1, 1, 0, class.Units["db"]
	for _, r := range m.running {
		if r.Lane == class.Lane {
			lane++
		}
		if r.Class == class.ID {
			of++
		}
		if r.Lane == lanegate.LaneSerial {
			serial += r.Units["db"]
		}
		all += r.Units["db"]
	}
	if lane > m.lanes[class.Lane].Width || of > class.MaxInFlight || all > m.resource.Capacity {
		return false
	}
	if class.Lane == lanegate.LaneSerial {
		return true
	}
	most, promoted := 0, 0
	for _, c := range m.classes {
		if c.Lane == lanegate.LaneSerial && !c.Paused {
			most = max(most, c.Units["db"])
		}
		if c.Lane != lanegate.LaneSerial {
			promoted = max(promoted, c.Units["db"])
		}
	}
	kept := max(0, min(most, m.resource.Capacity-promoted))
	return all-serial <= m.resource.Capacity-max(kept, serial)
}

func (m *maker) grant(j *Job, class Class) {
	j.State, j.Attempts = lanegate.StateRunning, j.Attempts+1
	m.logJob(j)
	a := &Attempt{
		Job: j.ID, Number: j.Attempts, Class: j.Class, Lane: class.Lane, Units: class.Units, Fingerprint: class.Fingerprint,
		Worker: fmt.Sprintf("w%d", m.rng.IntN(3)), StartedAt: m.now,
	}
	m.running = append(m.running, a)
	row := *a
	m.log(Change{Attempt: &row})
	m.pass()
	m.mark(a, MarkStart)
}

func (m *maker) mark(a *Attempt, kind string) {
	m.h.Marks = append(m.h.Marks, Mark{Ref: a.ref(), Kind: kind, At: m.now})
}

func (m *maker) end() {
	if len(m.running) == 0 {
		return
	}
	i := m.rng.IntN(len(m.running))
	a := m.running[i]
	m.running = slices.Delete(m.running, i, i+1)
	j := m.jobs[slices.IndexFunc(m.jobs, func(j *Job) bool { return j.ID == a.Job })]
	m.mark(a, MarkAlive)
	m.pass()
	switch n := m.rng.IntN(10); {
	case n == 0 && j.Losses < 4:
		a.Outcome, j.State = lanegate.Lost, lanegate.StateQueued
		j.Losses++
	case n == 1:
		a.Outcome, j.State = lanegate.Interrupted, lanegate.StateQueued
	default:
		m.mark(a, MarkEnd)
		m.pass()
		a.Outcome, j.State = lanegate.Succeeded, lanegate.StateSucceeded
	}
	a.EndedAt = m.now
	row := *a
	m.log(Change{Attempt: &row})
	m.logJob(j)
	m.h.Attempts = append(m.h.Attempts, row)
	m.h.RunLog = append(m.h.RunLog, Logged{a.ref(), a.Outcome})
}

package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

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

func (r loadRun) String() string {
	return fmt.Sprintf("%s of %s (%d units) in %s", r.job, r.class, r.units, r.lane)
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
	first, bad := 0, 0 // first are the oldest limits that may still be in force
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
			l.t.Errorf("start of %v at %s: %s", runs[i:n], at.Format(time.RFC3339Nano), strings.Join(faults, "; "))
			if bad++; bad == 10 {
				l.t.Fatal("and so on")
			}
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

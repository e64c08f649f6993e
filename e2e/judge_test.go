package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// childrenOf lists the direct children of a process.
func childrenOf(pid int) []int {
	var out []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for f := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// checkAllDone judges the whole history.
func (w *world) checkAllDone(ids []string) {
	w.t.Helper()
	if len(ids) == 0 {
		w.t.Fatal("no job was accepted: the test proved nothing")
	}
	attempts, cut := 0, 0
	var done []job
	for _, id := range ids {
		j := w.final(id, 2*time.Minute) // the line moves, however slow the machine
		if raced {
			w.checkGuard(id)
		}
		if j.State != "succeeded" && !strings.Contains(j.Reason, "worker died") {
			w.t.Errorf("job %s ended as %s: %s", id, j.State, j.Reason)
		}
		if j.State == "succeeded" {
			done = append(done, j)
		}
		for _, a := range w.checkAttempts(j) {
			attempts++
			if a.Outcome != "succeeded" {
				cut++
			}
		}
	}
	if attempts != len(done)+cut {
		w.t.Errorf("%d attempts, but %d successes and %d cut off", attempts, len(done), cut)
	}
	w.checkRan(done)
	w.checkEvents(ids, attempts)
	w.t.Logf("%d jobs, %d attempts, %d of them cut off", len(ids), attempts, cut)
}

// checkGuard looks for a report of the race detector in a guard, which writes where
// its command does.
func (w *world) checkGuard(id string) {
	w.t.Helper()
	if _, text, err := w.do("GET", "/jobs/"+id+"/output", ""); err != nil || strings.Contains(string(text), "DATA RACE") {
		w.t.Errorf("output of job %s: %s %v", id, text, err)
	}
}

// checkAttempts: numbers without gaps, one outcome each, a success only at the end.
func (w *world) checkAttempts(j job) []attempt {
	w.t.Helper()
	list := w.attempts(j.ID)
	if len(list) != j.Attempts {
		w.t.Errorf("job %s counts %d attempts and lists %d", j.ID, j.Attempts, len(list))
	}
	for i, a := range list {
		last := i == len(list)-1
		switch {
		case a.Number != i+1:
			w.t.Errorf("job %s: attempt %d is numbered %d", j.ID, i+1, a.Number)
		case last && j.State == "succeeded" && a.Outcome != "succeeded":
			w.t.Errorf("job %s succeeded but its last attempt is %s", j.ID, a.Outcome)
		case !last && a.Outcome != "lost" && a.Outcome != "interrupted" && a.Outcome != "deferred":
			// deferred: the guard was killed before it had started anything
			w.t.Errorf("job %s: attempt %d is %s, cut off ones are lost, interrupted or deferred", j.ID, a.Number, a.Outcome)
		}
	}
	return list
}

// checkRan: what the database calls a success did run, once and to its end, the
// grandchild included.
func (w *world) checkRan(done []job) {
	w.t.Helper()
	seen := map[string]int{}
	for _, e := range w.events() {
		seen[e.kind+" "+e.job+" "+e.attempt]++
	}
	for _, j := range done {
		for _, kind := range []string{"start", "end", "gstart", "gend"} {
			if n := seen[fmt.Sprintf("%s %s %d", kind, j.ID, j.Attempts)]; n != 1 {
				w.t.Errorf("job %s succeeded by attempt %d, whose record has %d lines %q", j.ID, j.Attempts, n, kind)
			}
		}
	}
}

// checkEvents judges by the jobs' own record: no two process trees at once in
// serial, no attempt started twice, none that the database does not know. Jobs
// whose answer never arrived are in the record, too.
func (w *world) checkEvents(ids []string, attempts int) {
	w.t.Helper()
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	starts := map[string]int{}
	mine := 0
	for _, e := range w.events() {
		switch e.kind {
		case "overlap":
			w.t.Errorf("job %s attempt %s ran beside another process tree of the serial lane", e.job, e.attempt)
		case "start":
			starts[e.job+"/"+e.attempt]++
			if known[e.job] {
				mine++
			}
		}
	}
	for run, n := range starts {
		if n != 1 {
			w.t.Errorf("attempt %s started %d times", run, n)
		}
	}
	if mine > attempts {
		w.t.Errorf("%d runs started, the database knows %d", mine, attempts)
	}
}

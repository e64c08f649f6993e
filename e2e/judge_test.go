package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/e2e/history"
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

// checkAllDone waits until the jobs have ended and judges the whole history, by the
// rows of all jobs and by the jobs' own record.
func (w *world) checkAllDone(ids []string) {
	w.t.Helper()
	if len(ids) == 0 {
		w.t.Fatal("no job was accepted: the test proved nothing")
	}
	h := history.History{NoLog: true, MustSucceed: true, Whole: []string{"start", "end", "gstart", "gend"}, ClockSlack: time.Millisecond}
	for _, id := range ids {
		w.final(id, 2*time.Minute) // the line moves, however slow the machine
		if raced {
			w.checkGuard(id)
		}
		h.Accepted = append(h.Accepted, history.Accepted{Job: id})
	}
	h.Jobs = w.allJobs()
	cut := 0
	for _, j := range h.Jobs {
		for _, a := range w.attempts(j.ID) {
			row := history.Attempt{
				Job: j.ID, Number: a.Number, Class: j.Class, Lane: a.Lane, Units: a.Units, StartedAt: a.StartedAt, Outcome: lanegate.Outcome(a.Outcome),
			}
			if a.EndedAt != nil {
				row.EndedAt = *a.EndedAt
			}
			h.Attempts = append(h.Attempts, row)
			if row.Outcome != lanegate.Succeeded {
				cut++
			}
		}
	}
	text, err := os.ReadFile(w.path("events"))
	if err != nil {
		w.t.Fatal(err)
	}
	if h.Marks, err = history.ReadMarks(string(text)); err != nil {
		w.t.Fatal(err)
	}
	for _, v := range history.Check(h) {
		w.t.Error(v)
	}
	w.t.Logf("%d jobs, %d attempts, %d of them cut off", len(h.Jobs), len(h.Attempts), cut)
}

// allJobs lists every job, those whose answer never arrived included, once all are final.
func (w *world) allJobs() (all []history.Job) {
	w.t.Helper()
	for path := "/jobs?limit=500"; ; {
		var page struct {
			Items []job  `json:"items"`
			Next  string `json:"next_cursor"`
		}
		w.must("GET", path, "", &page)
		for _, j := range page.Items {
			j = w.final(j.ID, 2*time.Minute)
			all = append(all, history.Job{ID: j.ID, Class: j.Class, State: lanegate.State(j.State), Attempts: j.Attempts})
		}
		if page.Next == "" {
			return all
		}
		path = "/jobs?limit=500&cursor=" + url.QueryEscape(page.Next)
	}
}

// checkGuard looks for a report of the race detector in a guard, which writes where
// its command does.
func (w *world) checkGuard(id string) {
	w.t.Helper()
	if _, text, err := w.do("GET", "/jobs/"+id+"/output", ""); err != nil || strings.Contains(string(text), "DATA RACE") {
		w.t.Errorf("output of job %s: %s %v", id, text, err)
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

// endedBy waits for a job's success and wants its attempts to have these outcomes.
func (w *world) endedBy(id string, outcomes ...string) {
	w.t.Helper()
	if j := w.final(id, 40*time.Second); j.State != "succeeded" {
		w.t.Errorf("job %s: %s: %s", id, j.State, j.Reason)
	}
	var got []string
	for _, a := range w.attempts(id) {
		got = append(got, a.Outcome)
	}
	if !slices.Equal(got, outcomes) {
		w.t.Errorf("the attempts of job %s ended as %v, want %v", id, got, outcomes)
	}
}

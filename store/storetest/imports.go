package storetest

import (
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
)

func importedRun(job, class string, ended time.Time, o lanegate.Outcome) lanegate.RunRecord {
	ready := ended.Add(-2 * time.Minute)
	return lanegate.RunRecord{
		Job: job, Attempt: 1, Class: class, SubmittedAt: &ready, ReadyAt: &ready, StartedAt: ended.Add(-time.Minute), EndedAt: ended,
		Duration: time.Minute, Outcome: o, Source: "import",
	}
}

var importCases = []testCase{
	{"imported rows are in the whole run log once, and nowhere else", func(e *env) {
		e.class("c")
		w := e.worker()
		e.submit("c")
		e.end(e.admit(w).Grants[0], lanegate.Failed)
		before, err := e.s.LastSuccess(e.ctx())
		e.must(err)
		now := lanegate.Micro(time.Now())
		var rows []lanegate.RunRecord
		for i := range 600 { // more than one transaction takes
			rows = append(rows, importedRun(fmt.Sprintf("import-%d", i), "c", now.Add(-time.Duration(i)*time.Second), lanegate.Succeeded))
		}
		rows[0].SubmittedAt, rows[0].ReadyAt, rows[1].Class = nil, nil, "dag/Task 1"
		n, err := e.s.ImportRuns(e.ctx(), rows)
		e.must(err)
		equal(e, "added", n, 600)
		n, err = e.s.ImportRuns(e.ctx(), append(rows[:10:10], importedRun("import-x", "c", now, lanegate.Failed)))
		e.must(err)
		equal(e, "added by the repeat", n, 1)

		var all []lanegate.RunRecord
		e.must(e.s.WholeRunLog(e.ctx(), time.Unix(0, 0), now.Add(time.Hour), func(r lanegate.RunRecord) error {
			all = append(all, r)
			return nil
		}))
		equal(e, "rows of the whole log", len(all), 602)
		equal(e, "rows of the own log", len(e.runLog("")), 1)
		equal(e, "own rows of the class", len(e.runLog("c")), 1)
		for _, r := range all {
			if r.Job == "import-1" && (r.Class != "dag/Task 1" || r.Duration != time.Minute || !r.ReadyAt.Equal(*rows[1].ReadyAt) || r.Source != "import") {
				e.Errorf("row %+v", r)
			}
			if r.Job == "import-0" && r.ReadyAt != nil {
				e.Errorf("row %+v, without a submission", r)
			}
		}
		after, err := e.s.LastSuccess(e.ctx())
		e.must(err)
		equal(e, "last successes", len(after), len(before))
		recent, err := e.s.RecentDurations(e.ctx(), []string{"c"}, 10)
		e.must(err)
		equal(e, "recent runs", len(recent["c"]), 1)
		facts, _, err := e.s.ClassFacts(e.ctx(), []string{"c"})
		e.must(err)
		equal(e, "failures in a row", facts["c"].Failures, 1)
	}},
	{"the latest durations of each class, newest first", func(e *env) {
		e.class("a")
		e.class("b")
		w := e.worker()
		for i := range 4 {
			e.submit("a")
			e.endAs(e.admit(w).Grants[0], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Duration(i+1) * time.Second})
		}
		e.submit("a")
		e.end(e.admit(w).Grants[0], lanegate.Cancelled)
		got, err := e.s.RecentDurations(e.ctx(), []string{"a", "b", "nope"}, 3)
		e.must(err)
		equal(e, "runs of a", len(got["a"]), 3)
		equal(e, "the newest of a", got["a"][0].Duration, 4*time.Second)
		equal(e, "runs of b", len(got["b"]), 0)
	}},
	{"the line is the start of each class's due jobs and the next that become due", func(e *env) {
		e.class("a")
		e.class("b")
		e.class("busy")
		w := e.worker()
		running := e.submit("busy").Job.ID
		e.start(w, running)
		var a []string
		for range 4 {
			a = append(a, e.submit("a").Job.ID)
		}
		b := e.submit("b").Job.ID
		far := e.submit("b", runAt(time.Now().Add(3*time.Hour))).Job.ID
		near := e.submit("b", runAt(time.Now().Add(time.Hour))).Job.ID
		_, err := e.s.RunNext(e.ctx(), a[3], "ann")
		e.must(err)

		line, err := e.s.Line(e.ctx(), 3, 1)
		e.must(err)
		equal(e, "in flight", len(line.Input.InFlight), 1)
		equal(e, "workers", len(line.Input.Workers), 1)
		var got []string
		for _, q := range line.Queued {
			got = append(got, q.Job)
			if due := !q.ReadyAt.After(line.Input.Now); due != (q.Job != near) {
				e.Errorf("job %s is due: %v", q.Job, due)
			}
		}
		equal(e, "queued", fmt.Sprint(got), fmt.Sprint([]string{a[3], a[0], a[1], b, near}))
		equal(e, "classes that go on", fmt.Sprint(line.Cut, line.NotDueCut), "[a] true")
		line, err = e.s.Line(e.ctx(), 4, 2)
		e.must(err)
		equal(e, "all of it", fmt.Sprint(len(line.Queued), line.Cut, line.NotDueCut), "7 [] false")
		equal(e, "the last", line.Queued[6].Job, far)
	}},
}

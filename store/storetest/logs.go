package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var logCases = []testCase{
	{"lines count what is due and what is not", func(e *env) {
		e.class("a")
		e.class("b")
		e.class("idle")
		first := e.submit("a").Job
		e.submit("a")
		e.submit("a", runAt(time.Now().Add(time.Hour)))
		e.submit("b", runAt(time.Now().Add(time.Hour)))
		lines, err := e.s.Lines(e.ctx())
		e.must(err)
		slices.SortFunc(lines, func(x, y service.ClassLine) int { return int(x.Class[0]) - int(y.Class[0]) })
		equal(e, "lines", len(lines), 2)
		equal(e, "line a", lines[0], service.ClassLine{Class: "a", Due: 2, NotDue: 1, OldestAt: first.ReadyAt})
		equal(e, "line b", lines[1], service.ClassLine{Class: "b", NotDue: 1})
	}},
	{"the run log streams a range, oldest first", func(e *env) {
		e.class("a")
		e.class("b")
		w := e.worker()
		var ended []time.Time
		for _, class := range []string{"a", "b", "a", "b"} {
			e.submit(class)
			a := e.end(e.admit(w).Grants[0], lanegate.Succeeded).Attempt
			ended = append(ended, *a.EndedAt)
		}
		read := func(class string, from, to time.Time) (ends []time.Time) {
			e.must(e.s.RunLog(e.ctx(), class, from, to, func(r lanegate.RunRecord) error {
				ends = append(ends, r.EndedAt)
				return nil
			}))
			return ends
		}
		far := ended[3].Add(time.Hour)
		for name, c := range map[string]struct{ got, want []time.Time }{
			"all":             {read("", ended[0], far), ended},
			"from, inclusive": {read("", ended[1], far), ended[1:]},
			"to, exclusive":   {read("", ended[0], ended[3]), ended[:3]},
			"a class":         {read("b", ended[0], far), []time.Time{ended[1], ended[3]}},
			"an empty range":  {read("", far, far.Add(time.Hour)), nil},
			"an unknown name": {read("nope", ended[0], far), nil},
		} {
			if !slices.EqualFunc(c.got, c.want, time.Time.Equal) {
				e.Errorf("%s: got %v, want %v", name, c.got, c.want)
			}
		}
	}},
	{"a reader of the run log may write, and its error ends the reading", func(e *env) {
		e.class("c")
		w := e.worker()
		for range 3 {
			e.submit("c")
			e.end(e.admit(w).Grants[0], lanegate.Succeeded)
		}
		boom := errors.New("boom")
		rows := 0
		err := e.s.RunLog(e.ctx(), "", time.Unix(0, 0), time.Now().Add(time.Hour), func(lanegate.RunRecord) error {
			rows++
			e.submit("c") // nothing is held open meanwhile
			if rows == 2 {
				return boom
			}
			return nil
		})
		if !errors.Is(err, boom) || rows != 2 {
			e.Errorf("error %v after %d rows", err, rows)
		}
	}},
	{"the last success is kept per class", func(e *env) {
		e.class("a")
		e.class("b")
		w := e.worker()
		var last time.Time
		for _, o := range []lanegate.Outcome{lanegate.Succeeded, lanegate.Succeeded, lanegate.Failed} {
			e.submit("a")
			a := e.end(e.admit(w).Grants[0], o).Attempt
			if o == lanegate.Succeeded {
				last = *a.EndedAt
			}
		}
		e.submit("b")
		e.end(e.admit(w).Grants[0], lanegate.Failed)
		got, err := e.s.LastSuccess(e.ctx())
		e.must(err)
		if len(got) != 1 || !got["a"].Equal(last) {
			e.Errorf("last successes %v, want a at %v", got, last)
		}
		e.pruneAll()
		if got, err = e.s.LastSuccess(e.ctx()); err != nil || !got["a"].Equal(last) {
			e.Errorf("after pruning: %v, %v", got, err)
		}
	}},
	{"a class waits for the first time until its first run has ended", func(e *env) {
		e.class("a")
		e.class("later")
		e.class("none")
		w := e.worker()
		first := e.submit("a").Job
		e.submit("a")
		at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		e.submit("later", runAt(at))
		check := func(when string, a bool) {
			got, err := e.s.FirstWaits(e.ctx(), []string{"a", "later", "none", "nope"})
			e.must(err)
			n := 1
			if a {
				n = 2
			}
			if len(got) != n || a && !got["a"].Equal(first.SubmittedAt) || !got["later"].Equal(at) {
				e.Errorf("%s: %v, want later at %v and, %v, a at %v", when, got, at, a, first.SubmittedAt)
			}
		}
		check("queued", true)
		old := time.Now().Add(-24 * time.Hour) // imported runs are not of this gateway
		_, err := e.s.ImportRuns(e.ctx(), []lanegate.RunRecord{{Job: "old", Attempt: 1, Class: "a", SubmittedAt: &old, ReadyAt: &old, StartedAt: old, EndedAt: old.Add(time.Second), Outcome: lanegate.Succeeded, Source: "import"}})
		e.must(err)
		check("beside an imported run", true)
		e.end(e.admit(w).Grants[0], lanegate.Interrupted)
		check("interrupted, and queued again", true)
		e.end(e.admit(w).Grants[0], lanegate.Failed)
		check("failed", false)
	}},
	{"pruning takes finished jobs with all that is theirs, and no others", func(e *env) {
		e.class("c", attempts(1, time.Hour))
		w := e.worker()
		done := e.submit("c").Job.ID
		e.endAs(e.start(w, done)[0], lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`1`), Output: lanegate.Output{Head: "x", Bytes: 1}})
		failed := e.submit("c").Job.ID
		e.end(e.start(w, failed)[0], lanegate.Failed)
		keyed := e.submit("c", key("k")).Job.ID
		e.end(e.start(w, keyed)[0], lanegate.Succeeded)
		running := e.submit("c").Job.ID
		e.start(w, running)
		queued := e.submit("c").Job.ID
		past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)

		n, err := e.s.PruneJobs(e.ctx(), past, 100)
		e.must(err)
		equal(e, "pruned before anything is old", n, 0)
		n, err = e.s.PruneJobs(e.ctx(), future, 1)
		e.must(err)
		equal(e, "pruned with a limit of one", n, 1)
		n, err = e.s.PruneJobs(e.ctx(), future, 100)
		e.must(err)
		equal(e, "pruned jobs", n, 1)
		for _, id := range []string{done, failed} {
			_, err = e.s.Job(e.ctx(), id)
			e.wantErr(err, lanegate.ErrJobNotFound)
			_, err = e.s.Output(e.ctx(), id, 1)
			e.wantErr(err, lanegate.ErrJobNotFound)
		}
		e.wantState(running, lanegate.StateRunning)
		e.wantState(queued, lanegate.StateQueued)
		if res := e.submit("c", key("k")); !res.Replayed || res.Job.ID != keyed {
			e.Errorf("the key of a job of today does not replay: %+v", res)
		}
		equal(e, "run log, which stays", len(e.runLog("")), 3)
		n, err = e.s.PruneRunLog(e.ctx(), future, 2)
		e.must(err)
		equal(e, "pruned rows", n, 2)
		n, err = e.s.PruneRunLog(e.ctx(), future, 2)
		e.must(err)
		equal(e, "the rest", n, 1)
		equal(e, "run log", len(e.runLog("")), 0)
		_, err = e.s.PruneJobs(e.ctx(), past, 0)
		if _, err2 := e.s.PruneRunLog(e.ctx(), past, 0); err == nil || err2 == nil {
			e.Errorf("a limit of 0 was taken: %v, %v", err, err2)
		}
	}},
}

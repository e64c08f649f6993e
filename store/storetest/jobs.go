package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var jobCases = []testCase{
	{"what is absent is not found", func(e *env) {
		_, err := e.s.Job(e.ctx(), newID())
		e.wantErr(err, lanegate.ErrJobNotFound)
		_, err = e.s.Attempts(e.ctx(), newID())
		e.wantErr(err, lanegate.ErrJobNotFound)
		for name, act := range e.actions() {
			if _, err := act(newID()); err == nil {
				e.Errorf("%s of an absent job succeeded", name)
			} else {
				e.wantErr(err, lanegate.ErrJobNotFound)
			}
		}
		e.class("c")
		attempts, err := e.s.Attempts(e.ctx(), e.submit("c").Job.ID)
		e.must(err)
		equal(e, "attempts", len(attempts), 0)
	}},
	{"cancel ends a queued job", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		j, err := e.s.Cancel(e.ctx(), id, "ada")
		e.must(err)
		equal(e, "state", j.State, lanegate.StateCancelled)
		got := e.job(id)
		if diff := cmp.Diff(got.Job, j); diff != "" {
			e.Errorf("job (-stored +answered):\n%s", diff)
		}
		if j.FinishedAt == nil || j.Reason != "cancelled by ada" {
			e.Errorf("finished %v, reason %q", j.FinishedAt, j.Reason)
		}
		e.start(e.worker())
		e.wantLine("c", 0)
	}},
	{"cancel asks a running job to end", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		g := e.start(e.worker(), id)[0]
		for range 2 { // asking twice is no error
			j, err := e.s.Cancel(e.ctx(), id, "ada")
			e.must(err)
			if j.State != lanegate.StateRunning || !j.CancelRequested {
				e.Errorf("job %+v", j)
			}
		}
		attempts, err := e.s.Attempts(e.ctx(), id)
		e.must(err)
		equal(e, "attempt told", attempts[0].CancelRequested, true)
		e.end(g, lanegate.Cancelled)
		e.wantState(id, lanegate.StateCancelled)
	}},
	{"actions are refused in the wrong state", func(e *env) {
		e.class("c", attempts(1, time.Hour))
		w := e.worker()
		done := e.submit("c").Job.ID
		e.end(e.start(w, done)[0], lanegate.Succeeded)
		failed := e.submit("c").Job.ID
		e.end(e.start(w, failed)[0], lanegate.Failed)
		running := e.submit("c").Job.ID
		e.start(w, running)
		queued := e.submit("c").Job.ID
		act := e.actions()
		for name, c := range map[string]struct {
			act, id string
			want    error
		}{
			"cancel of a succeeded job":   {"cancel", done, lanegate.ErrJobFinal},
			"cancel of a failed job":      {"cancel", failed, lanegate.ErrJobFinal},
			"retry of a succeeded job":    {"retry", done, lanegate.ErrNotRetryable},
			"retry of a running job":      {"retry", running, lanegate.ErrNotRetryable},
			"retry of a queued job":       {"retry", queued, lanegate.ErrNotRetryable},
			"run-next of a running job":   {"run next", running, lanegate.ErrNotQueued},
			"run-next of a succeeded job": {"run next", done, lanegate.ErrNotQueued},
			"run-next of a failed job":    {"run next", failed, lanegate.ErrNotQueued},
		} {
			before := e.job(c.id)
			if _, err := act[c.act](c.id); err == nil {
				e.Errorf("%s was not refused", name)
			} else {
				e.wantErr(err, c.want)
			}
			if diff := cmp.Diff(before, e.job(c.id)); diff != "" {
				e.Errorf("%s changed the job:\n%s", name, diff)
			}
		}
	}},
	{"retry permits one more failure and keeps the place", func(e *env) {
		e.class("c", attempts(1, time.Hour))
		ids := e.queue("c", 2)
		w := e.worker()
		for n := range 3 {
			e.end(e.start(w, ids[0])[0], lanegate.Failed)
			before := e.wantState(ids[0], lanegate.StateFailed)
			j, err := e.s.Retry(e.ctx(), ids[0], "ada")
			e.must(err)
			equal(e, "state", j.State, lanegate.StateQueued)
			equal(e, "permitted failures", 1+j.ExtraAttempts, j.Failures+1)
			equal(e, "failures", j.Failures, n+1)
			if j.FinishedAt != nil || j.PlaceID != before.PlaceID || !j.PlaceAt.Equal(before.PlaceAt) || j.ReadyAt.Before(*before.FinishedAt) {
				e.Errorf("job %+v", j)
			}
		}
		e.start(w, ids[0])
	}},
	{"retry of a job whose class is gone names the class", func(e *env) {
		e.class("c")
		id := e.submit("c", key("k")).Job.ID
		e.end(e.start(e.worker(), id)[0], lanegate.Failed)
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.DeleteClass("c") }))
		_, err := e.s.Retry(e.ctx(), id, "ada")
		e.wantErr(err, lanegate.ErrUnknownClass)
		if res := e.submit("c", key("k")); !res.Replayed {
			e.Error("a known key of a deleted class is no replay")
		}
	}},
	{"run-next is written into the class's history", func(e *env) {
		e.class("c")
		ids := e.queue("c", 2)
		j, err := e.s.RunNext(e.ctx(), ids[1], "ada")
		e.must(err)
		if j.FirstAt == nil || j.PlaceID != ids[1] {
			e.Errorf("job %+v", j)
		}
		events, err := e.s.History(e.ctx(), "class:c", 0, 10)
		e.must(err)
		if len(events) != 1 || events[0].Event != "run_next" || events[0].Actor != "ada" || events[0].Evidence["job"] != ids[1] {
			e.Errorf("history %+v", events)
		}
	}},
	{"lists filter by what they are asked", func(e *env) {
		e.width(2)
		e.class("c")
		e.class("p", parallel(2))
		w := e.worker()
		done := e.submit("c").Job
		e.end(e.start(w, done.ID)[0], lanegate.Succeeded)
		par := e.submit("p").Job
		e.start(w, par.ID)
		queued := e.submit("c").Job
		waiting := e.submit("p", func(n *service.NewJob) { n.Client = "other" }, runAt(time.Now().Add(time.Hour))).Job
		for name, c := range map[string]struct {
			f    service.JobFilter
			want []string
		}{
			"all":                     {service.JobFilter{}, []string{waiting.ID, queued.ID, par.ID, done.ID}},
			"a class":                 {service.JobFilter{Classes: []string{"c"}}, []string{queued.ID, done.ID}},
			"two classes":             {service.JobFilter{Classes: []string{"c", "p"}}, []string{waiting.ID, queued.ID, par.ID, done.ID}},
			"no class":                {service.JobFilter{Classes: []string{}}, nil},
			"a state":                 {service.JobFilter{States: []lanegate.State{lanegate.StateRunning}}, []string{par.ID}},
			"two states":              {service.JobFilter{States: []lanegate.State{lanegate.StateSucceeded, lanegate.StateQueued}}, []string{waiting.ID, queued.ID, done.ID}},
			"open states":             {service.JobFilter{States: []lanegate.State{lanegate.StateRunning, lanegate.StateQueued}}, []string{waiting.ID, queued.ID, par.ID}},
			"final states":            {service.JobFilter{States: []lanegate.State{lanegate.StateSucceeded, lanegate.StateFailed}}, []string{done.ID}},
			"serial":                  {service.JobFilter{Lane: lanegate.LaneSerial}, []string{queued.ID, done.ID}},
			"parallel":                {service.JobFilter{Lane: lanegate.LaneParallel}, []string{waiting.ID, par.ID}},
			"a client":                {service.JobFilter{Client: "other"}, []string{waiting.ID}},
			"from":                    {service.JobFilter{SubmittedFrom: &queued.SubmittedAt}, []string{waiting.ID, queued.ID}},
			"to, which is left out":   {service.JobFilter{SubmittedTo: &queued.SubmittedAt}, []string{par.ID, done.ID}},
			"before":                  {service.JobFilter{Before: queued.ID}, []string{par.ID, done.ID}},
			"a limit":                 {service.JobFilter{Limit: 2}, []string{waiting.ID, queued.ID}},
			"a class in a state":      {service.JobFilter{Classes: []string{"c"}, States: []lanegate.State{lanegate.StateSucceeded}}, []string{done.ID}},
			"everything, and nothing": {service.JobFilter{Classes: []string{"c"}, Lane: lanegate.LaneParallel}, nil},
		} {
			jobs, _, err := e.s.Jobs(e.ctx(), c.f)
			e.must(err)
			var got []string
			for _, j := range jobs {
				got = append(got, j.ID)
			}
			if !slices.Equal(got, c.want) {
				e.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
	}},
	{"pages neither skip nor repeat while jobs come in", func(e *env) {
		e.class("c")
		want := e.queue("c", 25)
		slices.Reverse(want)
		var got []string
		before := ""
		for {
			page, _, err := e.s.Jobs(e.ctx(), service.JobFilter{Before: before, Limit: 10})
			e.must(err)
			if len(page) == 0 {
				break
			}
			for _, j := range page {
				got = append(got, j.ID)
			}
			before = page[len(page)-1].ID
			e.queue("c", 3)
		}
		if !slices.Equal(got, want) {
			e.Errorf("pages gave %d jobs, want the %d that were there at the first", len(got), len(want))
		}
	}},
	{"ahead counts the line before a job", func(e *env) {
		e.class("a")
		e.class("b")
		e.class("other")
		a := e.queue("a", 2)
		b := e.queue("b", 2)
		e.queue("other", 1)
		e.submit("a", runAt(time.Now().Add(time.Hour))) // not due: ahead of nobody
		for _, c := range []struct {
			id   string
			max  int
			want service.Ahead
		}{
			{a[0], 20, service.Ahead{}},
			{b[1], 20, service.Ahead{Count: 3, First: []string{a[0], a[1], b[0]}}},
			{b[1], 2, service.Ahead{Count: 3, First: []string{a[0], a[1]}}},
			{b[1], 0, service.Ahead{Count: 3}},
		} {
			got, err := e.s.Ahead(e.ctx(), []lanegate.Job{e.job(c.id).Job}, []string{"a", "b"}, 100, c.max)
			e.must(err)
			if diff := cmp.Diff([]service.Ahead{c.want}, got); diff != "" {
				e.Errorf("ahead of %s, at most %d (-want +got):\n%s", c.id, c.max, diff)
			}
		}
		_, err := e.s.RunNext(e.ctx(), b[1], "ada")
		e.must(err)
		for id, want := range map[string]int{b[1]: 0, a[0]: 1} {
			got, err := e.s.Ahead(e.ctx(), []lanegate.Job{e.job(id).Job}, []string{"a", "b"}, 100, 20)
			e.must(err)
			equal(e, fmt.Sprintf("ahead of %s after run-next", id), got[0].Count, want)
		}
		got, err := e.s.Ahead(e.ctx(), []lanegate.Job{e.job(a[1]).Job}, nil, 100, 20)
		e.must(err)
		equal(e, "ahead in no class", got[0].Count, 0)
		got, err = e.s.Ahead(e.ctx(), []lanegate.Job{e.job(b[0]).Job, e.job(b[1]).Job, e.job(a[1]).Job}, []string{"a", "b"}, 100, 1)
		e.must(err)
		want := []service.Ahead{{Count: 3, First: b[1:]}, {}, {Count: 2, First: b[1:]}} // b[1] was moved to the front
		if diff := cmp.Diff(want, got); diff != "" {
			e.Errorf("ahead of several (-want +got):\n%s", diff)
		}
	}},
	{"ahead is counted up to a bound", func(e *env) {
		e.class("a")
		e.class("b")
		var jobs []lanegate.Job
		for range 4 { // in one moment each, and several in one
			for _, id := range append(e.queue("a", 2), e.batch("b", 3)...) {
				jobs = append(jobs, e.job(id).Job)
			}
		}
		_, err := e.s.RunNext(e.ctx(), jobs[19].ID, "ada")
		e.must(err)
		_, err = e.s.RunNext(e.ctx(), jobs[4].ID, "ada")
		e.must(err)
		line := append([]lanegate.Job{e.job(jobs[19].ID).Job, e.job(jobs[4].ID).Job}, slices.Concat(jobs[:4], jobs[5:19])...)
		asked := slices.Clone(line)
		slices.Reverse(asked)
		for _, most := range []int{1, 7, 19, 20, 100} {
			got, err := e.s.Ahead(e.ctx(), asked, []string{"a", "b"}, most, 2)
			e.must(err)
			for i, a := range got {
				n := len(line) - 1 - i
				want := service.Ahead{Count: min(n, most), AtLeast: n > most}
				for _, first := range line[:min(2, want.Count)] {
					want.First = append(want.First, first.ID)
				}
				if diff := cmp.Diff(want, a); diff != "" {
					e.Errorf("place %d, counted to %d (-want +got):\n%s", n, most, diff)
				}
			}
		}
	}},
	{"a page looks at a bounded number of jobs, and says that it goes on", func(e *env) {
		for _, class := range []string{"rare", "much"} {
			e.class(class)
		}
		want := e.queue("rare", 3)
		e.submit("rare", func(n *service.NewJob) { n.Client = "other" })
		for range 18 {
			e.batch("much", 1000)
		}
		slices.Reverse(want)
		read := func(name string, f service.JobFilter, want []string) (pages int) {
			e.Helper()
			var got []string
			for more := true; more; pages++ {
				jobs, next, err := e.s.Jobs(e.ctx(), f)
				e.must(err)
				for _, j := range jobs {
					got = append(got, j.ID)
				}
				if more = next != ""; more && f.Before != "" && next >= f.Before {
					e.Fatalf("%s: page %d goes on before %s, not below %s", name, pages, next, f.Before)
				}
				f.Before = next
			}
			if !slices.Equal(got, want) {
				e.Errorf("%s: got %v, want %v", name, got, want)
			}
			return pages
		}
		last, _, err := e.s.Jobs(e.ctx(), service.JobFilter{Client: "other", Classes: []string{"rare"}})
		e.must(err)
		if n := read("a client", service.JobFilter{Client: "other"}, []string{last[0].ID}); n < 2 {
			e.Errorf("%d page looked at every job", n)
		}
		all := append([]string{last[0].ID}, want...)
		for name, f := range map[string]service.JobFilter{
			"a class":             {Classes: []string{"rare"}},
			"a class in a state":  {Classes: []string{"rare"}, States: []lanegate.State{lanegate.StateQueued}},
			"a class in states":   {Classes: []string{"rare", "none"}, States: []lanegate.State{lanegate.StateQueued, lanegate.StateFailed}},
			"a class's every one": {Classes: []string{"rare"}, Client: "cron", Limit: 10, Lane: lanegate.LaneSerial},
		} {
			expect := all
			if f.Client != "" {
				expect = want
			}
			if n := read(name, f, expect); n != 1 {
				e.Errorf("%s: %d pages, want one", name, n)
			}
		}
		if n := read("two at a time", service.JobFilter{Classes: []string{"rare"}, States: []lanegate.State{lanegate.StateQueued}, Limit: 2}, all); n != 2 {
			e.Errorf("%d pages, want two", n)
		}
		read("none in a state", service.JobFilter{States: []lanegate.State{lanegate.StateFailed}}, nil)
	}},
	{"concurrent actions on one job leave one of them", func(e *env) {
		e.class("c")
		for range 10 {
			id := e.submit("c").Job.ID
			w := e.worker()
			var cancelled, started bool
			e.together(2, func(i int) error {
				if i == 0 {
					j, err := e.s.Cancel(e.ctx(), id, "ada")
					cancelled = j.State == lanegate.StateCancelled
					return err
				}
				res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, SerialFree: true})
				started = len(res.Grants) == 1
				if started {
					_, err = e.s.EndAttempt(e.ctx(), res.Grants[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Interrupted})
				}
				return err
			})
			if cancelled && started {
				// Then the cancel came after the job had gone back to its line.
				equal(e, "attempts", e.job(id).Attempts, 1)
			}
			e.wantState(id, lanegate.StateCancelled)
		}
	}},
}

// actions are what people do to a job, by name.
func (e *env) actions() map[string]func(id string) (lanegate.Job, error) {
	return map[string]func(string) (lanegate.Job, error){
		"cancel":   func(id string) (lanegate.Job, error) { return e.s.Cancel(e.ctx(), id, "ada") },
		"retry":    func(id string) (lanegate.Job, error) { return e.s.Retry(e.ctx(), id, "ada") },
		"run next": func(id string) (lanegate.Job, error) { return e.s.RunNext(e.ctx(), id, "ada") },
	}
}

package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// mixed makes jobs of twelve classes, in which states and clients alternate, with a run
// of one class and state in the middle that is longer than a page, and returns them with
// the last first. In front of each are more of another class than a page has, so that no
// list finds its jobs side by side.
func (e *env) mixed() (all []lanegate.Job) {
	e.Helper()
	e.width(10)
	for i := range 12 {
		e.class(fmt.Sprintf("m%02d", i), parallel(5), attempts(1, time.Hour))
	}
	e.class("between", func(c *lanegate.Class) { c.Paused = true })
	w := e.worker()
	later := runAt(time.Now().Add(time.Hour)) // which nobody starts
	for i := range 60 {
		class := fmt.Sprintf("m%02d", i*i%12)
		client := []string{"ada", "cron", "grace"}[i%3]
		from := func(n *service.NewJob) { n.Client = client }
		for _, id := range e.batch("between", 25) {
			all = append(all, lanegate.Job{ID: id, Class: "between", State: lanegate.StateQueued, Client: "cron"})
		}
		for n := 0; i == 40 && n < 30; n++ {
			all = append(all, e.submit("m04", later, from).Job)
		}
		switch (i + i/7) % 5 {
		case 0, 1:
			all = append(all, e.submit(class, later, from).Job)
		case 2:
			j, err := e.s.Cancel(e.ctx(), e.submit(class, later, from).Job.ID, "ada")
			e.must(err)
			all = append(all, j)
		case 3:
			id := e.submit(class, from).Job.ID
			all = append(all, e.end(e.start(w, id)[0], lanegate.Failed).Job)
		case 4:
			class = fmt.Sprintf("m%02d", i%12)
			id := e.submit(class, from).Job.ID
			g := e.start(w, id)[0]
			all = append(all, g.Job)
			if i > 20 { // the others go on
				all[len(all)-1] = e.end(g, lanegate.Succeeded).Job
			}
		}
		all[len(all)-1].Client = client // which an end need not tell
	}
	slices.Reverse(all)
	return all
}

// listed reads a list page by page, of which all but the last must be full.
func (e *env) listed(f service.JobFilter, want []string) {
	e.Helper()
	var got []string
	for more := true; more; more = f.Before != "" {
		page, next, err := e.s.Jobs(e.ctx(), f)
		e.must(err)
		for _, j := range page {
			got = append(got, j.ID)
		}
		if full := min(f.Limit, len(want)-len(got)+len(page)); len(page) != full || (next != "") != (len(got) < len(want)) {
			e.Fatalf("%+v: a page of %d jobs, want %d; goes on before %q", f, len(page), full, next)
		}
		f.Before = next
	}
	if !slices.Equal(got, want) {
		e.Errorf("%+v: got %v, want %v", f, got, want)
	}
}

var listCases = []testCase{
	{"lists of any states and classes have each job once, in order, in pages of any size", func(e *env) {
		all := e.mixed()
		states := [][]lanegate.State{nil, lanegate.States, {lanegate.StateQueued, lanegate.StateFailed}, {lanegate.StateRunning, lanegate.StateSucceeded}}
		for _, s := range lanegate.States {
			states = append(states, []lanegate.State{s})
		}
		classes := [][]string{nil, {"m04"}, {"m01", "m01", "m09", "none"}, {"m00", "m01", "m02", "m03", "m04", "m05", "m06", "m07", "m08", "m09", "m10", "m11"}}
		found := 0
		for _, of := range states {
			for _, in := range classes {
				for _, client := range []string{"", "ada"} {
					var want []string
					for _, j := range all {
						if (of == nil || slices.Contains(of, j.State)) && (in == nil || slices.Contains(in, j.Class)) && (client == "" || j.Client == client) {
							want = append(want, j.ID)
						}
					}
					found += len(want)
					limits := []int{3, 20}
					if len(want) > 200 {
						limits = []int{500}
					}
					for _, limit := range limits {
						e.listed(service.JobFilter{States: of, Classes: in, Client: client, Limit: limit}, want)
					}
				}
			}
		}
		if found < 4*len(all) {
			e.Errorf("only %d jobs were asked for", found)
		}
	}},
	{"queued jobs are listed by the lane of their class", func(e *env) {
		var ids, some []string
		for _, j := range e.mixed() {
			if j.State == lanegate.StateQueued && j.Class != "between" {
				ids = append(ids, j.ID)
				if j.Class == "m04" {
					some = append(some, j.ID)
				}
			}
		}
		f := service.JobFilter{States: []lanegate.State{lanegate.StateQueued}, Lane: lanegate.LaneParallel, Limit: 20}
		e.listed(f, ids)
		f.Classes = []string{"m04", "between"}
		e.listed(f, some)
		f.Classes = []string{"between"}
		e.listed(f, nil)
	}},
	{"a job whose class is gone is listed by its class and its state", func(e *env) {
		e.class("gone", attempts(1, time.Hour))
		e.class("stays")
		id := e.submit("gone").Job.ID
		e.end(e.start(e.worker(), id)[0], lanegate.Failed)
		e.submit("stays")
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.DeleteClass("gone") }))
		for _, f := range []service.JobFilter{{Classes: []string{"gone"}}, {States: []lanegate.State{lanegate.StateFailed}}} {
			jobs, _, err := e.s.Jobs(e.ctx(), f)
			e.must(err)
			if len(jobs) != 1 || jobs[0].ID != id {
				e.Errorf("%+v: %d jobs, want the one", f, len(jobs))
			}
		}
	}},
}

var pruneCases = []testCase{
	{"pruning passes what stays in front, and comes back for it", func(e *env) {
		e.class("c")
		e.class("waits")
		w := e.worker()
		front := e.submit("waits", runAt(time.Now().Add(time.Hour))).Job.ID
		for range 3 {
			e.end(e.start(w, e.submit("c").Job.ID)[0], lanegate.Succeeded)
		}
		past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		prune := func(what string, before time.Time, limit, want int) {
			e.Helper()
			n, err := e.s.PruneJobs(e.ctx(), before, limit)
			e.must(err)
			equal(e, what, n, want)
		}
		prune("pruned behind a job that waits", future, 2, 2)
		_, err := e.s.Cancel(e.ctx(), front, "ada")
		e.must(err)
		prune("pruned of what is young", past, 10, 0)
		prune("pruned behind it, again", future, 1, 1)
		prune("pruned behind those, and in front", future, 10, 1)
		prune("pruned when all are gone", future, 10, 0)
		for range 2 {
			e.end(e.start(w, e.submit("c").Job.ID)[0], lanegate.Succeeded)
			prune("pruned of what came later", future, 1, 1)
		}
	}},
	{"pruning passes any number of jobs that stay", func(e *env) {
		e.class("c")
		e.class("waits")
		for range 2 {
			e.batch("waits", 1000)
		}
		w := e.worker()
		first := e.admit(w).Grants[0] // the oldest of them
		_, err := e.s.Cancel(e.ctx(), e.submit("c").Job.ID, "ada")
		e.must(err)
		n, err := e.s.PruneJobs(e.ctx(), time.Now().Add(time.Hour), 1)
		e.must(err)
		equal(e, "pruned behind 2,000 jobs", n, 1)
		e.end(first, lanegate.Succeeded)
		n, err = e.s.PruneJobs(e.ctx(), time.Now().Add(time.Hour), 10)
		e.must(err)
		equal(e, "pruned in front of them", n, 1)
	}},
	{"pruning finds jobs whose ids are ahead of the clock", func(e *env) {
		e.class("c")
		w := e.worker()
		done := func(edits ...func(*service.NewJob)) {
			e.end(e.start(w, e.submit("c", edits...).Job.ID)[0], lanegate.Succeeded)
		}
		done()
		for i := range 3 {
			done(func(n *service.NewJob) { n.ID = "f" + n.ID[1:len(n.ID)-1] + fmt.Sprint(i) }) // of the year 9,000 or so
		}
		before := e.job(e.submit("c").Job.ID).SubmittedAt // behind those, and before what follows
		e.batch("c", 1100)
		for i, want := range []int{1, 1, 1, 1, 0, 0} {
			n, err := e.s.PruneJobs(e.ctx(), before, 1)
			e.must(err)
			equal(e, fmt.Sprintf("pruned the %d. time", i+1), n, want)
		}
	}},
	{"pruning comes back to ids that are ahead of the clock", func(e *env) {
		e.class("c")
		w := e.worker()
		ids := [2]string{newID(), newID()}
		var runs [2]service.Grant
		for i := range ids {
			ids[i] = "f" + ids[i][1:]
			runs[i] = e.start(w, e.submit("c", func(n *service.NewJob) { n.ID = ids[i] }).Job.ID)[0]
			e.end(runs[i], lanegate.Failed)
		}
		_, err := e.s.Retry(e.ctx(), ids[0], "ada")
		e.must(err)
		for i := range 2 {
			n, err := e.s.PruneJobs(e.ctx(), time.Now().Add(time.Hour), 1)
			e.must(err)
			equal(e, fmt.Sprintf("pruned the %d. time", i+1), n, 1)
			if i == 0 {
				e.end(e.start(w, ids[0])[0], lanegate.Succeeded)
			}
		}
	}},
	{"pruning passes any number of jobs whose ids are behind the clock", func(e *env) {
		e.class("c")
		w := e.worker()
		for range 2 {
			e.end(e.start(w, e.submit("c").Job.ID)[0], lanegate.Succeeded)
		}
		before := e.job(e.submit("c").Job.ID).SubmittedAt
		wrong := make([]service.NewJob, 1100)
		for i := range wrong {
			wrong[i] = newJob("c")
			wrong[i].ID = "00" + wrong[i].ID[2:] // of 1970 or so
		}
		res, err := e.s.SubmitBatch(e.ctx(), wrong)
		e.must(err)
		for _, r := range res {
			e.must(r.Err)
		}
		for i, want := range []int{1, 1, 0} {
			n, err := e.s.PruneJobs(e.ctx(), before, 1)
			e.must(err)
			equal(e, fmt.Sprintf("pruned the %d. time", i+1), n, want)
		}
	}},
}

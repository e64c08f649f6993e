package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var submitCases = []testCase{
	{"an accepted job is queued with what was sent", func(e *env) {
		e.class("pos-sales")
		before := lanegate.Micro(time.Now().Add(-time.Minute))
		n := newJob("pos-sales", key("k"), day("2026-11-29"))
		res, err := e.s.Submit(e.ctx(), n)
		e.must(err)
		got := e.job(n.ID)
		if diff := cmp.Diff(res.Job, got.Job); diff != "" {
			e.Errorf("the answer differs from what is read back:\n%s", diff)
		}
		j := got.Job
		want := lanegate.Job{
			ID: n.ID, Class: "pos-sales", Client: "cron", Key: "k", LogicalDate: "2026-11-29", State: lanegate.StateQueued,
			SubmittedAt: j.SubmittedAt, ReadyAt: j.SubmittedAt, PlaceAt: j.SubmittedAt, PlaceID: n.ID,
		}
		if diff := cmp.Diff(want, j); diff != "" {
			e.Errorf("job (-want +got):\n%s", diff)
		}
		if j.SubmittedAt.Before(before) || j.SubmittedAt.Location() != time.UTC {
			e.Errorf("submitted at %v, want a time of today in UTC", j.SubmittedAt)
		}
		if res.Replayed || res.Revived || res.Coalesced != "" || got.Result != nil {
			e.Errorf("unexpected flags or result: %+v, %q", res, got.Result)
		}
	}},
	{"payloads are verbatim", func(e *env) {
		e.class("c")
		w := e.worker()
		for _, p := range []string{
			`3889108265204450030`, `899999999999999990`, `1e400`, `0.1000000000000000055`, `-0`,
			`{"b":1,"a":2,"b":3}`, "{ \"a\" :\t1 ,\r\n \"b\": [ ] }", `"\ud835\udc59 \u0041 \/ é"`, `null`, ` `,
			`"` + strings.Repeat("x", 300_000) + `"`, "\x00\xff binary is no JSON, but bytes are bytes",
		} {
			id := e.submit("c", payload(p)).Job.ID
			if got := string(e.job(id).Payload); got != p {
				e.Errorf("read back %.60q, want %.60q", got, p)
			}
			g := e.start(w, id)[0]
			if got := string(g.Payload); got != p {
				e.Errorf("granted with %.60q, want %.60q", got, p)
			}
			e.endAs(g, lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(p)})
			if got := string(e.job(id).Result); got != p {
				e.Errorf("result %.60q, want %.60q", got, p)
			}
		}
	}},
	{"an unknown class is refused and named", func(e *env) {
		n := newJob("nope", key("k"))
		_, err := e.s.Submit(e.ctx(), n)
		e.wantErr(err, lanegate.ErrUnknownClass)
		if !strings.Contains(err.Error(), `"nope"`) {
			e.Errorf("the error doesn't name the class: %v", err)
		}
		_, err = e.s.Job(e.ctx(), n.ID)
		e.wantErr(err, lanegate.ErrJobNotFound)
		e.class("nope")
		if res := e.submit("nope", key("k")); res.Replayed {
			e.Error("the refused submission kept its key")
		}
	}},
	{"a run_at in the future waits, one in the past does not", func(e *env) {
		e.class("c")
		later, past := lanegate.Micro(time.Now().Add(time.Hour)), lanegate.Micro(time.Now().Add(-time.Hour))
		j := e.submit("c", runAt(later)).Job
		if !j.ReadyAt.Equal(later) || !j.PlaceAt.Equal(later) || j.PlaceID != j.ID || !j.RunAt.Equal(later) {
			e.Errorf("ready %v, place %v, run_at %v, want all %v", j.ReadyAt, j.PlaceAt, j.RunAt, later)
		}
		k := e.submit("c", runAt(past)).Job
		if !k.ReadyAt.Equal(k.SubmittedAt) || !k.PlaceAt.Equal(k.SubmittedAt) || !k.RunAt.Equal(past) {
			e.Errorf("ready %v, place %v, want both %v", k.ReadyAt, k.PlaceAt, k.SubmittedAt)
		}
		e.start(e.worker(), k.ID)
	}},
	{"a replay answers with the job as it stands", func(e *env) {
		e.class("c")
		first := e.submit("c", key("k"))
		again := e.submit("c", key("k"))
		if !again.Replayed || again.Job.ID != first.Job.ID {
			e.Fatalf("second answer %+v, want a replay of %s", again, first.Job.ID)
		}
		e.end(e.start(e.worker(), first.Job.ID)[0], lanegate.Succeeded)
		if again = e.submit("c", key("k")); !again.Replayed || again.Job.State != lanegate.StateSucceeded {
			e.Errorf("replay after the end: %+v", again)
		}
		if other := e.submit("c", key("k"), func(n *service.NewJob) { n.Client = "other" }); other.Replayed {
			e.Error("another client's equal key was taken for the same")
		}
	}},
	{"C62 a key with another body is refused, in progress and done", func(e *env) {
		e.class("c")
		id := e.submit("c", key("k")).Job.ID
		w := e.worker()
		var grants []service.Grant
		for _, stage := range []string{"queued", "running", "done"} {
			_, err := e.s.Submit(e.ctx(), newJob("c", key("k"), payload(`{"other":1}`)))
			if !errors.Is(err, lanegate.ErrKeyReused) {
				e.Errorf("%s: error = %v, want key reused", stage, err)
			}
			if res := e.submit("c", key("k")); !res.Replayed || res.Job.ID != id {
				e.Errorf("%s: the equal body got %+v", stage, res)
			}
			switch stage {
			case "queued":
				grants = e.start(w, id)
			case "running":
				e.end(grants[0], lanegate.Succeeded)
			}
		}
		jobs, _, err := e.s.Jobs(e.ctx(), service.JobFilter{Limit: 10})
		e.must(err)
		equal(e, "jobs", len(jobs), 1)
	}},
	{"a replay can run a failed job again", func(e *env) {
		e.class("c")
		id := e.submit("c", key("k")).Job.ID
		w := e.worker()
		retry := func(n *service.NewJob) { n.RetryFailed = true }
		if res := e.submit("c", key("k"), retry); !res.Replayed || res.Revived {
			e.Errorf("a queued job was revived: %+v", res)
		}
		e.end(e.start(w, id)[0], lanegate.Failed)
		if res := e.submit("c", key("k")); res.Revived || res.Job.State != lanegate.StateFailed {
			e.Errorf("revived without being asked: %+v", res)
		}
		res := e.submit("c", key("k"), retry)
		if !res.Replayed || !res.Revived || res.Job.State != lanegate.StateQueued || res.Job.ID != id {
			e.Fatalf("answer %+v, want the job queued again", res)
		}
		g := e.start(w, id)[0]
		equal(e, "attempt number", g.Attempt.Number, 2)
		e.end(g, lanegate.Failed)
		e.wantState(id, lanegate.StateFailed)
	}},
	{"C14 two equal keys at once give one job, 500 times", func(e *env) {
		e.class("c")
		for i := range 500 {
			e.sameJob(2, fmt.Sprintf("key-%d", i))
		}
		e.wantLine("c", 500)
	}},
	{"fifty equal keys at once give one job", func(e *env) {
		e.class("c")
		e.sameJob(50, "key")
		e.wantLine("c", 1)
	}},
	{"C44 thirty jobs of one class start one at a time in submission order", func(e *env) {
		e.class("c")
		ids := e.queue("c", 30)
		w := e.worker()
		for _, id := range ids {
			g := e.start(w, id)
			e.start(w) // nothing beside it
			e.end(g[0], lanegate.Succeeded)
		}
		e.start(w)
	}},
	{"C50 many callers and classes at one instant are all accepted", func(e *env) {
		for c := range 20 {
			e.class(fmt.Sprintf("class-%d", c))
		}
		e.together(400, func(i int) error {
			_, err := e.s.Submit(e.ctx(), newJob(fmt.Sprintf("class-%d", i%20)))
			return err
		})
		lines, err := e.s.Lines(e.ctx())
		e.must(err)
		equal(e, "classes with jobs", len(lines), 20)
		for _, l := range lines {
			equal(e, "due jobs of "+l.Class, l.Due, 20)
		}
	}},
	{"a batch has one timestamp and places in item order", func(e *env) {
		e.class("a")
		e.class("b")
		var batch []service.NewJob
		for i := range 40 {
			batch = append(batch, newJob([]string{"a", "b"}[i%2]))
		}
		results, err := e.s.SubmitBatch(e.ctx(), batch)
		e.must(err)
		equal(e, "results", len(results), len(batch))
		for i, r := range results {
			e.must(r.Err)
			equal(e, "id", r.Job.ID, batch[i].ID)
			if !r.Job.SubmittedAt.Equal(results[0].Job.SubmittedAt) {
				e.Errorf("item %d was submitted at %v, the first at %v", i, r.Job.SubmittedAt, results[0].Job.SubmittedAt)
			}
		}
		w := e.worker()
		for i := range batch {
			e.end(e.start(w, batch[i].ID)[0], lanegate.Succeeded)
		}
	}},
	{"a batch's items fail alone", func(e *env) {
		e.class("c")
		e.submit("c", key("used"), payload(`1`))
		results, err := e.s.SubmitBatch(e.ctx(), []service.NewJob{
			newJob("c"), newJob("nope"), newJob("c", key("used"), payload(`2`)), newJob("c", key("used"), payload(`1`)), newJob("c"),
		})
		e.must(err)
		for i, want := range []error{nil, lanegate.ErrUnknownClass, lanegate.ErrKeyReused, nil, nil} {
			if !errors.Is(results[i].Err, want) {
				e.Errorf("item %d: error = %v, want %v", i, results[i].Err, want)
			}
		}
		if !results[3].Replayed {
			e.Error("item 3 is no replay")
		}
		e.wantLine("c", 3)
	}},
	{"the same key twice in a batch is a replay", func(e *env) {
		e.class("c")
		results, err := e.s.SubmitBatch(e.ctx(), []service.NewJob{
			newJob("c", key("k")), newJob("c", key("k")), newJob("c", key("k"), payload(`2`)),
		})
		e.must(err)
		if results[0].Replayed || !results[1].Replayed || results[1].Job.ID != results[0].Job.ID {
			e.Errorf("results %+v", results[:2])
		}
		e.wantErr(results[2].Err, lanegate.ErrKeyReused)
	}},
	{"an empty batch is no error", func(e *env) {
		results, err := e.s.SubmitBatch(e.ctx(), nil)
		e.must(err)
		equal(e, "results", len(results), 0)
	}},
	{"crossed keys and classes in concurrent batches don't deadlock", func(e *env) {
		e.class("a")
		e.class("b")
		for round := range 20 {
			batch := func() []service.NewJob {
				return []service.NewJob{
					newJob("a", key(fmt.Sprint("x", round))), newJob("b", key(fmt.Sprint("y", round))), newJob("a", key(fmt.Sprint("z", round))),
				}
			}
			e.together(4, func(i int) error {
				b := batch()
				if i%2 == 1 {
					slices.Reverse(b)
				}
				results, err := e.s.SubmitBatch(e.ctx(), b)
				for _, r := range results {
					err = errors.Join(err, r.Err)
				}
				return err
			})
		}
		e.wantLine("a", 40)
		e.wantLine("b", 20)
	}},
	{"an ended context is refused and leaves nothing", func(e *env) {
		e.class("c")
		ctx, cancel := context.WithCancel(e.ctx())
		cancel()
		n := newJob("c")
		_, err := e.s.Submit(ctx, n)
		e.wantErr(err, context.Canceled)
		_, err = e.s.SubmitBatch(ctx, []service.NewJob{n})
		e.wantErr(err, context.Canceled)
		_, err = e.s.Admit(ctx, service.Ask{Worker: "w"})
		e.wantErr(err, context.Canceled)
		_, err = e.s.Job(ctx, n.ID)
		e.wantErr(err, context.Canceled)
		_, err = e.s.Job(e.ctx(), n.ID)
		e.wantErr(err, lanegate.ErrJobNotFound)
	}},
	{"a second job with the same id is refused", func(e *env) {
		e.class("c")
		n := newJob("c")
		_, err := e.s.Submit(e.ctx(), n)
		e.must(err)
		if _, err := e.s.Submit(e.ctx(), n); err == nil {
			e.Error("accepted")
		}
		e.wantLine("c", 1)
	}},
}

// together runs fn n times at once and fails on any error.
func (e *env) together(n int, fn func(i int) error) {
	e.Helper()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	e.must(errors.Join(errs...))
}

// sameJob submits n equal bodies under one key at once and expects one job.
func (e *env) sameJob(n int, k string) {
	e.Helper()
	results := make([]service.Submitted, n)
	e.together(n, func(i int) (err error) {
		results[i], err = e.s.Submit(e.ctx(), newJob("c", key(k)))
		return err
	})
	fresh := 0
	for _, r := range results {
		if !r.Replayed {
			fresh++
		}
		if r.Job.ID != results[0].Job.ID {
			e.Fatalf("two jobs for one key: %s and %s", r.Job.ID, results[0].Job.ID)
		}
	}
	if fresh != 1 {
		e.Fatalf("%d answers say that the job is new, want 1", fresh)
	}
}

// wantLine checks how many due jobs a class has.
func (e *env) wantLine(class string, due int) {
	e.Helper()
	lines, err := e.s.Lines(e.ctx())
	e.must(err)
	for _, l := range lines {
		if l.Class == class {
			equal(e, "due jobs of "+class, l.Due, due)
			return
		}
	}
	equal(e, "due jobs of "+class, 0, due)
}

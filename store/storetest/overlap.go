package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var overlapCases = []testCase{
	{"queue keeps all", func(e *env) {
		e.class("c", overlap(lanegate.OverlapQueue))
		ids := e.queue("c", 3)
		w := e.worker()
		for _, id := range ids {
			e.end(e.start(w, id)[0], lanegate.Succeeded)
		}
	}},
	{"skip ends the new job while one is due, naming it", func(e *env) {
		e.class("c", overlap(lanegate.OverlapSkip))
		first := e.submit("c").Job
		second := e.submit("c", key("k")).Job
		e.wantSkipped(second.ID, first.ID)
		if res := e.submit("c", key("k")); !res.Replayed || res.Job.State != lanegate.StateSkipped {
			e.Errorf("the skipped job's key does not replay: %+v", res)
		}
		e.class("d", overlap(lanegate.OverlapSkip))
		equal(e, "another class's job", e.submit("d").Job.State, lanegate.StateQueued)
	}},
	{"skip names the running job before a waiting one", func(e *env) {
		e.class("c", overlap(lanegate.OverlapQueue))
		ids := e.queue("c", 2)
		g := e.start(e.worker(), ids[0])
		e.class("c", overlap(lanegate.OverlapSkip))
		e.wantSkipped(e.submit("c").Job.ID, ids[0])
		e.end(g[0], lanegate.Succeeded)
		e.wantSkipped(e.submit("c").Job.ID, ids[1])
	}},
	{"C24 C47 skip accepts again once the job in the way has ended or is lost for good", func(e *env) {
		no := false
		e.class("c", overlap(lanegate.OverlapSkip), func(c *lanegate.Class) { c.Repeatable = &no })
		first := e.submit("c").Job
		w := e.worker()
		e.start(w, first.ID)
		e.wantSkipped(e.submit("c").Job.ID, first.ID)
		_, err := e.s.ReapWorker(e.ctx(), w, 0)
		e.must(err)
		e.wantState(first.ID, lanegate.StateFailed)
		equal(e, "next job", e.submit("c").Job.State, lanegate.StateQueued)
	}},
	{"skip with a run_at decides when the job becomes due", func(e *env) {
		e.class("c", overlap(lanegate.OverlapSkip))
		at := e.soon()
		later := e.submit("c", runAt(at)).Job
		equal(e, "state before its time", later.State, lanegate.StateQueued)
		first := e.submit("c").Job
		equal(e, "a job beside one that is not due", first.State, lanegate.StateQueued)
		w := e.worker()
		e.start(w, first.ID)
		e.wantEnds(w, later.ID)
		e.wantSkipped(later.ID, first.ID)
	}},
	{"of two jobs that become due under skip the earlier stays", func(e *env) {
		e.class("c", overlap(lanegate.OverlapSkip))
		at := e.soon()
		b := e.submit("c", runAt(at.Add(time.Millisecond))).Job
		a := e.submit("c", runAt(at)).Job
		w := e.worker(func(w *service.WorkerInfo) { w.Commands = nil }) // can start nothing
		e.wantEnds(w, b.ID)
		e.wantSkipped(b.ID, a.ID)
		e.wantState(a.ID, lanegate.StateQueued)
	}},
	{"skip sees a job whose time has come before any admission has", func(e *env) {
		e.class("c", overlap(lanegate.OverlapSkip))
		at := e.soon()
		waiting := e.submit("c", runAt(at)).Job
		e.eventually("its time comes", func() bool { return time.Now().After(at) })
		e.wantSkipped(e.submit("c").Job.ID, waiting.ID)
	}},
	{"coalesce: the newest inherits the place", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		first := e.submit("c").Job
		res := e.submit("c")
		equal(e, "coalesced", res.Coalesced, first.ID)
		e.wantSkipped(first.ID, res.Job.ID)
		third := e.submit("c")
		equal(e, "coalesced", third.Coalesced, res.Job.ID)
		if j := third.Job; !j.PlaceAt.Equal(first.PlaceAt) || j.PlaceID != first.PlaceID {
			e.Errorf("place (%v, %s), want the first one's (%v, %s)", j.PlaceAt, j.PlaceID, first.PlaceAt, first.PlaceID)
		}
		e.start(e.worker(), third.Job.ID)
	}},
	{"coalesce inherits run-next", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		first := e.submit("c").Job
		next, err := e.s.RunNext(e.ctx(), first.ID, "ada")
		e.must(err)
		if got := e.submit("c").Job.FirstAt; got == nil || !got.Equal(*next.FirstAt) {
			e.Errorf("first_at = %v, want %v", got, next.FirstAt)
		}
	}},
	{"coalesce keeps logical dates apart", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		none := e.submit("c").Job
		mon := e.submit("c", day("2026-11-30"))
		tue := e.submit("c", day("2026-12-01"))
		if mon.Coalesced != "" || tue.Coalesced != "" {
			e.Errorf("coalesced %q and %q over different dates", mon.Coalesced, tue.Coalesced)
		}
		equal(e, "same date", e.submit("c", day("2026-11-30")).Coalesced, mon.Job.ID)
		equal(e, "no date", e.submit("c").Coalesced, none.ID)
	}},
	{"a job that had an attempt is never coalesced", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		first := e.submit("c").Job
		w := e.worker()
		e.end(e.start(w, first.ID)[0], lanegate.Interrupted)
		e.wantState(first.ID, lanegate.StateQueued)
		res := e.submit("c")
		equal(e, "coalesced", res.Coalesced, "")
		equal(e, "coalesced with the fresh one", e.submit("c").Coalesced, res.Job.ID)
		e.start(w, first.ID)
	}},
	{"a running job is never coalesced", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		first := e.submit("c").Job
		e.start(e.worker(), first.ID)
		equal(e, "coalesced", e.submit("c").Coalesced, "")
		e.wantState(first.ID, lanegate.StateRunning)
	}},
	{"coalesce with a run_at happens when the job becomes due", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		at := e.soon()
		later := e.submit("c", runAt(at))
		equal(e, "coalesced at submit", later.Coalesced, "")
		first := e.submit("c")
		equal(e, "coalesced with a job that is not due", first.Coalesced, "")
		w := e.worker(func(w *service.WorkerInfo) { w.Commands = nil }) // can start nothing
		e.wantEnds(w, first.Job.ID)
		e.wantSkipped(first.Job.ID, later.Job.ID)
		got := e.wantState(later.Job.ID, lanegate.StateQueued)
		if !got.PlaceAt.Equal(first.Job.PlaceAt) || got.PlaceID != first.Job.PlaceID {
			e.Errorf("place (%v, %s), want the waiting one's", got.PlaceAt, got.PlaceID)
		}
	}},
	{"coalesce late: the job that became due later wins", func(e *env) {
		e.class("c", overlap(lanegate.OverlapCoalesce))
		at := e.soon()
		timed := e.submit("c", runAt(at)).Job
		e.eventually("its time comes", func() bool { return time.Now().After(at.Add(time.Millisecond)) })
		newer := e.submit("c").Job // no admission has seen the timed one as due
		w := e.worker(func(w *service.WorkerInfo) { w.Commands = nil })
		e.wantEnds(w, timed.ID)
		e.wantSkipped(timed.ID, newer.ID)
		got := e.wantState(newer.ID, lanegate.StateQueued)
		if !got.PlaceAt.Equal(timed.PlaceAt) || got.PlaceID != timed.PlaceID {
			e.Errorf("place (%v, %s), want the older one's (%v, %s)", got.PlaceAt, got.PlaceID, timed.PlaceAt, timed.PlaceID)
		}
	}},
	{"policies hold within a batch", func(e *env) {
		e.class("s", overlap(lanegate.OverlapSkip))
		e.class("c", overlap(lanegate.OverlapCoalesce))
		batch := []service.NewJob{newJob("s"), newJob("c"), newJob("s"), newJob("c"), newJob("c", day("2026-11-29"))}
		results, err := e.s.SubmitBatch(e.ctx(), batch)
		e.must(err)
		e.wantSkipped(batch[2].ID, batch[0].ID)
		equal(e, "coalesced", results[3].Coalesced, batch[1].ID)
		e.wantSkipped(batch[1].ID, batch[3].ID)
		equal(e, "another date", results[4].Coalesced, "")
		e.wantLine("s", 1)
		e.wantLine("c", 2)
	}},
	{"concurrent submissions under skip leave one", func(e *env) {
		e.class("c", overlap(lanegate.OverlapSkip))
		e.together(30, func(int) error {
			_, err := e.s.Submit(e.ctx(), newJob("c"))
			return err
		})
		e.wantLine("c", 1)
		skipped, _, err := e.s.Jobs(e.ctx(), service.JobFilter{States: []lanegate.State{lanegate.StateSkipped}, Limit: 50})
		e.must(err)
		equal(e, "skipped", len(skipped), 29)
	}},
}

// wantSkipped checks the end of a job by an overlap policy.
func (e *env) wantSkipped(id, by string) {
	e.Helper()
	j := e.wantState(id, lanegate.StateSkipped)
	if j.BlockedBy != by || !strings.Contains(j.Reason, by) || j.FinishedAt == nil {
		e.Errorf("blocked by %q, reason %q, finished %v; want all to name %s", j.BlockedBy, j.Reason, j.FinishedAt, by)
	}
}

// wantEnds asks for work until an admission says that the job ended.
func (e *env) wantEnds(worker, id string) {
	e.Helper()
	e.eventually("the policy ends "+id, func() bool {
		res := e.admit(worker)
		if len(res.Grants) > 0 {
			e.Fatalf("granted %v meanwhile", granted(res))
		}
		if len(res.Skipped) > 0 && !slices.Equal(res.Skipped, []string{id}) {
			e.Fatalf("%v were ended, want %s", res.Skipped, id)
		}
		return len(res.Skipped) > 0
	})
}

package storetest

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// async makes a class whose target reports by itself, with this heartbeat.
func async(heartbeat time.Duration) func(*lanegate.Class) {
	return func(c *lanegate.Class) {
		c.Run = lanegate.Run{
			Kind: lanegate.RunHTTP, URL: "http://target", Mode: lanegate.ModeAsync, Heartbeat: lanegate.Duration(heartbeat),
		}
	}
}

// detach starts one job of the class and returns it.
func (e *env) detach(class string) service.Grant {
	e.Helper()
	return e.start(e.worker(), e.submit(class).Job.ID)[0]
}

func (e *env) reapDetached(watched time.Duration) []service.Ended {
	e.Helper()
	ended, err := e.s.ReapDetached(e.ctx(), watched)
	e.must(err)
	return ended
}

// overdue reaps until the one attempt in flight is ended.
func (e *env) overdue() service.Ended {
	e.Helper()
	var ended []service.Ended
	e.eventually("the deadline passes", func() bool {
		ended = e.reapDetached(time.Hour)
		return len(ended) > 0
	})
	equal(e, "ended", len(ended), 1)
	return ended[0]
}

var detachedCases = []testCase{
	{"a heartbeat moves the deadline, tells of a cancel, and needs its fence", func(e *env) {
		e.class("h", async(time.Hour))
		g := e.detach("h")
		if g.Attempt.HeartbeatBy == nil || !g.Attempt.Detached || g.Attempt.HeartbeatBy.Sub(g.Attempt.StartedAt) != time.Hour {
			e.Fatalf("attempt %+v, want it detached for an hour", g.Attempt)
		}
		heart, err := e.s.Heartbeat(e.ctx(), g.Attempt.Fence())
		e.must(err)
		equal(e, "heart", heart, service.Heart{Within: time.Hour})
		list, err := e.s.Attempts(e.ctx(), g.Job.ID)
		e.must(err)
		if !list[0].HeartbeatBy.After(*g.Attempt.HeartbeatBy) {
			e.Errorf("deadline %v, was %v", list[0].HeartbeatBy, g.Attempt.HeartbeatBy)
		}
		_, err = e.s.Cancel(e.ctx(), g.Job.ID, "ada")
		e.must(err)
		heart, err = e.s.Heartbeat(e.ctx(), g.Attempt.Fence())
		e.must(err)
		equal(e, "heart", heart, service.Heart{CancelRequested: true, Within: time.Hour})
		for _, other := range []lanegate.Fence{
			{Job: g.Job.ID, Number: 1, Token: "foreign"}, {Job: g.Job.ID, Number: 2, Token: g.Attempt.Token},
			{Job: newID(), Number: 1, Token: g.Attempt.Token},
		} {
			_, err = e.s.Heartbeat(e.ctx(), other)
			e.wantErr(err, lanegate.ErrLateWrite)
		}
		e.end(g, lanegate.Cancelled)
		_, err = e.s.Heartbeat(e.ctx(), g.Attempt.Fence())
		e.wantErr(err, lanegate.ErrLateWrite)
	}},
	{"an attempt on a worker takes no heartbeat", func(e *env) {
		e.class("c")
		g := e.detach("c")
		_, err := e.s.Heartbeat(e.ctx(), g.Attempt.Fence())
		e.wantErr(err, lanegate.ErrNotDetached)
		if ended := e.reapDetached(time.Hour); len(ended) != 0 {
			e.Errorf("reaped %+v", ended)
		}
	}},
	{"a beat says which of the worker's attempts are detached", func(e *env) {
		e.class("h", async(time.Hour))
		w := e.worker()
		e.start(w, e.submit("h").Job.ID)
		held := e.beat(w)
		if len(held) != 1 || !held[0].Detached {
			e.Errorf("held %+v", held)
		}
	}},
	{"a passed deadline loses the attempt and frees its slot, once", func(e *env) {
		e.class("h", async(time.Millisecond))
		g := e.detach("h")
		next := e.submit("h").Job.ID
		d := e.overdue()
		if d.Attempt.Outcome != lanegate.Lost || !d.Attempt.Estimated || d.Attempt.Duration < 0 || d.Job.State != lanegate.StateFailed {
			e.Errorf("ended %+v, job %s; an http run is not repeated by itself", d.Attempt, d.Job.State)
		}
		equal(e, "in flight", e.inFlight(), 0)
		_, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded})
		e.wantErr(err, lanegate.ErrLateWrite)
		if log := e.runLog(""); len(log) != 1 || log[0].Outcome != lanegate.Lost || !log[0].Estimated {
			e.Errorf("run log %+v", log)
		}
		e.start(e.worker(), next)
	}},
	{"a repeatable job whose target fell silent waits for its turn again", func(e *env) {
		yes := true
		e.class("h", async(time.Millisecond), func(c *lanegate.Class) { c.Repeatable = &yes })
		g := e.detach("h")
		equal(e, "state", e.overdue().Job.State, lanegate.StateQueued)
		again := e.start(e.worker(), g.Job.ID)[0]
		equal(e, "attempt", again.Attempt.Number, 2)
	}},
	{"nobody is declared lost by who has not watched for a whole heartbeat", func(e *env) {
		e.class("h", async(20*time.Millisecond))
		e.detach("h")
		e.eventually("the deadline passes", func() bool {
			silent, err := e.s.Silent(e.ctx(), time.Hour)
			e.must(err)
			return silent[lanegate.LaneSerial] == 1
		})
		if ended := e.reapDetached(19 * time.Millisecond); len(ended) != 0 {
			e.Errorf("reaped %+v", ended)
		}
		equal(e, "reaped by who has", len(e.reapDetached(20*time.Millisecond)), 1)
	}},
	{"beyond its time limit a run is asked to end, and its deadline stands", func(e *env) {
		e.class("h", async(30*time.Millisecond), func(c *lanegate.Class) { c.Timeout = lanegate.Duration(time.Millisecond) })
		g := e.detach("h")
		var heart service.Heart
		e.eventually("the time limit is over", func() bool {
			var err error
			heart, err = e.s.Heartbeat(e.ctx(), g.Attempt.Fence())
			e.must(err)
			return heart.TimedOut
		})
		equal(e, "cancel", heart.CancelRequested, true)
		equal(e, "outcome", e.overdue().Attempt.Outcome, lanegate.TimedOut)
	}},
	{"an outcome without a duration gets the time since the start, and may be repeated", func(e *env) {
		e.class("h", async(time.Hour))
		g := e.detach("h")
		ending := lanegate.Ending{Outcome: lanegate.Failed, Error: "no rows"}
		first := e.endAs(g, ending)
		if first.Repeated || first.Attempt.Duration <= 0 || first.Attempt.Estimated {
			e.Errorf("first: %+v", first)
		}
		equal(e, "repeated", e.endAs(g, ending).Repeated, true)
		_, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed, Error: "other"})
		e.wantErr(err, lanegate.ErrLateWrite)
		equal(e, "runs logged", len(e.runLog("")), 1)
	}},
	{"heartbeats, completions and the reaper at once leave one outcome", func(e *env) {
		e.class("h", async(time.Millisecond))
		for range 10 {
			g := e.detach("h")
			var wg sync.WaitGroup
			var mu sync.Mutex
			outcomes := 0
			count := func(n int, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					outcomes += n
				} else if !errors.Is(err, lanegate.ErrLateWrite) && !errors.Is(err, lanegate.ErrUnavailable) {
					e.Error(err)
				}
			}
			for i := range 3 {
				wg.Go(func() {
					_, err := e.s.Heartbeat(e.ctx(), g.Attempt.Fence())
					count(0, err)
				})
				wg.Go(func() {
					ended, err := e.s.ReapDetached(e.ctx(), time.Hour)
					count(len(ended), err)
				})
				wg.Go(func() {
					_, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed, Error: strings.Repeat("x", i+1)})
					count(1, err)
				})
			}
			wg.Wait()
			equal(e, "outcomes", outcomes, 1)
			equal(e, "runs logged", len(e.runLog("")), e.job(g.Job.ID).Attempts*countJobs(e))
		}
	}},
}

// countJobs counts the jobs there are.
func countJobs(e *env) int {
	e.Helper()
	jobs, _, err := e.s.Jobs(e.ctx(), service.JobFilter{Limit: 1000})
	e.must(err)
	return len(jobs)
}

package storetest

import (
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// far makes a class of kind agent.
func far(c *lanegate.Class) { c.Run = lanegate.Run{Kind: lanegate.RunAgent, Command: "true"} }

// agentOf makes a worker an agent of a token.
func agentOf(token string) func(*service.WorkerInfo) {
	return func(w *service.WorkerInfo) { w.Agent = token }
}

// waitsFor makes a worker an agent that waits for jobs of a class of its own.
func waitsFor(class string) func(*service.WorkerInfo) {
	return func(w *service.WorkerInfo) {
		w.Agent, w.Slots, w.Commands = "cron", 1, map[string]string{admission.OnTheSpot(class): "argv"}
	}
}

func on(worker string) func(*service.NewJob) {
	return func(n *service.NewJob) { n.Worker = worker }
}

var agentCases = []testCase{
	{"an agent is listed with its token and runs its kind only", func(e *env) {
		e.class("far", far)
		e.class("near")
		a, gateway := e.worker(agentOf("batch")), e.worker()
		for _, w := range e.live() {
			equal(e, "agent of "+w.ID, w.Agent, map[string]string{a: "batch"}[w.ID])
		}
		near := e.submit("near").Job.ID
		e.start(a)
		e.end(e.start(gateway, near)[0], lanegate.Succeeded)
		distant := e.submit("far").Job.ID
		e.start(gateway)
		g := e.start(a, distant)[0]
		equal(e, "detached", g.Attempt.Detached, false)
		if held := e.beat(a); len(held) != 1 || held[0].Fence != g.Attempt.Fence() {
			e.Errorf("held %+v", held)
		}
	}},
	{"an agent takes no verification run", func(e *env) {
		e.class("a", attempts(3, time.Millisecond))
		e.queue("a", 2)
		e.trial(lanegate.SourceQueue, "a", "a")
		if res := e.admit(e.worker(agentOf("batch"))); len(res.Grants) != 0 || res.Trial != "" {
			e.Errorf("an agent got %+v", res)
		}
		equal(e, "starts on a gateway", len(e.admit(e.worker()).Grants), 2)
	}},
	{"only lanes that an agent names become available by it", func(e *env) {
		available := func() bool {
			cfg, err := e.s.Config(e.ctx())
			e.must(err)
			for _, l := range cfg.Lanes {
				if l.Name == lanegate.LaneParallel {
					return l.Available
				}
			}
			return false
		}
		e.worker(agentOf("batch"))
		equal(e, "with an agent for whatever comes", available(), false)
		e.worker(agentOf("batch"), func(w *service.WorkerInfo) { w.Lanes = []string{lanegate.LaneParallel} })
		equal(e, "with one that names it", available(), true)
	}},
	{"a job on the spot runs on its worker only, and goes with it", func(e *env) {
		e.class("far", far)
		a, b := e.worker(waitsFor("far")), e.worker(waitsFor("far"))
		first, second := e.submit("far", on(a)).Job, e.submit("far", on(b)).Job
		equal(e, "worker", e.job(first.ID).Worker, a)
		e.start(b)
		e.start(e.worker(agentOf("other")))
		g := e.start(a, first.ID)[0]
		if ended := e.end(g, lanegate.Interrupted); ended.Job.State != lanegate.StateFailed {
			e.Errorf("interrupted, the job is %s; nobody is there to run it again", ended.Job.State)
		}
		ended, err := e.s.LeaveWorker(e.ctx(), b)
		e.must(err)
		if len(ended) != 1 || ended[0].Attempt.Number != 0 || ended[0].Job.ID != second.ID || ended[0].Job.State != lanegate.StateCancelled {
			e.Errorf("leaving ended %+v", ended)
		}
		e.wantState(second.ID, lanegate.StateCancelled)
	}},
	{"a caller that dies frees its line", func(e *env) {
		e.class("far", far)
		a, b := e.worker(waitsFor("far")), e.worker(waitsFor("far"))
		first, second := e.submit("far", on(a)).Job.ID, e.submit("far", on(b)).Job.ID
		e.start(a, first)
		ended, err := e.s.ReapWorker(e.ctx(), a, 0)
		e.must(err)
		if len(ended) != 1 || ended[0].Attempt.Outcome != lanegate.Lost || ended[0].Job.State != lanegate.StateFailed {
			e.Errorf("reaped %+v", ended)
		}
		e.start(b, second)
		// A job whose worker never was, or was gone before it came, does not stay.
		late := e.submit("far", on(a)).Job.ID
		ended, err = e.s.ReapOrphans(e.ctx())
		e.must(err)
		equal(e, "ended", len(ended), 1)
		e.wantState(late, lanegate.StateCancelled)
	}},
}

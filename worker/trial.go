package worker

import (
	"context"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/runner"
)

// checkTimeout limits the check after a round.
const checkTimeout = 10 * time.Minute

// measure begins to count what a run uses of the resources that have a probe,
// if it may run beside others. The function it returns ends that; resources of
// which nothing was seen in use are left out, and nil means nothing was measured.
func (w *Worker) measure(a lanegate.Attempt) (peaks func() map[string]int) {
	if a.Lane == lanegate.LaneSerial && a.Verification == "" {
		return func() map[string]int { return nil }
	}
	watches := map[string]func() int{}
	for resource, p := range w.opts.Probes() {
		watches[resource] = p.Watch(a.Job)
	}
	return func() map[string]int {
		var seen map[string]int
		for resource, peak := range watches {
			if n := peak(); n > 0 {
				if seen == nil {
					seen = map[string]int{}
				}
				seen[resource] = n
			}
		}
		return seen
	}
}

// Check runs what judges the data after a round of a verification run, under
// this worker's lease like any run. It is no attempt: nothing but the run's
// evidence knows of it.
func (w *Worker) Check(ctx context.Context, v lanegate.Verification, round int, run lanegate.Run, payload []byte) (ending lanegate.Ending) {
	defer func() {
		if p := recover(); p != nil {
			w.log.ErrorContext(ctx, "panic in a check", "verification", v.ID, "panic", p)
			ending = lanegate.Ending{Outcome: lanegate.Interrupted, Error: "internal fault of the gateway's runner; see its log"}
		}
	}()
	job := runner.Job{ID: v.ID, Attempt: round, Verification: v.ID, Payload: payload, Run: run, Timeout: checkTimeout}
	w.log.InfoContext(ctx, "check started", "verification", v.ID, "round", round)
	if run.Kind == lanegate.RunHTTP {
		return w.opts.HTTP.Run(ctx, job, w.lease)
	}
	return w.opts.Exec.Run(ctx, job, w.lease)
}

// Identity is the id of this process's worker now, "" while it is not registered.
func (w *Worker) Identity() string { return w.identity() }

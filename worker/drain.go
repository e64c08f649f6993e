package worker

import (
	"context"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/runner"
)

// drainRuns waits for the runs of this process. After a stop they get the drain
// time; a worker that was declared dead (gone) stops them at once. It returns
// when no run is left: one that ignores its stop is killed by its guard within
// the kill grace.
func (w *Worker) drainRuns(ctx context.Context, gone <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	if n := w.Running(); n > 0 {
		w.log.InfoContext(ctx, "waiting for running jobs", "running", n, "drain", DrainText(w.opts.Drain))
		w.announceDrain(ctx)
	}
	var limit <-chan time.Time
	if w.opts.Drain != DrainWait {
		timer := time.NewTimer(w.opts.Drain)
		defer timer.Stop()
		limit = timer.C
	}
	cause := runner.ErrDrained
	select {
	case <-done:
		return
	case <-gone:
		cause = runner.ErrFenced
	case <-limit:
	case <-w.hurry:
	}
	w.stopRuns(ctx, cause)
	<-done
}

// DrainText is a drain time as people write it: "30s" or "wait".
func DrainText(d time.Duration) string {
	if d == DrainWait {
		return "wait"
	}
	return lanegate.FormatDuration(d)
}

// announceDrain marks the worker's row, so that nobody counts on it for new work.
func (w *Worker) announceDrain(ctx context.Context) {
	info := w.info(w.identity())
	info.Draining = true
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := w.backend.UpdateWorker(call, info); err != nil {
		w.log.WarnContext(ctx, "marking the worker as draining failed", "err", err)
	}
}

// stopRuns ends every run that is still going; each goes back to its place.
func (w *Worker) stopRuns(ctx context.Context, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for job, r := range w.runs {
		if r.ended {
			continue
		}
		w.log.WarnContext(ctx, "stopping a running job; it goes back to its place", "job", job, "class", r.class, "attempt", r.fence.Number, "cause", cause)
		r.stop(cause)
	}
}

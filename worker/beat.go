package worker

import (
	"context"
	"errors"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/worker/runner"
)

// beatLoop beats until ctx ends. The lease counts from the moment a successful
// beat was sent, never from its answer: that is the latest moment at which the
// database surely knew this worker alive.
func (w *Worker) beatLoop(ctx context.Context, dead context.CancelFunc) {
	tick := time.NewTicker(w.opts.Beat)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.backend.Nudges():
		}
		if w.opts.Exclusive {
			w.renew(runner.Boottime() + w.opts.Lease)
		}
		err := w.beat(ctx)
		switch {
		case errors.Is(err, lanegate.ErrWorkerGone):
			dead()
			return
		case err != nil && ctx.Err() == nil:
			if !failing {
				w.log.ErrorContext(ctx, "beat failed", "worker", w.identity(), "err", err)
			}
			failing = true
		case err == nil:
			if failing {
				w.log.InfoContext(ctx, "beats work again", "worker", w.identity())
			}
			failing = false
		}
	}
}

// beat sends one beat and brings this process's runs in line with the answer: a
// run that the database does not know as ours is stopped, a cancel is passed on,
// and an attempt that never arrived here is given back.
func (w *Worker) beat(ctx context.Context) error {
	w.mu.Lock()
	id := w.id
	before := make(map[lanegate.Fence]bool, len(w.runs)) // granted before the question: the answer must know them
	for _, r := range w.runs {
		before[r.fence] = true
	}
	w.mu.Unlock()

	sent := runner.Boottime()
	call, cancel := context.WithTimeout(ctx, min(callTimeout, w.opts.Beat))
	held, err := w.backend.Beat(call, id)
	cancel()
	if err != nil {
		return err
	}
	w.beaten(sent)
	for _, f := range w.reconcile(before, held) {
		w.log.ErrorContext(ctx, "an attempt was granted but never arrived here; it is given back", "job", f.Job, "attempt", f.Number)
		w.record(ctx, f, lanegate.Ending{Outcome: lanegate.Interrupted, Error: "the grant did not reach the worker"})
	}
	return nil
}

// renew moves the lease's deadline on; where that was too near to ask for work, the
// asking goes on.
func (w *Worker) renew(deadline time.Duration) {
	short := w.leaseShort()
	w.lease.Renew(deadline)
	if short {
		w.poke()
	}
}

// leaseShort says that a run could not be started, or hardly, before its lease ends.
func (w *Worker) leaseShort() bool {
	deadline, _ := w.lease.Deadline()
	return deadline-runner.Boottime() < w.opts.KillGrace+leaseMargin
}

func (w *Worker) beaten(sent time.Duration) {
	w.renew(sent + w.leaseTime())
	w.lastBeat.Store(time.Now().UnixNano())
}

// reconcile returns the attempts to give back: those that two answers in a row
// named, that do not run here and never will. One answer may be older than a grant
// that is just arriving, and the answer of an ask that was under way may still bring
// it, however late: only when all asks are settled that had begun by the first
// naming is there nobody left to start it.
func (w *Worker) reconcile(before map[lanegate.Fence]bool, held []service.Held) []lanegate.Fence {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := make(map[lanegate.Fence]bool, len(held))
	strays := map[string]int{}
	var back []lanegate.Fence
	for _, h := range held {
		known[h.Fence] = true
		r := w.runs[h.Fence.Job]
		if r == nil && h.Detached {
			continue // it runs elsewhere
		}
		if r == nil || r.fence != h.Fence {
			asks, again := w.strays[h.Fence.Token]
			if !again {
				asks = w.begun
			}
			strays[h.Fence.Token] = asks
			if again && w.settled >= asks {
				back = append(back, h.Fence)
			}
			continue
		}
		if h.CancelRequested {
			r.stop(runner.ErrCancelled)
		}
	}
	for _, r := range w.runs {
		if before[r.fence] && !known[r.fence] && !r.ended {
			w.log.Error("the database does not know this run as ours; it is stopped", "job", r.fence.Job, "attempt", r.fence.Number)
			r.stop(runner.ErrFenced)
		}
	}
	w.strays = strays
	return back
}

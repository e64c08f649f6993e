package worker

import (
	"context"
	"errors"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/worker/runner"
)

const (
	// callTimeout bounds one call to the gateway. Calls run to their end even
	// when a stop comes: an answer that is cut off may be a start nobody runs.
	callTimeout = 8 * time.Second
	// admitRetry spaces asks after a failed one.
	admitRetry = time.Second
	// restShare is how many times as long as it took a fruitless ask lets rings wait,
	// at most maxRest: rings that lead to nothing take a fifth of a busy database. After
	// one that found nothing in line the next ring is heard, as it is about a new job; if
	// that leads to nothing, too, others take what comes.
	restShare = 4
	maxRest   = 100 * time.Millisecond
	// maxGather bounds for how long slots that become free wait for others after an ask.
	maxGather = 20 * time.Millisecond
)

// admitLoop asks for work whenever something may have changed, until ctx ends.
// It never asks for more than there are free slots now: nothing is prefetched.
//
// What an ask costs hardly depends on how many jobs it starts. So while several run,
// the time that an ask took lies between it and the next: where many short jobs run,
// the slots that become free meanwhile are filled together, sooner when all are; the
// first after a while is filled at once, and so is a single one. Where many jobs come
// in that can't start yet, each commit rings: after an ask that brought nothing, though
// jobs wait, the next ring waits longer.
func (w *Worker) admitLoop(ctx context.Context, dead context.CancelFunc) {
	next := time.NewTimer(0)
	defer next.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	gather := time.NewTimer(0)
	defer gather.Stop()
	rings, wake := w.backend.Rings(), w.wake // each nil while it waits
	fruitless := 0                           // asks in a row
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
			rings = w.backend.Rings()
			continue
		case <-gather.C:
			wake = w.wake
			continue
		case <-w.empty: // nothing more to gather
			wake = w.wake
			continue
		case <-wake:
		case <-rings:
		case <-next.C:
		}
		if ctx.Err() != nil { // several were ready and select chose another
			return
		}
		wait := w.opts.Poll
		began := time.Now()
		res, err := w.admit(ctx)
		took := time.Since(began)
		pause := min(took, maxGather)
		select {
		case <-w.empty: // left from before what runs now
		default:
		}
		if w.Running() > 1 { // otherwise there is nothing to gather
			wake = nil
			gather.Reset(pause)
		}
		switch {
		case len(res.Grants) > 0:
			fruitless = 0
		case res.NoneWaits && fruitless == 0:
			fruitless, pause = 1, 0
		default:
			fruitless, pause = fruitless+1, min(restShare*took, maxRest)
		}
		if pause > 0 {
			rings = nil
			rest.Reset(pause)
		}
		switch {
		case errors.Is(err, lanegate.ErrWorkerGone):
			dead()
			return
		case err != nil:
			if !failing { // one line per outage
				w.log.ErrorContext(ctx, "asking for work failed; asking again every second", "err", err)
			}
			failing, wait = true, admitRetry
		default:
			if failing {
				w.log.InfoContext(ctx, "asking for work works again")
			}
			failing = false
			if res.NextDue >= 0 {
				wait = min(wait, res.NextDue)
			}
		}
		next.Reset(wait)
	}
}

// admit asks once and starts what was granted.
func (w *Worker) admit(ctx context.Context) (res service.Admitted, err error) {
	none := service.Admitted{NextDue: -1}
	if w.leaseShort() {
		return none, nil // whatever was granted could not run; the next beat makes up for it
	}
	done := w.asking()
	ask := w.ask() // also without a free slot: a verification run needs none
	defer w.beginAsk()()
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	res, err = w.backend.Admit(call, ask)
	done(passOf(ask, err))
	if err != nil {
		return none, err
	}
	for _, g := range res.Grants {
		w.start(ctx, g)
	}
	return res, nil
}

// beginAsk counts an ask that is about to be sent; settle is to be called once no
// run can come of it any more that has not been started.
func (w *Worker) beginAsk() (settle func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.settled++
	}
}

// asking tells a doorbell of messages that a pass begins.
func (w *Worker) asking() (done func(service.Pass)) {
	if a, ok := w.backend.(Acknowledger); ok {
		return a.Asking()
	}
	return func(service.Pass) {}
}

// passOf says what a pass means for messages: without room here, or as a worker
// that was declared dead, they are for somebody else.
func passOf(ask service.Ask, err error) service.Pass {
	switch {
	case errors.Is(err, lanegate.ErrWorkerGone):
		return service.PassFull
	case err != nil:
		return service.PassFailed
	case ask.Free == 0 && !ask.SerialFree:
		return service.PassFull
	}
	return service.PassCommitted
}

func (w *Worker) identity() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id
}

// ask counts the free local slots.
func (w *Worker) ask() service.Ask {
	w.mu.Lock()
	defer w.mu.Unlock()
	ask := service.Ask{Worker: w.id, Free: w.opts.Slots, SerialFree: true}
	for _, r := range w.runs {
		switch {
		case r.trial:
		case r.serial:
			ask.SerialFree = false
		default:
			ask.Free--
		}
	}
	ask.Free = max(ask.Free, 0)
	return ask
}

// start runs one grant in a goroutine of its own.
func (w *Worker) start(ctx context.Context, g service.Grant) {
	runCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &run{
		fence: g.Attempt.Fence(), class: g.Job.Class, stop: stop,
		serial: g.Attempt.Lane == lanegate.LaneSerial, trial: g.Attempt.Verification != "",
	}
	w.mu.Lock()
	w.runs[g.Job.ID] = r
	w.mu.Unlock()
	w.log.InfoContext(ctx, "job started", "job", g.Job.ID, "class", g.Job.Class, "attempt", g.Attempt.Number, "lane", g.Attempt.Lane)
	w.wg.Go(func() {
		defer stop(nil)
		ending := w.execute(runCtx, g)
		w.mu.Lock()
		r.ended = true
		w.mu.Unlock()
		if ending.Outcome == "" {
			w.log.InfoContext(ctx, "the run goes on elsewhere and reports by itself", "job", g.Job.ID, "class", g.Job.Class, "attempt", g.Attempt.Number)
		} else {
			w.record(context.WithoutCancel(ctx), r.fence, ending)
		}
		w.mu.Lock()
		delete(w.runs, g.Job.ID)
		none := len(w.runs) == 0
		w.mu.Unlock()
		w.poke()
		if none {
			signal(w.empty)
		}
	})
}

// execute runs the attempt; a panic of ours ends it as failed, not the process.
func (w *Worker) execute(ctx context.Context, g service.Grant) (ending lanegate.Ending) {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			w.log.ErrorContext(ctx, "panic in a runner", "job", g.Job.ID, "panic", p)
			ending = lanegate.Ending{Outcome: lanegate.Failed, Error: "internal fault of the gateway's runner; see its log"}
		}
		if ending.Outcome != lanegate.Succeeded {
			ending.Result = nil // what a failed run printed is output, not a result
		}
		if ending.Duration == 0 {
			ending.Duration = time.Since(began)
		}
	}()
	job := runner.Job{
		ID: g.Job.ID, Attempt: g.Attempt.Number, Token: g.Attempt.Token, Class: g.Job.Class,
		LogicalDate: g.Job.LogicalDate, Verification: g.Attempt.Verification, Payload: g.Payload,
		Run: g.Class.Run, Timeout: g.Class.Timeout.Std(),
	}
	switch {
	case g.Class.Run.Kind == lanegate.RunHTTP:
		return w.opts.HTTP.Run(ctx, job, w.lease)
	case g.Class.Run.Kind == lanegate.RunSQS && w.opts.SQS != nil:
		return w.opts.SQS.Run(ctx, job, w.lease)
	}
	measured := w.measure(g.Attempt)
	ending = w.opts.Exec.Run(ctx, job, w.lease)
	ending.Measured = measured()
	return ending
}

// record writes an outcome, again and again until the database has taken or
// refused it: an outcome that could not be written is kept, never dropped. Only
// StopNow gives up, as the process must end then.
func (w *Worker) record(ctx context.Context, f lanegate.Fence, e lanegate.Ending) {
	for wait, tries := 100*time.Millisecond, 0; ; wait, tries = min(2*wait, 5*time.Second), tries+1 {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := w.backend.EndAttempt(call, f, e)
		cancel()
		switch {
		case err == nil || errors.Is(err, lanegate.ErrLateWrite):
			return // a late write was counted and logged by the service
		case lanegate.KindOf(err) == lanegate.KindNotFound:
			w.log.ErrorContext(ctx, "the job of a finished attempt is gone", "job", f.Job, "attempt", f.Number, "outcome", e.Outcome)
			return
		case refused(err):
			w.log.ErrorContext(ctx, "the gateway can't take an outcome; the attempt will be given back", "job", f.Job, "attempt", f.Number, "outcome", e.Outcome, "err", err)
			return
		case tries == 0:
			w.log.ErrorContext(ctx, "recording an outcome failed; it is kept and tried again", "job", f.Job, "attempt", f.Number, "outcome", e.Outcome, "err", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-w.hurry:
			timer.Stop()
			if tries >= hurriedTries {
				w.log.ErrorContext(ctx, "giving up an outcome at the second stop signal; the attempt will be found lost", "job", f.Job, "attempt", f.Number, "outcome", e.Outcome)
				return
			}
		}
	}
}

// refused says that repeating a write is of no use.
func refused(err error) bool {
	switch lanegate.KindOf(err) {
	case lanegate.KindBadRequest, lanegate.KindInvalid, lanegate.KindTooLarge, lanegate.KindMediaType:
		return true
	}
	return false
}

// hurriedTries is how often an outcome is tried after StopNow before it is given up.
const hurriedTries = 3

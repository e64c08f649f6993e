package service

import (
	"context"
	"time"

	"github.com/lanegate/lanegate"
)

// The methods in this file are what a worker process needs: package worker
// declares them as its port, and an agent calls the same ones over HTTP.

// RegisterWorker makes a worker live. Its id must be new per process start.
func (s *Service) RegisterWorker(ctx context.Context, w WorkerInfo) error {
	if err := s.store.RegisterWorker(ctx, w); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "worker registered", "worker", w.ID, "lanes", w.Lanes, "slots", w.Slots)
	return nil
}

// UpdateWorker changes what a live worker serves or that it drains.
func (s *Service) UpdateWorker(ctx context.Context, w WorkerInfo) error {
	return s.store.UpdateWorker(ctx, w)
}

// Beat counts the worker's beat up and returns the attempts the database knows as its.
func (s *Service) Beat(ctx context.Context, worker string) ([]Held, error) {
	return s.store.Beat(ctx, worker)
}

// Admit asks admission for work and does what follows from the answer. Without a
// free slot it returns at once, unless a verification run may be open, whose runs
// take no slot; so a worker may always call it.
func (s *Service) Admit(ctx context.Context, ask Ask) (Admitted, error) {
	s.agents.poke() // whatever made this worker look, may be for them
	return s.admit(ctx, ask)
}

func (s *Service) admit(ctx context.Context, ask Ask) (Admitted, error) {
	if ask.Free <= 0 && !ask.SerialFree && !s.trials.mayBeOpen.Load() {
		return Admitted{NextDue: -1}, nil
	}
	res, err := s.store.Admit(ctx, ask)
	if err != nil {
		return res, err
	}
	if res.Trial != "" {
		s.trials.opened()
		s.log.InfoContext(ctx, "verification run moved on", "verification", res.Trial, "worker", ask.Worker)
	}
	for _, id := range res.Skipped {
		s.hub.finished(id)
	}
	for _, g := range res.Grants {
		s.metrics.started(g)
		if g.Attempt.Route.Reason != "" {
			s.log.WarnContext(ctx, "job runs outside its class's lane", "job", g.Job.ID, "class", g.Job.Class,
				"lane", g.Attempt.Lane, "wanted", g.Attempt.Route.Wanted, "reason", g.Attempt.Route.Reason)
		}
	}
	return res, nil
}

// EndAttempt records an outcome, with the phrases of trouble that a run beside
// others printed. lanegate.ErrLateWrite means that the attempt already has one:
// it is counted and logged here, and nothing was changed. A repeat whose first
// commit was not confirmed but did land is no late write: what follows from the
// outcome follows now, as nobody was told then.
func (s *Service) EndAttempt(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (Ended, error) {
	e, err := s.troubleIn(ctx, f, e)
	if err != nil {
		return Ended{}, err
	}
	ended, err := s.store.EndAttempt(ctx, f, e)
	if err != nil {
		if isLate(err) {
			s.metrics.late()
			s.log.WarnContext(ctx, "late write refused", "job", f.Job, "attempt", f.Number, "outcome", e.Outcome)
		}
		return ended, err
	}
	if ended.Repeated {
		s.log.InfoContext(ctx, "the outcome had been recorded although its commit was not confirmed", "job", f.Job, "attempt", f.Number)
	}
	s.ended(ctx, ended)
	return ended, nil
}

// LeaveWorker ends a worker's row after its last run.
func (s *Service) LeaveWorker(ctx context.Context, worker string) error {
	lost, err := s.store.LeaveWorker(ctx, worker)
	s.endedAll(ctx, lost)
	s.completeLost(ctx, worker)
	return err
}

// LiveWorkers lists the workers whose rows have not ended.
func (s *Service) LiveWorkers(ctx context.Context) ([]WorkerInfo, error) {
	return s.store.LiveWorkers(ctx)
}

// ReapWorker declares a worker dead whose beat counter stood still; see WorkerStore.
func (s *Service) ReapWorker(ctx context.Context, worker string, beat int64) error {
	lost, err := s.store.ReapWorker(ctx, worker, beat)
	if len(lost) > 0 {
		s.log.WarnContext(ctx, "worker declared dead; its attempts are lost", "worker", worker, "attempts", len(lost))
	}
	s.endedAll(ctx, lost)
	s.completeLost(ctx, worker)
	return err
}

// ReapOrphans makes attempts lost whose worker is gone, or whose target fell silent.
func (s *Service) ReapOrphans(ctx context.Context) error {
	lost, err := s.store.ReapOrphans(ctx)
	if len(lost) > 0 {
		s.log.WarnContext(ctx, "attempts without a live worker are lost", "attempts", len(lost))
	}
	s.endedAll(ctx, lost)
	if err != nil {
		s.hearts.looked(time.Now(), false, s.opts.Lease)
		return err
	}
	return s.reapDetached(ctx)
}

func (s *Service) endedAll(ctx context.Context, all []Ended) {
	for _, e := range all {
		s.ended(ctx, e)
	}
}

// ended does what follows an outcome: waiters and lanes are woken, it is counted and logged.
func (s *Service) ended(ctx context.Context, e Ended) {
	a := e.Attempt
	if a.Number == 0 {
		s.log.WarnContext(ctx, "job cancelled, as the process that waited to run it is gone", "job", e.Job.ID, "class", e.Job.Class, "worker", e.Job.Worker)
		s.hub.finished(e.Job.ID)
		s.ring(s.laneOf(ctx, e.Job.Class))
		return
	}
	s.metrics.ended(e)
	level := s.log.InfoContext
	if a.Outcome != lanegate.Succeeded && a.Outcome != lanegate.Deferred {
		level = s.log.WarnContext
	}
	level(ctx, "attempt ended", "job", a.Job, "class", a.Class, "attempt", a.Number, "lane", a.Lane,
		"outcome", a.Outcome, "duration", a.Duration.Round(time.Millisecond).String(), "state", e.Job.State, "error", a.Error)
	if e.Settlement.Flagged {
		s.log.ErrorContext(ctx, "job was interrupted again and again: it does not fit between two deploys; use --drain wait, an agent, or a detached run",
			"job", a.Job, "class", a.Class, "interruptions", e.Settlement.Interruptions)
	}
	if e.Job.State.Final() {
		s.hub.finished(a.Job)
	}
	switch {
	case a.Verification != "":
		s.trials.ended(a.Verification)
	case len(a.Trouble) > 0 || len(a.Measured) > 0:
		s.trials.poke() // it may have left something to be judged
	}
	s.ring(a.Lane)
}

// Rings wakes the worker of this process; see Doorbell.
func (s *Service) Rings() <-chan struct{} { return s.bell.Rings() }

// Asking is AckDoorbell's, for a doorbell without messages too: a worker calls it
// before each pass of admission and what it returns after.
func (s *Service) Asking() (done func(Pass)) {
	if ack, ok := s.bell.(AckDoorbell); ok {
		return ack.Asking()
	}
	return func(Pass) {}
}

// Nudges asks the worker of this process to beat now, because a cancel waits for
// it in the beat's answer.
func (s *Service) Nudges() <-chan struct{} { return s.nudges }

func (s *Service) nudge() {
	select {
	case s.nudges <- struct{}{}:
	default: // it is asked already
	}
}

// pruneBatch bounds one deleting transaction.
const pruneBatch = 500

// Prune deletes finished jobs and run log rows that are older than their
// retention, in small batches, until none is left or ctx ends. First all jobs, then
// all rows: a last batch of jobs has passed all that stay, which is not to come again
// for each batch of rows.
func (s *Service) Prune(ctx context.Context, now time.Time) error {
	if err := pruneAll(ctx, s.store.PruneJobs, now.Add(-s.opts.KeepJobs)); err != nil {
		return err
	}
	return pruneAll(ctx, s.store.PruneRunLog, now.Add(-s.opts.KeepRunLog))
}

func pruneAll(ctx context.Context, prune func(context.Context, time.Time, int) (int, error), before time.Time) error {
	for ctx.Err() == nil {
		n, err := prune(ctx, before, pruneBatch)
		if err != nil {
			return err
		}
		if n < pruneBatch {
			return nil
		}
	}
	return ctx.Err()
}

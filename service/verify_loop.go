package service

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/verification"
)

// Checker runs the check of a verification run after a round and says how it
// ended. It ends early, with an outcome that says so, when ctx does.
type Checker interface {
	Check(ctx context.Context, v lanegate.Verification, round int, run lanegate.Run, payload []byte) lanegate.Ending
}

// How often the coordinator looks by itself: while a run is open, and else.
const (
	verifyPoll     = time.Second
	verifyIdlePoll = 5 * time.Second
	// settleEvery spaces the search for runs that ended with evidence missing.
	settleEvery = time.Minute
	// verifyTimeout bounds one look, and the last words at a stop.
	verifyTimeout = 30 * time.Second
)

// trials is what this process knows of verification runs, to save looks: hints only.
type trials struct {
	// mayBeOpen is false only when the last look found no open run and nothing has
	// been heard of one since.
	mayBeOpen atomic.Bool
	wake      chan struct{} // holds one token: look now

	mu      sync.Mutex
	touched map[string]bool // runs of which an attempt has ended since the last look; guarded by mu
}

func newTrials() *trials {
	t := &trials{wake: make(chan struct{}, 1), touched: map[string]bool{}}
	t.mayBeOpen.Store(true)
	return t
}

func (t *trials) poke() {
	select {
	case t.wake <- struct{}{}:
	default: // it looks anyway
	}
}

// opened says that a run is open.
func (t *trials) opened() {
	t.mayBeOpen.Store(true)
	t.poke()
}

// ended says that an attempt of a run has ended.
func (t *trials) ended(id string) {
	t.mu.Lock()
	t.touched[id] = true
	t.mu.Unlock()
	t.poke()
}

func (t *trials) takeTouched() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := t.touched
	t.touched = map[string]bool{}
	return ids
}

// RunVerifications carries out the verification runs that this process owns, until
// ctx ends; then it ends the one that is under way, inconclusive. owner is the id
// of the process's worker now, "" while it has none. It returns nil.
//
// Whatever it does is one change each, judged from what the database says, so a
// step that is repeated, here or elsewhere, does nothing twice, and a crash
// between any two loses nothing but the run itself, which ends with its owner.
func (s *Service) RunVerifications(ctx context.Context, owner func() string, check Checker) error {
	c := newCoordinator(s, owner, check)
	failing := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			c.stop(ctx)
			return nil
		case <-s.trials.wake:
		case <-c.checked:
		case <-timer.C:
		}
		if ctx.Err() != nil { // several were ready and select chose another
			continue
		}
		open, err := c.look(ctx)
		switch {
		case err != nil && ctx.Err() == nil && !failing: // one line per outage
			s.log.ErrorContext(ctx, "looking after verification runs failed; it is tried again", "err", err)
		case err == nil && failing:
			s.log.InfoContext(ctx, "looking after verification runs works again")
		}
		failing = err != nil
		if open || failing {
			timer.Reset(verifyPoll)
		} else {
			timer.Reset(verifyIdlePoll)
		}
	}
}

// coordinator is the state of RunVerifications; its goroutine owns it.
type coordinator struct {
	*Service
	owner   func() string
	checker Checker
	check   *checkRun     // under way or not looked at yet, nil when none
	checked chan struct{} // holds one token: a check has ended
	settled time.Time     // when finished runs were searched last
	p99     map[string]p99At
}

// p99At is a quantile of a class's good runs, as of a moment.
type p99At struct {
	at  time.Time
	p99 time.Duration
}

func newCoordinator(s *Service, owner func() string, check Checker) *coordinator {
	return &coordinator{Service: s, owner: owner, checker: check, checked: make(chan struct{}, 1), p99: map[string]p99At{}}
}

// look does once what is to be done; open says whether a run is planned or running.
func (c *coordinator) look(ctx context.Context) (open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	touched := c.trials.takeTouched()
	runs, err := c.store.Verifications(ctx, VerificationFilter{
		States: []lanegate.VerificationState{lanegate.VerificationPlanned, lanegate.VerificationRunning}, Limit: 1000,
	})
	if err != nil {
		c.trials.mayBeOpen.Store(true)
		return true, err
	}
	c.trials.mayBeOpen.Store(len(runs) > 0)
	var errs []error
	if len(runs) > 0 {
		in, err := c.store.Snapshot(ctx)
		if err != nil {
			return true, err
		}
		for i := len(runs) - 1; i >= 0; i-- { // the oldest first
			errs = append(errs, c.step(ctx, runs[i], in))
		}
	}
	c.dropCheck(runs)
	errs = append(errs, c.settle(ctx, touched), c.JudgeFindings(ctx))
	return len(runs) > 0, errors.Join(errs...)
}

// step takes one open run as far as it comes now.
func (c *coordinator) step(ctx context.Context, v lanegate.Verification, in admission.Input) error {
	if reasons := memberObstacles(v, in.Classes); len(reasons) > 0 {
		return c.conclude(ctx, v, reasons, in)
	}
	own := c.owner()
	if v.State != lanegate.VerificationRunning || own == "" || v.Owner != own {
		return nil
	}
	reasons, err := c.limits(ctx, v, in)
	if err != nil {
		return err
	}
	if len(reasons) > 0 {
		return c.conclude(ctx, v, reasons, in)
	}
	return c.drive(ctx, v, in)
}

// drive moves a run on within its plan.
func (c *coordinator) drive(ctx context.Context, v lanegate.Verification, in admission.Input) error {
	if !v.Started {
		return nil // admission starts the round; the limits end the waiting
	}
	runs, err := c.store.TrialRuns(ctx, v.ID)
	if err != nil {
		return err
	}
	if reasons := changedRuns(v, runs); len(reasons) > 0 {
		return c.concludeWith(ctx, v, reasons, runs, in)
	}
	if v, err = c.begin(ctx, v, runs); err != nil || v.State != lanegate.VerificationRunning || !v.Started {
		return err // or somebody moved it on meanwhile
	}
	j := verification.Judge(caseOf(v, runs, others(v, in.Classes), in.Now))
	if j.Verdict == "" && j.RoundOver && v.Spec.Check != nil {
		result, ended := c.checkRound(ctx, v, runs)
		if !ended {
			return nil
		}
		v.Evidence = withRound(v.Evidence, v.Round+1, func(e *lanegate.RoundEvidence) { e.Check = result })
		j = verification.Judge(caseOf(v, runs, others(v, in.Classes), in.Now))
	}
	switch {
	case j.Verdict != "":
		return c.concludeWith(ctx, v, nil, runs, in)
	case j.RoundOver:
		return c.advance(ctx, v, runs, in)
	}
	return nil
}

// begin records that the round under way has begun; the first one is in the
// members' history, too.
func (c *coordinator) begin(ctx context.Context, v lanegate.Verification, runs []TrialRun) (lanegate.Verification, error) {
	if hasRound(v.Evidence, v.Round+1) {
		return v, nil
	}
	saved := v
	err := c.store.Change(ctx, func(tx ConfigTx) error {
		now, err := tx.Verification(v.ID)
		if err != nil || !sameStep(now, v) || hasRound(now.Evidence, v.Round+1) {
			saved = now
			return err
		}
		first := len(now.Evidence.Rounds) == 0
		now.Evidence = withRound(now.Evidence, v.Round+1, func(e *lanegate.RoundEvidence) {
			e.Kind, e.StartedAt = v.Plan[v.Round].Kind, tx.Now()
			for _, r := range runs {
				if r.Round == v.Round+1 && r.StartedAt.Before(e.StartedAt) {
					e.StartedAt = r.StartedAt
				}
			}
		})
		saved = now
		if err := tx.SaveVerification(now); err != nil || !first {
			return err
		}
		return recordVerification(tx, now, eventVerificationStarted, ActorLanegate, now.Spec.Reason, map[string]any{"worker": now.Owner})
	})
	return saved, err
}

// sameStep says whether a run still stands where it stood when it was judged.
func sameStep(now, judged lanegate.Verification) bool {
	return now.State == judged.State && now.Round == judged.Round && now.Started == judged.Started && now.Owner == judged.Owner
}

// advance records a round that is over and moves on to the next one, or to the
// verdict after the last.
func (c *coordinator) advance(ctx context.Context, v lanegate.Verification, runs []TrialRun, in admission.Input) error {
	beside, err := c.beside(ctx, v, in)
	if err != nil {
		return err
	}
	ended := false
	err = c.change(ctx, evidenceChange("verification run "+v.ID), func(tx ConfigTx, _ Config) error {
		ended = false
		now, err := tx.Verification(v.ID)
		if err != nil || !sameStep(now, v) {
			return err
		}
		now.Evidence = withRound(v.Evidence, v.Round+1, func(e *lanegate.RoundEvidence) { e.EndedAt, e.Beside = tx.Now(), beside })
		now.Started = false
		for now.Round++; now.Round < len(now.Plan) && underWay(now.Plan[now.Round], runs); now.Round++ {
		}
		j := verification.Judge(caseOf(now, runs, others(v, in.Classes), in.Now))
		now.Evidence = j.Evidence
		if j.Verdict == "" {
			now.Evidence.NotChecked = nil // belongs to the end, see unwritten
			return tx.SaveVerification(now)
		}
		ended = true
		now.State, now.Verdict, now.Reasons = lanegate.VerificationDone, j.Verdict, j.Reasons
		v = now
		return endVerification(tx, &v, ActorLanegate, "")
	})
	switch {
	case err != nil:
		return err
	case ended:
		c.verificationEnded(ctx, v)
	default:
		c.ringLanes(ctx)
	}
	return nil
}

// underWay says whether all runs of a round are in flight since earlier rounds:
// then they have been together already, and nothing is left to start.
func underWay(round lanegate.Round, runs []TrialRun) bool {
	if round.Kind != lanegate.RoundBeside {
		return false
	}
	flying := map[string]int{}
	for _, r := range runs {
		if r.EndedAt == nil {
			flying[r.Class]++
		}
	}
	for _, class := range round.Classes {
		if flying[class]--; flying[class] < 0 {
			return false
		}
	}
	return true
}

// conclude ends a run for reasons that are not in its attempts. What these say
// counts, too: a criterion that has failed is not forgiven by a late hour.
func (c *coordinator) conclude(ctx context.Context, v lanegate.Verification, reasons []lanegate.VerificationReason, in admission.Input) error {
	runs, err := c.store.TrialRuns(ctx, v.ID)
	if err != nil {
		return err
	}
	return c.concludeWith(ctx, v, reasons, runs, in)
}

func (c *coordinator) concludeWith(ctx context.Context, v lanegate.Verification, reasons []lanegate.VerificationReason, runs []TrialRun, in admission.Input) error {
	beside, err := c.beside(ctx, v, in)
	if err != nil {
		return err
	}
	ended := false
	err = c.change(ctx, evidenceChange("verification run "+v.ID), func(tx ConfigTx, _ Config) error {
		ended = false
		now, err := tx.Verification(v.ID)
		if err != nil || now.State.Final() {
			return err
		}
		ended = true
		now.Evidence = v.Evidence
		if hasRound(v.Evidence, v.Round+1) {
			now.Evidence = withRound(v.Evidence, v.Round+1, func(e *lanegate.RoundEvidence) { e.EndedAt, e.Beside = tx.Now(), beside })
		}
		j := verification.Judge(caseOf(now, runs, others(v, in.Classes), in.Now))
		now.State, now.Verdict, now.Evidence = lanegate.VerificationDone, lanegate.VerdictInconclusive, j.Evidence
		if j.Verdict == lanegate.VerdictFailed {
			now.Verdict = j.Verdict
		}
		now.Reasons = verification.SortReasons(append(j.Reasons, reasons...))
		v = now
		return endVerification(tx, &v, ActorLanegate, "")
	})
	if err == nil && ended {
		c.verificationEnded(ctx, v)
	}
	return err
}

// stop ends the run that this process owns, if any: its worker is leaving.
func (c *coordinator) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
	defer cancel()
	c.dropCheck(nil)
	own := c.owner()
	runs, err := c.store.Verifications(ctx, VerificationFilter{States: []lanegate.VerificationState{lanegate.VerificationRunning}, Limit: 100})
	if err == nil {
		for _, v := range runs {
			if own != "" && v.Owner == own {
				err = errors.Join(err, c.stopped(ctx, v))
			}
		}
	}
	if err != nil {
		c.log.ErrorContext(ctx, "a verification run could not be ended at the stop; it ends with its worker", "err", err)
	}
}

func (c *coordinator) stopped(ctx context.Context, v lanegate.Verification) error {
	in, err := c.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	return c.conclude(ctx, v, []lanegate.VerificationReason{{
		Code:    verification.CodeStopped,
		Message: "the process that carried it out was stopped; ask for the run again once it is back",
	}}, in)
}

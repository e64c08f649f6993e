package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

// checkRun is the check after one round. Only the coordinator's goroutine uses
// it, but for result, which is written before done is closed.
type checkRun struct {
	verification string
	round        int
	cancel       context.CancelFunc
	done         chan struct{}
	result       lanegate.Ending
}

// checkRound starts the check of the round under way, or says how it ended.
func (c *coordinator) checkRound(ctx context.Context, v lanegate.Verification, runs []TrialRun) (result *lanegate.CheckEvidence, ended bool) {
	round := v.Round + 1
	if k := c.check; k != nil && (k.verification != v.ID || k.round != round) {
		c.dropCheck(nil)
	}
	if c.check == nil {
		c.startCheck(ctx, v, round, checkPayload(v, round, runs))
	}
	select {
	case <-c.check.done:
		return checkEvidence(c.check.result), true
	default:
		return nil, false
	}
}

func (c *coordinator) startCheck(ctx context.Context, v lanegate.Verification, round int, payload []byte) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // ends with the run, see dropCheck
	k := &checkRun{verification: v.ID, round: round, cancel: cancel, done: make(chan struct{})}
	c.check = k
	go func() {
		k.result = c.checker.Check(ctx, v, round, *v.Spec.Check, payload)
		close(k.done)
		select {
		case c.checked <- struct{}{}:
		default: // the coordinator looks anyway
		}
	}()
}

// dropCheck ends the check under way, and waits for its end, unless its run is
// among those open.
func (c *coordinator) dropCheck(open []lanegate.Verification) {
	k := c.check
	if k == nil {
		return
	}
	if slices.ContainsFunc(open, func(v lanegate.Verification) bool {
		return v.ID == k.verification && v.State == lanegate.VerificationRunning && v.Round+1 == k.round
	}) {
		return
	}
	k.cancel()
	<-k.done
	c.check = nil
}

// checkPayload tells a check what it judges: the run, the round, and its runs.
func checkPayload(v lanegate.Verification, round int, runs []TrialRun) []byte {
	type run struct {
		Job     string           `json:"job"`
		Attempt int              `json:"attempt"`
		Class   string           `json:"class"`
		Outcome lanegate.Outcome `json:"outcome,omitempty"`
	}
	body := struct {
		Verification string `json:"verification"`
		Round        int    `json:"round"`
		Kind         string `json:"kind"`
		Runs         []run  `json:"runs"`
	}{v.ID, round, string(v.Plan[round-1].Kind), []run{}}
	for _, r := range runs {
		if r.Round == round {
			body.Runs = append(body.Runs, run{r.Job, r.Number, r.Class, r.Outcome})
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic("service: payload of a check from plain data: " + err.Error())
	}
	return text
}

// checkOutput bounds what is kept of the beginning, and of the end, of a check's
// output, in bytes.
const checkOutput = 1000

func checkEvidence(e lanegate.Ending) *lanegate.CheckEvidence {
	return &lanegate.CheckEvidence{Outcome: e.Outcome, ExitCode: e.ExitCode, Status: e.Status, Error: e.Error, Output: shortOutput(e.Output)}
}

// shortOutput is the beginning and the end of an output.
func shortOutput(o lanegate.Output) string {
	const gap = "\n…\n"
	text := o.Head + o.Tail
	if o.Dropped > 0 {
		text = o.Head + gap + o.Tail
	}
	if len(text) <= 2*checkOutput {
		return text
	}
	return strings.ToValidUTF8(text[:checkOutput], "") + gap + strings.ToValidUTF8(text[len(text)-checkOutput:], "")
}

// settledRuns is how many finished runs are searched for missing evidence.
const settledRuns = 5

// settle completes the evidence of runs that are over: of attempts that ended only
// afterwards, and of a run whose owner was lost, which ended without anyone to
// write it. touched are the ones of which an attempt has ended since.
func (c *coordinator) settle(ctx context.Context, touched map[string]bool) error {
	var errs []error
	for id := range touched {
		v, err := c.store.Verification(ctx, id)
		if errors.Is(err, lanegate.ErrVerificationNotFound) {
			continue
		}
		if err == nil {
			err = c.settleRun(ctx, v)
		}
		if err != nil {
			c.trials.ended(id) // again, at the next look
			errs = append(errs, err)
		}
	}
	if time.Since(c.settled) < settleEvery {
		return errors.Join(errs...)
	}
	runs, err := c.store.Verifications(ctx, VerificationFilter{
		States: []lanegate.VerificationState{lanegate.VerificationDone, lanegate.VerificationAborted}, Limit: settledRuns,
	})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, v := range runs {
		errs = append(errs, c.settleRun(ctx, v))
	}
	c.settled = time.Now()
	return errors.Join(errs...)
}

// settleRun completes the evidence of one run. The verdict stands.
func (s *Service) settleRun(ctx context.Context, v lanegate.Verification) error {
	if !v.State.Final() || !unsettled(v) {
		return nil
	}
	runs, err := s.store.TrialRuns(ctx, v.ID)
	if err != nil || !unwritten(v) && !s.news(v, runs) {
		return err
	}
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return err
	}
	ended := false
	err = s.store.Change(ctx, func(tx ConfigTx) error {
		now, err := tx.Verification(v.ID)
		if err != nil || !now.State.Final() || !unsettled(now) {
			ended = false
			return err
		}
		until := tx.Now()
		if now.EndedAt != nil {
			until = *now.EndedAt
		}
		ended = unwritten(now)
		found := verification.Judge(caseOf(now, runs, others(now, cfg.Classes), until)).Evidence
		if ended {
			now.Evidence = found
		}
		now.Evidence.Rounds = found.Rounds
		v = now
		if err := tx.SaveVerification(now); err != nil || !ended {
			return err
		}
		return recordVerification(tx, now, eventVerificationFinished, ActorLanegate, now.Reasons[0].Message,
			map[string]any{"verdict": now.Verdict, "reasons": now.Reasons})
	})
	if err == nil && ended {
		s.verificationEnded(ctx, v)
	}
	return err
}

// unwritten says whether a run ended with its owner, and nobody has written its
// evidence, its history and its count yet. What is not checked is written with the
// end, and never empty then.
func unwritten(v lanegate.Verification) bool {
	return v.Verdict == lanegate.VerdictInconclusive && len(v.Evidence.NotChecked) == 0 && len(v.Reasons) > 0
}

// unsettled says whether the evidence of a finished run may be incomplete.
func unsettled(v lanegate.Verification) bool {
	return unwritten(v) || slices.ContainsFunc(v.Evidence.Rounds, func(r lanegate.RoundEvidence) bool {
		return slices.ContainsFunc(r.Runs, func(r lanegate.RunEvidence) bool { return r.EndedAt == nil })
	})
}

// news says whether a run that the evidence has in flight has ended.
func (s *Service) news(v lanegate.Verification, runs []TrialRun) bool {
	for _, round := range v.Evidence.Rounds {
		for _, seen := range round.Runs {
			if seen.EndedAt == nil && slices.ContainsFunc(runs, func(r TrialRun) bool {
				return r.Job == seen.Job && r.Number == seen.Attempt && r.EndedAt != nil
			}) {
				return true
			}
		}
	}
	return false
}

// completeLost writes what a run needs whose owner is declared dead or has left.
func (s *Service) completeLost(ctx context.Context, worker string) {
	runs, err := s.store.Verifications(ctx, VerificationFilter{
		States: []lanegate.VerificationState{lanegate.VerificationDone}, Limit: settledRuns,
	})
	if err == nil {
		for _, v := range runs {
			if v.Owner == worker {
				err = errors.Join(err, s.settleRun(ctx, v))
			}
		}
	}
	if err != nil {
		s.log.WarnContext(ctx, "the evidence of a verification run whose owner is gone is completed later", "err", fmt.Errorf("worker %s: %w", worker, err))
	}
}

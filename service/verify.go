package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

// VerifyOptions say who asks for a verification run and what is confirmed.
type VerifyOptions struct {
	Actor string
	// DryRun: judge and plan, insert nothing. The run returned has no ID.
	DryRun bool
	// ConfirmSerial: a class that says why it must stay serial is tried all the same.
	ConfirmSerial bool
}

// Events of a member's history that a verification run writes.
const (
	eventVerificationPlanned  = "verification_planned"
	eventVerificationStarted  = "verification_started"
	eventVerificationFinished = "verification_finished"
	eventVerificationAborted  = "verification_aborted"
)

// errFactsMoved: what was read before a change is not what the change finds.
var errFactsMoved = errors.New("the classes changed meanwhile")

// factsTries is how often a request is judged anew when the classes change under it.
const factsTries = 3

// CreateVerification plans a verification run and puts it in line; left out
// settings get their defaults. What can't be carried out is refused with
// ErrVerificationRefused, whose Details["conditions"] is a []Condition with every
// reason at once.
func (s *Service) CreateVerification(ctx context.Context, spec lanegate.VerificationSpec, o VerifyOptions) (lanegate.Verification, error) {
	spec = verificationDefaults(spec)
	for try := 1; ; try++ {
		facts, err := s.verificationFacts(ctx, spec)
		if err != nil {
			return lanegate.Verification{}, err
		}
		v, err := s.insertVerification(ctx, spec, o, facts)
		if errors.Is(err, errFactsMoved) && try < factsTries {
			continue
		}
		if err != nil || o.DryRun {
			return v, err
		}
		s.log.InfoContext(ctx, "verification run planned", "verification", v.ID, "actor", o.Actor, "rounds", len(v.Plan))
		s.trials.opened()
		s.ring(lanegate.LaneSerial)
		return v, nil
	}
}

// insertVerification judges a request under the admission row and inserts its run.
func (s *Service) insertVerification(ctx context.Context, spec lanegate.VerificationSpec, o VerifyOptions, facts verifyFacts) (v lanegate.Verification, err error) {
	err = s.store.Change(ctx, func(tx ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		if !facts.match(cfg, spec) {
			return errFactsMoved
		}
		plan, conditions := s.judgeRequest(cfg, spec, o, facts)
		if len(conditions) > 0 {
			return refused(conditions)
		}
		v = lanegate.Verification{
			State: lanegate.VerificationPlanned, Spec: spec, Plan: plan, Actor: o.Actor, CreatedAt: tx.Now(),
			Fingerprints: map[string]string{}, Evidence: lanegate.Evidence{Baseline: facts.baselines(spec)},
		}
		for _, m := range spec.Members {
			v.Fingerprints[m.Class] = facts.of[m.Class].fingerprint
		}
		if o.DryRun {
			return nil
		}
		v.ID = NewID()
		if err := tx.InsertVerification(v); err != nil {
			return err
		}
		return recordVerification(tx, v, eventVerificationPlanned, o.Actor, spec.Reason, nil)
	})
	return v, err
}

// refused is the refusal that names every reason.
func refused(conditions []Condition) error {
	e := lanegate.ErrVerificationRefused.Detail("conditions", conditions)
	if len(conditions) == 1 {
		return e.With("this verification run can't be carried out; nothing was started: %s", conditions[0].Message)
	}
	return e.With("this verification run can't be carried out, for %d reasons; nothing was started. The first: %s", len(conditions), conditions[0].Message)
}

// recordVerification writes an event about v into each member's history. A class
// that is gone keeps its history, too.
func recordVerification(tx ConfigTx, v lanegate.Verification, event, actor, reason string, more map[string]any) error {
	classes := make([]string, 0, len(v.Spec.Members))
	for _, m := range v.Spec.Members {
		classes = append(classes, m.Class)
	}
	slices.Sort(classes)
	for _, class := range classes {
		evidence := map[string]any{"verification": v.ID, "members": classes, "fingerprint": v.Fingerprints[class]}
		maps.Copy(evidence, more)
		if err := tx.AppendHistory(HistoryEvent{
			Subject: classSubject + class, Event: event, Actor: actor, Reason: reason, Evidence: evidence,
		}); err != nil {
			return err
		}
	}
	return nil
}

// Verification returns one verification run with its evidence so far.
// ErrVerificationNotFound.
func (s *Service) Verification(ctx context.Context, id string) (lanegate.Verification, error) {
	return s.store.Verification(ctx, id)
}

// Verifications lists verification runs, newest first. next is the Before of the
// next page, "" at the end.
func (s *Service) Verifications(ctx context.Context, f VerificationFilter) (runs []lanegate.Verification, next string, err error) {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	f.Limit = limit + 1
	if runs, err = s.store.Verifications(ctx, f); err != nil {
		return nil, "", err
	}
	if len(runs) > limit {
		runs = runs[:limit]
		next = runs[limit-1].ID
	}
	return runs, next, nil
}

// AbortVerification ends a planned or running verification run at once, without a
// verdict: its hold on serial ends, runs that it made up are asked to end, jobs
// from the queue run on. ErrVerificationNotFound, ErrVerificationOver.
func (s *Service) AbortVerification(ctx context.Context, id string, o ChangeOptions) (lanegate.Verification, error) {
	runs, err := s.store.TrialRuns(ctx, id)
	if err != nil {
		return lanegate.Verification{}, err
	}
	why := "aborted by " + o.Actor
	if o.Reason != "" {
		why += ": " + o.Reason
	}
	var v lanegate.Verification
	err = s.store.Change(ctx, func(tx ConfigTx) error {
		if v, err = tx.Verification(id); err != nil {
			return err
		}
		if v.State.Final() {
			return lanegate.ErrVerificationOver.With("verification run %s is over already; nothing was changed.", id)
		}
		if v.State == lanegate.VerificationRunning {
			if hasRound(v.Evidence, v.Round+1) {
				v.Evidence = withRound(v.Evidence, v.Round+1, func(e *lanegate.RoundEvidence) { e.EndedAt = tx.Now() })
			}
			v.Evidence = verification.Judge(caseOf(v, runs, nil, tx.Now())).Evidence
		}
		v.State = lanegate.VerificationAborted
		v.Reasons = []lanegate.VerificationReason{{Code: verification.CodeAborted, Message: why}}
		return endVerification(tx, &v, o.Actor, o.Reason)
	})
	if err != nil {
		return lanegate.Verification{}, err
	}
	s.verificationEnded(ctx, v)
	return v, nil
}

// endVerification writes the end of a run whose state, verdict, reasons and
// evidence are set: made-up runs that make no difference any more are asked to
// end, members whose proofs it voids go back to serial, and each member's history
// has it.
func endVerification(tx ConfigTx, v *lanegate.Verification, actor, reason string) error {
	now := tx.Now()
	v.EndedAt = &now
	if err := tx.SaveVerification(*v); err != nil {
		return err
	}
	if v.Verdict != lanegate.VerdictPassed {
		if err := tx.CancelTrial(v.ID); err != nil {
			return err
		}
	}
	if v.Verdict == lanegate.VerdictFailed {
		if err := demoteVoided(tx, *v); err != nil {
			return err
		}
	}
	event, more := eventVerificationFinished, map[string]any{"verdict": v.Verdict}
	if v.State == lanegate.VerificationAborted {
		event, more = eventVerificationAborted, nil
	}
	if reason == "" && len(v.Reasons) > 0 {
		reason = v.Reasons[0].Message
	}
	if len(v.Reasons) > 0 && more != nil {
		more["reasons"] = v.Reasons
	}
	return recordVerification(tx, *v, event, actor, reason, more)
}

// verificationEnded does what follows the end of a run: it is counted, logged,
// and whoever waited for its slot, its members or their units is woken.
func (s *Service) verificationEnded(ctx context.Context, v lanegate.Verification) {
	s.metrics.verified(v)
	log := s.log.With("verification", v.ID, "state", v.State, "verdict", v.Verdict, "sentence", verification.Words(v))
	if v.Verdict == lanegate.VerdictPassed {
		log.InfoContext(ctx, "verification run ended")
	} else {
		log.WarnContext(ctx, "verification run ended")
	}
	s.nudge()
	s.trials.poke()
	s.ringLanes(ctx)
}

// ringLanes wakes every lane; one that isn't told looks by itself, only later.
func (s *Service) ringLanes(ctx context.Context) {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "lanes not woken", "err", fmt.Errorf("read the configuration: %w", err))
		s.ring(lanegate.LaneSerial)
		return
	}
	s.ringAll(cfg.Lanes)
}

// Proofs lists what conclusive verification runs said of a class, at any
// fingerprint, newest first. ErrClassNotFound when there is neither class nor proof.
func (s *Service) Proofs(ctx context.Context, class string) ([]lanegate.Proof, error) {
	proofs, err := s.store.Proofs(ctx, class)
	if err != nil || len(proofs) > 0 {
		return proofs, err
	}
	_, err = s.Class(ctx, class)
	return nil, err
}

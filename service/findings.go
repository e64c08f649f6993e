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

// findingsBatch is how many findings are judged at once.
const findingsBatch = 100

// JudgeFindings looks once through what outcomes left to be judged and demotes
// the classes that did not stand being run beside others. A finding is dropped
// in the same change that does what follows from it, so none is lost or judged
// twice with an effect, on however many replicas this runs. Those of a
// verification run that is not over stay until it is: its owner sees them, too.
func (s *Service) JudgeFindings(ctx context.Context) error {
	for {
		found, err := s.store.Findings(ctx, findingsBatch)
		if err != nil || len(found) == 0 {
			return err
		}
		ordinary := slices.DeleteFunc(slices.Clone(found), func(f Finding) bool { return f.Verification != "" })
		dealt := len(ordinary)
		errs := []error{s.judgeOrdinary(ctx, ordinary)}
		for _, f := range found {
			if f.Verification == "" {
				continue
			}
			over, err := s.judgeOfTrial(ctx, f)
			if over {
				dealt++
			}
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil || dealt == 0 || len(found) < findingsBatch {
			return err
		}
	}
}

// evidenceChange are the options of a change that evidence makes.
func evidenceChange(reason string) ChangeOptions {
	return ChangeOptions{Actor: ActorLanegate, Reason: reason, unattended: true}
}

func (s *Service) judgeOrdinary(ctx context.Context, found []Finding) error {
	if len(found) == 0 {
		return nil
	}
	return s.change(ctx, evidenceChange("evidence of concurrency"), func(tx ConfigTx, _ Config) error {
		for _, f := range found {
			if cause := f.cause(); cause != "" {
				if err := demoteFor(tx, f, cause); err != nil {
					return err
				}
			}
			if err := tx.DropFinding(f.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// cause is what a finding is evidence of, "" when of nothing. A run that was
// deferred, cancelled or interrupted did not fail.
func (f Finding) cause() string {
	switch f.Outcome {
	case lanegate.Failed, lanegate.TimedOut, lanegate.Lost:
		if len(f.Trouble) > 0 {
			return CausePhrase
		}
	}
	if f.above() != "" {
		return CauseMeasured
	}
	return ""
}

// above is the first resource, by name, that was used beyond the declared units.
func (f Finding) above() string {
	for _, name := range slices.Sorted(maps.Keys(f.Measured)) {
		if f.Measured[name] > f.Units[name] {
			return name
		}
	}
	return ""
}

func (f Finding) evidence() map[string]any {
	e := map[string]any{"job": f.Job, "attempt": f.Attempt, "lane": f.Lane, "outcome": f.Outcome, "fingerprint": f.Fingerprint}
	if f.Verification != "" {
		e["verification"] = f.Verification
	}
	if len(f.Trouble) > 0 {
		e["phrase"], e["line"] = f.Trouble[0].Phrase, f.Trouble[0].Line
	}
	if name := f.above(); name != "" {
		e["resource"], e["measured"], e["declared"] = name, f.Measured[name], f.Units[name]
	}
	return e
}

// demoteFor demotes the class of a finding if it still is what it was and outside
// serial. Evidence older than the class's last demotion has had its effect.
func demoteFor(tx ConfigTx, f Finding, cause string) error {
	cfg, err := tx.Config()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(cfg.Classes, func(c lanegate.Class) bool { return c.ID == f.Class })
	if i < 0 || cfg.Classes[i].Lane == lanegate.LaneSerial || cfg.Classes[i].Fingerprint != f.Fingerprint {
		return nil // gone, or not what the evidence is about
	}
	c := cfg.Classes[i]
	last, err := tx.LastEvent(classSubject+c.ID, eventDemoted)
	if err != nil || last.At.After(f.At) {
		return err
	}
	return demoteByEvidence(tx, c, cause, f.evidence())
}

// judgeOfTrial judges what a run of a verification run left. over is false while
// the verification run is not over.
//
// Its class is demoted as by any run, provided that others of the trial ran
// beside it when it is about a phrase. A run that went on after its verification
// had passed fails it now: what it proved is void, and its members go back to serial.
func (s *Service) judgeOfTrial(ctx context.Context, f Finding) (over bool, err error) {
	v, err := s.store.Verification(ctx, f.Verification)
	if errors.Is(err, lanegate.ErrVerificationNotFound) {
		v.State, err = lanegate.VerificationDone, nil
	}
	if err != nil || !v.State.Final() {
		return false, err
	}
	runs, err := s.store.TrialRuns(ctx, f.Verification)
	if err != nil {
		return false, err
	}
	cause := f.cause()
	if cause == CausePhrase && !ranBeside(f, runs) {
		cause = ""
		if f.above() != "" {
			cause = CauseMeasured
		}
	}
	err = s.change(ctx, evidenceChange("evidence of verification run "+f.Verification), func(tx ConfigTx, _ Config) error {
		if cause != "" {
			if err := failLate(tx, f, cause); err != nil {
				return err
			}
			if err := demoteFor(tx, f, cause); err != nil {
				return err
			}
		}
		return tx.DropFinding(f.ID)
	})
	return err == nil, err
}

// ranBeside says whether another run of the trial was on at the same time.
func ranBeside(f Finding, runs []TrialRun) bool {
	i := slices.IndexFunc(runs, func(r TrialRun) bool { return r.Job == f.Job && r.Number == f.Attempt })
	if i < 0 {
		return true // pruned since; a trial's runs are there to be beside others
	}
	own := runs[i]
	return slices.ContainsFunc(runs, func(r TrialRun) bool {
		same := r.Job == own.Job && r.Number == own.Number
		return !same && (own.EndedAt == nil || r.StartedAt.Before(*own.EndedAt)) && (r.EndedAt == nil || own.StartedAt.Before(*r.EndedAt))
	})
}

// failLate makes a verification run that had passed a failed one, for a run of it
// that ended only now. The store then gives its members failed proofs of now.
func failLate(tx ConfigTx, f Finding, cause string) error {
	v, err := tx.Verification(f.Verification)
	if errors.Is(err, lanegate.ErrVerificationNotFound) {
		return nil
	}
	if err != nil || v.Verdict != lanegate.VerdictPassed {
		return err
	}
	v.Verdict = lanegate.VerdictFailed
	reason := lanegate.VerificationReason{Code: verification.CodeLateFailure, Class: f.Class}
	if cause == CausePhrase {
		reason.Message = fmt.Sprintf("a run of %s that went on after the verdict %s beside others with a phrase of trouble: %q (job %s)", f.Class, failedAs(f.Outcome), f.Trouble[0].Line, f.Job)
	} else {
		name := f.above()
		reason.Message = fmt.Sprintf("a run of %s that went on after the verdict used %d of %s, %d declared (job %s)", f.Class, f.Measured[name], name, f.Units[name], f.Job)
	}
	v.Reasons = slices.Insert(slices.Clone(v.Reasons), 0, reason)
	if err := tx.SaveVerification(v); err != nil {
		return err
	}
	if err := demoteFor(tx, f, cause); err != nil {
		return err
	}
	return demoteVoided(tx, v)
}

func failedAs(o lanegate.Outcome) string {
	switch o {
	case lanegate.TimedOut:
		return "timed out"
	case lanegate.Lost:
		return "was lost"
	}
	return "failed"
}

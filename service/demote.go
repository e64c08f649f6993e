package service

import (
	"context"
	"maps"

	"github.com/lanegate/lanegate"
)

// Causes of a demotion. All but CauseManual come by themselves, and they are all
// there are: each is evidence of concurrency, or that nothing proves the class as
// it is now. Failures in a row and proofs that grow old only warn, as a
// vendor's bad night must not move a class.
const (
	CauseManual      = "manual"
	CauseFingerprint = "fingerprint_changed"
	// CausePhrase: a run that could run beside others failed, and what it printed
	// matches a phrase of trouble.
	CausePhrase = "phrase"
	// CauseMeasured: a run was seen using more units than the class declares.
	CauseMeasured = "measured_units"
	// CauseVoided: a verification run of the class as it is now failed, which voids
	// the proofs that it stood on.
	CauseVoided = "proof_voided"
)

// causes lists them all, for counters that exist before their first event.
var causes = []string{CauseManual, CauseFingerprint, CausePhrase, CauseMeasured, CauseVoided}

// Demote moves a class back to serial, with max_in_flight 1. It always works,
// for classes of the config file, too, and whatever it does to widths. Attempts
// that are under way end where they are and count there; the class starts
// nothing until they have. A class that is in serial already is left as it is.
// The only error about the class is lanegate.ErrClassNotFound.
func (s *Service) Demote(ctx context.Context, class string, o ChangeOptions) (Promotion, error) {
	var p Promotion
	report := o.Report
	o.Report, o.AcceptWidth = &p.Consequences, true
	err := s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		p = Promotion{}
		c, err := cfg.findClass(class)
		if err != nil {
			return err
		}
		if p.Changed = c.Lane != lanegate.LaneSerial; p.Changed {
			if err := saveDemoted(tx, cfg, &c, CauseManual, o, nil); err != nil {
				return err
			}
		}
		p.Classes = []lanegate.Class{c}
		return nil
	})
	if err != nil {
		return Promotion{}, err
	}
	if report != nil {
		*report = p.Consequences
	}
	return p, nil
}

// demoteByEvidence moves class, as read in tx, back to serial because of what a
// run of it did; one in serial is left alone. It is for a change that no person
// makes. Whether the evidence is about the class's present fingerprint is for
// the caller to judge.
func demoteByEvidence(tx ConfigTx, class lanegate.Class, cause string, evidence map[string]any) error {
	if class.Lane == lanegate.LaneSerial {
		return nil
	}
	cfg, err := tx.Config()
	if err != nil {
		return err
	}
	reason := "a run beside others failed with a phrase of trouble"
	switch cause {
	case CauseMeasured:
		reason = "a run used more units than declared"
	case CauseVoided:
		reason = "a verification run of it failed, so that nothing proves it any more"
	}
	return saveDemoted(tx, cfg, &class, cause, ChangeOptions{Actor: ActorLanegate, Reason: reason}, evidence)
}

// demoteVoided moves the members of a failed verification run back to serial that
// still are what it was about. Without a proof of its present fingerprint a class
// runs in serial; an experiment that failed is evidence of concurrency by itself.
func demoteVoided(tx ConfigTx, v lanegate.Verification) error {
	cfg, err := tx.Config()
	if err != nil {
		return err
	}
	for _, c := range cfg.Classes {
		if fingerprint, member := v.Fingerprints[c.ID]; !member || c.Fingerprint != fingerprint {
			continue
		}
		if err := demoteByEvidence(tx, c, CauseVoided, map[string]any{"verification": v.ID, "reasons": v.Reasons}); err != nil {
			return err
		}
	}
	return nil
}

// saveDemoted moves c to serial, records it with what it does to widths, and saves it.
func saveDemoted(tx ConfigTx, before Config, c *lanegate.Class, cause string, o ChangeOptions, evidence map[string]any) error {
	all := map[string]any{"fingerprint": c.Fingerprint}
	maps.Copy(all, evidence)
	moved := *c
	moved.Lane, moved.MaxInFlight = lanegate.LaneSerial, 1
	all["widths"] = widthChanges(before, before.with([]lanegate.Class{moved}))
	if err := moveToSerial(tx, c, cause, o.Actor, o.Reason, all); err != nil {
		return err
	}
	c.UpdatedAt = tx.Now()
	return tx.SaveClass(*c)
}

// moveToSerial changes c, which the caller saves, and writes the event of it.
func moveToSerial(tx ConfigTx, c *lanegate.Class, cause, actor, reason string, evidence map[string]any) error {
	all := map[string]any{"cause": cause, "from": c.Lane, "max_in_flight_before": c.MaxInFlight}
	maps.Copy(all, evidence)
	c.Lane, c.MaxInFlight = lanegate.LaneSerial, 1
	return tx.AppendHistory(HistoryEvent{
		Subject: classSubject + c.ID, Event: eventDemoted, Actor: actor, Reason: reason, Evidence: all,
	})
}

package service

import (
	"context"
	"errors"
	"slices"

	"github.com/lanegate/lanegate"
)

// PromoteOptions say what a promotion rests on and where it leads.
type PromoteOptions struct {
	ChangeOptions
	// Verification is the run that proves it; "": each class's latest that passed.
	Verification string
	// Lane is where the classes go; "": parallel.
	Lane string
	// MaxInFlight is how many jobs of each class may be in flight at once; 0: as many
	// as were proven, which is the most.
	MaxInFlight int
}

// Promotion is what a promotion or demotion did, or in a dry run would do.
type Promotion struct {
	Classes []lanegate.Class // as they are now, in the order asked for
	// Changed is false when all of them were there already.
	Changed      bool
	Consequences Consequences
}

// Promote moves classes out of serial into a lane, all of them or none, on the
// ground of passed verification runs of what they are now. A class that stands in
// the lane with that max_in_flight already is left as it is, whatever became of
// its proof, so that a repeated request has a repeated answer.
//
// Errors: lanegate.ErrClassNotFound for a single class, otherwise
// lanegate.ErrPromotionRefused with Details["conditions"], a []Condition that has
// every unmet one of every class. A class that the config file declares is
// promoted like any other: a file never sets a lane.
func (s *Service) Promote(ctx context.Context, classes []string, o PromoteOptions) (Promotion, error) {
	classes = distinct(classes)
	if o.Lane == "" {
		o.Lane = lanegate.LaneParallel
	}
	if err := o.validate(classes); err != nil {
		return Promotion{}, err
	}
	var p Promotion
	inner := o.ChangeOptions
	inner.AcceptWidth = true // what is not accepted is among the conditions
	inner.Report = &p.Consequences
	var needs []string
	err := s.change(ctx, inner, func(tx ConfigTx, cfg Config) (err error) {
		p = Promotion{}
		needs, err = promote(tx, cfg, classes, o, &p)
		return err
	})
	p.Consequences.Needs = needs
	if err == nil && p.Changed {
		p.Consequences.Warnings = append(p.Consequences.Warnings, s.orderWarnings(ctx, classes)...)
	}
	if o.Report != nil {
		*o.Report = p.Consequences
	}
	if err != nil {
		return Promotion{}, err
	}
	return p, nil
}

func (o PromoteOptions) validate(classes []string) error {
	var errs []lanegate.FieldError
	if len(classes) == 0 {
		errs = append(errs, lanegate.FieldError{Pointer: "/classes", Detail: "must name at least one class"})
	}
	if o.MaxInFlight < 0 {
		errs = append(errs, lanegate.FieldError{Pointer: "/max_in_flight", Detail: "must be a whole number of at least 1, or be left out"})
	}
	return lanegate.Invalid(errs)
}

func distinct(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// promote is the gate: it judges everything, and changes something only when
// every condition of every class is met. A dry run that lacks nothing but an
// acceptance gets it among needs.
func promote(tx ConfigTx, cfg Config, classes []string, o PromoteOptions, p *Promotion) (needs []string, err error) {
	g, unmet, err := openGate(tx, cfg, o)
	if err != nil {
		return nil, err
	}
	proofs := remembered(tx.Proofs)
	passed := map[string]passage{}
	var moved []lanegate.Class
	for _, id := range classes {
		c, err := cfg.findClass(id)
		if err != nil {
			if len(classes) == 1 {
				return nil, err
			}
			unmet = append(unmet, Condition{Code: CodeClassNotFound, Class: id, Message: lanegate.ErrClassNotFound.With("there is no job class %q; GET /job-classes lists them.", id).Message})
			continue
		}
		own, err := proofs(id)
		if err != nil {
			return nil, err
		}
		pass := g.judge(c, own)
		if c.Lane == g.lane && c.Lane != lanegate.LaneSerial && c.MaxInFlight == g.limit(pass.copies) {
			p.Classes = append(p.Classes, c)
			continue
		}
		unmet = append(unmet, pass.unmet...)
		passed[id] = pass
		c.Lane, c.MaxInFlight, c.UpdatedAt = g.lane, g.limit(pass.copies), tx.Now()
		moved = append(moved, c)
		p.Classes = append(p.Classes, c)
	}
	after := cfg.with(moved)
	if _, err := cfg.findLane(o.Lane); err == nil && o.Lane != lanegate.LaneSerial {
		if widths := unmetWidths(cfg, after, o.ChangeOptions); len(widths) > 0 {
			if o.DryRun && len(unmet) == 0 {
				needs = append(needs, NeedsWidth)
			} else {
				unmet = append(unmet, widths...)
			}
		}
	}
	if len(unmet) > 0 {
		return nil, gateRefusal(unmet)
	}
	p.Changed = len(moved) > 0
	return needs, recordPromotion(tx, cfg, after, moved, passed, o)
}

// openGate reads what all classes are judged by, and judges what concerns all.
func openGate(tx ConfigTx, cfg Config, o PromoteOptions) (gate, []Condition, error) {
	g := gate{now: tx.Now(), verification: o.Verification, lane: o.Lane, asked: o.MaxInFlight, resources: cfg.Resources}
	var p passage
	if o.Lane == lanegate.LaneSerial {
		p.add(CodeLaneSerial, "", nil, "to move a class to serial is to demote it, which needs no proof: use PATCH /job-classes/{id}/demote.")
	} else if _, err := cfg.findLane(o.Lane); err != nil {
		p.add(CodeLaneNotFound, "", numbers{"lane": o.Lane}, "there is no lane %q; GET /lanes lists them.", o.Lane)
	}
	if o.Verification != "" {
		run, err := tx.Verification(o.Verification)
		switch {
		case errors.Is(err, lanegate.ErrVerificationNotFound):
			p.add(CodeVerificationNotFound, "", numbers{"verification": o.Verification}, "there is no verification run %q; GET /verification-runs lists them.", o.Verification)
		case err != nil:
			return g, nil, err
		default:
			g.run = &run
		}
	}
	return g, p.unmet, nil
}

// with is the configuration with some classes replaced.
func (c Config) with(classes []lanegate.Class) Config {
	c.Classes = slices.Clone(c.Classes)
	for i := range c.Classes {
		for _, k := range classes {
			if k.ID == c.Classes[i].ID {
				c.Classes[i] = k
			}
		}
	}
	return c
}

// unmetWidths words what judgeWidths would refuse as conditions.
func unmetWidths(before, after Config, o ChangeOptions) []Condition {
	_, unasked, _ := weighWidths(before, after, o) // a promotion sets no width, so none can be over by it
	var p passage
	for _, lane := range unasked {
		if width, over := lane["width"]; over {
			p.add(CodeWidthOvercommitted, "", lane, "lane %s would have width %d where the resources allow %d. Repeat with ?accept=width if that is meant.",
				lane["lane"], width, lane["arithmetic"])
			continue
		}
		p.add(CodeWidthLowered, "", lane, "the width in force of lane %s would go down from %d to %d. Repeat with ?accept=width if that is meant.",
			lane["lane"], lane["before"], lane["after"])
	}
	return p.unmet
}

func gateRefusal(unmet []Condition) error {
	e := lanegate.ErrPromotionRefused.Detail("conditions", unmet)
	if len(unmet) == 1 {
		return e.With("not promoted: %s", unmet[0].Message)
	}
	return e.With("not promoted: %d conditions are not met; \"conditions\" lists them. The first: %s", len(unmet), unmet[0].Message)
}

// recordPromotion saves the classes with, for each, the event that says what it rests on.
func recordPromotion(tx ConfigTx, before, after Config, moved []lanegate.Class, passed map[string]passage, o PromoteOptions) error {
	widths := widthChanges(before, after)
	ids := make([]string, 0, len(moved))
	for _, c := range moved {
		ids = append(ids, c.ID)
	}
	if len(ids) == 0 {
		return nil
	}
	unproven, err := unprovenBeside(after, ids, remembered(tx.Proofs))
	if err != nil {
		return err
	}
	for _, c := range moved {
		if err := tx.SaveClass(c); err != nil {
			return err
		}
		old, err := before.findClass(c.ID)
		if err != nil {
			return err
		}
		pass := passed[c.ID]
		if err := tx.AppendHistory(HistoryEvent{
			Subject: classSubject + c.ID, Event: eventPromoted, Actor: o.Actor, Reason: o.Reason,
			Evidence: map[string]any{
				"verification": pass.proof.Verification, "fingerprint": c.Fingerprint, "from": old.Lane, "lane": c.Lane,
				"max_in_flight_before": old.MaxInFlight, "max_in_flight": c.MaxInFlight,
				"copies": pass.copies, "beside": pass.beside, "widths": widths, "unproven_beside": unproven[c.ID],
			},
		}); err != nil {
			return err
		}
	}
	return nil
}

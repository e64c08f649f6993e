package service

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// ChangeOptions say who changes something and which consequences are accepted.
type ChangeOptions struct {
	Actor  string
	Reason string
	// AcceptWidth: a lane's width in force may go down by this change.
	AcceptWidth bool
	// Demote: a promoted class whose fingerprint changes may go back to serial.
	Demote bool
	// unattended: no person can be asked; consequences are applied, recorded and alarmed.
	unattended bool
}

// change runs fn under the admission row and judges what it does to the lanes'
// widths: a width that goes down, or an explicit one that is now above the
// arithmetic, needs AcceptWidth. The whole change stands or falls together.
// Whoever waits is woken afterwards, as any limit may have moved.
func (s *Service) change(ctx context.Context, o ChangeOptions, fn func(tx ConfigTx, cfg Config) error) error {
	var lanes []lanegate.Lane
	var lowered []admission.Change
	err := s.store.Change(ctx, func(tx ConfigTx) error {
		before, err := tx.Config()
		if err != nil {
			return err
		}
		if err := fn(tx, before); err != nil {
			return err
		}
		after, err := tx.Config()
		if err != nil {
			return err
		}
		lanes = after.Lanes
		lowered, err = judgeWidths(before, after, o)
		if err != nil {
			return err
		}
		for _, c := range lowered {
			if err := tx.AppendHistory(HistoryEvent{
				Subject: "lane:" + c.Lane, Event: "width_lowered", Actor: o.Actor, Reason: o.Reason,
				Evidence: map[string]any{"before": c.Before, "after": c.After},
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range lowered {
		s.log.WarnContext(ctx, "lane width lowered", "lane", c.Lane, "before", c.Before, "after", c.After, "actor", o.Actor)
	}
	s.ringAll(lanes)
	return nil
}

func judgeWidths(before, after Config, o ChangeOptions) ([]admission.Change, error) {
	wb := admission.Widths(before.Lanes, before.Classes, before.Resources)
	wa := admission.Widths(after.Lanes, after.Classes, after.Resources)
	lowered := admission.Lowered(wb, wa)
	// A lane that was deleted, or whose setting itself was edited down, is what was asked for.
	lowered = slices.DeleteFunc(lowered, func(c admission.Change) bool {
		i := slices.IndexFunc(after.Lanes, func(l lanegate.Lane) bool { return l.Name == c.Lane })
		j := slices.IndexFunc(before.Lanes, func(l lanegate.Lane) bool { return l.Name == c.Lane })
		return i < 0 || j < 0 || before.Lanes[j].WidthSetting != after.Lanes[i].WidthSetting
	})
	accepted := o.AcceptWidth || o.unattended
	if len(lowered) > 0 && !accepted {
		e := lanegate.ErrWidthLowered.Detail("lanes", lowered)
		return nil, e.With("this change would lower the width in force of lane %s from %d to %d. Repeat with ?accept=width if that is meant.",
			lowered[0].Lane, lowered[0].Before, lowered[0].After)
	}
	for _, l := range after.Lanes {
		w := wa[l.Name]
		if !w.Overcommitted || l.AllowOvercommit || wb[l.Name].Overcommitted || o.unattended {
			continue
		}
		return nil, lanegate.ErrWidthOvercommit.Detail("lane", l.Name).Detail("width", w.InForce).Detail("arithmetic", w.Auto).
			With("width %d of lane %s is above what the resources allow: %s. Choose at most %d, or set allow_overcommit.", w.InForce, l.Name, w.Sentence, w.Auto)
	}
	return lowered, nil
}

// findClass returns the class or lanegate.ErrClassNotFound.
func (c Config) findClass(id string) (lanegate.Class, error) {
	for _, k := range c.Classes {
		if k.ID == id {
			return k, nil
		}
	}
	return lanegate.Class{}, lanegate.ErrClassNotFound.With("there is no job class %q; GET /job-classes lists them.", id)
}

func (c Config) findLane(name string) (lanegate.Lane, error) {
	for _, l := range c.Lanes {
		if l.Name == name {
			return l, nil
		}
	}
	return lanegate.Lane{}, lanegate.ErrLaneNotFound.With("there is no lane %q; GET /lanes lists them.", name)
}

func (c Config) findResource(name string) (lanegate.Resource, error) {
	for _, r := range c.Resources {
		if r.Name == name {
			return r, nil
		}
	}
	return lanegate.Resource{}, lanegate.ErrResourceNotFound.With("there is no resource %q; GET /resources lists them.", name)
}

// faultsOf returns every reason why spec can't be taken.
func (c Config) faultsOf(spec lanegate.ClassSpec) []lanegate.FieldError {
	errs := append(spec.Validate(), c.unknownUnits(spec.Units)...)
	run := spec.Run
	if run.Kind == lanegate.RunAgent || run.Detached() {
		errs = append(errs, lanegate.FieldError{Pointer: "/run", Detail: "this version runs kind exec, and kind http with mode sync; agents, queues and asynchronous targets are not served yet"})
	}
	return errs
}

// unknownUnits names the units whose resource does not exist.
func (c Config) unknownUnits(u lanegate.Units) []lanegate.FieldError {
	var errs []lanegate.FieldError
	for _, name := range slices.Sorted(maps.Keys(u)) {
		if _, err := c.findResource(name); err != nil {
			errs = append(errs, lanegate.FieldError{
				Pointer: "/units/" + name,
				Detail:  fmt.Sprintf("there is no resource %q; create it first with PUT /resources/%s", name, name),
			})
		}
	}
	return errs
}

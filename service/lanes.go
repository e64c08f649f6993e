package service

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/runlog"
)

// LaneView is a lane with what goes on in it.
type LaneView struct {
	lanegate.Lane
	Width admission.Width
	// InFlight counts the hold of a verification run on serial, too.
	InFlight int
	Running  []admission.Running
	// Hold is the verification run that holds serial's slot, "" when none does.
	Hold string
	// Queued due jobs whose class is routed here now, and those not due yet.
	Queued     int
	NotDue     int
	OldestWait time.Duration // of a due job; 0 when none waits
	// Empty is when all that is due in the lane or runs in it is expected to have
	// ended, or why nobody can say. When nothing is in it, that is now, and Why says so.
	Empty runlog.Foretold
}

// Lanes lists all lanes by name.
func (s *Service) Lanes(ctx context.Context) ([]LaneView, error) {
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	lines, err := s.lines.get(ctx)
	if err != nil {
		return nil, err
	}
	views := laneViews(in, lines)
	f := s.oracle.look()
	for i := range views {
		v := &views[i]
		if v.InFlight == 0 && v.Queued == 0 && !anyDue(in, v.Name) {
			v.Empty = emptyAlready(in.Now, v.NotDue)
			continue
		}
		var known bool
		if v.Empty, known = f.empty(v.Name, in.Now); !known {
			v.Empty = notForetold
		}
	}
	return views, nil
}

// anyDue says whether a due job is routed to the lane: unlike the counts of queued
// jobs, which may be some seconds old, in is as of now.
func anyDue(in admission.Input, lane string) bool {
	return slices.ContainsFunc(in.Classes, func(c lanegate.Class) bool {
		route, _ := admission.RouteOf(c, in.Lanes)
		return route.Lane == lane && slices.ContainsFunc(in.Due, func(d admission.Due) bool { return d.Class == c.ID })
	})
}

// emptyAlready is what a lane's Empty is while nothing is due or runs in it.
func emptyAlready(now time.Time, notDue int) runlog.Foretold {
	why := "empty already: nothing is due or runs in it"
	if notDue > 0 {
		why += "; " + plural(notDue, "queued job") + " not due yet"
	}
	return runlog.Foretold{P50: now, P90: now, Why: why}
}

// Lane returns one lane.
func (s *Service) Lane(ctx context.Context, name string) (LaneView, error) {
	lanes, err := s.Lanes(ctx)
	if err != nil {
		return LaneView{}, err
	}
	for _, l := range lanes {
		if l.Name == name {
			return l, nil
		}
	}
	return LaneView{}, lanegate.ErrLaneNotFound.With("there is no lane %q; GET /lanes lists them.", name)
}

func laneViews(in admission.Input, lines []ClassLine) []LaneView {
	widths := admission.Widths(in.Lanes, in.Classes, in.Resources)
	routes := make(map[string]string, len(in.Classes))
	for _, c := range in.Classes {
		route, _ := admission.RouteOf(c, in.Lanes)
		routes[c.ID] = route.Lane
	}
	views := make([]LaneView, 0, len(in.Lanes))
	for _, l := range in.Lanes {
		v := LaneView{Lane: l, Width: widths[l.Name]}
		for _, r := range in.InFlight {
			if r.Lane == l.Name && r.Verification == "" {
				v.InFlight++
				v.Running = append(v.Running, r)
			}
		}
		if l.Name == lanegate.LaneSerial && in.Hold != "" {
			v.InFlight++
			v.Hold = in.Hold
		}
		for _, line := range lines {
			if routes[line.Class] != l.Name {
				continue
			}
			v.Queued += line.Due
			v.NotDue += line.NotDue
			if !line.OldestAt.IsZero() {
				v.OldestWait = max(v.OldestWait, in.Now.Sub(line.OldestAt))
			}
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b LaneView) int { return compare(a.Name, b.Name) })
	return views
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// PutLane creates a lane or changes its settings. serial can't be changed.
func (s *Service) PutLane(ctx context.Context, l lanegate.Lane, o ChangeOptions) (created bool, err error) {
	if err := lanegate.Invalid(l.Validate()); err != nil {
		return false, err
	}
	if l.Name == lanegate.LaneSerial {
		return false, lanegate.ErrBuiltinLane.With("lane serial is first in, first out with width 1 for ever; it can't be changed. POST /lanes/serial/pause stops it.")
	}
	err = s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		old, err := cfg.findLane(l.Name)
		created = errors.Is(err, lanegate.ErrLaneNotFound)
		if !created && old.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("lane", l.Name)
		}
		l.ManagedBy = lanegate.ManagedByAPI
		l.Paused = old.Paused
		return saveLane(tx, old, l, created, o)
	})
	return created, err
}

func saveLane(tx ConfigTx, old, l lanegate.Lane, created bool, o ChangeOptions) error {
	event := eventCreated
	l.CreatedAt, l.UpdatedAt = tx.Now(), tx.Now()
	if !created {
		event = "edited"
		l.CreatedAt, l.Available = old.CreatedAt, old.Available
		same := l
		same.UpdatedAt = old.UpdatedAt
		if reflect.DeepEqual(same, old) {
			return nil
		}
	}
	if err := tx.SaveLane(l); err != nil {
		return err
	}
	return tx.AppendHistory(HistoryEvent{
		Subject: laneSubject + l.Name, Event: event, Actor: o.Actor, Reason: o.Reason,
		Evidence: map[string]any{"width": l.WidthSetting, "order": l.Order, "allow_overcommit": l.AllowOvercommit, "when_unavailable": l.WhenUnavailable},
	})
}

// DeleteLane removes a lane that no class is in and nothing runs in.
func (s *Service) DeleteLane(ctx context.Context, name string, o ChangeOptions) error {
	return s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		l, err := cfg.findLane(name)
		if err != nil {
			return err
		}
		if l.Builtin() {
			return lanegate.ErrBuiltinLane
		}
		if l.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("lane", name)
		}
		for _, c := range cfg.Classes {
			if c.Lane == name {
				return lanegate.ErrInUse.With("class %q is in lane %q; demote it first.", c.ID, name)
			}
		}
		running, err := tx.InFlight()
		if err != nil {
			return err
		}
		for _, r := range running {
			if r.Lane == name {
				return lanegate.ErrInUse.With("job %s still runs in lane %q; wait until it has ended.", r.Job, name)
			}
		}
		if err := tx.DeleteLane(name); err != nil {
			return err
		}
		return tx.AppendHistory(HistoryEvent{Subject: laneSubject + name, Event: "deleted", Actor: o.Actor, Reason: o.Reason})
	})
}

// PauseLane stops a lane from starting jobs (serial too); ResumeLane takes that back.
func (s *Service) PauseLane(ctx context.Context, name string, o ChangeOptions) error {
	return s.setLanePaused(ctx, name, true, o)
}

// ResumeLane lets a paused lane start jobs again.
func (s *Service) ResumeLane(ctx context.Context, name string, o ChangeOptions) error {
	return s.setLanePaused(ctx, name, false, o)
}

func (s *Service) setLanePaused(ctx context.Context, name string, paused bool, o ChangeOptions) error {
	return s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		l, err := cfg.findLane(name)
		if err != nil || l.Paused == paused {
			return err
		}
		l.Paused = paused
		l.UpdatedAt = tx.Now()
		if err := tx.SaveLane(l); err != nil {
			return err
		}
		return tx.AppendHistory(HistoryEvent{Subject: laneSubject + name, Event: pausedEvent(paused), Actor: o.Actor, Reason: o.Reason})
	})
}

func syncLanes(tx ConfigTx, lanes []lanegate.Lane, o ChangeOptions) error {
	cfg, err := tx.Config()
	if err != nil {
		return err
	}
	var faults []lanegate.FieldError
	declared := map[string]bool{}
	for _, l := range lanes {
		declared[l.Name] = true
		for _, e := range l.Validate() {
			faults = append(faults, lanegate.FieldError{Pointer: "/lanes/" + l.Name + e.Pointer, Detail: e.Detail})
		}
		if l.Name == lanegate.LaneSerial {
			faults = append(faults, lanegate.FieldError{Pointer: "/lanes/serial", Detail: "is built in and can't be changed"})
		}
		if len(faults) > 0 {
			continue
		}
		old, err := cfg.findLane(l.Name)
		l.ManagedBy, l.Paused = lanegate.ManagedByFile, old.Paused
		if err := saveLane(tx, old, l, err != nil, o); err != nil {
			return err
		}
	}
	if err := lanegate.Invalid(faults); err != nil {
		return err
	}
	for _, l := range cfg.Lanes {
		if l.ManagedBy == lanegate.ManagedByFile && !declared[l.Name] {
			l.ManagedBy = lanegate.ManagedByAPI
			l.UpdatedAt = tx.Now()
			if err := tx.SaveLane(l); err != nil {
				return err
			}
			if err := tx.AppendHistory(leftFile(laneSubject+l.Name, o)); err != nil {
				return err
			}
		}
	}
	return nil
}

package service

import (
	"context"
	"errors"
	"reflect"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// ResourceView is a resource with who holds it.
type ResourceView struct {
	lanegate.Resource
	InUse   int
	Holders []Holder
}

// Holder is an attempt in flight that uses a resource.
type Holder struct {
	Job   string
	Class string
	Lane  string
	Units int
}

// Resources lists all resources by name.
func (s *Service) Resources(ctx context.Context) ([]ResourceView, error) {
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return resourceViews(in), nil
}

func resourceViews(in admission.Input) []ResourceView {
	views := make([]ResourceView, 0, len(in.Resources))
	for _, r := range in.Resources {
		v := ResourceView{Resource: r}
		for _, a := range in.InFlight {
			if n := a.Units[r.Name]; n > 0 {
				v.InUse += n
				v.Holders = append(v.Holders, Holder{Job: a.Job, Class: a.Class, Lane: a.Lane, Units: n})
			}
		}
		views = append(views, v)
	}
	return views
}

// Resource returns one resource.
func (s *Service) Resource(ctx context.Context, name string) (ResourceView, error) {
	all, err := s.Resources(ctx)
	if err != nil {
		return ResourceView{}, err
	}
	for _, r := range all {
		if r.Name == name {
			return r, nil
		}
	}
	return ResourceView{}, lanegate.ErrResourceNotFound.With("there is no resource %q; GET /resources lists them.", name)
}

// PutResource creates a resource or changes its capacity. A capacity below what
// runs now stops nothing; it only starts nothing.
func (s *Service) PutResource(ctx context.Context, r lanegate.Resource, o ChangeOptions) (created bool, err error) {
	if err := lanegate.Invalid(r.Validate()); err != nil {
		return false, err
	}
	err = s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		old, err := cfg.findResource(r.Name)
		created = errors.Is(err, lanegate.ErrResourceNotFound)
		if !created && old.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("resource", r.Name)
		}
		r.ManagedBy = lanegate.ManagedByAPI
		return saveResource(tx, old, r, created, o)
	})
	return created, err
}

func saveResource(tx ConfigTx, old, r lanegate.Resource, created bool, o ChangeOptions) error {
	event := eventCreated
	r.CreatedAt, r.UpdatedAt = tx.Now(), tx.Now()
	if !created {
		event = "edited"
		r.CreatedAt = old.CreatedAt
		same := r
		same.UpdatedAt = old.UpdatedAt
		if reflect.DeepEqual(same, old) {
			return nil
		}
	}
	if err := tx.SaveResource(r); err != nil {
		return err
	}
	return tx.AppendHistory(HistoryEvent{
		Subject: resourceSubject + r.Name, Event: event, Actor: o.Actor, Reason: o.Reason,
		Evidence: map[string]any{"capacity_before": old.Capacity, "capacity": r.Capacity, "pool": r.Pool},
	})
}

// DeleteResource removes a resource that no class declares units of.
func (s *Service) DeleteResource(ctx context.Context, name string, o ChangeOptions) error {
	return s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		r, err := cfg.findResource(name)
		if err != nil {
			return err
		}
		if r.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("resource", name)
		}
		for _, c := range cfg.Classes {
			if _, declared := c.Units[name]; declared { // even 0: it could not be saved again
				return lanegate.ErrInUse.With("class %q declares units of %q; edit the class first.", c.ID, name)
			}
		}
		if err := tx.DeleteResource(name); err != nil {
			return err
		}
		return tx.AppendHistory(HistoryEvent{Subject: resourceSubject + name, Event: "deleted", Actor: o.Actor, Reason: o.Reason})
	})
}

func syncResources(tx ConfigTx, resources []lanegate.Resource, o ChangeOptions) error {
	cfg, err := tx.Config()
	if err != nil {
		return err
	}
	declared := map[string]bool{}
	var faults []lanegate.FieldError
	for _, r := range resources {
		declared[r.Name] = true
		for _, e := range r.Validate() {
			faults = append(faults, lanegate.FieldError{Pointer: "/resources/" + r.Name + e.Pointer, Detail: e.Detail})
		}
		if len(faults) > 0 {
			continue
		}
		old, err := cfg.findResource(r.Name)
		r.ManagedBy = lanegate.ManagedByFile
		if err := saveResource(tx, old, r, err != nil, o); err != nil {
			return err
		}
	}
	if err := lanegate.Invalid(faults); err != nil {
		return err
	}
	for _, r := range cfg.Resources {
		if r.ManagedBy == lanegate.ManagedByFile && !declared[r.Name] {
			r.ManagedBy = lanegate.ManagedByAPI
			r.UpdatedAt = tx.Now()
			if err := tx.SaveResource(r); err != nil {
				return err
			}
			if err := tx.AppendHistory(leftFile(resourceSubject+r.Name, o)); err != nil {
				return err
			}
		}
	}
	return nil
}

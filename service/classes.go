package service

import (
	"context"
	"errors"
	"reflect"

	"github.com/lanegate/lanegate"
)

// Class returns one class.
func (s *Service) Class(ctx context.Context, id string) (lanegate.Class, error) {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return lanegate.Class{}, err
	}
	return cfg.findClass(id)
}

// Classes lists classes by id, those after the given id, at most limit. next is
// the after of the next page, "" at the end.
func (s *Service) Classes(ctx context.Context, after string, limit int) (classes []lanegate.Class, next string, err error) {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return nil, "", err
	}
	if limit <= 0 {
		limit = defaultPage
	}
	for _, c := range cfg.Classes {
		if c.ID <= after {
			continue
		}
		if len(classes) == limit {
			return classes, classes[limit-1].ID, nil
		}
		classes = append(classes, c)
	}
	return classes, "", nil
}

// PutClass creates a class, in serial, or replaces what is declared of it; lane
// and max_in_flight stay as they are. created tells which.
func (s *Service) PutClass(ctx context.Context, id string, spec lanegate.ClassSpec, o ChangeOptions) (c lanegate.Class, created bool, err error) {
	err = s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		old, err := cfg.findClass(id)
		created = errors.Is(err, lanegate.ErrClassNotFound)
		if !created && o.New {
			return lanegate.ErrClassExists.With("job class %q exists already; change it with PUT or PATCH /job-classes/%s.", id, id)
		}
		if !created && old.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("class", id)
		}
		if created {
			old = lanegate.Class{ID: id, Lane: lanegate.LaneSerial, MaxInFlight: 1, ManagedBy: lanegate.ManagedByAPI}
		}
		if o.Check != nil {
			if err := o.Check(old); err != nil {
				return err
			}
		}
		spec := spec // fn may run more than once
		if o.KeepPaused {
			spec.Paused = old.Paused
		}
		if !created {
			c, err = s.saveSpec(tx, cfg, old, spec, o)
			return err
		}
		c, err = s.newClass(tx, cfg, id, spec, lanegate.ManagedByAPI, o)
		return err
	})
	return c, created, err
}

// PatchClass edits a class by a function of its spec; see PutClass.
func (s *Service) PatchClass(ctx context.Context, id string, edit func(lanegate.ClassSpec) (lanegate.ClassSpec, error), o ChangeOptions) (c lanegate.Class, err error) {
	err = s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		old, err := cfg.findClass(id)
		if err != nil {
			return err
		}
		if old.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("class", id)
		}
		spec, err := edit(old.ClassSpec)
		if err != nil {
			return err
		}
		c, err = s.saveSpec(tx, cfg, old, spec, o)
		return err
	})
	return c, err
}

// DeleteClass removes a class that has no queued or running jobs. Finished jobs
// and the run log stay.
func (s *Service) DeleteClass(ctx context.Context, id string, o ChangeOptions) error {
	err := s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		c, err := cfg.findClass(id)
		if err != nil {
			return err
		}
		if c.ManagedBy == lanegate.ManagedByFile {
			return s.managedByFile("class", id)
		}
		if err := tx.DeleteClass(id); err != nil {
			return err
		}
		return tx.AppendHistory(HistoryEvent{Subject: classSubject + id, Event: "deleted", Actor: o.Actor, Reason: o.Reason})
	})
	if err == nil && !o.DryRun {
		s.metrics.forget(id)
	}
	return err
}

// PauseClass makes a class accept jobs but start none; ResumeClass takes that
// back. Both work on classes of the config file too, as they are for the night
// when something goes wrong. Setting what is already set changes nothing, except
// that a person's pause takes over one by the file: see filePause.
func (s *Service) PauseClass(ctx context.Context, id string, o ChangeOptions) (lanegate.Class, error) {
	return s.setPaused(ctx, id, true, o)
}

// ResumeClass lets a paused class start jobs again.
func (s *Service) ResumeClass(ctx context.Context, id string, o ChangeOptions) (lanegate.Class, error) {
	return s.setPaused(ctx, id, false, o)
}

func (s *Service) setPaused(ctx context.Context, id string, paused bool, o ChangeOptions) (c lanegate.Class, err error) {
	o.AcceptWidth = true // a pause may move the reserve; it is never refused for that
	err = s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		if c, err = cfg.findClass(id); err != nil {
			return err
		}
		taken, err := overrideFilePause(tx, id)
		if err != nil || c.Paused == paused && !taken {
			return err
		}
		c.Paused = paused
		c.UpdatedAt = tx.Now()
		if err := tx.SaveClass(c); err != nil {
			return err
		}
		return tx.AppendHistory(HistoryEvent{Subject: classSubject + id, Event: pausedEvent(paused), Actor: o.Actor, Reason: o.Reason})
	})
	return c, err
}

func pausedEvent(paused bool) string {
	if paused {
		return "paused"
	}
	return "resumed"
}

// History lists a class's events, newest first.
func (s *Service) History(ctx context.Context, class string, before int64, limit int) ([]HistoryEvent, error) {
	events, err := s.store.History(ctx, "class:"+class, before, limit)
	if err != nil {
		return nil, err
	}
	if len(events) == 0 && before == 0 { // a deleted class keeps its history; one that never was is an error
		if _, err := s.Class(ctx, class); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// newClass registers a class; new is serial.
func (s *Service) newClass(tx ConfigTx, cfg Config, id string, spec lanegate.ClassSpec, by lanegate.ManagedBy, o ChangeOptions) (lanegate.Class, error) {
	errs := cfg.faultsOf(spec)
	if !lanegate.ValidSlug(id) {
		errs = append(errs, lanegate.FieldError{Pointer: "/id", Detail: "must match [a-z0-9][a-z0-9._-]{0,62}"})
	}
	if err := lanegate.Invalid(errs); err != nil {
		return lanegate.Class{}, err
	}
	spec = complete(spec)
	now := tx.Now()
	c := lanegate.Class{
		ID: id, ClassSpec: spec, Lane: lanegate.LaneSerial, MaxInFlight: 1, ManagedBy: by,
		CommandDigest: s.commandDigest(spec, ""), CreatedAt: now, UpdatedAt: now,
	}
	c.Fingerprint = lanegate.Fingerprint(c.ClassSpec, c.CommandDigest)
	if err := tx.SaveClass(c); err != nil {
		return lanegate.Class{}, err
	}
	return c, tx.AppendHistory(HistoryEvent{
		Subject: classSubject + id, Event: eventCreated, Actor: o.Actor, Reason: o.Reason,
		Evidence: map[string]any{"lane": c.Lane, "fingerprint": c.Fingerprint},
	})
}

// complete is spec as it is stored: with defaults, and without an empty set of
// headers, so that what means the same compares as the same.
func complete(spec lanegate.ClassSpec) lanegate.ClassSpec {
	spec = spec.WithDefaults()
	if len(spec.Run.Headers) == 0 {
		spec.Run.Headers = nil
	}
	return spec
}

// saveSpec replaces a class's declared part. A changed fingerprint of a promoted
// class voids its proof: refused without o.Demote, and never silent.
func (s *Service) saveSpec(tx ConfigTx, cfg Config, old lanegate.Class, spec lanegate.ClassSpec, o ChangeOptions) (lanegate.Class, error) {
	errs := cfg.faultsOf(spec)
	if err := lanegate.Invalid(errs); err != nil {
		return old, err
	}
	c := old
	c.ClassSpec = complete(spec)
	c.CommandDigest = s.commandDigest(c.ClassSpec, old.CommandDigest)
	if c.Run.Command != old.Run.Command || c.Run.Kind != old.Run.Kind {
		c.CommandDigest = s.commandDigest(c.ClassSpec, "")
	}
	c.Fingerprint = lanegate.Fingerprint(c.ClassSpec, c.CommandDigest)
	if reflect.DeepEqual(c, old) {
		return c, nil
	}
	if err := demoteIfChanged(tx, old, &c, o); err != nil {
		return old, err
	}
	c.UpdatedAt = tx.Now()
	if err := tx.SaveClass(c); err != nil {
		return old, err
	}
	return c, tx.AppendHistory(HistoryEvent{
		Subject: classSubject + c.ID, Event: "edited", Actor: o.Actor, Reason: o.Reason,
		Evidence: map[string]any{"fingerprint_before": old.Fingerprint, "fingerprint": c.Fingerprint},
	})
}

// demoteIfChanged moves c back to serial when its fingerprint differs from old's
// and it stands outside serial.
func demoteIfChanged(tx ConfigTx, old lanegate.Class, c *lanegate.Class, o ChangeOptions) error {
	if c.Fingerprint == old.Fingerprint || old.Lane == lanegate.LaneSerial {
		return nil
	}
	if !o.Demote && !o.unattended && !o.DryRun { // a dry run lists it among what is needed
		return lanegate.ErrWouldDemote.Detail("lane", old.Lane).
			Detail("fingerprint_before", old.Fingerprint).Detail("fingerprint_after", c.Fingerprint)
	}
	return moveToSerial(tx, c, CauseFingerprint, o.Actor, "fingerprint changed", map[string]any{
		"fingerprint_before": old.Fingerprint, "fingerprint": c.Fingerprint, "change": o.Reason,
	})
}

// commandDigest is the digest of the spec's command as the catalogue has it now,
// or the one known before while the command is not in the catalogue.
func (s *Service) commandDigest(spec lanegate.ClassSpec, known string) string {
	if spec.Run.Kind != lanegate.RunExec {
		return known
	}
	if d, ok := s.cmds.Digest(spec.Run.Command); ok {
		return d
	}
	return known
}

func (s *Service) managedByFile(what, name string) error {
	return lanegate.ErrManagedByFile.With("%s %q is declared in %s; edit it there and reload (SIGHUP).", what, name, s.configFile()).
		Detail("file", s.configFile())
}

func (s *Service) configFile() string {
	if s.opts.ConfigFile == "" {
		return "the config file"
	}
	return s.opts.ConfigFile
}

// createDefault registers a class on its first submission from the configured
// default target. Someone else may have been faster: that is fine.
func (s *Service) createDefault(ctx context.Context, id string) error {
	target := s.target.Load()
	if target == nil { // taken out of the configuration just now
		return lanegate.ErrUnknownClass
	}
	o := ChangeOptions{Actor: ActorLanegate, Reason: "first submission; created from default_target", unattended: true}
	return s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		if _, err := cfg.findClass(id); err == nil {
			return nil
		}
		_, err := s.newClass(tx, cfg, id, *target, lanegate.ManagedByAPI, o)
		return err
	})
}

package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// FileConfig is what the config file declares.
type FileConfig struct {
	// Hash identifies the declared set; replicas agree by it.
	Hash      string
	Resources []lanegate.Resource
	Lanes     []lanegate.Lane
	Classes   map[string]lanegate.ClassSpec
	// Force applies the set even if it was superseded by another before: a person
	// asked for it (reload), or nobody else shares the database.
	Force bool
}

const (
	settingFileHash       = "config_file_hash"
	settingFileSuperseded = "config_file_superseded:" // + hash
)

// SyncFile brings classes, lanes and resources in line with the config file. A
// set that another one superseded is left alone unless forced, so that an old
// replica's restart does not undo a newer file. What the file no longer names
// stays and belongs to the API from then on. It reports whether it was applied.
func (s *Service) SyncFile(ctx context.Context, f FileConfig) (applied bool, err error) {
	o := ChangeOptions{Actor: ActorFile, Reason: "config file " + s.configFile(), unattended: true}
	err = s.change(ctx, o, func(tx ConfigTx, _ Config) error {
		applied = false
		current, err := tx.Setting(settingFileHash)
		if err != nil {
			return err
		}
		if !f.Force && current != f.Hash {
			old, err := tx.Setting(settingFileSuperseded + f.Hash)
			if err != nil || old != "" {
				return err
			}
		}
		applied = true
		if current != "" && current != f.Hash {
			if err := tx.SetSetting(settingFileSuperseded+current, tx.Now().Format(time.RFC3339)); err != nil {
				return err
			}
		}
		if err := tx.SetSetting(settingFileHash, f.Hash); err != nil {
			return err
		}
		return s.applyFile(tx, f, o)
	})
	if err != nil {
		return false, err
	}
	if !applied {
		s.log.WarnContext(ctx, "config file not applied: another set of classes has replaced it since; a reload (SIGHUP) applies it all the same", "hash", f.Hash)
	}
	return applied, nil
}

func (s *Service) applyFile(tx ConfigTx, f FileConfig, o ChangeOptions) error {
	if err := syncResources(tx, f.Resources, o); err != nil {
		return err
	}
	if err := syncLanes(tx, f.Lanes, o); err != nil {
		return err
	}
	cfg, err := tx.Config()
	if err != nil {
		return err
	}
	var faults []lanegate.FieldError
	ids := make([]string, 0, len(f.Classes))
	for id := range f.Classes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		err := s.applyFileClass(tx, cfg, id, f.Classes[id], o)
		if e, ok := errors.AsType[*lanegate.Error](err); ok && len(e.Fields) > 0 {
			for _, field := range e.Fields { // every fault of the file at once
				faults = append(faults, lanegate.FieldError{Pointer: "/classes/" + id + field.Pointer, Detail: field.Detail})
			}
		} else if err != nil {
			return err
		}
	}
	if err := lanegate.Invalid(faults); err != nil {
		return err
	}
	return s.releaseClasses(tx, cfg, f, o)
}

func (s *Service) applyFileClass(tx ConfigTx, cfg Config, id string, spec lanegate.ClassSpec, o ChangeOptions) error {
	old, err := cfg.findClass(id)
	if err != nil {
		if _, err = s.newClass(tx, cfg, id, spec, lanegate.ManagedByFile, o); err != nil || !spec.Paused {
			return err
		}
		_, err = s.filePause(tx, lanegate.Class{ID: id}, true, o)
		return err
	}
	changed := old
	changed.ManagedBy = lanegate.ManagedByFile
	if old.ManagedBy != lanegate.ManagedByFile {
		changed.UpdatedAt = tx.Now()
		if err := tx.SaveClass(changed); err != nil {
			return err
		}
		if err := tx.AppendHistory(HistoryEvent{Subject: classSubject + id, Event: "joined_file", Actor: o.Actor, Reason: "declared in the config file; the API no longer edits it"}); err != nil {
			return err
		}
	}
	if changed, err = s.filePause(tx, changed, spec.Paused, o); err != nil {
		return err
	}
	if changed.Paused != old.Paused {
		changed.UpdatedAt = tx.Now()
		if err := tx.SaveClass(changed); err != nil {
			return err
		}
	}
	spec.Paused = changed.Paused
	_, err = s.saveSpec(tx, cfg, changed, spec, o)
	return err
}

// releaseClasses hands classes that left the file over to the API.
func (s *Service) releaseClasses(tx ConfigTx, cfg Config, f FileConfig, o ChangeOptions) error {
	for _, c := range cfg.Classes {
		if _, ok := f.Classes[c.ID]; ok || c.ManagedBy != lanegate.ManagedByFile {
			continue
		}
		c, err := s.filePause(tx, c, false, o)
		if err != nil {
			return err
		}
		c.ManagedBy = lanegate.ManagedByAPI
		c.UpdatedAt = tx.Now()
		if err := tx.SaveClass(c); err != nil {
			return err
		}
		if err := tx.AppendHistory(leftFile(classSubject+c.ID, o)); err != nil {
			return err
		}
	}
	return nil
}

// leftFile is the event of whatever the config file named once and no longer does.
func leftFile(subject string, o ChangeOptions) HistoryEvent {
	return HistoryEvent{Subject: subject, Event: "left_file", Actor: o.Actor, Reason: "no longer declared in the config file; the API manages it now"}
}

// SyncCommands compares the catalogue's command definitions with what the
// classes were saved with. A changed definition changes the fingerprint and so
// demotes a promoted class, loudly.
func (s *Service) SyncCommands(ctx context.Context) error {
	return s.syncCommands(ctx, func(lanegate.Class) bool { return true })
}

// FillCommands is SyncCommands for the classes whose command nobody knew when they
// were saved; what others know stays. It is for a process whose file was superseded.
func (s *Service) FillCommands(ctx context.Context) error {
	return s.syncCommands(ctx, func(c lanegate.Class) bool { return c.CommandDigest == "" })
}

func (s *Service) syncCommands(ctx context.Context, which func(lanegate.Class) bool) error {
	o := ChangeOptions{Actor: ActorFile, Reason: "command definition in " + s.configFile(), unattended: true}
	return s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		for _, old := range cfg.Classes {
			if !which(old) {
				continue
			}
			digest := s.commandDigest(old.ClassSpec, old.CommandDigest)
			if digest == old.CommandDigest {
				continue
			}
			if err := saveDigest(tx, old, digest, o); err != nil {
				return err
			}
		}
		return nil
	})
}

// saveDigest gives a class another definition of its command, and what follows.
func saveDigest(tx ConfigTx, old lanegate.Class, digest string, o ChangeOptions) error {
	c := old
	c.CommandDigest = digest
	c.Fingerprint = lanegate.Fingerprint(c.ClassSpec, c.CommandDigest)
	if err := demoteIfChanged(tx, old, &c, o); err != nil {
		return err
	}
	c.UpdatedAt = tx.Now()
	if err := tx.SaveClass(c); err != nil {
		return err
	}
	return tx.AppendHistory(HistoryEvent{
		Subject: classSubject + c.ID, Event: "command_changed", Actor: o.Actor, Reason: o.Reason,
		Evidence: map[string]any{"fingerprint_before": old.Fingerprint, "fingerprint": c.Fingerprint},
	})
}

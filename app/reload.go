package app

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/lanegate/lanegate"
)

// Reload takes in the commands, classes, lanes, resources and the default target
// of next, which Load made. An error means that everything is as before.
// Settings that only a restart can change are named in the log.
func (a *App) Reload(ctx context.Context, next Config) error {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	old := a.config()
	// Commands first: the fingerprints of the classes depend on them.
	if err := a.runners.catalogue.Replace(next.Commands); err != nil {
		return next.explain(err)
	}
	if err := a.sync(ctx, next, true); err != nil {
		if back := a.runners.catalogue.Replace(old.Commands); back != nil {
			err = errors.Join(err, fmt.Errorf("the commands before can't be had back: %w", back))
		}
		return err
	}
	if err := a.probes.replace(next.Resources); err != nil { // Load has checked them
		a.log.WarnContext(ctx, "the probes stay as they were", "err", err)
	}
	a.svc.SetDefaultTarget(next.DefaultTarget)
	if err := a.worker.Reload(ctx); err != nil && !errors.Is(err, lanegate.ErrWorkerGone) {
		// Admission learns of new commands with the next registration at the latest.
		a.log.WarnContext(ctx, "telling admission of the new commands failed", "err", err)
	}
	for _, warning := range next.Warnings {
		a.log.WarnContext(ctx, "configuration", "warning", warning)
	}
	if keys := needRestart(old, &next); len(keys) > 0 {
		a.log.WarnContext(ctx, "some settings changed that need a restart", "settings", strings.Join(keys, ", "))
	}
	merged := *old
	merged.Resources, merged.Lanes, merged.Commands, merged.Classes = next.Resources, next.Lanes, next.Commands, next.Classes
	merged.DefaultTarget, merged.Warnings = next.DefaultTarget, next.Warnings
	a.cfg.Store(&merged)
	a.log.InfoContext(ctx, "configuration reloaded", "commands", len(next.Commands), "classes", len(next.Classes))
	return nil
}

// ReloadFailed logs every fault of a configuration that was not taken in.
func (a *App) ReloadFailed(err error) {
	ce, ok := errors.AsType[*ConfigError](err)
	if !ok {
		a.log.Error("reload failed; everything is as before", "err", err)
		return
	}
	for _, f := range ce.Faults {
		a.log.Error("reload: the configuration has a fault", "source", f.Source, "key", f.Key, "fault", f.Text)
	}
	a.log.Error("reload failed; everything is as before", "faults", len(ce.Faults))
}

// needRestart lists the settings whose values differ.
func needRestart(old, next *Config) []string {
	var keys []string
	for _, s := range settings {
		if old.texts[s.Key] != next.texts[s.Key] {
			keys = append(keys, s.Key)
		}
	}
	if !reflect.DeepEqual(old.Tokens, next.Tokens) {
		keys = append(keys, "tokens")
	}
	if !reflect.DeepEqual(old.Intake, next.Intake) {
		keys = append(keys, "intake")
	}
	return keys
}

// explain turns the service's field errors into faults with lines.
func (c *Config) explain(err error) error {
	fields, ok := fieldsOf(err)
	if !ok {
		return err
	}
	var f faults
	c.addFields(&f, "", fields)
	return f.err()
}

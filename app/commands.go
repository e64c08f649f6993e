package app

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/runner"
)

// checkCommands judges the definitions as the catalogue will, env files included.
// A directory that is missing now is a warning: a mount may bring it, and one
// command must not keep the others from being served.
func (c *Config) checkCommands(f *faults) {
	_, err := runner.NewCatalogue(c.Commands)
	if fields, ok := fieldsOf(err); ok {
		c.addFields(f, "", fields)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Commands)) {
		if dir := c.Commands[name].Dir; dir != "" {
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				c.warn("commands.%s.dir: there is no directory %s now; its jobs fail until there is", name, absolute(dir))
			}
		}
	}
}

// fieldsOf are the field errors that err carries, if any.
func fieldsOf(err error) ([]lanegate.FieldError, bool) {
	e, ok := errors.AsType[*lanegate.Error](err)
	if !ok {
		return nil, false
	}
	return e.Fields, len(e.Fields) > 0
}

// absolute is path from the root; path itself when that can't be told.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

package app

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one wrong value of the configuration.
type Fault struct {
	// Source says where the value came from: "lanegate.yaml:12", "LANEGATE_BEAT",
	// "--beat", or "default".
	Source string
	// Key is the value's place in the file, dotted: "classes.pos-sales.units.db";
	// "" when the fault is of the file as a whole.
	Key  string
	Text string

	line int // for sorting: faults of the file by line, then the others
}

// String is the fault as one line for people.
func (f Fault) String() string {
	if f.Key == "" || strings.HasPrefix(f.Source, "--") || strings.HasPrefix(f.Source, envPrefix) {
		return f.Source + ": " + f.Text
	}
	return f.Source + ": " + f.Key + ": " + f.Text
}

// ConfigError carries every fault that was found, not only the first.
type ConfigError struct{ Faults []Fault }

// Error lists all faults, one a line.
func (e *ConfigError) Error() string {
	var b strings.Builder
	if len(e.Faults) == 1 {
		b.WriteString("the configuration has a fault:")
	} else {
		fmt.Fprintf(&b, "the configuration has %d faults:", len(e.Faults))
	}
	for _, f := range e.Faults {
		b.WriteString("\n  ")
		b.WriteString(f.String())
	}
	return b.String()
}

// faults collects; the zero value is ready.
type faults struct{ list []Fault }

func (f *faults) add(at origin, key, format string, args ...any) {
	f.list = append(f.list, Fault{Source: at.String(), Key: key, Text: fmt.Sprintf(format, args...), line: at.line})
}

// err is nil without faults.
func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.line, b.line))
	})
	return &ConfigError{Faults: f.list}
}

func rank(f Fault) int {
	if f.line > 0 {
		return 0
	}
	return 1
}

// origin is where a value came from.
type origin struct {
	name string // file name, variable or flag; "" for a default
	line int    // in a file; 0 elsewhere
}

// String is the origin as faults name it.
func (o origin) String() string {
	switch {
	case o.name == "":
		return "default"
	case o.line > 0:
		return fmt.Sprintf("%s:%d", o.name, o.line)
	}
	return o.name
}

// Package lanegate holds the words of the domain: jobs, attempts, job classes,
// lanes and resources, the states they may be in and the legal moves between
// them, and the one error type that every layer above speaks.
//
// It does no I/O, knows no clock and imports nothing but the standard library.
// What may start is decided in package admission; how it is stored, run and
// served is left to the packages above (see docs/architecture.md).
package lanegate

import (
	"regexp"
	"time"
)

// Names of the two built-in lanes.
const (
	// LaneSerial is the default lane: first in, first out, width 1, for ever.
	LaneSerial = "serial"
	// LaneParallel is the built-in lane for classes that have earned it.
	LaneParallel = "parallel"
)

// slugPattern is the form of class, lane, resource, command and token names.
var slugPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ValidSlug says whether s may name a class, lane, resource, command or token:
// lower-case letters, digits, dot, underscore and dash, 1 to 63 characters,
// starting with a letter or digit.
func ValidSlug(s string) bool { return slugPattern.MatchString(s) }

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// ValidID says whether s has the form of an id made by lanegate: a UUIDv7 in
// its canonical lower-case text form.
func ValidID(s string) bool { return idPattern.MatchString(s) }

// Micro brings t to the form in which times are stored and compared: UTC with
// microsecond precision (what PostgreSQL keeps), without a monotonic part.
func Micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

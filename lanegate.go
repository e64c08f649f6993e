// Package lanegate holds the words of the domain: jobs, attempts, job classes,
// lanes and resources, the states they may be in and the legal moves between
// them, and the one error type that every layer above speaks.
//
// It does no I/O, knows no clock and imports nothing but the standard library.
// What may start is decided in package admission; how it is stored, run and
// served is left to the packages above (see docs/architecture.md).
package lanegate

import (
	"strconv"
	"time"
)

// Names of the two built-in lanes.
const (
	// LaneSerial is the default lane: first in, first out, width 1, for ever.
	LaneSerial = "serial"
	// LaneParallel is the built-in lane for classes that have earned it.
	LaneParallel = "parallel"
)

// ValidSlug says whether s may name a class, lane, resource, command or token:
// [a-z0-9][a-z0-9._-]{0,62}.
//
// Names and ids are matched by hand: a compiled expression would cost every guard
// process some milliseconds at its start.
func ValidSlug(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// ValidID says whether s has the form of an id made by lanegate: a UUIDv7 in
// its canonical lower-case text form.
func ValidID(s string) bool {
	if len(s) != 36 || s[14] != '7' || (s[19] != '8' && s[19] != '9' && s[19] != 'a' && s[19] != 'b') {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// Micro brings t to the form in which times are stored and compared: UTC with
// microsecond precision (what PostgreSQL keeps), without a monotonic part.
func Micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Count is a number with its noun, which takes an s for the plural: "1 job", "2 jobs".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

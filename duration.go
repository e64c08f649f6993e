package lanegate

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// MaxDuration bounds every duration that a person may declare: a value above it
// is a slip of the pen (a unit mistaken), never a wish.
const MaxDuration = 10 * 366 * 24 * time.Hour

// MinDuration is the least that a person may declare: nothing starts, ends or is
// repeated in less, and zero would be a second way to write "none".
const MinDuration = time.Millisecond

// Duration is a time.Duration that reads and writes Go duration strings ("90s",
// "26h") in JSON and YAML. Zero means "none" or "the default" as each field
// says; negative and absurd values (over ten years) are refused. What people
// declare is read by ParseDeclared, which also refuses what is below MinDuration;
// what was stored is read as it is.
type Duration time.Duration

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String renders d as Go does, without trailing zero units: "26h", not "26h0m0s".
func (d Duration) String() string { return FormatDuration(time.Duration(d)) }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; it refuses what ParseDuration refuses.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration(string(b))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// ParseDeclared reads a duration that a person declares in a field that may be
// left out: as ParseDuration, and at least MinDuration.
func ParseDeclared(s string) (Duration, error) {
	v, err := ParseDuration(s)
	if err == nil && v < MinDuration {
		err = fmt.Errorf("%q is too short: at least %s; to have none, or the default, leave the field out", s, FormatDuration(MinDuration))
	}
	return Duration(v), err
}

// isDuration says whether s has the form of a duration, however large its numbers:
// time.ParseDuration gives the same error for both faults. Like names, it is not
// matched by a compiled expression.
func isDuration(s string) bool {
	var small strings.Builder // s with a 1 for each number
	digits := false
	for _, c := range s {
		if was := digits; '0' <= c && c <= '9' {
			if digits = true; !was {
				small.WriteByte('1')
			}
			continue
		}
		digits = false
		small.WriteRune(c)
	}
	_, err := time.ParseDuration(small.String())
	return err == nil
}

// ParseDuration reads a Go duration string such as "90s" or "26h". Negative
// values and values over MaxDuration are errors whose text says what to write.
func ParseDuration(s string) (time.Duration, error) {
	tooLong := fmt.Errorf("%q is too long: at most %s, which is ten years", s, FormatDuration(MaxDuration))
	v, err := time.ParseDuration(s)
	if err != nil {
		if isDuration(s) {
			if s[0] == '-' {
				return 0, errNegative
			}
			return 0, tooLong
		}
		return 0, fmt.Errorf("%q is not a duration: write it like \"90s\", \"15m\" or \"26h\"", s)
	}
	if v < 0 {
		return 0, errNegative
	}
	if v > MaxDuration {
		return 0, tooLong
	}
	return v, nil
}

var errNegative = errors.New("a duration must not be negative")

// FormatDuration is d.String() without the zero units at its end.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if len(s) > 2 && s[len(s)-2:] == "0s" && s[len(s)-3] == 'm' {
		s = s[:len(s)-2]
	}
	if len(s) > 2 && s[len(s)-2:] == "0m" && s[len(s)-3] == 'h' {
		s = s[:len(s)-2]
	}
	return s
}

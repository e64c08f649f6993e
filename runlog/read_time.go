package runlog

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// instant is a point in time as a log has it. A local time that a clock showed
// twice (or never) when it was put back (or forward) stands for two points in
// time, early < late; otherwise both are the same.
type instant struct {
	early, late int64 // microseconds since the Unix epoch
	ok          bool  // false: the log has none
}

// after picks the earlier reading that is not more than the clock tolerance
// before t, so that no pair of local times gets a negative distance only because
// the clocks were put back in between.
func (i instant) after(t int64) int64 {
	if i.early >= t-clockTolerance {
		return i.early
	}
	return i.late
}

// clockTolerance is how far a start may lie before the submission and still be
// the same moment seen by two clocks: two seconds.
const clockTolerance = 2_000_000

var (
	errNoZone = errors.New("it has no zone; say which with --tz, e.g. --tz UTC or --tz Europe/Berlin")
	errTime   = errors.New("it is not a time such as 2026-03-01T02:00:00Z, 2026-03-01 02:00:00 or Unix seconds")
	errRange  = errors.New("it lies outside the years 1900 to 2200")
)

// noTimes are ways to write that there is no time.
var noTimes = map[string]bool{
	"": true, "-": true, "unknown": true, "none": true, "null": true, "nan": true,
	"nat": true, "n/a": true, "na": true, `\n`: true, "undefined": true,
}

// clock reads times of one file.
type clock struct {
	zone *time.Location // nil: times without a zone are an error
	// The offsets around the last local time: most rows share them.
	from, to int64 // seconds of local time for which offset holds
	offset   int64
}

// parse reads one time. unit is the number of microseconds that 1 stands for in
// a number, 0 to judge by its size: seconds, milliseconds (from 10¹¹),
// microseconds (10¹⁴) or nanoseconds (10¹⁷).
func (c *clock) parse(s string, unit float64) (instant, error) {
	s = strings.TrimSpace(s)
	if len(s) <= len("undefined") && noTimes[strings.ToLower(s)] {
		return instant{}, nil
	}
	if us, ok, err := unixTime(s, unit); ok || err != nil {
		return instant{us, us, true}, err
	}
	wall, rest, err := wallClock(s)
	if err != nil {
		return instant{}, err
	}
	offset, zoned, err := zoneOffset(rest)
	if err != nil {
		return instant{}, err
	}
	if zoned {
		us := wall - offset*1e6
		return instant{us, us, true}, nil
	}
	if c.zone == nil {
		return instant{}, errNoZone
	}
	return c.local(wall), nil
}

// unixTime reads a plain number; ok is false when s is none.
func unixTime(s string, unit float64) (us int64, ok bool, err error) {
	for i := range len(s) {
		if b := s[i]; (b < '0' || b > '9') && b != '.' && (i > 0 || (b != '-' && b != '+')) {
			return 0, false, nil
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, false, nil //nolint:nilerr // "1.2.3" or "-": not a number, perhaps something else
	}
	if unit == 0 {
		switch size := math.Abs(v); {
		case size >= 1e17:
			unit = 1e-3
		case size >= 1e14:
			unit = 1
		case size >= 1e11:
			unit = 1e3
		default:
			unit = 1e6
		}
	}
	v *= unit
	if v < minTime || v > maxTime {
		return 0, false, errRange
	}
	return int64(math.Round(v)), true, nil
}

// minTime and maxTime bound all times (1900 and 2200), so that sums of them stay exact.
const (
	minTime = -2208988800e6
	maxTime = 7258118400e6
)

// wallClock reads YYYY-MM-DD[T ]HH:MM[:SS[.fraction]] as if it were UTC and
// returns what follows it. Slashes may stand for the dashes, a comma for the point.
func wallClock(s string) (us int64, rest string, err error) {
	const date = len("2006-01-02")
	if len(s) < date || (s[4] != '-' && s[4] != '/') || s[7] != s[4] {
		return 0, "", errTime
	}
	year, ok1 := digits(s[0:4])
	month, ok2 := digits(s[5:7])
	day, ok3 := digits(s[8:10])
	if !ok1 || !ok2 || !ok3 || month < 1 || month > 12 || day < 1 {
		return 0, "", errTime
	}
	if year < 1900 || year > 2199 {
		return 0, "", errRange
	}
	at := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	if at.Day() != day {
		return 0, "", errTime
	}
	us = at.UnixMicro()
	rest = s[date:]
	if rest == "" {
		return us, "", nil
	}
	if len(rest) < len("T15:04") || (rest[0] != 'T' && rest[0] != 't' && rest[0] != ' ') || rest[3] != ':' {
		return 0, "", errTime
	}
	hour, ok1 := digits(rest[1:3])
	minute, ok2 := digits(rest[4:6])
	if !ok1 || !ok2 || hour > 23 || minute > 59 {
		return 0, "", errTime
	}
	us += int64(hour)*3600e6 + int64(minute)*60e6
	rest = rest[6:]
	if len(rest) < 3 || rest[0] != ':' {
		return us, rest, nil
	}
	second, ok := digits(rest[1:3])
	if !ok || second > 60 { // 60: a leap second
		return 0, "", errTime
	}
	us += int64(second) * 1e6
	fraction, rest := fractionOf(rest[3:])
	return us + fraction, rest, nil
}

// fractionOf reads ".123456789" in microseconds, further digits cut off.
func fractionOf(s string) (us int64, rest string) {
	if s == "" || (s[0] != '.' && s[0] != ',') {
		return 0, s
	}
	scale := int64(100_000)
	i := 1
	for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		us += int64(s[i]-'0') * scale
		scale /= 10
	}
	return us, s[i:]
}

func digits(s string) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}

// zoneOffset reads Z, UTC, GMT, +HH, +HHMM, +HH:MM, and Go's "+0100 CET". zoned
// is false when there is nothing.
func zoneOffset(s string) (offset int64, zoned bool, err error) {
	s = strings.TrimSpace(s)
	switch strings.ToUpper(s) {
	case "":
		return 0, false, nil
	case "Z", "UTC", "GMT":
		return 0, true, nil
	}
	if s[0] != '+' && s[0] != '-' {
		return 0, false, errTime
	}
	s, _, _ = strings.Cut(s, " ")
	hhmm := strings.Replace(s[1:], ":", "", 1)
	if len(hhmm) != 2 && len(hhmm) != 4 {
		return 0, false, errTime
	}
	hour, ok := digits(hhmm[:2])
	minute := 0
	if ok && len(hhmm) == 4 {
		minute, ok = digits(hhmm[2:])
	}
	if !ok || hour > 15 || minute > 59 {
		return 0, false, errTime
	}
	offset = int64(hour)*3600 + int64(minute)*60
	if s[0] == '-' {
		offset = -offset
	}
	return offset, true, nil
}

// local finds the point, or the two points, in time that a local time stands for.
func (c *clock) local(wall int64) instant {
	seconds := floorSeconds(wall)
	if seconds >= c.from && seconds < c.to {
		us := wall - c.offset*1e6
		return instant{us, us, true}
	}
	// A change of offset is at most a day away from what it makes ambiguous.
	const day = 26 * 3600
	before, after := c.offsetAt(seconds-day), c.offsetAt(seconds+day)
	if before == after {
		c.from, c.to, c.offset = seconds, seconds+3600, before
		if c.offsetAt(seconds+day+3600) != before {
			c.to = seconds + 1
		}
		us := wall - before*1e6
		return instant{us, us, true}
	}
	early, late := wall-max(before, after)*1e6, wall-min(before, after)*1e6
	earlyTrue := c.offsetAt(floorSeconds(early)) == max(before, after)
	lateTrue := c.offsetAt(floorSeconds(late)) == min(before, after)
	switch {
	case earlyTrue && !lateTrue:
		late = early
	case lateTrue && !earlyTrue:
		early = late
	}
	return instant{early, late, true}
}

func (c *clock) offsetAt(unix int64) int64 {
	_, offset := time.Unix(unix, 0).In(c.zone).Zone()
	return int64(offset)
}

func floorSeconds(us int64) int64 { return int64(math.Floor(float64(us) / 1e6)) }

var errDuration = errors.New(`it is not a duration: seconds, "90s", "26h", "01:30:00" or "2-03:00:00"`)

// parseDuration reads a duration in microseconds. unit is what a plain number
// counts, in microseconds. ok is false when the log has none.
func parseDuration(s string, unit float64) (us int64, ok bool, err error) {
	s = strings.TrimSpace(s)
	if len(s) <= len("undefined") && noTimes[strings.ToLower(s)] {
		return 0, false, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err == nil {
		v *= unit
	} else if d, err := time.ParseDuration(s); err == nil {
		v = float64(d.Microseconds())
	} else if v, err = colonDuration(s); err != nil {
		return 0, false, err
	}
	switch {
	case v < 0:
		return 0, false, errors.New("a duration can't be negative")
	case math.IsNaN(v) || v > maxTook:
		return 0, false, errors.New("it is more than ten years")
	}
	return int64(math.Round(v)), true, nil
}

// maxTook is ten years: what is longer is a wrong unit.
const maxTook = 10 * 366 * 86400e6

// colonDuration reads [D-]HH:MM:SS[.fraction] and MM:SS, as Slurm and others write them.
func colonDuration(s string) (us float64, err error) {
	days, clockPart, found := strings.Cut(s, "-")
	if !found {
		days, clockPart = "0", s
	}
	d, ok := digits(days)
	parts := strings.Split(clockPart, ":")
	if !ok || days == "" || len(days) > 5 || len(parts) < 2 || len(parts) > 3 {
		return 0, errDuration
	}
	total := 0.0
	for i, p := range parts {
		v, err := strconv.ParseFloat(p, 64)
		if err != nil || p == "" || v < 0 || (i > 0 && v >= 60) {
			return 0, errDuration
		}
		total = total*60 + v
	}
	return (float64(d)*86400 + total) * 1e6, nil
}

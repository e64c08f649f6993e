package runlog

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// human writes a duration in its largest fitting unit: "45 s", "3.2 min",
// "14 h", "5.3 d".
func human(seconds float64) string {
	sign := ""
	if seconds < 0 {
		sign, seconds = "-", -seconds
	}
	for _, u := range []struct {
		from, unit float64
		name       string
	}{{72 * 3600, 86400, "d"}, {90 * 60, 3600, "h"}, {90, 60, "min"}} {
		if seconds >= u.from {
			return sign + digits3(seconds/u.unit) + " " + u.name
		}
	}
	return sign + digits3(seconds) + " s"
}

// digits3 writes a number with up to one decimal, none from 100 on; one too small for
// that keeps its first digit, as what is little is not nothing.
func digits3(v float64) string {
	if small := math.Abs(v); small > 0 && small < 0.05 {
		return strconv.FormatFloat(round(v, math.Pow(10, math.Ceil(-math.Log10(small)))), 'f', -1, 64)
	}
	if v >= 1000 {
		return grouped3(int(math.Round(v)))
	}
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(round(v, 10), 'f', -1, 64)
}

// percent writes a share.
func percent(share float64) string {
	if share > 0 && share < 0.01 {
		return "under 1 %"
	}
	if share >= 0.995 && share < 1 {
		return "over 99 %"
	}
	return fmt.Sprintf("%.0f %%", share*100)
}

// count writes a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped3(n) + " " + many
}

// daysText writes a number of days with its noun.
func daysText(days float64) string {
	if s := digits3(days); s != "1" {
		return s + " days"
	}
	return "1 day"
}

// grouped3 writes a number with commas between thousands.
func grouped3(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		if s[i-1] == '-' {
			break
		}
		s = s[:i] + "," + s[i:]
	}
	return s
}

// waitUnder says how long jobs wait at most, of which none waits longer than seconds.
func waitUnder(seconds float64) string {
	if seconds == 0 {
		return "do not wait"
	}
	return "wait under " + human(seconds)
}

// halfAndMost says how long jobs wait, in two quantiles.
func halfAndMost(s Spread) string {
	if s.P99 == 0 {
		return "99 % of the jobs do not wait"
	}
	return "half of the jobs " + waitUnder(s.P50) + ", 99 % " + waitUnder(s.P99)
}

// soon says after what time runs fail.
func soon(seconds float64) string {
	if seconds < 1 {
		return "at once"
	}
	return "after about " + human(seconds)
}

// hoursText writes hours in a table: what is under a twentieth is little, not nothing.
func hoursText(h float64) string {
	if h > 0 && h < 0.05 {
		return "under 0.1"
	}
	if math.Abs(h) >= 1000 {
		return grouped3(int(math.Round(h)))
	}
	return strconv.FormatFloat(h, 'f', 1, 64)
}

// dates says from when to when a log is: by dates, or by days after its own start.
func (s *Span) dates() (from, to string) {
	if !s.Relative {
		return s.From.Format("2006-01-02"), s.To.Format("2006-01-02")
	}
	day := func(t time.Time) string { return "day " + grouped3(int(math.Floor(float64(t.Unix())/86400))) }
	return day(s.From), day(s.To)
}

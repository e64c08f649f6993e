package runlog

import (
	"fmt"
	"math"
	"strconv"
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

// digits3 writes a number with up to one decimal, none from 100 on.
func digits3(v float64) string {
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

package verification

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

// PictureWidth is how many columns the pictures in the evidence have.
const PictureWidth = 72

// pictureLabel bounds the columns of a class's name, pictureBar is the least a
// bar gets.
const (
	pictureLabel = 24
	pictureBar   = 16
)

// Picture draws who ran when: one line for each run, by start, class and job, on
// one time axis from the first start to the last end, in ASCII but for names that
// are cut. A bar ends with | when the run succeeded, X when it ended otherwise, >
// when it went on; behind it stand start and end in time since the first start.
//
// Lines are at most width columns, but never less than what a label, a short bar
// and the times take.
func Picture(runs []lanegate.RunEvidence, width int) []string {
	if len(runs) == 0 {
		return nil
	}
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b lanegate.RunEvidence) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Attempt, b.Attempt))
	})
	zero := runs[0].StartedAt
	label, suffix, total := 0, 0, time.Duration(0)
	times := make([]string, len(runs))
	for i := range runs {
		total = max(total, endOf(&runs[i]).Sub(zero))
	}
	for i := range runs {
		r := &runs[i]
		times[i] = span2(r.StartedAt.Sub(zero), endOf(r).Sub(zero), total)
		label = max(label, min(pictureLabel, utf8.RuneCountInString(r.Class)))
		suffix = max(suffix, len(times[i]))
	}
	bar := max(pictureBar, width-label-suffix-2)
	lines := make([]string, len(runs))
	for i := range runs {
		r := &runs[i]
		lines[i] = fmt.Sprintf("%-*s %-*s %s", label, shortName(r.Class, label), bar, drawn(r, zero, total, bar), times[i])
	}
	return lines
}

// endOf is when a run ended, or up to when it was seen.
func endOf(r *lanegate.RunEvidence) time.Time {
	if r.EndedAt != nil {
		return *r.EndedAt
	}
	return r.StartedAt.Add(time.Duration(r.Seconds * float64(time.Second)))
}

// drawn is one bar, at least two columns wide.
func drawn(r *lanegate.RunEvidence, zero time.Time, total time.Duration, columns int) string {
	at := func(t time.Time) int {
		if total <= 0 {
			return 0
		}
		return int(float64(t.Sub(zero)) / float64(total) * float64(columns-1))
	}
	from, to := min(at(r.StartedAt), columns-2), at(endOf(r))
	to = max(to, from+1)
	end := "|"
	switch {
	case r.EndedAt == nil:
		end = ">"
	case r.Outcome != lanegate.Succeeded:
		end = "X"
	}
	return strings.Repeat(" ", from) + "|" + strings.Repeat("=", to-from-1) + end
}

// span2 is the two ends of a run in the unit that suits the whole picture.
func span2(from, to, total time.Duration) string {
	if total > 0 && total < time.Second {
		return fmt.Sprintf("%5.0f - %5.0f ms", 1000*from.Seconds(), 1000*to.Seconds())
	}
	if total < 10*time.Minute {
		return fmt.Sprintf("%5.1f - %5.1f s", from.Seconds(), to.Seconds())
	}
	if total < 10*time.Hour {
		return fmt.Sprintf("%5.1f - %5.1f min", from.Minutes(), to.Minutes())
	}
	return fmt.Sprintf("%5.1f - %5.1f h", from.Hours(), to.Hours())
}

func shortName(name string, columns int) string {
	r := []rune(name)
	if len(r) <= columns {
		return name
	}
	return string(r[:columns-1]) + "…"
}

package runlog

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// textWidth is the widest line of the text report, in characters.
const textWidth = 80

// Rows of each table in the text report; JSON has all.
const (
	textClasses = 10
	textBlame   = 6
	textMend    = 6
	textLeftOut = 6
)

// Text writes the report for a terminal: plain text, at most 80 columns wide, the
// verdict first. Names from the log are shown without control characters.
func (r *Report) Text(w io.Writer) error {
	t := &text{w: bufio.NewWriter(w)}
	t.verdict(r)
	t.mend(r)
	t.blame(r)
	t.layouts(r)
	t.classes(r)
	t.files(r)
	return t.w.Flush()
}

// text writes blocks; errors stay in its writer until the flush.
type text struct{ w *bufio.Writer }

func (t *text) line(format string, args ...any) {
	s := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	_, _ = t.w.WriteString(clip(s, textWidth) + "\n")
}

// para writes s wrapped, the first line after mark, the others under its text.
func (t *text) para(mark, s string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(mark))
	room := textWidth - utf8.RuneCountInString(mark)
	for i, l := range wrap(visible(s), room) {
		if i > 0 {
			mark = indent
		}
		t.line("%s%s", mark, l)
	}
}

func (t *text) title(s string) { t.line(""); t.line("%s", s) }

func (t *text) verdict(r *Report) {
	t.para("", r.Verdict.Sentence)
	for _, s := range r.Verdict.Reasons {
		t.para("  - ", s)
	}
	if len(r.Verdict.Verify) > 0 {
		t.line("")
		t.line("%-30s %17s  %17s  %11s", "Verify first", "waits in one line", "waits then", "saves")
		t.line("%-30s %8s %8s  %8s %8s  %11s", "", "p50", "max", "p50", "max", "hours")
	}
	for _, c := range r.Verdict.Verify {
		name := c.Class
		if c.Role == "blocker" {
			name += " (own lane; all jobs)"
		}
		t.line("  %-28s %8s %8s  %8s %8s  %11s", clip(visible(name), 28), human(c.Before.P50), human(c.Before.Max), human(c.After.P50), human(c.After.Max), hoursText(c.Saved))
		if c.Little {
			t.para("    ", c.Effect)
		}
		for _, w := range c.Warnings {
			t.para("    ! ", w)
		}
	}
	t.leftOut(r)
	if len(r.Verdict.Next) > 0 {
		t.title("Next")
		for _, s := range r.Verdict.Next {
			t.para("  - ", s)
		}
	}
	for i, command := range []string{r.Verdict.CLI, r.Verdict.Command} {
		if command == "" {
			continue
		}
		if i == 0 {
			t.line("")
		} else {
			t.line("  or, the same over HTTP:")
		}
		for l := range strings.SplitSeq(command, "\n") {
			t.line("    %s", l)
		}
	}
}

// leftOut names the classes that are not above, those with the same reason together.
func (t *text) leftOut(r *Report) {
	reasons := r.Verdict.leftOutReasons()
	if len(reasons) == 0 {
		return
	}
	t.title("Not among them, and why")
	for _, why := range reasons[:min(textLeftOut, len(reasons))] {
		t.para("  - ", why)
	}
	t.more(len(reasons), textLeftOut)
}

func (t *text) mend(r *Report) {
	if len(r.Mend) == 0 {
		return
	}
	t.title("Slow jobs to mend for their own sake (lanes don't help them)")
	for _, m := range r.Mend[:min(textMend, len(r.Mend))] {
		t.para("  - ", m.Class+": "+strings.Join(m.Why, "; "))
	}
	t.more(len(r.Mend), textMend)
}

func (t *text) blame(r *Report) {
	if len(r.Blame) == 0 {
		return
	}
	if r.Load.Rho >= 1 && !r.Load.OneLine {
		t.title("Who blocks whom in one line")
		t.para("  ", "One line could never carry this log, so its waits only grow; --json has them.")
		return
	}
	t.title("Who blocks whom in one line            hours waited   share")
	for _, b := range r.Blame[:min(textBlame, len(r.Blame))] {
		victim := b.Victim
		if victim == b.Blocker {
			victim = "itself"
		}
		t.line("  %-36s %13s  %6s", fit(b.Blocker, 17)+"→ "+clip(visible(victim), 17), hoursText(b.Hours), percent(b.Share))
	}
	t.more(len(r.Blame), textBlame)
}

func (t *text) layouts(r *Report) {
	if len(r.Layouts) == 0 {
		return
	}
	t.title("Waits of all jobs                    p50       p99       max  units at peak")
	if w := r.Recorded; w != nil {
		t.line("  %-28s %9s %9s %9s", "as recorded", human(w.P50), human(w.P99), human(w.Max))
	}
	for _, l := range r.Layouts {
		var peaks strings.Builder
		for _, name := range sortedKeys(l.Peaks) {
			fmt.Fprintf(&peaks, " %s %d", visible(name), l.Peaks[name])
		}
		t.line("  %-28s %9s %9s %9s %s", layoutTitle(l), human(l.Waits.P50), human(l.Waits.P99), human(l.Waits.Max), peaks.String())
		if l.Waits.Max == 0 && strings.HasPrefix(l.Name, layoutWorkers) {
			break // more of them can't bring less
		}
	}
	for _, l := range r.Layouts {
		if l.Note != "" {
			t.para("  classes above in parallel: ", l.Note)
		}
		for _, lane := range l.Lanes {
			if l.Name == layoutPromote && lane.Name == "parallel" {
				t.para("  parallel is as wide as: ", lane.Arithmetic)
			}
		}
	}
}

// layoutTitle names a layout in a table.
func layoutTitle(l Layout) string {
	switch l.Name {
	case layoutOneLine:
		return "replayed in one line"
	case layoutPresent:
		return "the lanes as they are now"
	case layoutIsolate:
		return "blockers in their own lane"
	case layoutPromote:
		return "classes above in parallel"
	}
	return strings.TrimPrefix(l.Name, layoutWorkers) + " workers"
}

func (t *text) classes(r *Report) {
	t.title("Class (good runs)          runs  failed       p50       p99       max  busy")
	for _, c := range r.Classes[:min(textClasses, len(r.Classes))] {
		g := c.typical()
		t.line("  %s %6d %6d  %9s %9s %9s %5s", fit(c.Class, 22), c.Runs, c.Failed, human(g.P50), human(g.P99), human(g.Max), percent(c.BusyShare))
	}
	t.more(len(r.Classes), textClasses)
	for _, sentence := range splitSentences(r, textClasses) {
		t.para("  ", sentence)
	}
}

// splitSentences name the mixes of two far-apart groups: that of all runs, and
// those within the first classes.
func splitSentences(r *Report, classes int) []string {
	var list []string
	if m := r.Mix; m.TooFew {
		list = append(list, fmt.Sprintf("There are too few runs of a second or more (under %d) to say whether they fall into groups.", minSplitRuns))
	} else if m.Split {
		list = append(list, fmt.Sprintf("All runs fall into two groups: %s around %s and %s around %s.",
			grouped3(m.Short), human(m.ShortMedian), grouped3(m.Long), human(m.LongMedian)))
	}
	for _, c := range r.Classes[:min(classes, len(r.Classes))] {
		if m := c.Within; m.Split {
			list = append(list, fmt.Sprintf("Good runs of %s fall into two groups: %s around %s and %s around %s; are these two classes?",
				visible(c.Class), grouped3(m.Short), human(m.ShortMedian), grouped3(m.Long), human(m.LongMedian)))
		}
	}
	return list
}

func (t *text) files(r *Report) {
	t.title("The log")
	from, to := r.Span.dates()
	t.para("  ", fmt.Sprintf("%s over %s (%s to %s), load of one line %s, most at once %s.",
		count(r.Span.Runs, "run", "runs"), daysText(r.Span.Days), from, to,
		r.Load.Words(), atOnce(r.Load)))
	for i := range r.Files {
		t.para("  ", r.Files[i].sentence())
		for _, d := range r.Files[i].Dropped {
			t.para("    ", fmt.Sprintf("dropped %s: %s", grouped3(d.Count), d.Example))
		}
	}
	for _, n := range r.Notes {
		t.para("  ! ", n)
	}
}

func atOnce(l Load) string {
	if l.MostAtOnce == 0 {
		return "not known"
	}
	return fmt.Sprint(l.MostAtOnce)
}

// sentence accounts for the rows of a file.
func (a *Account) sentence() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s (%s): %s, %s used", a.File, a.Format, count(a.Rows, "row", "rows"), grouped3(a.Used))
	for _, part := range []struct {
		n    int
		what string
	}{
		{a.Clamped, "of them with a start clamped to the submission"}, {a.Repeats, "of them repeated attempts without a wait"},
		{a.Unfinished, "unfinished"}, {a.NeverStarted, "never started"}, {a.Steps, "steps of other rows"},
		{a.dropped(), "dropped"}, {a.Ignored, "other lines"},
	} {
		if part.n > 0 {
			fmt.Fprintf(&s, ", %s %s", grouped3(part.n), part.what)
		}
	}
	return s.String() + "."
}

func (t *text) more(n, shown int) {
	if n > shown {
		t.line("  … and %s more (--json has all)", grouped3(n-shown))
	}
}

// fit clips or pads to a width.
func fit(s string, width int) string {
	s = clip(visible(s), width)
	return s + strings.Repeat(" ", width-utf8.RuneCountInString(s))
}

// clip shortens to at most width characters.
func clip(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// visible replaces what would move a terminal's cursor or change its colours.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return '·'
		}
		return r
	}, s)
}

// wrap breaks at spaces; a longer word is cut.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		for utf8.RuneCountInString(word) > width {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			rs := []rune(word)
			lines, word = append(lines, string(rs[:width])), string(rs[width:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

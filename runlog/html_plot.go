package runlog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// plot is rows of strips over one logarithmic axis of time.
type plot struct {
	Ticks  []tick
	Groups []plotGroup
}

// plotGroup is rows under one name; a group of one row needs no name.
type plotGroup struct {
	Name string
	Rows []plotRow
}

// plotRow is a strip with its numbers, which say in words what it shows.
type plotRow struct {
	Name, Key, Note string
	Numbers         []figure
	Alt             string
	// Bars stand on the middle line: good runs up, others down.
	Bars  []rect
	Lines []rect
	Ticks []tick
}

type figure struct{ Name, Value string }

// rect is in a box of 1000 by 100; Kind names its colour.
type rect struct {
	Kind       string
	X, Y, W, H float64
}

// tick is a labelled position, 0 to 1000.
type tick struct {
	X     float64
	Label string
	// Minor ticks lose their label where there is little room.
	Minor bool
}

// Percent is the tick's position in a box of any width.
func (t tick) Percent() float64 { return round(t.X/10, 100) }

// axis is logarithmic, from lo to hi seconds.
type axis struct{ lo, hi float64 }

// tickTimes are round numbers of people's units.
var tickTimes = []struct {
	seconds float64
	label   string
}{
	{0.01, "10 ms"}, {0.1, "0.1 s"}, {1, "1 s"}, {10, "10 s"}, {60, "1 min"}, {600, "10 min"}, {3600, "1 h"}, {6 * 3600, "6 h"},
	{86400, "1 d"}, {10 * 86400, "10 d"}, {100 * 86400, "100 d"}, {1000 * 86400, "1,000 d"}, {10000 * 86400, "10,000 d"},
}

// newAxis spans the given times, a little more than needed.
func newAxis(least, most float64) axis {
	a := axis{lo: math.Max(least, 0.001), hi: math.Max(most, 1)}
	if a.hi < 30*a.lo { // always room for two ticks
		a.lo, a.hi = a.lo/5, a.hi*5
	}
	room := math.Pow(a.hi/a.lo, 0.03)
	return axis{a.lo / room, a.hi * room}
}

func (a axis) x(seconds float64) float64 {
	at := math.Log(math.Max(seconds, a.lo)/a.lo) / math.Log(a.hi/a.lo)
	return round(1000*math.Min(at, 1), 10)
}

func (a axis) ticks() []tick {
	var list []tick
	for _, t := range tickTimes {
		if t.seconds >= a.lo && t.seconds <= a.hi {
			list = append(list, tick{X: a.x(t.seconds), Label: t.label})
		}
	}
	for i := range list {
		list[i].Minor = len(list) > 5 && i%2 == 1
	}
	return list
}

func numbers(s Spread) []figure {
	return []figure{{"p50", human(s.P50)}, {"p90", human(s.P90)}, {"p99", human(s.P99)}, {"max", human(s.Max)}}
}

// durationPlot shows how long the runs of each class take.
func durationPlot(r *Report) *plot {
	classes := r.Classes[:min(htmlClasses, len(r.Classes))]
	least, most := math.Inf(1), 0.0
	for i := range classes {
		for _, b := range classes[i].Durations {
			least, most = math.Min(least, b.From), math.Max(most, 1.26*b.From)
		}
	}
	if most == 0 {
		return nil
	}
	a := newAxis(least, most)
	p := &plot{Ticks: a.ticks()}
	for i := range classes {
		p.Groups = append(p.Groups, plotGroup{Rows: []plotRow{durationRow(&classes[i], a, p.Ticks)}})
	}
	return p
}

func durationRow(c *ClassReport, a axis, ticks []tick) plotRow {
	s := c.typical()
	of := "good runs"
	if c.Good.N < 3 {
		of = "all runs"
	}
	row := plotRow{Name: visible(c.Class), Note: runsWords(c), Numbers: numbers(s), Ticks: ticks}
	row.Alt = fmt.Sprintf("%s: %s. Of %s half take up to %s, 90 %% up to %s, 99 %% up to %s, the longest %s.",
		row.Name, row.Note, of, human(s.P50), human(s.P90), human(s.P99), human(s.Max))
	tallest := 0
	for _, b := range c.Durations {
		tallest = max(tallest, b.Good, b.Failed+b.Other)
	}
	// The square root keeps one run visible beside ten thousand.
	height := func(n int) float64 {
		if n == 0 {
			return 0
		}
		return math.Max(6, round(42*math.Sqrt(float64(n)/float64(tallest)), 10))
	}
	for _, b := range c.Durations {
		x := a.x(b.From)
		w := math.Max(3, round(a.x(b.From*math.Pow(10, 0.1))-x-1, 10))
		if h := height(b.Good); h > 0 {
			row.Bars = append(row.Bars, rect{"good", x, 50 - h, w, h})
		}
		bad := height(b.Failed)
		if bad > 0 {
			row.Bars = append(row.Bars, rect{"bad", x, 50, w, bad})
		}
		if h := height(b.Other); h > 0 {
			row.Bars = append(row.Bars, rect{"other", x, 50 + bad, w, math.Min(h, 50-bad)})
		}
	}
	if s.N > 0 {
		row.Lines = marks(s, a)
	}
	return row
}

// marks draws a spread: p50 as a high line, p90 and p99 lower, the maximum as the end.
func marks(s Spread, a axis) []rect {
	mark := func(kind string, seconds, w, h float64) rect {
		return rect{kind, round(math.Min(a.x(seconds)-w/2, 1000-w), 10), 50 - h/2, w, h}
	}
	return []rect{mark("p50", s.P50, 5, 100), mark("p90", s.P90, 3, 64), mark("p99", s.P99, 3, 44), mark("max", s.Max, 3, 24)}
}

// runsWords counts a class's runs.
func runsWords(c *ClassReport) string {
	s := count(c.Runs, "run", "runs")
	if c.Failed > 0 {
		s += fmt.Sprintf(", %s failed (%s)", grouped3(c.Failed), percent(float64(c.Failed)/float64(c.Runs)))
	}
	if n := c.Cancelled + c.Other; n > 0 {
		s += fmt.Sprintf(", %s ended otherwise", grouped3(n))
	}
	return s + ", " + percent(c.BusyShare) + " of the run time"
}

// compared are the layouts whose waits stand beside those in one line.
func compared(r *Report) []Layout {
	workers := r.Verdict.Workers
	if workers == 0 {
		workers = 2
	}
	var list []Layout
	for _, l := range r.Layouts {
		switch l.Name {
		case layoutOneLine, layoutPresent, layoutIsolate, layoutPromote, fmt.Sprintf("%s%d", layoutWorkers, min(workers, maxWorkers)):
			list = append(list, l)
		}
	}
	return list
}

// waitPlot shows the waits of the classes that wait most, as recorded and under
// other layouts, and how many more waited.
func waitPlot(r *Report) (*plot, int) {
	layouts := compared(r)
	if len(layouts) == 0 {
		return nil, 0
	}
	waiting := slices.DeleteFunc(slices.Clone(layouts[0].Classes), func(c ClassWaits) bool { return c.Max <= 0 })
	if len(waiting) == 0 {
		return nil, 0
	}
	slices.SortStableFunc(waiting, func(x, y ClassWaits) int { return cmp.Compare(y.Hours, x.Hours) })
	shown := waiting[:min(htmlWaits, len(waiting))]
	most := 0.0
	for _, c := range shown {
		for i := range layouts {
			most = math.Max(most, layouts[i].of(c.Class).Max)
		}
	}
	a := newAxis(1, most)
	p := &plot{Ticks: a.ticks()}
	for _, c := range shown {
		p.Groups = append(p.Groups, waitGroup(r, c.Class, layouts, a, p.Ticks))
	}
	return p, len(waiting) - len(shown)
}

// minBar is the narrowest bar of waits: its colour still shows beside the marks.
const minBar = 14

func waitGroup(r *Report, class string, layouts []Layout, a axis, ticks []tick) plotGroup {
	g := plotGroup{Name: visible(class)}
	add := func(name, key string, s Spread) {
		row := plotRow{Name: name, Key: key, Numbers: numbers(s), Ticks: ticks}
		row.Alt = fmt.Sprintf("%s, %s: half wait up to %s, 99 %% up to %s, the longest %s.", g.Name, name, human(s.P50), human(s.P99), human(s.Max))
		if s.Max == 0 {
			row.Numbers, row.Note, row.Alt = nil, "nobody waits", g.Name+", "+name+": nobody waits."
		} else {
			from, to := a.x(s.P50), a.x(s.Max)
			if spare := minBar - (to - from); spare > 0 {
				from = math.Min(math.Max(0, from-spare/2), 1000-minBar)
				to = from + minBar
			}
			row.Bars = []rect{{key, round(from, 10), 36, round(to-from, 10), 28}}
			row.Lines = marks(s, a)
		}
		g.Rows = append(g.Rows, row)
	}
	i := slices.IndexFunc(r.Classes, func(c ClassReport) bool { return c.Class == class })
	if i >= 0 && r.Classes[i].Recorded != nil {
		add("As recorded", "recorded", *r.Classes[i].Recorded)
	}
	for i := range layouts {
		key := "after"
		if layouts[i].Name == layoutOneLine {
			key = "before"
		}
		add(layoutShort(layouts[i].Name), key, layouts[i].of(class).Spread)
	}
	return g
}

// layoutShort names a layout in few words.
func layoutShort(name string) string {
	switch name {
	case layoutOneLine:
		return "One line"
	case layoutPresent:
		return "As it is now"
	case layoutIsolate:
		return "Blockers apart"
	case layoutPromote:
		return "Promoted"
	}
	return name[len(layoutWorkers):] + " workers"
}

package runlog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Conditions of the judgements about one class.
const (
	minTrendRuns = 10
	minTrendDays = 2.0
	clearZ       = 2.58
	minSplitRuns = 20
	apartWithin  = 5.0 // medians of a class's two groups
	earlyFactor  = 4.0 // a failure is early when good runs take so many times longer
	minEarly     = 3
	minEarlyPart = 0.1
)

// grouped is the runs of one class, in the order of Log.Runs.
type grouped struct {
	class int32
	runs  []Run
	busy  int64
}

// group splits the runs by class; the result is parallel to Log.Classes.
func (l *Log) group() []grouped {
	counts := make([]int, len(l.Classes))
	for i := range l.Runs {
		counts[l.Runs[i].Class]++
	}
	groups := make([]grouped, len(l.Classes))
	for i := range groups {
		groups[i] = grouped{class: int32(i), runs: make([]Run, 0, counts[i])}
	}
	for i := range l.Runs {
		g := &groups[l.Runs[i].Class]
		g.runs = append(g.runs, l.Runs[i])
		g.busy += l.Runs[i].Took
	}
	return groups
}

// report is one class in numbers; total is the busy time of all.
func (g *grouped) report(name string, total int64) ClassReport {
	c := ClassReport{Class: name, Runs: len(g.runs), BusyHours: hours(float64(g.busy))}
	if total > 0 {
		c.BusyShare = round(float64(g.busy)/float64(total), 1e4)
	}
	var good, failed, all, waits []int64
	for _, r := range g.runs {
		all = append(all, r.Took)
		switch r.Result {
		case Good:
			good = append(good, r.Took)
		case Failure:
			c.Failed++
			failed = append(failed, r.Took)
		case Cancelled:
			c.Cancelled++
		default:
			c.Other++
		}
		if r.HasReady && r.HasStart {
			waits = append(waits, r.Start-r.Ready)
		}
	}
	c.Good, c.All = spread(good), spread(all)
	c.Durations = histogram(g.runs)
	if len(waits) > 0 {
		s, own := spread(waits), g.ownShare()
		c.Recorded, c.OwnShare = &s, own
	}
	c.Within = Split{TooFew: true}
	if long := fromSecond(good); len(long) >= minSplitRuns {
		c.Within = split(long, max(3, len(long)/20), apartWithin)
	}
	c.DiesEarly = diesEarly(good, failed, len(all))
	c.MostAtOnce, c.OverlapsNext = g.overlaps()
	c.Trend = g.trend(c.MostAtOnce == 1)
	return c
}

// diesEarly says whether failures are a short mode of their own: at least three
// and a tenth of all runs, the median failure at least four times shorter than
// the median good run, and of the runs shorter than half way between the two (in
// logarithms) most are failures. good and failed are sorted here.
func diesEarly(good, failed []int64, all int) *DiesEarly {
	slices.Sort(failed)
	if len(good) == 0 || len(failed) < minEarly || float64(len(failed)) < minEarlyPart*float64(all) {
		return nil
	}
	mg, mf := float64(quantile(good, 0.5)), float64(max(1000, quantile(failed, 0.5)))
	if mg < earlyFactor*mf {
		return nil
	}
	border := int64(math.Sqrt(mg * mf))
	shortGood, _ := slices.BinarySearch(good, border)
	shortFailed, _ := slices.BinarySearch(failed, border)
	if shortFailed <= shortGood || shortFailed < minEarly {
		return nil
	}
	return &DiesEarly{
		Runs: shortFailed, Share: round(float64(shortFailed)/float64(all), 1e4),
		FailedMedian: seconds(quantile(failed, 0.5)), GoodMedian: seconds(quantile(good, 0.5)),
	}
}

// overlaps counts the most runs of the class at once, and the runs that went on
// beyond the start of the class's next one.
func (g *grouped) overlaps() (most, beyond int) {
	starts, ends := recorded(g.runs)
	most = peak(starts, ends)
	byStart := slices.Clone(g.runs)
	byStart = slices.DeleteFunc(byStart, func(r Run) bool { return !r.HasStart })
	slices.SortFunc(byStart, func(a, b Run) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(byStart); i++ {
		if byStart[i-1].End() > byStart[i].Start {
			beyond++
		}
	}
	return most, beyond
}

// recorded lists the starts and ends of runs with a known start, each sorted.
func recorded(runs []Run) (starts, ends []int64) {
	for _, r := range runs {
		if r.HasStart {
			starts, ends = append(starts, r.Start), append(ends, r.End())
		}
	}
	slices.Sort(starts)
	slices.Sort(ends)
	return starts, ends
}

// peak is the most intervals at once; one that ends when another starts does not
// overlap it.
func peak(starts, ends []int64) int {
	most, now, e := 0, 0, 0
	for _, s := range starts {
		for e < len(ends) && ends[e] <= s {
			e++
			now--
		}
		now++
		most = max(most, now)
	}
	return most
}

// ownShare is the part of the class's recorded waiting in which a run of the class
// was on: the time covered by its runs, weighted with the jobs that waited then.
// nil when nothing waited.
func (g *grouped) ownShare() *float64 {
	type edge struct {
		at            int64
		runs, waiting int
	}
	var edges []edge
	for _, r := range g.runs {
		if r.HasStart {
			edges = append(edges, edge{r.Start, 1, 0}, edge{r.End(), -1, 0})
		}
		if r.HasStart && r.HasReady {
			edges = append(edges, edge{r.Ready, 0, 1}, edge{r.Start, 0, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	runs, waiting := 0, 0
	own, all := 0.0, 0.0
	for i, e := range edges {
		if i > 0 {
			area := float64(waiting) * float64(e.at-edges[i-1].at)
			all += area
			if runs > 0 {
				own += area
			}
		}
		runs, waiting = runs+e.runs, waiting+e.waiting
	}
	if all == 0 {
		return nil
	}
	share := round(own/all, 1e4)
	return &share
}

// trend is that of the class's good runs over their start; alone says that never
// two of them ran at once, so that reaching the next start would be news.
func (g *grouped) trend(alone bool) *Trend {
	const day = 86400e6
	var points []point
	var starts, took []int64
	for _, r := range g.runs {
		if r.Result == Good {
			points = append(points, point{float64(r.Start) / day, float64(r.Took) / 1e6})
			starts, took = append(starts, r.Start), append(took, r.Took)
		}
	}
	if len(points) < minTrendRuns {
		return nil
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	slices.Sort(starts)
	slices.Sort(took)
	span := points[len(points)-1].x - points[0].x
	if span < minTrendDays {
		return nil
	}
	slope, z := trend(points)
	median := float64(quantile(took, 0.5)) / 1e6
	t := &Trend{SecondsPerDay: round(slope, 1e3), Z: round(z, 100)}
	t.Clear = math.Abs(z) >= clearZ && math.Abs(slope)*span >= median/4 && median > 0
	gaps := make([]int64, 0, len(starts))
	for i := 1; i < len(starts); i++ {
		gaps = append(gaps, starts[i]-starts[i-1])
	}
	slices.Sort(gaps)
	if gap := float64(quantile(gaps, 0.5)) / 1e6; t.Clear && slope > 0 && gap > median && alone {
		days := round((gap-median)/slope, 10)
		t.DaysToNextStart = &days
	}
	return t
}

// mend says why the class deserves a look for its own sake, nil when it doesn't.
func (c *ClassReport) mend() []string {
	var why []string
	if d := c.DiesEarly; d != nil {
		why = append(why, fmt.Sprintf("dies early in %s of its runs: failures take %s, good runs %s",
			percent(d.Share), human(d.FailedMedian), human(d.GoodMedian)))
	} else if c.Runs >= 5 && c.Failed*5 >= c.Runs {
		why = append(why, fmt.Sprintf("fails %s of %s", grouped3(c.Failed), count(c.Runs, "time", "times")))
	}
	if d := c.typical(); d.N >= 3 && d.P50 >= 4*3600 {
		why = append(why, fmt.Sprintf("takes %s, at most %s", human(d.P50), human(d.Max)))
	}
	if c.Runs >= 5 && c.OverlapsNext*5 >= c.Runs && c.MostAtOnce <= 3 {
		why = append(why, fmt.Sprintf("still runs when its next run starts, %d of %s", c.OverlapsNext, count(c.Runs, "time", "times")))
	}
	if t := c.Trend; t != nil && t.Clear && t.SecondsPerDay > 0 && c.Good.P50 >= 600 {
		s := fmt.Sprintf("grows by %s a day", human(t.SecondsPerDay))
		if t.DaysToNextStart != nil && *t.DaysToNextStart < 90 {
			s += " and reaches its next start in " + daysText(math.Ceil(*t.DaysToNextStart))
		}
		why = append(why, s)
	}
	return why
}

// typical is the durations to judge a class by: those of good runs if there are
// three or more.
func (c *ClassReport) typical() Spread {
	if c.Good.N >= 3 {
		return c.Good
	}
	return c.All
}

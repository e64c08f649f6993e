package runlog

import "math"

// load measures what came in the line's way.
//
//	ρ = Σ durations / (arrival span · n/(n−1))
//
// is the traffic intensity of queueing theory (e.g. Kleinrock, "Queueing Systems",
// volume 1, 1975), with the arrival span stretched by one mean distance between
// arrivals, as n arrivals span n−1 of them. Dispersion is the index of dispersion
// for counts (Cox and Lewis, "The Statistical Analysis of Series of Events",
// 1966) over hours of the clock, from the first arrival's to the last's.
func (l *Log) load() Load {
	var out Load
	busy := int64(0)
	for i := range l.Runs {
		busy += l.Runs[i].Took
	}
	out.BusyHours = hours(float64(busy))
	n := len(l.Runs)
	if n == 0 {
		return out
	}
	if span := float64(l.Runs[n-1].Ready-l.Runs[0].Ready) * float64(n) / math.Max(1, float64(n-1)); span > 0 {
		out.Rho = round(float64(busy)/span, 1e4)
		if busy > 0 {
			out.Rho = math.Max(out.Rho, 1e-4) // 0 would say that it is not known
		}
	}
	out.bursts(l.Runs)
	out.recorded(l.Runs)
	return out
}

// known says whether there is a load to speak of: jobs that all arrived at one moment
// have none.
func (o *Load) known() bool { return o.Rho > 0 || o.BusyHours == 0 }

// Words is the load of one line as reports show it.
func (o *Load) Words() string {
	if !o.known() {
		return "not known"
	}
	return digits3(o.Rho)
}

// bursts looks at arrivals hour by hour; runs are sorted by Ready.
func (o *Load) bursts(runs []Run) {
	const hour = 3600_000_000
	first := floorDiv(runs[0].Ready, hour)
	last := floorDiv(runs[len(runs)-1].Ready, hour)
	hoursAll := float64(last - first + 1)
	squares := 0.0
	for i := 0; i < len(runs); {
		at := floorDiv(runs[i].Ready, hour)
		count, work := 0.0, int64(0)
		for ; i < len(runs) && floorDiv(runs[i].Ready, hour) == at; i++ {
			count++
			work += runs[i].Took
		}
		squares += count * count
		o.BusiestHour = math.Max(o.BusiestHour, hours(float64(work)))
	}
	mean := float64(len(runs)) / hoursAll
	if hoursAll > 1 {
		o.Dispersion = round((squares/hoursAll-mean*mean)/mean, 100)
	}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// recorded looks at what the log says ran at once. Runs that overlap for less
// than a hundredth of the busy time went one at a time, but for clocks.
func (o *Load) recorded(runs []Run) {
	starts, ends := recorded(runs)
	if len(starts) == 0 {
		return
	}
	o.MostAtOnce = peak(starts, ends)
	var busy, overlap int64
	now, e := 0, 0
	last := starts[0]
	step := func(t int64, by int) {
		if now >= 1 {
			busy += t - last
		}
		if now >= 2 {
			overlap += t - last
		}
		last, now = t, now+by
	}
	for _, s := range starts {
		for ; e < len(ends) && ends[e] <= s; e++ {
			step(ends[e], -1)
		}
		step(s, 1)
	}
	for ; e < len(ends); e++ {
		step(ends[e], -1)
	}
	if busy > 0 {
		o.Overlap = round(float64(overlap)/float64(busy), 1e4)
	}
	o.OneLine = o.MostAtOnce <= 1 || o.Overlap <= 0.01
}

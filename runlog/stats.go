package runlog

import (
	"math"
	"slices"
)

// quantile is the nearest-rank quantile of sorted values: the smallest value
// that at least the share p of them does not exceed (definition 1 in Hyndman and
// Fan, "Sample Quantiles in Statistical Packages", 1996). It is always a value
// that occurred. 0 for no values.
func quantile(sorted []int64, p float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(len(sorted), max(1, rank))-1]
}

// Spread is the distribution of durations or waits, in seconds.
type Spread struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_seconds"`
	P90 float64 `json:"p90_seconds"`
	P99 float64 `json:"p99_seconds"`
	Max float64 `json:"max_seconds"`
}

// spread sorts values in place.
func spread(values []int64) Spread {
	slices.Sort(values)
	s := Spread{N: len(values)}
	if s.N > 0 {
		s.P50, s.P90 = seconds(quantile(values, 0.5)), seconds(quantile(values, 0.9))
		s.P99, s.Max = seconds(quantile(values, 0.99)), seconds(values[s.N-1])
	}
	return s
}

// waitsOf sorts values in place.
func waitsOf(values []int64) Waits {
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	return Waits{Spread: spread(values), Hours: hours(sum)}
}

// histogram counts durations in bins of a tenth of a power of ten, the shortest first.
func histogram(runs []Run) []Bin {
	type counts struct{ good, failed, other int }
	bins := map[int]counts{}
	for i := range runs {
		at := binOf(runs[i].Took)
		c := bins[at]
		switch runs[i].Result {
		case Good:
			c.good++
		case Failure:
			c.failed++
		default:
			c.other++
		}
		bins[at] = c
	}
	list := make([]Bin, 0, len(bins))
	for _, at := range sortedKeys(bins) {
		c := bins[at]
		list = append(list, Bin{From: round(math.Pow(10, float64(at)/10), 1e6), Good: c.good, Failed: c.failed, Other: c.other})
	}
	return list
}

// binOf is the tenth of a power of ten that a duration lies in, 0 from a second on.
func binOf(us int64) int {
	const grain = 1e-9 // the logarithm of 10^k must not come out just below k
	return int(math.Floor(10*math.Log10(float64(max(us, 1000))/1e6) + grain))
}

// point is a duration at a time, both in any unit.
type point struct{ x, y float64 }

// maxTrendPoints bounds the pairs that a trend looks at: of a longer series every
// k-th run is taken, so that the points lie evenly over it.
const maxTrendPoints = 200

// trend is the Theil–Sen slope of y over x, the median of the slopes of all pairs
// of points (Theil 1950; Sen, "Estimates of the Regression Coefficient Based on
// Kendall's Tau", 1968): a few wild runs don't bend it. z is the Mann–Kendall
// statistic in standard deviations (Mann 1945; Kendall 1948), ties in x left out
// and ties in y counted as no trend: |z| < 2.58 is what one series in a hundred
// without any trend shows.
func trend(points []point) (slope, z float64) {
	if step := (len(points) + maxTrendPoints - 1) / maxTrendPoints; step > 1 {
		var thin []point
		for i := 0; i < len(points); i += step {
			thin = append(thin, points[i])
		}
		points = thin
	}
	var slopes []float64
	s := 0.0
	for i := range points {
		for j := i + 1; j < len(points); j++ {
			dx, dy := points[j].x-points[i].x, points[j].y-points[i].y
			if dx <= 0 {
				continue
			}
			slopes = append(slopes, dy/dx)
			switch {
			case dy > 0:
				s++
			case dy < 0:
				s--
			}
		}
	}
	if len(slopes) == 0 {
		return 0, 0
	}
	slices.Sort(slopes)
	slope = slopes[len(slopes)/2]
	if len(slopes)%2 == 0 {
		slope = (slope + slopes[len(slopes)/2-1]) / 2
	}
	n := float64(len(points))
	sd := math.Sqrt(n * (n - 1) * (2*n + 5) / 18)
	switch { // the continuity correction
	case s > 0:
		z = (s - 1) / sd
	case s < 0:
		z = (s + 1) / sd
	}
	return slope, z
}

// Split is the best division of durations into a short and a long group.
type Split struct {
	// Split: the two groups are far apart, see separated.
	Split bool `json:"split"`
	// TooFew runs to say anything; the rest is then zero.
	TooFew bool `json:"too_few"`
	// At is the duration between the groups.
	At          float64 `json:"at_seconds"`
	Short       int     `json:"short_runs"`
	Long        int     `json:"long_runs"`
	ShortMedian float64 `json:"short_median_seconds"`
	LongMedian  float64 `json:"long_median_seconds"`
	// Distance is Ashman's D.
	Distance float64 `json:"ashman_d"`
	// Between is how many runs lie in the middle third of the way, in logarithms,
	// from one median to the other.
	Between int `json:"runs_between"`
}

// Conditions for two groups to be far apart.
const (
	minDistance = 3.0 // Ashman, Bird and Zepf call 2 a clean separation of two known groups; a chosen cut needs more
	maxBetween  = 0.2 // of the smaller group
)

// split divides sorted durations where Ashman's D of their logarithms,
//
//	D = √2 · |μ₁ − μ₂| / √(σ₁² + σ₂²)
//
// (Ashman, Bird and Zepf, "Detecting Bimodality in Astronomical Datasets", 1994)
// is the largest, each group having at least smallest runs. Otsu's threshold was
// not taken: it looks for groups of like size, and seven long runs among a
// thousand short ones are what matters here.
//
// The groups are far apart when D ≥ 3, their medians differ by at least the
// factor apart, and the middle third between the medians is nearly empty: a broad
// or skewed single group fails the last one however it is cut.
func split(sorted []int64, smallest int, apart float64) Split {
	n := len(sorted)
	if smallest < 2 {
		smallest = 2
	}
	if n < 2*smallest {
		return Split{TooFew: true}
	}
	logs := make([]float64, n)
	for i, v := range sorted {
		logs[i] = math.Log10(float64(max(v, 1000)) / 1e6) // clocks don't tell less than a millisecond apart
	}
	at, distance := bestCut(logs, smallest)
	if at == 0 {
		return Split{Short: n, ShortMedian: seconds(quantile(sorted, 0.5))}
	}
	short, long := sorted[:at], sorted[at:]
	s := Split{
		Short: len(short), Long: len(long), Distance: round(distance, 100),
		ShortMedian: seconds(quantile(short, 0.5)), LongMedian: seconds(quantile(long, 0.5)),
		At: seconds(int64(1e6 * math.Pow(10, (logs[at-1]+logs[at])/2))),
	}
	m1, m2 := logs[(at-1)/2], logs[at+(n-at-1)/2]
	lo, _ := slices.BinarySearch(logs, m1+(m2-m1)/3)
	hi, _ := slices.BinarySearch(logs, m2-(m2-m1)/3)
	s.Between = max(0, hi-lo)
	s.Split = distance >= minDistance && m2-m1 >= math.Log10(apart) &&
		float64(s.Between) <= maxBetween*float64(min(s.Short, s.Long))
	return s
}

// fromSecond cuts off the runs under a second: they did no work (a job that was
// cancelled at once, or had nothing to do), which is no kind of job.
func fromSecond(sorted []int64) []int64 {
	i, _ := slices.BinarySearch(sorted, 1_000_000)
	return sorted[i:]
}

// bestCut is the index of the long group's first value, 0 when all are alike.
func bestCut(logs []float64, smallest int) (at int, distance float64) {
	n := len(logs)
	mean := 0.0
	for _, v := range logs {
		mean += v / float64(n)
	}
	// Sums of what is left after the mean: variances of like numbers stay exact.
	var sum, squares, allSum, allSquares float64
	for _, v := range logs {
		v -= mean
		allSum += v
		allSquares += v * v
	}
	// A group of equal runs still has the grain of its clock: 1 % of its length.
	const grain = 0.0043 * 0.0043
	for i := 1; i <= n-smallest; i++ {
		v := logs[i-1] - mean
		sum += v
		squares += v * v
		if i < smallest || logs[i] == logs[i-1] {
			continue
		}
		a, b := float64(i), float64(n-i)
		ma, mb := sum/a, (allSum-sum)/b
		va := max(0, squares/a-ma*ma)
		vb := max(0, (allSquares-squares)/b-mb*mb)
		if d := math.Sqrt2 * (mb - ma) / math.Sqrt(va+vb+grain); d > distance {
			at, distance = i, d
		}
	}
	return at, distance
}

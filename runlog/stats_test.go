package runlog

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantileIsAValueThatOccurred(t *testing.T) {
	v := []int64{10, 20, 30, 40}
	for p, want := range map[float64]int64{0: 10, 0.25: 10, 0.26: 20, 0.5: 20, 0.75: 30, 0.99: 40, 1: 40} {
		if got := quantile(v, p); got != want {
			t.Errorf("quantile %v = %d, want %d", p, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("no values have quantile 0")
	}
}

func TestTrend(t *testing.T) {
	var line, flat, wild []point
	for i := range 50 {
		x := float64(i)
		line = append(line, point{x, 5 + 2*x})
		flat = append(flat, point{x, 100 + 10*noise(i)})
		y := 5 + 2*x
		if i%10 == 3 {
			y = 10_000
		}
		wild = append(wild, point{x, y})
	}
	// 50 points in order: S = 50·49/2 = 1225, σ = √(50·49·105/18), z = (S−1)/σ.
	if slope, z := trend(line); slope != 2 || math.Abs(z-1224/math.Sqrt(50*49*105/18.0)) > 1e-9 {
		t.Errorf("a line of slope 2: %v, z %v", slope, z)
	}
	if slope, _ := trend(wild); math.Abs(slope-2) > 0.2 {
		t.Errorf("one point in ten gone wild: slope %v, want about 2", slope)
	}
	if _, z := trend(flat); math.Abs(z) >= clearZ {
		t.Errorf("noise alone: z %v", z)
	}
	if slope, z := trend([]point{{1, 1}, {1, 9}}); slope != 0 || z != 0 {
		t.Errorf("two at one time: %v, %v", slope, z)
	}
}

func TestSplit(t *testing.T) {
	logs := func(n int, f func(i int) float64) []int64 {
		v := make([]int64, n)
		for i := range v {
			v[i] = int64(1e6 * math.Pow(10, f(i)))
		}
		slices.Sort(v)
		return v
	}
	// A rough normal deviate of mean 0 and standard deviation 1.
	normal := func(i int) float64 {
		sum := 0.0
		for k := range 12 {
			sum += noise(12*i+k) / 2
		}
		return sum
	}
	for _, tt := range []struct {
		name        string
		values      []int64
		split       bool
		short, long int
	}{
		{"all the same", logs(500, func(int) float64 { return 2 }), false, 500, 0},
		{"one broad group", logs(2000, func(i int) float64 { return 2 + 0.5*normal(i) }), false, -1, -1},
		{"evenly over four decades", logs(2000, func(i int) float64 { return float64(i) / 500 }), false, -1, -1},
		{"halves two decades apart", logs(1000, func(i int) float64 { return float64(1+i%2*2) + 0.2*noise(i) }), true, 500, 500},
		{"seven long among a thousand", logs(1007, func(i int) float64 {
			if i >= 1000 {
				return 4.7 + 0.2*noise(i)
			}
			return 2.5 + 0.3*noise(i)
		}), true, 1000, 7},
		{"halves a factor of three apart", logs(1000, func(i int) float64 { return 2 + 0.5*float64(i%2) + 0.02*noise(i) }), false, 500, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := split(tt.values, 3, 10)
			if s.TooFew || s.Split != tt.split || (tt.short >= 0 && (s.Short != tt.short || s.Long != tt.long)) {
				t.Errorf("%+v, want split %v into %d and %d", s, tt.split, tt.short, tt.long)
			}
		})
	}
	if s := split([]int64{1, 2, 3}, 3, 10); !s.TooFew {
		t.Errorf("three runs: %+v", s)
	}
}

func TestLengthBiased(t *testing.T) {
	runs := []Run{{Took: 100}}
	for range 60 {
		runs = append(runs, Run{Took: 1})
	}
	if got := lengthBiased(runs); got != 100 {
		t.Errorf("100 of 160 seconds lie in the long run: %d", got)
	}
}

func TestLoad(t *testing.T) {
	// Five runs of 30 min at 00:00, 01:00, … 04:00, except that the third comes
	// at 01:00 too: counts per hour 1, 2, 0, 1, 1.
	const m = 60_000_000
	var runs []Run
	for _, at := range []int64{0, 60, 60, 180, 240} {
		runs = append(runs, Run{Ready: at * m, Start: at * m, Took: 30 * m, HasReady: true, HasStart: true})
	}
	l := (&Log{Runs: runs}).load()
	want := Load{
		BusyHours: 2.5, BusiestHour: 1, MostAtOnce: 2,
		Rho:        0.5,  // 150 min over 240 · 5/4
		Dispersion: 0.4,  // variance (1+4+0+1+1)/5 − 1 over mean 1
		Overlap:    0.25, // 30 of 120 min
	}
	if l != want {
		t.Errorf("load %+v, want %+v", l, want)
	}
}

// Jobs that all arrive at one moment have no load, and nobody claims one; a log that
// is hardly busy at all has one.
func TestLoadOfOneMomentIsNotKnown(t *testing.T) {
	var burst []job
	for range 40 {
		burst = append(burst, job{"a", 0, 5 * time.Minute, false})
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(burst), ReadOptions{}), Options{})
	text := textOf(t, r)
	mustContain(t, text, "load of one line not known", "(load not known)")
	if r.Load.Rho != 0 || strings.Contains(text, "load 0") {
		t.Errorf("load %+v in:\n%s", r.Load, text)
	}
	r = mustAnalyse(t, mustRead(t, inOneLine(burst[:25]), ReadOptions{}), Options{Tolerable: 24 * time.Hour})
	if r.Verdict.Kind != LeaveAlone || strings.Contains(textOf(t, r), "busy 0 %") {
		t.Errorf("all at once, and nobody minds:\n%s", textOf(t, r))
	}
	rare := make([]job, 25)
	for i := range rare {
		rare[i] = job{"a", time.Duration(i) * 100 * day, time.Second, false}
	}
	if r = mustAnalyse(t, mustRead(t, inOneLine(rare), ReadOptions{}), Options{}); r.Load.Rho != 1e-4 {
		t.Errorf("a second in a hundred days is a load of %v", r.Load.Rho)
	}
}

func TestTextShowsNoControlCharacters(t *testing.T) {
	log := mustRead(t, strings.ReplaceAll(inOneLine(story()), "pos-sales", "pos\x1b[31m\u202esales"), ReadOptions{})
	if text := textOf(t, mustAnalyse(t, log, Options{})); strings.ContainsAny(text, "\x1b\u202e") {
		t.Error("a class name reached the terminal as it is")
	}
}

func TestWords(t *testing.T) {
	for v, want := range map[float64]string{0: "0 s", 45: "45 s", 89.96: "90 s", 150: "2.5 min", 5400: "1.5 h", 50400: "14 h", 86400 * 5.25: "5.3 d", -150: "-2.5 min"} {
		if got := human(v); got != want {
			t.Errorf("human(%v) = %q, want %q", v, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := grouped3(n); got != want {
			t.Errorf("grouped3(%d) = %q, want %q", n, got, want)
		}
	}
}

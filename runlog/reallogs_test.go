package runlog

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func readTestdata(t testing.TB, name string) *Log {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log, err := Read(t.Context(), []Source{{name, f}}, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// u03@black ran one job at a time, 4,238 of them. The recorded waits hold a second
// or so of the scheduler's own per job, which a replay doesn't know.
func TestReplayAgreesWithARealLine(t *testing.T) {
	log, err := readTestdata(t, "phillips.csv.gz").Only("u03@black")
	if err != nil {
		t.Fatal(err)
	}
	r := mustAnalyse(t, log, Options{})
	if !r.Load.OneLine || r.Load.MostAtOnce != 1 || r.Span.Runs != 4238 {
		t.Fatalf("%d runs, %+v: not the one line that it was", r.Span.Runs, r.Load)
	}
	// By an independent computation: max(free, submitted), run after run.
	line := layoutNamed(t, r, "one_line").Waits
	if want := (Spread{N: 4238, P50: 18733, P90: 33467, P99: 35520, Max: 36288}); line.Spread != want {
		t.Errorf("replayed waits %+v, want %+v", line.Spread, want)
	}
	if want := (Spread{N: 4238, P50: 18981, P90: 34048, P99: 36594, Max: 37353}); r.Recorded.Spread != want {
		t.Errorf("recorded waits %+v, want %+v", r.Recorded.Spread, want)
	}
	for _, p := range []struct {
		name               string
		recorded, replayed float64
	}{{"p50", r.Recorded.P50, line.P50}, {"max", r.Recorded.Max, line.Max}} {
		if off := math.Abs(p.replayed-p.recorded) / p.recorded; off > 0.05 {
			t.Errorf("%s of the waits: recorded %v s, replayed %v s: %.1f %% off", p.name, p.recorded, p.replayed, 100*off)
		}
	}
	if c := r.Classes[0]; c.OwnShare == nil || *c.OwnShare < 0.9 {
		t.Errorf("its jobs waited for its own: %v", c.OwnShare)
	}
}

// The whole log ran on several partitions with a load that no line can carry.
func TestOverloadedLogIsNotForLanes(t *testing.T) {
	r := mustAnalyse(t, readTestdata(t, "phillips.csv.gz"), Options{})
	if r.Verdict.Kind != AddWorkers || r.Load.OneLine || r.Load.Rho < 1 {
		t.Errorf("verdict %s, load %+v", r.Verdict.Kind, r.Load)
	}
	mustContain(t, textOf(t, r), "one line could never carry this log", "u03@black waited for itself")
}

// Expected numbers are from a few lines of Python over the same jobs: sorted
// lists, nearest ranks, and a heap of k moments at which a worker is free.
func TestStandardWorkloads(t *testing.T) {
	for _, tt := range []struct {
		file                        string
		runs, classes               int
		rho                         float64
		topClass                    string
		topRuns                     int
		topSpread                   Spread
		topShare                    float64
		one, two, eight             Spread
		oneHours, twoHours, allBusy float64
	}{
		{
			file: "nasa.swf.gz", runs: 4000, classes: 261, rho: 1.2662, allBusy: 622.571,
			topClass: "app unknown", topRuns: 195, topSpread: Spread{195, 1005, 9798, 10929, 10929}, topShare: 0.2902,
			one: Spread{4000, 273051, 487727, 558525, 568357}, two: Spread{4000, 2401, 16381, 43193, 46614}, eight: Spread{4000, 0, 0, 0, 87},
			oneHours: 313161.84, twoHours: 6311.241,
		},
		{
			file: "lcg.swf.gz", runs: 4000, classes: 6, rho: 218.3709, allBusy: 1695.042,
			topClass: "group 4", topRuns: 397, topSpread: Spread{397, 311, 21981, 31455, 48862}, topShare: 0.3753,
			one: Spread{4000, 2846534, 5895483, 6064666, 6074077}, two: Spread{4000, 1410107, 2934165, 3018498, 3023053},
			eight: Spread{4000, 312742, 713754, 733151, 734724}, oneHours: 3588957.571, twoHours: 1779315.417,
		},
	} {
		t.Run(tt.file, func(t *testing.T) {
			r := mustAnalyse(t, readTestdata(t, tt.file), Options{})
			if r.Span.Runs != tt.runs || len(r.Classes) != tt.classes || r.Load.Rho != tt.rho || r.Load.BusyHours != tt.allBusy {
				t.Errorf("%d runs of %d classes, load %v, %v h", r.Span.Runs, len(r.Classes), r.Load.Rho, r.Load.BusyHours)
			}
			if c := r.Classes[0]; c.Class != tt.topClass || c.Runs != tt.topRuns || c.All != tt.topSpread || c.BusyShare != tt.topShare {
				t.Errorf("the busiest class is %+v", c)
			}
			for name, want := range map[string]Spread{"one_line": tt.one, "workers_2": tt.two, "workers_8": tt.eight} {
				if got := layoutNamed(t, r, name).Waits.Spread; got != want {
					t.Errorf("%s: waits %+v, want %+v", name, got, want)
				}
			}
			if one, two := layoutNamed(t, r, "one_line").Waits.Hours, layoutNamed(t, r, "workers_2").Waits.Hours; one != tt.oneHours || two != tt.twoHours {
				t.Errorf("hours waited: %v and %v, want %v and %v", one, two, tt.oneHours, tt.twoHours)
			}
			if r.Recorded != nil {
				t.Error("these logs have no waits")
			}
		})
	}
}

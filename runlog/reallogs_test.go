package runlog

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
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

// What can be verified in this log brings little, and the class that waits most can't
// be: the report must say both, and how the promotion's row compares with workers.
func TestLittleGainAndWhoIsLeftOutAreSaid(t *testing.T) {
	r := mustAnalyse(t, readTestdata(t, "phillips.csv.gz"), Options{})
	v := r.Verdict
	if len(v.Verify) != 1 || v.Verify[0].Class != "u04@crumpet" || !v.Verify[0].Little {
		t.Fatalf("to verify: %+v", v.Verify)
	}
	// The counts are what awk finds: 4,238 rows of u03@black, 1,703 of them
	// FAILED; 1 of u02@crumpet.
	want := []LeftOut{
		{Class: "u03@black", Why: "fails 1,703 of 4,238 times; mend that first"},
		{Class: "u01@crumpet", Why: "dies early in 24 % of its runs; mend that first"},
		{Class: "u01@focaccia", Why: "dies early in 69 % of its runs; mend that first"},
		{Class: "u02@crumpet", Why: "has fewer than 5 runs, too few to judge it by"},
	}
	got := slices.Clone(v.LeftOut)
	if !slices.IsSortedFunc(got, func(x, y LeftOut) int { return cmp.Compare(y.Hours, x.Hours) }) || got[0].Hours < 100_000 {
		t.Errorf("not the one that waits most first: %+v", got)
	}
	for i := range got {
		got[i].Hours = 0
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	one, promoted := layoutNamed(t, r, "one_line"), layoutNamed(t, r, "promote")
	if saved := one.Waits.Hours - promoted.Waits.Hours; saved >= 0.1*one.Waits.Hours || saved <= 0 {
		t.Errorf("the promotion takes off %v of %v hours", saved, one.Waits.Hours)
	}
	text := textOf(t, r)
	mustContain(t, text,
		"verifying and promoting what can be verified brings little: 2 % of all waiting goes",
		"99 % of the waiting is that of u03@black, which fails 1,703 of 4,238 times",
		"brings little: 99 % of its waiting goes, which is under 1 % of all waiting",
		"- u03@black: fails 1,703 of 4,238 times; mend that first",
		"At most 2 runs at once (serial 1, parallel 1), as with 2 workers, but jobs wait more",
		"parallel is as wide as: 1: with serial's slot as many as 2 workers")
	_, all := pageOf(t, r)
	mustContain(t, textIn(all, "main"), "brings little: 99 % of its waiting goes", "u03@black: fails 1,703 of 4,238 times; mend that first", "as with 2 workers, but jobs wait more")
}

// Whatever the log, each class is in the list or has one reason for not being there,
// and the row of the promotion is about just the classes of the list.
func TestEveryClassIsListedOrHasAReason(t *testing.T) {
	logs := map[string]*Log{
		"story":  mustRead(t, inOneLine(story()), ReadOptions{}),
		"bursts": mustRead(t, inOneLine(burstsOf(60)), ReadOptions{}),
	}
	for _, file := range []string{"nasa.swf.gz", "lcg.swf.gz", "phillips.csv.gz", "pozidriv.csv.gz"} {
		logs[file] = readTestdata(t, file)
	}
	for name, log := range logs {
		t.Run(name, func(t *testing.T) {
			r := mustAnalyse(t, log, Options{})
			v := r.Verdict
			if len(v.Verify) == 0 {
				t.Fatalf("%s proposes nothing: %v", v.Kind, v.Reasons)
			}
			seen := map[string]int{}
			for _, c := range v.Verify {
				seen[c.Class]++
				if c.Effect == "" || c.Little != strings.HasPrefix(c.Effect, "brings ") {
					t.Errorf("%s: little %v, %q", c.Class, c.Little, c.Effect)
				}
				if c.Role == "blocker" {
					continue
				}
				if w := layoutNamed(t, r, layoutPromote).of(c.Class); c.Layout != layoutPromote || c.After != w.Spread || w.N == 0 {
					t.Errorf("%s then waits %+v by layout %s, and %+v in the promotion's", c.Class, c.After, c.Layout, w)
				}
			}
			for _, l := range v.LeftOut {
				if seen[l.Class]++; l.Why == "" {
					t.Errorf("%s is left out without a reason", l.Class)
				}
			}
			for _, c := range r.Classes {
				if seen[c.Class] != 1 {
					t.Errorf("%s is named %d times", c.Class, seen[c.Class])
				}
			}
			if note := layoutNamed(t, r, layoutPromote).Note; !strings.Contains(note, " workers, ") {
				t.Errorf("the promotion's row is explained by %q", note)
			}
		})
	}
}

// Expected numbers are from the same few lines of Python as those of
// TestStandardWorkloads, which also counted a class's results. They agree with the
// reader: 20 classes, no row dropped or clamped, PREEMPTED and TIMEOUT are failures.
func TestClusterOfManyClasses(t *testing.T) {
	r := mustAnalyse(t, readTestdata(t, "pozidriv.csv.gz"), Options{})
	if a := r.Files[0]; a.Rows != 4000 || a.Used != 4000 || a.Clamped != 0 || a.DroppedRows() != 0 {
		t.Errorf("account: %+v", a)
	}
	if len(r.Classes) != 20 || r.Load.Rho != 20.2512 || r.Load.BusyHours != 4286.914 || r.Load.MostAtOnce != 102 {
		t.Errorf("%d classes, load %+v", len(r.Classes), r.Load)
	}
	if w := r.Recorded; w.Spread != (Spread{4000, 96, 6434, 231730, 441534}) || w.Hours != 8199.786 {
		t.Errorf("recorded waits %+v", w)
	}
	for name, want := range map[string]Waits{
		"one_line":  {Spread{4000, 12555063, 14074756, 14558764, 14670668}, 13333558.596},
		"workers_2": {Spread{4000, 5952348, 6698821, 6911700, 6987223}, 6304031.466},
		"workers_8": {Spread{4000, 1120990, 1289187, 1335806, 1344227}, 1164236.821},
	} {
		if got := layoutNamed(t, r, name).Waits; got != want {
			t.Errorf("%s: waits %+v, want %+v", name, got, want)
		}
	}
	for i, want := range []ClassReport{
		{Class: "u12@brioche", Runs: 18, BusyShare: 0.2089, Good: Spread{18, 165603, 326129, 328238, 328238}, Recorded: &Spread{18, 1, 90689, 99702, 99702}},
		{Class: "u05@croutons", Runs: 277, BusyShare: 0.146, Good: Spread{277, 2018, 10806, 67791, 679179}, Recorded: &Spread{277, 8, 109, 228, 33596}},
		{Class: "u03@black", Runs: 1055, Failed: 5, BusyShare: 0.1354, Good: Spread{1050, 1960, 2469, 3072, 3497}, Recorded: &Spread{1055, 5952, 7065, 7993, 8322}},
		{Class: "u08@black", Runs: 119, Failed: 3, Cancelled: 54, BusyShare: 0.1015, Good: Spread{62, 7055, 7765, 182325, 182325}, Recorded: &Spread{119, 175577, 231750, 259225, 441534}},
	} {
		got := r.Classes[i]
		got = ClassReport{Class: got.Class, Runs: got.Runs, Failed: got.Failed, Cancelled: got.Cancelled, Good: got.Good, BusyShare: got.BusyShare, Recorded: got.Recorded}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// Times that count from an unnamed start are shown as days of the log, not as dates of 1970.
func TestTimesWithoutADate(t *testing.T) {
	var b strings.Builder
	b.WriteString("class,submitted_s,started_s,finished_s,status\n")
	for i := range 40 {
		at := 3*86400 + i*6*3600
		fmt.Fprintf(&b, "a,%d,%d,%d,ok\n", at, at, at+60)
	}
	r := mustAnalyse(t, mustRead(t, b.String(), ReadOptions{}), Options{})
	text := textOf(t, r)
	_, all := pageOf(t, r)
	page := textIn(all, "main")
	mustContain(t, text, "(day 3 to day 12)", "start that it does not name")
	mustContain(t, page, "day 3", "start that it does not name")
	if !r.Span.Relative || strings.Contains(text+page, "1970") {
		t.Errorf("relative %v:\n%s", r.Span.Relative, text)
	}
	if r := mustAnalyse(t, mustRead(t, inOneLine(story()), ReadOptions{}), Options{}); r.Span.Relative {
		t.Error("a log of 2026 has dates")
	}
}

// A little is not nothing: no number in a report that is above nothing is shown as 0.
func TestLittleIsNotShownAsNothing(t *testing.T) {
	var jobs []job
	for i := range 60 { // an hour apart by pairs: a second waits for the first for 10 s
		at := time.Duration(i) * 12 * hour
		jobs = append(jobs, job{"a", at, 11 * time.Second, false}, job{"b", at + time.Second, time.Second, i%30 == 3})
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(jobs), ReadOptions{}), Options{})
	text := textOf(t, r)
	_, all := pageOf(t, r)
	for _, bad := range []string{"load 0 ", "load 0)", " 0.0 ", "busy 0 %"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q is in:\n%s", bad, text)
		}
	}
	mustContain(t, text, "load of one line 0.0003")
	mustContain(t, textIn(all, "dl"), "Load of one line", "0.0003")
	for _, cell := range elementsNamed(all, "td") {
		if strings.HasPrefix(cell.text.String(), "0 h") {
			t.Errorf("the matrix shows %q", cell.text.String())
		}
	}
	if r.Load.Rho == 0 || r.Layouts[0].Waits.Hours == 0 {
		t.Fatalf("this log has a load and a wait: %+v", r.Load)
	}
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

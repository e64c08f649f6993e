package runlog

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// db15 is a pool of 15 connections.
var db15 = []lanegate.Resource{{Name: "db", Capacity: 15, Pool: true}}

// monday is when every made-up log begins.
var monday = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// job is a line of a made-up log, before anything ran.
type job struct {
	class  string
	at     time.Duration // after monday
	took   time.Duration
	failed bool
}

// inOneLine runs jobs first in, first out, one at a time, and writes the log as
// CSV. It is this test's own computation, without the planner: the starts in it
// are what the analyser's replay must find again.
func inOneLine(jobs []job) string {
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b job) int { return int(a.at - b.at) })
	var b strings.Builder
	b.WriteString("class,submitted_at,started_at,finished_at,status\n")
	free := time.Duration(0)
	for _, j := range jobs {
		start := max(free, j.at)
		free = start + j.took
		status := "succeeded"
		if j.failed {
			status = "failed"
		}
		fmt.Fprintf(&b, "%s,%s,%s,%s,%s\n", j.class, stamp(j.at), stamp(start), stamp(free), status)
	}
	return b.String()
}

func stamp(d time.Duration) string { return monday.Add(d).Format(time.RFC3339Nano) }

func mustRead(t testing.TB, text string, opts ReadOptions) *Log {
	t.Helper()
	log, err := Read(t.Context(), []Source{{"test.log", strings.NewReader(text)}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func mustAnalyse(t testing.TB, log *Log, opts Options) *Report {
	t.Helper()
	r, err := Analyse(t.Context(), log, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// noise is a repeatable number from −1 to 1.
func noise(i int) float64 {
	v := math.Sin(float64(i)*12.9898) * 43758.5453
	return 2*(v-math.Floor(v)) - 1
}

const (
	day  = 24 * time.Hour
	hour = time.Hour
)

// story is the failure that lanegate exists for: seven days of one line with one
// job of 10 to 35 hours, which fails on five of them, beside jobs of minutes.
func story() []job {
	var jobs []job
	heavy := []time.Duration{16 * hour, 11 * hour, 10 * hour, 35 * hour, 12 * hour, 13 * hour, 10 * hour}
	for d := range 7 {
		night := time.Duration(d) * day
		jobs = append(jobs, job{"heavy", night + 19*hour, heavy[d], d != 0 && d != 3})
		for h := range 24 {
			i := d*24 + h
			wobble := func(m float64, k int) time.Duration {
				return time.Duration(m*(1+0.3*noise(3*i+k))*60) * time.Second
			}
			at := night + time.Duration(h)*hour
			if h%4 == 1 {
				jobs = append(jobs, job{"pos-sales", at, wobble(6, 0), false})
			}
			if h%6 == 2 {
				jobs = append(jobs, job{"logistics", at, wobble(9, 1), false})
			}
			if h%3 == 0 { // at 09:00 and 21:00 together with pos-sales
				jobs = append(jobs, job{"weather", at, wobble(2, 2), false})
			}
		}
	}
	return jobs
}

func layoutNamed(t *testing.T, r *Report, name string) *Layout {
	t.Helper()
	i := slices.IndexFunc(r.Layouts, func(l Layout) bool { return l.Name == name })
	if i < 0 {
		t.Fatalf("no layout %q", name)
	}
	return &r.Layouts[i]
}

func mustContain(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

func textOf(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(b.String(), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("line %d has %d columns: %s", i+1, n, line)
		}
	}
	return b.String()
}

func TestStoryIsFound(t *testing.T) {
	r := mustAnalyse(t, mustRead(t, inOneLine(story()), ReadOptions{}), Options{})
	if v := r.Verdict; v.Kind != Isolate || !slices.Equal(v.Classes, []string{"heavy"}) {
		t.Fatalf("verdict %s about %v: %v", v.Kind, v.Classes, v.Reasons)
	}
	if !r.Load.OneLine || r.Load.MostAtOnce != 1 {
		t.Errorf("load = %+v; the log is one line", r.Load)
	}
	if b := r.Blockers[0]; b.Class != "heavy" || b.Share < 0.95 {
		t.Errorf("the worst blocker is %+v", b)
	}
	line := layoutNamed(t, r, "one_line")
	if *r.Recorded != line.Waits {
		t.Errorf("recorded waits %+v, replayed %+v", *r.Recorded, line.Waits)
	}
	var names []string
	for _, c := range r.Verdict.Verify {
		names = append(names, c.Class)
		if c.After.P50 > 15*60 {
			t.Errorf("%s still waits %v s after being taken out of the line", c.Class, c.After.P50)
		}
	}
	slices.Sort(names)
	if want := []string{"heavy", "logistics", "pos-sales", "weather"}; !slices.Equal(names, want) {
		t.Errorf("to verify: %v, want %v", names, want)
	}
	two := layoutNamed(t, r, "workers_2")
	if two.Waits.P99 >= line.Waits.P99/2 || two.MostAtOnce != 2 {
		t.Errorf("2 workers: %+v, one line %+v", two.Waits, line.Waits)
	}
	if !slices.ContainsFunc(r.Mend, func(m Mend) bool {
		return m.Class == "heavy" && strings.Contains(strings.Join(m.Why, ";"), "fails 5 of 7 times")
	}) {
		t.Errorf("mend = %+v", r.Mend)
	}
	if !r.Mix.Split || r.Mix.Long != 7 {
		t.Errorf("mix = %+v; seven runs are far from all others", r.Mix)
	}
	mustContain(t, textOf(t, r), "Isolate heavy", "heavy causes", "2 workers for everything would bring", "fails 5 of 7 times; takes 12 h, at most 35 h", `-d '{"members": [ {"class": "heavy", "copies": 1},`)
}

// The heavy job of 16 hours begins at 19:00; pos-sales, due at 21:00, starts at
// 11:00 the next morning.
func TestStoryFindsTheFourteenHours(t *testing.T) {
	jobs := []job{{"heavy", 19 * hour, 16 * hour, true}, {"pos-sales", 21 * hour, 5 * time.Minute, false}}
	for d := range 6 {
		jobs = append(jobs, job{"heavy", time.Duration(d+2)*day + 19*hour, 10 * hour, d < 4})
		for h := range 4 {
			jobs = append(jobs, job{"pos-sales", time.Duration(d+2)*day + time.Duration(9+h)*hour, 5 * time.Minute, false})
		}
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(jobs), ReadOptions{}), Options{})
	i := slices.IndexFunc(r.Classes, func(c ClassReport) bool { return c.Class == "pos-sales" })
	if got := r.Classes[i].Recorded.Max; got != 14*3600 {
		t.Errorf("pos-sales waited at most %v s, want 14 hours", got)
	}
	if got := layoutNamed(t, r, "one_line").of("pos-sales").Max; got != 14*3600 {
		t.Errorf("replayed: %v s, want 14 hours", got)
	}
	if b := r.Blame[0]; b.Blocker != "heavy" || b.Victim != "pos-sales" || b.Hours != 14 || b.Share != 1 {
		t.Errorf("blame[0] = %+v, want heavy → pos-sales 14 h, all of it", b)
	}
	mustContain(t, textOf(t, r), "14 h")
}

// Promotion of the three short classes, sized by a pool of 15 connections and 5
// per run: (15 − 5 − 0) / 5 = 2, as DESIGN's example has it.
func TestPromotionIsSizedByTheArithmetic(t *testing.T) {
	log := mustRead(t, inOneLine(story()), ReadOptions{})
	units := map[string]lanegate.Units{}
	for _, c := range log.Classes {
		units[c] = lanegate.Units{"db": 5}
	}
	r := mustAnalyse(t, log, Options{Resources: db15, Units: units})
	p := layoutNamed(t, r, "promote")
	i := slices.IndexFunc(p.Lanes, func(l LaneReport) bool { return l.Name == "parallel" })
	if p.Lanes[i].Width != 2 || !strings.Contains(p.Lanes[i].Arithmetic, "(15 − 5 − 0) / 5 = 2") {
		t.Errorf("parallel = %+v", p.Lanes[i])
	}
	if p.Peaks["db"] != 15 {
		t.Errorf("peak units %v, want 15: heavy and two short jobs at once", p.Peaks)
	}
	if w := p.of("pos-sales"); w.Max > 30*60 {
		t.Errorf("promoted pos-sales waits up to %v s", w.Max)
	}
}

func TestShortJobsAreLeftAlone(t *testing.T) {
	var jobs []job
	for i := range 7 * 96 {
		took := time.Duration(60+40*noise(i)) * time.Second
		jobs = append(jobs, job{[]string{"a", "b", "c"}[i%3], time.Duration(i) * 15 * time.Minute, took, false})
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(jobs), ReadOptions{}), Options{})
	if r.Verdict.Kind != LeaveAlone || len(r.Verdict.Verify) != 0 {
		t.Fatalf("verdict %s: %v", r.Verdict.Kind, r.Verdict.Reasons)
	}
	if r.Mix.Split {
		t.Errorf("mix = %+v; all jobs are alike", r.Mix)
	}
	mustContain(t, textOf(t, r), "Leave it alone", "over-engineering")
}

// burstsOf is seven nights of n jobs each, all at 02:00, the same work in every class.
func burstsOf(n int) []job {
	var jobs []job
	for d := range 7 {
		for i := range n {
			jobs = append(jobs, job{[]string{"a", "b", "c"}[i%3], time.Duration(d)*day + 2*hour, time.Duration(300+30*noise(i)) * time.Second, false})
		}
	}
	return jobs
}

func TestBurstsNeedWorkers(t *testing.T) {
	r := mustAnalyse(t, mustRead(t, inOneLine(burstsOf(60)), ReadOptions{}), Options{Tolerable: 2 * hour})
	if r.Verdict.Kind != AddWorkers || len(r.Verdict.Classes) != 0 {
		t.Fatalf("verdict %s: %v", r.Verdict.Kind, r.Verdict.Reasons)
	}
	// 60 jobs of 5 minutes: one line needs 5 hours, 3 workers 100 minutes.
	if r.Verdict.Workers != 3 {
		t.Errorf("%d workers, want 3: %v", r.Verdict.Workers, r.Verdict.Reasons)
	}
	if r.Load.Rho > 0.3 || r.Load.Dispersion < 10 {
		t.Errorf("load = %+v; little work in big bursts", r.Load)
	}
	mustContain(t, textOf(t, r), "Add workers, not lanes", "bursts", `{"class": "a", "copies": 2}`)
	if len(r.Verdict.Verify) != 3 || r.Verdict.Verify[0].Role != "peer" || r.Verdict.Verify[0].Layout != "promote" || r.Verdict.Verify[0].After.Max > r.Verdict.Verify[0].Before.Max/2 {
		t.Errorf("to verify: %+v", r.Verdict.Verify)
	}
}

func TestEarlyDeathIsNoReasonForALane(t *testing.T) {
	var jobs []job
	for i := range 100 {
		at := time.Duration(i) * 3 * hour
		j := job{"etl", at, time.Duration(7200+600*noise(i)) * time.Second, false}
		if i%5 == 4 {
			j.took, j.failed = time.Duration(90+20*noise(i))*time.Second, true
		}
		jobs = append(jobs, j, job{"small", at + hour/2, 2 * time.Minute, false})
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(jobs), ReadOptions{}), Options{})
	if v := r.Verdict; v.Kind != FixFailures || !slices.Equal(v.Classes, []string{"etl"}) || len(v.Verify) != 0 {
		t.Fatalf("verdict %+v", v)
	}
	i := slices.IndexFunc(r.Classes, func(c ClassReport) bool { return c.Class == "etl" })
	if d := r.Classes[i].DiesEarly; d == nil || d.Runs != 20 || d.Share != 0.2 {
		t.Errorf("dies early = %+v", d)
	}
	if r.Classes[i].Within.Split {
		t.Errorf("good runs alone are one group: %+v", r.Classes[i].Within)
	}
	mustContain(t, textOf(t, r), "Fix failures first: etl dies early in 20 % of its runs", "no reason for a lane")
}

func TestLogsThatCannotTell(t *testing.T) {
	few := inOneLine(story()[:12])
	r := mustAnalyse(t, mustRead(t, few, ReadOptions{}), Options{})
	if r.Verdict.Kind != CannotTell || !strings.Contains(r.Verdict.Sentence, "too few") {
		t.Errorf("12 runs: %+v", r.Verdict)
	}
	mustContain(t, textOf(t, r), "too few runs of a second or more")
	var b strings.Builder
	b.WriteString("class,started_at,finished_at\n")
	for i := range 50 {
		at := time.Duration(i) * hour
		fmt.Fprintf(&b, "a,%s,%s\n", stamp(at), stamp(at+time.Minute))
	}
	r = mustAnalyse(t, mustRead(t, b.String(), ReadOptions{}), Options{})
	if r.Verdict.Kind != CannotTell || r.Recorded != nil || len(r.Layouts) != 0 {
		t.Errorf("without submit times: %+v", r.Verdict)
	}
	if c := r.Classes[0]; c.All.N != 50 || c.All.P50 != 60 || c.MostAtOnce != 1 {
		t.Errorf("the rest is still given: %+v", c)
	}
	mustContain(t, textOf(t, r), "does not say when jobs were submitted", "No row says how its run ended")
}

// Behind a run of three hours hundreds of jobs pile up, and wait for each other long
// after it has ended: most of the waiting is charged to them. Without it there
// would be none.
func TestBacklogIsNoExcuse(t *testing.T) {
	var jobs []job
	for i := range 7 * 24 * 90 { // every 40 s, 25 s each
		jobs = append(jobs, job{fmt.Sprintf("small-%d", i%30), time.Duration(i) * 40 * time.Second, time.Duration(25+15*noise(i)) * time.Second, false})
	}
	for d := range 7 {
		jobs = append(jobs, job{"heavy", time.Duration(d)*day + 3*hour, 3 * hour, false})
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(jobs), ReadOptions{}), Options{})
	if b := r.Blockers[0]; b.Class != "heavy" || b.Share > 0.5 {
		t.Fatalf("the worst blocker is %+v; this test is about one with less than half", b)
	}
	if v := r.Verdict; v.Kind != Isolate || !slices.Equal(v.Classes, []string{"heavy"}) {
		t.Errorf("verdict %s about %v: %v", v.Kind, v.Classes, v.Reasons)
	}
	if w := layoutNamed(t, r, "isolate").of("small-3"); w.P99 > 60 {
		t.Errorf("with heavy apart small-3 still waits %+v", w)
	}
}

func TestHiddenOrderIsWarnedAbout(t *testing.T) {
	var jobs []job
	for d := range 10 {
		night := time.Duration(d) * day
		jobs = append(jobs,
			job{"heavy", night + hour, 5 * hour, false},
			job{"extract", night + 2*hour, 10 * time.Minute, false},
			job{"report", night + 2*hour + time.Minute, 5 * time.Minute, false}) // due before extract has ended
		for h := range 5 { // unrelated: before extract on half of the nights
			jobs = append(jobs, job{"poll", night + time.Duration(8+2*h)*hour, time.Minute, false})
		}
	}
	r := mustAnalyse(t, mustRead(t, inOneLine(jobs), ReadOptions{}), Options{})
	i := slices.IndexFunc(r.Order, func(o Order) bool { return o.First == "extract" && o.Then == "report" })
	if i < 0 {
		t.Fatalf("order = %+v", r.Order)
	}
	if o := r.Order[i]; o.Cycles != 10 || o.Kept != 10 || o.Held != 10 || o.Gap != 0 {
		t.Errorf("extract, report: %+v", o)
	}
	if slices.ContainsFunc(r.Order, func(o Order) bool { return o.First == "poll" || o.Then == "poll" }) {
		t.Errorf("poll has no order with anything: %+v", r.Order)
	}
	mustContain(t, textOf(t, r), "report started after extract had ended in 10 of 10 cycles")
}

func TestProgressCountsTheReplays(t *testing.T) {
	var told []int
	opts := Options{Progress: func(done, all int) {
		if told = append(told, done); all != 10 {
			t.Errorf("of %d replays; one line, isolate, promote and 2 to 8 workers are 10", all)
		}
	}}
	mustAnalyse(t, mustRead(t, inOneLine(story()), ReadOptions{}), opts)
	if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestAnalyseStopsWithItsContext(t *testing.T) {
	log := mustRead(t, inOneLine(story()), ReadOptions{})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Analyse(ctx, log, Options{}); err == nil {
		t.Error("an ended context must end the analysis")
	}
}

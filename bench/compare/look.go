package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// starts takes the starts that were noted.
func (r *runner) takeStarts() (all []peer.Start, err error) {
	if r.target != nil {
		return r.target.starts.Take(), nil
	}
	err = r.get("/bench/starts", &all)
	return all, err
}

// submitStamped sends a job that carries its time and returns how long the answer took.
func (r *runner) submitStamped(s peer.Stamp) (time.Duration, error) {
	began := time.Now()
	s.Sent = began.UnixNano()
	payload, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	_, err = r.Once(r.Post("/jobs", fmt.Appendf(nil, `{"class":%q,"payload":%s}`, s.Class, payload)))
	return time.Since(began), err
}

// idle: one job at a time, with nothing else going on.
func idle(ctx context.Context, e *env) *rig.Cell {
	const wait50, wait99, after99 = "submit → start p50 ms", "submit → start p99 ms", "answer → start p99 ms"
	c := rig.NewCell("idle", "idle: submit → start, PostgreSQL",
		rig.Goal{Text: "p50 ≤ 3 ms", Figure: wait50, Who: "lanegate", Bound: 3, Less: true},
		rig.Goal{Text: "p99 ≤ 12 ms", Figure: wait99, Who: "lanegate", Bound: 12, Less: true},
		rig.Goal{Text: "answer → start in one process p99 ≤ 1 ms", Figure: after99, Who: lanegateInside, Bound: 1, Less: true},
	)
	n := pick(e, 200, 60)
	m := func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		if err := r.begin(peer.Width); err != nil {
			return nil, err
		}
		time.Sleep(time.Second) // workers register and come to rest
		if _, err := r.takeStarts(); err != nil {
			return nil, err
		}
		answers := make([]float64, n)
		for i := range n {
			took, err := r.submitStamped(peer.Stamp{Class: "c" + twoDigits(i%peer.Classes), N: i})
			if err != nil {
				return nil, err
			}
			answers[i] = float64(took.Nanoseconds()) / 1e6
			time.Sleep(time.Duration(20+rand.IntN(20)) * time.Millisecond)
		}
		var all []peer.Start
		err := within(ctx, 15*time.Second, func() (bool, error) {
			more, err := r.takeStarts()
			all = append(all, more...)
			return len(all) >= n, err
		})
		if err != nil {
			return nil, fmt.Errorf("%d of %d jobs started: %w", len(all), n, err)
		}
		var waits, after []float64
		for _, s := range all {
			waits, after = append(waits, s.Wait), append(after, max(0, s.Wait-answers[s.N]))
		}
		return []rig.Figure{{Name: wait50, Value: quantile(waits, 0.5)}, {Name: wait99, Value: quantile(waits, 0.99)}, {Name: after99, Value: quantile(after, 0.99)}}, r.end(ctx)
	}
	return e.contest(ctx, c, pick(e, 2, 1), []contestant{
		{"lanegate", e.paused, m},
		{lanegateInside, e.other("lanegate", peer.Config{}), m},
		{"River/pgx default", e.other("river-pgx", peer.Config{}), m},
		{"River/pgx tuned", e.other("river-pgx", peer.Config{Tuned: true}), m},
		{"Asynq", e.other("asynq", peer.Config{}), m},
	})
}

func quantile(values []float64, q float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

// reads: what people and scrapers look at, with many rows, and the memory it takes.
func reads(ctx context.Context, e *env) *rig.Cell {
	n := pick(e, 1_000_000, 50_000)
	const rss = "RSS MiB"
	c := rig.NewCell("reads", fmt.Sprintf("looking, with %s queued and %s done", thousands(n), thousands(n)))
	pages := []struct{ name, path string }{
		{"GET /lanes", "/lanes"}, {"GET /metrics", "/metrics"}, {"GET /jobs", "/jobs?limit=50"},
		{"GET /jobs?state=queued", "/jobs?limit=50&state=queued"}, {"GET /jobs?state=succeeded", "/jobs?limit=50&state=succeeded"},
		{"GET /jobs?class=c07", "/jobs?limit=50&class=c07"}, {"GET /jobs?lane=wide", "/jobs?limit=50&lane=wide"},
		{"GET /jobs, next page", ""}, {"GET /job-classes", "/job-classes"}, {"GET /resources", "/resources"},
	}
	for _, p := range pages {
		c.Goals = append(c.Goals, rig.Goal{Text: p.name + " p50 ≤ 5 ms", Figure: p50, Who: p.name, Bound: 5, Less: true})
	}
	c.Goals = append(c.Goals, rig.Goal{Text: "RSS ≤ 64 MiB", Figure: rss, Who: "the gateway, after this", Bound: 64, Less: true})
	r, err := e.paused(ctx)
	if err != nil {
		return c.Fail(err)
	}
	defer r.close(ctx)
	if err := r.exec(ctx, fmt.Sprintf(finishLanegate, n)); err != nil {
		return c.Fail(err)
	}
	if err := r.fill(ctx, n); err != nil {
		return c.Fail(err)
	}
	if err := r.exec(ctx, "VACUUM ANALYZE"); err != nil {
		return c.Fail(err)
	}
	for range pick(e, 3, 1) {
		if err := e.settle(ctx, c); err != nil {
			return c.Fail(err)
		}
		for _, p := range pages {
			if p.path == "" {
				if p.path, err = r.nextPage(); err != nil {
					return c.Fail(err)
				}
			}
			request := r.Get(p.path)
			l, err := r.Drive(ctx, 1, pick(e, 3*time.Second, time.Second), func(int) func() []byte {
				return func() []byte { time.Sleep(5 * time.Millisecond); return request }
			})
			if err != nil {
				return c.Fail(fmt.Errorf("%s: %w", p.name, err))
			}
			c.Add(p.name, rig.Figure{Name: p50, Value: l.Quantile(0.5)}, rig.Figure{Name: p99, Value: l.Quantile(0.99)})
		}
		bytes, err := rig.RSS(r.proc.PID())
		if err != nil {
			return c.Fail(err)
		}
		c.Add("the gateway, after this", rig.Figure{Name: rss, Value: bytes / (1 << 20)})
	}
	return c
}

// nextPage is the path of the second page of all jobs.
func (r *runner) nextPage() (string, error) {
	var page struct {
		Next string `json:"next_cursor"`
	}
	if err := r.get("/jobs?limit=50", &page); err != nil {
		return "", err
	}
	if page.Next == "" {
		return "", fmt.Errorf("the first page of jobs names no next one")
	}
	return "/jobs?limit=50&cursor=" + escape(page.Next), nil
}

// shortJobs: the story that lanegate is about. Heavy jobs come first, then short
// ones over most of the time that one heavy job takes; three may run at once.
func shortJobs(ctx context.Context, e *env) *rig.Cell {
	hold := pick(e, 5*time.Second, 2*time.Second)
	c := rig.NewCell("short-jobs", fmt.Sprintf("short jobs behind 1, 2, 3 heavy ones of %v: their longest wait, s", hold))
	heavies := []int{1, 2, 3}
	figure := func(n int) string { return fmt.Sprintf("%d heavy", n) }
	for _, n := range heavies {
		c.Goals = append(c.Goals, rig.Goal{Text: fmt.Sprintf("lanes: ≤ 0.2 s with %d", n), Figure: figure(n), Who: "lanegate, lanes 2 + 1", Bound: 0.2, Less: true})
	}
	const shorts = 60
	m := func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		if r.target == nil {
			if err := r.begin(3); err != nil {
				return nil, err
			}
		}
		var figures []rig.Figure
		for _, n := range heavies {
			for i := range n {
				if _, err := r.submitStamped(peer.Stamp{Class: "heavy", N: i, Hold: hold}); err != nil {
					return nil, err
				}
			}
			for i := range shorts {
				time.Sleep(hold * 9 / 10 / shorts)
				if _, err := r.submitStamped(peer.Stamp{Class: "short", N: i}); err != nil {
					return nil, err
				}
			}
			var all []peer.Start
			err := within(ctx, time.Duration(n+2)*hold+20*time.Second, func() (bool, error) {
				more, err := r.takeStarts()
				all = append(all, more...)
				return len(all) == n+shorts, err
			})
			if err != nil {
				return nil, err
			}
			longest := 0.0
			for _, s := range all {
				if s.Class == "short" {
					longest = max(longest, s.Wait/1000)
				}
			}
			figures = append(figures, rig.Figure{Name: figure(n), Value: longest})
			time.Sleep(hold) // the last heavy job ends
		}
		return figures, nil
	}
	return e.contest(ctx, c, 1, []contestant{
		{"lanegate, lanes 2 + 1", e.real(gatewayOptions{own: map[string]int{"short": 2, "heavy": 0}}), m},
		{"lanegate, one line", e.real(gatewayOptions{own: map[string]int{"short": 0, "heavy": 0}}), m},
		{"River/pgx, MaxWorkers 3", e.other("river-pgx", peer.Config{Tuned: true}), m},
	})
}

// goBench runs benchmarks of the product's own packages and returns ns per
// operation by name, without the number of processors. Variables are NAME=VALUE.
func (e *env) goBench(ctx context.Context, pkg, pattern string, variables ...string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchtime", pick(e, "1s", "200ms"), "-timeout", "10m", pkg)
	cmd.Dir = filepath.Dir(filepath.Dir(e.binary)) // the repository's root: the binary is in its bin
	cmd.Env = append(cmd.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test -bench %s %s: %w\n%s", pattern, pkg, err, out)
	}
	ns := map[string]float64{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") || f[3] != "ns/op" {
			continue
		}
		v, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			return nil, err
		}
		name := f[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		ns[name] = v
	}
	return ns, nil
}

// guard: what a run as a command costs over a plain fork and exec. The memory of a
// guard is a test of worker/runner.
func guard(ctx context.Context, e *env) *rig.Cell {
	const took, over = "ms a run", "ms over plain"
	c := rig.NewCell("guard", "a run as a command, guard included",
		rig.Goal{Text: "≤ 15 ms over plain fork + exec", Figure: over, Who: "under a guard", Bound: 15, Less: true})
	for range pick(e, 3, 1) {
		if err := e.settle(ctx, c); err != nil {
			return c.Fail(err)
		}
		ns, err := e.goBench(ctx, "./worker/runner", "^Benchmark(Guarded|Plain)$", "LANEGATE_BENCH_GUARD="+e.binary)
		if err != nil {
			return c.Fail(err)
		}
		plain, guarded := ns["BenchmarkPlain"]/1e6, ns["BenchmarkGuarded"]/1e6
		c.Add("plain fork + exec", rig.Figure{Name: took, Value: plain})
		c.Add("under a guard", rig.Figure{Name: took, Value: guarded}, rig.Figure{Name: over, Value: guarded - plain})
	}
	return c
}

// plan: the cost of a decision, and of a whole admission, as classes become many.
func plan(ctx context.Context, e *env) *rig.Cell {
	const took = "µs"
	few, many := "3 classes, 2 lanes, 1 resource", "200 classes, 20 lanes, 50 resources"
	c := rig.NewCell("plan", "admission as classes become many, 100 k queued, SQLite",
		rig.Goal{Text: "a pass: ≤ 3 × the cost with 3 classes", Figure: took, Who: "pass, " + many, Than: "pass, " + few, Bound: 3, Less: true})
	for range pick(e, 3, 1) {
		if err := e.settle(ctx, c); err != nil {
			return c.Fail(err)
		}
		ns, err := e.goBench(ctx, "./admission", "^BenchmarkPlan$")
		if err != nil {
			return c.Fail(err)
		}
		pass, err := e.goBench(ctx, "./store", "^BenchmarkAdmit$/^backlog=100000$")
		if err != nil {
			return c.Fail(err)
		}
		c.Add("the plan alone, "+few, rig.Figure{Name: took, Value: ns["BenchmarkPlan/classes=3/lanes=2/resources=1/due=2"] / 1e3})
		c.Add("the plan alone, "+many, rig.Figure{Name: took, Value: ns["BenchmarkPlan/classes=200/lanes=20/resources=50/due=1"] / 1e3})
		c.Add("pass, "+few, rig.Figure{Name: took, Value: pass["BenchmarkAdmit/backlog=100000/classes=3"] / 1e3})
		c.Add("pass, "+many, rig.Figure{Name: took, Value: pass["BenchmarkAdmit/backlog=100000/classes=200"] / 1e3})
	}
	return c
}

// adviseCell: the analysis of a long run log, with its replays.
func adviseCell(ctx context.Context, e *env) *rig.Cell {
	rows := pick(e, 1_000_000, 50_000)
	const took, peak = "s", "peak RSS MiB"
	c := rig.NewCell("advise", fmt.Sprintf("lanegate advise, %s rows, with replay", thousands(rows)),
		rig.Goal{Text: "≤ 60 s", Figure: took, Who: "lanegate advise", Bound: 60, Less: true},
		rig.Goal{Text: "≤ 1 GiB", Figure: peak, Who: "lanegate advise", Bound: 1024, Less: true})
	file := filepath.Join(e.dir, "runs.csv")
	if err := writeRuns(file, rows); err != nil {
		return c.Fail(err)
	}
	for range pick(e, 2, 1) {
		if err := e.settle(ctx, c); err != nil {
			return c.Fail(err)
		}
		cmd := exec.CommandContext(ctx, e.binary, "advise", file, "--resource", "db=15", "--json")
		began := time.Now()
		if err := cmd.Run(); err != nil {
			return c.Fail(fmt.Errorf("lanegate advise: %w", err))
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return c.Fail(fmt.Errorf("the system tells no use of memory"))
		}
		c.Add("lanegate advise", rig.Figure{Name: took, Value: time.Since(began).Seconds()}, rig.Figure{Name: peak, Value: float64(usage.Maxrss) / 1024})
	}
	return c
}

// writeRuns makes a log of a line that is busy about four fifths of the time: 40
// classes, most of minutes, one in a thousand of hours.
func writeRuns(path string, rows int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "class,submitted,started,finished,status")
	rnd := rand.New(rand.NewPCG(1, 2))
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	free := at
	for range rows {
		class, took := rnd.IntN(40), time.Duration(20+rnd.IntN(80))*time.Second
		if rnd.IntN(1000) == 0 {
			class, took = 40, 3*time.Hour
		}
		at = at.Add(time.Duration(rnd.IntN(180)) * time.Second)
		start := at
		if free.After(start) {
			start = free
		}
		free = start.Add(took)
		fmt.Fprintf(w, "c%02d,%s,%s,%s,success\n", class, at.Format(time.RFC3339), start.Format(time.RFC3339), free.Format(time.RFC3339))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

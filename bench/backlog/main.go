// Command backlog measures whether a deep backlog slows lanegate down. It starts
// the built binary twice, on an empty database and on one with many queued jobs,
// and measures in turns, so that both see the same machine:
//
//   - POST /jobs: accepted jobs per second over 16 connections, and p99
//   - admission: jobs per second through the serial lane, one at a time, each an
//     HTTP call to a no-op target in this process (finish → admit → start → finish)
//
// It prints medians and the ratio of the deep cell to the empty one.
//
//	make build && cd bench && go run ./backlog -binary ../bin/lanegate
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func main() {
	log.SetFlags(0)
	binary := flag.String("binary", "../bin/lanegate", "the lanegate to measure")
	depth := flag.Int("depth", 100_000, "queued jobs in the deep cell")
	rounds := flag.Int("rounds", 5, "measurements per cell")
	span := flag.Duration("span", 2*time.Second, "length of one measurement")
	flag.Parse()
	if err := run(*binary, *depth, *rounds, *span); err != nil {
		log.Fatal(err)
	}
}

// figures are the medians of one cell.
type figures struct {
	Posts     float64 `json:"posts_per_s"`
	PostP99ms float64 `json:"post_p99_ms"`
	Admitted  float64 `json:"admitted_per_s"`
}

func run(binary string, depth, rounds int, span time.Duration) error {
	var done atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		done.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer target.Close()

	empty, err := open(binary, target.URL)
	if err != nil {
		return err
	}
	defer empty.close()
	deep, err := open(binary, target.URL)
	if err != nil {
		return err
	}
	defer deep.close()
	// The backlog is due and stands in line before what is measured; its classes are
	// paused, so that admission looks at their heads each time and starts none.
	log.Printf("filling %d jobs", depth)
	if err := deep.fill(depth); err != nil {
		return err
	}

	cells := []*gateway{empty, deep}
	samples := make([][]figures, len(cells))
	for range rounds {
		for i, g := range cells {
			f, err := g.measure(&done, span)
			if err != nil {
				return err
			}
			samples[i] = append(samples[i], f)
		}
	}
	a, b := median(samples[0]), median(samples[1])
	fmt.Printf("%-28s %12s %12s %8s\n", "", "empty", fmt.Sprintf("%d queued", depth), "ratio")
	row := func(name string, x, y float64) { fmt.Printf("%-28s %12.1f %12.1f %8.2f\n", name, x, y, y/x) }
	row("POST /jobs per second", a.Posts, b.Posts)
	row("POST /jobs p99, ms", a.PostP99ms, b.PostP99ms)
	row("admitted and run per second", a.Admitted, b.Admitted)
	return json.NewEncoder(os.Stdout).Encode(map[string]figures{"empty": a, "deep": b})
}

func median(all []figures) figures {
	pick := func(get func(figures) float64) float64 {
		var v []float64
		for _, f := range all {
			v = append(v, get(f))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	return figures{
		pick(func(f figures) float64 { return f.Posts }),
		pick(func(f figures) float64 { return f.PostP99ms }),
		pick(func(f figures) float64 { return f.Admitted }),
	}
}

// gateway is one running binary with a database of its own.
type gateway struct {
	url, dir string
	cmd      *exec.Cmd
}

const classes = 20

func open(binary, target string) (*gateway, error) {
	dir, err := os.MkdirTemp("", "lanegate-bench")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	config := fmt.Sprintf("listen: %s\ndatabase: %s\nlog: {level: error}\nclasses:\n", addr, filepath.Join(dir, "lanegate.db"))
	config += fmt.Sprintf("  a-measured: {run: {kind: http, url: %q}}\n  posted: {run: {kind: http, url: %q}, paused: true}\n", target, target)
	for i := range classes {
		config += fmt.Sprintf("  backlog-%02d: {run: {kind: http, url: %q}, paused: true}\n", i, target)
	}
	file := filepath.Join(dir, "lanegate.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	g := &gateway{url: "http://" + addr, dir: dir, cmd: exec.Command(binary, "serve", "--config", file)}
	g.cmd.Stderr = os.Stderr
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	for range 200 {
		if resp, err := client.Get(g.url + "/livez"); err == nil {
			resp.Body.Close()
			return g, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	g.close()
	return nil, fmt.Errorf("the gateway did not start")
}

func (g *gateway) close() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	_ = g.cmd.Wait()
	os.RemoveAll(g.dir)
}

func (g *gateway) post(path string, body any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	resp, err := client.Post(g.url+path, "application/json", bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if resp.StatusCode >= 300 {
		return fmt.Errorf("POST %s: %d %s", path, resp.StatusCode, answer)
	}
	return nil
}

func batch(class string, n int) map[string]any {
	items := make([]map[string]any, n)
	for i := range items {
		items[i] = map[string]any{"class": class}
	}
	return map[string]any{"jobs": items}
}

// fill queues n jobs over the backlog classes.
func (g *gateway) fill(n int) error {
	for i := 0; n > 0; i++ {
		k := min(1000, n)
		if err := g.post("/jobs/batch", batch(fmt.Sprintf("backlog-%02d", i%classes), k)); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (g *gateway) measure(done *atomic.Int64, span time.Duration) (figures, error) {
	posts, p99, err := g.measurePosts(span)
	if err != nil {
		return figures{}, err
	}
	if err := g.post("/job-classes/a-measured/pause", nil); err != nil {
		return figures{}, err
	}
	if err := g.post("/jobs/batch", batch("a-measured", measured)); err != nil {
		return figures{}, err
	}
	before, began := done.Load(), time.Now()
	if err := g.post("/job-classes/a-measured/resume", nil); err != nil {
		return figures{}, err
	}
	for done.Load() < before+measured {
		if time.Since(began) > 2*time.Minute {
			return figures{}, fmt.Errorf("only %d of %d jobs ran in two minutes", done.Load()-before, measured)
		}
		time.Sleep(time.Millisecond)
	}
	return figures{Posts: posts, PostP99ms: p99, Admitted: measured / time.Since(began).Seconds()}, nil
}

// measured is how many jobs one measurement of admission runs.
const measured = 500

func (g *gateway) measurePosts(span time.Duration) (perSecond, p99ms float64, err error) {
	const connections = 16
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	began := time.Now()
	for range connections {
		wg.Go(func() {
			var mine []time.Duration
			for time.Since(began) < span {
				t := time.Now()
				if e := g.post("/jobs", map[string]any{"class": "posted", "payload": map[string]int{"n": len(mine)}}); e != nil {
					mu.Lock()
					failed = e
					mu.Unlock()
					return
				}
				mine = append(mine, time.Since(t))
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if failed != nil || len(took) == 0 {
		return 0, 0, failed
	}
	slices.Sort(took)
	return float64(len(took)) / time.Since(began).Seconds(), float64(took[len(took)*99/100].Microseconds()) / 1000, nil
}

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// chaosRounds is 10 in make test; LANEGATE_CHAOS_ROUNDS asks for more (make chaos: 100).
func chaosRounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv("LANEGATE_CHAOS_ROUNDS")
	if s == "" {
		return 10
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("LANEGATE_CHAOS_ROUNDS=%q is not a number of rounds", s)
	}
	return n
}

// chaosRand returns a seeded source and prints the seed, which repeats a failing schedule.
func chaosRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LANEGATE_CHAOS_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("LANEGATE_CHAOS_SEED=%q: %v", s, err)
		}
	}
	t.Logf("LANEGATE_CHAOS_SEED=%d repeats this schedule", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

const killConfig = `
commands:
  one: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.03"}}
  two: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.08"}}
classes:
  one: {run: {kind: exec, command: one}}
  two: {run: {kind: exec, command: two}}
`

// load posts jobs as fast as one client does until stop, and keeps the ids that
// were answered with 201: those are the accepted ones, whatever happens after.
type load struct {
	mu  sync.Mutex
	ids []string
	n   atomic.Int64
}

func (l *load) run(w *world, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(40 * time.Millisecond):
		}
		n := l.n.Add(1)
		class := "one"
		if n%4 == 0 {
			class = "two"
		}
		status, text, err := w.do("POST", "/jobs", fmt.Sprintf(`{"class": %q, "idempotency_key": "k%d"}`, class, n))
		if err != nil || (status != http.StatusCreated && status != http.StatusOK) {
			continue // refused or cut off: nothing was promised
		}
		var j job
		if json.Unmarshal(text, &j) == nil && j.ID != "" {
			l.mu.Lock()
			l.ids = append(l.ids, j.ID)
			l.mu.Unlock()
		}
	}
}

// TestChaosKill9 kills the gateway at random moments under load. Every accepted
// job ends, serial never has two at once (C27), attempts add up, and the next
// process accepts at once (invariants 1, 3, 6).
func TestChaosKill9(t *testing.T) {
	rng := chaosRand(t)
	w := newWorld(t)
	w.config(killConfig)
	l := &load{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { l.run(w, stop) })

	g := w.start()
	for range chaosRounds(t) {
		<-time.After(time.Duration(200+rng.IntN(1000)) * time.Millisecond)
		g.kill()
		began := time.Now()
		g = w.start()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the restarted gateway accepted after %v", took)
		}
	}
	close(stop)
	wg.Wait()
	w.checkAllDone(l.ids)
}

// TestChaosFreeze stops and continues the gateway under load.
func TestChaosFreeze(t *testing.T) {
	rng := chaosRand(t)
	w := newWorld(t)
	w.config(killConfig)
	l := &load{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { l.run(w, stop) })
	g := w.start()
	for range chaosRounds(t) {
		<-time.After(time.Duration(200+rng.IntN(500)) * time.Millisecond)
		g.signal(syscall.SIGSTOP)
		<-time.After(time.Duration(50+rng.IntN(1000)) * time.Millisecond)
		g.signal(syscall.SIGCONT)
	}
	close(stop)
	wg.Wait()
	w.checkAllDone(l.ids)
}

// TestChaosKillGuards kills guards under load: the run is lost, nothing of it
// survives beside its successor, and the job runs again.
func TestChaosKillGuards(t *testing.T) {
	rng := chaosRand(t)
	w := newWorld(t)
	w.config(killConfig)
	l := &load{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { l.run(w, stop) })
	g := w.start()
	killed := 0
	for deadline := time.Now().Add(60 * time.Second); killed < chaosRounds(t) && time.Now().Before(deadline); {
		<-time.After(time.Duration(20+rng.IntN(150)) * time.Millisecond)
		for _, pid := range childrenOf(g.cmd.Process.Pid) {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	close(stop)
	wg.Wait()
	if killed == 0 {
		t.Fatal("no guard was found to kill")
	}
	w.checkAllDone(l.ids)
}

// childrenOf lists the direct children of a process.
func childrenOf(pid int) []int {
	var out []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for f := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// checkAllDone judges the whole history.
func (w *world) checkAllDone(ids []string) {
	w.t.Helper()
	if len(ids) == 0 {
		w.t.Fatal("no job was accepted: the test proved nothing")
	}
	limit := time.Now().Add(2*time.Minute + time.Duration(len(ids))*300*time.Millisecond)
	attempts, cut := 0, 0
	var done []job
	for _, id := range ids {
		j := w.final(id, time.Until(limit))
		if j.State != "succeeded" && !strings.Contains(j.Reason, "worker died") {
			w.t.Errorf("job %s ended as %s: %s", id, j.State, j.Reason)
		}
		if j.State == "succeeded" {
			done = append(done, j)
		}
		for _, a := range w.checkAttempts(j) {
			attempts++
			if a.Outcome != "succeeded" {
				cut++
			}
		}
	}
	if attempts != len(done)+cut {
		w.t.Errorf("%d attempts, but %d successes and %d cut off", attempts, len(done), cut)
	}
	w.checkRan(done)
	w.checkEvents(ids, attempts)
	w.t.Logf("%d jobs, %d attempts, %d of them cut off", len(ids), attempts, cut)
}

// checkAttempts: numbers without gaps, one outcome each, a success only at the end.
func (w *world) checkAttempts(j job) []attempt {
	w.t.Helper()
	list := w.attempts(j.ID)
	if len(list) != j.Attempts {
		w.t.Errorf("job %s counts %d attempts and lists %d", j.ID, j.Attempts, len(list))
	}
	for i, a := range list {
		last := i == len(list)-1
		switch {
		case a.Number != i+1:
			w.t.Errorf("job %s: attempt %d is numbered %d", j.ID, i+1, a.Number)
		case last && j.State == "succeeded" && a.Outcome != "succeeded":
			w.t.Errorf("job %s succeeded but its last attempt is %s", j.ID, a.Outcome)
		case !last && a.Outcome != "lost" && a.Outcome != "interrupted" && a.Outcome != "deferred":
			// deferred: the guard was killed before it had started anything
			w.t.Errorf("job %s: attempt %d is %s, cut off ones are lost, interrupted or deferred", j.ID, a.Number, a.Outcome)
		}
	}
	return list
}

// checkRan: what the database calls a success did run, once and to its end, the
// grandchild included.
func (w *world) checkRan(done []job) {
	w.t.Helper()
	seen := map[string]int{}
	for _, e := range w.events() {
		seen[e.kind+" "+e.job+" "+e.attempt]++
	}
	for _, j := range done {
		for _, kind := range []string{"start", "end", "gstart", "gend"} {
			if n := seen[fmt.Sprintf("%s %s %d", kind, j.ID, j.Attempts)]; n != 1 {
				w.t.Errorf("job %s succeeded by attempt %d, whose record has %d lines %q", j.ID, j.Attempts, n, kind)
			}
		}
	}
}

// checkEvents judges by the jobs' own record: no two process trees at once in
// serial, no attempt started twice, none that the database does not know. Jobs
// whose answer never arrived are in the record, too.
func (w *world) checkEvents(ids []string, attempts int) {
	w.t.Helper()
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	starts := map[string]int{}
	mine := 0
	for _, e := range w.events() {
		switch e.kind {
		case "overlap":
			w.t.Errorf("job %s attempt %s ran beside another process tree of the serial lane", e.job, e.attempt)
		case "start":
			starts[e.job+"/"+e.attempt]++
			if known[e.job] {
				mine++
			}
		}
	}
	for run, n := range starts {
		if n != 1 {
			w.t.Errorf("attempt %s started %d times", run, n)
		}
	}
	if mine > attempts {
		w.t.Errorf("%d runs started, the database knows %d", mine, attempts)
	}
}

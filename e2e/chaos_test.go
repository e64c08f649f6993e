package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
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

// heavy says that this is make chaos, where tests run one after the other and long;
// in make test they have short forms, which run beside others.
func heavy(t *testing.T) bool {
	t.Helper()
	if os.Getenv("LANEGATE_CHAOS_ROUNDS") != "" {
		return true
	}
	t.Parallel()
	return false
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

// chaosConfig has short jobs that fill the serial lane, and two whose first
// attempt lasts until it is cut off.
const chaosConfig = `
commands:
  one: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.03"}}
  two: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.08"}}
  slow: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.03", FIRST: "600"}}
  deaf: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.03", FIRST: "600", DEAF: "1"}}
classes:
  one: {run: {kind: exec, command: one}}
  two: {run: {kind: exec, command: two}}
  slow: {run: {kind: exec, command: slow}}
  deaf: {run: {kind: exec, command: deaf}}
`

// chaos is a gateway under load to which bad things are done at random moments.
type chaos struct {
	*world
	g      *gateway // the present process
	args   []string
	rng    *rand.Rand
	rounds int
	load   *load
	stop   chan struct{} // closed to end the load
	ended  sync.WaitGroup
	// endLoad ends it and waits; it may be called again.
	endLoad func()
}

// newChaos starts a gateway and its load.
func newChaos(t *testing.T, args ...string) *chaos {
	t.Helper()
	c := &chaos{world: newWorld(t), args: args, rng: chaosRand(t), rounds: chaosRounds(t), load: &load{}, stop: make(chan struct{})}
	c.config(chaosConfig)
	c.endLoad = sync.OnceFunc(func() {
		close(c.stop)
		c.ended.Wait()
	})
	t.Cleanup(c.endLoad) // also after a failure
	c.g = c.start(args...)
	c.ended.Go(func() { c.load.run(c.world, c.stop) })
	return c
}

// pause waits a random time, in milliseconds.
func (c *chaos) pause(from, to int) {
	<-time.After(time.Duration(from+c.rng.IntN(to-from)) * time.Millisecond)
}

// inFlight submits a job, past those that wait, and returns once it runs.
func (c *chaos) inFlight(class string) (id string) {
	c.t.Helper()
	id = c.submit(class, "").ID
	c.load.accepted(id)
	if status := c.status("POST", "/jobs/"+id+"/run-next", ""); status != http.StatusOK && status != http.StatusConflict { // 409: it runs already
		c.t.Fatalf("run-next of job %s: %d", id, status)
	}
	c.running(id, 1)
	return id
}

// settle ends the load and judges the whole history.
func (c *chaos) settle() {
	c.t.Helper()
	c.endLoad()
	c.checkAllDone(c.load.ids)
}

// load posts jobs, as fast as one client does while the line is short, until stop.
// It keeps the ids that were answered with 201: those are the accepted ones,
// whatever happens after.
type load struct {
	mu  sync.Mutex
	ids []string
}

// longLine is how many jobs may wait before the load pauses: more would only make
// the test wait for them in the end.
const longLine = 30

func (l *load) run(w *world, stop <-chan struct{}) {
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(40 * time.Millisecond):
		}
		if n%8 == 0 && l.waiting(w) > longLine {
			n-- // look again
			continue
		}
		class := "one"
		if n%4 == 1 {
			class = "two"
		}
		status, text, err := w.do("POST", "/jobs", fmt.Sprintf(`{"class": %q, "idempotency_key": "k%d"}`, class, n))
		if err != nil || (status != http.StatusCreated && status != http.StatusOK) {
			continue // refused or cut off: nothing was promised
		}
		var j job
		if json.Unmarshal(text, &j) == nil && j.ID != "" {
			l.accepted(j.ID)
		}
	}
}

// waiting is the length of the serial line, 0 while that can't be told.
func (l *load) waiting(w *world) int {
	var lane struct {
		Queued int `json:"queued"`
	}
	if _, text, err := w.do("GET", "/lanes/serial", ""); err != nil || json.Unmarshal(text, &lane) != nil {
		return 0
	}
	return lane.Queued
}

func (l *load) accepted(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, id)
}

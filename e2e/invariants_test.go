package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Invariant 1, accepted is durable: what was answered with 201 is there after
// kill -9 in the same moment, and runs without any doorbell (invariant 9, the
// database is the truth).
func TestInvariantAcceptedIsDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(longConfig)
	g := w.start()
	w.must("POST", "/job-classes/short/pause", "", nil)
	var ids []string
	for i := range 20 {
		ids = append(ids, w.submit("short", fmt.Sprintf(`, "payload": %d`, i)).ID)
	}
	g.kill()
	w.start()
	for i, id := range ids {
		if j := w.job(id); j.State != "queued" || string(j.Payload) != fmt.Sprint(i) {
			t.Fatalf("job %d after kill -9: %s with payload %s", i, j.State, j.Payload)
		}
	}
	w.must("POST", "/job-classes/short/resume", "", nil)
	for _, id := range ids {
		if j := w.final(id, 60*time.Second); j.State != "succeeded" || j.Attempts != 1 {
			t.Errorf("job %s: %s after %d attempts", id, j.State, j.Attempts)
		}
	}
	w.checkEvents(ids, len(ids))
}

const manyConfig = `
commands:
  echo: {argv: [sh, -c, 'cat']}
  later: {argv: [sh, -c, 'if [ "$LANEGATE_ATTEMPT" -lt 3 ]; then exit 75; fi']}
  probe: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.02"}}
  hold: {argv: [sh, -c, 'while [ ! -e $DIR/go ]; do sleep 0.05; done']}
classes:
  echo: {run: {kind: exec, command: echo}}
  later: {run: {kind: exec, command: later}, backoff: {base: 50ms, max: 50ms}}
  probe: {run: {kind: exec, command: probe}}
  hold: {run: {kind: exec, command: hold}}
`

// Invariant 8, payloads are verbatim: the bytes that were sent are the bytes on
// the job's stdin (C59).
func TestInvariantPayloadsAreVerbatim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(manyConfig)
	w.start()
	const payload = `{"z": 3889108265204450030, "a":0.1000000000000000055 , "u":"\u00e9\/\ud835\udc59", "e": 1e400, "b":[ ]}`
	j := w.final(w.submit("echo", `, "payload": `+payload).ID, 20*time.Second)
	if j.State != "succeeded" || string(j.Result) != payload {
		t.Errorf("the job got\n%s\nwant\n%s", j.Result, payload)
	}
}

// Invariant 7, waiting is not failing: a deferral costs no attempt of max_attempts 1.
func TestInvariantWaitingIsNotFailing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(manyConfig)
	w.start()
	j := w.final(w.submit("later", "").ID, 20*time.Second)
	if j.State != "succeeded" || j.Attempts != 3 {
		t.Errorf("deferred twice: %s after %d attempts (%s), want succeeded after 3", j.State, j.Attempts, j.Reason)
	}
}

// Invariants 4 (slot before job) and 11 (order within a class), C44: thirty jobs
// of one class in one second run one at a time in submission order, run-next
// being the only exception; nothing is taken out of the line before its turn.
func TestInvariantOrderAndNoPrefetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(manyConfig)
	w.start()
	hold := w.submit("hold", "")
	w.eventually(20*time.Second, "hold runs", func() bool { return w.job(hold.ID).State == "running" })
	var ids []string
	for range 30 {
		ids = append(ids, w.submit("probe", "").ID)
	}
	for _, id := range ids {
		if j := w.job(id); j.State != "queued" || j.Attempts != 0 {
			t.Fatalf("job %s is %s with %d attempts while the only slot is taken", id, j.State, j.Attempts)
		}
	}
	j := w.job(ids[0])
	if len(j.WaitingOn) == 0 || j.WaitingOn[0].Reason != "lane_full" || !slices.Equal(j.WaitingOn[0].Jobs, []string{hold.ID}) {
		t.Errorf("the head waits on %+v, want lane_full by %s", j.WaitingOn, hold.ID)
	}
	last := ids[len(ids)-1]
	w.must("POST", "/jobs/"+last+"/run-next", "", nil)
	if err := os.WriteFile(w.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		w.final(id, 60*time.Second)
	}
	var order []string
	for _, e := range w.events() {
		if e.kind == "start" {
			order = append(order, e.job)
		}
	}
	want := append([]string{last}, ids[:len(ids)-1]...)
	if !slices.Equal(order, want) {
		t.Errorf("ran in the order\n%s\nwant\n%s", strings.Join(order, "\n"), strings.Join(want, "\n"))
	}
	if most := mostAtOnce(w.events(), "probe"); most != 1 {
		t.Errorf("%d at once in serial", most)
	}
}

// C18, C28: neither a lease nor the one-at-a-time guarantee lapses while a
// healthy run goes on for three times the lease.
func TestRunLongerThanTheLeaseRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(`
commands:
  long: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "17"}}
  short: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.02"}}
classes:
  long: {run: {kind: exec, command: long}}
  short: {run: {kind: exec, command: short}}
`)
	w.start("--lease", "5500ms", "--beat", "100ms", "--kill-grace", "100ms")
	long := w.submit("long", "")
	w.running(long.ID, 1)
	short := w.submit("short", "")
	if j := w.final(long.ID, 60*time.Second); j.State != "succeeded" || j.Attempts != 1 {
		t.Errorf("long run: %s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	w.final(short.ID, 20*time.Second)
	w.checkEvents([]string{long.ID, short.ID}, 2)
}

// C17: an attempt of a class that nobody serves any more is reclaimed and shown:
// the job waits, and says for which command.
func TestOrphanOfAnUnservedClassIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(longConfig)
	g := w.start()
	long := w.submit("long", "")
	w.running(long.ID, 1)
	g.kill()
	w.config("classes:\n  long: {run: {kind: exec, command: long}}\n") // the command is gone
	w.start()
	w.eventually(20*time.Second, "the job says that no worker has its command", func() bool {
		j := w.job(long.ID)
		return j.State == "queued" && len(j.WaitingOn) == 1 && j.WaitingOn[0].Reason == "no_worker:long"
	})
	if list := w.attempts(long.ID); list[0].Outcome != "lost" {
		t.Errorf("attempt 1 = %q, want lost", list[0].Outcome)
	}
}

// C17: while an attempt of a dead gateway can't be reclaimed, as something of its
// run still lives, its lane's gauge shows that nobody vouches for it.
func TestAttemptWithoutABeatIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(longConfig)
	short := []string{"--lease", "5500ms", "--beat", "100ms", "--kill-grace", "100ms"}
	g := w.start(short...)
	long := w.submit("long", "")
	w.running(long.ID, 1)
	w.eventually(10*time.Second, "the grandchild runs", func() bool { return w.noted("gstart", long.ID, 1) })
	w.wantGauge("lanegate_lane_in_flight_without_beat", 0)
	guard := childrenOf(g.cmd.Process.Pid)[0]
	for _, s := range []struct {
		pid    int
		signal syscall.Signal
	}{{guard, syscall.SIGSTOP}, {g.cmd.Process.Pid, syscall.SIGKILL}, {guard, syscall.SIGKILL}} {
		if err := syscall.Kill(s.pid, s.signal); err != nil {
			t.Fatal(err)
		}
	}
	<-g.done
	g = w.start(short...)
	w.eventually(20*time.Second, "the gauge rises", func() bool { return w.gauge("lanegate_lane_in_flight_without_beat") == 1 })
	if age := w.gauge("lanegate_oldest_running_seconds"); age < 5 {
		t.Errorf("the oldest run is %v s old, with a lease of 5.5 s gone by", age)
	}
	if list := w.attempts(long.ID); len(list) != 1 || list[0].Outcome != "" {
		t.Errorf("attempts %+v: what still lives must not be given up", list)
	}
	left, err := runHolders(w.runsLock(), g.cmd.Process.Pid)
	if err != nil || len(left) == 0 {
		t.Fatalf("nothing is left of the run: %v", err)
	}
	for _, pid := range left {
		_ = syscall.Kill(pid, syscall.SIGKILL) // one may end with the other
	}
	w.running(long.ID, 2)
	w.wantGauge("lanegate_lane_in_flight_without_beat", 0)
	w.must("POST", "/jobs/"+long.ID+"/cancel", "", nil)
	w.final(long.ID, 20*time.Second)
	w.checkEvents(nil, 0)
}

// gauge reads one of serial's series from /metrics.
func (w *world) gauge(name string) float64 {
	w.t.Helper()
	_, text, err := w.do("GET", "/metrics", "")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+`{lane="serial"} `); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				w.t.Fatalf("%q: %v", line, err)
			}
			return v
		}
	}
	w.t.Fatalf("there is no %s of lane serial", name)
	return 0
}

func (w *world) wantGauge(name string, want float64) {
	w.t.Helper()
	if got := w.gauge(name); got != want {
		w.t.Errorf("%s = %v, want %v", name, got, want)
	}
}

// C40: nothing is reserved by a busy lane while slots are free elsewhere in it.
func TestNoReservationBehindALongJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(`
commands:
  quick: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.1"}}
  slow: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "60"}}
classes:
  quick: {run: {kind: exec, command: quick}, units: {}}
  slow: {run: {kind: exec, command: slow}, units: {}}
lanes:
  parallel: {width: 2, allow_overcommit: true}
`)
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(2, "quick", "slow")
	w.start()
	slow := w.submit("slow", "")
	w.running(slow.ID, 1)
	for range 3 {
		if j := w.final(w.submit("quick", "").ID, 20*time.Second); j.State != "succeeded" {
			t.Errorf("quick job: %s", j.State)
		}
	}
	if j := w.job(slow.ID); j.State != "running" {
		t.Errorf("slow is %s: it must still run", j.State)
	}
}

// C48: at the end of summer time the same local time comes twice. Keys from the
// UTC instant give two jobs, keys from local time one job and a replay; times
// are stored and shown in UTC.
func TestClockChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(manyConfig)
	w.start()
	post := func(key, runAt string) (status int, body string) {
		status, text, err := w.do("POST", "/jobs", fmt.Sprintf(`{"class": "probe", "idempotency_key": %q, "run_at": %q}`, key, runAt))
		if err != nil {
			t.Fatal(err)
		}
		return status, string(text)
	}
	summer, winter := "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"
	if s, body := post("nightly-2026-10-25T00:30Z", summer); s != http.StatusCreated || !strings.Contains(body, `"run_at":"2026-10-25T00:30:00Z"`) {
		t.Errorf("first instant: %d %s", s, body)
	}
	if s, body := post("nightly-2026-10-25T01:30Z", winter); s != http.StatusCreated || !strings.Contains(body, `"run_at":"2026-10-25T01:30:00Z"`) {
		t.Errorf("second instant: %d %s", s, body)
	}
	if s, _ := post("nightly-2026-10-25T02:30", summer); s != http.StatusCreated {
		t.Errorf("local key: %d", s)
	}
	if s, _ := post("nightly-2026-10-25T02:30", summer); s != http.StatusOK {
		t.Errorf("local key again: %d, want a replay", s)
	}
}

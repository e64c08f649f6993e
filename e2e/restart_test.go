package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const longConfig = `
commands:
  short: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.02"}}
  long: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "60"}}
classes:
  short: {run: {kind: exec, command: short}}
  long: {run: {kind: exec, command: long}}
`

// running waits until the job has written its start for the given attempt.
func (w *world) running(id string, attempt int) {
	w.t.Helper()
	w.eventually(20*time.Second, "job "+id+" runs", func() bool { return w.noted("start", id, attempt) })
}

// noted says whether a job has written a line of this kind.
func (w *world) noted(kind, id string, attempt int) bool {
	w.t.Helper()
	return slices.ContainsFunc(w.events(), func(e event) bool {
		return e.kind == kind && e.job == id && e.attempt == strconv.Itoa(attempt)
	})
}

// alive says whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	return !strings.HasPrefix(strings.TrimSpace(rest), "Z")
}

// After kill -9 the next process accepts jobs at once and finds the old run lost
// within two seconds of its guard's end (C21, C23, C25).
func TestRestartAfterKill9(t *testing.T) {
	w := newWorld(t)
	w.config(longConfig)
	g := w.start()
	long := w.submit("long", "")
	w.running(long.ID, 1)
	var waiting []job
	for range 5 {
		waiting = append(waiting, w.submit("short", ""))
	}
	guards := childrenOf(g.cmd.Process.Pid)
	if len(guards) != 1 {
		t.Fatalf("guards = %v, want one", guards)
	}
	g.kill()
	w.start()
	waiting = append(waiting, w.submit("short", "")) // accepted although the old run may still be ending

	var gone, lost time.Time
	w.eventually(20*time.Second, "the old attempt is found lost", func() bool {
		if gone.IsZero() && !alive(guards[0]) {
			gone = time.Now()
		}
		list := w.attempts(long.ID)
		if list[0].Outcome == "" {
			return false
		}
		if list[0].Outcome != "lost" {
			t.Fatalf("attempt 1 = %s, want lost", list[0].Outcome)
		}
		lost = time.Now()
		return true
	})
	if gone.IsZero() {
		t.Error("the attempt was declared lost while its guard still lived")
	} else if lost.Sub(gone) > 2*time.Second {
		t.Errorf("found lost %v after the guard's end, want within two seconds", lost.Sub(gone))
	}

	w.running(long.ID, 2) // it kept its place: the others are still waiting
	for _, j := range waiting {
		if got := w.job(j.ID); got.State != "queued" {
			t.Errorf("job %s is %s: the interrupted one goes first", j.ID, got.State)
		}
	}
	w.must("POST", "/jobs/"+long.ID+"/cancel", "", nil)
	if got := w.final(long.ID, 20*time.Second); got.State != "cancelled" {
		t.Errorf("cancelled job is %s", got.State)
	}
	for _, j := range waiting { // C25: the line moves
		if got := w.final(j.ID, 60*time.Second); got.State != "succeeded" {
			t.Errorf("job %s ended as %s: %s", j.ID, got.State, got.Reason)
		}
	}
	w.checkEvents(nil, 0)
}

// SIGTERM and SIGKILL lead to the same: the job goes back to its place and runs
// again, and no failure is counted (C21, C35).
func TestSIGTERMPutsRunsBack(t *testing.T) {
	w := newWorld(t)
	w.config(longConfig)
	g := w.start()
	long := w.submit("long", "")
	w.running(long.ID, 1)
	pids := childrenOf(g.cmd.Process.Pid)
	if err := g.term(30 * time.Second); err != nil {
		t.Fatalf("SIGTERM: %v", err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("guard %d outlived its gateway", pid)
		}
	}
	if !w.log.contains("goes back to its place") {
		t.Error("the log does not name what was put back")
	}
	w.start()
	w.running(long.ID, 2)
	list := w.attempts(long.ID)
	if list[0].Outcome != "interrupted" {
		t.Errorf("attempt 1 = %s, want interrupted", list[0].Outcome)
	}
	if j := w.job(long.ID); j.State != "running" || j.Attempts != 2 {
		t.Errorf("job = %+v, want its second attempt running", j)
	}
	w.checkEvents(nil, 0)
}

// A second signal does not wait for the drain time.
func TestSecondSignalStopsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.config(strings.Replace(longConfig, "commands:", "commands:\n  # drain is set by the flag", 1))
	g := w.start("--drain", "wait")
	long := w.submit("long", "")
	w.running(long.ID, 1)
	g.signal(syscall.SIGTERM)
	w.eventually(10*time.Second, "the gateway says that it stops", func() bool { return w.log.contains(`"stopping"`) || w.log.contains("msg=stopping") })
	select {
	case <-g.done:
		t.Fatal("--drain wait did not wait for the running job")
	case <-time.After(500 * time.Millisecond):
	}
	if err := g.term(20 * time.Second); err != nil {
		t.Fatalf("second SIGTERM: %v", err)
	}
	w.start()
	w.running(long.ID, 2)
	w.checkEvents(nil, 0)
}

// A gateway that is frozen for longer than its lease finds its run ended by the
// guard's own deadline; the job starts again once, never beside itself.
func TestFreezeLongerThanTheLease(t *testing.T) {
	w := newWorld(t)
	w.config(longConfig)
	g := w.start()
	long := w.submit("long", "")
	w.running(long.ID, 1)
	guards := childrenOf(g.cmd.Process.Pid)
	g.signal(syscall.SIGSTOP)
	w.within(15*time.Second, "the guard ends the run by its deadline", func() bool {
		return !slices.ContainsFunc(guards, alive)
	})
	g.signal(syscall.SIGCONT)
	w.running(long.ID, 2)
	if list := w.attempts(long.ID); list[0].Outcome != "interrupted" {
		t.Errorf("attempt 1 = %s, want interrupted", list[0].Outcome)
	}
	w.checkEvents(nil, 0)
}

// A second gateway on the same database refuses to start and names the holder.
func TestSecondGatewayIsRefused(t *testing.T) {
	w := newWorld(t)
	w.config(longConfig)
	first := w.start()
	second := w.launch("--listen", "127.0.0.1:0", "--start-wait", "300ms")
	select {
	case <-second.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the second gateway neither started nor refused")
	}
	if second.err == nil {
		t.Error("the second gateway ended with exit code 0")
	}
	if pid := strconv.Itoa(first.cmd.Process.Pid); !w.log.contains(pid) {
		t.Errorf("the refusal does not name process %s", pid)
	}
}

// C34: the child is killed from outside; a child ignores SIGTERM past its limit.
// Both end within limit and grace, with a reason, and nothing is left.
func TestKilledAndStubbornChildren(t *testing.T) {
	w := newWorld(t)
	w.write("stubborn.sh", "#!/bin/sh\ntrap '' TERM\necho $$ >\"$PIDFILE\"\nwhile :; do sleep 1; done\n")
	w.config(`
commands:
  victim: {argv: [sh, -c, 'echo $$ >"$PIDFILE"; exec sleep 60'], env: {PIDFILE: $DIR/victim.pid}}
  stubborn: {argv: [sh, $DIR/stubborn.sh], env: {PIDFILE: $DIR/stubborn.pid}}
classes:
  victim: {run: {kind: exec, command: victim}}
  stubborn: {run: {kind: exec, command: stubborn}, timeout: 500ms}
`)
	w.start()
	victim := w.submit("victim", "")
	pid := w.pidFrom("victim.pid")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if j := w.final(victim.ID, 20*time.Second); j.State != "failed" || !strings.Contains(j.Reason, "SIGKILL") {
		t.Errorf("killed child: %s, %q; want failed by SIGKILL", j.State, j.Reason)
	}
	stubborn := w.submit("stubborn", "")
	pid = w.pidFrom("stubborn.pid")
	if j := w.final(stubborn.ID, 20*time.Second); j.State != "failed" || !strings.Contains(j.Reason, "time limit") {
		t.Errorf("stubborn child: %s, %q; want failed by its time limit", j.State, j.Reason)
	}
	if alive(pid) {
		t.Error("the stubborn child is still there")
	}
}

func (w *world) pidFrom(file string) int {
	w.t.Helper()
	var pid int
	w.eventually(20*time.Second, file+" is written", func() bool {
		text, err := os.ReadFile(w.path(file))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

// C64: a job that kills its worker each time ends after five losses, with a
// reason, and the lane moves on meanwhile.
func TestJobThatKillsItsWorkerEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(`
commands:
  killer: {argv: [sh, -c, 'kill -9 $PPID; sleep 60']}
  short: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.02"}}
classes:
  killer: {run: {kind: exec, command: killer}}
  short: {run: {kind: exec, command: short}}
`)
	w.start()
	killer, short := w.submit("killer", ""), w.submit("short", "")
	if j := w.final(killer.ID, 60*time.Second); j.State != "failed" || j.Attempts != 5 || !strings.Contains(j.Reason, "lost 5 times") {
		t.Errorf("killer: %s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	for i, a := range w.attempts(killer.ID) {
		if a.Outcome != "lost" {
			t.Errorf("attempt %d = %s, want lost", i+1, a.Outcome)
		}
	}
	if j := w.final(short.ID, 20*time.Second); j.State != "succeeded" {
		t.Errorf("the job behind it: %s", j.State)
	}
}

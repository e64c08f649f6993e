package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// python starts one of the examples and returns its first line of output.
func (w *world) python(script string, args ...string) (cmd *exec.Cmd, said string) {
	w.t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "examples", "python", script))
	if err != nil {
		w.t.Fatal(err)
	}
	cmd = exec.Command("python3", append([]string{"-u", path}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = w.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("%v (apt-get install python3)", err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		w.t.Fatalf("%s said nothing: %v\n%s", script, lines.Err(), w.log.tail(2000))
	}
	said = lines.Text()
	go func() { // whatever else it says
		for lines.Scan() {
			fmt.Fprintln(w.log, lines.Text())
		}
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	return cmd, said
}

// target starts the example of an asynchronous target and returns its URL.
func (w *world) target() (cmd *exec.Cmd, url string) {
	w.t.Helper()
	cmd, said := w.python("target.py", "--listen", "127.0.0.1:0", "--gateway", w.url(""), "--journal", w.path("events"))
	addr, ok := strings.CutPrefix(said, "listening on ")
	if !ok {
		w.t.Fatalf("target said %q", said)
	}
	return cmd, "http://" + addr + "/"
}

func (w *world) started(job string) bool {
	for _, e := range w.events() {
		if e.job == job && e.kind == "start" {
			return true
		}
	}
	return false
}

// An asynchronous run survives the gateway's death and its restart: it goes on,
// completes once, and serial has nothing beside it meanwhile.
func TestDetachedRunSurvivesTheGateway(t *testing.T) {
	w := newWorld(t)
	_, url := w.target()
	w.config(fmt.Sprintf(`
classes:
  export: {run: {kind: http, mode: async, url: %q, heartbeat: 3s}}
`, url))
	g := w.start()
	j := w.submit("export", `, "payload": {"seconds": 6}`)
	next := w.submit("export", `, "payload": {"seconds": 0.1}`)
	w.eventually(10*time.Second, "the target works", func() bool { return w.started(j.ID) })
	g.kill()
	g = w.start()
	if got := w.job(j.ID); got.State != "running" || got.Attempts != 1 {
		t.Errorf("after the restart the job is %s, attempt %d", got.State, got.Attempts)
	}
	if err := g.term(20 * time.Second); err != nil { // a deploy
		t.Fatal(err)
	}
	w.start()
	for _, id := range []string{j.ID, next.ID} {
		if got := w.final(id, 30*time.Second); got.State != "succeeded" || got.Attempts != 1 {
			t.Errorf("job %s: %s after %d attempts: %s", id, got.State, got.Attempts, got.Reason)
		}
	}
	if got := string(w.job(j.ID).Result); !strings.Contains(got, j.ID) {
		t.Errorf("result %s", got)
	}
	var kinds []string
	for _, e := range w.events() {
		kinds = append(kinds, e.kind)
	}
	if got := strings.Join(kinds, " "); got != "start end start end" {
		t.Errorf("the target worked: %s; want one run after the other", got)
	}
}

// A cancel reaches the target in the answer to its heartbeat.
func TestDetachedRunIsCancelled(t *testing.T) {
	w := newWorld(t)
	_, url := w.target()
	w.config(fmt.Sprintf(`
classes:
  export: {run: {kind: http, mode: async, url: %q, heartbeat: 2s}}
`, url))
	w.start()
	j := w.submit("export", `, "payload": {"seconds": 600}`)
	w.eventually(10*time.Second, "the target works", func() bool { return w.started(j.ID) })
	w.must("POST", "/jobs/"+j.ID+"/cancel", "", nil)
	if got := w.final(j.ID, 15*time.Second); got.State != "cancelled" {
		t.Errorf("job is %s", got.State)
	}
}

// A target that dies is found by its deadline, and its slot is free for the next.
func TestDetachedRunOfADeadTargetIsLost(t *testing.T) {
	w := newWorld(t)
	cmd, url := w.target()
	w.config(fmt.Sprintf(`
classes:
  export: {run: {kind: http, mode: async, url: %q, heartbeat: 2s}}
  next: {run: {kind: exec, command: quick}}
commands:
  quick: {argv: [sh, -c, exit 0]}
`, url))
	w.start()
	j := w.submit("export", `, "payload": {"seconds": 600}`)
	w.eventually(10*time.Second, "the target works", func() bool { return w.started(j.ID) })
	next := w.submit("next", "")
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := w.final(j.ID, 20*time.Second); got.State != "failed" || !strings.Contains(got.Reason, "no heartbeat") {
		t.Errorf("job is %s: %s", got.State, got.Reason)
	}
	if list := w.attempts(j.ID); list[0].Outcome != "lost" {
		t.Errorf("attempt ended as %s", list[0].Outcome)
	}
	if got := w.final(next.ID, 20*time.Second); got.State != "succeeded" {
		t.Errorf("the next job is %s: %s", got.State, got.Reason)
	}
}

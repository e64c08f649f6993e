package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is an agent or a lanegate run.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // its end, readable after done
	out  *syncBuffer
}

// spawn starts a subcommand of the binary with short times. Where the gateway asks
// for a token, agent and run show the one of their role, unless args name another.
func (w *world) spawn(args ...string) *process {
	w.t.Helper()
	if w.tokens[args[0]] != "" && !slices.Contains(args, "--token-file") {
		args = slices.Insert(slices.Clone(args), 1, "--token-file", w.path(args[0]+".token"))
	}
	p := &process{done: make(chan struct{}), out: &syncBuffer{}}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir = w.dir
	p.cmd.Env = append(os.Environ(), "EVENTS="+w.path("events"), "LOCK="+w.path("lock"), "GORACE=log_path="+w.path("race"))
	p.cmd.Stdout, p.cmd.Stderr = p.out, w.log
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// code waits for the process's end.
func (p *process) code(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		t.Fatalf("still there after %v: %v", limit, p.cmd.Args)
	}
	if p.err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](p.err)
	if !ok {
		t.Fatal(p.err)
	}
	return exit.ExitCode()
}

// worldLease and worldBeat are the times of world.config, for agents, too.
const (
	worldLease = 8 * time.Second
	worldBeat  = 500 * time.Millisecond
)

// leased begins to judge how soon the line is free of a worker that goes now.
func (w *world) leased() leased {
	w.t.Helper()
	return leased{db: w.sqlite(), lease: worldLease, look: worldBeat, slow: newStalls(w.t)}
}

// withTokens makes tokens of some roles, with a file ROLE.token each, and returns
// the lines that the config file has about them.
func (w *world) withTokens(roles ...string) string {
	w.t.Helper()
	w.tokens = map[string]string{}
	var lines strings.Builder
	lines.WriteString("\ntokens:\n")
	for _, role := range roles {
		token := rand.Text()
		w.tokens[role] = token
		w.write(role+".token", token+"\n")
		fmt.Fprintf(&lines, "  - {name: the-%s, role: %s, sha256: %x}\n", role, role, sha256.Sum256([]byte(token)))
	}
	return lines.String()
}

// agentWorld is a gateway with classes of kind agent, the tokens that it asks for,
// and the agent's commands.
func agentWorld(t *testing.T, takes string) *world {
	t.Helper()
	w := newWorld(t)
	w.config(w.withTokens("admin", "agent", "run", "submit", "view") + `
classes:
  far: {run: {kind: agent, command: probe}}
  near: {run: {kind: exec, command: probe}}
commands:
  probe: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/lock, TAKES: "0.1"}}
`)
	w.write("commands.yaml", strings.ReplaceAll(fmt.Sprintf(`
kill_grace: 1s
beat: 500ms
drain: 2s
commands:
  probe: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/lock, TAKES: "%s", FIRST: "%s"}}
`, "0.2", takes), "$DIR", w.dir))
	return w
}

func (w *world) agent() *process {
	w.t.Helper()
	return w.spawn("agent", "--url", w.url(""), "--config", w.path("commands.yaml"), "--lanes", "serial,parallel")
}

// alone checks the jobs' own record: nothing ever ran beside another.
func (w *world) alone() {
	w.t.Helper()
	for _, e := range w.events() {
		if e.kind == "overlap" {
			w.t.Errorf("job %s (attempt %s) ran beside another", e.job, e.attempt)
		}
	}
}

func (w *world) recorded(job, kind string) (n int) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.job == job && e.kind == kind {
			n++
		}
	}
	return n
}

func TestAgentRunsItsClassesAndNoOthers(t *testing.T) {
	w := agentWorld(t, "")
	w.start()
	far := w.submit("far", `, "payload": {"n": 1.50}`)
	w.eventually(10*time.Second, "the wait is explained", func() bool {
		j := w.job(far.ID)
		return len(j.WaitingOn) > 0 && j.WaitingOn[0].Reason == "no_worker:probe"
	})
	near := w.submit("near", "")
	agent := w.agent()
	for _, id := range []string{far.ID, near.ID} {
		if got := w.final(id, 20*time.Second); got.State != "succeeded" || string(got.Result) != `{"ok": true}` {
			t.Errorf("job %s is %s: %s, result %s", id, got.State, got.Reason, got.Result)
		}
	}
	w.alone()
	// Woken at once, not by a poll.
	began := time.Now()
	w.final(w.submit("far", "").ID, 20*time.Second)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("a job for an idle agent took %v", took)
	}
	agent.signal(t, syscall.SIGTERM)
	if code := agent.code(t, 15*time.Second); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}

// A gateway that dies and comes back ends no run of an agent's.
func TestAgentRunSurvivesTheGateway(t *testing.T) {
	w := agentWorld(t, "5")
	g := w.start()
	w.agent()
	j := w.submit("far", "")
	w.eventually(15*time.Second, "the agent works", func() bool { return w.started(j.ID) })
	g.kill()
	<-time.After(time.Second)
	w.start()
	if got := w.job(j.ID); got.State != "running" {
		t.Errorf("after the restart the job is %s", got.State)
	}
	if got := w.final(j.ID, 30*time.Second); got.State != "succeeded" || got.Attempts != 1 {
		t.Errorf("job is %s after %d attempts: %s", got.State, got.Attempts, got.Reason)
	}
	if n := w.recorded(j.ID, "start"); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	w.alone()
}

// An agent whose gateway stays away ends its run before the lease is over, which
// counts from its last beat; the outcome is told when the gateway is back, and the
// job runs again.
func TestAgentCutOffEndsItsRun(t *testing.T) {
	t.Parallel()
	w := agentWorld(t, "60")
	g := w.start()
	w.agent()
	j := w.submit("far", "")
	w.eventually(15*time.Second, "the agent works", func() bool { return w.started(j.ID) })
	g.kill()
	l := w.leased()
	w.eventually(12*time.Second, "the run's lock is free", func() bool {
		return exec.Command("flock", "-n", w.path("lock"), "true").Run() == nil
	})
	took := time.Since(l.lastBeat(w, j.ID))
	t.Logf("the run was gone %v after the last beat; stalls %v", took, l.slow.total())
	if took < 4*time.Second || took >= worldLease+l.slow.total() {
		t.Errorf("the run was gone %v after the last beat, want shortly before the lease of %v is over", took, worldLease)
	}
	w.start()
	w.endedBy(j.ID, "interrupted", "succeeded")
	w.alone()
}

// An agent that dies loses its attempt, and the job runs again, a lease and a look
// after its last beat.
func TestAgentThatDiesIsLostAfterTheLease(t *testing.T) {
	t.Parallel()
	w := agentWorld(t, "60")
	w.start()
	agent := w.agent()
	j := w.submit("far", "")
	w.eventually(15*time.Second, "the agent works", func() bool { return w.started(j.ID) })
	agent.signal(t, syscall.SIGKILL)
	<-agent.done
	l := w.leased()
	w.agent()
	w.endedBy(j.ID, "lost", "succeeded")
	l.freed(w, j.ID, j.ID, 2)
	w.alone()
}

// A frozen agent is fenced: its guard ends the run before anybody else starts it.
func TestAgentFrozenBeyondItsLeaseIsFenced(t *testing.T) {
	t.Parallel()
	w := agentWorld(t, "60")
	w.start()
	frozen := w.agent()
	j := w.submit("far", "")
	w.eventually(15*time.Second, "the agent works", func() bool { return w.started(j.ID) })
	frozen.signal(t, syscall.SIGSTOP)
	l := w.leased()
	w.agent()
	if got := w.final(j.ID, 40*time.Second); got.State != "succeeded" || got.Attempts != 2 {
		t.Errorf("job is %s after %d attempts: %s", got.State, got.Attempts, got.Reason)
	}
	l.freed(w, j.ID, j.ID, 2)
	frozen.signal(t, syscall.SIGCONT)
	w.eventually(20*time.Second, "it finds itself dead", func() bool { return w.log.contains("declared dead; its runs are stopped and it starts anew") })
	w.alone()
}

// Two cron lines in front of one serial class: never two at once, exit codes are
// the commands' own, the second waits.
func TestRunHereInFrontOfTwoCallers(t *testing.T) {
	w := agentWorld(t, "")
	w.start()
	run := func(script string) *process {
		return w.spawn("run", "--class", "far", "--url", w.url(""), "--beat", "500ms", "--kill-grace", "1s",
			"--payload", `{"n": 1}`, "--", "sh", "-c", script)
	}
	first := run("TAKES=2 sh ./probe.sh; cat \"$LANEGATE_PAYLOAD_FILE\"; exit 7")
	w.eventually(15*time.Second, "the first runs", func() bool { return len(w.events()) > 0 })
	second := run("sh ./probe.sh")
	if code := first.code(t, 30*time.Second); code != 7 {
		t.Errorf("the first exited with %d, want its command's 7", code)
	}
	if !first.out.contains(`{"n": 1}`) {
		t.Errorf("the first printed %q", first.out.tail(1000))
	}
	if code := second.code(t, 30*time.Second); code != 0 {
		t.Errorf("the second exited with %d", code)
	}
	if !second.out.contains(`{"ok": true}`) {
		t.Errorf("the second printed %q", second.out.tail(1000))
	}
	var ends, starts []time.Time
	for _, e := range w.events() {
		switch e.kind {
		case "start":
			starts = append(starts, e.at)
		case "end":
			ends = append(ends, e.at)
		}
	}
	if len(starts) != 2 || len(ends) != 2 || starts[1].Before(ends[0]) {
		t.Errorf("starts %v, ends %v", starts, ends)
	}
	w.alone()
}

// Killed, the first caller frees the line a lease and a look after its last beat, and
// its command is gone.
func TestRunHereKilledFreesTheLine(t *testing.T) {
	t.Parallel()
	w := agentWorld(t, "")
	w.start()
	run := func(script string) *process {
		return w.spawn("run", "--class", "far", "--url", w.url(""), "--beat", "500ms", "--kill-grace", "1s", "--", "sh", "-c", script)
	}
	first := run("TAKES=60 sh ./probe.sh")
	w.eventually(15*time.Second, "the first runs", func() bool { return len(w.events()) > 0 })
	waiting := run("sh ./probe.sh")
	w.eventually(15*time.Second, "the second waits", func() bool {
		var page struct{ Items []job }
		w.must("GET", "/jobs?state=queued", "", &page)
		return len(page.Items) == 1
	})
	second := run("sh ./probe.sh; exit 3")
	waiting.signal(t, syscall.SIGTERM) // it has not run: it just leaves the line
	if code := waiting.code(t, 15*time.Second); code != 128+15 {
		t.Errorf("the waiting one exited with %d", code)
	}
	first.signal(t, syscall.SIGKILL)
	l := w.leased()
	if code := second.code(t, 2*time.Minute); code != 3 {
		t.Errorf("the second exited with %d", code)
	}
	var started []string // jobs, in order
	for _, e := range w.events() {
		if e.kind == "start" {
			started = append(started, e.job)
		}
	}
	if len(started) != 2 {
		t.Fatalf("the jobs that started: %v", started)
	}
	l.freed(w, started[0], started[1], 1)
	w.alone()
}

// TERM is passed on to the command, and its own code comes back.
func TestRunHerePassesOnTERM(t *testing.T) {
	w := agentWorld(t, "")
	w.start()
	p := w.spawn("run", "--class", "far", "--url", w.url(""), "--beat", "500ms", "--kill-grace", "1s", "--",
		"sh", "-c", `trap 'exit 9' TERM; echo started >>"$EVENTS.here"; while :; do sleep 0.1; done`)
	w.eventually(15*time.Second, "the command runs", func() bool {
		_, err := os.Stat(w.path("events.here"))
		return err == nil
	})
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t, 15*time.Second); code != 9 {
		t.Errorf("exited with %d, want the command's 9", code)
	}
}

// What can't run is said, with a code that is no command's.
func TestRunHereRefusals(t *testing.T) {
	w := agentWorld(t, "")
	w.start()
	for class, says := range map[string]string{"near": "only a class of kind agent", "nobody": "not registered"} {
		p := w.spawn("run", "--class", class, "--url", w.url(""), "--beat", "500ms", "--kill-grace", "1s", "--", "true")
		if code := p.code(t, 15*time.Second); code != 125 || !w.log.contains(says) {
			t.Errorf("%s: exited with %d, and said:\n%s", class, code, w.log.tail(1000))
		}
	}
}

// The example of an agent in another language: it runs what comes, passes the
// payload, is cancelled, ends its run when the gateway is gone for too long, and
// leaves.
func TestAgentInPython(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(`
classes:
  far: {run: {kind: agent, command: heavy}}
`)
	g := w.start()
	script := `echo $$ > ` + w.path("pid") + `; read -r seconds; echo "start $LANEGATE_JOB_ID" >> ` + w.path("events.py") + `; sleep "$seconds"; echo "end $LANEGATE_JOB_ID" >> ` + w.path("events.py") + `; exit "${seconds%%.*}"`
	cmd, _ := w.python("agent.py", "--gateway", w.url(""), "heavy", "sh", "-c", script)
	good, bad := w.submit("far", `, "payload": 0.1`), w.submit("far", `, "payload": 1.5`)
	if j := w.final(good.ID, 20*time.Second); j.State != "succeeded" || j.Attempts != 1 {
		t.Errorf("the good run: %s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	if j := w.final(bad.ID, 20*time.Second); j.State != "failed" {
		t.Errorf("the failing run: %s: %s", j.State, j.Reason)
	}
	events := func(line string) bool {
		text, err := os.ReadFile(w.path("events.py"))
		return err == nil && strings.Contains(string(text), line+"\n")
	}
	long := w.submit("far", `, "payload": 600`)
	w.eventually(20*time.Second, "the long run works", func() bool { return events("start " + long.ID) })
	w.must("POST", "/jobs/"+long.ID+"/cancel", "", nil)
	if j := w.final(long.ID, 20*time.Second); j.State != "cancelled" {
		t.Errorf("the cancelled run: %s: %s", j.State, j.Reason)
	}
	cut := w.submit("far", `, "payload": 600`)
	w.eventually(20*time.Second, "the run works", func() bool { return events("start " + cut.ID) })
	g.kill()
	text, err := os.ReadFile(w.path("pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	l := w.leased()
	w.eventually(20*time.Second, "the agent ends its run", func() bool { return !alive(pid) })
	if took := time.Since(l.lastBeat(w, cut.ID)); took >= worldLease+l.slow.total() {
		t.Errorf("the run was gone %v after the last beat, want before the lease of %v is over", took, worldLease)
	}
	w.start()
	w.eventually(30*time.Second, "the outcome is told, and the job runs again", func() bool {
		return len(w.attempts(cut.ID)) == 2
	})
	if a := w.attempts(cut.ID)[0]; a.Outcome != "interrupted" {
		t.Errorf("the run that was cut off is %s, want interrupted, as the agent says", a.Outcome)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent's end: %v", err)
	}
	if a := w.attempts(cut.ID)[1]; a.Outcome != "interrupted" {
		t.Errorf("the run that ended with the agent is %q, want interrupted", a.Outcome)
	}
}

package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate"
)

// rawGuard is a guard whose pipes the test holds itself.
type rawGuard struct {
	child   *Child
	control *os.File
	reports *bufio.Reader
}

func startRawGuard(t *testing.T) *rawGuard {
	t.Helper()
	pipes, err := openPipes(2)
	if err != nil {
		t.Fatal(err)
	}
	exe := selfExe(t)
	child, err := newOrphans(t).Start(func() (*os.Process, error) {
		return os.StartProcess(exe, []string{exe, "guard"}, &os.ProcAttr{
			Env: []string{}, Files: []*os.File{nil, nil, os.Stderr, pipes[0].r, pipes[1].w}, Sys: &unix.SysProcAttr{Setsid: true},
		})
	})
	closeAll([]*os.File{pipes[0].r, pipes[1].w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeAll([]*os.File{pipes[0].w, pipes[1].r})
		_, _ = child.Wait()
	})
	return &rawGuard{child: child, control: pipes[0].w, reports: bufio.NewReader(pipes[1].r)}
}

func (g *rawGuard) order(t *testing.T, o guardOrder) {
	t.Helper()
	if _, err := io.WriteString(g.control, mustJSON(t, o)+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (g *rawGuard) next(t *testing.T) guardReport {
	t.Helper()
	line, err := g.reports.ReadBytes('\n')
	if err != nil {
		t.Fatal("no report: ", err)
	}
	var r guardReport
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func rawSpec(t *testing.T, script string) guardSpec {
	t.Helper()
	path, err := lookProgram("sh", "/", defaultPath)
	if err != nil {
		t.Fatal(err)
	}
	return guardSpec{
		Path: []byte(path), Argv: texts([]string{"sh", "-c", script}), Env: texts([]string{"PATH=" + defaultPath}),
		Dir: []byte("/"), Grace: testGrace,
	}
}

func (g *rawGuard) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := g.child.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (g *rawGuard) waitStopped(t *testing.T) {
	t.Helper()
	eventually(t, "the guard to be stopped", func() bool {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(g.child.Pid) + "/stat")
		return err == nil && strings.Contains(string(text), ") T ")
	})
}

// freeze stops the guard and lets the deadline pass before it goes on.
func (g *rawGuard) freezeUntil(t *testing.T, instant time.Duration) {
	t.Helper()
	g.signal(t, unix.SIGSTOP)
	g.waitStopped(t)
	eventually(t, "the deadline to pass", func() bool { return Boottime() > instant })
	g.signal(t, unix.SIGCONT)
}

func TestGuardWokenAfterTheDeadlineStartsNothing(t *testing.T) {
	g := startRawGuard(t)
	marker := filepath.Join(t.TempDir(), "started")
	spec := rawSpec(t, "touch "+marker)
	spec.Deadline = Boottime() + testGrace + 500*time.Millisecond
	g.signal(t, unix.SIGSTOP)
	g.waitStopped(t)
	g.order(t, guardOrder{Spec: &spec})
	eventually(t, "the deadline to pass", func() bool { return Boottime() > spec.Deadline })
	g.signal(t, unix.SIGCONT)
	if r := g.next(t); r.Event != eventStarting {
		t.Errorf("report %+v", r)
	}
	if r := g.next(t); r.Event != eventRefused || r.Reason != reasonFenced {
		t.Errorf("report %+v, want a refusal", r)
	}
	if _, err := g.reports.ReadByte(); err != io.EOF {
		t.Errorf("more reports follow, or %v", err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command was started")
	}
}

// What is in the pipe by then is obeyed before anything starts.
func TestGuardObeysBeforeItStarts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		after  string // follows the spec
		hangup bool
		want   stopReason
	}{
		{"a stop", `{"stop":"cancelled"}` + "\n", false, reasonCancelled},
		{"a renewal, then a stop", `{"deadline":1}` + "\n" + `{"stop":"stopped"}` + "\n", false, reasonStopped},
		{"the gateway's death", "", true, reasonOrphaned},
		{"the gateway's death amid an order", `{"dead`, true, reasonOrphaned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := startRawGuard(t)
			marker := filepath.Join(t.TempDir(), "started")
			spec := rawSpec(t, "touch "+marker)
			g.signal(t, unix.SIGSTOP)
			g.waitStopped(t)
			if _, err := io.WriteString(g.control, mustJSON(t, guardOrder{Spec: &spec})+"\n"+tt.after); err != nil {
				t.Fatal(err)
			}
			if tt.hangup {
				g.control.Close()
			}
			g.signal(t, unix.SIGCONT)
			g.next(t)
			if r := g.next(t); r.Event != eventRefused || r.Reason != tt.want {
				t.Errorf("report %+v, want a refusal: %s", r, tt.want)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("the command was started")
			}
		})
	}
}

func TestGuardWokenAfterTheDeadlineKillsAtOnce(t *testing.T) {
	g := startRawGuard(t)
	spec := rawSpec(t, "trap '' TERM; while :; do sleep 0.05; done")
	spec.Grace = 3 * time.Second // not waited for once the deadline has passed
	spec.Deadline = Boottime() + spec.Grace + 700*time.Millisecond
	g.order(t, guardOrder{Spec: &spec})
	var command int
	for _, want := range []guardEvent{eventStarting, eventStarted} {
		r := g.next(t)
		if r.Event != want {
			t.Fatalf("report %+v, want %s", r, want)
		}
		command = r.PID
	}
	// Frozen over the instant of TERM, the guard sends it as soon as it wakes. Its
	// gateway being gone as well must not give the command more than that.
	g.freezeUntil(t, spec.Deadline-spec.Grace)
	if r := g.next(t); r.Event != eventEnding || r.Reason != reasonFenced {
		t.Errorf("report %+v, want the end to begin", r)
	}
	if !alive(command) {
		t.Error("a deaf command was killed before its time")
	}
	g.freezeUntil(t, spec.Deadline)
	woken := time.Now()
	if r := g.next(t); r.Event != eventExited || r.Signal != unix.SIGKILL || r.Reason != reasonFenced {
		t.Errorf("report %+v, want an exit by KILL", r)
	}
	if took := time.Since(woken); took > 2*time.Second {
		t.Errorf("KILL came %v after waking", took)
	}
	if r := g.next(t); r.Event != eventEnded {
		t.Errorf("report %+v", r)
	}
}

func TestGuardTimeoutCountsWhileItIsFrozen(t *testing.T) {
	g := startRawGuard(t)
	spec := rawSpec(t, "exec sleep 600")
	spec.Timeout = 300 * time.Millisecond
	g.order(t, guardOrder{Spec: &spec})
	g.next(t)
	g.next(t)
	g.freezeUntil(t, Boottime()+2*spec.Timeout)
	g.next(t)
	if r := g.next(t); r.Event != eventExited || r.Reason != reasonTimedOut {
		t.Errorf("report %+v, want a time-out", r)
	}
}

func TestGuardIgnoresNonsense(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "no spec": `{"stop":"cancelled"}`, "rubbish": "hello\n"} {
		t.Run(name, func(t *testing.T) {
			g := startRawGuard(t)
			if _, err := io.WriteString(g.control, text); err != nil {
				t.Fatal(err)
			}
			g.control.Close()
			state, err := g.child.Wait()
			if err != nil || state.ExitCode() != 2 {
				t.Errorf("%v, %v; want exit code 2", state, err)
			}
		})
	}
}

// A person who tries the hidden command gets an explanation.
func TestGuardIsNotForPeople(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	exe := selfExe(t)
	child, err := newOrphans(t).Start(func() (*os.Process, error) {
		return os.StartProcess(exe, []string{exe, "guard"}, &os.ProcAttr{Files: []*os.File{nil, nil, w}})
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	state, err := child.Wait()
	if err != nil || state.ExitCode() != 2 || !strings.Contains(string(text), "not for people") {
		t.Errorf("%v, %v: %q", state, err, text)
	}
}

// The guard catches signals; were they ignored, its command would ignore them too.
func TestCommandStartsWithDefaultSignals(t *testing.T) {
	e := newExec(t, Command{Argv: []string{"grep", "SigIgn:", "/proc/self/status"}}, nil)
	end := e.Run(t.Context(), newJob(), Unfenced)
	wantOutcome(t, end, lanegate.Succeeded)
	_, text, _ := strings.Cut(end.Output.Head, ":")
	mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE} {
		if mask&(1<<(sig-1)) != 0 {
			t.Errorf("the command ignores %s", unix.SignalName(sig))
		}
	}
}

// The runs lock's descriptor must not sit where scripts redirect by number.
func TestScriptsDoNotCloseTheRunsLock(t *testing.T) {
	e := newScript(t, `exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; echo $$ > $PIDS; ls -l /proc/$$/fd; exec sleep 600`)
	ctx, cancel := context.WithCancelCause(t.Context())
	r := e.start(t, ctx, Unfenced, nil)
	pid := readPIDs(t, r.pids, 1)[0]
	held := false
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + entry.Name()); err == nil && target == e.opts.RunsLock {
			held = true
		}
	}
	if !held {
		t.Error("the command does not hold the runs lock")
	}
	cancel(ErrCancelled)
	wantOutcome(t, r.wait(t), lanegate.Cancelled)
}

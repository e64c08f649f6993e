package guard

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate/worker/proctest"
)

// rawGuard is a guard whose pipes the test holds itself.
type rawGuard struct {
	child   *os.Process
	control *os.File
	reports *Reports
}

// startRawGuard starts a guard, by way of another program if wrapper names one.
func startRawGuard(t *testing.T, wrapper ...string) *rawGuard {
	t.Helper()
	orders, control, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	report, reports, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(wrapper, exe, Command)
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	child, err := os.StartProcess(path, argv, &os.ProcAttr{
		Env: []string{}, Files: []*os.File{nil, nil, os.Stderr, orders, reports}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	orders.Close()
	reports.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		control.Close()
		report.Close()
		_, _ = child.Wait()
	})
	return &rawGuard{child: child, control: control, reports: NewReports(report)}
}

func (g *rawGuard) write(t *testing.T, text []byte) {
	t.Helper()
	if _, err := g.control.Write(text); err != nil {
		t.Fatal(err)
	}
}

func (g *rawGuard) order(t *testing.T, o Order) {
	t.Helper()
	g.write(t, o.Frame())
}

func (g *rawGuard) next(t *testing.T) Report {
	t.Helper()
	r, err := g.reports.Next()
	if err != nil {
		t.Fatal("no report: ", err)
	}
	return r
}

// wantEnd checks that the guard says no more.
func (g *rawGuard) wantEnd(t *testing.T) {
	t.Helper()
	if r, err := g.reports.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("report %+v follows, or %v", r, err)
	}
}

func rawSpec(t *testing.T, script string) Spec {
	t.Helper()
	path, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	return Spec{
		Path: path, Argv: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")},
		Dir: "/", Grace: proctest.Grace,
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
	proctest.Eventually(t, "the guard to be stopped", func() bool {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(g.child.Pid) + "/stat")
		return err == nil && strings.Contains(string(text), ") T ")
	})
}

// freeze stops the guard and lets the deadline pass before it goes on.
func (g *rawGuard) freezeUntil(t *testing.T, instant time.Duration) {
	t.Helper()
	g.signal(t, unix.SIGSTOP)
	g.waitStopped(t)
	proctest.Eventually(t, "the deadline to pass", func() bool { return Boottime() > instant })
	g.signal(t, unix.SIGCONT)
}

func TestGuardWokenAfterTheDeadlineStartsNothing(t *testing.T) {
	g := startRawGuard(t)
	marker := filepath.Join(t.TempDir(), "started")
	spec := rawSpec(t, "touch "+marker)
	spec.Deadline = Boottime() + proctest.Grace + 500*time.Millisecond
	g.signal(t, unix.SIGSTOP)
	g.waitStopped(t)
	g.order(t, Order{Spec: &spec})
	proctest.Eventually(t, "the deadline to pass", func() bool { return Boottime() > spec.Deadline })
	g.signal(t, unix.SIGCONT)
	if r := g.next(t); r.Event != EventStarting {
		t.Errorf("report %+v", r)
	}
	if r := g.next(t); r.Event != EventRefused || r.Reason != ReasonFenced {
		t.Errorf("report %+v, want a refusal", r)
	}
	g.wantEnd(t)
	if _, err := os.Stat(marker); err == nil {
		t.Error("the command was started")
	}
}

// What is in the pipe by then is obeyed before anything starts.
func TestGuardObeysBeforeItStarts(t *testing.T) {
	cancel, stop := Order{Stop: ReasonCancelled}.Frame(), Order{Stop: ReasonStopped}.Frame()
	for _, tt := range []struct {
		name   string
		after  []byte // follows the spec
		hangup bool
		want   Reason
	}{
		{"a stop", cancel, false, ReasonCancelled},
		{"a renewal, then a stop", append(Order{Deadline: 1}.Frame(), stop...), false, ReasonStopped},
		{"the gateway's death", nil, true, ReasonOrphaned},
		{"the gateway's death amid an order", cancel[:len(cancel)-1], true, ReasonOrphaned},
		{"nonsense", bytes.Repeat([]byte{0}, 2*headerSize), false, ReasonOrphaned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := startRawGuard(t)
			marker := filepath.Join(t.TempDir(), "started")
			spec := rawSpec(t, "touch "+marker)
			g.signal(t, unix.SIGSTOP)
			g.waitStopped(t)
			g.write(t, append(Order{Spec: &spec}.Frame(), tt.after...))
			if tt.hangup {
				g.control.Close()
			}
			g.signal(t, unix.SIGCONT)
			g.next(t)
			if r := g.next(t); r.Event != EventRefused || r.Reason != tt.want {
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
	g.order(t, Order{Spec: &spec})
	var command int
	for _, want := range []Event{EventStarting, EventStarted} {
		r := g.next(t)
		if r.Event != want {
			t.Fatalf("report %+v, want %s", r, want)
		}
		command = r.PID
	}
	// Frozen over the instant of TERM, the guard sends it as soon as it wakes. Its
	// gateway being gone as well must not give the command more than that.
	g.freezeUntil(t, spec.Deadline-spec.Grace)
	if r := g.next(t); r.Event != EventEnding || r.Reason != ReasonFenced {
		t.Errorf("report %+v, want the end to begin", r)
	}
	if !proctest.Alive(command) {
		t.Error("a deaf command was killed before its time")
	}
	g.freezeUntil(t, spec.Deadline)
	woken := time.Now()
	if r := g.next(t); r.Event != EventExited || r.Signal != unix.SIGKILL || r.Reason != ReasonFenced {
		t.Errorf("report %+v, want an exit by KILL", r)
	}
	if took := time.Since(woken); took > 2*time.Second {
		t.Errorf("KILL came %v after waking", took)
	}
	if r := g.next(t); r.Event != EventEnded {
		t.Errorf("report %+v", r)
	}
}

func TestGuardTimeoutCountsWhileItIsFrozen(t *testing.T) {
	g := startRawGuard(t)
	spec := rawSpec(t, "exec sleep 600")
	spec.Timeout = 300 * time.Millisecond
	g.order(t, Order{Spec: &spec})
	g.next(t)
	g.next(t)
	g.freezeUntil(t, Boottime()+2*spec.Timeout)
	g.next(t)
	if r := g.next(t); r.Event != EventExited || r.Reason != ReasonTimedOut {
		t.Errorf("report %+v, want a time-out", r)
	}
}

func rawSpecFrame(t *testing.T) []byte {
	spec := rawSpec(t, "exit 0")
	return Order{Spec: &spec}.Frame()
}

// badSpecFrame is whole, but one of its texts claims to be longer than that.
func badSpecFrame(t *testing.T) []byte {
	frame := rawSpecFrame(t)
	frame[headerSize+3] = 0x7f
	return frame
}

func TestGuardIgnoresNonsense(t *testing.T) {
	for name, text := range map[string][]byte{
		"nothing": nil, "no spec": Order{Stop: ReasonCancelled}.Frame(), "rubbish": []byte("hello\n"),
		"a spec cut short": rawSpecFrame(t)[:100], "a spec with a wrong length": badSpecFrame(t),
	} {
		t.Run(name, func(t *testing.T) {
			g := startRawGuard(t)
			g.write(t, text)
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
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	cmd := exec.Command(exe, Command)
	cmd.Stderr = &text
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(text.String(), "not for people") {
		t.Errorf("%v: %q", err, text.String())
	}
}

// Who starts a gateway under nohup has it ignore HUP, and its guards inherit that. Their
// commands don't.
func TestCommandObeysWhatTheGuardWasToldToIgnore(t *testing.T) {
	list := filepath.Join(t.TempDir(), "signals")
	g := startRawGuard(t, "sh", "-c", `trap '' HUP INT TERM PIPE; exec "$@"`, "sh")
	spec := rawSpec(t, "exec grep SigIgn: /proc/self/status > "+list)
	g.order(t, Order{Spec: &spec})
	for _, want := range []Event{EventStarting, EventStarted, EventExited, EventEnded} {
		r := g.next(t)
		if r.Event != want || r.Code != 0 || r.Signal != 0 {
			t.Fatalf("report %+v, want %s", r, want)
		}
	}
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	_, mask, _ := strings.Cut(string(text), ":")
	ignored, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Others may have been ignored before: what make starts ignores a signal of libc's own.
	for _, sig := range shielded {
		if ignored&(1<<(sig-1)) != 0 {
			t.Errorf("the command ignores %v: %s", sig, text)
		}
	}
}

// Signals of people and terminals don't end a guard, and the death of an adopted
// process is no end of the run.
func TestGuardOutlivesSignals(t *testing.T) {
	g := startRawGuard(t)
	spec := rawSpec(t, "(true &); exec sleep 600")
	g.order(t, Order{Spec: &spec})
	g.next(t)
	g.next(t)
	for _, sig := range []unix.Signal{
		unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE, unix.SIGCHLD,
	} {
		g.signal(t, sig)
	}
	g.order(t, Order{Stop: ReasonCancelled})
	for _, want := range []Report{
		{Event: EventEnding, Reason: ReasonCancelled},
		{Event: EventExited, Reason: ReasonCancelled, Signal: unix.SIGTERM},
		{Event: EventEnded},
	} {
		r := g.next(t)
		r.Elapsed = 0
		if !reflect.DeepEqual(r, want) {
			t.Errorf("report %+v, want %+v", r, want)
		}
	}
}

// What the command leaves behind is the guard's child, and no zombie for long.
func TestGuardReapsTheAdopted(t *testing.T) {
	g := startRawGuard(t)
	file := filepath.Join(t.TempDir(), "pid")
	spec := rawSpec(t, "(sh -c 'echo $$ > "+file+"; exec sleep 0.3' &); exec sleep 600")
	g.order(t, Order{Spec: &spec})
	g.next(t)
	g.next(t)
	var pid int
	proctest.Eventually(t, "the command's daemon", func() bool {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	proctest.Eventually(t, "the daemon to be reaped", func() bool {
		_, there := ReadStat(pid)
		return !there
	})
	g.order(t, Order{Stop: ReasonCancelled})
	for g.next(t).Event != EventEnded {
	}
}

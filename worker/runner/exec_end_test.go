package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/proctest"
)

// start begins a run of script in the background; $PIDS names its file of ids.
func (e testExec) start(t *testing.T, ctx context.Context, lease Lease, change func(*Job)) running {
	t.Helper()
	job := newJob()
	if change != nil {
		change(&job)
	}
	r := running{done: make(chan lanegate.Ending, 1), pids: e.pidFile()}
	go func() { r.done <- e.Run(ctx, job, lease) }()
	return r
}

func (e testExec) pidFile() string { return filepath.Join(e.opts.WorkDir, "..", "pids") }

func (r running) wait(t *testing.T) lanegate.Ending {
	t.Helper()
	select {
	case end := <-r.done:
		return end
	case <-time.After(proctest.Patience):
		t.Fatal("the run does not end")
		return lanegate.Ending{}
	}
}

// newScript is newExec for a script that may use $PIDS.
func newScript(t testing.TB, script string) testExec {
	t.Helper()
	e := newExec(t, shell(script), nil)
	command := shell(script)
	command.Env = map[string]string{"PIDS": e.pidFile()}
	if err := e.opts.Catalogue.Replace(map[string]Command{"test": command}); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExecStops(t *testing.T) {
	const obedient = `echo $$ > $PIDS; exec sleep 600`
	const deaf = `trap '' TERM; echo $$ > $PIDS; while :; do sleep 0.05; done`
	const polite = `trap 'exit 0' TERM; echo $$ > $PIDS; while :; do sleep 0.05; done`
	for _, tt := range []struct {
		name, script string
		cause        error
		want         lanegate.Outcome
		signal       string
		sentence     string
	}{
		{"cancelled", obedient, ErrCancelled, lanegate.Cancelled, "SIGTERM", "cancelled"},
		{"drained", obedient, ErrDrained, lanegate.Interrupted, "SIGTERM", "gateway stopped"},
		{"fenced", obedient, ErrFenced, lanegate.Interrupted, "SIGTERM", "lease"},
		{"another cause", obedient, errors.New("x"), lanegate.Interrupted, "SIGTERM", "gateway stopped"},
		{"C34 a command that ignores TERM gets KILL", deaf, ErrCancelled, lanegate.Cancelled, "SIGKILL", "SIGKILL"},
		{"exit 0 after a cancel is a success", polite, ErrCancelled, lanegate.Succeeded, "", ""},
		{"exit 0 after a drain is not", polite, ErrDrained, lanegate.Interrupted, "", "exited with 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newScript(t, tt.script)
			ctx, cancel := context.WithCancelCause(t.Context())
			r := e.start(t, ctx, Unfenced, nil)
			pids := readPIDs(t, r.pids, 1)
			cancel(tt.cause)
			end := r.wait(t)
			wantOutcome(t, end, tt.want)
			if end.Signal != tt.signal || !strings.Contains(end.Error, tt.sentence) {
				t.Errorf("signal %q, error %q; want %q and %q", end.Signal, end.Error, tt.signal, tt.sentence)
			}
			wantGone(t, pids...)
			wantUnlocked(t, e.opts.RunsLock)
			wantEmpty(t, e.opts.WorkDir)
		})
	}
}

func TestExecStoppedBeforeItStarts(t *testing.T) {
	e := newScript(t, `echo $$ > $PIDS`)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrCancelled)
	wantOutcome(t, e.Run(ctx, newJob(), Unfenced), lanegate.Cancelled)
	if _, err := os.Stat(e.pidFile()); err == nil {
		t.Error("the command was started")
	}
}

func TestExecTimeout(t *testing.T) {
	for _, tt := range []struct{ name, script, signal string }{
		{"C83 of a shell with a child", `echo $$ > $PIDS; sleep 600; true`, "SIGTERM"},
		{"C34 of a deaf command", `trap '' TERM; echo $$ > $PIDS; while :; do sleep 0.05; done`, "SIGKILL"},
		{"of a stopped command", `echo $$ > $PIDS; kill -STOP $$`, "SIGTERM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newScript(t, tt.script)
			r := e.start(t, t.Context(), Unfenced, func(j *Job) { j.Timeout = 500 * time.Millisecond })
			end := r.wait(t)
			wantOutcome(t, end, lanegate.TimedOut)
			if end.Signal != tt.signal || !strings.Contains(end.Error, "500ms") {
				t.Errorf("signal %q, error %q", end.Signal, end.Error)
			}
			if end.Duration < 500*time.Millisecond || end.Duration > 10*time.Second {
				t.Errorf("duration %v", end.Duration)
			}
			wantGone(t, readPIDs(t, r.pids, 1)...)
		})
	}
}

// C83: what a command leaves behind is ended with it, however it detached itself.
func TestExecEndsWhatIsLeft(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		pids         int
	}{
		{"a background child", `sleep 600 & echo $! > $PIDS; exit 0`, 1},
		{"a child in a session of its own", `setsid sh -c 'echo $$ > $PIDS; exec sleep 600' & while ! [ -s $PIDS ]; do sleep 0.01; done; exit 0`, 1},
		{"a daemon by double fork", `(setsid sh -c 'sleep 600 & echo $! >> $PIDS; setsid sleep 600 & echo $! >> $PIDS' &) ; while ! [ -s $PIDS ] || [ $(wc -l < $PIDS) -lt 2 ]; do sleep 0.01; done; exit 0`, 2},
		{"a deaf one that closed its output", `setsid sh -c 'trap "" TERM; exec >/dev/null 2>&1 </dev/null; echo $$ > $PIDS; while :; do sleep 0.05; done' & while ! [ -s $PIDS ]; do sleep 0.01; done; exit 0`, 1},
		{"one that keeps forking", `setsid sh -c 'echo $$ > $PIDS; trap "" TERM; f() { (sleep 0.02; f) & }; f; wait; sleep 600' & while ! [ -s $PIDS ]; do sleep 0.01; done; exit 0`, 1},
		{"a stopped one", `sh -c 'echo $$ > $PIDS; kill -STOP $$' & while ! [ -s $PIDS ]; do sleep 0.01; done; exit 0`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newScript(t, tt.script)
			end := e.start(t, t.Context(), Unfenced, nil).wait(t)
			wantOutcome(t, end, lanegate.Succeeded)
			wantGone(t, readPIDs(t, e.pidFile(), tt.pids)...)
			wantUnlocked(t, e.opts.RunsLock)
		})
	}
}

func TestExecExitCodeIsTheCommandsOwn(t *testing.T) {
	end := runShell(t, `(exit 9) & sleep 600 & exit 4`)
	wantOutcome(t, end, lanegate.Failed)
	if end.ExitCode == nil || *end.ExitCode != 4 {
		t.Errorf("exit code %v, want 4", end.ExitCode)
	}
}

// A pipe held by a process outside the run must not hold up its end.
func TestExecOutputHeldFromOutside(t *testing.T) {
	e := newScript(t, `echo $$ > $PIDS; echo hello; while ! [ -e $PIDS.go ]; do sleep 0.01; done; exit 0`)
	r := e.start(t, t.Context(), Unfenced, nil)
	pid := readPIDs(t, r.pids, 1)[0]
	stolen, err := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/fd/1", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stolen.Close()
	if err := os.WriteFile(r.pids+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end := r.wait(t)
	wantOutcome(t, end, lanegate.Succeeded)
	if end.Output.Head != "hello\n" {
		t.Errorf("output %q", end.Output.Head)
	}
}

func TestExecLiveCopy(t *testing.T) {
	var stdout, stderr syncBuffer
	e := newExec(t, shell("echo out; echo err >&2"), func(o *ExecOptions) { o.Stdout, o.Stderr = &stdout, &stderr })
	wantOutcome(t, e.Run(t.Context(), newJob(), Unfenced), lanegate.Succeeded)
	if stdout.String() != "out\n" || stderr.String() != "err\n" {
		t.Errorf("copies %q and %q", stdout.String(), stderr.String())
	}
}

func TestExecWorkDirOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := NewExec(ExecOptions{Catalogue: &Catalogue{}, Orphans: newOrphans(t), WorkDir: dir})
	if err == nil || !strings.Contains(err.Error(), "nobody else can write") {
		t.Errorf("error %v", err)
	}
}

func TestExecDescribe(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("vars", []byte("B=secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newExec(t, Command{Argv: []string{"sh", "-c", "true"}, Env: map[string]string{"A": "secret"}, EnvFile: "vars", Dir: "."}, nil)
	d, err := e.Describe(newJob())
	if err != nil {
		t.Fatal(err)
	}
	if d.Dir != dir || !filepath.IsAbs(d.Path) || d.EnvFile != dir+"/vars" || d.User == "" || len(d.Digest) != 16 {
		t.Errorf("got %+v", d)
	}
	names := strings.Join(d.EnvNames, " ")
	if !strings.HasPrefix(names, "A B ") || strings.Contains(mustJSON(t, d), "secret") {
		t.Errorf("names %q in %s", names, mustJSON(t, d))
	}
}

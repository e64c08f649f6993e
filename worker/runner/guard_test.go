package runner

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/proctest"
)

// gateway is a helper process that plays a gateway with one run.
type gateway struct {
	child *Child
	out   *os.File
	dir   string
}

func startGateway(t *testing.T, spec gatewaySpec) *gateway {
	t.Helper()
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	spec.Exe = selfExe(t)
	if spec.Grace == 0 {
		spec.Grace = proctest.Grace
	}
	spec.Script = strings.ReplaceAll(spec.Script, "$PIDS", filepath.Join(spec.Dir, "pids"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child, err := newOrphans(t).Start(func() (*os.Process, error) {
		return os.StartProcess(spec.Exe, []string{spec.Exe, "gateway", mustJSON(t, spec)}, &os.ProcAttr{
			Env: os.Environ(), Files: []*os.File{nil, w, os.Stderr}, Sys: &unix.SysProcAttr{Setpgid: true},
		})
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{child: child, out: r, dir: spec.Dir}
	t.Cleanup(func() {
		_ = child.Kill()
		_, _ = child.Wait()
		r.Close()
	})
	return g
}

func (g *gateway) pids(t *testing.T, n int) []int {
	return readPIDs(t, filepath.Join(g.dir, "pids"), n)
}

func (g *gateway) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := g.child.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// ending reads what the gateway prints about its run.
func (g *gateway) ending(t *testing.T) lanegate.Ending {
	t.Helper()
	if err := g.out.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
		t.Fatal(err)
	}
	var end lanegate.Ending
	if err := json.NewDecoder(g.out).Decode(&end); err != nil {
		t.Fatal("the gateway said nothing about its run: ", err)
	}
	return end
}

// tree writes the ids of three processes: the command, a child in a session of
// its own, and a daemon whose parent is gone.
const tree = `echo $$ > $PIDS
setsid sh -c 'echo $$ >> $PIDS; exec sleep 600' &
(setsid sh -c 'sh -c "echo \$\$ >> $PIDS; exec sleep 600" &' &)
sleep 600`

func eventuallyGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		proctest.Eventually(t, "the end of process "+strconv.Itoa(pid), func() bool { return !proctest.Alive(pid) })
	}
}

func TestGuardEndsTheRunOfAKilledGateway(t *testing.T) {
	for _, tt := range []struct{ name, script string }{
		{"all obedient", tree},
		{"all deaf", `trap '' TERM; ` + tree},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := startGateway(t, gatewaySpec{Script: tt.script, Unfenced: true})
			pids := g.pids(t, 3)
			if unlocked(t, g.dir+"/runs") {
				t.Fatal("the runs lock is free while a run is alive")
			}
			g.signal(t, unix.SIGKILL)
			proctest.Eventually(t, "the runs lock to come free", func() bool { return unlocked(t, g.dir+"/runs") })
			wantGone(t, pids...) // the lock vouches for that
			proctest.Eventually(t, "the payload to be removed", func() bool {
				entries, err := os.ReadDir(g.dir + "/work")
				return err == nil && len(entries) == 0
			})
		})
	}
}

// A signal to the gateway's whole process group, as a terminal or a supervisor
// sends it, reaches neither guard nor command.
func TestGuardIsOutOfTheGatewaysGroup(t *testing.T) {
	g := startGateway(t, gatewaySpec{Script: `echo $$ > $PIDS; while ! [ -e $PIDS.go ]; do sleep 0.02; done`, Unfenced: true})
	pid := g.pids(t, 1)[0]
	guard := guardOf(t, pid)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		if err := unix.Kill(guard, sig); err != nil {
			t.Fatal(err)
		}
	}
	group, err := unix.Getpgid(guard)
	if err != nil {
		t.Fatal(err)
	}
	if group == g.child.Pid || group != guard {
		t.Errorf("the guard's group is %d, the gateway's %d", group, g.child.Pid)
	}
	if err := os.WriteFile(g.dir+"/pids.go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, g.ending(t), lanegate.Succeeded)
}

func TestKilledGuardLeavesNothing(t *testing.T) {
	for _, tt := range []struct{ name, script string }{
		{"all obedient", tree},
		{"all deaf", `trap '' TERM; ` + tree},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newScript(t, tt.script)
			r := e.start(t, t.Context(), Unfenced, nil)
			pids := readPIDs(t, r.pids, 3)
			if err := unix.Kill(guardOf(t, pids[0]), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			end := r.wait(t)
			wantOutcome(t, end, lanegate.Lost)
			if !strings.Contains(end.Error, "guard process was killed") {
				t.Errorf("error %q", end.Error)
			}
			wantGone(t, pids...)
			wantUnlocked(t, e.opts.RunsLock)
			wantEmpty(t, e.opts.WorkDir)
		})
	}
}

// While one guard's leavings are cleared away, other runs start and go on.
func TestKilledGuardDoesNotDisturbOthers(t *testing.T) {
	victim := newScript(t, tree)
	r := victim.start(t, t.Context(), Unfenced, nil)
	pids := readPIDs(t, r.pids, 3)
	others := make(chan lanegate.Ending)
	const runs = 12
	other := newExec(t, shell("sleep 0.1"), nil)
	for range runs {
		go func() { others <- other.Run(t.Context(), newJob(), Unfenced) }()
	}
	if err := unix.Kill(guardOf(t, pids[0]), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, r.wait(t), lanegate.Lost)
	wantGone(t, pids...)
	for range runs {
		wantOutcome(t, <-others, lanegate.Succeeded)
	}
}

// A guard that somebody stopped is killed in the end; what it was asked to do holds.
func TestFrozenGuardIsKilled(t *testing.T) {
	e := newScript(t, tree)
	e.patience = 2 * time.Second
	ctx, cancel := context.WithCancelCause(t.Context())
	r := e.start(t, ctx, Unfenced, nil)
	pids := readPIDs(t, r.pids, 3)
	if err := unix.Kill(guardOf(t, pids[0]), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cancel(ErrCancelled)
	end := r.wait(t)
	wantOutcome(t, end, lanegate.Cancelled)
	if !strings.Contains(end.Error, "did not answer") {
		t.Errorf("error %q", end.Error)
	}
	wantGone(t, pids...)
}

func TestFenceEndsTheRunBeforeTheDeadline(t *testing.T) {
	for _, tt := range []struct{ name, script, signal string }{
		{"obedient", `echo $$ > $PIDS; exec sleep 600`, "SIGTERM"},
		{"deaf", `trap '' TERM; echo $$ > $PIDS; while :; do sleep 0.05; done`, "SIGKILL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// A machine that is too busy to wake anybody in time wakes the guard late,
			// too: such a run says nothing, and another is tried.
			for tries := 1; !fencedInTime(t, tt.script, tt.signal); tries++ {
				if tries == 10 {
					t.Fatal("the machine was never quiet enough to judge a deadline")
				}
			}
		})
	}
}

// fencedInTime lets a lease run out under a script that has started, and fails the
// test unless the guard ended it by the signal within the last grace before the
// deadline. It reports false where this process itself was woken so late that
// nothing can be said.
func fencedInTime(t *testing.T, script, signal string) bool {
	t.Helper()
	const grace = 2 * time.Second
	const margin = grace / 10 // how long before the deadline KILL is due
	e := newScript(t, script)
	e.opts.Grace = grace
	clock := NewLeaseClock()
	var deadline time.Duration
	renew := func() {
		deadline = Boottime() + grace + time.Second
		clock.Renew(deadline)
	}
	renew()
	r := e.start(t, t.Context(), clock, nil)
	proctest.Eventually(t, "the command to have started", func() bool {
		renew() // however long that takes: the lease runs out under the command, not before it
		text, err := os.ReadFile(r.pids)
		return err == nil && strings.HasSuffix(string(text), "\n")
	})
	stalls := watchStalls()
	eventuallyGone(t, readPIDs(t, r.pids, 1))
	gone := Boottime()
	stalled := stalls.longest()
	end := r.wait(t)
	wantOutcome(t, end, lanegate.Interrupted)
	if !strings.Contains(end.Error, "lease") {
		t.Errorf("error %q", end.Error)
	}
	late, early := gone > deadline, gone < deadline-grace
	if stalled > margin/2 && (late || early || end.Signal != signal) {
		t.Logf("inconclusive: woken up to %v late, gone %v before the deadline by %s", stalled, deadline-gone, end.Signal)
		return false
	}
	if late || early {
		t.Errorf("the command was gone %v before its deadline, want within the last %v", deadline-gone, grace)
	}
	if end.Signal != signal {
		t.Errorf("ended by %s, want %s", end.Signal, signal)
	}
	return true
}

func TestRenewalsKeepTheRunAlive(t *testing.T) {
	e := newScript(t, `echo $$ > $PIDS; while ! [ -e $PIDS.go ]; do sleep 0.02; done`)
	clock := NewLeaseClock()
	clock.Renew(Boottime() + 2*time.Second)
	first, _ := clock.Deadline()
	r := e.start(t, t.Context(), clock, nil)
	proctest.Eventually(t, "the first deadline to pass", func() bool {
		clock.Renew(Boottime() + 2*time.Second)
		return Boottime() > first
	})
	if err := os.WriteFile(r.pids+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, r.wait(t), lanegate.Succeeded)
}

func TestNothingStartsUnderAnOldLease(t *testing.T) {
	for name, left := range map[string]time.Duration{"over": -time.Second, "within the grace": proctest.Grace / 2} {
		t.Run(name, func(t *testing.T) {
			e := newScript(t, `echo $$ > $PIDS`)
			clock := NewLeaseClock()
			clock.Renew(Boottime() + left)
			wantOutcome(t, e.Run(t.Context(), newJob(), clock), lanegate.Interrupted)
			if _, err := os.Stat(e.pidFile()); err == nil {
				t.Error("the command was started")
			}
		})
	}
	t.Run("never renewed", func(t *testing.T) {
		e := newScript(t, `echo $$ > $PIDS`)
		wantOutcome(t, e.Run(t.Context(), newJob(), NewLeaseClock()), lanegate.Interrupted)
	})
}

// A gateway that is stopped (SIGSTOP, a debugger, swapping) renews nothing: the
// guard ends the run without it, and also enforces the time limit.
func TestGuardActsWhileTheGatewayIsFrozen(t *testing.T) {
	g := startGateway(t, gatewaySpec{Script: tree, Lease: 1500 * time.Millisecond, Beat: 50 * time.Millisecond})
	pids := g.pids(t, 3)
	g.signal(t, unix.SIGSTOP)
	stopped := Boottime()
	eventuallyGone(t, pids)
	// What was in the pipe at the stop may have moved the deadline, by no more than the lease.
	if took := Boottime() - stopped; took > 3*time.Second {
		t.Errorf("the run outlived its lease: gone %v after the last renewal", took)
	}
	g.signal(t, unix.SIGCONT)
	end := g.ending(t)
	wantOutcome(t, end, lanegate.Interrupted)
	if !strings.Contains(end.Error, "lease") {
		t.Errorf("error %q", end.Error)
	}
}

// With the gateway out of action, a killed guard still takes its command along.
func TestKilledGuardTakesTheCommandAlong(t *testing.T) {
	g := startGateway(t, gatewaySpec{Script: `trap '' TERM; echo $$ > $PIDS; while :; do sleep 0.05; done`, Unfenced: true})
	pids := g.pids(t, 1)
	guard := guardOf(t, pids[0])
	g.signal(t, unix.SIGSTOP)
	if err := unix.Kill(guard, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventuallyGone(t, pids)
	g.signal(t, unix.SIGCONT)
	wantOutcome(t, g.ending(t), lanegate.Lost)
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

package guard

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/lanegate/lanegate/worker/proctest"
)

func startSleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestChildrenBothWays(t *testing.T) {
	a, b := startSleeper(t), startSleeper(t)
	for name, list := range map[string]func() ([]int, error){"per thread": childrenOfThreads, "by parent": childrenByParent, "chosen": Children} {
		pids, err := list()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(pids, a) || !slices.Contains(pids, b) {
			t.Errorf("%s: %v lacks %d or %d", name, pids, a, b)
		}
		if slices.Contains(pids, os.Getpid()) || slices.Contains(pids, os.Getppid()) {
			t.Errorf("%s: %v holds processes that are no children", name, pids)
		}
	}
}

func TestBootTimer(t *testing.T) {
	timer := bootTimer{fd: -1}
	if err := timer.set(0); err != nil || timer.fd >= 0 {
		t.Fatalf("a timer that was never set is descriptor %d, %v", timer.fd, err)
	}
	for _, ahead := range []time.Duration{20 * time.Millisecond, -time.Hour} { // a past instant fires at once
		at := max(Boottime()+ahead, 1)
		if err := timer.set(at); err != nil {
			t.Fatal(err)
		}
		tick := []pollFD{{fd: int32(timer.fd), events: pollIn}}
		proctest.Eventually(t, "a tick", func() bool {
			n, err := poll(tick, false)
			return err == nil && n == 1
		})
		if now := Boottime(); now < at {
			t.Errorf("ticked %v early", at-now)
		}
		if err := timer.set(Boottime() + time.Hour); err != nil {
			t.Fatal(err)
		}
		if n, err := poll(tick, false); err != nil || n != 0 {
			t.Errorf("a timer that is set again is ready: %d, %v", n, err)
		}
	}
}

// Where no descriptor tells of the command's death, the guard looks by the clock.
func TestAwaitLooksByItselfWithoutPidfd(t *testing.T) {
	g := &guard{hungUp: true, timer: bootTimer{fd: -1}, command: commandProc{pid: startSleeper(t), pidfd: -1}}
	began := Boottime()
	waited := make(chan error, 1)
	go func() {
		var err error
		for err == nil && Boottime() < began+unsignalled { // signals of the runtime end a wait early
			err = g.await(0)
		}
		waited <- err
	}()
	select {
	case err := <-waited:
		if err != nil || g.timer.fd < 0 {
			t.Errorf("%v, timer %d", err, g.timer.fd)
		}
	case <-time.After(proctest.Patience):
		t.Fatal("the guard would never look")
	}
}

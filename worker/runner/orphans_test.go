package runner

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/worker/guard"
	"github.com/lanegate/lanegate/worker/proctest"
)

// startShell starts a registered child of the test process itself.
func startShell(t *testing.T, o *Orphans, script string) *Child {
	t.Helper()
	c, err := o.Start(func() (*os.Process, error) {
		return os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{Env: []string{"PATH=" + defaultPath}})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Kill()
		_, _ = c.Wait()
	})
	return c
}

func TestOrphansEndsAdoptedProcessesOnly(t *testing.T) {
	o := newOrphans(t)
	pids := filepath.Join(t.TempDir(), "pids")
	own := startShell(t, o, "exec sleep 600")
	// A chain: each orphan's death hands over the next.
	parent := startShell(t, o, `trap '' TERM; sh -c 'sh -c "sleep 600 & echo \$! >> `+pids+`; wait" & echo $! >> `+pids+`; wait' & echo $! >> `+pids+`; wait`)
	orphans := readPIDs(t, pids, 3)
	if err := o.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range orphans {
		if !proctest.Alive(pid) {
			t.Fatal("the child of a living child was killed")
		}
	}
	if err := parent.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := parent.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := o.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGone(t, orphans...)
	if !proctest.Alive(own.Pid) {
		t.Error("a registered child was killed")
	}
	left, err := guard.Children()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range orphans {
		if slices.Contains(left, pid) {
			t.Errorf("orphan %d was not reaped", pid)
		}
	}
}

// Children are started all the while orphans are looked for; none is hit.
func TestOrphansNeverHitAFreshChild(t *testing.T) {
	o := newOrphans(t)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := o.End(context.Background()); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 100 {
		c, err := o.Start(func() (*os.Process, error) {
			return os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		})
		if err != nil {
			t.Fatal(err)
		}
		state, err := c.Wait()
		if err != nil || !state.Success() {
			t.Fatalf("child ended with %v, %v", state, err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOrphansEndIsBounded(t *testing.T) {
	o := newOrphans(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// One calm round is no proof, and the context allows no second.
	if err := o.End(ctx); err == nil || !strings.Contains(err.Error(), "could not be ended yet") {
		t.Errorf("error %v", err)
	}
}

func TestEarlyChildrenAreKnownByTheirStart(t *testing.T) {
	o := newOrphans(t)
	c := startShell(t, o, "exec sleep 600")
	stat, ok := guard.ReadStat(c.Pid)
	if !ok || stat.Parent != os.Getpid() || stat.Started == 0 {
		t.Fatalf("stat %+v, %v", stat, ok)
	}
	early := &Orphans{known: map[int]uint64{c.Pid: stat.Started}}
	if !early.own(c.Pid) {
		t.Error("an early child is taken for an orphan")
	}
	early.known[c.Pid] = stat.Started + 1
	if early.own(c.Pid) || len(early.known) != 0 {
		t.Error("another process under an early child's id is taken for that child")
	}
}

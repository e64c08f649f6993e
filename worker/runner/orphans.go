package runner

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate/worker/guard"
)

// Orphans makes this process the heir of what killed guards leave behind, and
// ends it.
//
// It tells an orphan from this process's own children by a register of the
// latter. So every child that the process starts while it uses Orphans has to be
// started through Start: one that is not registered would be killed as an orphan
// at the next End. Children that existed when BecomeSubreaper was called (a
// container's entry script may leave some, then exec the gateway) are known. A
// gateway that is process 1 of a container adopts the orphans of other sessions
// there as well, and ends them with the next End.
type Orphans struct {
	// mu is held while a child is started and registered, and during each round of
	// End: a round never sees a child that is not registered yet, and no two
	// rounds race for the same process id.
	mu    sync.Mutex
	known map[int]uint64 // own children: when they started, 0 for any time
}

// subreaper: the attribute belongs to the whole process, so does the register.
var subreaper struct {
	mu      sync.Mutex
	orphans *Orphans
}

// BecomeSubreaper makes this process adopt the orphans among its descendants.
// Call it at start, before any guard; further calls return the same register.
func BecomeSubreaper() (*Orphans, error) {
	subreaper.mu.Lock()
	defer subreaper.mu.Unlock()
	if subreaper.orphans != nil {
		return subreaper.orphans, nil
	}
	o := &Orphans{known: map[int]uint64{}}
	pids, err := guard.Children()
	if err != nil {
		return nil, fmt.Errorf("list child processes (is /proc mounted?): %w", err)
	}
	for _, pid := range pids {
		if stat, ok := guard.ReadStat(pid); ok {
			o.known[pid] = stat.Started
		}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	subreaper.orphans = o
	return o, nil
}

// Child is a registered child process.
type Child struct {
	*os.Process
	orphans *Orphans
}

// Start runs fork, which starts one child process, and registers that child.
// fork's error is returned as it is.
func (o *Orphans) Start(fork func() (*os.Process, error)) (*Child, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, err := fork()
	if err != nil {
		return nil, err
	}
	o.known[p.Pid] = 0
	return &Child{Process: p, orphans: o}, nil
}

// Wait waits for the child's end, reaps it and strikes it off the register.
func (c *Child) Wait() (*os.ProcessState, error) {
	state, err := c.Process.Wait()
	// Only now: a dead child that is not registered would be reaped as an orphan.
	c.orphans.mu.Lock()
	delete(c.orphans.known, c.Pid)
	c.orphans.mu.Unlock()
	return state, err
}

// End kills and reaps every orphan and returns when none is left, or with ctx's
// cause and the processes that are still there. Orphans of living guards are
// children of those and are never touched.
func (o *Orphans) End(ctx context.Context) error {
	const (
		calm    = 2 // rounds in a row that must find nothing
		shortly = 2 * time.Millisecond
		longest = 100 * time.Millisecond
	)
	pause := shortly
	for quiet := 0; ; {
		left, err := o.round()
		if err != nil || len(left) > 0 {
			quiet = 0
		} else if quiet++; quiet == calm {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("processes %v could not be ended yet: %w", left, err)
		case <-time.After(pause):
			pause = min(2*pause, longest)
		}
	}
}

// round kills all orphans once, reaps the dead ones and returns those it found
// alive. An orphan's id can't be taken over by another process meanwhile, as
// nobody else reaps it.
func (o *Orphans) round() ([]int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pids, err := guard.Children()
	if err != nil {
		return nil, fmt.Errorf("list child processes: %w", err)
	}
	var left []int
	for _, pid := range pids {
		if o.own(pid) || guard.Reap(pid) {
			continue
		}
		_ = unix.Kill(pid, unix.SIGKILL) // refused for a privileged process: it is reported as left
		left = append(left, pid)
	}
	return left, nil
}

// own says whether pid is on the register; mu is held.
func (o *Orphans) own(pid int) bool {
	started, known := o.known[pid]
	if !known || started == 0 {
		return known
	}
	stat, ok := guard.ReadStat(pid)
	if ok && stat.Started == started {
		return true
	}
	delete(o.known, pid) // an early child has ended; its id is in use again
	return false
}

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate/store"
)

// crashCopy copies the database as a killed process left it, before the next one
// changes anything.
func (w *world) crashCopy() (path string) {
	w.t.Helper()
	dir := w.t.TempDir()
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(w.path("lanegate.db" + suffix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "lanegate.db"+suffix), text, 0o600)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return filepath.Join(dir, "lanegate.db")
}

// openAttempts reads which attempts had no outcome: job id → number.
func (w *world) openAttempts(database string) map[string]int {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), store.Options{Path: database})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	in, err := s.Snapshot(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	open := map[string]int{}
	for _, r := range in.InFlight {
		list, err := s.Attempts(w.t.Context(), r.Job)
		if err != nil {
			w.t.Fatal(err)
		}
		open[r.Job] = len(list)
	}
	return open
}

// runsLock is the path of the lock that guards and their runs hold.
func (w *world) runsLock() string {
	w.t.Helper()
	dir, err := filepath.EvalSymlinks(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return filepath.Join(dir, "lanegate.db.runs")
}

// runHolders lists the processes that have the runs lock open and belong to runs
// of other gateways than the process gateway: guards, commands and whatever these
// left behind.
func runHolders(lock string, gateway int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var holders []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !hasOpen(pid, lock) || descends(pid, gateway) {
			continue
		}
		holders = append(holders, pid)
	}
	return holders, nil
}

// hasOpen says whether a process has a file open; one that has ended has none.
func hasOpen(pid int, path string) bool {
	fds := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, _ := os.ReadDir(fds) // an error means that it has ended
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && target == path {
			return true
		}
	}
	return false
}

// descends says whether pid is the process of or one below it. Orphans of a
// gateway's runs count: they become children of their guard or of the gateway.
func descends(pid, of int) bool {
	for pid > 1 {
		if pid == of {
			return true
		}
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return false
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			return false
		}
	}
	return false
}

// oldRuns tells when the processes of earlier runs were seen last, and when none
// was left; readable after done.
type oldRuns struct {
	lastSeen, gone time.Time
	err            error
	done           chan struct{}
}

// watchOldRuns looks until no process of runs of other gateways than g is left.
func (w *world) watchOldRuns(g *gateway) *oldRuns {
	w.t.Helper()
	o := &oldRuns{done: make(chan struct{})}
	lock, ctx := w.runsLock(), w.t.Context()
	go func() {
		defer close(o.done)
		for {
			began := time.Now()
			holders, err := runHolders(lock, g.cmd.Process.Pid)
			if err != nil || len(holders) == 0 {
				o.gone, o.err = began, err
				return
			}
			o.lastSeen = began
			select {
			case <-ctx.Done():
				o.err = ctx.Err()
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return o
}

// stallWatch measures by how much a goroutine that mostly sleeps is woken late:
// what a busy machine takes from everybody.
type stallWatch struct {
	stop, done chan struct{}
	sum        time.Duration // readable after done
}

func watchStalls() *stallWatch {
	s := &stallWatch{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		const every = 10 * time.Millisecond
		for {
			asked := time.Now()
			select {
			case <-s.stop:
				return
			case <-time.After(every):
			}
			if late := time.Since(asked) - every; late > every { // less is the timer's own
				s.sum += late
			}
		}
	}()
	return s
}

// total ends the watch.
func (s *stallWatch) total() time.Duration {
	close(s.stop)
	<-s.done
	return s.sum
}

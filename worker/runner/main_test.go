package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/guard"
	"github.com/lanegate/lanegate/worker/proctest"
)

// The test binary plays the gateway (see helper_test.go) as well; a guard it is by
// itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "gateway" {
		os.Exit(gatewayMain(os.Args[2]))
	}
	os.Exit(m.Run())
}

// stallWatch measures how late a goroutine is woken that asks for it every few
// milliseconds: what a busy machine costs anybody who has to act in time.
type stallWatch struct {
	stop, done chan struct{}
	worst      time.Duration // readable after done
}

func watchStalls() *stallWatch {
	s := &stallWatch{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		const every = 5 * time.Millisecond
		for {
			asked := time.Now()
			select {
			case <-s.stop:
				return
			case <-time.After(every):
			}
			s.worst = max(s.worst, time.Since(asked)-every)
		}
	}()
	return s
}

// longest ends the watch.
func (s *stallWatch) longest() time.Duration {
	close(s.stop)
	<-s.done
	return s.worst
}

func newOrphans(t testing.TB) *Orphans {
	t.Helper()
	o, err := BecomeSubreaper()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func selfExe(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// testExec is an Exec with one command, "test", and a work directory of its own.
type testExec struct {
	*Exec
	dir string
}

func newExec(t testing.TB, command Command, change func(*ExecOptions)) testExec {
	t.Helper()
	catalogue, err := NewCatalogue(map[string]Command{"test": command})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := ExecOptions{
		Catalogue: catalogue, Orphans: newOrphans(t), GuardPath: []string{selfExe(t), "guard"},
		Grace: proctest.Grace, RunsLock: filepath.Join(dir, "runs"), WorkDir: filepath.Join(dir, "work"),
	}
	if change != nil {
		change(&o)
	}
	e, err := NewExec(o)
	if err != nil {
		t.Fatal(err)
	}
	return testExec{e, dir}
}

func shell(script string) Command { return Command{Argv: []string{"sh", "-c", script}} }

func newJob() Job {
	return Job{
		ID: "0198c0de-0000-7000-8000-000000000001", Attempt: 3, Token: "t", Class: "pos-sales",
		LogicalDate: "2026-11-30", Payload: []byte(`{"n":3889108265204450030}`),
		Run: lanegate.Run{Kind: lanegate.RunExec, Command: "test"},
	}
}

// runShell runs a script to its end.
func runShell(t *testing.T, script string) lanegate.Ending {
	t.Helper()
	return newExec(t, shell(script), nil).Run(t.Context(), newJob(), Unfenced)
}

func wantOutcome(t *testing.T, end lanegate.Ending, want lanegate.Outcome) {
	t.Helper()
	if end.Outcome != want {
		t.Fatalf("outcome %s (%s), want %s; output: %q", end.Outcome, end.Error, want, end.Output.Head)
	}
	if end.Outcome != lanegate.Succeeded && end.Error == "" {
		t.Errorf("outcome %s without a sentence", end.Outcome)
	}
	if end.Duration <= 0 {
		t.Errorf("duration %v, want more than nothing", end.Duration)
	}
}

// running is a run in the background whose job writes the ids of its processes
// into a file, one per line.
type running struct {
	done chan lanegate.Ending
	pids string
}

// readPIDs waits until n ids are in the file.
func readPIDs(t *testing.T, path string, n int) []int {
	t.Helper()
	var pids []int
	proctest.Eventually(t, fmt.Sprintf("%d process ids in %s", n, path), func() bool {
		text, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		pids = nil
		for field := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatalf("%s holds %q", path, text)
			}
			pids = append(pids, pid)
		}
		return len(pids) >= n
	})
	return pids
}

func wantGone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if proctest.Alive(pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
}

// wantUnlocked checks that no process holds the runs lock.
func wantUnlocked(t *testing.T, path string) {
	t.Helper()
	if !unlocked(t, path) {
		t.Errorf("the runs lock %s is still held", path)
	}
}

func unlocked(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// guardOf finds the guard of a job's process: its parent, or the parent's parent …
func guardOf(t *testing.T, pid int) int {
	t.Helper()
	for pid > 1 {
		cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil {
			break
		}
		if args := strings.Split(string(cmdline), "\x00"); len(args) > 1 && args[1] == "guard" {
			return pid
		}
		stat, ok := guard.ReadStat(pid)
		if !ok {
			break
		}
		pid = stat.Parent
	}
	t.Fatal("no guard found")
	return 0
}

// syncBuffer collects a log for looking at it while it is written.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

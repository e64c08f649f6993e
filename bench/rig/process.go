package rig

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that was started here and ends with this process.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
	log  tail
}

// stopWait is how long a program may take to end before it is killed.
const stopWait = 20 * time.Second

// Start starts cmd; its output is kept for Log.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	started := make(chan error, 1)
	go func() {
		// The death signal comes when the starting thread ends, so that one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // those who need the program notice that it has ended
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Await asks again and again until ready returns nil, at most for limit.
func (p *Process) Await(limit time.Duration, ready func() error) error {
	end := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended at its start:\n%s", p.cmd.Path, p.Log())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s was not ready within %v: %w\n%s", p.cmd.Path, limit, err, p.Log())
		}
	}
}

// Stop asks the program to end by sig, kills it when it does not, and waits.
func (p *Process) Stop(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // an error means that it has ended
	select {
	case <-p.done:
	case <-time.After(stopWait):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// PID is the program's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log is the end of what the program printed.
func (p *Process) Log() string { return p.log.String() }

// RSS is the resident memory of a process in bytes.
func RSS(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no memory of its own", pid)
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if extra := t.buf.Len() - tailSize; extra > 0 {
		t.buf.Next(extra)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

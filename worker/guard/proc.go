package guard

import (
	"errors"
	"syscall"
	"time"
)

// commandProc is the command itself, the guard's first child and the leader of
// its own session and process group.
//
// It stays unreaped until everything else is gone: as long as its process id is
// taken, neither the id nor the group of that number can belong to anybody else,
// so signals to them can't hit a stranger. The guard's other children are safe
// in the same way, because only the guard reaps them.
type commandProc struct {
	pid     int
	pidfd   int // tells its death; -1 once it has, or where the kernel has none
	started time.Time
	exited  bool // dead, perhaps still unreaped
	reaped  bool
}

// start checks once more that the run may begin and starts the command; it
// reports false when nothing was started.
//
// A guard that was stopped or slept until too late starts nothing. What remains
// is a freeze in the few instructions between the check and the exec: such a
// command is ended as soon as the guard runs again.
func (g *guard) start() bool {
	lockFD := g.raiseLock()
	g.report(Report{Event: EventStarting})
	g.pending()
	if reason := g.due(Boottime()); reason != ReasonNone {
		g.report(Report{Event: EventRefused, Reason: reason})
		return false
	}
	pidfd := -1
	pid, err := syscall.ForkExec(g.spec.Path, g.spec.Argv, &syscall.ProcAttr{
		Dir:   g.spec.Dir,
		Env:   g.spec.Env,
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	})
	if err != nil {
		errno, ok := errors.AsType[syscall.Errno](err)
		if !ok {
			errno = syscall.EINVAL
		}
		g.report(Report{Event: EventUnstartable, Errno: errno})
		return false
	}
	if lockFD >= 0 {
		syscall.CloseOnExec(lockFD) // the command has its copy; this one is the guard's
	}
	g.command = commandProc{pid: pid, pidfd: pidfd, started: time.Now()}
	if g.spec.Timeout > 0 {
		g.timeoutAt = Boottime() + g.spec.Timeout
	}
	g.report(Report{Event: EventStarted, PID: pid})
	return true
}

// raiseLock moves the runs lock's descriptor out of the range that shell scripts
// redirect by number (3 to 9), where a script would close it unknowingly. The
// result stays open across exec, which is the point of it; -1 without a lock.
func (g *guard) raiseLock() int {
	if !g.spec.Locked {
		return -1
	}
	const above = 200
	fd, err := duplicate(LockFD, above)
	if err != nil {
		return LockFD // few descriptors allowed: the number is only a nicety
	}
	_ = syscall.Close(LockFD)
	return fd
}

// sweep reaps what has died and takes stock; it reports true when no process of
// the run is left.
func (g *guard) sweep() bool {
	g.noteExit()
	// The kernel gives an orphan to the first thread of its new parent that lives, the
	// main one, which is also the one that started the command.
	pids, err := childrenOfThread("/proc/thread-self/children")
	if err != nil {
		// Without /proc nothing but the command's group can be seen; the last wait
		// below still tells whether anything is left.
		pids, _ = Children()
	}
	g.takeStock(pids)
	if !g.command.exited || len(g.others) > 0 {
		return false
	}
	if !g.command.reaped {
		g.command.reaped = Reap(g.command.pid)
	}
	// The list above may have missed a child; the kernel's own answer does not.
	// As every orphan of the run becomes a child of the guard, no child means
	// that nothing is left.
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG|syscall.WALL, nil)
		switch {
		case err == syscall.EINTR || pid > 0:
		case err == syscall.ECHILD:
			return true
		default:
			pids, _ = Children()
			g.takeStock(pids)
			return false
		}
	}
}

// takeStock reaps the dead among the guard's children and notes the others.
func (g *guard) takeStock(pids []int) {
	g.others = g.others[:0]
	for _, pid := range pids {
		if pid != g.command.pid && !Reap(pid) {
			g.others = append(g.others, pid)
		}
	}
}

// noteExit looks whether the command itself has died, without reaping it, and
// reports how.
func (g *guard) noteExit() {
	if g.command.exited {
		return
	}
	death, dead := peek(g.command.pid)
	if !dead {
		return
	}
	g.command.exited = true
	r := Report{Event: EventExited, Reason: g.reason, Elapsed: time.Since(g.command.started)}
	if death.exited {
		r.Code = death.status
	} else {
		r.Signal = syscall.Signal(death.status)
	}
	g.report(r)
}

// termGroup asks the command's group to end. CONT wakes stopped members, which
// would sit on their TERM otherwise.
func (g *guard) termGroup() {
	for _, pid := range g.others {
		if group, err := syscall.Getpgid(pid); err == nil && group == g.command.pid {
			g.warned[pid] = true // a second TERM means "at once" to some programs
		}
	}
	g.signalGroup(syscall.SIGTERM)
	g.signalGroup(syscall.SIGCONT)
}

// termOthers asks each adopted child that has not been asked yet.
func (g *guard) termOthers() {
	for _, pid := range g.others {
		if g.warned[pid] {
			continue
		}
		g.warned[pid] = true
		if group, err := syscall.Getpgid(pid); err == nil && group == g.command.pid {
			continue // adopted after the group's TERM, which reached it there
		}
		_ = syscall.Kill(pid, syscall.SIGTERM)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// killAll is repeated until nothing is left: each death may hand over children.
func (g *guard) killAll() {
	g.signalGroup(syscall.SIGKILL)
	for _, pid := range g.others {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// signalGroup signals the command's group while its number is surely the run's own.
// Errors mean that a member is gone or out of reach; the next sweep sees which.
func (g *guard) signalGroup(sig syscall.Signal) {
	if !g.command.reaped {
		_ = syscall.Kill(-g.command.pid, sig)
	}
}

// survivors lists what is still there, for people to look at.
func (g *guard) survivors() []int {
	const enough = 20
	var pids []int
	if !g.command.exited {
		pids = append(pids, g.command.pid)
	}
	pids = append(pids, g.others...)
	return pids[:min(len(pids), enough)]
}

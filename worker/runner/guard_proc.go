package runner

import (
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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
	g.report(guardReport{Event: eventStarting})
	g.pending()
	if reason := g.due(Boottime()); reason != reasonNone {
		g.report(guardReport{Event: eventRefused, Reason: reason})
		return false
	}
	pid, err := syscall.ForkExec(string(g.spec.Path), words(g.spec.Argv), &syscall.ProcAttr{
		Dir:   string(g.spec.Dir),
		Env:   words(g.spec.Env),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		errno, ok := errors.AsType[syscall.Errno](err)
		if !ok {
			errno = syscall.EINVAL
		}
		g.report(guardReport{Event: eventUnstartable, Errno: errno})
		return false
	}
	if lockFD >= 0 {
		unix.CloseOnExec(lockFD) // the command has its copy; this one is the guard's
	}
	g.command = commandProc{pid: pid, started: time.Now()}
	if g.spec.Timeout > 0 {
		g.timeoutAt = Boottime() + g.spec.Timeout
	}
	g.report(guardReport{Event: eventStarted, PID: pid})
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
	fd, err := unix.FcntlInt(guardLockFD, unix.F_DUPFD, above)
	if err != nil {
		return guardLockFD // few descriptors allowed: the number is only a nicety
	}
	unix.Close(guardLockFD)
	return fd
}

// sweep reaps what has died and takes stock; it reports true when no process of
// the run is left.
func (g *guard) sweep() bool {
	g.noteExit()
	g.others = g.others[:0]
	// Without /proc nothing but the command's group can be seen; the last wait
	// below still tells whether anything is left.
	pids, _ := children()
	for _, pid := range pids {
		if pid != g.command.pid && !reap(pid) {
			g.others = append(g.others, pid)
		}
	}
	if !g.command.exited || len(g.others) > 0 {
		return false
	}
	if !g.command.reaped {
		g.command.reaped = reap(g.command.pid)
	}
	// The list above may have missed a child; the kernel's own answer does not.
	// As every orphan of the run becomes a child of the guard, no child means
	// that nothing is left.
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR || pid > 0:
		case err == unix.ECHILD:
			return true
		default:
			return false
		}
	}
}

// noteExit looks whether the command itself has died, without reaping it, and
// reports how.
func (g *guard) noteExit() {
	if g.command.exited {
		return
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, g.command.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || info.Signo == 0 {
			return
		}
		break
	}
	g.command.exited = true
	r := guardReport{Event: eventExited, Reason: g.reason, Elapsed: time.Since(g.command.started)}
	status := exitStatus(&info)
	const exitedByItself = 1 // CLD_EXITED; the others (killed, dumped) carry a signal
	if info.Code == exitedByItself {
		r.Code = status
	} else {
		r.Signal = syscall.Signal(status)
	}
	g.report(r)
}

// exitStatus reads si_status, which package unix leaves unnamed: the third
// 32-bit word of the union behind the three leading words, which is aligned like
// a pointer (sigaction(2), <asm-generic/siginfo.h>).
func exitStatus(info *unix.Siginfo) int {
	const word = 4
	align := unsafe.Sizeof(uintptr(0))
	union := (3*word + align - 1) / align * align
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), union+2*word)))
}

// reap takes away one dead child; it reports false while the child lives.
func reap(pid int) bool {
	for {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
		if err != unix.EINTR {
			return got == pid || err == unix.ECHILD
		}
	}
}

// termGroup asks the command's group to end. CONT wakes stopped members, which
// would sit on their TERM otherwise.
func (g *guard) termGroup() {
	for _, pid := range g.others {
		if group, err := unix.Getpgid(pid); err == nil && group == g.command.pid {
			g.warned[pid] = true // a second TERM means "at once" to some programs
		}
	}
	g.signalGroup(unix.SIGTERM)
	g.signalGroup(unix.SIGCONT)
}

// termOthers asks each adopted child that has not been asked yet.
func (g *guard) termOthers() {
	for _, pid := range g.others {
		if g.warned[pid] {
			continue
		}
		g.warned[pid] = true
		if group, err := unix.Getpgid(pid); err == nil && group == g.command.pid {
			continue // adopted after the group's TERM, which reached it there
		}
		_ = unix.Kill(pid, unix.SIGTERM)
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// killAll is repeated until nothing is left: each death may hand over children.
func (g *guard) killAll() {
	g.signalGroup(unix.SIGKILL)
	for _, pid := range g.others {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// signalGroup signals the command's group while its number is surely the run's own.
// Errors mean that a member is gone or out of reach; the next sweep sees which.
func (g *guard) signalGroup(sig syscall.Signal) {
	if !g.command.reaped {
		_ = unix.Kill(-g.command.pid, sig)
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

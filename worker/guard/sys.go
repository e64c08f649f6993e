package guard

import (
	"os"
	"syscall"
	"unsafe"
)

// System calls that package syscall has no functions for.

// pollFD is struct pollfd of poll(2).
type pollFD struct {
	fd      int32
	events  int16
	revents int16
}

const pollIn = 0x1 // POLLIN; POLLHUP is always told

// poll waits until a descriptor is readable or hung up, or only looks whether one is.
// It returns how many are. A signal ends the wait with EINTR.
func poll(fds []pollFD, wait bool) (int, error) {
	var limit *syscall.Timespec
	if !wait {
		limit = &syscall.Timespec{}
	}
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// becomeSubreaper makes this process adopt the orphans among its descendants.
func becomeSubreaper() error {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER, <linux/prctl.h>
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setChildSubreaper, 1, 0, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

// duplicate copies a descriptor to a number that is at least above.
func duplicate(fd, above int) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD, uintptr(above))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// death is how a child ended.
type death struct {
	status int
	exited bool // status is an exit code; otherwise the number of a signal
}

// peek looks whether a child has died, without reaping it.
func peek(pid int) (death, bool) {
	const byPID = 1 // P_PID
	// siginfo_t: signal, errno and code, three 32-bit words, then a union that is
	// aligned like a pointer, with pid, uid and status (sigaction(2),
	// <asm-generic/siginfo.h>).
	const word = 4
	const align = unsafe.Sizeof(uintptr(0))
	const union = (3*word + align - 1) / align * align
	var info [128 / word]int32
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
			syscall.WEXITED|syscall.WNOHANG|syscall.WNOWAIT|syscall.WALL, 0, 0)
		switch {
		case errno == syscall.EINTR:
		case errno != 0 || info[0] == 0: // nothing to tell: no signal
			return death{}, false
		default:
			const exitedByItself = 1 // CLD_EXITED; the others (killed, dumped) carry a signal
			return death{status: int(info[union/word+2]), exited: info[2] == exitedByItself}, true
		}
	}
}

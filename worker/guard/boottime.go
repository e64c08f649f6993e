package guard

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // <linux/time.h>

// Boottime reads CLOCK_BOOTTIME: time since the machine started, suspended time
// included. It is monotonic and the same in all processes of a host, which is
// what a deadline shared by gateway and guard needs.
func Boottime() time.Duration {
	var ts syscall.Timespec
	// The call can't fail: the clock exists since Linux 2.6.39 and ts is ours.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

// bootTimer is a descriptor that becomes readable when an instant of CLOCK_BOOTTIME
// has passed, at once if that happened while the machine slept or the process was
// stopped. It stays so until it is set again.
type bootTimer struct {
	fd int // -1 before the first setting
}

// set arms the timer for an instant on CLOCK_BOOTTIME; zero disarms it.
func (t *bootTimer) set(at time.Duration) error {
	if t.fd < 0 {
		if at == 0 {
			return nil
		}
		fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
		if errno != 0 {
			return os.NewSyscallError("timerfd_create", errno)
		}
		t.fd = int(fd)
	}
	const absolute = 1 // TFD_TIMER_ABSTIME
	spec := struct{ interval, value syscall.Timespec }{value: syscall.NsecToTimespec(max(int64(at), 0))}
	if _, _, errno := syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(t.fd), absolute,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0); errno != 0 {
		return os.NewSyscallError("timerfd_settime", errno)
	}
	return nil
}

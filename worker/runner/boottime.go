package runner

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Boottime reads CLOCK_BOOTTIME: time since the machine started, suspended time
// included. It is monotonic and the same in all processes of a host, which is
// what a deadline shared by gateway and guard needs.
func Boottime() time.Duration {
	var ts unix.Timespec
	// The call can't fail: the clock exists since Linux 2.6.39 and ts is ours.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// bootTimer sends on C when an instant of CLOCK_BOOTTIME has passed, at once if
// that happened while the machine slept or the process was stopped. Ticks of an
// earlier setting may still arrive: the receiver looks at the clock.
type bootTimer struct {
	C    <-chan struct{}
	file *os.File
}

func newBootTimer() (*bootTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "boot timer")
	ticks := make(chan struct{}, 1)
	go func() {
		var expirations [8]byte
		for {
			if _, err := file.Read(expirations[:]); err != nil {
				return // closed
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return &bootTimer{C: ticks, file: file}, nil
}

// Set arms the timer for an instant on CLOCK_BOOTTIME; zero disarms it.
func (t *bootTimer) Set(at time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at), 0))}
	conn, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := conn.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("timerfd_settime", setErr)
}

func (t *bootTimer) Close() error { return t.file.Close() }

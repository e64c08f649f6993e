package guard

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// shielded are the signals that a guard outlives.
var shielded = [...]syscall.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE,
}

// shieldFromSignals keeps signals that somebody sends to the guard, or to all it can
// see, from ending it: only KILL does.
//
// They are ignored by the kernel, in place of the runtime's handlers: os/signal would
// start two threads. An ignored signal stays ignored in a command that is started, which
// then could not be ended by TERM; but the runtime sets each signal that it has a handler
// for to its default between fork and exec, and it doesn't know of this. For a signal
// that was ignored already when this process began it has none, so there it is asked to.
func shieldFromSignals() {
	for _, sig := range shielded {
		if signal.Ignored(sig) || !ignore(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// ignore reports false when the kernel refuses.
func ignore(sig syscall.Signal) bool {
	const sigIgn = 1
	// struct sigaction begins with the handler; flags, mask and what an architecture
	// adds are zero.
	action := [8]uintptr{sigIgn}
	const maskSize = 8
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
	return errno == 0
}

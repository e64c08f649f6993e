// Package guard is the guard process of a run: the parent of its command (see package
// runner for what it is for), and what gateway and guard say to each other.
//
// Importing it is enough to be one: a program that links this package and whose first
// argument is "guard" runs a guard and nothing else. It does so in the package's own
// initialisation. The gateway starts its binary again for each run, and most of what
// that would cost is the initialisation of packages which a guard doesn't use (schemas
// of an SDK, registries, a database). Go initialises the first package, by import path,
// whose imports are ready: so what this package imports has to be little, and itself in
// need of little. What it would want of golang.org/x/sys/unix and encoding/json is
// therefore in here. A test of cmd/lanegate holds it to that.
package guard

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"
)

// Command is the hidden command that makes a process a guard.
const Command = "guard"

func init() {
	if len(os.Args) > 1 && os.Args[1] == Command {
		os.Exit(run())
	}
}

// stage is how far the end of a run has come.
type stage int

const (
	stageRunning stage = iota
	stageTerm          // TERM was sent
	stageKill          // KILL is sent until nothing is left
)

const (
	// termScan spaces the looks for processes that were adopted after TERM.
	termScan = 100 * time.Millisecond
	// killScan spaces the rounds of KILL.
	killScan = 20 * time.Millisecond
	// stuckReport spaces the reports about processes that survive KILL.
	stuckReport = 5 * time.Second
)

// guard is the state of a guard process. There is one goroutine and it waits in one
// place, await.
type guard struct {
	spec  Spec
	in    inbox
	timer bootTimer

	hungUp    bool          // the gateway has died
	stop      Reason        // ordered, ReasonNone while nothing was
	timeoutAt time.Duration // boot time, zero without a limit
	stage     stage
	termAt    time.Duration // boot time of TERM
	reason    Reason        // why TERM was sent while the command ran
	stuckAt   time.Duration // boot time of the next report about survivors

	command commandProc
	others  []int        // the guard's children beside the command, as of the last sweep
	warned  map[int]bool // others that had their TERM
}

// run is the whole process; it returns the exit code.
func run() int {
	// The command's parent death signal follows the thread that forks it; this
	// goroutine keeps its thread for the life of the process.
	runtime.LockOSThread()
	if err := takeOver(); err != nil {
		_, _ = os.Stderr.WriteString("lanegate guard: " + err.Error() + "\n")
		return 2
	}
	g := &guard{timer: bootTimer{fd: -1}, warned: map[int]bool{}}
	order, err := g.firstOrder()
	if err != nil || order.Spec == nil {
		return 2 // the gateway died before it said what to run
	}
	g.spec = *order.Spec
	if g.spec.Scratch != "" {
		defer g.removeScratch()
	}
	if g.start() {
		g.supervise()
	}
	return 0
}

// takeOver prepares the inherited descriptors and the signals.
func takeOver() error {
	for _, fd := range []int{ControlFD, ReportFD} {
		// Without the gateway's pipes the number may be closed or, as the runtime
		// opens descriptors of its own, something else.
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
			return errors.New("this command is started by lanegate itself, for each run; it is not for people")
		}
		syscall.CloseOnExec(fd)
	}
	// Reports must never block the guard, whatever became of their reader.
	if err := syscall.SetNonblock(ReportFD, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if err := becomeSubreaper(); err != nil {
		return err
	}
	shieldFromSignals()
	return nil
}

func (g *guard) removeScratch() {
	// Usually the payload is all there is. RemoveAll looks at everything first.
	if syscall.Unlink(g.spec.Scratch+"/"+PayloadName) != nil || syscall.Rmdir(g.spec.Scratch) != nil {
		_ = os.RemoveAll(g.spec.Scratch)
	}
}

// firstOrder waits for the spec.
func (g *guard) firstOrder() (Order, error) {
	for {
		if order, ok, err := g.nextOrder(); ok || err != nil {
			return order, err
		}
		if err := g.read(); err != nil {
			return Order{}, err
		}
	}
}

// nextOrder takes in the first order that has arrived as a whole; ok is false when
// none has.
func (g *guard) nextOrder() (order Order, ok bool, err error) {
	kind, text, ok := g.in.take()
	if !ok {
		return Order{}, false, nil
	}
	order, err = parseOrder(kind, text)
	return order, err == nil, err
}

var errHungUp = errors.New("the gateway has died")

// read takes what is in the control pipe, waiting until there is something.
func (g *guard) read() error {
	for {
		n, err := syscall.Read(ControlFD, g.in.room())
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN: // somebody made the pipe non-blocking
			if _, err := poll([]pollFD{{fd: ControlFD, events: pollIn}}, true); err != nil {
				return err
			}
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			return errHungUp
		default:
			g.in.got(n)
			return nil
		}
	}
}

// pending obeys the orders that have arrived so far, the gateway's death among
// them, without waiting for more. An unreadable order counts as that death: a
// gateway that talks nonsense is no gateway.
func (g *guard) pending() {
	for !g.hungUp {
		order, ok, err := g.nextOrder()
		if ok {
			g.obey(order)
			continue
		}
		if err == nil {
			if ready, err := poll([]pollFD{{fd: ControlFD, events: pollIn}}, false); err != nil || ready == 0 {
				return
			}
			err = g.read() // readable, or hung up
		}
		if err != nil {
			g.hangUp()
		}
	}
}

func (g *guard) hangUp() {
	g.hungUp = true
	if g.stop == ReasonNone {
		g.stop = ReasonOrphaned
	}
}

// supervise returns when no process of the run is left.
func (g *guard) supervise() {
	for {
		now := Boottime()
		g.step(now)
		if err := g.await(g.wake(now)); err != nil {
			panic("lanegate guard: " + err.Error()) // the command dies with us
		}
		if g.sweep() {
			g.report(Report{Event: EventEnded})
			return
		}
	}
}

// unsignalled spaces the looks at a command whose end no descriptor tells, mostly on a
// kernel without pidfds. Usually SIGCHLD is quicker.
const unsignalled = 50 * time.Millisecond

// await returns when an order has come and is obeyed, the command has died, the
// instant at (boot time, zero for none) has passed, or for no reason that it knows:
// the caller looks at everything anyway.
//
// The death of an adopted process is told by SIGCHLD, whose handler, the runtime's,
// interrupts the wait. It may be missed in the instant before the wait begins. So it
// only makes things quicker: a process that died unnoticed is reaped at the next
// occasion, and once the end of the run has begun occasions come by the clock.
func (g *guard) await(at time.Duration) error {
	fds := make([]pollFD, 0, 3)
	if !g.hungUp {
		fds = append(fds, pollFD{fd: ControlFD, events: pollIn})
	}
	if !g.command.exited {
		if g.command.pidfd >= 0 {
			fds = append(fds, pollFD{fd: int32(g.command.pidfd), events: pollIn})
		} else if look := Boottime() + unsignalled; at == 0 || look < at {
			at = look
		}
	}
	if err := g.timer.set(at); err != nil {
		return err
	}
	if at > 0 {
		fds = append(fds, pollFD{fd: int32(g.timer.fd), events: pollIn})
	}
	if _, err := poll(fds, true); err != nil && !errors.Is(err, syscall.EINTR) {
		return os.NewSyscallError("ppoll", err)
	}
	for _, fd := range fds {
		if int(fd.fd) == g.command.pidfd && fd.revents != 0 {
			// It has said all that it can. If the command can't be waited for yet, as
			// a debugger has the first word, only looking again helps.
			_ = syscall.Close(g.command.pidfd)
			g.command.pidfd = -1
		}
	}
	g.pending()
	return nil
}

// obey takes in one order.
func (g *guard) obey(o Order) {
	switch {
	case o.Stop != ReasonNone:
		g.stop = o.Stop
	case g.spec.Deadline > 0:
		g.spec.Deadline = max(g.spec.Deadline, o.Deadline)
	}
}

// due returns why the run has to end now, ReasonNone when it may go on. When
// several limits have passed, the one that passed first counts.
func (g *guard) due(now time.Duration) Reason {
	if g.stop != ReasonNone {
		return g.stop
	}
	fenceAt := g.fenceAt()
	fenced := fenceAt > 0 && now >= fenceAt
	timedOut := g.timeoutAt > 0 && now >= g.timeoutAt
	switch {
	case timedOut && (!fenced || g.timeoutAt <= fenceAt):
		return ReasonTimedOut
	case fenced:
		return ReasonFenced
	}
	return ReasonNone
}

// fenceAt is when TERM is due for the lease's sake, zero without a deadline.
func (g *guard) fenceAt() time.Duration {
	if g.spec.Deadline == 0 {
		return 0
	}
	return max(g.spec.Deadline-g.spec.Grace, 1)
}

// killAt is when TERM has had its time. For the deadline's sake it is a little
// early, so that KILL is done, not only sent, when the deadline comes.
func (g *guard) killAt() time.Duration {
	at := g.termAt + g.spec.Grace
	if g.spec.Deadline > 0 {
		at = min(at, g.spec.Deadline-min(g.spec.Grace/10, time.Second))
	}
	return at
}

// step does what is due: nothing, TERM, or KILL.
func (g *guard) step(now time.Duration) {
	if g.stage == stageRunning {
		reason := g.due(now)
		if reason == ReasonNone && !g.command.exited {
			return
		}
		if !g.command.exited {
			g.reason = reason
		}
		g.stage, g.termAt = stageTerm, now
		g.report(Report{Event: EventEnding, Reason: g.reason})
		g.termGroup()
	}
	if g.stage == stageTerm && now >= g.killAt() {
		g.stage, g.stuckAt = stageKill, now+stuckReport
	}
	if g.stage == stageTerm {
		g.termOthers()
		return
	}
	g.killAll()
	if now >= g.stuckAt {
		g.stuckAt = now + stuckReport
		g.report(Report{Event: EventStuck, PIDs: g.survivors()})
	}
}

// wake is the next instant at which step has something to do without being told;
// zero when there is none.
func (g *guard) wake(now time.Duration) time.Duration {
	switch g.stage {
	case stageTerm:
		return max(min(g.killAt(), now+termScan), 1)
	case stageKill:
		return now + killScan
	}
	at := g.fenceAt()
	if at == 0 || (g.timeoutAt > 0 && g.timeoutAt < at) {
		at = g.timeoutAt
	}
	return at
}

// report never blocks. A report that finds no reader, or a pipe that a frozen
// gateway let fill up, is dropped: the gateway then sees a guard that ended
// without a word and treats the run as lost.
func (g *guard) report(r Report) {
	frame := r.Frame()
	for {
		if _, err := syscall.Write(ReportFD, frame); err != syscall.EINTR {
			return
		}
	}
}

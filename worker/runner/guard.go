package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// guardStage is how far the end of a run has come.
type guardStage int

const (
	stageRunning guardStage = iota
	stageTerm               // TERM was sent
	stageKill               // KILL is sent until nothing is left
)

const (
	// termScan spaces the looks for processes that were adopted after TERM.
	termScan = 100 * time.Millisecond
	// killScan spaces the rounds of KILL.
	killScan = 20 * time.Millisecond
	// stuckReport spaces the reports about processes that survive KILL.
	stuckReport = 5 * time.Second
)

// guard is the state of a guard process. All of it belongs to the main
// goroutine; the others only send on channels.
type guard struct {
	spec    guardSpec
	pipe    *controlPipe
	control *json.Decoder     // of pipe; the main goroutine's until the command has started
	orders  <-chan guardOrder // from then on; closed when the gateway has died, then set to nil
	signals <-chan os.Signal  // CHLD and CONT: look again
	timer   *bootTimer

	stop      stopReason    // ordered, reasonNone while nothing was
	timeoutAt time.Duration // boot time, zero without a limit
	stage     guardStage
	termAt    time.Duration // boot time of TERM
	reason    stopReason    // why TERM was sent while the command ran
	stuckAt   time.Duration // boot time of the next report about survivors

	command commandProc
	others  []int        // the guard's children beside the command, as of the last sweep
	warned  map[int]bool // others that had their TERM
}

// GuardMain is the body of the hidden command "guard": the parent process of one
// run (see the package comment). It expects the descriptors that Exec opens for
// it and returns the exit code for the process. main calls it first, before it
// parses anything else, on the main goroutine.
func GuardMain() int {
	// The command's parent death signal follows the thread that forks it; this
	// goroutine keeps its thread for the life of the process.
	runtime.LockOSThread()
	g, err := openGuard()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanegate guard:", err)
		return 2
	}
	var order guardOrder
	if err := g.control.Decode(&order); err != nil || order.Spec == nil {
		return 2 // the gateway died before it said what to run
	}
	g.spec = *order.Spec
	if len(g.spec.Scratch) > 0 {
		defer os.RemoveAll(string(g.spec.Scratch))
	}
	if g.start() {
		g.supervise()
	}
	return 0
}

// openGuard takes over the inherited descriptors and the signals.
func openGuard() (*guard, error) {
	for _, fd := range []int{guardControlFD, guardReportFD} {
		// Without the gateway's pipes the number may be closed or, as the runtime
		// opens descriptors of its own, something else.
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
			return nil, errors.New("this command is started by lanegate itself, for each run; it is not for people")
		}
		unix.CloseOnExec(fd)
	}
	// Reports must never block the guard, whatever became of their reader.
	if err := unix.SetNonblock(guardReportFD, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	// Caught, not ignored: an ignored signal would stay ignored in the command,
	// which then could not be ended by TERM.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGCONT)
	timer, err := newBootTimer()
	if err != nil {
		return nil, err
	}
	pipe := &controlPipe{}
	return &guard{
		pipe: pipe, control: json.NewDecoder(pipe),
		signals: signals, timer: timer, warned: map[int]bool{},
	}, nil
}

// controlPipe reads the orders: by plain blocking calls before the command has
// started, which is quickest, and through the runtime's poller from then on, so
// that no thread is tied up for the life of the run.
type controlPipe struct{ polled *os.File }

func (c *controlPipe) Read(p []byte) (int, error) {
	if c.polled != nil {
		return c.polled.Read(p)
	}
	for {
		n, err := unix.Read(guardControlFD, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (c *controlPipe) poll() error {
	if err := unix.SetNonblock(guardControlFD, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	c.polled = os.NewFile(guardControlFD, "control")
	return nil
}

// pending obeys the orders that have arrived so far, the gateway's death among
// them, without waiting for more.
func (g *guard) pending() {
	for g.orderArrived() {
		var o guardOrder
		err := g.control.Decode(&o)
		g.obey(o, err == nil)
		if err != nil {
			return
		}
	}
}

// orderArrived says whether the next Decode has something to read.
func (g *guard) orderArrived() bool {
	if rest, ok := g.control.Buffered().(*bytes.Reader); ok {
		text, _ := io.ReadAll(rest)
		if len(bytes.TrimSpace(text)) > 0 {
			return true
		}
	}
	fds := []unix.PollFd{{Fd: guardControlFD, Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 // readable, or hung up
}

// readOrders decodes the control pipe until its end. An unreadable order counts
// as the end: a gateway that talks nonsense is no gateway.
func readOrders(control *json.Decoder) <-chan guardOrder {
	orders := make(chan guardOrder)
	go func() {
		defer close(orders)
		for {
			var o guardOrder
			if control.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	return orders
}

// supervise returns when no process of the run is left.
func (g *guard) supervise() {
	if err := g.pipe.poll(); err != nil {
		panic("lanegate guard: " + err.Error()) // the command dies with us
	}
	g.orders = readOrders(g.control)
	for {
		now := Boottime()
		g.step(now)
		if err := g.timer.Set(g.wake(now)); err != nil {
			panic("lanegate guard: " + err.Error()) // the command dies with us
		}
		select {
		case o, ok := <-g.orders:
			g.obey(o, ok)
		case <-g.signals:
		case <-g.timer.C:
		}
		if g.sweep() {
			g.report(guardReport{Event: eventEnded})
			return
		}
	}
}

// obey takes in one order; ok is false when the gateway has died.
func (g *guard) obey(o guardOrder, ok bool) {
	switch {
	case !ok:
		g.orders = nil
		if g.stop == reasonNone {
			g.stop = reasonOrphaned
		}
	case o.Stop != reasonNone:
		g.stop = o.Stop
	case g.spec.Deadline > 0:
		g.spec.Deadline = max(g.spec.Deadline, o.Deadline)
	}
}

// due returns why the run has to end now, reasonNone when it may go on. When
// several limits have passed, the one that passed first counts.
func (g *guard) due(now time.Duration) stopReason {
	if g.stop != reasonNone {
		return g.stop
	}
	fenceAt := g.fenceAt()
	fenced := fenceAt > 0 && now >= fenceAt
	timedOut := g.timeoutAt > 0 && now >= g.timeoutAt
	switch {
	case timedOut && (!fenced || g.timeoutAt <= fenceAt):
		return reasonTimedOut
	case fenced:
		return reasonFenced
	}
	return reasonNone
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
		if reason == reasonNone && !g.command.exited {
			return
		}
		if !g.command.exited {
			g.reason = reason
		}
		g.stage, g.termAt = stageTerm, now
		g.report(guardReport{Event: eventEnding, Reason: g.reason})
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
		g.report(guardReport{Event: eventStuck, PIDs: g.survivors()})
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
func (g *guard) report(r guardReport) {
	line, err := json.Marshal(r)
	if err != nil {
		panic("lanegate guard: " + err.Error()) // plain data always marshals
	}
	line = append(line, '\n')
	for {
		if _, err := unix.Write(guardReportFD, line); err != unix.EINTR {
			return
		}
	}
}

package runner

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/guard"
)

// specWait bounds how long a new guard may take to read its spec.
const specWait = 10 * time.Second

// execRun is one run as the gateway sees it. It belongs to the goroutine that
// called Run; readers of the pipes only send or fill the collector.
type execRun struct {
	exec     *Exec
	job      Job
	child    *Child
	control  *os.File            // orders
	reports  <-chan guard.Report // closed when the guard is gone
	output   *collector
	launched time.Time

	deadline  time.Duration // boot time, zero without a fence
	timeoutAt time.Duration // boot time, zero without a limit
	stop      guard.Reason  // what the guard was asked to do
	stopSent  bool
	strikes   int          // silent ticks while the guard should be ending the run
	abandoned guard.Reason // why the guard was killed by us

	starting bool          // from here on something may run
	refused  *guard.Report // nothing was started
	errno    syscall.Errno // the command could not be executed
	exit     *guard.Report // how the command itself ended
	ended    bool          // the guard vouches that nothing is left
}

// launch starts a guard and tells it what to run. On an error nothing runs.
func (e *Exec) launch(job Job, spec guard.Spec, dir *scratch, lock *os.File) (*execRun, error) {
	pipes, err := openPipes(4)
	if err != nil {
		return nil, err
	}
	control, report, stdout, stderr := pipes[0], pipes[1], pipes[2], pipes[3]
	theirs := []*os.File{control.r, report.w, stdout.w, stderr.w}
	ours := []*os.File{control.w, report.r, stdout.r, stderr.r}
	files := []*os.File{0: dir.stdin, 1: stdout.w, 2: stderr.w, guard.ControlFD: control.r, guard.ReportFD: report.w}
	if lock != nil {
		files = append(files, lock)
	}
	// The job's id is for people who look at the list of processes.
	argv := append(append([]string{}, e.opts.GuardPath...), job.ID)
	child, err := e.opts.Orphans.Start(func() (*os.Process, error) {
		return os.StartProcess(argv[0], argv, &os.ProcAttr{
			Dir: "/",
			// None of the gateway's secrets; one thread to run Go code is plenty.
			Env:   []string{"GOMAXPROCS=1"},
			Files: files,
			// Out of reach of signals to the gateway's group or terminal.
			Sys: &syscall.SysProcAttr{Setsid: true},
		})
	})
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	r := &execRun{
		exec: e, job: job, child: child, control: control.w, launched: time.Now(),
		deadline: spec.Deadline, reports: readReports(report.r), output: e.collect(stdout.r, stderr.r),
	}
	if spec.Timeout > 0 {
		r.timeoutAt = Boottime() + spec.Timeout
	}
	if !r.order(guard.Order{Spec: &spec}, specWait) {
		// It is dead already, or frozen: it has not read the spec and never will.
		_ = child.Kill()
	}
	return r, nil
}

// readReports decodes the report pipe until the guard is gone.
func readReports(pipe *os.File) <-chan guard.Report {
	reports := make(chan guard.Report)
	go func() {
		defer close(reports)
		defer pipe.Close()
		in := guard.NewReports(pipe)
		for {
			rep, err := in.Next()
			if err != nil {
				return
			}
			reports <- rep
		}
	}()
	return reports
}

// order sends one order; false means that the guard is gone or does not read.
// An order of up to PIPE_BUF bytes is written as a whole or not at all.
func (r *execRun) order(o guard.Order, wait time.Duration) bool {
	_ = r.control.SetWriteDeadline(time.Now().Add(wait)) // pipes take deadlines
	_, err := r.control.Write(o.Frame())
	return err == nil
}

// follow passes on stop and renewals and takes in reports until the guard is gone.
func (r *execRun) follow(ctx context.Context, lease Lease, renewed <-chan struct{}) {
	tick := time.NewTicker(r.tick())
	defer tick.Stop()
	done := ctx.Done()
	for {
		select {
		case rep, ok := <-r.reports:
			if !ok {
				return
			}
			r.note(ctx, rep)
		case <-done:
			done = nil
			r.stop = reasonOf(context.Cause(ctx))
			r.sendStop()
		case <-renewed:
			if deadline, fenced := lease.Deadline(); fenced {
				r.deadline = deadline
				// One that does not fit is made good by the next.
				r.order(guard.Order{Deadline: deadline}, orderWait)
			}
		case <-tick.C:
			r.watch(ctx)
		}
	}
}

// orderWait is short because a guard that lives reads at once.
const orderWait = 100 * time.Millisecond

func (r *execRun) sendStop() { r.stopSent = r.order(guard.Order{Stop: r.stop}, orderWait) }

// note takes in one report.
func (r *execRun) note(ctx context.Context, rep guard.Report) {
	r.strikes = 0
	switch rep.Event {
	case guard.EventStarting:
		r.starting = true
	case guard.EventRefused:
		r.refused = &rep
	case guard.EventUnstartable:
		r.errno = rep.Errno
	case guard.EventExited:
		r.exit = &rep
	case guard.EventEnded:
		r.ended = true
	case guard.EventStuck:
		r.exec.opts.Logger.WarnContext(ctx, "processes of a run survive KILL",
			"job", r.job.ID, "attempt", r.job.Attempt, "pids", rep.PIDs)
	}
}

func (r *execRun) tick() time.Duration { return r.exec.patience / 4 }

// watch kills a guard that should be ending its run and is silent for longer
// than the grace and some patience: somebody froze it. Only silence that this
// process was awake to observe counts.
func (r *execRun) watch(ctx context.Context) {
	if r.stop != guard.ReasonNone && !r.stopSent {
		r.sendStop()
	}
	reason, overdue := r.overdue(Boottime())
	if !overdue {
		r.strikes = 0
		return
	}
	r.strikes++
	if time.Duration(r.strikes)*r.tick() < r.exec.opts.Grace+r.exec.patience || r.abandoned != guard.ReasonNone {
		return
	}
	r.abandoned = reason
	r.exec.opts.Logger.ErrorContext(ctx, "guard does not answer and is killed",
		"job", r.job.ID, "attempt", r.job.Attempt, "pid", r.child.Pid)
	_ = r.child.Kill()
}

// overdue says whether the guard should be ending its run by now, and why.
func (r *execRun) overdue(now time.Duration) (guard.Reason, bool) {
	switch {
	case r.stop != guard.ReasonNone:
		return r.stop, true
	case r.timeoutAt > 0 && now >= r.timeoutAt:
		return guard.ReasonTimedOut, true
	case r.deadline > 0 && now >= r.deadline-r.exec.opts.Grace:
		return guard.ReasonFenced, true
	}
	return guard.ReasonStopped, !r.starting || r.exit != nil
}

// settle waits until the guard is reaped, everything it may have left is gone
// and the output is in.
func (r *execRun) settle(ctx context.Context) *os.ProcessState {
	state, err := r.child.Wait()
	if err != nil { // somebody else reaped it: a fault in the wiring, not of the run
		r.exec.opts.Logger.ErrorContext(ctx, "guard could not be waited for", "job", r.job.ID, "attempt", r.job.Attempt, "err", err)
	}
	r.control.Close()
	if r.starting && r.refused == nil && r.errno == 0 && !r.ended {
		r.exec.endOrphans(context.WithoutCancel(ctx), r.job)
	}
	r.output.finish()
	return state
}

// endOrphans returns when nothing of a killed guard's run is left.
func (e *Exec) endOrphans(ctx context.Context, job Job) {
	const complain = 10 * time.Second
	for {
		bounded, cancel := context.WithTimeout(ctx, complain)
		err := e.opts.Orphans.End(bounded)
		cancel()
		if err == nil {
			return
		}
		e.opts.Logger.ErrorContext(ctx, "what a killed guard left is still there", "job", job.ID, "attempt", job.Attempt, "err", err)
	}
}

// ending turns what is known into the attempt's end.
func (r *execRun) ending(p plan, state *os.ProcessState) lanegate.Ending {
	name := r.job.Run.Command
	var end lanegate.Ending
	switch {
	case r.refused != nil:
		end = stopped(r.refused.Reason, "nothing was started")
	case r.errno != 0:
		end = unstartable(name, p, r.errno)
	case r.exit != nil:
		end = r.exitEnding(*r.exit)
	case !r.starting && r.stop != guard.ReasonNone:
		end = stopped(r.stop, "nothing was started")
	case !r.starting:
		end = troubled("run its guard", fmt.Errorf("it ended before it started the command (%v)", state))
	case r.abandoned != guard.ReasonNone:
		end = stopped(r.abandoned, "the run's guard process did not answer and was killed with it")
	default:
		end.Outcome = lanegate.Lost
		end.Error = fmt.Sprintf("the run's guard process was killed (%v), and the command with it", state)
	}
	if end.Duration == 0 {
		end.Duration = time.Since(r.launched)
	}
	end.Output = r.output.log.output()
	if r.exit != nil && (r.exit.Reason == guard.ReasonNone || end.Outcome == lanegate.Succeeded) {
		end.Result = r.output.result.result() // a stopped run may have printed half of it
	}
	return end
}

// exitDeferred is EX_TEMPFAIL of <sysexits.h>: "not now, try again later".
const exitDeferred = 75

// exitEnding judges how the command itself ended.
func (r *execRun) exitEnding(rep guard.Report) lanegate.Ending {
	var end lanegate.Ending
	how := fmt.Sprintf("the command exited with %d", rep.Code)
	if rep.Signal != 0 {
		how = "the command was ended by " + signalName(rep.Signal)
	}
	switch {
	case rep.Reason == guard.ReasonCancelled && rep.Signal == 0 && rep.Code == 0:
		end.Outcome = lanegate.Succeeded
	case rep.Reason == guard.ReasonTimedOut:
		end = stopped(rep.Reason, how)
		end.Error = "the time limit of " + lanegate.FormatDuration(r.job.Timeout) + " was reached; " + how
	case rep.Reason != guard.ReasonNone:
		end = stopped(rep.Reason, how)
	case rep.Signal != 0:
		end.Outcome, end.Error = lanegate.Failed, how+", which lanegate did not send"
	case rep.Code == 0:
		end.Outcome = lanegate.Succeeded
	case rep.Code == exitDeferred:
		end.Outcome, end.Error = lanegate.Deferred, how+" (try again later)"
	default:
		end.Outcome, end.Error = lanegate.Failed, how
	}
	end.Duration = max(rep.Elapsed, 1)
	if rep.Signal != 0 {
		end.Signal = signalName(rep.Signal)
	} else {
		end.ExitCode = &rep.Code
	}
	return end
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig)) // a real-time signal
}

// SignalNumber is the signal that an Ending names, 0 for one that has no number here.
func SignalNumber(name string) syscall.Signal {
	if sig := unix.SignalNum(name); sig != 0 {
		return sig
	}
	var n int
	if _, err := fmt.Sscanf(name, "signal %d", &n); err != nil {
		return 0
	}
	return syscall.Signal(n)
}

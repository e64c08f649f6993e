// Package runner runs one attempt of a job and says how it ended: as a command
// under a guard process (Exec), as a request to a URL (HTTP) or as a message to a
// queue (SQS).
//
// It knows no database, no lane and no admission. What may start, who holds the
// lease and where an outcome is written belong to the packages above.
//
// # How a command runs
//
// The gateway starts its own binary again as a guard (package guard), one per run.
// The guard is the command's parent and a child subreaper, so every process that
// the command leaves behind, however it detached itself, ends up as the guard's
// child. The guard alone ends runs: on a stop order, at the job's time limit, at
// the lease's deadline, or when the gateway has died (its pipe closes). It sends
// TERM, waits for the grace, sends KILL, and reports the end only when no process
// of the run is left. If the guard itself is killed, the kernel kills the command
// (parent death signal) and the gateway, a subreaper too, ends the rest.
//
// A supervisor that signals all processes of a unit at once would bypass the
// guards: under systemd use KillMode=mixed.
//
// The package is for Linux only and carries no build tags: it uses process
// groups, /proc, CLOCK_BOOTTIME timers and prctl throughout.
package runner

import (
	"context"
	"errors"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/guard"
)

// Job is one attempt to run, with everything a runner needs to know about it.
type Job struct {
	ID      string
	Attempt int
	Token   string
	Class   string
	// LogicalDate and Verification are "" when there is none.
	LogicalDate  string
	Verification string
	// Payload is handed on verbatim.
	Payload []byte
	Run     lanegate.Run
	// Timeout limits the run; zero means no limit for a command and the runner's
	// default for a request.
	Timeout time.Duration
}

// Runner runs attempts. Run blocks until the attempt has ended and nothing of it
// is left that this process could end. It never returns an error: whatever
// happens is an outcome.
//
// The end of ctx stops the run; its cause says why: ErrCancelled leads to the
// outcome cancelled, every other cause (ErrDrained, ErrFenced …) to interrupted.
// A run that had ended by itself before the stop took effect is reported as what
// it was. Independently of ctx a run is stopped when its lease runs out.
//
// An ending without an outcome means that the run goes on elsewhere, or may do so:
// there is nothing to record, and whoever has it reports by the attempt's token.
type Runner interface {
	Run(ctx context.Context, job Job, lease Lease) lanegate.Ending
}

// Causes for ending a run's context (context.WithCancelCause).
var (
	// ErrCancelled: a person cancelled the job.
	ErrCancelled = errors.New("the job was cancelled")
	// ErrDrained: this process is stopping.
	ErrDrained = errors.New("the gateway is stopping")
	// ErrFenced: this process may no longer run the job, because its lease ran
	// out or the database no longer knows the attempt as its own.
	ErrFenced = errors.New("the worker lost its lease")
)

// DefaultGrace is the time between TERM and KILL where no other is given.
const DefaultGrace = 10 * time.Second

// retryAfterTrouble is how long a job stands aside when this host could not
// start it (no process, no descriptor, no disk left): that is not the job's
// failure and mends itself, but asking again at once would only spin.
const retryAfterTrouble = 30 * time.Second

// reasonOf maps the cause of an ended context.
func reasonOf(cause error) guard.Reason {
	switch {
	case errors.Is(cause, ErrCancelled):
		return guard.ReasonCancelled
	case errors.Is(cause, ErrFenced):
		return guard.ReasonFenced
	}
	return guard.ReasonStopped
}

// stopped is the ending of a run that was ended for reason; detail, if any,
// follows the sentence.
func stopped(reason guard.Reason, detail string) lanegate.Ending {
	end := lanegate.Ending{Outcome: lanegate.Interrupted}
	switch reason {
	case guard.ReasonCancelled:
		end.Outcome, end.Error = lanegate.Cancelled, "the job was cancelled"
	case guard.ReasonTimedOut:
		end.Outcome, end.Error = lanegate.TimedOut, "the time limit was reached"
	case guard.ReasonFenced:
		end.Error = "the worker's lease ran out"
	case guard.ReasonOrphaned:
		end.Error = "the gateway died"
	default:
		end.Error = "the gateway stopped the run"
	}
	if detail != "" {
		end.Error += "; " + detail
	}
	return end
}

// troubled is the ending of a run that never began for a reason of this host's.
func troubled(what string, err error) lanegate.Ending {
	return lanegate.Ending{
		Outcome:  lanegate.Deferred,
		DeferFor: retryAfterTrouble,
		Error:    "the gateway could not start the run: " + what + ": " + err.Error(),
	}
}

package lanegate

import (
	"fmt"
	"time"
)

// Limits that end a job which would otherwise go round for ever, or flag it.
const (
	MaxLosses           = 5  // "worker died" this often ends a job
	MaxDeferrals        = 20 // deferred this often in a row ends a job
	FlagInterruptions   = 5  // interrupted this often in a row raises a flag
	MaxDefer            = 24 * time.Hour
	maxBackoffDoublings = 30
)

// Settlement is what an attempt's outcome does to its job.
type Settlement struct {
	Event Event
	State State
	// ReadyIn is how long the job stands aside before it is due again; it keeps its place.
	ReadyIn time.Duration
	Reason  string
	// Counters after this outcome.
	Failures, Losses, Deferrals, Interruptions int
	// Flagged: interrupted FlagInterruptions times in a row.
	Flagged bool
}

// Settle decides what becomes of j, whose attempt ended as e, under its class's
// policy s. jitter is a random number in [0,1) for the backoff. A cancel that
// was requested wins over every outcome but success.
//
// Failures and time-outs count towards max_attempts; a lost attempt counts as a
// loss; waiting, deferral and interruption count as none of these. A job that a
// verification run made up ends with its one attempt, whatever the class's policy.
func Settle(j Job, s ClassSpec, e Ending, jitter float64) Settlement {
	s = s.WithDefaults()
	t := Settlement{Failures: j.Failures, Losses: j.Losses, Deferrals: j.Deferrals, Interruptions: j.Interruptions}
	if e.Outcome != Deferred {
		t.Deferrals = 0
	}
	if e.Outcome != Interrupted {
		t.Interruptions = 0
	}
	to := func(event Event, reason string, in time.Duration) Settlement {
		state, ok := NextState(StateRunning, event)
		if !ok {
			panic("lanegate: settle: illegal move " + string(event))
		}
		t.Event, t.State, t.Reason, t.ReadyIn = event, state, reason, in
		return t
	}
	if e.Outcome == Cancelled || (j.CancelRequested && e.Outcome != Succeeded) {
		if e.Outcome == Failed || e.Outcome == TimedOut {
			t.Failures++
		}
		return to(EventCancel, "cancelled", 0)
	}
	if j.Verification != "" && e.Outcome != Succeeded {
		return to(EventFail, t.countMadeUp(e), 0)
	}
	switch e.Outcome {
	case Succeeded:
		return to(EventSucceed, "", 0)
	case Failed, TimedOut:
		t.Failures++
		if e.Permanent {
			return to(EventFail, "failed for good: "+e.Error, 0)
		}
		allowed := s.MaxAttempts + j.ExtraAttempts
		if t.Failures >= allowed {
			return to(EventFail, fmt.Sprintf("failed %d of %d permitted times; last: %s", t.Failures, allowed, e.Error), 0)
		}
		return to(EventRetry, fmt.Sprintf("failed %d of %d permitted times; last: %s", t.Failures, allowed, e.Error),
			BackoffDelay(*s.Backoff, t.Failures, jitter))
	case Deferred:
		t.Deferrals++
		if t.Deferrals >= MaxDeferrals {
			return to(EventFail, fmt.Sprintf("deferred %d times in a row", t.Deferrals), 0)
		}
		wait := e.DeferFor
		if wait <= 0 {
			wait = s.Backoff.Base.Std()
		}
		reason := "deferred by the job itself"
		if e.Error != "" {
			reason = "deferred: " + e.Error
		}
		return to(EventDefer, reason, min(wait, MaxDefer))
	case Interrupted:
		t.Interruptions++
		t.Flagged = t.Interruptions >= FlagInterruptions
		if !s.MayRepeat() {
			return to(EventFail, "interrupted, and the class is not repeatable: a person must decide", 0)
		}
		return to(EventInterrupt, "interrupted: "+e.Error, 0)
	case Lost:
		t.Losses++
		if t.Losses >= MaxLosses {
			return to(EventFail, fmt.Sprintf("lost %d times (worker died, or its answer never came); last: %s", t.Losses, lossOf(e)), 0)
		}
		if !s.MayRepeat() {
			return to(EventFail, "lost, and the class is not repeatable, so a person must decide: "+lossOf(e), 0)
		}
		return to(EventInterrupt, "lost: "+lossOf(e), 0)
	}
	panic("lanegate: settle: unknown outcome " + string(e.Outcome))
}

// countMadeUp counts the bad outcome of a made-up job and says, as its reason,
// that it is never repeated.
func (t *Settlement) countMadeUp(e Ending) string {
	detail := e.Error
	switch e.Outcome {
	case Failed, TimedOut:
		t.Failures++
	case Deferred:
		t.Deferrals++
	case Interrupted:
		t.Interruptions++
	case Lost:
		t.Losses++
		detail = lossOf(e)
	}
	reason := string(e.Outcome) + "; a run that a verification run made up is never repeated"
	if detail != "" {
		reason += ": " + detail
	}
	return reason
}

// lossOf says what is known of a lost attempt.
func lossOf(e Ending) string {
	if e.Error == "" {
		return "worker died"
	}
	return e.Error
}

// BackoffDelay is "full jitter": a uniformly random part of
// min(max, base × 2^(failures−1)), so that jobs which failed together do not
// come back together. Source: Marc Brooker, "Exponential Backoff And Jitter",
// AWS Architecture Blog, 2015.
func BackoffDelay(b Backoff, failures int, jitter float64) time.Duration {
	ceiling := b.Base.Std()
	for i := 1; i < failures && i < maxBackoffDoublings && ceiling < b.Max.Std(); i++ {
		ceiling *= 2
	}
	ceiling = min(ceiling, b.Max.Std())
	return time.Duration(float64(ceiling) * jitter)
}

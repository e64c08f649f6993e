package lanegate

import "time"

// State of a job.
type State string

// States of a job. The last four are final.
const (
	StateQueued    State = "queued"
	StateRunning   State = "running"
	StateSucceeded State = "succeeded"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateSkipped   State = "skipped"
)

// States lists all states in the order of a job's life.
var States = []State{StateQueued, StateRunning, StateSucceeded, StateFailed, StateCancelled, StateSkipped}

// Final says whether a job in s has ended. A failed job can still be retried by a person.
func (s State) Final() bool { return s != StateQueued && s != StateRunning }

// Event is what moves a job from one state to another.
type Event string

// Events of a job's life.
const (
	EventSubmit    Event = "submit"
	EventSkip      Event = "skip"     // overlap policy, at submit
	EventCoalesce  Event = "coalesce" // a newer job inherits the place
	EventAdmit     Event = "admit"
	EventSucceed   Event = "succeed"
	EventFail      Event = "fail"      // no attempt left, or not repeatable
	EventRetry     Event = "retry"     // failures left: backoff, then its place
	EventDefer     Event = "defer"     // the target asked for a later time
	EventInterrupt Event = "interrupt" // stopped by us, or its worker died
	EventCancel    Event = "cancel"
	EventRevive    Event = "revive" // a person retries a failed job
)

// Move is one legal change of state. From "" is the submission itself.
type Move struct {
	From  State
	Event Event
	To    State
}

// Moves is the one table of legal moves; everything that changes a job's state
// asks NextState.
var Moves = []Move{
	{"", EventSubmit, StateQueued},
	{"", EventSkip, StateSkipped},
	{StateQueued, EventAdmit, StateRunning},
	{StateQueued, EventCancel, StateCancelled},
	{StateQueued, EventCoalesce, StateSkipped},
	{StateRunning, EventSucceed, StateSucceeded},
	{StateRunning, EventFail, StateFailed},
	{StateRunning, EventRetry, StateQueued},
	{StateRunning, EventDefer, StateQueued},
	{StateRunning, EventInterrupt, StateQueued},
	{StateRunning, EventCancel, StateCancelled},
	{StateFailed, EventRevive, StateQueued},
}

// NextState returns the state that e leads to from s, and false when that move is not legal.
func NextState(s State, e Event) (State, bool) {
	for _, m := range Moves {
		if m.From == s && m.Event == e {
			return m.To, true
		}
	}
	return s, false
}

// Job is one submission of a class with its payload.
type Job struct {
	ID          string
	Class       string
	Client      string // name of the token that submitted it
	Key         string // idempotency key, "" when none
	LogicalDate string // as sent, "" when none
	// Worker is the only one that may run it, as somebody waits there; "" when any may.
	Worker string
	RunAt  *time.Time
	State  State
	Reason string // why it is where it is, in words; "" when plain

	SubmittedAt time.Time
	// ReadyAt: not before this time (run_at, backoff, deferral).
	ReadyAt time.Time
	// Place in the class's line; kept on interruption, inherited by coalesce.
	PlaceAt time.Time
	PlaceID string
	// FirstAt is set by run-next and sorts before every place.
	FirstAt *time.Time

	Attempts      int // number of the last attempt, 0 before the first
	Failures      int // failed and timed-out attempts
	ExtraAttempts int // failures permitted on top by people's retries
	Losses        int
	Deferrals     int // in a row
	Interruptions int // in a row, drains included

	BlockedBy       string // the job that stood in the way of a skipped one
	CancelRequested bool
	// Verification is the verification run that made this job up, "" for one that
	// somebody submitted, even while it runs in an experiment: see Attempt.Verification.
	Verification string
	StartedAt    *time.Time // of the last attempt
	FinishedAt   *time.Time
	Route        *Route // of the running or last attempt
}

// HandedOver says whether a queued job is being sent elsewhere and so can't start:
// it is put off to a time that never comes, see service.HandOver.
func (j Job) HandedOver() bool { return j.State == StateQueued && j.ReadyAt.Year() >= 9999 }

// Route is the lane a job's attempt was put in and, when that is not the lane
// of its class, why.
type Route struct {
	Lane   string `json:"lane" example:"serial"`
	Reason string `json:"reason,omitempty" example:"lane_unavailable"`
	Wanted string `json:"wanted,omitempty" example:"parallel"`
}

// ReasonLaneUnavailable is the Route.Reason of a fallback to serial.
const ReasonLaneUnavailable = "lane_unavailable"

package lanegate

import "time"

// Fence names one attempt for every later write about it.
type Fence struct {
	Job    string
	Number int
	Token  string
}

// Outcome is how one attempt ended.
type Outcome string

// Outcomes of an attempt.
const (
	Succeeded   Outcome = "succeeded"
	Failed      Outcome = "failed"
	TimedOut    Outcome = "timed_out"
	Deferred    Outcome = "deferred"
	Cancelled   Outcome = "cancelled"
	Interrupted Outcome = "interrupted"
	Lost        Outcome = "lost"
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{Succeeded, Failed, TimedOut, Deferred, Cancelled, Interrupted, Lost}

// Attempt is one execution of a job. Lane, Units and Fingerprint are written
// when it starts and never follow a later change of the class.
type Attempt struct {
	Job          string
	Number       int
	Token        string
	Class        string
	Lane         string
	Route        Route
	Units        Units
	Fingerprint  string
	Worker       string
	Verification string
	// Round of the verification run this attempt was started for, from 1; 0 outside of one.
	Round    int
	Detached bool
	// HeartbeatBy is the deadline of a detached attempt.
	HeartbeatBy     *time.Time
	CancelRequested bool
	ReadyAt         time.Time // since when the job was due
	StartedAt       time.Time

	EndedAt  *time.Time
	Outcome  Outcome       // "" while in flight
	Duration time.Duration // monotonic; for lost up to the last beat, see Estimated
	// Estimated marks a Duration that nobody measured.
	Estimated bool
	Error     string // one sentence about a bad outcome
	ExitCode  *int   // exec
	Signal    string // exec: "SIGKILL" …
	Status    int    // http
	// Trouble and Measured are as in Ending.
	Trouble  []PhraseMatch
	Measured map[string]int
}

// Fence returns the fence of the attempt.
func (a Attempt) Fence() Fence { return Fence{a.Job, a.Number, a.Token} }

// Ending is what a runner reports about an attempt that has ended.
type Ending struct {
	Outcome  Outcome
	Duration time.Duration // monotonic
	// Permanent: a failure that repeating can't mend (an http 4xx).
	Permanent bool
	// DeferFor: how long a deferred attempt asked to wait; 0 means the class's backoff base.
	DeferFor time.Duration
	Error    string
	ExitCode *int
	Signal   string
	Status   int
	// Result is a valid JSON text, verbatim, or nil.
	Result []byte
	Output Output
	// Trouble lists the phrases of trouble found in the output or error of a run
	// that may have run beside others.
	Trouble []PhraseMatch
	// Measured is the peak of units seen in use by this run, for each resource with
	// a probe that saw any; nil when nothing was measured.
	Measured map[string]int
}

// Output is the kept head and tail of what a run printed. Both parts are valid
// UTF-8 text: NUL and other control bytes escaped (\x00), invalid UTF-8 replaced.
type Output struct {
	Head string
	Tail string // "" when everything fits in Head
	// Bytes counts all bytes printed, Dropped those kept in neither part.
	Bytes   int64
	Dropped int64
}

// RunRecord is one row of the run log: one finished attempt.
type RunRecord struct {
	Job          string
	Attempt      int
	Class        string
	Lane         string
	Fingerprint  string
	Units        Units
	SubmittedAt  *time.Time
	ReadyAt      *time.Time
	StartedAt    time.Time
	EndedAt      time.Time
	Duration     time.Duration
	Estimated    bool
	Outcome      Outcome
	Verification string
	Source       string // "own" or "import"
}

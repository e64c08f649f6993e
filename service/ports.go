package service

import (
	"context"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/runlog"
)

// Store is everything the use cases need from a database. Every implementation
// passes store/storetest. Errors are *lanegate.Error where a caller can act on
// them; when the database is away they are lanegate.ErrUnavailable or, where a
// commit was not confirmed, lanegate.ErrOutcomeUnknown. No driver type leaves it.
//
// Lock order everywhere: admission row, classes by id, jobs by id, attempts.
type Store interface {
	SubmitStore
	JobStore
	HandOverStore
	AdmissionStore
	WorkerStore
	ConfigStore
	LogStore
	VerificationStore

	// Ping writes and commits something, so that it fails on a read-only database.
	Ping(ctx context.Context) error
	// Close waits for what was already handed in, then closes the database.
	Close() error
}

// NewJob is one submission, already checked for form.
type NewJob struct {
	ID          string // UUIDv7
	Class       string
	Client      string // scope of the idempotency key
	Key         string // "" when none
	Digest      []byte // SHA-256 of the submission; compared on replay
	Payload     []byte // valid JSON, verbatim
	RunAt       *time.Time
	LogicalDate string
	// RetryFailed: when this is a replay and the job has failed, run it again.
	RetryFailed bool
	// Worker is the only one that may run the job, "" when any may.
	Worker string
	// Origin is the message that the job came in with, nil when it came in none.
	Origin *Origin
}

// Submitted is the answer to one submission.
type Submitted struct {
	Job      lanegate.Job
	Lane     string // of the job's class, as the submission found it
	Replayed bool   // same key, same body: Job is the earlier one as it stands
	Revived  bool   // the replayed job had failed and was queued again
	// Coalesced is the waiting job that this one replaced, "" when none.
	Coalesced string
	// Err says why this item was refused; the others of its batch stand.
	Err error
}

// SubmitStore accepts jobs. An item without an Err is committed when the call returns.
type SubmitStore interface {
	// Submit accepts one job; concurrent calls share commits. The class's overlap
	// policy is decided with the class's row locked. Errors: ErrUnknownClass,
	// ErrKeyReused, ErrOverloaded, ErrUnavailable, ErrOutcomeUnknown.
	Submit(ctx context.Context, job NewJob) (Submitted, error)
	// SubmitBatch accepts many in one transaction, with one timestamp and places in
	// item order; a refused item carries its Err, the call fails only as a whole.
	SubmitBatch(ctx context.Context, jobs []NewJob) ([]Submitted, error)
}

// JobDetail is a job with its bytes.
type JobDetail struct {
	lanegate.Job
	Payload []byte
	Result  []byte // of the last attempt that had one; nil when none
}

// JobFilter selects jobs for a list, newest first (ids descending).
type JobFilter struct {
	Classes       []string // nil: all
	Lane          string   // of the last attempt; for queued jobs their class's lane
	States        []lanegate.State
	Client        string // "" all
	SubmittedFrom *time.Time
	SubmittedTo   *time.Time
	Verification  bool // include jobs that verification runs made up
	Before        string
	Limit         int
}

// JobStore reads jobs and takes people's actions on them.
type JobStore interface {
	// Look runs fn, and all reads of the store that fn makes with the context it is
	// given see one state of the database, at the cost of one transaction. That context
	// is for one goroutine and ends with fn. fn only reads, and waits for nothing else
	// meanwhile, as it holds one of few connections. An error of fn is returned.
	Look(ctx context.Context, fn func(ctx context.Context) error) error
	Job(ctx context.Context, id string) (JobDetail, error) // ErrJobNotFound
	// Jobs returns a page of a list and the Before of the next one, "" at the end. It
	// looks at a bounded number of rows: where few match, a page may be short, or
	// empty, and yet not the last.
	Jobs(ctx context.Context, f JobFilter) (jobs []lanegate.Job, next string, err error)
	Attempts(ctx context.Context, job string) ([]lanegate.Attempt, error) // ErrJobNotFound
	// Output of attempt number n. ErrJobNotFound, ErrAttemptNotFound.
	Output(ctx context.Context, job string, n int) (lanegate.Output, error)

	// Cancel ends a queued job and asks a running one to end (CancelRequested).
	// ErrJobNotFound, ErrJobFinal.
	Cancel(ctx context.Context, job, actor string) (lanegate.Job, error)
	// Retry puts a failed job back in its place with one more permitted failure
	// (and one more permitted loss). ErrJobNotFound, ErrNotRetryable.
	Retry(ctx context.Context, job, actor string) (lanegate.Job, error)
	// RunNext moves a queued job before all others of its class; it is audited in
	// the class's history. ErrJobNotFound, ErrNotQueued.
	RunNext(ctx context.Context, job, actor string) (lanegate.Job, error)

	// Ahead returns what stands before each of some queued jobs in the line of their
	// lane (classes is every class with due jobs that is now routed to it): the number of due jobs,
	// counted up to most, and the first named of them. The answers are in the order of
	// jobs. It costs one walk along the line, which ends with most, however many jobs
	// are asked about and however long the line is.
	Ahead(ctx context.Context, jobs []lanegate.Job, classes []string, most, named int) ([]Ahead, error)
	// FirstInLine lists the first max due jobs in the line of some classes.
	FirstInLine(ctx context.Context, classes []string, max int) ([]string, error)
}

// Ahead is what stands before a queued job in its lane.
type Ahead struct {
	Count int
	// AtLeast: there are more than Count, which is where counting ends.
	AtLeast bool
	First   []string
}

// Ask is a worker's question for work.
type Ask struct {
	Worker     string
	Free       int
	SerialFree bool
}

// Grant is a started attempt with everything a runner needs.
type Grant struct {
	Job     lanegate.Job
	Attempt lanegate.Attempt
	Class   lanegate.Class
	Payload []byte
}

// Admitted is the answer to an Ask.
type Admitted struct {
	Grants []Grant
	// Skipped are jobs ended by coalescing or skipping as they became due.
	Skipped []string
	// NextDue is how long until the next queued job becomes due by the database's
	// clock; negative when none is waiting for its time.
	NextDue time.Duration
	// Fallbacks counts grants outside their class's lane: wanted lane → number.
	Fallbacks map[string]int
	// NoneWaits: for sure no due job was left in line, so the next ring is about a new
	// one. It may be false though none was: lines are read as far as jobs could start.
	NoneWaits bool
	// Trial is the verification run that this admission changed (taken, serial's
	// slot taken, round started), "" when none. Its starts are among Grants.
	Trial string
}

// AdmissionStore is the one way a job starts.
type AdmissionStore interface {
	// Admit runs admission for one worker in one transaction: it takes the
	// admission row, makes due what is due, calls admission.Plan and applies the
	// grants. Where a job that was to start is gone, another transaction may fill
	// what it leaves free. ErrWorkerGone when the worker is not live.
	Admit(ctx context.Context, ask Ask) (Admitted, error)
	// Snapshot reads admission's input without locks, for explanations; every
	// class's list of due jobs holds at most its head, or what the trial's round needs.
	Snapshot(ctx context.Context) (admission.Input, error)
	// EndAttempt records an outcome, the job's next state and the run log row in one
	// transaction; concurrent calls share commits. ErrLateWrite when the fence does
	// not match an attempt without an outcome. A writer whose commit was not
	// confirmed repeats it: if the first did land, the answer is Ended.Repeated.
	EndAttempt(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (Ended, error)
}

// Ended is what an outcome did. Without an attempt (its Number is 0) the job was
// queued, for a worker that is gone, and is cancelled.
//
// Of Attempt these fields are always there: Job, Number, Token, Class, Lane,
// Verification, EndedAt, Outcome, Duration, Estimated, Error, ExitCode, Signal, Status,
// Trouble and Measured; of Job these: ID, Class, State, Reason, Attempts, Failures,
// Losses, Deferrals, Interruptions and FinishedAt, without an attempt Worker, too, and
// ReadyAt when it is queued again. Any other one may be empty, whatever is stored.
type Ended struct {
	Attempt    lanegate.Attempt
	Job        lanegate.Job
	Settlement lanegate.Settlement
	// Repeated: this very outcome was recorded by this very fence before, and
	// nothing was changed. Job is as it stands now, perhaps in a later attempt;
	// Settlement is empty.
	Repeated bool
}

// WorkerInfo is a worker process's row.
type WorkerInfo struct {
	ID       string // new per process start
	Host     string
	PID      int
	Lanes    []string // nil: all
	Slots    int
	Commands map[string]string // name → digest
	Beat     int64             // counter
	// Draining workers are live but get no grants.
	Draining  bool
	StartedAt time.Time
	BeatAt    time.Time // of the last beat, by the database's clock
	// Agent is the name of the token of an agent, "" for a gateway. Agents run
	// classes of kind agent, and nobody else does.
	Agent string
}

// Held is an attempt the database knows as a worker's.
type Held struct {
	Fence           lanegate.Fence
	CancelRequested bool
	// Detached: it lives by its own heartbeats, wherever it runs.
	Detached bool
}

// Heart is the answer to the heartbeat of a detached attempt.
type Heart struct {
	// CancelRequested: the run shall end and then be completed.
	CancelRequested bool
	// TimedOut: the class's time limit is over, and the deadline is not moved any
	// more. CancelRequested is set, too.
	TimedOut bool
	// Within is how long until the next heartbeat must have come, by the database's clock.
	Within time.Duration
}

// WorkerStore keeps the workers' rows.
type WorkerStore interface {
	RegisterWorker(ctx context.Context, w WorkerInfo) error
	// UpdateWorker changes lanes, slots, commands or draining. ErrWorkerGone.
	UpdateWorker(ctx context.Context, w WorkerInfo) error
	// Beat counts the worker's beat up and lists its attempts. ErrWorkerGone.
	Beat(ctx context.Context, worker string) ([]Held, error)
	// Silent counts, per lane, the attempts in flight that nobody vouches for: the
	// worker's row has ended, is missing or shows no beat for longer than older, or
	// a detached attempt's heartbeat is overdue. It is for people: by the database's
	// clock, while death is declared by observation. Lanes without any are left out.
	Silent(ctx context.Context, older time.Duration) (map[string]int, error)
	// LeaveWorker ends the worker's row; its remaining attempts, if any, become lost,
	// and queued jobs that only it may run are cancelled, as when it is reaped.
	LeaveWorker(ctx context.Context, worker string) ([]Ended, error)
	// LiveWorkers lists the rows that have not ended.
	LiveWorkers(ctx context.Context) ([]WorkerInfo, error)
	// ReapWorker declares a worker dead if its beat counter still is beat: its row
	// ends and its attempts that are not detached become lost. Nothing happens
	// (nil, nil) when it has beaten since or has ended.
	ReapWorker(ctx context.Context, worker string, beat int64) ([]Ended, error)
	// ReapOrphans makes attempts lost whose worker's row has ended or is missing, and
	// cancels the queued jobs that only such a worker may run.
	ReapOrphans(ctx context.Context) ([]Ended, error)
	// Heartbeat moves the deadline of a detached attempt on, by the heartbeat of its
	// class. ErrLateWrite when the fence does not match an attempt without an
	// outcome, ErrNotDetached when that one lives by its worker's beats.
	Heartbeat(ctx context.Context, f lanegate.Fence) (Heart, error)
	// ReapDetached ends the detached attempts whose deadline has passed by the
	// database's clock: timed_out when their class's time limit is over, else lost.
	// Left alone are those whose heartbeat is longer than watched, the time for which
	// the caller has seen that heartbeats could be taken.
	ReapDetached(ctx context.Context, watched time.Duration) ([]Ended, error)
}

// Config is the stored set of classes, lanes and resources, ordered by name.
type Config struct {
	Version   int64 // counts changes
	Classes   []lanegate.Class
	Lanes     []lanegate.Lane
	Resources []lanegate.Resource
}

// HistoryEvent is one entry of a class's (or lane's, or resource's) history.
type HistoryEvent struct {
	ID       int64
	At       time.Time
	Subject  string // "class:pos-sales", "lane:parallel", "resource:db"
	Event    string // "created", "edited", "demoted", "run_next", …
	Actor    string // a token's name, "local", "file" or "lanegate"
	Reason   string
	Evidence map[string]any
}

// ConfigTx is a change in progress: the admission row is locked. The callback
// touches it only; it dies with the transaction.
type ConfigTx interface {
	Now() time.Time
	Config() (Config, error) // as it stands, with what this change did so far
	SaveClass(c lanegate.Class) error
	DeleteClass(id string) error // ErrInUse while jobs of it are queued or running
	SaveLane(l lanegate.Lane) error
	DeleteLane(name string) error
	SaveResource(r lanegate.Resource) error
	DeleteResource(name string) error
	InFlight() ([]admission.Running, error)
	AppendHistory(e HistoryEvent) error
	// LastEvent is the newest of the subject's events with one of these names; its
	// ID is 0 when there is none.
	LastEvent(subject string, names ...string) (HistoryEvent, error)
	Setting(key string) (string, error) // "" when absent
	SetSetting(key, value string) error

	// InsertVerification adds a planned run.
	InsertVerification(v lanegate.Verification) error
	// Verification returns one run and keeps it for this change, so that its owner
	// can't be lost in between. ErrVerificationNotFound.
	Verification(id string) (lanegate.Verification, error)
	// OpenVerifications lists the planned and running ones in the order of their
	// turns: the running one first, then oldest first.
	OpenVerifications() ([]lanegate.Verification, error)
	// SaveVerification writes what may change of a run. One with a conclusive
	// verdict gives each member its proof, replacing an earlier one of this run; a
	// verdict that turns later is as new as the turn. Ended without a time means
	// now. ErrVerificationNotFound; ErrVerificationOver when the run is over and
	// would get another state.
	SaveVerification(v lanegate.Verification) error
	// Proofs lists what conclusive runs say of a class, at any fingerprint, newest first.
	Proofs(class string) ([]lanegate.Proof, error)
	// CancelTrial asks the attempts of made-up jobs of a run to end. ErrVerificationNotFound.
	CancelTrial(verification string) error
	// DropFinding forgets a finding that was dealt with.
	DropFinding(id int64) error
}

// ConfigStore reads and changes classes, lanes and resources.
type ConfigStore interface {
	Config(ctx context.Context) (Config, error)
	// Change runs fn in one transaction that holds the admission row. An error of
	// fn leaves nothing behind and is returned as it is.
	Change(ctx context.Context, fn func(tx ConfigTx) error) error
	// History lists a subject's events, newest first, before the given id (0: from the newest).
	History(ctx context.Context, subject string, before int64, limit int) ([]HistoryEvent, error)
}

// ClassLine is how one class's queued jobs stand.
type ClassLine struct {
	Class    string
	Due      int
	NotDue   int
	OldestAt time.Time // when its longest waiting due job became due; zero when none
}

// Line is what stands in the lines of all lanes.
type Line struct {
	Input  admission.Input
	Queued []runlog.Waiting
	Cut    []string
	// NotDueCut: there are more jobs that wait for their time.
	NotDueCut bool
}

// LogStore reads the run log and keeps the tables small.
type LogStore interface {
	// Lines counts queued jobs per class; classes without any are left out.
	Lines(ctx context.Context) ([]ClassLine, error)
	// RunLog streams rows of this gateway's own runs that ended within [from, to),
	// oldest first; class "" means all. Imported ones are never among them.
	RunLog(ctx context.Context, class string, from, to time.Time, row func(lanegate.RunRecord) error) error
	// WholeRunLog is RunLog with the imported rows, of all classes.
	WholeRunLog(ctx context.Context, from, to time.Time, row func(lanegate.RunRecord) error) error
	// ImportRuns adds rows with the source "import" and says how many were new; one
	// whose (job, attempt) was imported before changes nothing. It touches the run log only.
	ImportRuns(ctx context.Context, rows []lanegate.RunRecord) (added int, err error)
	// RecentDurations lists, for each of some classes, the latest own ordinary runs
	// that ended by themselves (succeeded, failed, timed out), at most limit a class,
	// newest first; only Class, Duration, Outcome and EndedAt are filled.
	RecentDurations(ctx context.Context, classes []string, limit int) (map[string][]lanegate.RunRecord, error)
	// Line reads admission's input, without due jobs, and the start of each class's
	// line with it: at most perClass due jobs of each, and notDue of those that wait
	// for their time, the soonest first. Cut lists the classes that have more due.
	Line(ctx context.Context, perClass, notDue int) (Line, error)
	// Interruptions returns for each class how often in a row, at most, one of some
	// jobs was interrupted; classes in which none was are left out, as are jobs that
	// don't exist.
	Interruptions(ctx context.Context, jobs []string) (map[string]int, error)
	// LastSuccess returns the end of each class's last success; of what ran in a
	// verification run, queued jobs count and made-up ones don't.
	LastSuccess(ctx context.Context) (map[string]time.Time, error)
	// FirstWaits returns, of some classes, those of which no run has ended yet but as
	// deferred or interrupted, with the time when the first job was submitted, or was due,
	// if that is later. Made-up jobs and imported runs don't count.
	FirstWaits(ctx context.Context, classes []string) (map[string]time.Time, error)
	// PruneJobs deletes up to limit finished jobs that ended before a time, with
	// their attempts, payloads and keys. It returns how many; fewer than limit means
	// that it has passed all jobs once around and left none.
	PruneJobs(ctx context.Context, before time.Time, limit int) (int, error)
	// PruneRunLog deletes up to limit rows of the run log before a time and returns
	// how many; fewer than limit means that none is left.
	PruneRunLog(ctx context.Context, before time.Time, limit int) (int, error)
}

// VerificationFilter selects runs for a list, newest first (ids descending).
type VerificationFilter struct {
	Class  string // "" all
	States []lanegate.VerificationState
	Before string
	Limit  int
}

// TrialRun is an attempt that belongs to a verification run.
type TrialRun struct {
	lanegate.Attempt
	MadeUp        bool   // its job was made up for the run
	PayloadDigest []byte // SHA-256
	ResultDigest  []byte // SHA-256; nil when the attempt left no result
	Dropped       int64  // output bytes that were not kept
}

// Finding is evidence of trouble through concurrency that an outcome left
// behind, in the outcome's own transaction, for the service to judge.
type Finding struct {
	ID           int64
	Job          string
	Attempt      int
	Class        string
	Lane         string
	Fingerprint  string
	Outcome      lanegate.Outcome
	Verification string // the run the attempt belonged to, "" for an ordinary one
	Units        lanegate.Units
	Trouble      []lanegate.PhraseMatch
	Measured     map[string]int
	At           time.Time
}

// VerificationStore reads verification runs. They change by ConfigTx, by Admit
// (taken, held, started) and when their owner leaves or is reaped: then a running
// one becomes done and inconclusive in the same transaction, with the reason
// "owner_lost", so that its hold ends with its owner.
type VerificationStore interface {
	Verification(ctx context.Context, id string) (lanegate.Verification, error) // ErrVerificationNotFound
	Verifications(ctx context.Context, f VerificationFilter) ([]lanegate.Verification, error)
	// TrialRuns lists a run's attempts in the order of their starts.
	TrialRuns(ctx context.Context, verification string) ([]TrialRun, error)
	// Proofs lists what conclusive runs say of a class, at any fingerprint, newest first.
	Proofs(ctx context.Context, class string) ([]lanegate.Proof, error)
	// Findings lists what outcomes left to be judged, oldest first. An outcome leaves
	// one when its attempt ran outside serial or in a verification run, and it has
	// trouble and did not succeed, or measured more than its units.
	Findings(ctx context.Context, limit int) ([]Finding, error)
	// ClassFacts returns what says where some classes stand, in one look, with the
	// database's time. A class that never was has no entry.
	ClassFacts(ctx context.Context, classes []string) (map[string]ClassFacts, time.Time, error)
}

// Doorbell wakes the workers that serve a lane. Lost or doubled rings change
// latency, never correctness.
type Doorbell interface {
	// Ring says that lane has work. It never blocks and never fails loudly.
	Ring(lane string)
	// Rings delivers a token after one or more rings; it is never closed.
	Rings() <-chan struct{}
}

// Commands is the operator's catalogue of commands, as far as routing needs it.
type Commands interface {
	// Digest returns the digest of a command's definition, and false when it is not in the catalogue.
	Digest(name string) (string, bool)
	// Digests returns all of them.
	Digests() map[string]string
}

// Package admission decides what may start now, and why the rest may not. It is
// pure: no I/O, no clock of its own, no state. The store applies its answer in
// one transaction, the API explains waits with it, and the run-log analyser
// replays history through it, so that all three always agree.
package admission

import (
	"time"

	"github.com/lanegate/lanegate"
)

// DefaultStarveAfter is how long a head must have been blocked by resources
// before its resources are kept for it; it stands for a StarveAfter of 0.
const DefaultStarveAfter = 10 * time.Minute

// Input is everything a decision depends on, read in one transaction.
type Input struct {
	Now       time.Time // the database's clock
	Lanes     []lanegate.Lane
	Classes   []lanegate.Class
	Resources []lanegate.Resource
	// InFlight holds every attempt without a recorded outcome, with lane, class
	// and units as written on the attempt.
	InFlight []Running
	// Due lists due queued jobs. For each class they are in the order of the
	// class's line (Before) and start with its head; a class's list may be cut
	// after as many jobs as could start at most, those of the trial's round included.
	Due []Due
	// BlockedSince says since when a head has been blocked by resources, or by the
	// slots of the workers that can run it (job id → time), as the last Plan's
	// Blocked told the store to remember.
	BlockedSince map[string]time.Time
	StarveAfter  time.Duration
	// Hold is the verification run that holds the serial slot, "" when none does.
	Hold string
	// Trial is the verification run whose turn it is, nil when there is none.
	Trial *Trial
	// Workers are the live workers that take work, each with its free slots as the
	// database knows them. Asking is the one that wants work; "" plans for all of
	// them together, which is what explanations use.
	Workers []Worker
	Asking  string
	// NoWaits leaves Decision.Waits empty: a replay of a whole history asks what
	// starts, millions of times, and explains nothing.
	NoWaits bool
}

// Running is an attempt in flight. One with a Verification holds its units, but
// takes no slot of its lane or its worker; its units count as used outside serial,
// whatever its lane. It counts in its class once its verification run is over, and
// not while that is the Trial. The store leaves Verification out when the run
// ended without passing: nothing says then that the attempt may be beside others.
type Running struct {
	Job          string
	Class        string
	Lane         string
	Units        lanegate.Units
	Worker       string
	Verification string
	StartedAt    time.Time
}

// Trial is the verification run whose turn it is: the oldest that is not over.
// Only one takes part in a decision; the others wait for it.
type Trial struct {
	ID      string
	PlaceAt time.Time // when it was asked for; with ID its place in the serial line
	// Members are the classes under trial; an open trial reserves their due jobs.
	Members []string
	// FromQueue: the runs are due jobs of the members. Otherwise they are made up
	// when they start, and their grants name no job.
	FromQueue bool
	// Owner is the worker that carries it out, "" until one has taken it.
	Owner string
	// WantsHold: serial's slot must be held before a round starts; Input.Hold tells
	// whether it is.
	WantsHold bool
	// Round is what shall run at once now, one class name for each run, in any
	// order. It is empty once the round has been started. Attempts of this trial
	// still in flight (long runs) count as part of it.
	Round []string
}

// Due is a due queued job.
type Due struct {
	Job     string
	Class   string
	FirstAt time.Time // zero: no run-next
	PlaceAt time.Time
	PlaceID string
	// Worker is the only one that may run this job, "" when any may: somebody waits
	// there to run it on the spot.
	Worker string
}

// OnTheSpot is the name under which a worker's Commands have the command that
// waits there for jobs of a class that name that worker.
func OnTheSpot(class string) string { return "here:" + class }

// SQSTargets is the name among a gateway's Commands that says that it can send
// messages to SQS, and so run classes of kind sqs. Its digest means nothing.
const SQSTargets = "sqs:"

// Before is the order of a line: run-next jobs first, by the time a person asked
// for it, then by place (time, then id).
func Before(a, b Due) bool {
	switch {
	case a.FirstAt.IsZero() != b.FirstAt.IsZero():
		return !a.FirstAt.IsZero()
	case !a.FirstAt.Equal(b.FirstAt):
		return a.FirstAt.Before(b.FirstAt)
	case !a.PlaceAt.Equal(b.PlaceAt):
		return a.PlaceAt.Before(b.PlaceAt)
	}
	return a.PlaceID < b.PlaceID
}

// Worker is a live worker process: what it serves and what it can run.
type Worker struct {
	ID    string
	Lanes []string // lanes it serves, serial included; nil means all
	// Free is how many more runs outside serial it can take now; SerialFree says
	// whether it can take one in serial. Runs of verification count in neither. Serial has a local slot of its own, so
	// that a full worker never makes serial wait for parallel runs.
	Free       int
	SerialFree bool
	// Commands maps each command in its catalogue to the digest of its definition.
	Commands map[string]string
	// Agent: it is no gateway. It runs classes of kind agent, which nobody else
	// does, and carries out no verification run.
	Agent bool
}

// Code is a machine-readable reason for a wait.
type Code string

// Reasons for a wait. Those with a colon in the API carry a subject
// (resource:<name>); here it is in Reason.Subject. Jobs says whose finish would
// help: the jobs in flight of the lane (lane_full), of the class (class_limit),
// that use the resource, of the verification run, on the workers (worker_full);
// the job kept for; the earlier job. It is empty for the others. Attempts of
// verification runs are named for resources and for their run only.
const (
	LaneFull     Code = "lane_full"
	ClassLimit   Code = "class_limit"
	ResourceFull Code = "resource"      // subject: resource
	OverCapacity Code = "over_capacity" // subject: resource
	KeptFor      Code = "kept_for"      // subject: job
	Paused       Code = "paused"        // subject: "class" or "lane"
	NotDue       Code = "not_due"
	EarlierOf    Code = "earlier_of_class"
	Verification Code = "verification" // subject: verification run
	NoWorker     Code = "no_worker"    // subject: command, "sqs", or lane when no live worker serves it
	LaneWait     Code = "lane_unavailable"
	// WorkerFull: every live worker that can run it has all local slots taken.
	WorkerFull Code = "worker_full"
	// UnknownClass: a member of the trial is gone. Subject: class.
	UnknownClass Code = "unknown_class"
)

// Reason is one cause of a wait, with the jobs that hold what the head needs.
type Reason struct {
	Code    Code
	Subject string
	Jobs    []string
}

// String is the reason as the API shows it: "resource:db", "lane_full".
func (r Reason) String() string {
	if r.Subject == "" {
		return string(r.Code)
	}
	return string(r.Code) + ":" + r.Subject
}

// Grant is a start: this job, in this lane, with these units, on this worker.
type Grant struct {
	Job    string
	Class  string
	Route  lanegate.Route
	Units  lanegate.Units
	Worker string
	// Verification is the trial that this start belongs to, "" for an ordinary one.
	// It then takes no slot of its lane, its class or its worker, and Job is "" when
	// the job must be made up.
	Verification string
}

// TrialStep is what a decision does for the trial. One decision may take it, take
// serial's slot and start the round.
type TrialStep struct {
	// Take: the asking worker becomes the owner; with Asking "", one would.
	Take bool
	// Hold: the trial takes serial's slot.
	Hold bool
	// Start: the round starts now. Gang are its starts, all or none, by class and
	// in the order of each line; they are not in Decision.Grants. It is empty when
	// everything that the round asks for is in flight already.
	Start bool
	Gang  []Grant
	// Reasons say why the round does not start now, once the grants of the decision
	// have started; empty when it does, when it has started, or when it waits for
	// nothing but another worker's asking. Reasons that no finish can mend stand
	// alone; while there is one, the trial is not taken and nothing is reserved for
	// it:
	//
	//	no_worker         subject: the owner, which is not live; a command; several
	//	                  joined by "+", which no worker has all; "" without workers
	//	unknown_class     subject: the member that does not exist
	//	paused            subject: class:<name> or lane:<name>
	//	lane_unavailable  subject: the lane that a member waits for
	//	over_capacity     subject: the resource that the round needs too much of
	//
	// The others, in this order:
	//
	//	not_due           no member has a due job
	//	verification      subject: the run that holds serial's slot
	//	lane_full         subject: serial; jobs: in it
	//	kept_for          subject and jobs: the job that goes before in serial
	//	class_limit       subject: a member with ordinary attempts; jobs: these
	//	not_due           subject: a member with too few due jobs for the round
	//	resource          subject: the resource; jobs: that use it
	Reasons []Reason
}

// Wait is a head that was not granted, and every reason that holds once the
// grants of the same decision and the trial's have started. A head waits for
// verification while a run holds serial's slot, reserves its class, or is kept
// units that the head would take. Reasons are in a fixed order: paused
// (class, lane), lane_unavailable, no_worker (lane, command), over_capacity,
// verification, lane_full, class_limit, resource, kept_for, worker_full; those
// with several subjects by subject. over_capacity stands for resource where the
// units can never be had, and serial's lane_full for worker_full, as serial's
// slot on a worker is only taken while serial is full.
type Wait struct {
	Job     string
	Class   string
	Route   lanegate.Route
	Reasons []Reason
}

// Decision is the answer of Plan.
type Decision struct {
	Grants []Grant
	// Waits has one entry, by class, for the first job of each class that was not
	// granted. With Asking set, those are left out that wait for nothing but
	// another worker's taking what was left to it; with Asking "" none is, and
	// every entry has a reason.
	Waits []Wait
	// Blocked are the heads to remember as blocked by resources or by workers'
	// slots, with the time since when: the store replaces what it remembered by
	// exactly this. A decision made with Asking "" is not to be remembered.
	Blocked map[string]time.Time
	// Kept is the job whose resources are kept for it, "" when none is.
	Kept string
	// Emptied are the classes, by id, all of whose due jobs in the input were started
	// or left to other workers, though more might have been. If the input leaves out
	// jobs of theirs, a decision with them may differ; else it would not.
	Emptied []string
	// Trial is nil when the input has none.
	Trial *TrialStep
}

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
	// after as many jobs as could start at most.
	Due []Due
	// BlockedSince says since when a head has been blocked by resources, or by the
	// slots of the workers that can run it (job id → time), as the last Plan's
	// Blocked told the store to remember.
	BlockedSince map[string]time.Time
	StarveAfter  time.Duration
	// Hold is the verification run that holds the serial slot, "" when none does.
	Hold string
	// Workers are the live workers that take work, each with its free slots as the
	// database knows them. Asking is the one that wants work; "" plans for all of
	// them together, which is what explanations use.
	Workers []Worker
	Asking  string
	// NoWaits leaves Decision.Waits empty: a replay of a whole history asks what
	// starts, millions of times, and explains nothing.
	NoWaits bool
}

// Running is an attempt in flight. One with a Verification holds its units and
// counts in its class, but takes no slot of its lane; its units count as used
// outside serial, whatever its lane.
type Running struct {
	Job          string
	Class        string
	Lane         string
	Units        lanegate.Units
	Worker       string
	Verification string
	StartedAt    time.Time
}

// Due is a due queued job.
type Due struct {
	Job     string
	Class   string
	FirstAt time.Time // zero: no run-next
	PlaceAt time.Time
	PlaceID string
}

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
	// whether it can take one in serial. Serial has a local slot of its own, so
	// that a full worker never makes serial wait for parallel runs.
	Free       int
	SerialFree bool
	// Commands maps each command in its catalogue to the digest of its definition.
	Commands map[string]string
}

// Code is a machine-readable reason for a wait.
type Code string

// Reasons for a wait. Those with a colon in the API carry a subject
// (resource:<name>); here it is in Reason.Subject. Jobs says whose finish would
// help: the jobs in flight of the lane (lane_full), of the class (class_limit),
// that use the resource, of the verification run, on the workers (worker_full);
// the job kept for; the earlier job. It is empty for the others.
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
	NoWorker     Code = "no_worker"    // subject: command, or lane when no live worker serves it
	LaneWait     Code = "lane_unavailable"
	// WorkerFull: every live worker that can run it has all local slots taken.
	WorkerFull Code = "worker_full"
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
}

// Wait is a head that was not granted, and every reason that holds once the
// grants of the same decision have started. Reasons are in a fixed order: paused
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
}

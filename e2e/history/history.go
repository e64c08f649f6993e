// Package history judges what a fleet of gateways did, as a history: DESIGN
// section 2 as rules over the database's own log of changes, the database's rows at
// the end, the jobs' own record of their starts and ends, and the clients' record of
// what was promised to them. It is pure: it reads no files and starts no processes.
//
// It knows the rules in its own words. The planner, whose decisions it judges, is
// not asked.
package history

import (
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
)

// History is one stretch of time that begins and ends with nothing in flight and
// no job that isn't final.
type History struct {
	// Before is what was in force when the stretch began: classes, lanes, resources
	// and proofs only, in any order.
	Before []Change
	// Changes are the database's own log, in the order in which the rows changed.
	Changes []Change
	// Jobs, Attempts and RunLog are the rows at the end.
	Jobs     []Job
	Attempts []Attempt
	RunLog   []Logged
	// Marks are the jobs' own record, in any order.
	Marks []Mark
	// Accepted are the clients' answers with 201 or 200.
	Accepted []Accepted
	// Cuts are times in which a worker could not reach the database.
	Cuts []Cut

	// Lease is how long a worker that is cut off may let its runs live.
	Lease time.Duration
	// OrderSlack is for how long a job must have been there before a start that
	// passed it by is a fault: the database's commit times are taken just before
	// others can see the commit.
	OrderSlack time.Duration
	// ClockSlack covers what lies between the database's reading of its clock and
	// the jobs'.
	ClockSlack time.Duration
	// PastTheGate: the test promoted its classes without proofs, so that these are
	// not asked for.
	PastTheGate bool
	// NoLog: the database kept no log of its changes. Limits and order within a class
	// are not judged then; attempts began and ended when their rows say so.
	NoLog bool
	// MustSucceed: nothing but a death ends a job otherwise, so that attempts succeed
	// or are cut off.
	MustSucceed bool
	// Whole are the kinds of marks that a success has once each; MarkStart and
	// MarkEnd stand for none.
	Whole []string
}

// Change is one row as it became. Exactly one of the pointers is set.
type Change struct {
	At        time.Time // the database's clock when the row was written
	Committed time.Time // when its transaction was committed; zero stands for At
	Gone      bool      // the row was deleted

	Class    *Class
	Lane     *Lane
	Resource *Resource
	Proof    *Proof
	Hold     *Hold
	Job      *Job
	Attempt  *Attempt
}

// seen is when others could see the change.
func (c Change) seen() time.Time {
	if c.Committed.IsZero() {
		return c.At
	}
	return c.Committed
}

// Class is what a start of a class must keep to.
type Class struct {
	ID          string
	Lane        string
	MaxInFlight int
	Paused      bool
	Units       lanegate.Units // nil: not declared
	Fingerprint string
}

// Lane has a width in numbers: a width of 0, the arithmetic's, can't be judged.
type Lane struct {
	Name   string
	Width  int
	Paused bool
}

// Resource is a capacity that runs share.
type Resource struct {
	Name     string
	Capacity int
	Pool     bool
}

// Proof is the verdict of a verification run about one class.
type Proof struct {
	Run         string
	Class       string
	Fingerprint string
	Verdict     string // "passed", "failed", "" for none
	Copies      int
}

// Hold is a verification run that holds serial's slot, or does no more.
type Hold struct {
	Run  string
	Held bool
}

// Job is a job's row.
type Job struct {
	ID           string
	Class        string
	Client       string
	Key          string
	State        lanegate.State
	Due          bool
	FirstAt      time.Time // zero: no run-next
	PlaceAt      time.Time
	PlaceID      string
	Attempts     int
	Losses       int
	Verification string
	// Worker is the only one that may run it, as somebody waits there; "" for most.
	Worker string
}

// Attempt is an attempt's row.
type Attempt struct {
	Job          string
	Number       int
	Class        string
	Lane         string
	Reason       string // why it is in this lane and not in Wanted
	Wanted       string
	Units        lanegate.Units
	Fingerprint  string
	Worker       string
	Verification string
	StartedAt    time.Time // when admission decided
	EndedAt      time.Time // zero: it has no outcome
	Outcome      lanegate.Outcome
}

func (a Attempt) ref() Ref { return Ref{a.Job, a.Number} }

// Ref names an attempt.
type Ref struct {
	Job    string
	Number int
}

func (r Ref) String() string { return fmt.Sprintf("%s/%d", r.Job, r.Number) }

// Logged is a row of the run log.
type Logged struct {
	Ref
	Outcome lanegate.Outcome
}

// Kinds of marks.
const (
	MarkStart = "start" // the first thing a run does
	MarkEnd   = "end"   // the last
	MarkAlive = "alive" // in between, now and then
	// MarkBeside: when it started, it found the process tree of Other alive.
	MarkBeside = "beside"
	// MarkOverlap: when it started, it found the lock taken that stands for serial,
	// or for all slots that there are.
	MarkOverlap = "overlap"
)

// Mark is one line that a run wrote about itself. Other kinds than those above say
// no more than that it lived.
type Mark struct {
	Ref
	Kind  string
	At    time.Time
	Other Ref
}

// Accepted is what a client was told: under this key it has this job.
type Accepted struct {
	Client string
	Key    string // "" when it gave none
	Job    string
	RunAt  time.Time // what it asked for as run_at; zero: nothing
}

// Cut is a time in which a worker could not reach the database.
type Cut struct {
	Worker   string
	From, To time.Time
}

// Rule names what was broken.
type Rule string

// Rules.
const (
	RuleLost      Rule = "nothing lost"            // invariant 1
	RuleFinal     Rule = "every job final"         // invariant 1
	RuleKey       Rule = "one job per key"         // idempotency
	RuleSerial    Rule = "never two in serial"     // invariant 3
	RuleLane      Rule = "lane's width"            // invariant 3
	RuleClass     Rule = "class's limit"           // invariant 3
	RuleResource  Rule = "resource's capacity"     // invariant 3
	RulePaused    Rule = "paused starts nothing"   // section 4
	RuleRoute     Rule = "lane of its class"       // section 5
	RuleProof     Rule = "no lane without a proof" // invariants 2 and 5
	RuleOutcome   Rule = "one outcome per attempt" // invariant 6
	RuleNumber    Rule = "numbers only count up"   // section 3
	RuleState     Rule = "legal states"            // section 3
	RuleOrder     Rule = "order within a class"    // invariant 11
	RuleEarly     Rule = "never before its time"   // invariant 13
	RuleRecord    Rule = "runs are recorded"       // the jobs' own record against the database's
	RuleInside    Rule = "runs lie inside their attempt"
	RuleCut       Rule = "dead before the lease is over"
	RuleNotJudged Rule = "cannot be judged" // the history lacks something
)

// Violation is one breach of a rule.
type Violation struct {
	Rule Rule
	Text string
}

func (v Violation) String() string { return string(v.Rule) + ": " + v.Text }

// Check returns every breach that it finds, none for a good history.
func Check(h History) []Violation {
	j := newJudge(h)
	if h.NoLog {
		j.fromRows()
	} else {
		j.sweep()
	}
	j.rows()
	j.record()
	return j.found
}

type judge struct {
	History
	found []Violation

	now state
	// starts and ends are the changes by which attempts began and ended.
	starts, ends map[Ref]Change
}

func (j *judge) fault(rule Rule, format string, args ...any) {
	j.found = append(j.found, Violation{rule, fmt.Sprintf(format, args...)})
}

func newJudge(h History) *judge {
	return &judge{History: h, now: newState(), starts: map[Ref]Change{}, ends: map[Ref]Change{}}
}

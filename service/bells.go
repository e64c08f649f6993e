package service

import (
	"context"
	"time"
)

// Pass says what became of one pass of admission.
type Pass int

// What a pass of admission can come to.
const (
	// PassFailed: the database gave no answer; nothing is known about the lines.
	PassFailed Pass = iota
	// PassCommitted: admission has looked at every lane and its transaction stands.
	PassCommitted
	// PassFull: the worker had no free slot, so admission was not asked.
	PassFull
)

// AckDoorbell is a Doorbell whose rings are messages that stay in a queue until
// admission has looked: a worker tells it about every pass.
type AckDoorbell interface {
	Doorbell
	// Asking is called before each pass of admission, whatever caused it. The
	// function it returns is called once, after that pass. Only what had arrived
	// before Asking counts as answered. Neither blocks.
	Asking() (done func(Pass))
}

// Bell is a ring that is due for a job.
type Bell struct {
	Job   string
	Class string
	Lane  string // where the job's class is routed now
	// Until is when the bell is due again unless it was cleared; it names this
	// taking, so that clearing leaves a bell alone that was set anew since.
	Until time.Time
}

// BellAsk says which due bells to take.
type BellAsk struct {
	// Max bells at most.
	Max int
	// Of the bells of one lane that are left over from whole batches of Batch, all
	// stay for a later look while the oldest has been due for less than Young: more
	// may come and fill a batch. 0: none stay.
	Batch int
	Young time.Duration
}

// Ripe splits what is due, sorted by since, into what is to be taken and what stays;
// in is how long until something of that should be taken whatever comes.
func (a BellAsk) Ripe(due []DueBell, now time.Time) (take, stay []DueBell, in time.Duration) {
	lanes := map[string]int{}
	for _, d := range due {
		lanes[d.Lane]++
	}
	passed, waits := map[string]int{}, map[string]bool{}
	in = a.Young
	for _, d := range due {
		if n := passed[d.Lane]; a.Young > 0 && n == lanes[d.Lane]-lanes[d.Lane]%a.Batch { // the first beyond whole batches
			if age := now.Sub(d.Since); age < a.Young {
				waits[d.Lane], in = true, min(in, a.Young-age)
			}
		}
		passed[d.Lane]++
		if waits[d.Lane] {
			stay = append(stay, d)
		} else {
			take = append(take, d)
		}
	}
	return take, stay, in
}

// DueBell is a bell that may be taken.
type DueBell struct {
	Job, Class, Lane string
	Since            time.Time // when it fell due
}

// DueBells is what TakeBells took.
type DueBells struct {
	Bells []Bell
	// Left are bells that are due and stay for others to come, see BellAsk.
	Left int
	// Next is how long until the next bell that was not taken is due, or is not to
	// wait for others any more, by the database's clock: 0 when there are more,
	// negative when none is set.
	Next time.Duration
}

// StaleLane is a lane in which nothing runs although jobs wait that were rung long ago.
type StaleLane struct {
	Lane string
	// Queued counts the lane's due jobs, up to MaxStaleCount.
	Queued int
}

// MaxStaleCount is where StaleLane.Queued stops counting.
const MaxStaleCount = 1000

// BellStore keeps the bells that a relay sends to a queue. A bell is set in the
// transaction that queues a job, due when the job is, and goes away when the job
// starts: what was started needs no ring. Stores that were not opened for bells set none.
type BellStore interface {
	// TakeBells takes due bells, the oldest first: nobody else gets them for 30 seconds.
	TakeBells(ctx context.Context, ask BellAsk) (DueBells, error)
	// ClearBells notes that bells were rung. Those that were set anew stay.
	ClearBells(ctx context.Context, bells []Bell) error
	// StaleBells lists the lanes without a run whose first jobs in line were rung
	// long ago: 2 minutes after the first ring, then twice as long each time, 1 hour at most.
	StaleBells(ctx context.Context) ([]StaleLane, error)
	// RingLane sets a bell for the first due job of each class of the lane, if it has none.
	RingLane(ctx context.Context, lane string) error
	// LaneQueueSeen notes for ever that the lane's queue has existed. Other calls do nothing.
	LaneQueueSeen(ctx context.Context, lane string) error
}

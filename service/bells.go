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

// DueBells is what TakeBells took.
type DueBells struct {
	Bells []Bell
	// Next is how long until the next bell that was not taken is due, by the
	// database's clock: 0 when there are more, negative when none is set.
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
	// TakeBells takes up to max due bells: nobody else gets them for 30 seconds.
	TakeBells(ctx context.Context, max int) (DueBells, error)
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

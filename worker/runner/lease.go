package runner

import (
	"context"
	"sync"
	"time"

	"github.com/lanegate/lanegate/worker/guard"
)

// Boottime is the time since this machine started, suspended time included: the clock
// of all deadlines of runs (see guard.Boottime).
func Boottime() time.Duration { return guard.Boottime() }

// Lease says until when a run may go on. Implementations are safe for use by
// many runs at once.
type Lease interface {
	// Deadline returns the instant on CLOCK_BOOTTIME (see Boottime) by which every
	// process of the run must be gone; ok is false when there is no such instant.
	Deadline() (boottime time.Duration, ok bool)
	// Subscribe returns a channel that holds a token after one or more renewals,
	// and a function that ends the subscription. The channel is never closed.
	Subscribe() (renewed <-chan struct{}, cancel func())
}

// LeaseClock is the lease of one worker process, followed by all its runs. The
// worker renews it with each successful beat.
//
// A clock that was never renewed is over: no run starts under it.
type LeaseClock struct {
	mu       sync.Mutex
	deadline time.Duration // guarded by mu
	subs     map[chan struct{}]struct{}
}

// NewLeaseClock returns a clock that is over until it is renewed.
func NewLeaseClock() *LeaseClock {
	return &LeaseClock{subs: map[chan struct{}]struct{}{}}
}

// Renew moves the deadline to an instant on CLOCK_BOOTTIME. A deadline earlier
// than the present one changes nothing: answers to beats may overtake each other.
func (c *LeaseClock) Renew(deadline time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if deadline <= c.deadline {
		return
	}
	c.deadline = deadline
	for ch := range c.subs {
		select {
		case ch <- struct{}{}:
		default: // an earlier token still waits; its reader will see this deadline
		}
	}
}

// Deadline implements Lease.
func (c *LeaseClock) Deadline() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline, true
}

// Subscribe implements Lease.
func (c *LeaseClock) Subscribe() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subs[ch] = struct{}{}
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subs, ch)
	}
}

// Unfenced is the lease of a run that no other process could take over, such as
// a command tried in the foreground.
var Unfenced Lease = unfenced{}

type unfenced struct{}

func (unfenced) Deadline() (time.Duration, bool)      { return 0, false }
func (unfenced) Subscribe() (<-chan struct{}, func()) { return nil, func() {} }

// leaseCheck bounds how long withLease sleeps: Go's timers stand still while the
// machine is suspended, CLOCK_BOOTTIME does not.
const leaseCheck = 5 * time.Second

// withLease returns a context that ends with ErrFenced when the lease is over.
// The caller calls stop when the run has ended.
func withLease(ctx context.Context, lease Lease) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	renewed, unsubscribe := lease.Subscribe()
	go func() {
		defer unsubscribe()
		for {
			deadline, fenced := lease.Deadline()
			if !fenced {
				return
			}
			left := deadline - Boottime()
			if left <= 0 {
				cancel(ErrFenced)
				return
			}
			timer := time.NewTimer(min(left, leaseCheck))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-renewed:
				timer.Stop()
			case <-timer.C:
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

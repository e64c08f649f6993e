package runner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lanegate/lanegate/worker/proctest"
)

func TestLeaseClock(t *testing.T) {
	c := NewLeaseClock()
	if deadline, fenced := c.Deadline(); !fenced || deadline > Boottime() {
		t.Error("a clock that was never renewed is not over")
	}
	a, cancelA := c.Subscribe()
	b, cancelB := c.Subscribe()
	defer cancelB()
	token := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	if token(a) {
		t.Error("a token without a renewal")
	}
	c.Renew(10)
	c.Renew(20) // does not block on unread tokens
	if !token(a) || token(a) || !token(b) {
		t.Error("several renewals must leave exactly one token per run")
	}
	c.Renew(15)
	if deadline, _ := c.Deadline(); deadline != 20 || token(a) {
		t.Errorf("a late answer moved the deadline to %v", deadline)
	}
	cancelA()
	c.Renew(30)
	if token(a) || !token(b) {
		t.Error("cancelled subscriptions get no token, others do")
	}
}

func TestWithLease(t *testing.T) {
	t.Run("ends when the lease is over", func(t *testing.T) {
		c := NewLeaseClock()
		deadline := Boottime() + 50*time.Millisecond
		c.Renew(deadline)
		ctx, stop := withLease(t.Context(), c)
		defer stop()
		c.Renew(deadline + 50*time.Millisecond)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrFenced) || Boottime() < deadline+50*time.Millisecond {
			t.Errorf("cause %v at %v", context.Cause(ctx), Boottime()-deadline)
		}
	})
	t.Run("without a fence it follows its parent", func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx, stop := withLease(parent, Unfenced)
		defer stop()
		cancel(ErrDrained)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrDrained) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})
	t.Run("a run's end ends the subscription", func(t *testing.T) {
		c := NewLeaseClock()
		c.Renew(Boottime() + time.Hour)
		_, stop := withLease(t.Context(), c)
		stop()
		proctest.Eventually(t, "the subscription to end", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.subs) == 0
		})
	})
}

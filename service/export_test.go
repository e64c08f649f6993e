package service

import (
	"context"
	"time"

	"github.com/lanegate/lanegate"
)

// Coordinator is RunVerifications one look at a time, for tests.
type Coordinator struct{ c *coordinator }

// NewCoordinator makes one for the process whose worker is owner.
func NewCoordinator(s *Service, owner string, check Checker) *Coordinator {
	return &Coordinator{newCoordinator(s, func() string { return owner }, check)}
}

// Look does what is to be done now. A check that it starts is waited for.
func (c *Coordinator) Look(ctx context.Context) error {
	_, err := c.c.look(ctx)
	if k := c.c.check; err == nil && k != nil {
		<-k.done
		_, err = c.c.look(ctx)
	}
	return err
}

// Stop is what RunVerifications does when its context ends.
func (c *Coordinator) Stop(ctx context.Context) { c.c.stop(ctx) }

// DemoteVoided is what the end of a failed run does to its members.
func DemoteVoided(tx ConfigTx, v lanegate.Verification) error { return demoteVoided(tx, v) }

// ChangeForEvidence is a change that no person makes.
func (s *Service) ChangeForEvidence(ctx context.Context, fn func(tx ConfigTx) error) error {
	return s.change(ctx, evidenceChange("test"), func(tx ConfigTx, _ Config) error { return fn(tx) })
}

// ForeseeNow is Foresee without its pace, as if somebody looked.
func (s *Service) ForeseeNow(ctx context.Context) error {
	s.oracle.running.Lock()
	s.oracle.next, s.oracle.quiet = time.Time{}, time.Time{}
	clear(s.oracle.histories)
	s.oracle.running.Unlock()
	s.oracle.look()
	return s.Foresee(ctx)
}

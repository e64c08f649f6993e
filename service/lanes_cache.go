package service

import (
	"context"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

const (
	// lanesKept is after what time the lanes that a submission is rung by are read anew.
	lanesKept = time.Second
	// lanesLimit bounds reading them beside a submission.
	lanesLimit = 10 * time.Second
)

// lanesSeen keeps the lanes for submissions: which of them are available matters
// to these only for whom to wake, and a lane stays available for a minute after its
// last worker has left.
type lanesSeen struct {
	background
	lanes []lanegate.Lane // guarded by mu, as is at; never written to
	at    time.Time       // when they were read last, or began to be
}

// ringFor rings for new jobs of classes that are in these lanes, each named once: the
// lane itself, and the one that stands in for it. Without lanes to look at, serial does.
// But for the first submissions none waits for lanes to be read: where nobody has looked
// for a while, who stands in is looked up beside it, and rung later if it is another one.
func (s *Service) ringFor(ctx context.Context, wanted []string) {
	if len(wanted) == 0 {
		return
	}
	for _, lane := range wanted {
		s.ring(lane)
	}
	s.ringStandIns(wanted, s.lanesLately(ctx, wanted))
}

// ringStandIns rings the lanes that stand in for those.
func (s *Service) ringStandIns(wanted []string, lanes []lanegate.Lane) {
	var kept [4]string
	rung := append(kept[:0], wanted...)
	for _, name := range wanted {
		if route, _ := admission.RouteOf(lanegate.Class{Lane: name}, lanes); !slices.Contains(rung, route.Lane) {
			rung = append(rung, route.Lane)
			s.ring(route.Lane)
		}
	}
}

// lanesLately returns the lanes as they were when they were read last; nil when they
// can't be read. One caller reads them anew after a while, beside itself when there are
// some, and then rings who stands in for those that are wanted.
func (s *Service) lanesLately(ctx context.Context, wanted []string) []lanegate.Lane {
	seen := &s.lanes
	seen.mu.Lock()
	lanes := seen.lanes
	if lanes != nil && time.Since(seen.at) < lanesKept {
		seen.mu.Unlock()
		return lanes
	}
	seen.at = time.Now() // the others don't read meanwhile
	if lanes != nil {
		defer seen.mu.Unlock()
		wanted = slices.Clone(wanted)
		_ = seen.begin(func() { s.lookAgain(wanted) }) // the service ends: others will look
		return lanes
	}
	seen.mu.Unlock()
	return s.readLanes(ctx)
}

// lookAgain reads the lanes beside a submission to those that are wanted.
func (s *Service) lookAgain(wanted []string) {
	ctx, cancel := context.WithTimeout(s.lanes.ctx, lanesLimit)
	defer cancel()
	if lanes := s.readLanes(ctx); lanes != nil {
		s.ringStandIns(wanted, lanes)
	}
}

// readLanes reads them, and keeps them for others; nil when it can't.
func (s *Service) readLanes(ctx context.Context) []lanegate.Lane {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return nil
	}
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	s.lanes.lanes = cfg.Lanes
	return cfg.Lanes
}

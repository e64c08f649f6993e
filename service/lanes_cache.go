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
	lanes []lanegate.Lane // guarded by mu, as is all below; never written to
	at    time.Time       // when they were read last, or began to be
	// reading: they are being read beside submissions.
	reading bool
	// wanted are lanes that were rung for by what may be too old, each once. Who stands
	// in for them by what is read next is rung then.
	wanted []string
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
	var kept [4]string
	s.ringStandIns(wanted, append(kept[:0], wanted...), s.lanesLately(ctx, wanted))
}

// ringStandIns rings the lanes that stand in for those, but for what has rung since
// their jobs came.
func (s *Service) ringStandIns(wanted, rung []string, lanes []lanegate.Lane) {
	for _, name := range wanted {
		route, _ := admission.RouteOf(lanegate.Class{Lane: name}, lanes)
		if route.Lane != name && !slices.Contains(rung, route.Lane) {
			rung = append(rung, route.Lane)
			s.ring(route.Lane)
		}
	}
}

// lanesLately returns the lanes as they were when they were read last; nil when they
// can't be read. After a while they are read anew, beside the callers when there are
// some, and then who stands in for those that are wanted until then is rung.
func (s *Service) lanesLately(ctx context.Context, wanted []string) []lanegate.Lane {
	seen := &s.lanes
	seen.mu.Lock()
	lanes := seen.lanes
	if lanes == nil {
		seen.mu.Unlock()
		cfg, err := s.store.Config(ctx)
		if err != nil {
			return nil
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.lanes, seen.at = cfg.Lanes, time.Now()
		return cfg.Lanes
	}
	defer seen.mu.Unlock()
	if !seen.reading {
		if time.Since(seen.at) < lanesKept {
			return lanes
		}
		seen.at, seen.reading = time.Now(), seen.begin(s.lookAgain) == nil // else the service ends: others will look
	}
	for _, name := range wanted {
		if !slices.Contains(seen.wanted, name) {
			seen.wanted = append(seen.wanted, name)
		}
	}
	return lanes
}

// lookAgain reads the lanes beside submissions, and rings for those that came
// meanwhile, and while they could not be read. It is the only one that does.
func (s *Service) lookAgain() {
	seen := &s.lanes
	ctx, cancel := context.WithTimeout(seen.ctx, lanesLimit)
	defer cancel()
	cfg, err := s.store.Config(ctx)
	seen.mu.Lock()
	seen.reading = false
	var wanted []string
	if err == nil {
		seen.lanes = cfg.Lanes
		wanted, seen.wanted = seen.wanted, nil
	}
	seen.mu.Unlock()
	s.ringStandIns(wanted, nil, cfg.Lanes) // some may have rung before the jobs of others came
}

package service

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// lanesKept is how old the lanes may be that a submission is rung by.
const lanesKept = time.Second

// lanesSeen keeps the lanes for submissions: which of them are available matters
// to these only for whom to wake, and a lane stays available for a minute after its
// last worker has left.
type lanesSeen struct {
	mu    sync.Mutex
	lanes []lanegate.Lane // guarded by mu, as is at; never written to
	at    time.Time
}

// ringFor rings for new jobs of classes that are in these lanes, each named once: the
// lane itself, and the one that stands in for it. Without lanes to look at, serial does.
func (s *Service) ringFor(ctx context.Context, wanted []string) {
	if len(wanted) == 0 {
		return
	}
	lanes := s.lanesLately(ctx)
	var kept [4]string
	rung := append(kept[:0], wanted...)
	for _, name := range wanted {
		if route, _ := admission.RouteOf(lanegate.Class{Lane: name}, lanes); !slices.Contains(rung, route.Lane) {
			rung = append(rung, route.Lane)
		}
	}
	for _, lane := range rung {
		s.ring(lane)
	}
}

// lanesLately returns the lanes as they were a moment ago; nil when they can't be
// read. One caller reads them anew, the others go on with what there is.
func (s *Service) lanesLately(ctx context.Context) []lanegate.Lane {
	seen := &s.lanes
	seen.mu.Lock()
	lanes := seen.lanes
	if lanes != nil && time.Since(seen.at) < lanesKept {
		seen.mu.Unlock()
		return lanes
	}
	seen.at = time.Now() // the others don't read meanwhile
	seen.mu.Unlock()
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return lanes
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	seen.lanes = cfg.Lanes
	return cfg.Lanes
}

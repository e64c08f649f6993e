package service

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
)

// warnAgain is how long this process keeps quiet about a warning it has logged.
const warnAgain = 24 * time.Hour

// standingWatcher remembers what was warned of, and what the last look found for
// the metrics.
type standingWatcher struct {
	mu       sync.Mutex
	said     map[saidWarning]time.Time // when, by the database's clock; guarded by mu
	failures map[string]int            // class → failures in a row; guarded by mu
	proofs   map[string]time.Time      // class outside serial → end of its latest proof, if that passed; guarded by mu
}

type saidWarning struct{ class, code string }

func newStandingWatcher() *standingWatcher {
	return &standingWatcher{said: map[saidWarning]time.Time{}}
}

// watchStandings looks once at all classes and logs each warning of a Standing,
// at most once a day while it lasts.
func (s *Service) watchStandings(ctx context.Context, classes []lanegate.Class) error {
	ids := make([]string, len(classes))
	for i, c := range classes {
		ids[i] = c.ID
	}
	facts, now, err := s.store.ClassFacts(ctx, ids)
	if err != nil {
		return err
	}
	failures, proofs, last := map[string]int{}, map[string]time.Time{}, map[saidWarning]bool{}
	for _, c := range classes {
		f, ok := facts[c.ID]
		if !ok {
			continue // deleted meanwhile
		}
		failures[c.ID] = f.Failures
		if latest, _, _ := lanegate.Proven(f.Proofs, c.Fingerprint); c.Lane != lanegate.LaneSerial && latest != nil && latest.Verdict == lanegate.VerdictPassed {
			proofs[c.ID] = latest.EndedAt
		}
		for _, w := range warningsOf(c, f, now) {
			key := saidWarning{c.ID, w.code}
			last[key] = true
			if s.standings.announce(key, now) {
				s.log.WarnContext(ctx, "class needs a look", "class", c.ID, "lane", c.Lane, "warning", w.code, "text", w.text)
			}
		}
	}
	s.standings.settle(now, failures, proofs, last)
	return nil
}

func (w *standingWatcher) announce(key saidWarning, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, said := w.said[key]; said && now.Sub(at) < warnAgain {
		return false
	}
	w.said[key] = now
	return true
}

// settle keeps what was found. A warning that is over for longer than it is kept
// quiet is forgotten; one that comes and goes stays at one line a day.
func (w *standingWatcher) settle(now time.Time, failures map[string]int, proofs map[string]time.Time, last map[saidWarning]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures, w.proofs = failures, proofs
	maps.DeleteFunc(w.said, func(key saidWarning, at time.Time) bool { return !last[key] && now.Sub(at) >= warnAgain })
}

// found is what the last look found, for the metrics; nil before the first.
func (w *standingWatcher) found() (failures map[string]int, proofs map[string]time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failures, w.proofs
}

package service

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
)

// warnWithoutHistory is warn_after for a class without a declared one and
// without enough good runs to tell.
const warnWithoutHistory = 2 * time.Hour

// warnMinRuns is how many good runs make a history.
const warnMinRuns = 5

// warnFactor × p99 of good runs is the default warn_after.
const warnFactor = 3

// watcher remembers which long runs were announced.
type watcher struct {
	mu      sync.Mutex
	said    map[string]bool // jobs announced whose run is still overdue; guarded by mu
	overdue map[string]int  // class → runs over warn_after at the last look; guarded by mu
}

func newWatcher() *watcher { return &watcher{said: map[string]bool{}, overdue: map[string]int{}} }

func (w *watcher) overdueRuns() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.overdue)
}

// WatchRuns looks once for runs that take longer than their class's warn_after
// and announces each once. It looks at where the classes stand, too, and warns of
// failures in a row, voided and old proofs. It alarms only: nothing is stopped.
func (s *Service) WatchRuns(ctx context.Context) error {
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	classes := map[string]lanegate.Class{}
	for _, c := range in.Classes {
		classes[c.ID] = c
	}
	limits := map[string]time.Duration{}
	overdue := map[string]int{}
	alive := map[string]bool{}
	for _, r := range in.InFlight {
		limit, ok := limits[r.Class]
		if !ok {
			if limit, err = s.warnAfter(ctx, classes[r.Class], r.Class, in.Now); err != nil {
				return err
			}
			limits[r.Class] = limit
		}
		age := in.Now.Sub(r.StartedAt)
		if age <= limit {
			continue
		}
		overdue[r.Class]++
		alive[r.Job] = true
		if s.watch.announce(r.Job) {
			s.log.WarnContext(ctx, "job runs longer than expected", "job", r.Job, "class", r.Class, "lane", r.Lane,
				"running", age.Round(time.Second).String(), "warn_after", limit.Round(time.Second).String())
		}
	}
	s.watch.settle(overdue, alive)
	return s.watchStandings(ctx, in.Classes)
}

func (w *watcher) announce(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.said[job]
	w.said[job] = true
	return first
}

func (w *watcher) settle(overdue map[string]int, alive map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overdue = overdue
	maps.DeleteFunc(w.said, func(job string, _ bool) bool { return !alive[job] })
}

// warnAfter is the class's declared limit, or 3 × p99 of its good runs of the
// last 30 days (a minute at least: shorter alarms are noise), or 2 h without history.
func (s *Service) warnAfter(ctx context.Context, c lanegate.Class, id string, now time.Time) (time.Duration, error) {
	if c.WarnAfter > 0 {
		return c.WarnAfter.Std(), nil
	}
	var good []time.Duration
	err := s.store.RunLog(ctx, id, now.Add(-30*24*time.Hour), now, func(r lanegate.RunRecord) error {
		if r.Outcome == lanegate.Succeeded && r.Verification == "" {
			good = append(good, r.Duration)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if len(good) < warnMinRuns {
		return warnWithoutHistory, nil
	}
	return max(warnFactor*QuantilesOf(good).P99, time.Minute), nil
}

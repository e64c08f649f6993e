package service

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// Quantiles of a set of durations; all zero when N is 0.
type Quantiles struct {
	N                  int
	P50, P90, P99, Max time.Duration
}

// QuantilesOf sorts d in place and takes the nearest-rank quantiles: the
// smallest value such that at least q of all values are not above it
// (Hyndman & Fan 1996, type 1).
func QuantilesOf(d []time.Duration) Quantiles {
	if len(d) == 0 {
		return Quantiles{}
	}
	slices.Sort(d)
	at := func(q float64) time.Duration {
		return d[max(0, int(math.Ceil(q*float64(len(d))))-1)]
	}
	return Quantiles{N: len(d), P50: at(.5), P90: at(.9), P99: at(.99), Max: d[len(d)-1]}
}

// ClassStats describes a class's runs within a window, verification runs left out.
type ClassStats struct {
	Class    string
	From, To time.Time
	Runs     int
	Outcomes map[lanegate.Outcome]int
	// Waits from due to start, and Durations of successful runs.
	Waits, Durations Quantiles
	// Failing: durations of failed and timed-out runs.
	Failing     Quantiles
	LastSuccess *time.Time
}

// Stats returns the statistics of one class over the last window.
func (s *Service) Stats(ctx context.Context, class string, window time.Duration) (ClassStats, error) {
	if _, err := s.Class(ctx, class); err != nil {
		return ClassStats{}, err
	}
	to := time.Now().UTC()
	st := ClassStats{Class: class, From: to.Add(-window), To: to, Outcomes: map[lanegate.Outcome]int{}}
	var waits, good, bad []time.Duration
	err := s.store.RunLog(ctx, class, st.From, to.Add(time.Second), func(r lanegate.RunRecord) error {
		if r.Verification != "" {
			return nil
		}
		st.Runs++
		st.Outcomes[r.Outcome]++
		if r.ReadyAt != nil {
			waits = append(waits, max(0, r.StartedAt.Sub(*r.ReadyAt)))
		}
		switch r.Outcome {
		case lanegate.Succeeded:
			good = append(good, r.Duration)
			end := r.EndedAt
			st.LastSuccess = &end
		case lanegate.Failed, lanegate.TimedOut:
			bad = append(bad, r.Duration)
		}
		return nil
	})
	if err != nil {
		return ClassStats{}, err
	}
	st.Waits, st.Durations, st.Failing = QuantilesOf(waits), QuantilesOf(good), QuantilesOf(bad)
	return st, nil
}

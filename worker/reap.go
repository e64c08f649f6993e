package worker

import (
	"context"
	"time"

	"github.com/lanegate/lanegate/service"
)

// observation is what this process saw of another worker's beat counter.
type observation struct {
	beat  int64
	since time.Time // monotonic: when the counter was first seen at this value
}

// observer judges liveness by observation alone: a worker is dead when its
// counter stood still for one whole lease on this process's own monotonic clock,
// with the database reachable throughout. Clocks of other hosts play no part.
type observer struct {
	lease  time.Duration
	maxGap time.Duration // a longer silence between two looks voids all observations
	last   time.Time
	seen   map[string]observation
}

func newObserver(lease, every time.Duration) *observer {
	return &observer{lease: lease, maxGap: 3 * every, seen: map[string]observation{}}
}

// forget voids all observations: the database did not answer.
func (o *observer) forget() { clear(o.seen) }

// look takes in one list of live workers and returns those that are dead.
func (o *observer) look(now time.Time, workers []service.WorkerInfo) []service.WorkerInfo {
	if !o.last.IsZero() && now.Sub(o.last) > o.maxGap {
		o.forget() // this process slept: it can't say what happened meanwhile
	}
	o.last = now
	seen := make(map[string]observation, len(workers))
	var dead []service.WorkerInfo
	for _, w := range workers {
		ob, ok := o.seen[w.ID]
		if !ok || ob.beat != w.Beat {
			ob = observation{beat: w.Beat, since: now}
		}
		seen[w.ID] = ob
		if now.Sub(ob.since) >= o.lease {
			dead = append(dead, w)
		}
	}
	o.seen = seen
	return dead
}

// reapLoop looks after the other workers until ctx ends.
func (w *Worker) reapLoop(ctx context.Context) {
	obs := newObserver(w.opts.Lease, w.opts.Beat)
	failing := false
	tick := time.NewTicker(w.opts.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := w.reap(ctx, obs)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			obs.forget()
			if !failing { // one line per outage
				w.log.WarnContext(ctx, "looking after other workers failed", "err", err)
			}
		case failing:
			w.log.InfoContext(ctx, "looking after other workers works again")
		}
		failing = err != nil
	}
}

func (w *Worker) reap(ctx context.Context, obs *observer) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	workers, err := w.backend.LiveWorkers(call)
	if err != nil {
		return err
	}
	for _, dead := range obs.look(time.Now(), workers) {
		if dead.ID == w.identity() {
			continue // our own beats fail; whether we are dead is for others to say
		}
		if err := w.backend.ReapWorker(call, dead.ID, dead.Beat); err != nil {
			return err
		}
	}
	return w.backend.ReapOrphans(call)
}

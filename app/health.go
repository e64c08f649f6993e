package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate/api"
)

// Health is asked by every probe of every balancer; the database is asked once
// in pingAge for all of them, and given pingLimit for its answer.
const (
	pingAge   = 2 * time.Second
	pingLimit = 2 * time.Second
)

// health knows how the parts of the process are.
type health struct {
	app     *App
	ping    func(ctx context.Context) error
	working atomic.Bool // earlier runs are over and the worker was started

	mu  sync.Mutex // held during a ping: one for all who wait
	at  time.Time  // of the last ping's answer
	err error      // its answer
}

func newHealth(a *App) *health { return &health{app: a, ping: a.svc.Ping} }

// parts reports each part for readiness.
func (h *health) parts(context.Context) []api.Part {
	parts := []api.Part{h.database(), {Name: "migrations", OK: true}, h.workerPart(), h.doorbell(), h.configFile()}
	if h.app.intake != nil {
		parts = append(parts, h.intakePart())
	}
	if h.app.isStopping() {
		parts = append(parts, api.Part{Name: "stop", Detail: "this process is stopping and takes no new work"})
	}
	return parts
}

// database says whether the database takes writes.
func (h *health) database() api.Part {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at.IsZero() || time.Since(h.at) > pingAge {
		// Not the asker's context: its answer is for everybody who asks soon after.
		ctx, cancel := context.WithTimeout(context.Background(), pingLimit)
		h.err = h.ping(ctx)
		cancel()
		h.at = time.Now()
		if h.err != nil {
			h.app.log.Warn("the database does not take writes", "err", h.err)
		}
	}
	if h.err != nil {
		return api.Part{Name: "database", Detail: "does not take writes; see the log"}
	}
	return api.Part{Name: "database", OK: true}
}

// workerPart is well while earlier runs end: jobs are accepted meanwhile, which
// is what readiness is about.
func (h *health) workerPart() api.Part {
	switch {
	case h.app.config().NoWorkers:
		return api.Part{Name: "worker", OK: true, Detail: "none: this process only serves HTTP (no_workers)"}
	case !h.working.Load():
		return api.Part{Name: "worker", OK: true, Detail: "waits until the runs of an earlier process have ended"}
	case !h.app.worker.Healthy():
		return api.Part{Name: "worker", Detail: "has not beaten within its lease"}
	}
	return api.Part{Name: "worker", OK: true}
}

// doorbell is always well: jobs are accepted and run without it, only later. A
// queue that is missing would otherwise take every replica out of service.
func (h *health) doorbell() api.Part {
	c := h.app.config()
	p := api.Part{Name: "doorbell", OK: true, Detail: c.Doorbell}
	if h.app.bell.sqs == nil {
		return p
	}
	problems := h.app.bell.sqs.Problems()
	for _, lane := range slices.Sorted(maps.Keys(problems)) {
		p.Detail += fmt.Sprintf("; lane %s: %s", lane, problems[lane])
	}
	return p
}

// configFile says whether the database holds what this process's file declares.
func (h *health) configFile() api.Part {
	p := api.Part{Name: "config", OK: true}
	if h.app.superseded.Load() {
		p.Detail = "not applied: another process's file has replaced this one's classes since; SIGHUP applies it all the same"
	}
	return p
}

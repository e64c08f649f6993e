package queue

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Backoff spaces the repeats of what failed: Base after the first failure, twice
// that after the next, Max at most; each shortened by a random part, up to half of
// it, so that replicas don't come back together.
type Backoff struct {
	Base time.Duration // default 1s
	Max  time.Duration // default 30s
}

// retry counts the failures of one thing. It belongs to one goroutine.
type retry struct {
	Backoff
	failures int
}

// next is how long to wait after one more failure.
func (r *retry) next() time.Duration {
	d := min(r.Base<<min(r.failures, 20), r.Max)
	r.failures++
	return d - time.Duration(rand.Float64()*float64(d)/2)
}

func (r *retry) reset() { r.failures = 0 }

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// faultEvery is how often one lasting fault is logged.
const faultEvery = time.Minute

// faultLog logs lasting faults once a minute each, however often they are seen,
// and their end once.
type faultLog struct {
	log *slog.Logger
	mu  sync.Mutex
	at  map[string]fault // by what fails; guarded by mu
}

type fault struct {
	logged time.Time
	hidden int // since then
}

func newFaultLog(log *slog.Logger) *faultLog { return &faultLog{log: log, at: map[string]fault{}} }

// failed says that something fails, with msg as a constant text.
func (f *faultLog) failed(ctx context.Context, key, msg string, attrs ...slog.Attr) {
	f.mu.Lock()
	old, known := f.at[key]
	if known && time.Since(old.logged) < faultEvery {
		old.hidden++
		f.at[key] = old
		f.mu.Unlock()
		return
	}
	f.at[key] = fault{logged: time.Now()}
	f.mu.Unlock()
	if old.hidden > 0 {
		attrs = append(attrs, slog.Int("repeats", old.hidden))
	}
	f.log.LogAttrs(ctx, slog.LevelWarn, msg, attrs...) //nolint:sloglint // callers pass constants
}

// works says that it works; what never failed is not worth a line.
func (f *faultLog) works(ctx context.Context, key, msg string, attrs ...slog.Attr) {
	f.mu.Lock()
	_, known := f.at[key]
	delete(f.at, key)
	f.mu.Unlock()
	if known {
		f.log.LogAttrs(ctx, slog.LevelInfo, msg, attrs...) //nolint:sloglint // callers pass constants
	}
}

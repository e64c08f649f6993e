package app

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// loop is background work that is repeated until the process stops.
type loop struct {
	name  string
	first time.Duration // before the first time
	every time.Duration
	// limit of one round.
	limit time.Duration
	once  func(ctx context.Context) error
}

// run repeats once; a failure is logged when it begins and when it is over, not
// every time.
func (l loop) run(ctx context.Context, log *slog.Logger) {
	failing := false
	timer := time.NewTimer(l.first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := l.round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			log.ErrorContext(ctx, "background work failed; it is tried again", "loop", l.name, "every", l.every.String(), "err", err)
		case err == nil && failing:
			log.InfoContext(ctx, "background work is well again", "loop", l.name)
		}
		failing = err != nil
		timer.Reset(l.every)
	}
}

func (l loop) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	return l.once(ctx)
}

// runLoops starts them all; the returned function ends them and waits.
func runLoops(ctx context.Context, log *slog.Logger, loops []loop) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, l := range loops {
		wg.Go(func() { l.run(ctx, log) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

package service

import (
	"context"
	"sync"
	"time"
)

// linesAge is how old shown counts may be; limits are never judged from them.
const linesAge = 2 * time.Second

// linesCache keeps the counts of queued jobs for everyone who looks at them, so
// that many viewers cost one query.
type linesCache struct {
	store Store
	mu    sync.Mutex // held during a refresh: one query for all who wait
	at    time.Time
	lines []ClassLine
}

func newLinesCache(store Store) *linesCache { return &linesCache{store: store} }

func (c *linesCache) get(ctx context.Context) ([]ClassLine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < linesAge {
		return c.lines, nil
	}
	lines, err := c.store.Lines(ctx)
	if err != nil {
		return nil, err
	}
	c.lines, c.at = lines, time.Now()
	return lines, nil
}

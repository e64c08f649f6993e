package service

import (
	"context"
	"time"
)

// Counts of queued jobs are for people and scrapers; limits are never judged from
// them. To count reads an entry of an index for each queued job, which a long
// backlog makes dear.
const (
	// linesAge is how old shown counts may be before they are counted anew.
	linesAge = 2 * time.Second
	// linesCost bounds what counting costs: not more than this part of the time.
	linesCost = 10
	// linesPatience is how long a viewer waits for new counts while there are others.
	linesPatience = 3 * time.Millisecond
	// linesOldest is from what age on a viewer waits for new counts all the same.
	linesOldest = 30 * time.Second
	// linesWatched is how long after a look counts that are dear are kept new, so that
	// whoever looks once a minute never waits for them.
	linesWatched = 90 * time.Second
	// linesLimit bounds one count.
	linesLimit = 30 * time.Second
)

// linesCache keeps the counts of queued jobs for everyone who looks at them: many
// viewers cost one count, and none waits for it, but the first ever or after a long
// time. Nothing is counted while nobody looks.
type linesCache struct {
	background
	store LogStore

	lines  []ClassLine // as of the last count; guarded by mu, as is all below
	at     time.Time   // when that began; zero before the first
	next   time.Time   // no sooner is it counted again
	looked time.Time   // when somebody last did
	count  *lineCount  // the one under way, nil when there is none
}

// lineCount is one count; lines and err are there when done is closed.
type lineCount struct {
	done  chan struct{}
	lines []ClassLine
	err   error
}

func newLinesCache(store LogStore) *linesCache {
	c := &linesCache{store: store}
	c.open()
	return c
}

// get returns counts that are not older than linesAge if they are to be had within
// linesPatience, and those of the last count otherwise. It waits longer when these
// are older than linesOldest, or when there are none.
func (c *linesCache) get(ctx context.Context) ([]ClassLine, error) {
	kept, count, err := c.look()
	if count == nil {
		return kept, err
	}
	var patience <-chan time.Time
	if kept != nil {
		t := time.NewTimer(linesPatience)
		defer t.Stop()
		patience = t.C
	}
	select {
	case <-count.done:
		return count.lines, count.err
	case <-patience:
		return kept, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// look returns what may be shown without a count; else the count to wait for, and
// with it what may be shown when that takes long, nil for nothing.
func (c *linesCache) look() (kept []ClassLine, count *lineCount, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.looked = now
	known := !c.at.IsZero()
	if known && (now.Sub(c.at) < linesAge || now.Before(c.next)) {
		return c.lines, nil, nil
	}
	if err := c.recount(); err != nil {
		return nil, nil, err
	}
	if known && now.Sub(c.at) < linesOldest {
		return c.lines, c.count, nil
	}
	return nil, c.count, nil
}

// recount begins a count unless one is under way; mu is held.
func (c *linesCache) recount() error {
	if c.count != nil {
		return nil
	}
	count := &lineCount{done: make(chan struct{})}
	if err := c.begin(func() { c.run(count) }); err != nil {
		return err
	}
	c.count = count
	return nil
}

func (c *linesCache) run(count *lineCount) {
	ctx, cancel := context.WithTimeout(c.ctx, linesLimit)
	defer cancel()
	began := time.Now()
	lines, err := c.store.Lines(ctx)
	took := time.Since(began)
	if lines == nil {
		lines = []ClassLine{} // known to be empty
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(count.done)
	count.lines, count.err, c.count = lines, err, nil
	if err != nil {
		return // the next look counts
	}
	wait := max(linesAge-took, linesCost*took)
	c.lines, c.at, c.next = lines, began, time.Now().Add(wait)
	if took > linesPatience {
		time.AfterFunc(wait, c.renew)
	}
}

// renew counts again while somebody looks now and then.
func (c *linesCache) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) < linesWatched && !now.Before(c.next) {
		_ = c.recount() // fails when the service has ended
	}
}

package store

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
)

var (
	bulkDeleteBlocked = bulkSQL{
		one: `
DELETE FROM blocked_heads
 WHERE job_id = $1`,
		many: `
DELETE FROM blocked_heads
 USING {{rows text}} AS w (j)
 WHERE job_id = w.j`,
	}
	bulkSaveBlocked = bulkSQL{
		one: `
INSERT INTO blocked_heads (job_id, since)
VALUES ($1, $2)
    ON CONFLICT (job_id) DO UPDATE SET since = excluded.since`,
		many: `
INSERT INTO blocked_heads (job_id, since)
SELECT * FROM {{rows text timestamptz}}
    ON CONFLICT (job_id) DO UPDATE SET since = excluded.since`,
	}
)

// blockedHeads are the heads that this process's last admission found blocked. Most
// start soon, and others take their place: only who stays blocked is written down,
// so that other processes, and this one's next start, go on counting.
type blockedHeads struct {
	mu    sync.Mutex
	at    time.Time            // of that admission; guarded by mu
	since map[string]time.Time // guarded by mu
}

// blockedFor is how long after an admission what it found counts: later, a job may
// have been started by another process and have come back. A process whose admissions
// are rarer writes down what it finds at once.
const blockedFor = time.Minute

// with is what the database remembers, and what this process does: the earlier of both.
func (b *blockedHeads) with(written map[string]time.Time, now time.Time) map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := maps.Clone(written)
	if now.Sub(b.at) > blockedFor {
		return all
	}
	for job, since := range b.since {
		if old, ok := all[job]; !ok || since.Before(old) {
			all[job] = since
		}
	}
	return all
}

// set is called by each admission, at now; often: the one before was not long ago.
func (b *blockedHeads) set(since map[string]time.Time, now time.Time) (often bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	often = now.Sub(b.at) <= blockedFor
	b.since, b.at = since, now
	return often
}

// rememberBlocked remembers exactly what now says. A head is written down once it was
// blocked for a minute, or a tenth of the time after which it gets a reservation if
// that is less: a process that ends forgets no more than that.
func (t *tx) rememberBlocked(now map[string]time.Time) error {
	stands, err := t.stands()
	if err != nil {
		return err
	}
	often := t.s.blocked.set(now, t.at)
	var gone, fresh [][]any
	for job := range stands.written {
		if _, ok := now[job]; !ok {
			gone = append(gone, []any{job})
		}
	}
	for job, since := range now {
		old, ok := stands.written[job]
		if !ok && often && t.at.Sub(since) < min(t.s.opts.StarveAfter/10, blockedFor) || ok && old.Equal(lanegate.Micro(since)) {
			continue
		}
		fresh = append(fresh, []any{job, at(since)})
	}
	if err := t.each(bulkDeleteBlocked, gone); err != nil {
		return fmt.Errorf("forget blocked jobs: %w", err)
	}
	if err := t.each(bulkSaveBlocked, fresh); err != nil {
		return fmt.Errorf("remember blocked jobs: %w", err)
	}
	return nil
}

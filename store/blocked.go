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

// longBlocked is how long a head is blocked before that is written down: a tenth of
// the time after which it gets a reservation. A process that ends forgets no more.
func (s *Store) longBlocked() time.Duration { return s.opts.StarveAfter / 10 }

// with is what the database remembers, and what this process does: the earlier of
// both. What the process saw too long before now may have started meanwhile.
func (b *blockedHeads) with(written map[string]time.Time, now time.Time, long time.Duration) map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := maps.Clone(written)
	if now.Sub(b.at) > long {
		return all
	}
	for job, since := range b.since {
		if old, ok := all[job]; !ok || since.Before(old) {
			all[job] = since
		}
	}
	return all
}

func (b *blockedHeads) set(since map[string]time.Time, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since, b.at = since, now
}

// rememberBlocked remembers exactly what now says.
func (t *tx) rememberBlocked(now map[string]time.Time) error {
	stands, err := t.stands()
	if err != nil {
		return err
	}
	var gone, fresh [][]any
	for job := range stands.written {
		if _, ok := now[job]; !ok {
			gone = append(gone, []any{job})
		}
	}
	for job, since := range now {
		old, ok := stands.written[job]
		if !ok && t.at.Sub(since) < t.s.longBlocked() || ok && old.Equal(lanegate.Micro(since)) {
			continue
		}
		fresh = append(fresh, []any{job, at(since)})
	}
	t.s.blocked.set(now, t.at)
	if err := t.each(bulkDeleteBlocked, gone); err != nil {
		return fmt.Errorf("forget blocked jobs: %w", err)
	}
	if err := t.each(bulkSaveBlocked, fresh); err != nil {
		return fmt.Errorf("remember blocked jobs: %w", err)
	}
	return nil
}

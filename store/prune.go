package store

import (
	"context"
	"fmt"
	"time"
)

// keyKept is how long an idempotency key answers at least. A job with a key stays
// as long, so that a repeat always finds it.
const keyKept = 7 * 24 * time.Hour

// workerKept is how long the row of a worker that has left stays, for people.
const workerKept = 7 * 24 * time.Hour

const (
	// Old finished jobs, by the same rule in each statement of one transaction. One
	// that somebody is about to revive is left alone.
	sqlOld    = `finished_at < $1 AND (idempotency_key = '' OR submitted_at < $2)`
	sqlOldEnd = `
 ORDER BY finished_at, id
 LIMIT $3 {{skip}}`
	sqlDeleteKeys = `
DELETE FROM idempotency_keys
 WHERE (client, key) IN (SELECT client, idempotency_key FROM jobs WHERE ` + sqlOld + sqlOldEnd + `)`
	// The key goes first: a key without its job would answer nothing for ever.
	sqlDeleteJobs = `
DELETE FROM jobs
 WHERE id IN (SELECT id FROM jobs WHERE ` + sqlOld + ` AND NOT EXISTS
              (SELECT 1 FROM idempotency_keys AS k WHERE k.client = jobs.client AND k.key = jobs.idempotency_key)` + sqlOldEnd + `)`
	sqlDeleteRuns = `
DELETE FROM run_log
 WHERE id IN (SELECT id
                FROM run_log
               WHERE ended_at < $1
               ORDER BY ended_at, id
               LIMIT $2)`
	sqlDeleteWorkers = `
DELETE FROM workers
 WHERE ended_at < $1 AND NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.worker = workers.id AND a.outcome IS NULL)`
)

// Prune implements service.Store. Its transaction is as small as limit says, so
// that submissions wait little. A job that came with an idempotency key stays for
// seven days at least.
func (s *Store) Prune(ctx context.Context, jobsBefore, logBefore time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("prune: the limit must be at least 1, not %d", limit)
	}
	var gone int64
	err := s.inTx(ctx, "prune", func(t *tx) error {
		old := []any{at(jobsBefore), at(t.at.Add(-keyKept)), limit}
		if _, err := t.exec(sqlDeleteKeys, old...); err != nil {
			return fmt.Errorf("delete old keys: %w", err)
		}
		jobs, err := t.exec(sqlDeleteJobs, old...)
		if err != nil {
			return fmt.Errorf("delete old jobs: %w", err)
		}
		runs, err := t.exec(sqlDeleteRuns, at(logBefore), limit-int(jobs))
		if err != nil {
			return fmt.Errorf("delete old runs: %w", err)
		}
		gone = jobs + runs
		if _, err := t.exec(sqlDeleteWorkers, at(t.at.Add(-workerKept))); err != nil {
			return fmt.Errorf("delete old workers: %w", err)
		}
		return nil
	})
	return int(gone), err
}

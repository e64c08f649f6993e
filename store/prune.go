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

// pruneStep is how many jobs are looked at in one read.
const pruneStep = 1000

const (
	// Old finished jobs, by the same rule in each statement.
	sqlOld = `finished_at < $1 AND (idempotency_key = '' OR submitted_at < $2)`
	// Ids grow with the time of submission: behind old jobs are younger ones.
	sqlListOld = `
SELECT id, submitted_at < $1 AS early, coalesce(` + sqlOld + `, false) AS old
  FROM jobs
 WHERE id > $3
 ORDER BY id
 LIMIT $4`
	// Of those that were listed. One that somebody is about to revive is left alone.
	sqlStillOld = `id {{among}} AND ` + sqlOld + `
 ORDER BY id
 LIMIT $3 {{skip}}`
	sqlDeleteKeys = `
DELETE FROM idempotency_keys
 WHERE (client, key) IN (SELECT client, idempotency_key FROM jobs WHERE ` + sqlStillOld + `)`
	// The key goes first: a key without its job would answer nothing for ever.
	sqlDeleteJobs = `
DELETE FROM jobs
 WHERE id IN (SELECT id FROM jobs WHERE NOT EXISTS
              (SELECT 1 FROM idempotency_keys AS k WHERE k.client = jobs.client AND k.key = jobs.idempotency_key) AND ` + sqlStillOld + `)`
	sqlDeleteRuns = `
DELETE FROM run_log
 WHERE (ended_at, id) IN (SELECT ended_at, id
                            FROM run_log
                           WHERE ended_at < $1
                           ORDER BY ended_at, id
                           LIMIT $2)`
	sqlDeleteWorkers = `
DELETE FROM workers
 WHERE ended_at < $1 AND NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.worker = workers.id AND a.outcome IS NULL)`
)

// PruneJobs implements service.Store. Its transaction is as small as limit says, so
// that submissions wait little. A job that came with an idempotency key stays for
// seven days at least.
func (s *Store) PruneJobs(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("prune jobs: the limit must be at least 1, not %d", limit)
	}
	ids, err := s.oldJobs(ctx, before, limit)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	var gone int64
	err = s.inTx(ctx, "prune jobs", func(t *tx) (err error) {
		gone, err = t.deleteOld(ids, before, limit)
		return err
	})
	return int(gone), err
}

// PruneRunLog implements service.Store. The rows of workers that left a week ago go
// with it.
func (s *Store) PruneRunLog(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("prune the run log: the limit must be at least 1, not %d", limit)
	}
	var gone int64
	err := s.inTx(ctx, "prune the run log", func(t *tx) (err error) {
		if gone, err = t.exec(sqlDeleteRuns, at(before), limit); err != nil {
			return fmt.Errorf("delete old runs: %w", err)
		}
		if _, err := t.exec(sqlDeleteWorkers, at(t.at.Add(-workerKept))); err != nil {
			return fmt.Errorf("delete old workers: %w", err)
		}
		return nil
	})
	return int(gone), err
}

// deleteOld deletes those of some jobs that are old still, and their keys.
func (t *tx) deleteOld(ids []string, before time.Time, limit int) (int64, error) {
	args := []any{at(before), at(t.at.Add(-keyKept)), limit, dbJSON[[]string]{ids}}
	if _, err := t.exec(sqlDeleteKeys, args...); err != nil {
		return 0, fmt.Errorf("delete old keys: %w", err)
	}
	n, err := t.exec(sqlDeleteJobs, args...)
	if err != nil {
		return 0, fmt.Errorf("delete old jobs: %w", err)
	}
	return n, nil
}

type oldRow struct {
	ID    string `db:"id"`
	Early bool   `db:"early"`
	Old   bool   `db:"old"`
}

// oldJobs finds up to limit jobs to be pruned, along the keys: from behind the last
// ones that were found, once around to where it began, without those that were
// submitted too late. So jobs that stay in front, such as those that wait for next
// year, are passed once a round, not at each call, and none behind them is missed.
func (s *Store) oldJobs(ctx context.Context, before time.Time, limit int) (ids []string, err error) {
	var began string
	if p := s.pruned.Swap(nil); p != nil {
		began = *p
	}
	var ahead string
	err = s.inRead(ctx, "read the time", func(t *tx) error {
		ahead = firstID(t.at)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range roundFrom(began, ahead) {
		found, err := s.oldJobsIn(ctx, p, before, limit-len(ids))
		if err != nil {
			return nil, err
		}
		if ids = append(ids, found...); len(ids) == limit {
			last := ids[limit-1]
			s.pruned.Store(&last)
			break
		}
	}
	return ids, nil
}

// part is a part of a round through the jobs: the ids behind after up to to, which
// is "" for all that follow.
type part struct {
	after, to string
	// sorted: behind a page of jobs that were submitted too late, by ids too, are others such.
	sorted bool
}

// roundFrom is a round through all ids from began on. They grow with the time of
// submission up to ahead, the first that a clock that is right may make from now on.
// Those beyond are of processes whose clocks are, or were, ahead: none, or few, that
// are read whole. (One that is ahead by less than jobs are kept waits here until the
// ids around it are old: twice as long at most.)
func roundFrom(began, ahead string) []part {
	if began > ahead {
		return []part{{after: began}, {to: ahead, sorted: true}, {after: ahead, to: began}}
	}
	round := []part{{after: began, to: ahead, sorted: true}, {after: ahead}}
	if began != "" {
		round = append(round, part{to: began, sorted: true})
	}
	return round
}

// firstID is a lower bound of the UUIDv7s of a time: their first 48 bits, which are
// its milliseconds since 1970.
func firstID(t time.Time) string {
	ms := t.UnixMilli()
	return fmt.Sprintf("%08x-%04x", ms>>16, ms&0xffff)
}

// oldJobsIn is oldJobs in one part of a round.
func (s *Store) oldJobsIn(ctx context.Context, p part, before time.Time, limit int) (ids []string, err error) {
	young := firstID(before)
	for after := p.after; ; {
		var rows []oldRow
		err := s.inRead(ctx, "find old jobs", func(t *tx) error {
			return t.all(&rows, sqlListOld, at(before), at(t.at.Add(-keyKept)), after, pruneStep)
		})
		if err != nil {
			return nil, err
		}
		early := false
		for _, r := range rows {
			if p.to != "" && r.ID > p.to {
				return ids, nil
			}
			if early = early || r.Early; r.Old {
				ids = append(ids, r.ID)
			}
			if after = r.ID; len(ids) == limit {
				return ids, nil
			}
		}
		// (Of ids of before, who was submitted later has his from a clock that was behind.)
		if len(rows) < pruneStep || p.sorted && !early && after >= young {
			return ids, nil
		}
	}
}

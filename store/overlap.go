package store

import (
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
)

const (
	// Jobs that a verification run made up are part of no line.
	sqlFindRunning = `
SELECT id
  FROM jobs
 WHERE state = 'running' AND class = $1 AND id IN (SELECT a.job_id FROM attempts AS a WHERE a.class = $1 AND a.outcome IS NULL)
   AND verification = '' AND id <> $2
 ORDER BY started_at, id
 LIMIT 1`
	sqlFindDue = `
SELECT id
  FROM jobs {{use jobs_line_idx}}
 WHERE state = 'queued' AND due AND class = $1 AND verification = '' AND id <> $2
 ORDER BY first_at, place_at, place_id
 LIMIT 1`
	sqlFindReady = `
SELECT id
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due AND ready_at <= $3 AND class = $1 AND verification = '' AND id <> $2
 ORDER BY first_at, place_at, place_id
 LIMIT 1`
	sqlFindWaiting = `
SELECT ` + jobColumns + `
  FROM jobs {{use jobs_line_idx}}
 WHERE state = 'queued' AND due AND class = $1 AND logical_date = $2 AND attempts = 0 AND verification = '' AND id <> $3
 ORDER BY first_at, place_at, place_id
 LIMIT 1 {{lock}}`
)

// overlap applies the class's policy to a job that is not in the database yet and
// is due now; one with a later run_at is decided when it becomes due. row may end
// as skipped, or inherit a place; then coalesced is the job it replaced.
func (t *tx) overlap(policy lanegate.Overlap, row *jobRow) (coalesced string, err error) {
	if !row.Due {
		return "", nil
	}
	switch policy {
	case lanegate.OverlapSkip:
		other, doing, err := t.inTheWay(row, true)
		if err != nil || other == "" {
			return "", err
		}
		row.State = ""
		return "", t.skip(row, lanegate.EventSkip, other, fmt.Sprintf("skipped: job %s of this class %s", other, doing))
	case lanegate.OverlapCoalesce:
		old, found, err := t.waiting(row)
		if err != nil || !found {
			return "", err
		}
		row.PlaceAt, row.PlaceID, row.FirstAt = old.PlaceAt, old.PlaceID, old.FirstAt
		return old.ID, t.replaced(old, row.ID)
	}
	return "", nil
}

// inTheWay names the job of row's class that runs or, if none does, stands first
// in line; "" when there is none. ready counts jobs, too, whose time has come
// though no admission has noted it yet.
func (t *tx) inTheWay(row *jobRow, ready bool) (other, doing string, err error) {
	if found, err := t.get(&other, sqlFindRunning, row.Class, row.ID); err != nil || found {
		return other, "runs", err
	}
	if found, err := t.get(&other, sqlFindDue, row.Class, row.ID); err != nil || found || !ready {
		return other, "waits", err
	}
	_, err = t.get(&other, sqlFindReady, row.Class, row.ID, at(t.at))
	return other, "waits", err
}

// waiting returns the due job that row would be coalesced with.
func (t *tx) waiting(row *jobRow) (old jobRow, found bool, err error) {
	found, err = t.get(&old, sqlFindWaiting, row.Class, row.LogicalDate, row.ID)
	return old, found, err
}

// skip ends row, in memory, because of another job.
func (t *tx) skip(row *jobRow, e lanegate.Event, other, reason string) error {
	if err := row.move(e); err != nil {
		return err
	}
	row.BlockedBy, row.Reason, row.FinishedAt, row.Due = other, reason, at(t.at), false
	return nil
}

// replaced ends a waiting job whose place another one has inherited.
func (t *tx) replaced(old jobRow, by string) error {
	if err := t.skip(&old, lanegate.EventCoalesce, by, fmt.Sprintf("coalesced: the newer job %s took its place", by)); err != nil {
		return err
	}
	return t.updateJob(old, lanegate.StateQueued)
}

// maxPromoted bounds how many jobs one admission makes due. More are left for the
// next one, which Admitted.NextDue then asks for at once.
const maxPromoted = 1000

const (
	sqlListReady = `
SELECT ` + jobColumns + `
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due AND ready_at <= $1
 ORDER BY ready_at, place_at, place_id
 LIMIT $2`
	sqlMakeDue = `
UPDATE jobs SET due = $1
 WHERE id = $2 AND state = 'queued'`
	sqlNextReady = `
SELECT ready_at
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due
 ORDER BY ready_at
 LIMIT 1`
)

// promote makes due what is ready, in the order in which it became so, and
// decides the overlap of jobs that had a run_at. It returns the jobs that ended.
func (t *tx) promote() (skipped []string, err error) {
	ready, err := t.s.d.ready(t, maxPromoted)
	if err != nil {
		return nil, fmt.Errorf("list what became due: %w", err)
	}
	if len(ready) == 0 {
		return nil, nil
	}
	cfg, err := t.config()
	if err != nil {
		return nil, err
	}
	for _, row := range ready {
		class, _ := cfg.class(row.Class)
		gone, err := t.makeDue(class.Overlap, row)
		if err != nil {
			return nil, fmt.Errorf("make job %s due: %w", row.ID, err)
		}
		if gone != "" {
			skipped = append(skipped, gone)
		}
	}
	return skipped, nil
}

// listReady is dialect.ready where a transaction is alone.
func (t *tx) listReady(max int) (ready []jobRow, err error) {
	err = t.all(&ready, sqlListReady, at(t.at), max)
	return ready, err
}

// makeDue puts one job into its class's line. One that has had an attempt, or was
// made up by a verification run, only returns to its place. gone is the job that
// the overlap policy ended, itself or another.
func (t *tx) makeDue(policy lanegate.Overlap, row jobRow) (gone string, err error) {
	if row.Attempts == 0 && row.Verification == "" {
		switch policy {
		case lanegate.OverlapSkip:
			// Jobs behind it in this very pass are not in its way: it comes first.
			other, doing, err := t.inTheWay(&row, false)
			if err != nil {
				return "", err
			}
			if other != "" {
				// By the table of moves this is the same move as a coalescing.
				if err := t.skip(&row, lanegate.EventCoalesce, other, fmt.Sprintf("skipped as it became due: job %s of this class %s", other, doing)); err != nil {
					return "", err
				}
				return row.ID, t.updateJob(row, lanegate.StateQueued)
			}
		case lanegate.OverlapCoalesce:
			old, found, err := t.waiting(&row)
			if err != nil {
				return "", err
			}
			if found {
				return t.coalesce(old, row)
			}
		}
	}
	return "", t.one(sqlMakeDue, nil, true, row.ID)
}

// coalesce leaves the newer of two jobs in line, with the smaller of their
// places, and ends the older. Newer is the one that became due later.
func (t *tx) coalesce(a, b jobRow) (gone string, err error) {
	newer, older := a, b
	if b.arrival().After(a.arrival()) || b.arrival().Equal(a.arrival()) && b.ID > a.ID {
		newer, older = b, a
	}
	if older.before(newer) {
		newer.PlaceAt, newer.PlaceID, newer.FirstAt = older.PlaceAt, older.PlaceID, older.FirstAt
	}
	newer.Due = true
	if err := t.replaced(older, newer.ID); err != nil {
		return "", err
	}
	return older.ID, t.updateJob(newer, lanegate.StateQueued)
}

// arrival is when the job first became due.
func (r jobRow) arrival() time.Time {
	if r.RunAt.t.After(r.SubmittedAt.t) {
		return r.RunAt.t
	}
	return r.SubmittedAt.t
}

// before is the order of a line, as in admission.Before.
func (r jobRow) before(o jobRow) bool {
	switch {
	case !r.FirstAt.t.Equal(o.FirstAt.t):
		return r.FirstAt.t.Before(o.FirstAt.t)
	case !r.PlaceAt.t.Equal(o.PlaceAt.t):
		return r.PlaceAt.t.Before(o.PlaceAt.t)
	}
	return r.PlaceID < o.PlaceID
}

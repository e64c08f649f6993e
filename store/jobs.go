package store

import (
	"context"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlGetBytes = `
SELECT p.payload, r.result
  FROM job_payloads AS p
  LEFT JOIN job_results AS r ON r.job_id = p.job_id
 WHERE p.job_id = $1`
	sqlListAttempts = `
SELECT ` + attemptColumns + `
  FROM attempts
 WHERE job_id = $1
 ORDER BY number`
	sqlGetOutput = `
SELECT coalesce(o.head, '') AS head, coalesce(o.tail, '') AS tail,
       coalesce(o.bytes, 0) AS bytes, coalesce(o.dropped, 0) AS dropped
  FROM attempts AS a
  LEFT JOIN attempt_outputs AS o ON o.job_id = a.job_id AND o.number = a.number
 WHERE a.job_id = $1 AND a.number = $2`
)

// getJob reads a job without a lock; ErrJobNotFound.
func (t *tx) getJob(id string) (jobRow, error) {
	var row jobRow
	found, err := t.get(&row, sqlGetJob, id)
	if err == nil && !found {
		err = lanegate.ErrJobNotFound
	}
	return row, err
}

// Job implements service.Store.
func (s *Store) Job(ctx context.Context, id string) (service.JobDetail, error) {
	var d service.JobDetail
	err := s.inRead(ctx, "read job "+id, func(t *tx) error {
		row, err := t.getJob(id)
		if err != nil {
			return err
		}
		var bytes struct {
			Payload []byte `db:"payload"`
			Result  []byte `db:"result"`
		}
		if _, err := t.get(&bytes, sqlGetBytes, id); err != nil {
			return err
		}
		d = service.JobDetail{Job: row.job(), Payload: bytes.Payload, Result: bytes.Result}
		return nil
	})
	return d, err
}

// Attempts implements service.Store, in the order of their numbers.
func (s *Store) Attempts(ctx context.Context, job string) ([]lanegate.Attempt, error) {
	var rows []attemptRow
	err := s.inRead(ctx, "list the attempts of job "+job, func(t *tx) error {
		if _, err := t.getJob(job); err != nil {
			return err
		}
		return t.all(&rows, sqlListAttempts, job)
	})
	if err != nil {
		return nil, err
	}
	attempts := make([]lanegate.Attempt, len(rows))
	for i, r := range rows {
		attempts[i] = r.attempt()
	}
	return attempts, nil
}

// Output implements service.Store; it is empty for an attempt that printed
// nothing or is in flight.
func (s *Store) Output(ctx context.Context, job string, n int) (lanegate.Output, error) {
	var row struct {
		Head    string `db:"head"`
		Tail    string `db:"tail"`
		Bytes   int64  `db:"bytes"`
		Dropped int64  `db:"dropped"`
	}
	err := s.inRead(ctx, "read the output of job "+job, func(t *tx) error {
		found, err := t.get(&row, sqlGetOutput, job, n)
		if err != nil || found {
			return err
		}
		if _, err := t.getJob(job); err != nil {
			return err
		}
		return lanegate.ErrAttemptNotFound
	})
	return lanegate.Output{Head: row.Head, Tail: row.Tail, Bytes: row.Bytes, Dropped: row.Dropped}, err
}

// act changes one job under its lock.
func (s *Store) act(ctx context.Context, what, id string, fn func(t *tx, row *jobRow) error) (lanegate.Job, error) {
	var row jobRow
	err := s.inTx(ctx, what+" job "+id, func(t *tx) (err error) {
		if row, err = t.lockJob(id); err != nil {
			return err
		}
		return fn(t, &row)
	})
	if err != nil {
		return lanegate.Job{}, err
	}
	return row.job(), nil
}

const sqlCancelAttempt = `
UPDATE attempts SET cancel_requested = $1
 WHERE job_id = $2 AND outcome IS NULL`

// Cancel implements service.Store. Asking twice for a running job is no error.
func (s *Store) Cancel(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "cancel", job, func(t *tx, row *jobRow) error {
		from := row.State
		switch from {
		case lanegate.StateQueued:
			if err := row.move(lanegate.EventCancel); err != nil {
				return err
			}
			row.Reason, row.FinishedAt = "cancelled by "+actor, at(t.at)
		case lanegate.StateRunning:
			return t.askToEnd(row, actor)
		default:
			return lanegate.ErrJobFinal
		}
		return t.updateJob(*row, from)
	})
}

// askToEnd asks a running job, which is locked, to end; a second time it changes nothing.
func (t *tx) askToEnd(row *jobRow, actor string) error {
	if row.CancelRequested {
		return nil
	}
	row.CancelRequested, row.Reason = true, "asked to end by "+actor
	if err := t.one(sqlCancelAttempt, nil, true, row.ID); err != nil {
		return err
	}
	return t.updateJob(*row, lanegate.StateRunning)
}

// Retry implements service.Store. A run that a verification made up is never
// repeated; a job whose class was deleted is ErrUnknownClass.
func (s *Store) Retry(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "retry", job, func(t *tx, row *jobRow) error {
		if row.Verification != "" {
			return lanegate.ErrNotRetryable.With("job %s was made up by verification run %s and is never repeated; start another verification run instead.", row.ID, row.Verification)
		}
		if row.State != lanegate.StateFailed {
			return lanegate.ErrNotRetryable
		}
		return t.revive(row, "retried by "+actor)
	})
}

// RunNext implements service.Store. Of several such jobs the one that was asked
// for first goes first.
func (s *Store) RunNext(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "run next", job, func(t *tx, row *jobRow) error {
		if row.Verification != "" {
			return lanegate.ErrNotQueued.With("job %s was made up by verification run %s and never stands in a line.", row.ID, row.Verification)
		}
		if row.State != lanegate.StateQueued {
			return lanegate.ErrNotQueued
		}
		row.FirstAt = at(t.at)
		if err := t.updateJob(*row, lanegate.StateQueued); err != nil {
			return err
		}
		return t.appendHistory(service.HistoryEvent{
			Subject: "class:" + row.Class, Event: "run_next", Actor: actor, Evidence: map[string]any{"job": row.ID},
		})
	})
}

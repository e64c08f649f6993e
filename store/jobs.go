package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// defaultLimit is how many rows a list has when nobody says.
const defaultLimit = 100

// Jobs implements service.Store.
func (s *Store) Jobs(ctx context.Context, f service.JobFilter) ([]lanegate.Job, error) {
	var rows []jobRow
	err := s.inRead(ctx, "list jobs", func(t *tx) error {
		q, args := listJobs(f)
		return t.all(&rows, q, args...)
	})
	if err != nil {
		return nil, err
	}
	jobs := make([]lanegate.Job, len(rows))
	for i, r := range rows {
		jobs[i] = r.job()
	}
	return jobs, nil
}

// listJobs puts the statement for a filter together, from fixed parts.
func listJobs(f service.JobFilter) (string, []any) {
	var p params
	var where []string
	and := func(format string, args ...any) { where = append(where, fmt.Sprintf(format, args...)) }
	if f.Before != "" {
		and("id < %s", p.add(f.Before))
	}
	if f.Classes != nil {
		if len(f.Classes) == 0 {
			and("1 = 0") // of no class, not of all
		} else {
			and("%sclass IN %s", plainUnless(len(f.Classes) == 1), list(&p, f.Classes))
		}
	}
	if len(f.States) > 0 {
		// Open jobs are few among all; finished ones are not, and come by id anyway.
		open := !slices.ContainsFunc(f.States, lanegate.State.Final)
		and("%sstate IN %s", plainUnless(open || len(f.States) == 1), list(&p, f.States))
	}
	if f.Lane != "" {
		lane := p.add(f.Lane)
		and("((state = 'queued' AND class IN (SELECT c.id FROM job_classes AS c WHERE c.lane = %s)) OR (state <> 'queued' AND route_lane = %s))", lane, lane)
	}
	if f.Client != "" {
		and("client = %s", p.add(f.Client))
	}
	if f.SubmittedFrom != nil {
		and("submitted_at >= %s", p.add(atPtr(f.SubmittedFrom)))
	}
	if f.SubmittedTo != nil {
		and("submitted_at < %s", p.add(atPtr(f.SubmittedTo)))
	}
	if !f.Verification {
		and("verification = ''")
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	if len(where) == 0 {
		and("1 = 1")
	}
	return "SELECT " + jobColumns + "\n  FROM jobs\n WHERE " + strings.Join(where, " AND ") +
		"\n ORDER BY id DESC\n LIMIT " + p.add(limit), p
}

// plainUnless keeps a column's index out of a list unless it is worth its while.
func plainUnless(indexed bool) string {
	if indexed {
		return ""
	}
	return "{{plain}}"
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
			if row.CancelRequested {
				return nil
			}
			row.CancelRequested, row.Reason = true, "asked to end by "+actor
			if err := t.one(sqlCancelAttempt, nil, true, job); err != nil {
				return err
			}
		default:
			return lanegate.ErrJobFinal
		}
		return t.updateJob(*row, from)
	})
}

// Retry implements service.Store. A run that a verification made up is never
// repeated; a job whose class was deleted is ErrUnknownClass.
func (s *Store) Retry(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "retry", job, func(t *tx, row *jobRow) error {
		if row.State != lanegate.StateFailed || row.Verification != "" {
			return lanegate.ErrNotRetryable
		}
		return t.revive(row, "retried by "+actor)
	})
}

// RunNext implements service.Store. Of several such jobs the one that was asked
// for first goes first.
func (s *Store) RunNext(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "run next", job, func(t *tx, row *jobRow) error {
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

// Ahead implements service.Store.
func (s *Store) Ahead(ctx context.Context, job lanegate.Job, classes []string, max int) (service.Ahead, error) {
	var ahead service.Ahead
	if len(classes) == 0 {
		return ahead, nil
	}
	first := never
	if job.FirstAt != nil {
		first = at(*job.FirstAt)
	}
	var p params
	from := "\n  FROM jobs {{use jobs_line_idx}}\n WHERE state = 'queued' AND due AND class IN " + list(&p, classes) +
		" AND (first_at, place_at, place_id) < (" + p.add(first) + ", " + p.add(at(job.PlaceAt)) + ", " + p.add(job.PlaceID) + ")"
	count := p
	err := s.inRead(ctx, "count the jobs ahead of "+job.ID, func(t *tx) error {
		if _, err := t.get(&ahead.Count, "SELECT count(*)"+from, count...); err != nil {
			return err
		}
		if ahead.Count == 0 || max <= 0 {
			return nil
		}
		return t.all(&ahead.First, "SELECT id"+from+"\n ORDER BY first_at, place_at, place_id\n LIMIT "+p.add(max), p...)
	})
	return ahead, err
}

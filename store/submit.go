package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// submission is one job that a caller hands in, and its answer.
type submission struct {
	service.NewJob
	res  service.Submitted
	made bool // res is the answer
}

// Submit implements service.Store.
func (s *Store) Submit(ctx context.Context, n service.NewJob) (service.Submitted, error) {
	it := &item{submits: []submission{{NewJob: n}}}
	it.run = func(t *tx) (err error) {
		it.submits[0].res, err = t.submit(n)
		return err
	}
	if err := s.group.do(ctx, it); err != nil {
		return service.Submitted{}, err
	}
	return it.submits[0].res, nil
}

// SubmitBatch implements service.Store. The same key twice in a batch is a replay
// of the first, as it would be one after the other.
func (s *Store) SubmitBatch(ctx context.Context, jobs []service.NewJob) ([]service.Submitted, error) {
	it := &item{submits: make([]submission, len(jobs))}
	for i, n := range jobs {
		it.submits[i].NewJob = n
	}
	it.run = func(t *tx) error { return t.submitSingly(it.submits) }
	if err := s.group.do(ctx, it); err != nil {
		return nil, err
	}
	results := make([]service.Submitted, len(jobs))
	for i, sub := range it.submits {
		results[i] = sub.res
	}
	return results, nil
}

// submitSingly accepts those of a batch that are not accepted yet; one that fails
// fails alone.
func (t *tx) submitSingly(batch []submission) error {
	for i := range batch {
		sub := &batch[i]
		if sub.made {
			continue
		}
		err := t.savepoint("batch_item", func() (err error) {
			sub.res, err = t.submit(sub.NewJob)
			return err
		})
		if err = t.s.mapped(context.Background(), err); faultConflict.is(err) || faultAway.is(err) {
			return err // no answer about one item, but about the database
		} else if err != nil {
			sub.res = service.Submitted{Err: err}
		}
	}
	return nil
}

const (
	sqlGetKey = `
SELECT digest, job_id
  FROM idempotency_keys
 WHERE client = $1 AND key = $2`
	sqlInsertKey = `
INSERT INTO idempotency_keys (client, key, digest, job_id)
VALUES ($1, $2, $3, $4)`
	sqlInsertJob = `
INSERT INTO jobs (id, class, client, idempotency_key, logical_date, run_at, state, reason, submitted_at, ready_at, due,
       place_at, place_id, first_at, blocked_by, finished_at, ring_at, worker)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`
	sqlInsertPayload = `
INSERT INTO job_payloads (job_id, payload)
VALUES ($1, $2)`
)

// submit accepts one job. Its class's row is locked, so no other submission of
// the class decides its overlap at the same time.
func (t *tx) submit(n service.NewJob) (service.Submitted, error) {
	if n.Key != "" {
		res, found, err := t.replay(n)
		if found || err != nil {
			return res, err
		}
	}
	cfg, err := t.config()
	if err != nil {
		return service.Submitted{}, err
	}
	class, ok := cfg.class(n.Class)
	if !ok {
		return service.Submitted{}, unknownClass(n.Class)
	}
	if lock := t.s.d.lockClass; lock != nil {
		if err := lock(t, n.Class); err != nil {
			return service.Submitted{}, err
		}
	}
	row := newRow(n, t.at)
	old, err := t.overlap(class.Overlap, &row)
	if err != nil {
		return service.Submitted{}, err
	}
	if err := t.insertJob(row, n); err != nil {
		return service.Submitted{}, err
	}
	return service.Submitted{Job: row.job(), Lane: class.Lane, Coalesced: old}, nil
}

func unknownClass(id string) error {
	return lanegate.ErrUnknownClass.With("job class %q is not registered; nothing was enqueued. Register it with PUT /job-classes/%s or in the config file, or configure default_target.", id, id)
}

// newRow is the row of a job that nothing stands in the way of, submitted at that
// time of the database.
func newRow(n service.NewJob, submitted time.Time) jobRow {
	now := at(submitted)
	row := jobRow{
		ID: n.ID, Class: n.Class, Client: n.Client, Key: n.Key, LogicalDate: n.LogicalDate, RunAt: atPtr(n.RunAt),
		State: lanegate.StateQueued, SubmittedAt: now, ReadyAt: now, PlaceAt: now, PlaceID: n.ID, FirstAt: never, Due: true, Worker: n.Worker,
	}
	if row.RunAt.t.After(now.t) {
		row.ReadyAt, row.PlaceAt, row.Due = row.RunAt, row.RunAt, false
	}
	return row
}

// jobArgs are the arguments of sqlInsertJob.
func (t *tx) jobArgs(r jobRow) []any {
	return []any{r.ID, r.Class, r.Client, r.Key, r.LogicalDate, r.RunAt, r.State, r.Reason,
		r.SubmittedAt, r.ReadyAt, r.Due, r.PlaceAt, r.PlaceID, r.FirstAt, r.BlockedBy, r.FinishedAt, t.ringAt(r), r.Worker}
}

func (t *tx) insertJob(r jobRow, n service.NewJob) error {
	if err := t.one(sqlInsertJob, nil, t.jobArgs(r)...); err != nil {
		return fmt.Errorf("insert job %s: %w", r.ID, err)
	}
	if err := t.one(sqlInsertPayload, nil, r.ID, blob(n.Payload)); err != nil {
		return fmt.Errorf("insert the payload of job %s: %w", r.ID, err)
	}
	if n.Origin != nil {
		if err := t.insertOrigin(r.ID, *n.Origin, n.Payload); err != nil {
			return err
		}
	}
	if n.Key == "" {
		return nil
	}
	switch err := t.one(sqlInsertKey, nil, n.Client, n.Key, blob(n.Digest), n.ID); {
	case err != nil && t.s.d.sort(err) == faultDuplicate:
		// Entered by another transaction since it was looked for, which sqlPGAccept may be.
		return &faultError{kind: faultConflict, text: fmt.Sprintf("insert the key of job %s: %v", r.ID, err)}
	case err != nil:
		return fmt.Errorf("insert the key of job %s: %w", r.ID, err)
	}
	return nil
}

// blob keeps empty bytes apart from NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

type keyRow struct {
	Digest []byte `db:"digest"`
	Job    string `db:"job_id"`
}

// replay answers for a key that was used before: the job as it stands, or
// ErrKeyReused for another body.
func (t *tx) replay(n service.NewJob) (res service.Submitted, found bool, err error) {
	var key keyRow
	if found, err = t.get(&key, sqlGetKey, n.Client, n.Key); err != nil || !found {
		return res, found, err
	}
	if !bytes.Equal(key.Digest, n.Digest) {
		return res, true, lanegate.ErrKeyReused.Detail("job", key.Job)
	}
	row, err := t.getJob(key.Job)
	if err == nil && n.RetryFailed && row.State == lanegate.StateFailed {
		row, err = t.lockJob(key.Job)
	}
	if errors.Is(err, lanegate.ErrJobNotFound) {
		// Pruned since the key was read; then the key is gone, too, and free again.
		if found, err = t.get(&key, sqlGetKey, n.Client, n.Key); err != nil || !found {
			return res, false, err
		}
		return res, true, &faultError{kind: faultBug, text: "job " + key.Job + " of a known key is missing"}
	}
	if err != nil {
		return res, true, fmt.Errorf("job %s of a known key: %w", key.Job, err)
	}
	res.Replayed = true
	if n.RetryFailed && row.State == lanegate.StateFailed {
		if err := t.revive(&row, "retried by a repeated submission"); err != nil {
			return service.Submitted{}, true, err
		}
		res.Revived = true
	}
	res.Job = row.job()
	if cfg, err := t.config(); err != nil {
		return service.Submitted{}, true, err
	} else if class, ok := cfg.class(row.Class); ok {
		res.Lane = class.Lane
	}
	return res, true, nil
}

// revive queues a failed job again, at its place and at once, with one more
// permitted failure and one more permitted loss.
func (t *tx) revive(row *jobRow, reason string) error {
	cfg, err := t.config()
	if err != nil {
		return err
	}
	class, ok := cfg.class(row.Class)
	if !ok {
		return unknownClass(row.Class)
	}
	if err := row.move(lanegate.EventRevive); err != nil {
		return err
	}
	row.ExtraAttempts = max(0, row.Failures+1-class.WithDefaults().MaxAttempts)
	row.Losses = min(row.Losses, lanegate.MaxLosses-1)
	row.Deferrals, row.Interruptions = 0, 0
	row.CancelRequested = false
	row.Reason = reason
	t.requeue(row, at(t.at))
	return t.updateJob(*row, lanegate.StateFailed)
}

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// together makes at once the changes of all items that need no decision between
// them. They share their statements, so there is no savepoint to return to: a
// fault is a togetherError, unless it is the database's.
func (t *tx) together(items []*item) error {
	err := t.s.guarded(t.ctx, func() error {
		if err := t.submitTogether(items); err != nil {
			return err
		}
		return t.endTogether(items)
	})
	if err == nil || t.s.fatal(t.ctx, err) {
		return err
	}
	return &togetherError{err}
}

// fatal says whether err, of a statement, is no answer about its rows but about the
// database, the connection or the time there was.
func (s *Store) fatal(ctx context.Context, err error) bool {
	kind := s.d.sort(err)
	return kind == faultAway || kind == faultConflict || ctx.Err() != nil || s.spent(err)
}

// togetherError: what should be done for many items at once can't be, and nothing
// of the transaction can stand. One by one, only those fail that must.
type togetherError struct{ error }

func (e *togetherError) Unwrap() error { return e.error }

// Bounds of one statement's rows, so that no array becomes too large to send.
const (
	maxRows  = 4096
	maxBytes = 16 << 20
)

// submitTogether accepts what nothing stands in the way of: jobs of known classes
// that take others as they come, under keys that are new.
func (t *tx) submitTogether(items []*item) error {
	cfg, err := t.config()
	if err != nil {
		return err
	}
	var plain []*submission
	keys := map[lockKey]bool{}
	for _, it := range items {
		for i := range it.submits {
			sub := &it.submits[i]
			if key := (lockKey{sub.Client, sub.Key}); sub.Key != "" {
				if keys[key] {
					continue // a replay of the first
				}
				keys[key] = true
			}
			if t.isPlain(cfg, sub.NewJob) {
				plain = append(plain, sub)
			}
		}
	}
	if plain, err = t.withoutKnown(plain); err != nil {
		return err
	}
	for len(plain) > 0 {
		n, bytes := 0, 0
		for n < len(plain) && n < maxRows && (n == 0 || bytes+len(plain[n].Payload) <= maxBytes) {
			bytes += len(plain[n].Payload)
			n++
		}
		if err := t.insertJobs(plain[:n]); err != nil {
			return err
		}
		plain = plain[n:]
	}
	return nil
}

// isPlain says whether a job is accepted as it is, whatever else its class has.
func (t *tx) isPlain(cfg *configState, n service.NewJob) bool {
	class, ok := cfg.class(n.Class)
	if !ok || t.s.d.lockClass != nil && !t.classes[n.Class] {
		return false
	}
	if class.Overlap == lanegate.OverlapSkip || class.Overlap == lanegate.OverlapCoalesce {
		return n.RunAt != nil && n.RunAt.After(t.at) // decided when it becomes due
	}
	return true
}

// withoutKnown leaves out the submissions whose key was used before.
func (t *tx) withoutKnown(subs []*submission) ([]*submission, error) {
	if t.known == nil {
		t.known = map[lockKey]bool{}
		for _, sub := range subs {
			if sub.Key == "" {
				continue
			}
			var key keyRow
			found, err := t.get(&key, sqlGetKey, sub.Client, sub.Key)
			if err != nil {
				return nil, fmt.Errorf("look for a known key: %w", err)
			}
			t.known[lockKey{sub.Client, sub.Key}] = found
		}
	}
	return slices.DeleteFunc(subs, func(sub *submission) bool {
		return sub.Key != "" && t.known[lockKey{sub.Client, sub.Key}]
	}), nil
}

// One statement for the three tables that a job enters: a round trip less for each.
// Its rows are those of newRow: what is the same in all of them is not sent.
const sqlPGInsertJobs = `
  WITH w AS MATERIALIZED (
    SELECT *
      FROM {{rows text text text text text timestamptz timestamptz timestamptz text bytea bytea}}
        AS w (id, class, client, idempotency_key, logical_date, run_at, ready_at, ring_at, worker, payload, digest)),
       j AS (
    INSERT INTO jobs (id, class, client, idempotency_key, logical_date, run_at, state, submitted_at, ready_at, due,
           place_at, place_id, ring_at, worker)
    SELECT id, class, client, idempotency_key, logical_date, run_at, 'queued', CAST($12 AS timestamptz), ready_at, ready_at <= $12,
           ready_at, id, ring_at, worker
      FROM w),
       k AS (
    INSERT INTO idempotency_keys (client, key, digest, job_id)
    SELECT client, idempotency_key, digest, id
      FROM w
     WHERE idempotency_key <> ''
     ORDER BY client COLLATE "C", idempotency_key COLLATE "C")
INSERT INTO job_payloads (job_id, payload)
SELECT id, payload
  FROM w`

// insertJobs accepts plain submissions.
func (t *tx) insertJobs(subs []*submission) error {
	cfg, err := t.config()
	if err != nil {
		return err
	}
	rows := make([][]any, len(subs))
	for i, sub := range subs {
		row := newRow(sub.NewJob, t.at)
		class, _ := cfg.class(sub.Class)
		sub.res, sub.made = service.Submitted{Job: row.job(), Lane: class.Lane}, true
		if !t.s.d.bulk {
			if err := t.insertJob(row, sub.NewJob); err != nil {
				return err
			}
			continue
		}
		rows[i] = []any{row.ID, row.Class, row.Client, row.Key, row.LogicalDate, row.RunAt, row.ReadyAt, t.ringAt(row), row.Worker,
			blob(sub.Payload), blob(sub.Digest)}
	}
	if !t.s.d.bulk {
		return nil
	}
	args, err := columnsOf(sqlPGInsertJobs, rows)
	if err != nil {
		return err
	}
	n, err := t.exec(sqlPGInsertJobs, append(args, at(t.at))...)
	if err == nil && n != int64(len(rows)) {
		err = &faultError{kind: faultBug, text: fmt.Sprintf("%d jobs inserted instead of %d", n, len(rows))}
	}
	if err != nil {
		return fmt.Errorf("insert jobs: %w", err)
	}
	return t.insertOrigins(subs)
}

// insertOrigins keeps the messages that jobs came in with, for those that came in one.
func (t *tx) insertOrigins(subs []*submission) error {
	var rows [][]any
	for _, sub := range subs {
		if sub.Origin != nil {
			rows = append(rows, originArgs(sub.ID, *sub.Origin, sub.Payload))
		}
	}
	if err := t.each(bulkInsertMessage, rows); err != nil {
		return fmt.Errorf("insert messages: %w", err)
	}
	return nil
}

var (
	bulkInsertMessage = bulkSQL{
		one: sqlInsertMessage,
		many: `
INSERT INTO job_messages (job_id, queue, message_id, group_id, attributes, body)
SELECT * FROM {{rows text text text text json bytea}}`,
	}
	// Attempts of verification runs leave more behind, and are ended one by one.
	bulkEndAttempt = bulkSQL{
		one: `
UPDATE attempts SET outcome = $1, ended_at = $2, duration = $3, estimated = false, error = $4, exit_code = $5, signal = $6, status = $7
 WHERE job_id = $8 AND number = $9 AND token = $10 AND outcome IS NULL AND verification = ''
RETURNING ` + attemptColumns,
		many: `
UPDATE attempts SET outcome = w.o, ended_at = w.e, duration = w.d, estimated = false, error = w.x, exit_code = w.c, signal = w.s, status = w.h
  FROM {{rows text timestamptz bigint text bigint text bigint text bigint text}} AS w (o, e, d, x, c, s, h, j, n, t)
 WHERE job_id = w.j AND number = w.n AND token = w.t AND coalesce(outcome, '') = '' AND verification = ''
RETURNING ` + attemptColumns,
	}
	bulkUpdateJob = bulkSQL{
		one: sqlUpdateJob,
		many: `
UPDATE jobs SET state = w.state, reason = w.reason, ready_at = w.ready, due = w.due, place_at = w.place, place_id = w.pid, first_at = w.first,
       failures = w.f, extra_attempts = w.x, losses = w.l, deferrals = w.d, interruptions = w.i,
       blocked_by = w.b, cancel_requested = w.c, finished_at = w.finished, ring_at = w.ring, rings = 0
  FROM {{rows text text timestamptz boolean timestamptz text timestamptz bigint bigint bigint bigint bigint text boolean timestamptz timestamptz text text bigint}}
    AS w (state, reason, ready, due, place, pid, first, f, x, l, d, i, b, c, finished, ring, j, was, n)
 WHERE id = w.j AND coalesce(jobs.state, '') = w.was AND attempts = w.n`,
	}
	bulkSaveResult = bulkSQL{
		one: sqlSaveResult,
		many: `
INSERT INTO job_results (job_id, result)
SELECT * FROM {{rows text bytea}}
    ON CONFLICT (job_id) DO UPDATE SET result = excluded.result`,
	}
	bulkInsertOutput = bulkSQL{
		one: sqlInsertOutput,
		many: `
INSERT INTO attempt_outputs (job_id, number, head, tail, bytes, dropped)
SELECT * FROM {{rows text bigint text text bigint bigint}}`,
	}
	bulkInsertRun = bulkSQL{
		one: sqlInsertRun,
		many: `
INSERT INTO run_log (job_id, attempt, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at,
       duration, estimated, outcome, verification, source)
SELECT w.*, 'own'
  FROM {{rows text bigint text text text json timestamptz timestamptz timestamptz timestamptz bigint boolean text text}} AS w`,
	}
	bulkNoteSuccess = bulkSQL{
		one: sqlNoteSuccess,
		many: `
INSERT INTO class_successes (class, ended_at)
SELECT * FROM {{rows text timestamptz}}
    ON CONFLICT (class) DO UPDATE SET ended_at = greatest(excluded.ended_at, class_successes.ended_at)`,
	}
)

// endTogether records the outcomes that leave nothing behind but themselves:
// those of ordinary attempts that have none yet, without evidence of trouble. What it
// writes for a success, sqlPGSucceed writes too.
func (t *tx) endTogether(items []*item) error {
	ends, jobs, err := t.plainEnds(items)
	if err != nil || len(ends) == 0 {
		return err
	}
	rows := make([][]any, 0, len(ends))
	for _, e := range ends {
		rows = append(rows, []any{e.Outcome, at(t.at), e.Duration, text(e.Error), e.ExitCode, text(e.Signal), e.Status,
			e.fence.Job, e.fence.Number, e.fence.Token})
	}
	var ended []attemptRow
	if err := eachReturning(t, &ended, bulkEndAttempt, rows); err != nil {
		return fmt.Errorf("end attempts: %w", err)
	}
	byJob := make(map[string]attemptRow, len(ended))
	for _, a := range ended {
		byJob[a.Job] = a
	}
	ends = slices.DeleteFunc(ends, func(e *ending) bool { _, ok := byJob[e.fence.Job]; return !ok })
	var updates [][]any
	for _, e := range ends {
		job := jobs[e.fence.Job]
		from := job.State
		outcome := e.Ending
		outcome.Error = text(outcome.Error)
		settled, err := t.settled(&job, outcome)
		if err != nil {
			return err
		}
		updates = append(updates, t.updateArgs(job, from))
		jobs[job.ID] = job
		e.res, e.made = service.Ended{Attempt: byJob[job.ID].attempt(), Job: job.job(), Settlement: settled}, true
	}
	if err := t.each(bulkUpdateJob, updates); err != nil {
		return fmt.Errorf("settle jobs: %w", err)
	}
	return t.keepTogether(ends, jobs, byJob)
}

// plainEnds lists the outcomes that may be recorded together, one for each job,
// and the jobs, which are locked.
func (t *tx) plainEnds(items []*item) (ends []*ending, jobs map[string]jobRow, err error) {
	jobs = map[string]jobRow{}
	for _, it := range items {
		e := it.end
		if e == nil || e.Duration == 0 || len(e.Trouble) > 0 || len(e.Measured) > 0 {
			continue
		}
		if _, taken := jobs[e.fence.Job]; taken {
			continue
		}
		job, ok := t.locked[e.fence.Job]
		if !ok {
			switch job, err = t.lockJob(e.fence.Job); {
			case errors.Is(err, lanegate.ErrJobNotFound):
				continue
			case err != nil:
				return nil, nil, err
			}
		}
		if job.State != lanegate.StateRunning {
			continue // a late write
		}
		jobs[job.ID] = job
		ends = append(ends, e)
	}
	return ends, jobs, nil
}

// keepTogether keeps what the ended attempts leave: results, output, run log rows,
// successes.
func (t *tx) keepTogether(ends []*ending, jobs map[string]jobRow, attempts map[string]attemptRow) error {
	var results, outputs, runs [][]any
	for _, e := range ends {
		job, a := jobs[e.fence.Job], attempts[e.fence.Job]
		if e.Result != nil {
			results = append(results, []any{a.Job, e.Result})
		}
		if o := e.Output; o != (lanegate.Output{}) {
			outputs = append(outputs, []any{a.Job, a.Number, text(o.Head), text(o.Tail), o.Bytes, o.Dropped})
		}
		runs = append(runs, runArgs(job, a))
		if isSuccess(job, a) {
			*t.successes = append(*t.successes, success{a.Class, a.EndedAt})
		}
	}
	if err := t.each(bulkSaveResult, results); err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	if err := t.each(bulkInsertOutput, outputs); err != nil {
		return fmt.Errorf("keep outputs: %w", err)
	}
	if err := t.each(bulkInsertRun, runs); err != nil {
		return fmt.Errorf("log attempts: %w", err)
	}
	return nil
}

// success is the end of a good run of a class.
type success struct {
	class string
	at    dbTime
}

// noteSuccesses remembers the latest of them for each class, in the order of the
// classes, as their rows are locked.
func (t *tx) noteSuccesses(list []success) error {
	latest := map[string]dbTime{}
	for _, s := range list {
		if s.at.t.After(latest[s.class].t) {
			latest[s.class] = s.at
		}
	}
	rows := make([][]any, 0, len(latest))
	for class, ended := range latest {
		rows = append(rows, []any{class, ended})
	}
	slices.SortFunc(rows, func(a, b []any) int { return cmp.Compare(a[0].(string), b[0].(string)) })
	if err := t.each(bulkNoteSuccess, rows); err != nil {
		return fmt.Errorf("note the successes of classes: %w", err)
	}
	return nil
}

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

type attemptRow struct {
	Job             string                 `db:"job_id"`
	Number          int                    `db:"number"`
	Token           string                 `db:"token"`
	Class           string                 `db:"class"`
	Lane            string                 `db:"lane"`
	RouteReason     string                 `db:"route_reason"`
	RouteWanted     string                 `db:"route_wanted"`
	Units           dbJSON[lanegate.Units] `db:"units"`
	Fingerprint     string                 `db:"fingerprint"`
	Worker          string                 `db:"worker"`
	Verification    string                 `db:"verification"`
	Detached        bool                   `db:"detached"`
	HeartbeatBy     dbTime                 `db:"heartbeat_by"`
	CancelRequested bool                   `db:"cancel_requested"`
	ReadyAt         dbTime                 `db:"ready_at"`
	StartedAt       dbTime                 `db:"started_at"`
	EndedAt         dbTime                 `db:"ended_at"`
	Outcome         *lanegate.Outcome      `db:"outcome"`
	Duration        time.Duration          `db:"duration"`
	Estimated       bool                   `db:"estimated"`
	Error           string                 `db:"error"`
	ExitCode        *int                   `db:"exit_code"`
	Signal          string                 `db:"signal"`
	Status          int                    `db:"status"`
	Round           int                    `db:"verification_round"`

	Trouble  dbJSON[[]lanegate.PhraseMatch] `db:"trouble"`
	Measured dbJSON[map[string]int]         `db:"measured"`
}

const attemptColumns = `job_id, number, token, class, lane, route_reason, route_wanted, units, fingerprint, worker, verification,
       detached, heartbeat_by, cancel_requested, ready_at, started_at, ended_at, outcome, duration, estimated,
       error, exit_code, signal, status, verification_round, trouble, measured`

func (r attemptRow) attempt() lanegate.Attempt {
	a := lanegate.Attempt{
		Job: r.Job, Number: r.Number, Token: r.Token, Class: r.Class, Lane: r.Lane,
		Route: lanegate.Route{Lane: r.Lane, Reason: r.RouteReason, Wanted: r.RouteWanted},
		Units: r.Units.v, Fingerprint: r.Fingerprint, Worker: r.Worker, Verification: r.Verification,
		Detached: r.Detached, HeartbeatBy: r.HeartbeatBy.ptr(), CancelRequested: r.CancelRequested,
		ReadyAt: r.ReadyAt.t, StartedAt: r.StartedAt.t, EndedAt: r.EndedAt.ptr(),
		Duration: r.Duration, Estimated: r.Estimated,
		Error: r.Error, ExitCode: r.ExitCode, Signal: r.Signal, Status: r.Status,
		Round: r.Round, Trouble: r.Trouble.v, Measured: r.Measured.v,
	}
	if r.Outcome != nil {
		a.Outcome = *r.Outcome
	}
	return a
}

// ending is one outcome that a caller hands in, and its answer.
type ending struct {
	fence lanegate.Fence
	lanegate.Ending
	res  service.Ended
	made bool // res is the answer
}

// EndAttempt implements service.Store.
func (s *Store) EndAttempt(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (service.Ended, error) {
	it := &item{end: &ending{fence: f, Ending: e}}
	it.run = func(t *tx) (err error) {
		it.end.res, err = t.endAttempt(f, e, false)
		return err
	}
	err := s.outcomes.do(ctx, it)
	switch {
	case err == nil:
		return it.end.res, nil
	case errors.Is(err, lanegate.ErrOutcomeUnknown):
		err = errUnconfirmed.Because(err)
	}
	return service.Ended{}, err
}

const (
	sqlEndAttempt = `
UPDATE attempts SET outcome = $1, ended_at = $2, duration = $3, estimated = $4, error = $5, exit_code = $6, signal = $7, status = $8,
       trouble = $9, measured = $10
 WHERE job_id = $11 AND number = $12 AND token = $13 AND outcome IS NULL
RETURNING ` + attemptColumns
	sqlSaveResult = `
INSERT INTO job_results (job_id, result)
VALUES ($1, $2)
    ON CONFLICT (job_id) DO UPDATE SET result = excluded.result`
	sqlInsertOutput = `
INSERT INTO attempt_outputs (job_id, number, head, tail, bytes, dropped)
VALUES ($1, $2, $3, $4, $5, $6)`
)

// endAttempt records an outcome: attempt, job, result, output and run log row,
// all in t. (job, number, token) is the fence: once an attempt has an outcome,
// every other writer matches no row and gets ErrLateWrite; who repeats the very
// write that was recorded is told so.
func (t *tx) endAttempt(f lanegate.Fence, e lanegate.Ending, estimated bool) (service.Ended, error) {
	var none service.Ended
	job, err := t.lockJob(f.Job)
	if errors.Is(err, lanegate.ErrJobNotFound) {
		return none, lanegate.ErrLateWrite
	} else if err != nil {
		return none, err
	}
	e.Error = text(e.Error)
	took := e.Duration
	if took == 0 && !estimated {
		if took, err = t.sinceStart(f); err != nil {
			return none, err
		}
	}
	var row attemptRow
	found, err := t.get(&row, sqlEndAttempt, e.Outcome, at(t.at), took, estimated, e.Error, e.ExitCode,
		text(e.Signal), e.Status, dbJSON[[]lanegate.PhraseMatch]{e.Trouble}, dbJSON[map[string]int]{e.Measured},
		f.Job, f.Number, f.Token)
	if err != nil {
		return none, fmt.Errorf("end attempt %d of job %s: %w", f.Number, f.Job, err)
	}
	if !found {
		return t.repeated(f, e, job)
	}
	settled, err := t.settle(&job, e)
	if err != nil {
		return none, err
	}
	if err := t.keepBytes(f, e); err != nil {
		return none, err
	}
	if err := t.keepDigest(row, e.Result); err != nil {
		return none, err
	}
	if err := t.noteFinding(row); err != nil {
		return none, err
	}
	if err := t.logRun(job, row); err != nil {
		return none, err
	}
	return service.Ended{Attempt: row.attempt(), Job: job.job(), Settlement: settled}, nil
}

// sinceStart is how long an attempt has taken so far, for a writer that has not
// measured it; 0 when there is no such attempt.
func (t *tx) sinceStart(f lanegate.Fence) (time.Duration, error) {
	var started dbTime
	found, err := t.get(&started, sqlGetStart, f.Job, f.Number, f.Token)
	if err != nil {
		return 0, fmt.Errorf("read the start of attempt %d of job %s: %w", f.Number, f.Job, err)
	}
	if !found {
		return 0, nil
	}
	return max(0, t.at.Sub(started.t)), nil
}

const sqlGetStart = `
SELECT started_at
  FROM attempts
 WHERE job_id = $1 AND number = $2 AND token = $3`

const sqlGetAttempt = `
SELECT ` + attemptColumns + `
  FROM attempts
 WHERE job_id = $1 AND number = $2 AND token = $3`

// repeated answers a write that changed no row. A writer whose commit was not
// confirmed writes again: when all that is stored is what it reports, the first
// write was its own and stands. Outcomes that others recorded differ at least in
// the duration, which the writer alone has measured. job is locked.
func (t *tx) repeated(f lanegate.Fence, e lanegate.Ending, job jobRow) (service.Ended, error) {
	var row attemptRow
	found, err := t.get(&row, sqlGetAttempt, f.Job, f.Number, f.Token)
	if err != nil {
		return service.Ended{}, fmt.Errorf("look for the outcome of attempt %d of job %s: %w", f.Number, f.Job, err)
	}
	if !found || !row.recorded(e) {
		return service.Ended{}, lanegate.ErrLateWrite
	}
	return service.Ended{Attempt: row.attempt(), Job: job.job(), Repeated: true}, nil
}

// recorded says whether the row holds e as a writer of its own reported it. Who
// did not measure the duration, repeats the rest.
func (r attemptRow) recorded(e lanegate.Ending) bool {
	sameCode := r.ExitCode == nil && e.ExitCode == nil || r.ExitCode != nil && e.ExitCode != nil && *r.ExitCode == *e.ExitCode
	return r.Outcome != nil && *r.Outcome == e.Outcome && !r.Estimated && (r.Duration == e.Duration || e.Duration == 0) && sameCode &&
		r.Error == text(e.Error) && r.Signal == text(e.Signal) && r.Status == e.Status
}

// settle moves the job to where the outcome leads by its class's policy.
func (t *tx) settle(job *jobRow, e lanegate.Ending) (lanegate.Settlement, error) {
	from := job.State
	set, err := t.settled(job, e)
	if err != nil {
		return set, err
	}
	if err := t.updateJob(*job, from); err != nil {
		return set, fmt.Errorf("settle job %s: %w", job.ID, err)
	}
	return set, nil
}

// settled is settle in memory. A class that was deleted counts with the defaults;
// the job's place stays as it is.
func (t *tx) settled(job *jobRow, e lanegate.Ending) (lanegate.Settlement, error) {
	cfg, err := t.config()
	if err != nil {
		return lanegate.Settlement{}, err
	}
	class, _ := cfg.class(job.Class)
	spec := class.ClassSpec
	if job.Worker != "" { // whoever waited there for it knows how it ended
		spec.Repeatable = new(false)
	}
	set := lanegate.Settle(job.job(), spec, e, t.s.jitter())
	if err := job.move(set.Event); err != nil {
		return set, err
	}
	job.Reason = set.Reason
	job.Failures, job.Losses, job.Deferrals, job.Interruptions = set.Failures, set.Losses, set.Deferrals, set.Interruptions
	if job.State.Final() {
		job.FinishedAt = at(t.at)
	} else {
		t.requeue(job, at(t.at.Add(set.ReadyIn)))
	}
	return set, nil
}

// keepBytes stores the result, verbatim, and what the run printed.
func (t *tx) keepBytes(f lanegate.Fence, e lanegate.Ending) error {
	if e.Result != nil {
		if err := t.one(sqlSaveResult, nil, f.Job, e.Result); err != nil {
			return fmt.Errorf("keep the result of job %s: %w", f.Job, err)
		}
	}
	if o := e.Output; o != (lanegate.Output{}) {
		if err := t.one(sqlInsertOutput, nil, f.Job, f.Number, text(o.Head), text(o.Tail), o.Bytes, o.Dropped); err != nil {
			return fmt.Errorf("keep the output of job %s: %w", f.Job, err)
		}
	}
	return nil
}

const sqlSaveResultDigest = `
UPDATE attempts SET result_digest = $1
 WHERE job_id = $2 AND number = $3`

// keepDigest keeps what a verification run compares results by; the job's own
// result may be another attempt's later.
func (t *tx) keepDigest(a attemptRow, result []byte) error {
	if a.Verification == "" || result == nil {
		return nil
	}
	if err := t.one(sqlSaveResultDigest, nil, digestOf(result), a.Job, a.Number); err != nil {
		return fmt.Errorf("keep the result's digest of job %s: %w", a.Job, err)
	}
	return nil
}

const (
	sqlInsertRun = `
INSERT INTO run_log (job_id, attempt, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at,
       duration, estimated, outcome, verification, source)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 'own')`
	sqlNoteSuccess = `
INSERT INTO class_successes (class, ended_at)
VALUES ($1, $2)
    ON CONFLICT (class) DO UPDATE SET
       ended_at = CASE WHEN excluded.ended_at > class_successes.ended_at THEN excluded.ended_at ELSE class_successes.ended_at END`
)

// runArgs are the arguments of sqlInsertRun.
func runArgs(job jobRow, a attemptRow) []any {
	return []any{a.Job, a.Number, a.Class, a.Lane, a.Fingerprint, a.Units, job.SubmittedAt, a.ReadyAt,
		a.StartedAt, a.EndedAt, a.Duration, a.Estimated, *a.Outcome, a.Verification}
}

// isSuccess says whether an ended attempt is a success of its class's: a job that
// was made up is none; one that was due anyway is.
func isSuccess(job jobRow, a attemptRow) bool {
	return *a.Outcome == lanegate.Succeeded && job.Verification == ""
}

// logRun writes the run log row of an attempt that has just ended, and notes a
// success, in a group at its end.
func (t *tx) logRun(job jobRow, a attemptRow) error {
	if err := t.one(sqlInsertRun, nil, runArgs(job, a)...); err != nil {
		return fmt.Errorf("log attempt %d of job %s: %w", a.Number, a.Job, err)
	}
	if !isSuccess(job, a) {
		return nil
	}
	noted := success{a.Class, a.EndedAt}
	if t.successes != nil {
		*t.successes = append(*t.successes, noted)
		return nil
	}
	return t.noteSuccesses([]success{noted})
}

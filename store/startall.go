package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// start applies grants, together if that can be; a job that can't start is left
// out and doesn't stop the others. gone says whether some are not queued any more,
// which others may have seen to where transactions run side by side.
func (t *tx) start(grants []admission.Grant) (started []service.Grant, gone bool, err error) {
	if t.s.d.bulk && !t.singly {
		err = t.s.guarded(t.ctx, func() (err error) {
			started, err = t.startAtOnce(grants)
			return err
		})
		if err != nil && !t.s.fatal(t.ctx, err) {
			err = &togetherError{err}
		}
		return started, len(started) < len(grants), err
	}
	started, err = t.startSingly(grants)
	return started, false, err
}

// startSingly is start with savepoints: all of them under one, and if that can't
// be, each under its own.
func (t *tx) startSingly(grants []admission.Grant) (started []service.Grant, err error) {
	each := func(start func(admission.Grant) error) error {
		for _, g := range grants {
			if err := start(g); err != nil {
				return fmt.Errorf("start job %s: %w", g.Job, err)
			}
		}
		return nil
	}
	one := func(g admission.Grant) error {
		grant, err := t.startQueued(g, 0)
		if err == nil {
			started = append(started, grant)
		}
		return err
	}
	if len(grants) > 1 && !t.singly {
		all, err := t.alone("start together", "", func() error { return each(one) })
		if err != nil || all {
			return started, err
		}
	}
	started = nil
	err = each(func(g admission.Grant) error {
		_, err := t.alone("start", g.Job, func() error { return one(g) })
		return err
	})
	return started, err
}

// startedRow is a job that has just started, with its payload, nil when that is missing.
type startedRow struct {
	jobRow
	Payload []byte `db:"payload"`
}

// begunAttempt is an attempt with its class as the configuration has it.
type begunAttempt struct {
	attemptRow
	class lanegate.Class
}

// One statement for all that a start reads and writes. Locks are taken in the order
// of w, which is that of the jobs' ids: each row of w seeks its job. The attempt's
// other columns are those of a start outside of a verification run.
const sqlPGStartJobs = pgStarting + pgBegun + `
SELECT ` + jobColumns + `, p.payload
  FROM j
  LEFT JOIN job_payloads AS p ON p.job_id = j.id`

const pgStarting = `
  WITH w AS MATERIALIZED (
    SELECT *
      FROM {{rows text timestamptz text text text text text text json text text boolean timestamptz}}
        AS w (job, now, lane, route_reason, route_wanted, token, class, fingerprint, units, worker, verification, detached, heartbeat_by)),
       j AS (
    UPDATE jobs SET state = 'running', attempts = attempts + 1, started_at = w.now, reason = '',
           route_lane = w.lane, route_reason = w.route_reason, route_wanted = w.route_wanted
      FROM w
     WHERE id = w.job AND coalesce(state, '') = 'queued' AND due`

const pgBegun = `
    RETURNING jobs.*),
       a AS (
    INSERT INTO attempts (job_id, number, token, class, lane, route_reason, route_wanted, units, fingerprint, worker,
           verification, detached, heartbeat_by, ready_at, started_at)
    SELECT j.id, j.attempts, w.token, w.class, w.lane, w.route_reason, w.route_wanted, w.units, w.fingerprint, w.worker,
           w.verification, w.detached, w.heartbeat_by, j.ready_at, w.now
      FROM w
      JOIN j ON j.id = w.job)`

// startAtOnce applies grants of jobs that wait in their lines, those that still do.
func (t *tx) startAtOnce(grants []admission.Grant) ([]service.Grant, error) {
	if len(grants) == 0 {
		return nil, nil
	}
	rows, begun, err := t.startsOf(grants)
	if err != nil {
		return nil, err
	}
	args, err := columnsOf(sqlPGStartJobs, rows)
	if err != nil {
		return nil, err
	}
	var jobs []startedRow
	t.wrote = true
	if err := t.all(&jobs, sqlPGStartJobs, args...); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if j.Payload == nil {
			return nil, &faultError{kind: faultBug, text: "the payload of job " + j.ID + " is missing"}
		}
	}
	return granted(grants, begun, jobs), nil
}

// startsOf are the argument lists of sqlPGStartJobs, in the order of the jobs' ids,
// and the attempts that they make.
func (t *tx) startsOf(grants []admission.Grant) (rows [][]any, begun map[string]begunAttempt, err error) {
	byID := slices.SortedFunc(slices.Values(grants), func(a, b admission.Grant) int { return cmp.Compare(a.Job, b.Job) })
	rows, begun = make([][]any, len(byID)), make(map[string]begunAttempt, len(byID))
	for i, g := range byID {
		a, class, err := t.attemptOf(g)
		if err != nil {
			return nil, nil, err
		}
		rows[i] = []any{g.Job, at(t.at), a.Lane, a.RouteReason, a.RouteWanted, a.Token, a.Class, a.Fingerprint, a.Units, a.Worker,
			a.Verification, a.Detached, a.HeartbeatBy}
		begun[g.Job] = begunAttempt{a, class}
	}
	return rows, begun, nil
}

// granted are those of the grants whose jobs have started.
func granted(grants []admission.Grant, begun map[string]begunAttempt, jobs []startedRow) []service.Grant {
	byJob := make(map[string]startedRow, len(jobs))
	for _, j := range jobs {
		byJob[j.ID] = j
	}
	started := make([]service.Grant, 0, len(jobs))
	for _, g := range grants {
		if j, ok := byJob[g.Job]; ok {
			b := begun[g.Job]
			b.Number, b.ReadyAt = j.Attempts, j.ReadyAt
			started = append(started, service.Grant{Job: j.job(), Attempt: b.attempt(), Class: b.class, Payload: j.Payload})
		}
	}
	return started
}

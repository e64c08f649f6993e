package store

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlStartJob = `
UPDATE jobs SET state = 'running', attempts = attempts + 1, started_at = $1, reason = '',
       route_lane = $2, route_reason = $3, route_wanted = $4
 WHERE id = $5 AND state = 'queued'
RETURNING ` + jobColumns
	sqlInsertAttempt = `
INSERT INTO attempts (job_id, number, token, class, lane, route_reason, route_wanted, units, fingerprint, worker,
       verification, detached, heartbeat_by, ready_at, started_at, verification_round, payload_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`
	sqlGetPayload = `
SELECT payload
  FROM job_payloads
 WHERE job_id = $1`
)

// startQueued applies one grant of a job that waits in its line; round is the
// verification run's, from 1, 0 for an ordinary start.
func (t *tx) startQueued(g admission.Grant, round int) (service.Grant, error) {
	var job jobRow
	t.wrote = true
	found, err := t.get(&job, sqlStartJob, at(t.at), g.Route.Lane, g.Route.Reason, g.Route.Wanted, g.Job)
	if err != nil {
		return service.Grant{}, err
	}
	if !found {
		return service.Grant{}, &faultError{kind: faultBug, text: "granted job " + g.Job + ", which is not queued"}
	}
	var payload []byte
	if found, err := t.get(&payload, sqlGetPayload, job.ID); err != nil {
		return service.Grant{}, err
	} else if !found {
		return service.Grant{}, &faultError{kind: faultBug, text: "the payload is missing"}
	}
	return t.startAttempt(g, round, job, payload)
}

// startAttempt writes the attempt of a job that is running now. It is counted and
// written before anything runs, so a job that kills its worker is counted, too.
func (t *tx) startAttempt(g admission.Grant, round int, job jobRow, payload []byte) (service.Grant, error) {
	grant, args, err := t.newAttempt(g, round, job, payload)
	if err != nil {
		return service.Grant{}, err
	}
	return grant, t.one(sqlInsertAttempt, nil, args...)
}

// newAttempt is the attempt of a grant, with the arguments of sqlInsertAttempt.
func (t *tx) newAttempt(g admission.Grant, round int, job jobRow, payload []byte) (service.Grant, []any, error) {
	row, class, err := t.attemptOf(g)
	if err != nil {
		return service.Grant{}, nil, err
	}
	row.Job, row.Number, row.ReadyAt, row.Round = job.ID, job.Attempts, job.ReadyAt, round
	var digest []byte
	if g.Verification != "" {
		digest = digestOf(payload)
	}
	args := []any{row.Job, row.Number, row.Token, row.Class, row.Lane, row.RouteReason, row.RouteWanted,
		row.Units, row.Fingerprint, row.Worker, row.Verification, row.Detached, row.HeartbeatBy, row.ReadyAt, row.StartedAt,
		row.Round, digest}
	return service.Grant{Job: job.job(), Attempt: row.attempt(), Class: class, Payload: payload}, args, nil
}

// attemptOf is the attempt of a grant without what its job says: number, ready time,
// and the id of one that is made up.
func (t *tx) attemptOf(g admission.Grant) (row attemptRow, class lanegate.Class, err error) {
	cfg, err := t.config()
	if err != nil {
		return row, class, err
	}
	class, ok := cfg.class(g.Class)
	if !ok {
		return row, class, &faultError{kind: faultBug, text: "granted a job of the unknown class " + g.Class}
	}
	row = attemptRow{
		Job: g.Job, Token: newToken(), Class: class.ID, Lane: g.Route.Lane,
		RouteReason: g.Route.Reason, RouteWanted: g.Route.Wanted, Units: dbJSON[lanegate.Units]{unitsOf(g)},
		Fingerprint: class.Fingerprint, Worker: g.Worker, Verification: g.Verification,
		Detached: class.Run.Detached(), StartedAt: at(t.at),
	}
	if row.Detached {
		row.HeartbeatBy = at(t.at.Add(heartbeatOf(class.Run)))
	}
	return row, class, nil
}

// unitsOf is never nil: an attempt that takes nothing says so.
func unitsOf(g admission.Grant) lanegate.Units {
	if g.Units == nil {
		return lanegate.Units{}
	}
	return g.Units
}

func heartbeatOf(r lanegate.Run) time.Duration {
	if r.Heartbeat > 0 {
		return r.Heartbeat.Std()
	}
	return lanegate.DefaultHeartbeat.Std()
}

// newToken is 128 random bits in hex.
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}

package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// Admit implements service.Store.
func (s *Store) Admit(ctx context.Context, ask service.Ask) (service.Admitted, error) {
	var res service.Admitted
	err := s.inAdmissionTx(ctx, "admit", func(t *tx) (err error) {
		res, err = t.admit(ask)
		return err
	})
	if err != nil {
		return service.Admitted{}, err
	}
	return res, nil
}

func (t *tx) admit(ask service.Ask) (res service.Admitted, err error) {
	var me workerRow
	found, err := t.get(&me, sqlGetWorkerLive, ask.Worker)
	if err != nil {
		return res, err
	}
	if !found || !me.EndedAt.t.IsZero() {
		return res, lanegate.ErrWorkerGone
	}
	if res.Skipped, err = t.promote(); err != nil {
		return res, err
	}
	if !me.Draining {
		if err := t.plan(ask, &res); err != nil {
			return res, err
		}
	}
	res.NextDue, err = t.nextDue()
	return res, err
}

// plan asks the planner what may start on the asking worker and applies it.
func (t *tx) plan(ask service.Ask, res *service.Admitted) error {
	in, decision, err := t.decide(ask)
	if err != nil {
		return err
	}
	res.Fallbacks = map[string]int{}
	for _, g := range decision.Grants {
		var grant service.Grant
		started, err := t.alone("start", g.Job, func() (err error) {
			grant, err = t.start(g)
			return err
		})
		if err != nil {
			return fmt.Errorf("start job %s: %w", g.Job, err)
		}
		if !started {
			continue
		}
		res.Grants = append(res.Grants, grant)
		if g.Route.Reason == lanegate.ReasonLaneUnavailable {
			res.Fallbacks[g.Route.Wanted]++
		}
	}
	return t.rememberBlocked(in.BlockedSince, decision.Blocked)
}

// maxDecisions bounds how often one admission decides anew because a job that it
// chose was cancelled or replaced meanwhile.
const maxDecisions = 3

// decide asks the planner and locks the jobs it chose.
func (t *tx) decide(ask service.Ask) (in admission.Input, d admission.Decision, err error) {
	free := ask.Free
	if ask.SerialFree {
		free++
	}
	for range maxDecisions {
		if in, err = t.input(free); err != nil {
			return in, d, err
		}
		in.Asking = ask.Worker
		for i := range in.Workers {
			if in.Workers[i].ID == ask.Worker {
				in.Workers[i].Free, in.Workers[i].SerialFree = ask.Free, ask.SerialFree
			}
		}
		d = admission.Plan(in)
		lock := t.s.d.lockGrants
		if lock == nil {
			return in, d, nil
		}
		chosen := len(d.Grants)
		if d.Grants, err = lock(t, d.Grants); err != nil || len(d.Grants) == chosen {
			return in, d, err
		}
	}
	return in, d, nil
}

// input reads what a decision depends on. free bounds how many jobs of one class
// could start; each class's list has its head at least.
func (t *tx) input(free int) (in admission.Input, err error) {
	cfg, err := t.config()
	if err != nil {
		return in, err
	}
	live, err := t.liveWorkers()
	if err != nil {
		return in, err
	}
	in = admission.Input{
		Now: t.at, Classes: cfg.copied().Classes, Resources: cfg.copied().Resources,
		StarveAfter: t.s.opts.StarveAfter,
	}
	if in.Lanes, err = t.lanesNow(cfg, live); err != nil {
		return in, err
	}
	if in.InFlight, err = t.inFlight(); err != nil {
		return in, err
	}
	in.Workers = workersOf(live, in.InFlight)
	if in.Due, err = t.dueHeads(cfg, in.InFlight, free); err != nil {
		return in, err
	}
	in.BlockedSince, err = t.blockedSince()
	return in, err
}

// workersOf lists the live workers that may get grants, with what the database
// knows to be free on them.
func workersOf(live []workerRow, running []admission.Running) []admission.Worker {
	busy, serial := map[string]int{}, map[string]bool{}
	for _, r := range running {
		if r.Lane == lanegate.LaneSerial {
			serial[r.Worker] = true
		} else {
			busy[r.Worker]++
		}
	}
	var workers []admission.Worker
	for _, w := range live {
		if w.Draining {
			continue
		}
		workers = append(workers, admission.Worker{
			ID: w.ID, Lanes: w.Lanes.v, Commands: w.Commands.v,
			Free: max(0, w.Slots-busy[w.ID]), SerialFree: !serial[w.ID],
		})
	}
	return workers
}

const sqlListInFlight = `
SELECT job_id, class, lane, units, worker, verification, started_at
  FROM attempts
 WHERE outcome IS NULL
 ORDER BY job_id`

// inFlight lists the attempts without an outcome, with what was written on them.
func (t *tx) inFlight() ([]admission.Running, error) {
	var rows []struct {
		Job          string                 `db:"job_id"`
		Class        string                 `db:"class"`
		Lane         string                 `db:"lane"`
		Units        dbJSON[lanegate.Units] `db:"units"`
		Worker       string                 `db:"worker"`
		Verification string                 `db:"verification"`
		StartedAt    dbTime                 `db:"started_at"`
	}
	if err := t.all(&rows, sqlListInFlight); err != nil {
		return nil, fmt.Errorf("list what is in flight: %w", err)
	}
	running := make([]admission.Running, len(rows))
	for i, r := range rows {
		running[i] = admission.Running{
			Job: r.Job, Class: r.Class, Lane: r.Lane, Units: r.Units.v, Worker: r.Worker, Verification: r.Verification,
			StartedAt: r.StartedAt.t,
		}
	}
	return running, nil
}

type headRow struct {
	Job     string `db:"id"`
	Class   string `db:"class"`
	FirstAt dbTime `db:"first_at"`
	PlaceAt dbTime `db:"place_at"`
	PlaceID string `db:"place_id"`
}

func (r headRow) due() admission.Due {
	d := admission.Due{Job: r.Job, Class: r.Class, PlaceAt: r.PlaceAt.t, PlaceID: r.PlaceID}
	if first := r.FirstAt.ptr(); first != nil {
		d.FirstAt = *first
	}
	return d
}

// dueHeads reads the start of each class's line: as many jobs as the class and
// the worker could take, one at least. Classes with the same number are read
// together, and most have the same.
func (t *tx) dueHeads(cfg *configState, running []admission.Running, free int) ([]admission.Due, error) {
	busy := map[string]int{}
	for _, r := range running {
		if r.Verification == "" {
			busy[r.Class]++
		}
	}
	byN := map[int][]string{}
	for _, c := range cfg.Classes {
		n := max(1, min(c.MaxInFlight-busy[c.ID], free))
		byN[n] = append(byN[n], c.ID)
	}
	var due []admission.Due
	for n, classes := range byN {
		names, err := json.Marshal(classes)
		if err != nil {
			return nil, err
		}
		var rows []headRow
		if err := t.all(&rows, t.s.d.heads, string(names), n); err != nil {
			return nil, fmt.Errorf("read the heads of the lines: %w", err)
		}
		for _, r := range rows {
			due = append(due, r.due())
		}
	}
	return due, nil
}

const (
	sqlStartJob = `
UPDATE jobs SET state = 'running', attempts = attempts + 1, started_at = $1, reason = '',
       route_lane = $2, route_reason = $3, route_wanted = $4
 WHERE id = $5 AND state = 'queued'
RETURNING ` + jobColumns
	sqlInsertAttempt = `
INSERT INTO attempts (job_id, number, token, class, lane, route_reason, route_wanted, units, fingerprint, worker,
       verification, detached, heartbeat_by, ready_at, started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`
	sqlGetPayload = `
SELECT payload
  FROM job_payloads
 WHERE job_id = $1`
)

// start applies one grant. The attempt is counted and written before anything
// runs, so a job that kills its worker is counted, too.
func (t *tx) start(g admission.Grant) (service.Grant, error) {
	cfg, err := t.config()
	if err != nil {
		return service.Grant{}, err
	}
	class, ok := cfg.class(g.Class)
	if !ok {
		return service.Grant{}, &faultError{kind: faultBug, text: "granted a job of the unknown class " + g.Class}
	}
	var job jobRow
	found, err := t.get(&job, sqlStartJob, at(t.at), g.Route.Lane, g.Route.Reason, g.Route.Wanted, g.Job)
	if err != nil {
		return service.Grant{}, err
	}
	if !found {
		return service.Grant{}, &faultError{kind: faultBug, text: "granted job " + g.Job + ", which is not queued"}
	}
	row := attemptRow{
		Job: job.ID, Number: job.Attempts, Token: newToken(), Class: class.ID, Lane: g.Route.Lane,
		RouteReason: g.Route.Reason, RouteWanted: g.Route.Wanted, Units: dbJSON[lanegate.Units]{unitsOf(g)},
		Fingerprint: class.Fingerprint, Worker: g.Worker, Verification: job.Verification,
		Detached: class.Run.Detached(), ReadyAt: job.ReadyAt, StartedAt: at(t.at),
	}
	if row.Detached {
		row.HeartbeatBy = at(t.at.Add(heartbeatOf(class.Run)))
	}
	if err := t.one(sqlInsertAttempt, nil, row.Job, row.Number, row.Token, row.Class, row.Lane, row.RouteReason, row.RouteWanted,
		row.Units, row.Fingerprint, row.Worker, row.Verification, row.Detached, row.HeartbeatBy, row.ReadyAt, row.StartedAt); err != nil {
		return service.Grant{}, err
	}
	grant := service.Grant{Job: job.job(), Attempt: row.attempt(), Class: class}
	if found, err := t.get(&grant.Payload, sqlGetPayload, job.ID); err != nil {
		return service.Grant{}, err
	} else if !found {
		return service.Grant{}, &faultError{kind: faultBug, text: "the payload is missing"}
	}
	return grant, nil
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

// nextDue is how long until the next queued job becomes due; 0 when this pass
// left some that are, negative when none waits for its time.
func (t *tx) nextDue() (time.Duration, error) {
	var next dbTime
	if _, err := t.get(&next, sqlNextReady); err != nil {
		return 0, fmt.Errorf("read when the next job becomes due: %w", err)
	}
	if next.t.IsZero() {
		return -1, nil
	}
	return max(0, next.t.Sub(t.at)), nil
}

const (
	sqlListBlocked = `
SELECT job_id, since
  FROM blocked_heads`
	sqlDeleteBlocked = `
DELETE FROM blocked_heads
 WHERE job_id = $1`
	sqlSaveBlocked = `
INSERT INTO blocked_heads (job_id, since)
VALUES ($1, $2)
    ON CONFLICT (job_id) DO UPDATE SET since = excluded.since`
)

func (t *tx) blockedSince() (map[string]time.Time, error) {
	var rows []struct {
		Job   string `db:"job_id"`
		Since dbTime `db:"since"`
	}
	if err := t.all(&rows, sqlListBlocked); err != nil {
		return nil, fmt.Errorf("read the blocked heads: %w", err)
	}
	blocked := make(map[string]time.Time, len(rows))
	for _, r := range rows {
		blocked[r.Job] = r.Since.t
	}
	return blocked, nil
}

// rememberBlocked makes the table hold exactly what now says.
func (t *tx) rememberBlocked(before, now map[string]time.Time) error {
	for job := range before {
		if _, ok := now[job]; !ok {
			if _, err := t.exec(sqlDeleteBlocked, job); err != nil {
				return fmt.Errorf("forget blocked job %s: %w", job, err)
			}
		}
	}
	for job, since := range now {
		if old, ok := before[job]; ok && old.Equal(lanegate.Micro(since)) {
			continue
		}
		if err := t.one(sqlSaveBlocked, nil, job, at(since)); err != nil {
			return fmt.Errorf("remember blocked job %s: %w", job, err)
		}
	}
	return nil
}

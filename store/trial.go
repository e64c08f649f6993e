package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// trialRow is what admission knows of the verification run whose turn it is.
type trialRow struct {
	ID         string                      `db:"id"`
	State      lanegate.VerificationState  `db:"state"`
	Source     lanegate.VerificationSource `db:"source"`
	HoldSerial bool                        `db:"hold_serial"`
	Members    dbJSON[[]string]            `db:"members"`
	Plan       dbJSON[[]lanegate.Round]    `db:"plan"`
	Round      int                         `db:"round"`
	Started    bool                        `db:"round_started"`
	Owner      string                      `db:"owner"`
	CreatedAt  dbTime                      `db:"created_at"`
	HeldAt     dbTime                      `db:"held_at"`
}

const (
	sqlFindOpenVerification = `
SELECT id
  FROM verification_runs
 WHERE ended_at IS NULL
 LIMIT 1`
	sqlListTrials = `
SELECT id, state, source, hold_serial, members, plan, round, round_started, owner, created_at, held_at
  FROM verification_runs
 WHERE ended_at IS NULL
 ORDER BY state <> 'running', created_at, id
 LIMIT $1`
	sqlListUnpassed = `
SELECT id
  FROM verification_runs
 WHERE ended_at IS NOT NULL AND verdict <> 'passed'
   AND id IN (SELECT verification FROM attempts WHERE outcome IS NULL AND verification <> '')`
	sqlTakeTrial = `
UPDATE verification_runs SET state = 'running', owner = $1, started_at = $2
 WHERE id = $3 AND state = 'planned'`
	sqlHoldTrial = `
UPDATE verification_runs SET held_at = $1
 WHERE id = $2 AND state = 'running' AND held_at IS NULL`
	sqlStartRound = `
UPDATE verification_runs SET round_started = $1
 WHERE id = $2 AND state = 'running' AND NOT round_started`
)

// maxTrials bounds how many open runs are looked through for the one whose turn
// it is.
const maxTrials = 50

// trials lists the open verification runs, the one under way first, then by age.
// Without any it costs nothing: a new one comes with a new version of cfg.
func (t *tx) trials(cfg *configState) ([]trialRow, error) {
	if !cfg.trials {
		return nil, nil
	}
	var rows []trialRow
	if err := t.all(&rows, sqlListTrials, maxTrials); err != nil {
		return nil, fmt.Errorf("list the open verification runs: %w", err)
	}
	return rows, nil
}

// chooseTrial enters the verification run whose turn it is into in.
func chooseTrial(in *admission.Input, rows []trialRow, candidates []*admission.Trial) *trialRow {
	if in.Trial = admission.Choose(*in, candidates); in.Trial == nil {
		return nil
	}
	i := slices.IndexFunc(rows, func(r trialRow) bool { return r.ID == in.Trial.ID })
	return &rows[i]
}

// input is the run as the planner sees it.
func (r *trialRow) input() *admission.Trial {
	a := &admission.Trial{
		ID: r.ID, PlaceAt: r.CreatedAt.t, Members: r.Members.v, FromQueue: r.Source == lanegate.SourceQueue,
		Owner: r.Owner, WantsHold: r.HoldSerial,
	}
	if !r.Started && r.Round < len(r.Plan.v) {
		a.Round = slices.Clone(r.Plan.v[r.Round].Classes)
	}
	return a
}

// trialHeads says how many due jobs of each class a coming round needs, whichever
// of the runs has its turn.
func trialHeads(trials []*admission.Trial) map[string]int {
	most := map[string]int{}
	for _, trial := range trials {
		if trial == nil || !trial.FromQueue {
			continue
		}
		need := map[string]int{}
		for _, class := range trial.Round {
			need[class]++
			most[class] = max(most[class], need[class])
		}
	}
	return most
}

// stepTrial applies what a decision does for the trial: taking, holding and the
// starts of a round. It says whether it changed anything.
func (t *tx) stepTrial(worker string, trial *trialRow, step *admission.TrialStep) (grants []service.Grant, changed bool, err error) {
	if step == nil || trial == nil {
		return nil, false, nil
	}
	if step.Take {
		if err := t.one(sqlTakeTrial, nil, worker, at(t.at), trial.ID); err != nil {
			return nil, false, fmt.Errorf("take verification run %s: %w", trial.ID, err)
		}
	}
	if step.Hold {
		if err := t.one(sqlHoldTrial, nil, at(t.at), trial.ID); err != nil {
			return nil, false, fmt.Errorf("hold serial for verification run %s: %w", trial.ID, err)
		}
	}
	changed = step.Take || step.Hold
	if !step.Start {
		return nil, changed, nil
	}
	started, err := t.alone("start a round", trial.ID, func() (err error) {
		grants, err = t.startGang(trial, step.Gang)
		return err
	})
	if err != nil || !started {
		return nil, changed, err
	}
	return grants, true, nil
}

// startGang starts what a round lacks; that may be nothing, as long runs of the
// round before are part of it.
func (t *tx) startGang(trial *trialRow, gang []admission.Grant) ([]service.Grant, error) {
	if err := t.one(sqlStartRound, nil, true, trial.ID); err != nil {
		return nil, err
	}
	made := trialJobs{t: t, trial: trial}
	grants := make([]service.Grant, 0, len(gang))
	for _, g := range gang {
		start := t.startQueued
		if g.Job == "" {
			start = made.start
		}
		grant, err := start(g, trial.Round+1)
		if err != nil {
			return nil, fmt.Errorf("run of class %s: %w", g.Class, err)
		}
		grants = append(grants, grant)
	}
	return grants, nil
}

// trialClient is the client of the jobs that a verification run makes up.
const trialClient = "lanegate"

const (
	sqlGetTrialBytes = `
SELECT spec, payloads
  FROM verification_runs
 WHERE id = $1`
	sqlCountTrialRuns = `
SELECT class, count(*) AS n
  FROM attempts
 WHERE verification = $1 AND verification <> ''
 GROUP BY class`
	sqlInsertTrialJob = `
INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id, first_at, attempts,
       verification, started_at, route_lane, route_reason, route_wanted)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`
)

// trialJobs makes up the jobs of one round. A member's payloads are used in turn,
// over all rounds.
type trialJobs struct {
	t     *tx
	trial *trialRow

	payloads map[string][][]byte // nil until the first job
	used     map[string]int
}

// start makes up a job that runs from its first moment on.
func (m *trialJobs) start(g admission.Grant, round int) (service.Grant, error) {
	t, now := m.t, at(m.t.at)
	payload, err := m.payload(g.Class)
	if err != nil {
		return service.Grant{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return service.Grant{}, fmt.Errorf("make a job id: %w", err)
	}
	job := jobRow{
		ID: id.String(), Class: g.Class, Client: trialClient, State: lanegate.StateRunning, SubmittedAt: now, ReadyAt: now,
		PlaceAt: now, PlaceID: id.String(), FirstAt: never, Attempts: 1, Verification: m.trial.ID, StartedAt: now,
		RouteLane: g.Route.Lane, RouteReason: g.Route.Reason, RouteWanted: g.Route.Wanted,
	}
	if err := t.one(sqlInsertTrialJob, nil, job.ID, job.Class, job.Client, job.State, job.SubmittedAt, job.ReadyAt, job.Due,
		job.PlaceAt, job.PlaceID, job.FirstAt, job.Attempts, job.Verification, job.StartedAt,
		job.RouteLane, job.RouteReason, job.RouteWanted); err != nil {
		return service.Grant{}, fmt.Errorf("make up a job: %w", err)
	}
	if err := t.one(sqlInsertPayload, nil, job.ID, payload); err != nil {
		return service.Grant{}, fmt.Errorf("insert the payload of job %s: %w", job.ID, err)
	}
	return t.startAttempt(g, round, job, payload)
}

// payload returns the next one of a class.
func (m *trialJobs) payload(class string) ([]byte, error) {
	if m.payloads == nil {
		if err := m.read(); err != nil {
			return nil, err
		}
	}
	n := m.used[class]
	m.used[class]++
	if of := m.payloads[class]; len(of) > 0 {
		return of[n%len(of)], nil
	}
	return []byte("null"), nil
}

// read gets the payloads and how many runs have used them.
func (m *trialJobs) read() error {
	var row verificationRow
	if found, err := m.t.get(&row, sqlGetTrialBytes, m.trial.ID); err != nil {
		return fmt.Errorf("read the payloads: %w", err)
	} else if !found {
		return &faultError{kind: faultBug, text: "verification run " + m.trial.ID + " is missing"}
	}
	var counts []struct {
		Class string `db:"class"`
		N     int    `db:"n"`
	}
	if err := m.t.all(&counts, sqlCountTrialRuns, m.trial.ID); err != nil {
		return fmt.Errorf("count the runs so far: %w", err)
	}
	m.payloads, m.used = map[string][][]byte{}, map[string]int{}
	for i, member := range row.Spec.v.Members {
		if i < len(row.Payloads.v) {
			m.payloads[member.Class] = row.Payloads.v[i]
		}
	}
	for _, c := range counts {
		m.used[c.Class] = c.N
	}
	return nil
}

// digestOf is the SHA-256 of b; nil when there is none.
func digestOf(b []byte) []byte {
	if b == nil {
		return nil
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

const sqlListTrialRuns = `
SELECT a.job_id, a.number, a.token, a.class, a.lane, a.route_reason, a.route_wanted, a.units, a.fingerprint, a.worker, a.verification,
       a.detached, a.heartbeat_by, a.cancel_requested, a.ready_at, a.started_at, a.ended_at, a.outcome, a.duration, a.estimated,
       a.error, a.exit_code, a.signal, a.status, a.verification_round, a.trouble, a.measured,
       a.payload_digest, a.result_digest, j.verification <> '' AS made_up, coalesce(o.dropped, 0) AS dropped
  FROM attempts AS a
  JOIN jobs AS j ON j.id = a.job_id
  LEFT JOIN attempt_outputs AS o ON o.job_id = a.job_id AND o.number = a.number
 WHERE a.verification = $1 AND a.verification <> ''
 ORDER BY a.started_at, a.job_id, a.number`

// TrialRuns implements service.Store.
func (s *Store) TrialRuns(ctx context.Context, verification string) ([]service.TrialRun, error) {
	var rows []struct {
		attemptRow
		PayloadDigest []byte `db:"payload_digest"`
		ResultDigest  []byte `db:"result_digest"`
		MadeUp        bool   `db:"made_up"`
		Dropped       int64  `db:"dropped"`
	}
	err := s.inRead(ctx, "list the runs of verification run "+verification, func(t *tx) error {
		return t.all(&rows, sqlListTrialRuns, verification)
	})
	if err != nil {
		return nil, err
	}
	runs := make([]service.TrialRun, len(rows))
	for i, r := range rows {
		runs[i] = service.TrialRun{
			Attempt: r.attempt(), MadeUp: r.MadeUp, PayloadDigest: r.PayloadDigest, ResultDigest: r.ResultDigest, Dropped: r.Dropped,
		}
	}
	return runs, nil
}

const (
	sqlListMadeUp = `
SELECT a.job_id
  FROM attempts AS a
  JOIN jobs AS j ON j.id = a.job_id
 WHERE a.verification = $1 AND a.verification <> '' AND a.outcome IS NULL AND j.verification <> ''
 ORDER BY a.job_id`
	sqlLockVerification = `
SELECT id
  FROM verification_runs
 WHERE id = $1 {{lock}}`
)

// CancelTrial implements service.ConfigTx. ErrVerificationNotFound.
func (c *configTx) CancelTrial(verification string) error {
	return c.do("cancel the runs of verification run "+verification, func(t *tx) error {
		if found, err := t.exists(sqlLockVerification, verification); err != nil {
			return err
		} else if !found {
			return lanegate.ErrVerificationNotFound
		}
		return t.cancelTrial(verification)
	})
}

// cancelTrial asks the made-up runs in flight of a run, whose row is locked, to end.
func (t *tx) cancelTrial(verification string) error {
	var jobs []string
	if err := t.all(&jobs, sqlListMadeUp, verification); err != nil {
		return err
	}
	for _, id := range jobs {
		row, err := t.lockJob(id)
		if err != nil {
			return err
		}
		if row.State != lanegate.StateRunning {
			continue // it ended by itself since it was listed
		}
		if err := t.askToEnd(&row, "verification run "+verification); err != nil {
			return err
		}
	}
	return nil
}

const (
	sqlListTrialsOf = `
SELECT ` + verificationColumns + `
  FROM verification_runs
 WHERE state = 'running' AND owner = $1 {{lock}}`
	sqlListOrphanTrials = `
SELECT ` + verificationColumns + `
  FROM verification_runs
 WHERE state = 'running'
   AND NOT EXISTS (SELECT 1 FROM workers AS w WHERE w.id = verification_runs.owner AND w.ended_at IS NULL) {{lock}}`
)

// ownerLost is the code of the reason for ending with one's owner.
const ownerLost = "owner_lost"

// loseTrials ends the running verification runs that q lists, as their owner is
// gone: done, inconclusive, and serial's slot is free again.
func (t *tx) loseTrials(q, why string, args ...any) (ended []string, err error) {
	var rows []verificationRow
	if err := t.all(&rows, q, args...); err != nil {
		return nil, fmt.Errorf("list verification runs whose owner is gone: %w", err)
	}
	for _, r := range rows {
		v := r.verification()
		v.State, v.Verdict, v.EndedAt = lanegate.VerificationDone, lanegate.VerdictInconclusive, &t.at
		v.Reasons = append([]lanegate.VerificationReason{{
			Code:    ownerLost,
			Message: fmt.Sprintf("%s while it carried out this verification run, in round %d of %d", why, min(v.Round+1, len(v.Plan)), len(v.Plan)),
		}}, v.Reasons...)
		if err := t.saveVerification(v); err != nil {
			return nil, fmt.Errorf("end verification run %s: %w", v.ID, err)
		}
		ended = append(ended, v.ID)
	}
	return ended, nil
}

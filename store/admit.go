package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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
	in, trial, decision, err := t.decide(ask)
	if err != nil {
		return err
	}
	gang, changed, err := t.stepTrial(ask.Worker, trial, decision.Trial)
	if err != nil {
		return err
	}
	if changed {
		res.Trial = trial.ID
	}
	res.Grants = gang
	res.Fallbacks = map[string]int{}
	started, err := t.start(decision.Grants)
	if err != nil {
		return err
	}
	res.Grants = append(res.Grants, started...)
	for _, g := range started {
		if route := g.Attempt.Route; route.Reason == lanegate.ReasonLaneUnavailable {
			res.Fallbacks[route.Wanted]++
		}
	}
	return t.rememberBlocked(in.BlockedSince, decision.Blocked)
}

// start applies grants, together if that can be; a job that can't start is left
// out and doesn't stop the others.
func (t *tx) start(grants []admission.Grant) (started []service.Grant, err error) {
	if len(grants) > 1 {
		all, err := t.alone("start together", "", func() (err error) {
			started, err = t.startTogether(grants)
			return err
		})
		if err != nil || all {
			return started, err
		}
	}
	started = nil
	for _, g := range grants {
		var grant service.Grant
		ok, err := t.alone("start", g.Job, func() (err error) {
			grant, err = t.startQueued(g, 0)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("start job %s: %w", g.Job, err)
		}
		if ok {
			started = append(started, grant)
		}
	}
	return started, nil
}

// maxDecisions bounds how often one admission decides anew because a job that it
// chose was cancelled or replaced meanwhile.
const maxDecisions = 3

// decide asks the planner and locks the jobs it chose.
func (t *tx) decide(ask service.Ask) (in admission.Input, trial *trialRow, d admission.Decision, err error) {
	free := ask.Free
	if ask.SerialFree {
		free++
	}
	for range maxDecisions {
		if in, trial, err = t.input(free); err != nil {
			return in, nil, d, err
		}
		in.Asking = ask.Worker
		for i := range in.Workers {
			if in.Workers[i].ID == ask.Worker {
				in.Workers[i].Free, in.Workers[i].SerialFree = ask.Free, ask.SerialFree
			}
		}
		d = admission.Plan(in)
		if all, err := t.lockChosen(&d); err != nil || all {
			return in, trial, d, err
		}
	}
	return in, trial, d, nil
}

// lockChosen locks the jobs that d starts and takes out of it those that may not
// start any more; a round of which one is gone loses all. It says whether d still
// is what it was.
func (t *tx) lockChosen(d *admission.Decision) (all bool, err error) {
	lock := t.s.d.lockGrants
	if lock == nil {
		return true, nil
	}
	chosen := slices.Clone(d.Grants)
	if d.Trial != nil {
		for _, g := range d.Trial.Gang {
			if g.Job != "" { // the others are made up
				chosen = append(chosen, g)
			}
		}
	}
	still, err := lock(t, chosen)
	if err != nil || len(still) == len(chosen) {
		return true, err
	}
	gone := func(g admission.Grant) bool {
		return g.Job != "" && !slices.ContainsFunc(still, func(s admission.Grant) bool { return s.Job == g.Job })
	}
	d.Grants = slices.DeleteFunc(d.Grants, gone)
	if d.Trial != nil && slices.ContainsFunc(d.Trial.Gang, gone) {
		d.Trial.Start, d.Trial.Gang = false, nil
	}
	return false, nil
}

// input reads what a decision depends on. free bounds how many jobs of one class
// could start; each class's list has its head at least, and what the trial needs.
func (t *tx) input(free int) (in admission.Input, trial *trialRow, err error) {
	cfg, err := t.config()
	if err != nil {
		return in, nil, err
	}
	live, err := t.liveWorkers()
	if err != nil {
		return in, nil, err
	}
	in = admission.Input{
		Now: t.at, Classes: cfg.copied().Classes, Resources: cfg.copied().Resources,
		StarveAfter: t.s.opts.StarveAfter,
	}
	if in.Lanes, err = t.lanesNow(cfg, live); err != nil {
		return in, nil, err
	}
	if in.InFlight, err = t.inFlight(); err != nil {
		return in, nil, err
	}
	rows, err := t.trials(cfg)
	if err != nil {
		return in, nil, err
	}
	var candidates []*admission.Trial
	for i := range rows {
		candidates = append(candidates, rows[i].input())
		if !rows[i].HeldAt.t.IsZero() {
			in.Hold = rows[i].ID
		}
	}
	in.Workers = workersOf(live, in.InFlight)
	if in.Due, err = t.dueHeads(cfg, in, trialHeads(candidates), free); err != nil {
		return in, nil, err
	}
	trial = chooseTrial(&in, rows, candidates)
	in.BlockedSince, err = t.blockedSince()
	return in, trial, err
}

// workersOf lists the live workers that may get grants, with what the database
// knows to be free on them. What runs for a verification run takes no slot.
func workersOf(live []workerRow, running []admission.Running) []admission.Worker {
	busy, serial := map[string]int{}, map[string]bool{}
	for _, r := range running {
		switch {
		case r.Verification != "":
		case r.Lane == lanegate.LaneSerial:
			serial[r.Worker] = true
		default:
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
			Free: max(0, w.Slots-busy[w.ID]), SerialFree: !serial[w.ID], Agent: w.Agent != "",
		})
	}
	return workers
}

const sqlListInFlight = `
SELECT job_id, class, lane, units, worker, verification, started_at
  FROM attempts
 WHERE outcome IS NULL
 ORDER BY job_id`

type inFlightRow struct {
	Job          string                 `db:"job_id"`
	Class        string                 `db:"class"`
	Lane         string                 `db:"lane"`
	Units        dbJSON[lanegate.Units] `db:"units"`
	Worker       string                 `db:"worker"`
	Verification string                 `db:"verification"`
	StartedAt    dbTime                 `db:"started_at"`
}

// inFlight lists the attempts without an outcome, with what was written on them.
// Those of a verification run that ended without passing are listed as ordinary
// ones: they take the slots of their lane and class until they end, since nothing
// says that others may run beside them.
func (t *tx) inFlight() ([]admission.Running, error) {
	var rows []inFlightRow
	if err := t.all(&rows, sqlListInFlight); err != nil {
		return nil, fmt.Errorf("list what is in flight: %w", err)
	}
	var unpassed []string
	if slices.ContainsFunc(rows, func(r inFlightRow) bool { return r.Verification != "" }) {
		if err := t.all(&unpassed, sqlListUnpassed); err != nil {
			return nil, fmt.Errorf("list the verification runs that did not pass: %w", err)
		}
	}
	running := make([]admission.Running, len(rows))
	for i, r := range rows {
		if slices.Contains(unpassed, r.Verification) {
			r.Verification = ""
		}
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
	Worker  string `db:"worker"`
}

func (r headRow) due() admission.Due {
	d := admission.Due{Job: r.Job, Class: r.Class, PlaceAt: r.PlaceAt.t, PlaceID: r.PlaceID, Worker: r.Worker}
	if first := r.FirstAt.ptr(); first != nil {
		d.FirstAt = *first
	}
	return d
}

// dueHeads reads the start of each class's line: as many jobs as the class and
// the worker could take, or need says for the rounds of trials, one at least. Classes with
// the same number are read together, and most have the same.
func (t *tx) dueHeads(cfg *configState, in admission.Input, need map[string]int, free int) ([]admission.Due, error) {
	busy := map[string]int{}
	for _, r := range in.InFlight {
		if r.Verification == "" {
			busy[r.Class]++
		}
	}
	byN := map[int][]string{}
	for _, c := range cfg.Classes {
		n := max(1, min(c.MaxInFlight-busy[c.ID], free), need[c.ID])
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

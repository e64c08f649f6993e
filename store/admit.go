package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// Admit implements service.Store.
func (s *Store) Admit(ctx context.Context, ask service.Ask) (service.Admitted, error) {
	res, gone, err := s.admitBy(ctx, ask, s.d.inPass)
	if err != nil || !gone {
		return res, err
	}
	more, _, err := s.admitBy(ctx, without(ask, res.Grants), nil)
	if err != nil { // what has started goes on; the worker asks again at once
		s.log.WarnContext(ctx, "jobs were gone when they were to start, and no others could", "err", err)
		res.NextDue, res.NoneWaits = 0, false
		return res, nil
	}
	more.Grants = slices.Concat(res.Grants, more.Grants)
	more.Skipped = slices.Concat(res.Skipped, more.Skipped)
	for lane, n := range more.Fallbacks {
		res.Fallbacks[lane] += n
	}
	more.Fallbacks = res.Fallbacks // not nil, as it chose jobs
	return more, nil
}

// admitBy is one admission; by is dialect.inPass, or nil for the long way. gone: some of
// the jobs that it chose did not wait any more, and others may start in their place.
func (s *Store) admitBy(ctx context.Context, ask service.Ask, by passFunc) (res service.Admitted, gone bool, err error) {
	var together *togetherError
	run := func(t *tx) (err error) {
		t.singly = together != nil
		res, err = t.admit(ask)
		t.void = !t.wrote && len(res.Grants) == 0 && res.Trial == ""
		together, _ = errors.AsType[*togetherError](err)
		gone = t.gone
		return err
	}
	err = errNotAtOnce
	if by != nil {
		err = by(s, ctx, "admit", ask, run)
	}
	if errors.Is(err, errNotAtOnce) {
		err = s.inAdmissionTx(ctx, "admit", run)
	}
	if together != nil {
		s.log.WarnContext(ctx, "jobs are started one by one", "err", err)
		err = s.inAdmissionTx(ctx, "admit", run)
	}
	if err != nil {
		return service.Admitted{}, false, err
	}
	return res, gone, nil
}

// without is the ask of a worker that has these jobs to run, too.
func without(ask service.Ask, started []service.Grant) service.Ask {
	for _, g := range started {
		if g.Attempt.Lane == lanegate.LaneSerial {
			ask.SerialFree = false
		} else {
			ask.Free--
		}
	}
	return ask
}

func (t *tx) admit(ask service.Ask) (res service.Admitted, err error) {
	stands, err := t.standsFor(ask.Worker)
	if err != nil {
		return res, err
	}
	live := stands.live
	me := slices.IndexFunc(live, func(w workerRow) bool { return w.ID == ask.Worker })
	if me < 0 {
		return res, lanegate.ErrWorkerGone
	}
	res.NextDue = t.until(stands.next)
	waits := res.NextDue == 0
	if waits {
		if res.Skipped, err = t.promote(); err != nil {
			return res, err
		}
		t.lines = nil
	}
	if !live[me].Draining {
		if err := t.plan(ask, live, &res, !waits); err != nil {
			return res, err
		}
	}
	if waits {
		res.NextDue, err = t.nextDue()
	}
	return res, err
}

// maxDecisions bounds how often one admission decides anew because a job that it
// chose was cancelled or replaced meanwhile.
const maxDecisions = 3

// plan asks the planner what may start on the asking worker and applies it, again
// for what jobs leave free that are gone since they were read. last: nothing comes
// after it in the transaction, so it may commit.
func (t *tx) plan(ask service.Ask, live []workerRow, res *service.Admitted, last bool) error {
	res.Fallbacks = map[string]int{}
	var decision admission.Decision
	for range maxDecisions {
		var trial *trialRow
		var err error
		if trial, decision, res.NoneWaits, err = t.decide(ask, live); err != nil {
			return err
		}
		if last && trial == nil && t.joined != nil && !t.wrote && len(decision.Grants) > 0 && len(decision.Grants) <= pgPassed {
			return t.planAtOnce(decision, res)
		}
		gang, changed, err := t.stepTrial(ask.Worker, trial, decision.Trial)
		if err != nil {
			return err
		}
		if changed {
			res.Trial = trial.ID
		}
		started, gone, err := t.start(decision.Grants)
		if err != nil {
			return err
		}
		res.Grants = slices.Concat(res.Grants, gang)
		grant(res, started)
		ask = without(ask, started)
		if !gone {
			break
		}
		t.standing = nil // what was started is in flight
	}
	return t.rememberBlocked(decision.Blocked)
}

// planAtOnce applies a decision that is no part of a verification run, and commits.
func (t *tx) planAtOnce(d admission.Decision, res *service.Admitted) error {
	if err := t.rememberBlocked(d.Blocked); err != nil {
		return err
	}
	started, err := t.startAndCommit(d.Grants)
	if err != nil {
		return err
	}
	t.gone = len(started) < len(d.Grants)
	grant(res, started)
	return nil
}

// grant enters ordinary starts into the answer.
func grant(res *service.Admitted, started []service.Grant) {
	res.Grants = append(res.Grants, started...)
	for _, g := range started {
		if route := g.Attempt.Route; route.Reason == lanegate.ReasonLaneUnavailable {
			res.Fallbacks[route.Wanted]++
		}
	}
}

// decide asks the planner, and locks the jobs it chose when a round is among them,
// which starts as a whole or not at all; all: no other job is due.
func (t *tx) decide(ask service.Ask, live []workerRow) (trial *trialRow, d admission.Decision, all bool, err error) {
	free := freeOf(ask)
	for range maxDecisions {
		var in admission.Input
		var rest lineRest
		if in, trial, rest, err = t.input(live, free); err != nil {
			return nil, d, false, err
		}
		in.Asking, in.NoWaits = ask.Worker, true
		for i := range in.Workers {
			if in.Workers[i].ID == ask.Worker {
				in.Workers[i].Free, in.Workers[i].SerialFree = ask.Free, ask.SerialFree
			}
		}
		d = admission.Plan(in)
		for more := rest.behind(d.Emptied); len(more) > 0; more = rest.behind(d.Emptied) {
			if err := t.readOn(&in, rest, more); err != nil {
				return nil, d, false, err
			}
			d = admission.Plan(in)
		}
		all = len(d.Grants) == len(in.Due) && rest.ends
		if still, err := t.lockChosen(&d); err != nil || still {
			return trial, d, all, err
		}
	}
	return trial, d, false, nil
}

// freeOf bounds how many jobs of one class could start.
func freeOf(ask service.Ask) int {
	if ask.SerialFree {
		return ask.Free + 1
	}
	return ask.Free
}

// lockChosen locks the jobs that d starts, if there are those of a round among
// them, and takes out of it those that may not start any more; a round of which one
// is gone loses all. It says whether d still is what it was. Without a round nothing
// is locked: the start itself says which jobs are gone.
func (t *tx) lockChosen(d *admission.Decision) (all bool, err error) {
	lock := t.s.d.lockGrants
	if lock == nil || d.Trial == nil || len(d.Trial.Gang) == 0 {
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
// could start; each class's list has its head at least, and what the trial needs;
// rest says where more may stand behind it. Classes and resources are shared:
// nobody may change them.
func (t *tx) input(live []workerRow, free int) (in admission.Input, trial *trialRow, rest lineRest, err error) {
	cfg, err := t.config()
	if err != nil {
		return in, nil, rest, err
	}
	in = admission.Input{
		Now: t.at, Classes: cfg.Classes, Resources: cfg.Resources, StarveAfter: t.s.opts.StarveAfter,
	}
	stands, err := t.stands()
	if err != nil {
		return in, nil, rest, err
	}
	in.Lanes, in.BlockedSince = t.lanesServed(cfg, live, stands.lanes), stands.blocked
	if in.InFlight, err = t.running(stands.running); err != nil {
		return in, nil, rest, err
	}
	rows, err := t.trials(cfg)
	if err != nil {
		return in, nil, rest, err
	}
	var candidates []*admission.Trial
	for i := range rows {
		candidates = append(candidates, rows[i].input())
		if !rows[i].HeldAt.t.IsZero() {
			in.Hold = rows[i].ID
		}
	}
	in.Workers = workersOf(live, in.InFlight)
	if need := trialHeads(candidates); len(need) == 0 && stands.heads != nil {
		in.Due = dues(nil, stands.heads)
	} else if in.Due, rest, err = t.dueHeads(cfg, in, need, free); err != nil {
		return in, nil, rest, err
	}
	trial = chooseTrial(&in, rows, candidates)
	return in, trial, rest, nil
}

// snapshot is input for readers, who may keep and change it: one job of each class,
// and what the trial needs.
func (t *tx) snapshot() (admission.Input, error) {
	cfg, err := t.config()
	if err != nil {
		return admission.Input{}, err
	}
	stands, err := t.standsOfAll(cfg)
	if err != nil {
		return admission.Input{}, err
	}
	in, _, _, err := t.input(stands.live, 1)
	in.Classes, in.Resources = slices.Clone(in.Classes), slices.Clone(in.Resources)
	return in, err
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
func (t *tx) inFlight() ([]admission.Running, error) {
	var rows []inFlightRow
	if err := t.all(&rows, sqlListInFlight); err != nil {
		return nil, fmt.Errorf("list what is in flight: %w", err)
	}
	return t.running(rows)
}

// running is what the planner is told of attempts in flight.
// Those of a verification run that ended without passing are listed as ordinary
// ones: they take the slots of their lane and class until they end, since nothing
// says that others may run beside them.
func (t *tx) running(rows []inFlightRow) ([]admission.Running, error) {
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

// nextDue is how long until the next queued job becomes due; 0 when some are by now
// that no admission has noted, negative when none waits for its time.
func (t *tx) nextDue() (time.Duration, error) {
	var next dbTime
	if _, err := t.get(&next, sqlNextReady); err != nil {
		return 0, fmt.Errorf("read when the next job becomes due: %w", err)
	}
	return t.until(next), nil
}

// until is how long it is until then, 0 when that is over, negative for never.
func (t *tx) until(then dbTime) time.Duration {
	if then.t.IsZero() {
		return -1
	}
	return max(0, then.t.Sub(t.at))
}

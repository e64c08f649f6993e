package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

type workerRow struct {
	ID        string                    `db:"id"`
	Host      string                    `db:"host"`
	PID       int                       `db:"pid"`
	Lanes     dbJSON[[]string]          `db:"lanes"`
	Slots     int                       `db:"slots"`
	Commands  dbJSON[map[string]string] `db:"commands"`
	Beat      int64                     `db:"beat"`
	Draining  bool                      `db:"draining"`
	StartedAt dbTime                    `db:"started_at"`
	BeatAt    dbTime                    `db:"beat_at"`
	EndedAt   dbTime                    `db:"ended_at"`
	Agent     string                    `db:"agent"`
}

// serves says whether the worker serves a lane; nil lanes are all lanes.
func (w workerRow) serves(lane string) bool {
	return w.Lanes.v == nil || slices.Contains(w.Lanes.v, lane)
}

// opens says whether the worker makes a lane available. An agent does so for the
// lanes it names: one that takes what comes, or waits for a job of its own, must
// not draw the gateway's own classes into a lane that no gateway serves.
func (w workerRow) opens(lane string) bool {
	return w.serves(lane) && (w.Agent == "" || w.Lanes.v != nil)
}

func (w workerRow) info() service.WorkerInfo {
	return service.WorkerInfo{
		ID: w.ID, Host: w.Host, PID: w.PID, Lanes: w.Lanes.v, Slots: w.Slots, Commands: w.Commands.v,
		Beat: w.Beat, Draining: w.Draining, StartedAt: w.StartedAt.t, BeatAt: w.BeatAt.t, Agent: w.Agent,
	}
}

const (
	workerColumns = `id, host, pid, lanes, slots, commands, beat, draining, started_at, beat_at, ended_at, agent`

	sqlListLiveWorkers = `
SELECT ` + workerColumns + `
  FROM workers
 WHERE ended_at IS NULL
 ORDER BY id`
	sqlGetWorker = `
SELECT ` + workerColumns + `
  FROM workers
 WHERE id = $1`
	sqlGetWorkerLocked = sqlGetWorker + ` {{lock}}`
	sqlInsertWorker    = `
INSERT INTO workers (id, host, pid, lanes, slots, commands, beat, draining, started_at, beat_at, agent)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	sqlUpdateWorker = `
UPDATE workers SET lanes = $1, slots = $2, commands = $3, draining = $4
 WHERE id = $5 AND ended_at IS NULL`
	sqlBeatWorker = `
UPDATE workers SET beat = beat + 1, beat_at = $1
 WHERE id = $2 AND ended_at IS NULL`
	sqlEndWorker = `
UPDATE workers SET ended_at = $1
 WHERE id = $2 AND ended_at IS NULL`
	sqlStampLane = `
UPDATE lanes SET last_served_at = $1
 WHERE name = $2`
)

func (t *tx) liveWorkers() ([]workerRow, error) {
	var live []workerRow
	if err := t.all(&live, sqlListLiveWorkers); err != nil {
		return nil, fmt.Errorf("list live workers: %w", err)
	}
	return live, nil
}

func commandsOf(w service.WorkerInfo) dbJSON[map[string]string] {
	if w.Commands == nil {
		return dbJSON[map[string]string]{map[string]string{}}
	}
	return dbJSON[map[string]string]{w.Commands}
}

// RegisterWorker implements service.Store. An id is good for one start of one
// process; one that is known already is refused with ErrWorkerGone.
func (s *Store) RegisterWorker(ctx context.Context, w service.WorkerInfo) error {
	err := s.inTx(ctx, "register worker "+w.ID, func(t *tx) error {
		return t.one(sqlInsertWorker, nil, w.ID, w.Host, w.PID, dbJSON[[]string]{w.Lanes}, w.Slots, commandsOf(w),
			w.Beat, w.Draining, t.orNow(w.StartedAt), at(t.at), w.Agent)
	})
	if faultDuplicate.is(err) {
		return lanegate.ErrWorkerGone.With("worker id %s is known already; every start of a process needs a new one.", w.ID).Because(err)
	}
	return err
}

// UpdateWorker implements service.Store.
func (s *Store) UpdateWorker(ctx context.Context, w service.WorkerInfo) error {
	return s.inTx(ctx, "update worker "+w.ID, func(t *tx) error {
		var old workerRow
		found, err := t.get(&old, sqlGetWorkerLocked, w.ID)
		if err != nil {
			return err
		}
		if !found || !old.EndedAt.t.IsZero() {
			return lanegate.ErrWorkerGone
		}
		now := workerRow{Lanes: dbJSON[[]string]{w.Lanes}, Agent: old.Agent}
		if err := t.stampLanes(func(lane string) bool { return old.opens(lane) && !now.opens(lane) }); err != nil {
			return err
		}
		return t.one(sqlUpdateWorker, lanegate.ErrWorkerGone, now.Lanes, w.Slots, commandsOf(w), w.Draining, w.ID)
	})
}

// stampLanes notes for the chosen lanes that a worker stops serving them now.
func (t *tx) stampLanes(chosen func(lane string) bool) error {
	c, err := t.config()
	if err != nil {
		return err
	}
	for _, l := range c.Lanes {
		if !chosen(l.Name) {
			continue
		}
		if _, err := t.exec(sqlStampLane, at(t.at), l.Name); err != nil {
			return fmt.Errorf("note the last worker of lane %s: %w", l.Name, err)
		}
	}
	return nil
}

const sqlListHeld = `
SELECT job_id, number, token, cancel_requested, detached
  FROM attempts
 WHERE worker = $1 AND outcome IS NULL
 ORDER BY job_id`

// Beat implements service.Store. Detached attempts that the worker started are
// among those it holds.
func (s *Store) Beat(ctx context.Context, worker string) ([]service.Held, error) {
	var rows []struct {
		Job             string `db:"job_id"`
		Number          int    `db:"number"`
		Token           string `db:"token"`
		CancelRequested bool   `db:"cancel_requested"`
		Detached        bool   `db:"detached"`
	}
	err := s.transact(ctx, s.beat, "beat of worker "+worker, sqlReadAdmission, func(t *tx) error {
		if err := t.one(sqlBeatWorker, lanegate.ErrWorkerGone, at(t.at), worker); err != nil {
			return err
		}
		rows = rows[:0]
		return t.all(&rows, sqlListHeld, worker)
	})
	if err != nil {
		return nil, err
	}
	held := make([]service.Held, len(rows))
	for i, r := range rows {
		held[i] = service.Held{
			Fence:           lanegate.Fence{Job: r.Job, Number: r.Number, Token: r.Token},
			CancelRequested: r.CancelRequested, Detached: r.Detached,
		}
	}
	return held, nil
}

// LiveWorkers implements service.Store, ordered by id.
func (s *Store) LiveWorkers(ctx context.Context) ([]service.WorkerInfo, error) {
	var live []workerRow
	err := s.inRead(ctx, "list live workers", func(t *tx) (err error) {
		live, err = t.liveWorkers()
		return err
	})
	infos := make([]service.WorkerInfo, len(live))
	for i, w := range live {
		infos[i] = w.info()
	}
	return infos, err
}

const sqlCountSilent = `
SELECT a.lane AS lane, COUNT(*) AS n
  FROM attempts AS a
  LEFT JOIN workers AS w ON w.id = a.worker
 WHERE a.outcome IS NULL
   AND (a.detached AND a.heartbeat_by < $1
    OR NOT a.detached AND (w.id IS NULL OR w.ended_at IS NOT NULL OR w.beat_at < $2))
 GROUP BY a.lane`

// Silent implements service.Store.
func (s *Store) Silent(ctx context.Context, older time.Duration) (map[string]int, error) {
	var rows []struct {
		Lane string `db:"lane"`
		N    int    `db:"n"`
	}
	err := s.inRead(ctx, "count silent attempts", func(t *tx) error {
		return t.all(&rows, sqlCountSilent, at(t.at), at(t.at.Add(-older)))
	})
	silent := make(map[string]int, len(rows))
	for _, r := range rows {
		silent[r.Lane] = r.N
	}
	return silent, err
}

// LeaveWorker implements service.Store. A worker that has left, or was never
// known, may leave again.
func (s *Store) LeaveWorker(ctx context.Context, worker string) ([]service.Ended, error) {
	var ended []service.Ended
	err := s.inTx(ctx, "leave of worker "+worker, func(t *tx) (err error) {
		var w workerRow
		if _, err := t.get(&w, sqlGetWorkerLocked, worker); err != nil {
			return err
		}
		ended, err = t.endWorker(worker, w, "the worker left without an outcome")
		return err
	})
	return ended, err
}

// ReapWorker implements service.Store.
func (s *Store) ReapWorker(ctx context.Context, worker string, beat int64) ([]service.Ended, error) {
	var ended []service.Ended
	err := s.inTx(ctx, "reap worker "+worker, func(t *tx) (err error) {
		ended = nil
		var w workerRow
		found, err := t.get(&w, sqlGetWorkerLocked, worker)
		if err != nil || !found || !w.EndedAt.t.IsZero() || w.Beat != beat {
			return err
		}
		ended, err = t.endWorker(worker, w, "the worker died")
		return err
	})
	return ended, err
}

// endWorker ends w's row, which is locked, and makes its attempts lost. Detached
// ones go on: their targets report by themselves.
func (t *tx) endWorker(id string, w workerRow, why string) ([]service.Ended, error) {
	if w.ID != "" && w.EndedAt.t.IsZero() {
		if err := t.one(sqlEndWorker, nil, at(t.at), id); err != nil {
			return nil, err
		}
		if err := t.stampLanes(w.opens); err != nil {
			return nil, err
		}
	}
	ended, err := t.loseAll(why, sqlListTrialsOf, sqlListLost, id)
	if err != nil {
		return nil, err
	}
	forsaken, err := t.cancelForsaken(sqlListForsakenBy, id)
	return append(ended, forsaken...), err
}

// loseAll ends the verification runs and loses the attempts that two statements
// list. What a lost verification run made up and goes on by itself is asked to end.
func (t *tx) loseAll(why, trials, attempts string, args ...any) ([]service.Ended, error) {
	over, err := t.loseTrials(trials, why, args...)
	if err != nil {
		return nil, err
	}
	var lost []lostRow
	if err := t.all(&lost, attempts, args...); err != nil {
		return nil, err
	}
	ended, err := t.lose(lost, why)
	if err != nil {
		return nil, err
	}
	for _, id := range over {
		if err := t.cancelTrial(id); err != nil {
			return nil, fmt.Errorf("cancel the runs of verification run %s: %w", id, err)
		}
	}
	return ended, nil
}

// ReapOrphans implements service.Store.
func (s *Store) ReapOrphans(ctx context.Context) ([]service.Ended, error) {
	var ended []service.Ended
	err := s.inTx(ctx, "reap orphans", func(t *tx) (err error) {
		if ended, err = t.loseAll("the worker is gone", sqlListOrphanTrials, sqlListOrphans); err != nil {
			return err
		}
		forsaken, err := t.cancelForsaken(sqlListForsaken)
		ended = append(ended, forsaken...)
		return err
	})
	return ended, err
}

// lostRow is an attempt whose worker is gone, with the last sign of life there was.
type lostRow struct {
	Job       string `db:"job_id"`
	Number    int    `db:"number"`
	Token     string `db:"token"`
	StartedAt dbTime `db:"started_at"`
	BeatAt    dbTime `db:"beat_at"` // NULL: the worker's row is missing
}

const (
	lostColumns = `a.job_id, a.number, a.token, a.started_at, w.beat_at`

	sqlListLost = `
SELECT ` + lostColumns + `
  FROM attempts AS a
  LEFT JOIN workers AS w ON w.id = a.worker
 WHERE a.worker = $1 AND a.outcome IS NULL AND NOT a.detached
 ORDER BY a.job_id`
	sqlListOrphans = `
SELECT ` + lostColumns + `
  FROM attempts AS a
  LEFT JOIN workers AS w ON w.id = a.worker
 WHERE a.outcome IS NULL AND NOT a.detached AND (w.id IS NULL OR w.ended_at IS NOT NULL)
 ORDER BY a.job_id`
)

// lose records the outcome lost, in the order of jobs. The duration is an
// estimate: from the start to the worker's last beat.
func (t *tx) lose(lost []lostRow, why string) ([]service.Ended, error) {
	var all []service.Ended
	for _, l := range lost {
		var ran time.Duration
		if !l.BeatAt.t.IsZero() {
			ran = max(0, l.BeatAt.t.Sub(l.StartedAt.t))
		}
		var ended service.Ended
		late := false // it ended by itself since it was listed
		done, err := t.alone("losing an attempt", l.Job, func() (err error) {
			ended, err = t.endAttempt(lanegate.Fence{Job: l.Job, Number: l.Number, Token: l.Token},
				lanegate.Ending{Outcome: lanegate.Lost, Duration: ran, Error: why}, true)
			if late = errors.Is(err, lanegate.ErrLateWrite); late {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("lose attempt %d of job %s: %w", l.Number, l.Job, err)
		}
		if done && !late {
			all = append(all, ended)
		}
	}
	return all, nil
}

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlHeartbeat = `
UPDATE attempts SET heartbeat_by = $1
 WHERE job_id = $2 AND number = $3 AND token = $4 AND outcome IS NULL`
	sqlListOverdue = `
SELECT ` + attemptColumns + `
  FROM attempts
 WHERE outcome IS NULL AND detached AND heartbeat_by < $1
 ORDER BY job_id`
	// Takes the attempt's row, if no heartbeat has come since it was listed.
	sqlTakeOverdue = `
UPDATE attempts SET heartbeat_by = heartbeat_by
 WHERE job_id = $1 AND number = $2 AND token = $3 AND outcome IS NULL AND heartbeat_by < $4`
)

// Heartbeat implements service.Store. Once the class's time limit is over, the
// deadline stays where it is, so that a target that does not end loses its slot.
func (s *Store) Heartbeat(ctx context.Context, f lanegate.Fence) (heart service.Heart, err error) {
	err = s.inTx(ctx, "heartbeat of job "+f.Job, func(t *tx) error {
		heart, err = t.heartbeat(f)
		return err
	})
	return heart, err
}

func (t *tx) heartbeat(f lanegate.Fence) (service.Heart, error) {
	var row attemptRow
	found, err := t.get(&row, sqlGetAttempt, f.Job, f.Number, f.Token)
	switch {
	case err != nil:
		return service.Heart{}, fmt.Errorf("read attempt %d of job %s: %w", f.Number, f.Job, err)
	case !found || row.Outcome != nil:
		return service.Heart{}, lanegate.ErrLateWrite
	case !row.Detached:
		return service.Heart{}, lanegate.ErrNotDetached
	}
	class, err := t.classOf(row)
	if err != nil {
		return service.Heart{}, err
	}
	heart := service.Heart{CancelRequested: row.CancelRequested, TimedOut: t.timedOut(row, class)}
	by := t.at.Add(heartbeatOf(class.Run))
	if heart.TimedOut {
		heart.CancelRequested = true
		by = row.HeartbeatBy.t
	}
	if err := t.one(sqlHeartbeat, lanegate.ErrLateWrite, at(by), f.Job, f.Number, f.Token); err != nil {
		return service.Heart{}, err
	}
	heart.Within = max(0, by.Sub(t.at))
	return heart, nil
}

// classOf is the class of an attempt; the defaults stand for one that is gone.
func (t *tx) classOf(a attemptRow) (lanegate.Class, error) {
	cfg, err := t.config()
	if err != nil {
		return lanegate.Class{}, err
	}
	class, _ := cfg.class(a.Class)
	return class, nil
}

// timedOut says whether the attempt has taken as long as its class permits.
func (t *tx) timedOut(a attemptRow, class lanegate.Class) bool {
	return class.Timeout > 0 && t.at.Sub(a.StartedAt.t) >= class.Timeout.Std()
}

// ReapDetached implements service.Store.
func (s *Store) ReapDetached(ctx context.Context, watched time.Duration) ([]service.Ended, error) {
	var all []service.Ended
	err := s.inTx(ctx, "reap detached attempts", func(t *tx) error {
		all = nil
		var overdue []attemptRow
		if err := t.all(&overdue, sqlListOverdue, at(t.at)); err != nil {
			return err
		}
		for _, a := range overdue {
			class, err := t.classOf(a)
			if err != nil {
				return err
			}
			if heartbeatOf(class.Run) > watched {
				continue
			}
			var ended *service.Ended
			done, err := t.alone("losing a detached attempt", a.Job, func() (err error) {
				ended, err = t.loseDetached(a, class)
				return err
			})
			if err != nil {
				return fmt.Errorf("lose attempt %d of job %s: %w", a.Number, a.Job, err)
			}
			if done && ended != nil {
				all = append(all, *ended)
			}
		}
		return nil
	})
	return all, err
}

// loseDetached ends one overdue attempt; nil when it was heard of meanwhile. The
// duration is an estimate: up to its last sign of life.
func (t *tx) loseDetached(a attemptRow, class lanegate.Class) (*service.Ended, error) {
	if _, err := t.lockJob(a.Job); err != nil {
		return nil, err
	}
	switch n, err := t.exec(sqlTakeOverdue, a.Job, a.Number, a.Token, at(t.at)); {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, nil
	}
	window := heartbeatOf(class.Run)
	e := lanegate.Ending{
		Outcome: lanegate.Lost, Duration: max(0, a.HeartbeatBy.t.Add(-window).Sub(a.StartedAt.t)),
		Error: "no heartbeat and no completion came for " + lanegate.FormatDuration(window) + "; the target may still be working on it",
	}
	if t.timedOut(a, class) {
		e.Outcome = lanegate.TimedOut
		e.Error = "the time limit of " + lanegate.FormatDuration(class.Timeout.Std()) + " was reached, and the target did not complete the run; it may still be working on it"
	}
	ended, err := t.endAttempt(lanegate.Fence{Job: a.Job, Number: a.Number, Token: a.Token}, e, true)
	if errors.Is(err, lanegate.ErrLateWrite) {
		return nil, nil
	}
	return &ended, err
}

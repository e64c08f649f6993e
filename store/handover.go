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

const (
	sqlListTaken = `
SELECT h.job_id AS id
  FROM job_handovers AS h
  JOIN jobs AS j ON j.id = h.job_id
 WHERE h.target = $1 AND j.state = 'queued'`
	// The starts of one class's lines, without jobs that somebody waits for elsewhere.
	sqlListLeavable = `
SELECT id, class, first_at, place_at, place_id
  FROM jobs {{use jobs_line_idx}}
 WHERE state = 'queued' AND due AND class = $1 AND worker = '' AND verification = ''`
	sqlListLeavableLater = `
SELECT id
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due AND ready_at < $1 AND worker = '' AND verification = ''`
	sqlInsertHandover = `
INSERT INTO job_handovers (job_id, target, reason, ready_at, taken_at)
VALUES ($1, $2, $3, $4, $5)`
	sqlGetHandover = `
SELECT reason, ready_at
  FROM job_handovers
 WHERE job_id = $1 AND target = $2`
	sqlDeleteHandover = `
DELETE FROM job_handovers
 WHERE job_id = $1 AND target = $2`
	sqlCountTaken = `
SELECT count(*)
  FROM job_handovers AS h
  JOIN jobs AS j ON j.id = h.job_id
 WHERE h.target = $1 AND j.state = 'queued'`
	sqlCountLeavable = `
SELECT state, worker <> '' AS pinned, count(*) AS n
  FROM jobs
 WHERE state IN ('queued', 'running') AND verification = '' AND ready_at < $1 AND class IN `
)

// TakeOut implements service.HandOverStore.
func (s *Store) TakeOut(ctx context.Context, c service.HandOverChoice) ([]service.HandedJob, error) {
	var out []service.HandedJob
	err := s.inTx(ctx, "take jobs out of their lines", func(t *tx) error {
		out = nil
		ids, err := t.leavers(c)
		if err != nil {
			return err
		}
		taken := map[string]service.HandedJob{}
		for _, id := range slices.Sorted(slices.Values(ids)) { // jobs are locked by id
			j, ok, err := t.takeOut(id, c.To)
			if err != nil {
				return fmt.Errorf("take job %s out: %w", id, err)
			}
			if ok {
				taken[id] = j
			}
		}
		for _, id := range ids {
			if j, ok := taken[id]; ok {
				out = append(out, j)
			}
		}
		return nil
	})
	return out, err
}

// leavers lists up to Limit jobs in the order in which they are to go.
func (t *tx) leavers(c service.HandOverChoice) ([]string, error) {
	skip := func(p *params, column string) string {
		if len(c.Skip) == 0 {
			return ""
		}
		return " AND " + column + " NOT IN " + list(p, c.Skip)
	}
	p := params{c.To}
	var ids []string
	if err := t.all(&ids, sqlListTaken+skip(&p, "h.job_id")+" ORDER BY h.job_id LIMIT "+p.add(c.Limit), p...); err != nil {
		return nil, err
	}
	var due []headRow
	for _, class := range c.Classes {
		var rows []headRow
		p := params{class}
		q := sqlListLeavable + skip(&p, "id") + " ORDER BY first_at, place_at, place_id LIMIT " + p.add(c.Limit)
		if err := t.all(&rows, q, p...); err != nil {
			return nil, err
		}
		due = append(due, rows...)
	}
	slices.SortFunc(due, func(a, b headRow) int {
		return linePlace{a.FirstAt, a.PlaceAt, a.PlaceID}.compare(linePlace{b.FirstAt, b.PlaceAt, b.PlaceID})
	})
	for _, r := range due {
		ids = append(ids, r.Job)
	}
	if len(ids) < c.Limit {
		p := params{never}
		var later []string
		q := sqlListLeavableLater + " AND class IN " + list(&p, c.Classes) + skip(&p, "id") + " ORDER BY ready_at, place_at, place_id LIMIT " + p.add(c.Limit)
		if err := t.all(&later, q, p...); err != nil {
			return nil, err
		}
		ids = append(ids, later...)
	}
	return ids[:min(len(ids), c.Limit)], nil
}

// takeOut puts a queued job off for ever; false when it is not queued any more or
// somebody else has taken it. One that was taken for the same queue is taken again.
func (t *tx) takeOut(id, to string) (service.HandedJob, bool, error) {
	row, err := t.lockJob(id)
	if err != nil || row.State != lanegate.StateQueued {
		return service.HandedJob{}, false, err
	}
	if row.job().HandedOver() {
		var old handoverRow
		if found, err := t.get(&old, sqlGetHandover, id, to); err != nil || !found {
			return service.HandedJob{}, false, err
		}
	} else {
		if err := t.one(sqlInsertHandover, nil, id, to, row.Reason, row.ReadyAt, at(t.at)); err != nil {
			return service.HandedJob{}, false, err
		}
		row.ReadyAt, row.Due, row.Reason = never, false, "being sent to "+to
		if err := t.updateJob(row, lanegate.StateQueued); err != nil {
			return service.HandedJob{}, false, err
		}
	}
	j := service.HandedJob{JobDetail: service.JobDetail{Job: row.job()}}
	if found, err := t.get(&j.Payload, sqlGetPayload, id); err != nil || !found {
		return j, false, err
	}
	j.Origin, err = t.origin(id, j.Payload)
	return j, err == nil, err
}

type handoverRow struct {
	Reason  string `db:"reason"`
	ReadyAt dbTime `db:"ready_at"`
}

// ConfirmOut implements service.HandOverStore.
func (s *Store) ConfirmOut(ctx context.Context, to string, jobs []string, reason string) ([]lanegate.Job, error) {
	return s.settleOut(ctx, "confirm handed over jobs", to, jobs, func(t *tx, row *jobRow, old handoverRow) error {
		row.Reason, row.ReadyAt, row.FinishedAt = reason, old.ReadyAt, at(t.at)
		return row.move(lanegate.EventCancel)
	})
}

// TakeBack implements service.HandOverStore.
func (s *Store) TakeBack(ctx context.Context, to string, jobs []string) ([]lanegate.Job, error) {
	if jobs == nil {
		if err := s.inRead(ctx, "list handed over jobs", func(t *tx) error {
			jobs = []string{}
			return t.all(&jobs, sqlListTaken, to)
		}); err != nil {
			return nil, err
		}
	}
	return s.settleOut(ctx, "take jobs back", to, jobs, func(t *tx, row *jobRow, old handoverRow) error {
		row.Reason = old.Reason
		// By a moment that is not the submission's it can be told from a job that never
		// left its line, see sessionReads.
		if old.ReadyAt.t.Equal(row.SubmittedAt.t) {
			old.ReadyAt.t = old.ReadyAt.t.Add(time.Microsecond)
		}
		t.requeue(row, old.ReadyAt)
		return nil
	})
}

// settleOut changes those of the jobs that were taken for a queue and are queued
// still, and forgets that they were taken.
func (s *Store) settleOut(ctx context.Context, what, to string, jobs []string, change func(t *tx, row *jobRow, old handoverRow) error) ([]lanegate.Job, error) {
	var changed []lanegate.Job
	err := s.inTx(ctx, what, func(t *tx) error {
		changed = nil
		for _, id := range slices.Compact(slices.Sorted(slices.Values(jobs))) {
			row, err := t.lockJob(id)
			if errors.Is(err, lanegate.ErrJobNotFound) { // final and pruned since
				continue
			}
			if err != nil {
				return err
			}
			var old handoverRow
			found, err := t.get(&old, sqlGetHandover, id, to)
			if err != nil {
				return err
			}
			if !found {
				continue
			}
			if err := t.one(sqlDeleteHandover, nil, id, to); err != nil {
				return err
			}
			if row.State != lanegate.StateQueued { // a person has cancelled it meanwhile
				if row.ReadyAt.t.Equal(never.t) {
					row.ReadyAt = old.ReadyAt
					if err := t.updateJob(row, row.State); err != nil {
						return err
					}
				}
				continue
			}
			if err := change(t, &row, old); err != nil {
				return err
			}
			if err := t.updateJob(row, lanegate.StateQueued); err != nil {
				return err
			}
			changed = append(changed, row.job())
		}
		return nil
	})
	return changed, err
}

// CountOut implements service.HandOverStore.
func (s *Store) CountOut(ctx context.Context, to string, classes []string) (service.HandOverCount, error) {
	var n service.HandOverCount
	err := s.inRead(ctx, "count jobs that may leave", func(t *tx) error {
		n = service.HandOverCount{}
		if _, err := t.get(&n.Taken, sqlCountTaken, to); err != nil {
			return err
		}
		var rows []struct {
			State  lanegate.State `db:"state"`
			Pinned bool           `db:"pinned"`
			N      int            `db:"n"`
		}
		p := params{never}
		if err := t.all(&rows, sqlCountLeavable+list(&p, classes)+" GROUP BY state, worker <> ''", p...); err != nil {
			return err
		}
		for _, r := range rows {
			switch {
			case r.State == lanegate.StateRunning:
				n.Running += r.N
			case r.Pinned:
				n.Pinned += r.N
			default:
				n.Queued += r.N
			}
		}
		return nil
	})
	return n, err
}

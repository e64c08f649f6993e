package store

import (
	"fmt"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlListForsakenBy = `
SELECT id
  FROM jobs {{use jobs_worker_idx}}
 WHERE state = 'queued' AND worker <> '' AND worker = $1
 ORDER BY id`
	sqlListForsaken = `
SELECT id
  FROM jobs {{use jobs_worker_idx}}
 WHERE state = 'queued' AND worker <> ''
   AND NOT EXISTS (SELECT 1 FROM workers AS w WHERE w.id = jobs.worker AND w.ended_at IS NULL)
 ORDER BY worker, id` // the index's order
)

// cancelForsaken cancels the queued jobs that q lists: only a worker that is gone
// could run them, and they would stand in their class's way for ever. It locks them by
// their ids, as everybody does, so that no two wait for each other.
func (t *tx) cancelForsaken(q string, args ...any) ([]service.Ended, error) {
	var ids []string
	if err := t.all(&ids, q, args...); err != nil {
		return nil, fmt.Errorf("list jobs whose worker is gone: %w", err)
	}
	slices.Sort(ids)
	var all []service.Ended
	for _, id := range ids {
		var row jobRow
		done, err := t.alone("cancelling a job whose worker is gone", id, func() (err error) {
			if row, err = t.lockJob(id); err != nil || row.State != lanegate.StateQueued {
				return err
			}
			if err := row.move(lanegate.EventCancel); err != nil {
				return err
			}
			row.Reason, row.FinishedAt = "the process that waited to run it is gone", at(t.at)
			return t.updateJob(row, lanegate.StateQueued)
		})
		if err != nil {
			return nil, fmt.Errorf("cancel job %s: %w", id, err)
		}
		if done && row.State == lanegate.StateCancelled {
			all = append(all, service.Ended{Job: row.job()})
		}
	}
	return all, nil
}

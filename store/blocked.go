package store

import (
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
)

const sqlListBlocked = `
SELECT job_id, since
  FROM blocked_heads`

var (
	bulkDeleteBlocked = bulkSQL{
		one: `
DELETE FROM blocked_heads
 WHERE job_id = $1`,
		many: `
DELETE FROM blocked_heads
 USING {{rows text}} AS w (j)
 WHERE job_id = w.j`,
	}
	bulkSaveBlocked = bulkSQL{
		one: `
INSERT INTO blocked_heads (job_id, since)
VALUES ($1, $2)
    ON CONFLICT (job_id) DO UPDATE SET since = excluded.since`,
		many: `
INSERT INTO blocked_heads (job_id, since)
SELECT * FROM {{rows text timestamptz}}
    ON CONFLICT (job_id) DO UPDATE SET since = excluded.since`,
	}
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
	var gone, fresh [][]any
	for job := range before {
		if _, ok := now[job]; !ok {
			gone = append(gone, []any{job})
		}
	}
	for job, since := range now {
		if old, ok := before[job]; !ok || !old.Equal(lanegate.Micro(since)) {
			fresh = append(fresh, []any{job, at(since)})
		}
	}
	if err := t.each(bulkDeleteBlocked, gone); err != nil {
		return fmt.Errorf("forget blocked jobs: %w", err)
	}
	if err := t.each(bulkSaveBlocked, fresh); err != nil {
		return fmt.Errorf("remember blocked jobs: %w", err)
	}
	return nil
}

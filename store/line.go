package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
	"github.com/lanegate/lanegate/service"
)

const sqlListNotDue = `
SELECT id, class, first_at, place_at, place_id, ready_at
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due AND ready_at < $1
 ORDER BY ready_at, place_at, place_id
 LIMIT $2`

// Line implements service.Store.
func (s *Store) Line(ctx context.Context, perClass, notDue int) (service.Line, error) {
	var line service.Line
	err := s.inRead(ctx, "read the line", func(t *tx) (err error) {
		line = service.Line{}
		if line.Input, err = t.snapshot(); err != nil {
			return err
		}
		line.Input.Due = nil
		if err := t.addDue(&line, perClass); err != nil {
			return err
		}
		return t.addNotDue(&line, notDue)
	})
	return line, err
}

// addDue reads the starts of all classes' lines; one row more than wanted tells
// that a line goes on.
func (t *tx) addDue(line *service.Line, perClass int) error {
	classes := make([]string, 0, len(line.Input.Classes))
	for _, c := range line.Input.Classes {
		classes = append(classes, c.ID)
	}
	names, err := json.Marshal(classes)
	if err != nil {
		return err
	}
	var rows []headRow
	if err := t.all(&rows, t.s.d.heads, string(names), perClass+1); err != nil {
		return fmt.Errorf("read the starts of the lines: %w", err)
	}
	count := map[string]int{}
	for _, r := range rows {
		if count[r.Class]++; count[r.Class] > perClass {
			line.Cut = append(line.Cut, r.Class)
			continue
		}
		line.Queued = append(line.Queued, runlog.Waiting{Due: r.due(), ReadyAt: line.Input.Now})
	}
	return nil
}

func (t *tx) addNotDue(line *service.Line, limit int) error {
	var rows []struct {
		headRow
		ReadyAt dbTime `db:"ready_at"`
	}
	if err := t.all(&rows, sqlListNotDue, never, limit+1); err != nil {
		return fmt.Errorf("list the jobs that wait for their time: %w", err)
	}
	if len(rows) > limit {
		rows, line.NotDueCut = rows[:limit], true
	}
	for _, r := range rows {
		line.Queued = append(line.Queued, runlog.Waiting{Due: r.due(), ReadyAt: r.ReadyAt.t})
	}
	return nil
}

const sqlListRecent = `
SELECT class, duration, outcome, ended_at
  FROM run_log
 WHERE class = $1 AND source = 'own' AND verification = '' AND outcome IN ('succeeded', 'failed', 'timed_out')
 ORDER BY ended_at DESC, id DESC
 LIMIT $2`

// RecentDurations implements service.Store.
func (s *Store) RecentDurations(ctx context.Context, classes []string, limit int) (map[string][]lanegate.RunRecord, error) {
	out := make(map[string][]lanegate.RunRecord, len(classes))
	err := s.inRead(ctx, "read the latest durations", func(t *tx) error {
		clear(out)
		for _, class := range classes {
			var rows []runRow
			if err := t.all(&rows, sqlListRecent, class, limit); err != nil {
				return fmt.Errorf("of class %s: %w", class, err)
			}
			for _, r := range rows {
				out[class] = append(out[class], r.record())
			}
		}
		return nil
	})
	return out, err
}

const sqlImportRun = `
INSERT INTO run_log (job_id, attempt, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at,
       duration, estimated, outcome, verification, source)
VALUES ($1, $2, $3, '', '', $4, $5, $6, $7, $8, $9, $10, $11, '', 'import')
    ON CONFLICT (job_id, attempt) WHERE source = 'import' DO NOTHING`

// importPart is how many rows one transaction takes, so that submissions wait little.
const importPart = 250

// ImportRuns implements service.Store. It goes on part by part; an error leaves the
// parts before it in the log, where a repeat finds them.
func (s *Store) ImportRuns(ctx context.Context, rows []lanegate.RunRecord) (int, error) {
	added := 0
	for part := range slices.Chunk(rows, importPart) {
		n := 0
		err := s.inTx(ctx, "import runs", func(t *tx) error {
			n = 0
			for _, r := range part {
				if r.Units == nil {
					r.Units = lanegate.Units{}
				}
				one, err := t.exec(sqlImportRun, text(r.Job), r.Attempt, text(r.Class), dbJSON[lanegate.Units]{r.Units}, atPtr(r.SubmittedAt), atPtr(r.ReadyAt),
					at(r.StartedAt), at(r.EndedAt), r.Duration, r.Estimated, r.Outcome)
				if err != nil {
					return fmt.Errorf("import %s: %w", r.Job, err)
				}
				n += int(one)
			}
			return nil
		})
		if err != nil {
			return added, err
		}
		added += n
	}
	return added, nil
}

package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlAppendHistory = `
INSERT INTO history (at, subject, event, actor, reason, evidence)
VALUES ($1, $2, $3, $4, $5, $6)`
	historyColumns = `id, at, subject, event, actor, reason, evidence`
	sqlListHistory = `
SELECT ` + historyColumns + `
  FROM history
 WHERE subject = $1 AND id < $2
 ORDER BY id DESC
 LIMIT $3`
)

type historyRow struct {
	ID       int64                  `db:"id"`
	At       dbTime                 `db:"at"`
	Subject  string                 `db:"subject"`
	Event    string                 `db:"event"`
	Actor    string                 `db:"actor"`
	Reason   string                 `db:"reason"`
	Evidence dbJSON[map[string]any] `db:"evidence"`
}

func (r historyRow) event() service.HistoryEvent {
	return service.HistoryEvent{
		ID: r.ID, At: r.At.t, Subject: r.Subject, Event: r.Event, Actor: r.Actor, Reason: r.Reason, Evidence: r.Evidence.v,
	}
}

func (t *tx) appendHistory(e service.HistoryEvent) error {
	if err := t.one(sqlAppendHistory, nil, t.orNow(e.At), e.Subject, e.Event, e.Actor, text(e.Reason), dbJSON[map[string]any]{e.Evidence}); err != nil {
		return fmt.Errorf("append to the history of %s: %w", e.Subject, err)
	}
	return nil
}

// History implements service.Store.
func (s *Store) History(ctx context.Context, subject string, before int64, limit int) ([]service.HistoryEvent, error) {
	if before <= 0 {
		before = 1<<63 - 1
	}
	if limit <= 0 {
		limit = defaultLimit
	}
	var rows []historyRow
	err := s.inRead(ctx, "read the history of "+subject, func(t *tx) error {
		return t.all(&rows, sqlListHistory, subject, before, limit)
	})
	if err != nil {
		return nil, err
	}
	events := make([]service.HistoryEvent, len(rows))
	for i, r := range rows {
		events[i] = r.event()
	}
	return events, nil
}

const (
	sqlCountDue = `
SELECT class, count(*) AS n, min(ready_at) AS oldest
  FROM jobs {{use jobs_line_idx}}
 WHERE state = 'queued' AND due
 GROUP BY class
 ORDER BY class`
	sqlCountWaiting = `
SELECT class, ready_at <= $1 AS ready, count(*) AS n, min(ready_at) AS oldest
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due
 GROUP BY class, ready_at <= $1
 ORDER BY class`
)

// Lines implements service.Store, ordered by class.
func (s *Store) Lines(ctx context.Context) ([]service.ClassLine, error) {
	type row struct {
		Class  string `db:"class"`
		Ready  bool   `db:"ready"`
		N      int    `db:"n"`
		Oldest dbTime `db:"oldest"`
	}
	var due, waiting []row
	err := s.inRead(ctx, "count the lines", func(t *tx) error {
		if err := t.all(&due, sqlCountDue); err != nil {
			return err
		}
		return t.all(&waiting, sqlCountWaiting, at(t.at))
	})
	if err != nil {
		return nil, err
	}
	for i := range due {
		due[i].Ready = true
	}
	var lines []service.ClassLine
	index := map[string]int{}
	for _, r := range append(due, waiting...) {
		i, ok := index[r.Class]
		if !ok {
			i, index[r.Class] = len(lines), len(lines)
			lines = append(lines, service.ClassLine{Class: r.Class})
		}
		l := &lines[i]
		if !r.Ready {
			l.NotDue += r.N
			continue
		}
		l.Due += r.N
		if l.OldestAt.IsZero() || r.Oldest.t.Before(l.OldestAt) {
			l.OldestAt = r.Oldest.t
		}
	}
	return lines, nil
}

type runRow struct {
	ID           int64                  `db:"id"`
	Job          string                 `db:"job_id"`
	Attempt      int                    `db:"attempt"`
	Class        string                 `db:"class"`
	Lane         string                 `db:"lane"`
	Fingerprint  string                 `db:"fingerprint"`
	Units        dbJSON[lanegate.Units] `db:"units"`
	SubmittedAt  dbTime                 `db:"submitted_at"`
	ReadyAt      dbTime                 `db:"ready_at"`
	StartedAt    dbTime                 `db:"started_at"`
	EndedAt      dbTime                 `db:"ended_at"`
	Duration     time.Duration          `db:"duration"`
	Estimated    bool                   `db:"estimated"`
	Outcome      lanegate.Outcome       `db:"outcome"`
	Verification string                 `db:"verification"`
	Source       string                 `db:"source"`
}

func (r runRow) record() lanegate.RunRecord {
	return lanegate.RunRecord{
		Job: r.Job, Attempt: r.Attempt, Class: r.Class, Lane: r.Lane, Fingerprint: r.Fingerprint, Units: r.Units.v,
		SubmittedAt: r.SubmittedAt.ptr(), ReadyAt: r.ReadyAt.ptr(), StartedAt: r.StartedAt.t, EndedAt: r.EndedAt.t,
		Duration: r.Duration, Estimated: r.Estimated, Outcome: r.Outcome,
		Verification: r.Verification, Source: r.Source,
	}
}

const (
	runColumns = `id, job_id, attempt, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at,
       duration, estimated, outcome, verification, source`
	sqlListRuns = `
SELECT ` + runColumns + `
  FROM run_log
 WHERE (ended_at, id) > ($1, $2) AND ended_at < $3 AND source = 'own'
 ORDER BY ended_at, id
 LIMIT $4`
	sqlListAllRuns = `
SELECT ` + runColumns + `
  FROM run_log
 WHERE (ended_at, id) > ($1, $2) AND ended_at < $3
 ORDER BY ended_at, id
 LIMIT $4`
	sqlListClassRuns = `
SELECT ` + runColumns + `
  FROM run_log
 WHERE class = $5 AND (ended_at, id) > ($1, $2) AND ended_at < $3 AND source = 'own'
 ORDER BY ended_at, id
 LIMIT $4`
)

// runPage is how many rows of the run log are in memory at once.
const runPage = 1000

// RunLog implements service.Store. It reads page by page and holds nothing open
// while row runs, so a slow reader costs no one anything; rows that are pruned
// meanwhile are left out. An error of row ends it and is returned as it is.
func (s *Store) RunLog(ctx context.Context, class string, from, to time.Time, row func(lanegate.RunRecord) error) error {
	q, args := sqlListRuns, []any{nil, nil, at(to), runPage}
	if class != "" {
		q, args = sqlListClassRuns, append(args, class)
	}
	return s.runPages(ctx, q, args, from, row)
}

// WholeRunLog implements service.Store, in the way of RunLog.
func (s *Store) WholeRunLog(ctx context.Context, from, to time.Time, row func(lanegate.RunRecord) error) error {
	return s.runPages(ctx, sqlListAllRuns, []any{nil, nil, at(to), runPage}, from, row)
}

// runPages hands out the rows of a statement of the run log, page by page.
func (s *Store) runPages(ctx context.Context, q string, args []any, from time.Time, row func(lanegate.RunRecord) error) error {
	// ids start at 1, so (from, 0) stands before every row of that instant.
	after, id := at(from), int64(0)
	for {
		args[0], args[1] = after, id
		var rows []runRow
		err := s.inRead(ctx, "read the run log", func(t *tx) error { return t.all(&rows, q, args...) })
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := row(r.record()); err != nil {
				return err
			}
		}
		if len(rows) < runPage {
			return nil
		}
		after, id = rows[len(rows)-1].EndedAt, rows[len(rows)-1].ID
	}
}

const sqlListSuccesses = `
SELECT class, ended_at
  FROM class_successes`

// LastSuccess implements service.Store.
func (s *Store) LastSuccess(ctx context.Context) (map[string]time.Time, error) {
	var rows []struct {
		Class   string `db:"class"`
		EndedAt dbTime `db:"ended_at"`
	}
	err := s.inRead(ctx, "read the last successes", func(t *tx) error { return t.all(&rows, sqlListSuccesses) })
	if err != nil {
		return nil, err
	}
	last := make(map[string]time.Time, len(rows))
	for _, r := range rows {
		last[r.Class] = r.EndedAt.t
	}
	return last, nil
}

// Ids of jobs grow with time, so the first by id is the first submitted. It is the
// first of those in each state, whose order leaves no other index to find it by.
var sqlFirstWait = `
SELECT submitted_at, run_at
  FROM jobs
 WHERE id = (SELECT min(id)
               FROM (` + firstInStates() + `
                     SELECT j.id
                       FROM attempts AS a {{use attempts_in_flight_idx}}
                       JOIN jobs AS j ON j.id = a.job_id
                      WHERE a.class = $1 AND a.outcome IS NULL AND j.verification = '') AS firsts)
   AND NOT EXISTS (SELECT 1
                     FROM run_log
                    WHERE class = $1 AND source = 'own' AND outcome NOT IN ('deferred', 'interrupted'))`

// firstInStates selects the first job of class $1 in each state but running.
func firstInStates() string {
	var q strings.Builder
	for _, state := range lanegate.States {
		if state == lanegate.StateRunning {
			continue
		}
		fmt.Fprintf(&q, `
                     SELECT id
                       FROM (SELECT id
                               FROM jobs {{use jobs_state_idx}}
                              WHERE state = '%s' AND state || '' <> 'running' AND class >= $1 AND class <= $1 AND verification = ''
                              ORDER BY class, id
                              LIMIT 1) AS %[1]s
                      UNION ALL`, state)
	}
	return q.String()
}

// FirstWaits implements service.Store.
func (s *Store) FirstWaits(ctx context.Context, classes []string) (map[string]time.Time, error) {
	first := make(map[string]time.Time, len(classes))
	err := s.inRead(ctx, "read the first submissions", func(t *tx) error {
		clear(first)
		for _, class := range classes {
			var rows []struct {
				SubmittedAt dbTime `db:"submitted_at"`
				RunAt       dbTime `db:"run_at"`
			}
			if err := t.all(&rows, sqlFirstWait, class); err != nil {
				return fmt.Errorf("of class %s: %w", class, err)
			}
			for _, r := range rows {
				first[class] = r.SubmittedAt.t
				if r.RunAt.t.After(r.SubmittedAt.t) {
					first[class] = r.RunAt.t
				}
			}
		}
		return nil
	})
	return first, err
}

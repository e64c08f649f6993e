package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlGetBytes = `
SELECT p.payload, r.result
  FROM job_payloads AS p
  LEFT JOIN job_results AS r ON r.job_id = p.job_id
 WHERE p.job_id = $1`
	sqlListAttempts = `
SELECT ` + attemptColumns + `
  FROM attempts
 WHERE job_id = $1
 ORDER BY number`
	sqlGetOutput = `
SELECT coalesce(o.head, '') AS head, coalesce(o.tail, '') AS tail,
       coalesce(o.bytes, 0) AS bytes, coalesce(o.dropped, 0) AS dropped
  FROM attempts AS a
  LEFT JOIN attempt_outputs AS o ON o.job_id = a.job_id AND o.number = a.number
 WHERE a.job_id = $1 AND a.number = $2`
)

// getJob reads a job without a lock; ErrJobNotFound.
func (t *tx) getJob(id string) (jobRow, error) {
	var row jobRow
	found, err := t.get(&row, sqlGetJob, id)
	if err == nil && !found {
		err = lanegate.ErrJobNotFound
	}
	return row, err
}

// Job implements service.Store.
func (s *Store) Job(ctx context.Context, id string) (service.JobDetail, error) {
	var d service.JobDetail
	err := s.inRead(ctx, "read job "+id, func(t *tx) error {
		row, err := t.getJob(id)
		if err != nil {
			return err
		}
		var bytes struct {
			Payload []byte `db:"payload"`
			Result  []byte `db:"result"`
		}
		if _, err := t.get(&bytes, sqlGetBytes, id); err != nil {
			return err
		}
		d = service.JobDetail{Job: row.job(), Payload: bytes.Payload, Result: bytes.Result}
		return nil
	})
	return d, err
}

// defaultLimit is how many rows a list has when nobody says.
const defaultLimit = 100

// Jobs implements service.Store.
func (s *Store) Jobs(ctx context.Context, f service.JobFilter) ([]lanegate.Job, error) {
	var rows []jobRow
	err := s.inRead(ctx, "list jobs", func(t *tx) error {
		q, args := listJobs(f)
		return t.all(&rows, q, args...)
	})
	if err != nil {
		return nil, err
	}
	jobs := make([]lanegate.Job, len(rows))
	for i, r := range rows {
		jobs[i] = r.job()
	}
	return jobs, nil
}

// listJobs puts the statement for a filter together, from fixed parts.
func listJobs(f service.JobFilter) (string, []any) {
	var p params
	var where []string
	and := func(format string, args ...any) { where = append(where, fmt.Sprintf(format, args...)) }
	if f.Before != "" {
		and("id < %s", p.add(f.Before))
	}
	if f.Classes != nil {
		if len(f.Classes) == 0 {
			and("1 = 0") // of no class, not of all
		} else {
			and("%sclass IN %s", plainUnless(len(f.Classes) == 1), list(&p, f.Classes))
		}
	}
	if len(f.States) > 0 {
		// Open jobs are few among all; finished ones are not, and come by id anyway.
		open := !slices.ContainsFunc(f.States, lanegate.State.Final)
		and("%sstate IN %s", plainUnless(open || len(f.States) == 1), list(&p, f.States))
	}
	if f.Lane != "" {
		lane := p.add(f.Lane)
		and("((state = 'queued' AND class IN (SELECT c.id FROM job_classes AS c WHERE c.lane = %s)) OR (state <> 'queued' AND route_lane = %s))", lane, lane)
	}
	if f.Client != "" {
		and("client = %s", p.add(f.Client))
	}
	if f.SubmittedFrom != nil {
		and("submitted_at >= %s", p.add(atPtr(f.SubmittedFrom)))
	}
	if f.SubmittedTo != nil {
		and("submitted_at < %s", p.add(atPtr(f.SubmittedTo)))
	}
	if !f.Verification {
		and("verification = ''")
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	if len(where) == 0 {
		and("1 = 1")
	}
	return "SELECT " + jobColumns + "\n  FROM jobs\n WHERE " + strings.Join(where, " AND ") +
		"\n ORDER BY id DESC\n LIMIT " + p.add(limit), p
}

// plainUnless keeps a column's index out of a list unless it is worth its while.
func plainUnless(indexed bool) string {
	if indexed {
		return ""
	}
	return "{{plain}}"
}

// Attempts implements service.Store, in the order of their numbers.
func (s *Store) Attempts(ctx context.Context, job string) ([]lanegate.Attempt, error) {
	var rows []attemptRow
	err := s.inRead(ctx, "list the attempts of job "+job, func(t *tx) error {
		if _, err := t.getJob(job); err != nil {
			return err
		}
		return t.all(&rows, sqlListAttempts, job)
	})
	if err != nil {
		return nil, err
	}
	attempts := make([]lanegate.Attempt, len(rows))
	for i, r := range rows {
		attempts[i] = r.attempt()
	}
	return attempts, nil
}

// Output implements service.Store; it is empty for an attempt that printed
// nothing or is in flight.
func (s *Store) Output(ctx context.Context, job string, n int) (lanegate.Output, error) {
	var row struct {
		Head    string `db:"head"`
		Tail    string `db:"tail"`
		Bytes   int64  `db:"bytes"`
		Dropped int64  `db:"dropped"`
	}
	err := s.inRead(ctx, "read the output of job "+job, func(t *tx) error {
		found, err := t.get(&row, sqlGetOutput, job, n)
		if err != nil || found {
			return err
		}
		if _, err := t.getJob(job); err != nil {
			return err
		}
		return lanegate.ErrAttemptNotFound
	})
	return lanegate.Output{Head: row.Head, Tail: row.Tail, Bytes: row.Bytes, Dropped: row.Dropped}, err
}

// act changes one job under its lock.
func (s *Store) act(ctx context.Context, what, id string, fn func(t *tx, row *jobRow) error) (lanegate.Job, error) {
	var row jobRow
	err := s.inTx(ctx, what+" job "+id, func(t *tx) (err error) {
		if row, err = t.lockJob(id); err != nil {
			return err
		}
		return fn(t, &row)
	})
	if err != nil {
		return lanegate.Job{}, err
	}
	return row.job(), nil
}

const sqlCancelAttempt = `
UPDATE attempts SET cancel_requested = $1
 WHERE job_id = $2 AND outcome IS NULL`

// Cancel implements service.Store. Asking twice for a running job is no error.
func (s *Store) Cancel(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "cancel", job, func(t *tx, row *jobRow) error {
		from := row.State
		switch from {
		case lanegate.StateQueued:
			if err := row.move(lanegate.EventCancel); err != nil {
				return err
			}
			row.Reason, row.FinishedAt = "cancelled by "+actor, at(t.at)
		case lanegate.StateRunning:
			return t.askToEnd(row, actor)
		default:
			return lanegate.ErrJobFinal
		}
		return t.updateJob(*row, from)
	})
}

// askToEnd asks a running job, which is locked, to end; a second time it changes nothing.
func (t *tx) askToEnd(row *jobRow, actor string) error {
	if row.CancelRequested {
		return nil
	}
	row.CancelRequested, row.Reason = true, "asked to end by "+actor
	if err := t.one(sqlCancelAttempt, nil, true, row.ID); err != nil {
		return err
	}
	return t.updateJob(*row, lanegate.StateRunning)
}

// Retry implements service.Store. A run that a verification made up is never
// repeated; a job whose class was deleted is ErrUnknownClass.
func (s *Store) Retry(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "retry", job, func(t *tx, row *jobRow) error {
		if row.Verification != "" {
			return lanegate.ErrNotRetryable.With("job %s was made up by verification run %s and is never repeated; start another verification run instead.", row.ID, row.Verification)
		}
		if row.State != lanegate.StateFailed {
			return lanegate.ErrNotRetryable
		}
		return t.revive(row, "retried by "+actor)
	})
}

// RunNext implements service.Store. Of several such jobs the one that was asked
// for first goes first.
func (s *Store) RunNext(ctx context.Context, job, actor string) (lanegate.Job, error) {
	return s.act(ctx, "run next", job, func(t *tx, row *jobRow) error {
		if row.Verification != "" {
			return lanegate.ErrNotQueued.With("job %s was made up by verification run %s and never stands in a line.", row.ID, row.Verification)
		}
		if row.State != lanegate.StateQueued {
			return lanegate.ErrNotQueued
		}
		row.FirstAt = at(t.at)
		if err := t.updateJob(*row, lanegate.StateQueued); err != nil {
			return err
		}
		return t.appendHistory(service.HistoryEvent{
			Subject: "class:" + row.Class, Event: "run_next", Actor: actor, Evidence: map[string]any{"job": row.ID},
		})
	})
}

// linePlace is a job's position in the line of a lane.
type linePlace struct {
	first, at dbTime
	id        string
}

func linePlaceOf(j lanegate.Job) linePlace {
	p := linePlace{first: never, at: at(j.PlaceAt), id: j.PlaceID}
	if j.FirstAt != nil {
		p.first = at(*j.FirstAt)
	}
	return p
}

func (p linePlace) compare(q linePlace) int {
	return cmp.Or(p.first.t.Compare(q.first.t), p.at.t.Compare(q.at.t), cmp.Compare(p.id, q.id))
}

// Ahead implements service.Store. The jobs are taken in line order and only what
// stands between one and the next is counted, so that the line is walked once.
func (s *Store) Ahead(ctx context.Context, jobs []lanegate.Job, classes []string, max int) ([]service.Ahead, error) {
	ahead := make([]service.Ahead, len(jobs))
	if len(classes) == 0 || len(jobs) == 0 {
		return ahead, nil
	}
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return linePlaceOf(jobs[i]).compare(linePlaceOf(jobs[j])) })
	err := s.inRead(ctx, "count the jobs ahead", func(t *tx) error {
		var from *linePlace
		count := 0
		for _, i := range order {
			to := linePlaceOf(jobs[i])
			n, err := t.countLine(classes, from, to)
			if err != nil {
				return err
			}
			count += n
			ahead[i].Count = count
			from = &to
		}
		first, err := t.firstInLine(classes, linePlaceOf(jobs[order[len(order)-1]]), max)
		if err != nil {
			return err
		}
		for i := range ahead {
			if n := min(ahead[i].Count, len(first)); n > 0 {
				ahead[i].First = slices.Clone(first[:n])
			}
		}
		return nil
	})
	return ahead, err
}

const sqlFromLine = "\n  FROM jobs {{use jobs_line_idx}}\n WHERE state = 'queued' AND due AND class IN "

// countLine counts the due jobs of the classes in [from, to); nil from is the line's start.
func (t *tx) countLine(classes []string, from *linePlace, to linePlace) (n int, err error) {
	var p params
	q := "SELECT count(*)" + sqlFromLine + list(&p, classes)
	if from != nil {
		q += " AND (first_at, place_at, place_id) >= (" + p.add(from.first) + ", " + p.add(from.at) + ", " + p.add(from.id) + ")"
	}
	q += " AND (first_at, place_at, place_id) < (" + p.add(to.first) + ", " + p.add(to.at) + ", " + p.add(to.id) + ")"
	_, err = t.get(&n, q, p...)
	return n, err
}

// firstInLine lists the first max due jobs of the classes before a place: the
// first of each class, merged, so that no class's whole line is sorted.
func (t *tx) firstInLine(classes []string, before linePlace, max int) ([]string, error) {
	if max <= 0 {
		return nil, nil
	}
	names, err := json.Marshal(classes)
	if err != nil {
		return nil, err
	}
	var rows []headRow
	if err := t.all(&rows, t.s.d.heads, string(names), max); err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b headRow) int {
		return linePlace{a.FirstAt, a.PlaceAt, a.PlaceID}.compare(linePlace{b.FirstAt, b.PlaceAt, b.PlaceID})
	})
	var ids []string
	for _, r := range rows {
		if len(ids) == max || (linePlace{r.FirstAt, r.PlaceAt, r.PlaceID}).compare(before) >= 0 {
			break
		}
		ids = append(ids, r.Job)
	}
	return ids, nil
}

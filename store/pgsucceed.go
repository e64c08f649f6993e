package store

import (
	"cmp"
	"slices"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// sqlPGSucceed records good ends of ordinary attempts in one round trip: one statement
// that commits by itself. It makes the same rows as the long way (pgBeginGroup,
// endTogether, noteSuccesses), for those attempts only whose jobs wait for nothing
// else; the others it leaves as they are. READ COMMITTED gives it the snapshot of its
// beginning, so it counts on this:
//
//   - Locks. Rows of jobs are locked one by one in the order of their ids, in which the
//     arrays are; the clock is read behind the last of them, and attempts are touched
//     behind the clock. class_successes comes last, in the order of the classes. So it
//     waits in the order of pglock.go, as all do who end attempts.
//   - Another writer of the outcome (the reaper, a second completion, a worker that
//     repeats itself) has the job's row first, or waits for it here. Behind that lock
//     the row is judged as it is then, not as the snapshot has it: a job that is not
//     running, or runs a later attempt, is not held. Should an attempt have ended all
//     the same, the fence of the UPDATE, which is judged anew on the latest version
//     too, matches no row. All that follows comes from the rows that this UPDATE gives.
//   - A cancel sets a flag of the job and of the attempt under the job's lock. A success
//     wins over it, and nothing here writes the flags or goes by what they were.
//   - A heartbeat of a detached run moves a deadline of the attempt, without the job's
//     lock. The UPDATE waits for it, and keeps what it wrote; one that comes later finds
//     an outcome.
//   - A verification run takes jobs as they start, which needs them queued, and neither
//     jobs that were made up nor attempts that belong to a run are ended here.
//   - A class is not deleted while the deleter sees one of its jobs running, which it
//     does until this commits; the class's success is there from then on, too, and is
//     deleted with it.
//   - Nothing is inserted before this begins that it must see: who knows the fence had
//     it from a start that was committed.
//
// The parameters are arrays of the same length, in which one without elements stands
// for nothing but empty values or nulls; no job is in them twice. The answer is one
// row: the time, and for each attempt that was ended, in the same order in each array,
// its number in the parameters from 1, class, lane, failures and losses of the job. The
// time is null when there is none.
//
// The subquery that locks is a seek in the key of jobs for each row, in the order of
// the rows, whatever the planner makes of a table that was empty once.
const sqlPGSucceed = `
  WITH held AS MATERIALIZED (
    SELECT r.*, j.submitted_at, j.failures, j.losses
      FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS text[]), CAST($4 AS bigint[]), CAST($5 AS text[]),
           CAST($6 AS bigint[]), CAST($7 AS text[]), CAST($8 AS bigint[]), CAST($9 AS bytea[]), CAST($10 AS text[]),
           CAST($11 AS text[]), CAST($12 AS bigint[]), CAST($13 AS bigint[]))
           WITH ORDINALITY AS r (job, number, token, duration, error, exit_code, signal, status, result, head, tail, bytes, dropped, n)
     CROSS JOIN LATERAL (
           SELECT submitted_at, failures, losses
             FROM jobs
            WHERE id = r.job AND coalesce(state, '') = 'running' AND attempts = r.number AND verification = ''
              FOR UPDATE) AS j),
       moment AS MATERIALIZED (
    SELECT clock_timestamp() AS at
      FROM (SELECT count(*) AS n FROM held) AS h
     WHERE h.n > 0),
       a AS (
    UPDATE attempts SET outcome = 'succeeded', ended_at = moment.at, duration = w.duration, estimated = false, error = coalesce(w.error, ''),
           exit_code = w.exit_code, signal = coalesce(w.signal, ''), status = coalesce(w.status, 0)
      FROM moment
     CROSS JOIN held AS w
     WHERE attempts.job_id = w.job AND attempts.number = w.number AND attempts.token = w.token
       AND coalesce(attempts.outcome, '') = '' AND attempts.verification = ''
    RETURNING w.*, attempts.class, attempts.lane, attempts.fingerprint, attempts.units, attempts.ready_at, attempts.started_at, attempts.ended_at),
       j AS (
    UPDATE jobs SET state = 'succeeded', reason = '', deferrals = 0, interruptions = 0, finished_at = a.ended_at, ring_at = NULL, rings = 0
      FROM a
     WHERE jobs.id = a.job),
       r AS (
    INSERT INTO job_results (job_id, result)
    SELECT job, result
      FROM a
     WHERE result IS NOT NULL
        ON CONFLICT (job_id) DO UPDATE SET result = excluded.result),
       o AS (
    INSERT INTO attempt_outputs (job_id, number, head, tail, bytes, dropped)
    SELECT job, number, coalesce(head, ''), coalesce(tail, ''), bytes, coalesce(dropped, 0)
      FROM a
     WHERE bytes IS NOT NULL),
       l AS (
    INSERT INTO run_log (job_id, attempt, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at,
           duration, estimated, outcome, verification, source)
    SELECT job, number, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at,
           duration, false, 'succeeded', '', 'own'
      FROM a),
       s AS (
    INSERT INTO class_successes (class, ended_at)
    SELECT class, max(ended_at)
      FROM a
     GROUP BY class
     ORDER BY class COLLATE "C"
        ON CONFLICT (class) DO UPDATE SET ended_at = greatest(excluded.ended_at, class_successes.ended_at))
SELECT max(ended_at), array_agg(n), array_agg(class), array_agg(lane), array_agg(failures), array_agg(losses)
  FROM a`

// pgSucceeding are those of the items that sqlPGSucceed may record, in the order of
// their jobs. Who is first to end a job in a group decides whether it is among them.
func pgSucceeding(items []*item) (list []*item) {
	jobs, size := make(map[string]bool, len(items)), 0
	for _, it := range items {
		e := it.end
		if e == nil || jobs[e.fence.Job] {
			continue
		}
		jobs[e.fence.Job] = true
		plain := e.Outcome == lanegate.Succeeded && e.Duration > 0 && len(e.Trouble) == 0 && len(e.Measured) == 0
		if size += len(e.Error) + len(e.Result) + len(e.Output.Head) + len(e.Output.Tail); plain && size <= maxBytes {
			list = append(list, it)
		}
	}
	slices.SortFunc(list, func(a, b *item) int { return cmp.Compare(a.end.fence.Job, b.end.fence.Job) })
	return list
}

// pgSucceedArgs are the arguments of sqlPGSucceed.
func pgSucceedArgs(list []*item) []any {
	n := len(list)
	texts := func(of func(*ending) string) []byte {
		return textColumn(n, func(i int) string { return of(list[i].end) })
	}
	numbers := func(of func(*ending) (int64, bool)) []byte {
		return numberColumn(n, func(i int) (int64, bool) { return of(list[i].end) })
	}
	return []any{
		texts(func(e *ending) string { return e.fence.Job }),
		numbers(func(e *ending) (int64, bool) { return int64(e.fence.Number), true }),
		texts(func(e *ending) string { return e.fence.Token }),
		numbers(func(e *ending) (int64, bool) { return int64(e.Duration), true }),
		texts(func(e *ending) string { return text(e.Error) }),
		numbers(func(e *ending) (int64, bool) {
			if e.ExitCode == nil {
				return 0, false
			}
			return int64(*e.ExitCode), true
		}),
		texts(func(e *ending) string { return text(e.Signal) }),
		numbers(func(e *ending) (int64, bool) { return int64(e.Status), e.Status != 0 }),
		blobColumn(n, func(i int) []byte { return list[i].end.Result }),
		texts(func(e *ending) string { return text(e.Output.Head) }),
		texts(func(e *ending) string { return text(e.Output.Tail) }),
		numbers(func(e *ending) (int64, bool) { return e.Output.Bytes, e.Output != lanegate.Output{} }),
		numbers(func(e *ending) (int64, bool) { return e.Output.Dropped, e.Output.Dropped != 0 }),
	}
}

// succeeded is the answer of sqlPGSucceed.
type succeeded struct {
	at               dbTime
	n                pq.Int64Array // numbers from 1
	classes, lanes   pq.StringArray
	failures, losses pq.Int64Array
}

// pgSucceed records what good ends it can in one round trip; see pgAtOnce. Where there
// is an error it answers these, and the others go on.
func (g *group) pgSucceed(items []*item) {
	list := pgSucceeding(items)
	if len(list) == 0 {
		return
	}
	var res succeeded
	found, err := g.pgOnce("record outcomes", sqlPGSucceed, pgSucceedArgs(list), &res.at, &res.n, &res.classes, &res.lanes, &res.failures, &res.losses)
	if err != nil {
		for _, it := range list {
			it.err = err
			it.answer()
		}
		return
	}
	if !found {
		return // what was scanned came before the server changed its mind
	}
	for i, n := range res.n {
		e := list[n-1].end
		job := lanegate.Job{
			ID: e.fence.Job, Class: res.classes[i], Attempts: e.fence.Number,
			Failures: int(res.failures[i]), Losses: int(res.losses[i]), FinishedAt: res.at.ptr(),
		}
		set := lanegate.Settle(job, lanegate.ClassSpec{}, e.Ending, 0)
		job.State = set.State
		e.made = true
		e.res = service.Ended{Settlement: set, Job: job, Attempt: lanegate.Attempt{
			Job: e.fence.Job, Number: e.fence.Number, Token: e.fence.Token, Class: res.classes[i], Lane: res.lanes[i],
			EndedAt: res.at.ptr(), Outcome: e.Outcome, Duration: e.Duration,
			Error: text(e.Error), ExitCode: e.ExitCode, Signal: text(e.Signal), Status: e.Status,
		}}
	}
}

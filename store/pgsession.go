package store

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate/service"
)

// While any transaction of the server holds a snapshot, such as a dump, no dead row goes
// away: an admission that looks for heads of lines, and for attempts without an outcome,
// would pass all that were before it, more each time. So admission begins where the last
// one on the same session was.
//
// Attempts bear the number of their start, drawn from a sequence by a transaction that
// holds the admission row. Who reads behind the lock sees all up to the last number: what
// is in flight for the next admission is what was seen and has no outcome yet, and what
// has a greater number.
//
// A job that was submitted stands at the end of its line, by the database's clock. What
// returns to a line, at a place that may be long ago (a job that is run once more, comes
// from a later time, from elsewhere, inherits a place or is moved to the front), can be
// told by its row, and has an index of its own. So a line is read from the first place
// that was seen in it, and what returned is read in front of that. For submissions that
// commit late the place is older than any transaction of theirs, and from time to time
// all is read.
//
// One session: a server that was replaced by its standby may have lost what was seen.

// sqlPGStandsAll is sqlReadStandsFor with the last number of a start, as slots.
const sqlPGStandsAll = sqlReadStandsFor + standStarted

const standStarted = `
 UNION ALL
SELECT 'started', '', NULL, NULL, '', '', '', '', '', CASE WHEN is_called THEN last_value ELSE 0 END, FALSE
  FROM starts_seq`

// sqlPGStandsSince is the same with two parts of what is in flight: the attempts with a
// start behind number $2, and those of the jobs in $3, a JSON list of ids, with another.
const sqlPGStandsSince = standMe + standRunning + `
  FROM (SELECT *
          FROM attempts
         WHERE outcome IS NULL AND start_number > $2
         ORDER BY start_number) AS since
 UNION ALL` + standRunning + `
  FROM json_array_elements_text(CAST($3 AS json)) AS seen (job)
 CROSS JOIN LATERAL (SELECT *
                       FROM attempts
                      WHERE job_id = seen.job AND outcome IS NULL AND coalesce(start_number, 0) <= $2
                      LIMIT 1) AS still` + standOthers + standWorkers + standStarted

const (
	// lateMargin is by how much a submission may commit after its transaction's limit.
	lateMargin = 5 * time.Second
	// mostFlying is how many jobs are looked for one by one; more are found sooner by
	// passing all that was in flight.
	mostFlying = 1000
	// All is read once in sweepEvery, or once in sweepShare times as long as that takes.
	sweepEvery = 10 * time.Second
	sweepShare = 50
)

// sessionReads is what admissions on one session of PostgreSQL have seen.
type sessionReads struct {
	started int64    // the last number of a start
	flying  []string // the jobs that were in flight then
	flew    bool     // both were read

	from  map[string]linePlace // where the lines of classes begin
	at    time.Time            // the database's time when they were read
	sweep time.Time            // when all is read again, by the process's clock
}

// lineWanted is how much of a class's line is to be read, and from where: all of it
// without First.
type lineWanted struct {
	Class string `json:"class"`
	N     int    `json:"n"`
	First string `json:"first,omitempty"`
	At    string `json:"at,omitempty"`
	ID    string `json:"id,omitempty"`
}

// wanted is the argument of dialect.starts for the first n[class] jobs.
func (r *sessionReads) wanted(n map[string]int) (string, error) {
	lines := make([]lineWanted, 0, len(n))
	for class, n := range n {
		w := lineWanted{Class: class, N: n}
		if r != nil {
			if p, ok := r.from[class]; ok {
				w.First, w.At, w.ID = p.first.t.UTC().Format(timeForm), p.at.t.UTC().Format(timeForm), p.id
			}
		}
		lines = append(lines, w)
	}
	b, err := json.Marshal(lines)
	return string(b), err
}

// stands is the statement that reads sqlReadStandsFor on the session.
func (r *sessionReads) stands(ask service.Ask) (string, error) {
	if !r.flew || len(r.flying) > mostFlying {
		return "EXECUTE lanegate_stands(" + pq.QuoteLiteral(text(ask.Worker)) + ")", nil
	}
	flying, err := json.Marshal(append([]string{}, r.flying...)) // never null
	if err != nil {
		return "", err
	}
	return "EXECUTE lanegate_since(" + pq.QuoteLiteral(text(ask.Worker)) + ", " + strconv.FormatInt(r.started, 10) + ", " + pq.QuoteLiteral(string(flying)) + ")", nil
}

// stood notes what was in flight.
func (r *sessionReads) stood(rows []standRow) {
	r.flying, r.flew = r.flying[:0], true
	for _, row := range rows {
		switch row.Kind {
		case "running":
			r.flying = append(r.flying, row.Name)
		case "started":
			r.started = int64(row.Slots)
		}
	}
}

// rewind makes all be read when that is due, and says so.
func (r *sessionReads) rewind(now time.Time) bool {
	if now.Before(r.sweep) {
		return false
	}
	r.flew, r.from = false, nil
	return true
}

// read notes what was read of lines at that time of the database: each class's first
// wanted[class] jobs, or all that there are. Submissions may be late by so much.
func (r *sessionReads) read(at time.Time, wanted map[string]int, due []headRow, lateBy time.Duration) {
	r.at = at
	if r.from == nil {
		r.from = make(map[string]linePlace, len(wanted))
	}
	late := linePlace{first: never, at: dbTime{at.Add(-lateBy)}}
	byClass := map[string][]headRow{}
	for _, d := range due {
		byClass[d.Class] = append(byClass[d.Class], d)
	}
	for class, n := range wanted {
		jobs, old := byClass[class], r.from[class]
		to := late
		if first := slices.IndexFunc(jobs, func(d headRow) bool { return d.place().compare(old) >= 0 }); first >= 0 {
			to = jobs[first].place()
		} else if len(jobs) == n { // others may stand between those that returned and the end
			continue
		}
		if to.compare(late) > 0 {
			to = late
		}
		if to.compare(old) > 0 {
			r.from[class] = to
		}
	}
}

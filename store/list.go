package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Bounds of one page of jobs, so that it costs the same whatever the tables hold.
const (
	// defaultLimit is how many rows a list has when nobody says.
	defaultLimit = 100
	// listStep is how many rows are looked at in the first step of a page of all jobs,
	// listSteps how many steps there are; each is twice as long as the one before.
	listStep, listSteps = 1000, 4
	// listMost is how many rows a page looks at in all.
	listMost = listStep<<listSteps - listStep
)

// afterAll stands behind every id.
const afterAll = "g"

// Jobs implements service.Store.
//
// A list is read in the order of ids: along the keys, or, where states or classes are
// asked for, along the index of each state and class, merged. Rows that the rest of
// the filter refuses are passed by, but not for long: a page ends when it is full,
// when there is nothing more, or when enough was looked at.
func (s *Store) Jobs(ctx context.Context, f service.JobFilter) (jobs []lanegate.Job, next string, err error) {
	if f.Limit <= 0 {
		f.Limit = defaultLimit
	}
	var rows []jobRow
	err = s.inRead(ctx, "list jobs", func(t *tx) (err error) {
		rows, next, err = t.listJobs(f)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	jobs = make([]lanegate.Job, len(rows))
	for i, r := range rows {
		jobs[i] = r.job()
	}
	return jobs, next, nil
}

func (t *tx) listJobs(f service.JobFilter) (rows []jobRow, next string, err error) {
	if f, err = t.classesOfLane(f); err != nil || f.Classes != nil && len(f.Classes) == 0 {
		return nil, "", err // of no class, not of all
	}
	groups, all, err := t.groupsOf(f)
	if err != nil {
		return nil, "", err
	}
	if all {
		rows, next, err = t.listAll(f)
	} else {
		rows, next, err = t.listMerged(f, groups)
	}
	if len(rows) > f.Limit { // one more tells that there is a next page
		rows, next = rows[:f.Limit], rows[f.Limit-1].ID
	}
	return rows, next, err
}

// classesOfLane names the classes of a list of queued jobs of a lane: these have no
// lane but that of their class.
func (t *tx) classesOfLane(f service.JobFilter) (service.JobFilter, error) {
	if f.Lane == "" || !slices.Equal(f.States, []lanegate.State{lanegate.StateQueued}) {
		return f, nil
	}
	cfg, err := t.config()
	if err != nil {
		return f, err
	}
	classes := []string{}
	for _, c := range cfg.Classes {
		if c.Lane == f.Lane && (f.Classes == nil || slices.Contains(f.Classes, c.ID)) {
			classes = append(classes, c.ID)
		}
	}
	f.Classes, f.Lane = classes, ""
	return f, nil
}

// listAll reads up to one row more than a page has along the keys. end is the id
// before which the list goes on, "" when there is nothing more.
func (t *tx) listAll(f service.JobFilter) (rows []jobRow, end string, err error) {
	before := cmp.Or(f.Before, afterAll)
	for step := range listSteps {
		most, limit := listStep<<step, f.Limit+1-len(rows)
		var part []jobRow
		q, args := listPart(f, before, most, limit)
		if err := t.all(&part, q, args...); err != nil {
			return nil, "", err
		}
		rows = append(rows, part...)
		if len(part) == limit {
			return rows, "", nil
		}
		if before, err = t.listEnd(before, most); err != nil || before == "" {
			return rows, "", err
		}
	}
	return rows, before, nil
}

const sqlListEnd = `
SELECT count(*) AS n, coalesce(min(id), '') AS last
  FROM (SELECT id
          FROM jobs
         WHERE id < $1
         ORDER BY id DESC
         LIMIT $2) AS seen`

// listEnd is the id of the last row that a step looked at, "" when that was the last
// there is.
func (t *tx) listEnd(before string, most int) (string, error) {
	var seen struct {
		N    int    `db:"n"`
		Last string `db:"last"`
	}
	_, err := t.get(&seen, sqlListEnd, before, most)
	if seen.N < most {
		return "", err
	}
	return seen.Last, err
}

// listPart reads, of the most jobs before an id, up to limit that a filter takes. The
// inner order and limit leave no index but the keys to read by: the planner knows
// nothing of how states and classes are spread over ids, and where it hopes to find
// them soon a backlog may stand in between.
func listPart(f service.JobFilter, before string, most, limit int) (string, []any) {
	var p params
	q := "SELECT " + jobColumns + "\n  FROM (SELECT " + jobColumns + "\n          FROM jobs\n         WHERE id < " + p.add(before) +
		"\n         ORDER BY id DESC\n         LIMIT " + p.add(most) + ") AS jobs" + listWhere(&p, f)
	return q + "\n ORDER BY id DESC\n LIMIT " + p.add(limit), p
}

// listWhere is the condition of a filter, from fixed texts.
func listWhere(p *params, f service.JobFilter) string {
	var where []string
	and := func(format string, args ...any) { where = append(where, fmt.Sprintf(format, args...)) }
	if f.Classes != nil {
		and("{{plain}}class IN %s", list(p, f.Classes))
	}
	if len(f.States) > 0 {
		and("{{plain}}state IN %s", list(p, f.States))
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
	if len(where) == 0 {
		return ""
	}
	return "\n WHERE " + strings.Join(where, " AND ")
}

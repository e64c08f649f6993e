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
	// listStep is how many rows of an index are looked at in the first step of a page,
	// listSteps how many steps there are; each turn is twice as long as the one before.
	listStep, listSteps = 1000, 4
	// listStreams is how many classes are read side by side by their index.
	listStreams = 8
)

// afterAll stands behind every id.
const afterAll = "g"

// Jobs implements service.Store.
//
// A list is read in the order of ids along an index: all jobs, those of a class, or
// those of a state. Rows that the rest of the filter refuses are passed by, but not
// for long: with both classes and states, the two indexes take turns, and each goes
// on where the other ended, so that a run of rows which only one of them would have
// to pass is left behind. A page ends when it is full, when there is nothing more, or
// when enough was looked at.
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
	ways := waysOf(f)
	for step := range listSteps {
		way := ways[step%len(ways)]
		more, end, err := t.listStep(f, way, listStep<<(step/len(ways)), f.Limit+1-len(rows))
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, more...)
		if len(rows) > f.Limit { // one more tells that there is a next page
			return rows[:f.Limit], rows[f.Limit-1].ID, nil
		}
		if end == "" {
			return rows, "", nil
		}
		f.Before = end
	}
	return rows, f.Before, nil
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

// way is an order in which jobs can be read: by id alone, or by id for each of some
// values of a column that leads an index.
type way struct {
	column, index string
	values        []string
}

var wayOfAll = way{values: []string{""}}

// order is by id, newest first, for one value.
func (w way) order() string {
	if w.column == "" {
		return "id DESC"
	}
	return w.column + " DESC, id DESC"
}

// waysOf lists the ways that take turns in a list, the best first.
func waysOf(f service.JobFilter) []way {
	var ways []way
	if n := len(f.States); n > 0 && n < len(lanegate.States) {
		states := make([]string, 0, n)
		for _, s := range f.States {
			states = append(states, string(s))
		}
		ways = append(ways, way{"state", "jobs_state_idx", distinct(states)})
	}
	if n := len(f.Classes); n > 0 && n <= listStreams {
		ways = append(ways, way{"class", "jobs_class_idx", distinct(f.Classes)})
	}
	if len(ways) == 0 {
		return []way{wayOfAll}
	}
	return ways
}

func distinct(values []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

// listStep reads up to limit rows, and looks at no more than most for each value of
// the way. end is the id before which the list goes on, "" when there is nothing more.
func (t *tx) listStep(f service.JobFilter, w way, most, limit int) (rows []jobRow, end string, err error) {
	for _, value := range w.values {
		var part []jobRow
		q, args := listPart(f, w, value, most, limit)
		if err := t.all(&part, q, args...); err != nil {
			return nil, "", err
		}
		rows = append(rows, part...)
		var partEnd string
		if len(part) == limit {
			partEnd = part[limit-1].ID
		} else if partEnd, err = t.listEnd(f, w, value, most); err != nil {
			return nil, "", err
		}
		end = max(end, partEnd)
	}
	// Below the end of one part the others are not whole.
	rows = slices.DeleteFunc(rows, func(r jobRow) bool { return r.ID < end })
	slices.SortFunc(rows, func(a, b jobRow) int { return cmp.Compare(b.ID, a.ID) })
	if len(rows) > limit {
		rows = rows[:limit]
		end = rows[limit-1].ID
	}
	return rows, end, nil
}

// listEnd is the id of the last row that a part looked at, "" when that was the last
// there is.
func (t *tx) listEnd(f service.JobFilter, w way, value string, most int) (string, error) {
	var seen struct {
		N    int    `db:"n"`
		Last string `db:"last"`
	}
	var p params
	_, err := t.get(&seen, "SELECT count(*) AS n, coalesce(min(id), '') AS last\n  FROM ("+along(&p, "id", f, w, value, most)+") AS seen", p...)
	if seen.N < most {
		return "", err
	}
	return seen.Last, err
}

// along is the statement that reads rows in the order of a way. The comparison of
// rows and their order leave no other index to read it by: the planner knows nothing
// of how states and classes are spread over ids, and where it hopes to find them soon
// a backlog may stand in between.
func along(p *params, columns string, f service.JobFilter, w way, value string, most int) string {
	before := cmp.Or(f.Before, afterAll)
	if w.column == "" {
		return "SELECT " + columns + "\n  FROM jobs\n WHERE id < " + p.add(before) + "\n ORDER BY " + w.order() + "\n LIMIT " + p.add(most)
	}
	return "SELECT " + columns + "\n  FROM jobs {{use " + w.index + "}}\n WHERE (" + w.column + ", id) < (" + p.add(value) + ", " + p.add(before) + ") AND " +
		w.column + " >= " + p.add(value) + "\n ORDER BY " + w.order() + "\n LIMIT " + p.add(most)
}

// listPart puts the statement of one part together, from fixed texts.
func listPart(f service.JobFilter, w way, value string, most, limit int) (string, []any) {
	var p params
	q := "SELECT " + jobColumns + "\n  FROM (" + along(&p, jobColumns, f, w, value, most) + ") AS jobs"
	var where []string
	and := func(format string, args ...any) { where = append(where, fmt.Sprintf(format, args...)) }
	if f.Classes != nil && w.column != "class" {
		and("class IN %s", list(&p, f.Classes))
	}
	if len(f.States) > 0 && w.column != "state" {
		and("state IN %s", list(&p, f.States))
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
	if len(where) > 0 {
		q += "\n WHERE " + strings.Join(where, " AND ")
	}
	return q + "\n ORDER BY " + w.order() + "\n LIMIT " + p.add(limit), p
}

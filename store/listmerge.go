package store

import (
	"cmp"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	// listGroups is how many groups are merged; a list of more goes along the keys.
	listGroups = 2000
	// groupLeast is how many ids are read of a group at a time, at least.
	groupLeast = 4
	// groupsFew is of how many groups as many ids are read as are wanted in all: another
	// round trip would cost more.
	groupsFew = 6
)

// listGroup are the jobs of one class in one state, or all that run, as far as a page
// has read their ids.
type listGroup struct {
	I      int            `json:"i"` // its place among those that are read together
	State  lanegate.State `json:"state"`
	Class  string         `json:"class"` // "" for those that run
	Before string         `json:"before"`

	ids  []string // read and not yet passed, newest first
	done bool     // there are no more than these
}

// The classes that have a job in a state, by a seek for each.
const sqlListClassesIn = `
  WITH RECURSIVE found (class) AS (
         SELECT (SELECT max(class)
                   FROM jobs {{use jobs_state_idx}}
                  WHERE state = $1 AND state || '' <> 'running')
          UNION ALL
         SELECT (SELECT max(j.class)
                   FROM jobs AS j {{use jobs_state_idx}}
                  WHERE j.state = $1 AND j.state || '' <> 'running' AND j.class < found.class)
           FROM found
          WHERE found.class IS NOT NULL)
SELECT class
  FROM found
 WHERE class IS NOT NULL
 LIMIT $2`

// groupsOf names the groups that hold all jobs of a filter's states and classes. all:
// it has neither, or too many.
func (t *tx) groupsOf(f service.JobFilter) (groups []*listGroup, all bool, err error) {
	states := distinct(f.States)
	if len(states) == 0 || len(states) == len(lanegate.States) {
		if f.Classes == nil {
			return nil, true, nil
		}
		states = lanegate.States
	}
	classes := distinct(f.Classes)
	for _, state := range states {
		if state == lanegate.StateRunning {
			groups = append(groups, &listGroup{State: state, Before: afterAll})
			continue
		}
		if f.Classes == nil {
			classes = nil
			if err := t.all(&classes, sqlListClassesIn, state, listGroups+1); err != nil {
				return nil, false, err
			}
		}
		for _, class := range classes {
			groups = append(groups, &listGroup{State: state, Class: class, Before: afterAll})
		}
		if len(groups) > listGroups {
			return nil, true, nil
		}
	}
	return groups, false, nil
}

func distinct[T cmp.Ordered](values []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

// listMerge hands out the ids of groups in one order, newest first. It reads of each
// group only as far as it must in order to know that nothing comes in between.
type listMerge struct {
	t      *tx
	groups []*listGroup
	all    bool // they can't be told
}

// Those of some jobs that a filter takes.
const sqlListByKey = `
SELECT ` + jobColumns + `
  FROM jobs
 WHERE id {{among 1}}
   AND ` + sqlListFilter + `
 ORDER BY id DESC`

// list goes on with a page by the ids of the groups, and looks at no more than most jobs.
func (m *listMerge) list(p *listPage, most int) error {
	for looked := 0; looked < most && !m.all && !p.done(); {
		ids, err := m.next(p.before, most-looked)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			p.before = ""
			return nil
		}
		looked += len(ids)
		var rows []jobRow
		if err := m.t.all(&rows, sqlListByKey, append([]any{dbJSON[[]string]{ids}}, listFilter(p.f)...)...); err != nil {
			return err
		}
		p.rows, p.before = append(p.rows, rows[:min(len(rows), p.wants())]...), ids[len(ids)-1]
	}
	return nil
}

// next tells up to so many of the ids before one, in order and without a gap; none:
// that was all.
func (m *listMerge) next(before string, want int) ([]string, error) {
	var empty []*listGroup
	for _, g := range m.groups {
		g.ids = g.ids[g.until(before):]
		if len(g.ids) == 0 && !g.done {
			g.Before = min(g.Before, before)
			empty = append(empty, g)
		}
	}
	if len(empty) > 0 {
		n := want // all may be in one of a few groups
		if len(empty) > groupsFew {
			n = min(max(want, groupLeast), groupLeast+2*want/len(empty))
		}
		if err := m.t.readGroups(empty, n); err != nil {
			return nil, err
		}
	}
	// Below the last id of a group that goes on, others are not whole.
	var known string
	for _, g := range m.groups {
		if !g.done {
			known = max(known, g.ids[len(g.ids)-1])
		}
	}
	var ids []string
	for _, g := range m.groups {
		ids = append(ids, g.ids[:g.until(known)]...)
	}
	slices.SortFunc(ids, newestFirst)
	return ids[:min(len(ids), want)], nil
}

func newestFirst(a, b string) int { return cmp.Compare(b, a) }

// until is how many of the ids that were read are not before one.
func (g *listGroup) until(id string) int {
	n, found := slices.BinarySearchFunc(g.ids, id, newestFirst)
	if found {
		n++
	}
	return n
}

// Running jobs have an attempt in flight each, and those are few.
const sqlListRunning = `
SELECT job_id
  FROM attempts {{use attempts_in_flight_idx}}
 WHERE outcome IS NULL AND job_id < $1
 ORDER BY job_id DESC
 LIMIT $2`

// readGroups reads the next n ids of each of some groups.
func (t *tx) readGroups(groups []*listGroup, n int) error {
	var waiting []*listGroup
	for _, g := range groups {
		if g.State == lanegate.StateRunning {
			if err := t.all(&g.ids, sqlListRunning, g.Before, n); err != nil {
				return err
			}
			continue
		}
		g.I = len(waiting)
		waiting = append(waiting, g)
	}
	if len(waiting) > 0 {
		var rows []struct {
			I  int    `db:"i"`
			ID string `db:"id"`
		}
		if err := t.all(&rows, t.s.d.groups, dbJSON[[]*listGroup]{waiting}, n); err != nil {
			return err
		}
		for _, r := range rows {
			g := waiting[r.I]
			g.ids = append(g.ids, r.ID)
		}
	}
	for _, g := range groups {
		slices.SortFunc(g.ids, newestFirst)
		if g.done = len(g.ids) < n; !g.done {
			g.Before = g.ids[n-1]
		}
	}
	return nil
}

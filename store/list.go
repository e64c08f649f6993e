package store

import (
	"cmp"
	"context"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Bounds of one page of jobs, so that it costs the same whatever the tables hold.
const (
	// defaultLimit is how many rows a list has when nobody says.
	defaultLimit = 100
	// listStep is how many rows are looked at in the first turn along the keys,
	// listSteps how many turns there are; each is four times as long as the one before.
	listStep, listSteps = 200, 4
	// keyCost is how many rows along the keys one costs that is sought by its key, at
	// least: the turns over groups are as much shorter.
	keyCost = 16
)

// afterAll stands behind every id.
const afterAll = "g"

// Jobs implements service.Store.
//
// A list is read in the order of ids, along the keys. Where states or classes are asked
// for, that takes turns with the index of each state and class, merged, and each way
// goes on where the other ended: along the keys a row costs a small part of a block,
// but there may be a backlog in between; of groups each row costs a seek, whether the
// rest of the filter takes it or not. A page ends when it is full, when there is
// nothing more, or when enough was looked at.
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
	p := listPage{f: f, before: cmp.Or(f.Before, afterAll)}
	if err := t.readPage(&p); err != nil {
		return nil, "", err
	}
	if len(p.rows) > f.Limit { // one more tells that there is a next page
		return p.rows[:f.Limit], p.rows[f.Limit-1].ID, nil
	}
	return p.rows, p.before, nil
}

// listPage is a page of a list as far as it is read.
type listPage struct {
	f      service.JobFilter
	rows   []jobRow
	before string // where the list goes on; "": it does not
}

// wants is how many rows the page lacks, and the one that tells of a next page.
func (p *listPage) wants() int { return p.f.Limit + 1 - len(p.rows) }

func (p *listPage) done() bool { return p.wants() == 0 || p.before == "" }

func (t *tx) readPage(p *listPage) error {
	var m listMerge
	for step := range listSteps {
		most := listStep << (2 * step)
		if err := t.listKeys(p, max(most, 4*p.wants())); err != nil || p.done() {
			return err
		}
		if step == 0 {
			groups, all, err := t.groupsOf(p.f)
			if err != nil {
				return err
			}
			m = listMerge{t: t, groups: groups, all: all}
		}
		if err := m.list(p, max(most/keyCost, p.wants())); err != nil || p.done() {
			return err
		}
	}
	return nil
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

// sqlListFilter is the condition of a filter, whose values are from $2 on, see
// listFilter. Each part can be void, so that none is sought by an index.
const sqlListFilter = `(class {{among 2}} OR $2 IS NULL)
   AND (state {{among 3}} OR $3 IS NULL)
   AND ($4 = '' OR state = 'queued' AND class IN (SELECT c.id FROM job_classes AS c WHERE c.lane = $4) OR state <> 'queued' AND route_lane = $4)
   AND ($5 = '' OR client = $5)
   AND (submitted_at >= $6 OR $6 IS NULL)
   AND submitted_at < $7
   AND (verification = '' OR $8)`

// listFilter has the values of sqlListFilter.
func listFilter(f service.JobFilter) []any {
	var states []lanegate.State // nil: all
	if len(f.States) > 0 {
		states = f.States
	}
	to := never
	if f.SubmittedTo != nil {
		to = at(*f.SubmittedTo)
	}
	return []any{dbJSON[[]string]{f.Classes}, dbJSON[[]lanegate.State]{states}, f.Lane, f.Client, atPtr(f.SubmittedFrom), to, f.Verification}
}

const (
	// Of the $9 jobs before an id, up to $10 that a filter takes. The inner order and
	// limit leave no index but the keys to read by: the planner knows nothing of how
	// states and classes are spread over ids, and where it hopes to find them soon a
	// backlog may stand in between.
	sqlListKeys = `
SELECT ` + jobColumns + `
  FROM (SELECT ` + jobColumns + `
          FROM jobs
         WHERE id < $1
         ORDER BY id DESC
         LIMIT $9) AS jobs
 WHERE ` + sqlListFilter + `
 ORDER BY id DESC
 LIMIT $10`

	sqlListEnd = `
SELECT count(*) AS n, coalesce(min(id), '') AS last
  FROM (SELECT id
          FROM jobs
         WHERE id < $1
         ORDER BY id DESC
         LIMIT $2) AS seen`
)

// listKeys goes on with a page along the keys, and looks at no more than most rows.
func (t *tx) listKeys(p *listPage, most int) error {
	var rows []jobRow
	args := append([]any{p.before}, listFilter(p.f)...)
	if err := t.all(&rows, sqlListKeys, append(args, most, p.wants())...); err != nil {
		return err
	}
	if p.rows = append(p.rows, rows...); p.wants() == 0 {
		return nil
	}
	var seen struct {
		N    int    `db:"n"`
		Last string `db:"last"`
	}
	if _, err := t.get(&seen, sqlListEnd, p.before, most); err != nil {
		return err
	}
	if p.before = seen.Last; seen.N < most {
		p.before = ""
	}
	return nil
}

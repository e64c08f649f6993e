package store

import (
	"cmp"
	"context"
	"database/sql/driver"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

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
// stands between one and the next is counted, so that the line is walked once, and
// not beyond twice the entries that may be counted.
func (s *Store) Ahead(ctx context.Context, jobs []lanegate.Job, classes []string, most, named int) ([]service.Ahead, error) {
	ahead := make([]service.Ahead, len(jobs))
	if len(classes) == 0 || len(jobs) == 0 {
		return ahead, nil
	}
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return linePlaceOf(jobs[i]).compare(linePlaceOf(jobs[j])) })
	places := make([]linePlace, len(jobs))
	for k, i := range order {
		places[k] = linePlaceOf(jobs[i])
	}
	err := s.inRead(ctx, "count the jobs ahead", func(t *tx) error {
		counts, err := t.countAhead(classes, places, most)
		if err != nil {
			return err
		}
		for k, i := range order {
			ahead[i].Count, ahead[i].AtLeast = min(counts[k], most), counts[k] > most
		}
		first, err := t.firstInLine(classes, min(named, slices.Max(counts)))
		if err != nil {
			return err
		}
		for i := range ahead {
			for _, r := range first[:min(ahead[i].Count, len(first))] {
				ahead[i].First = append(ahead[i].First, r.Job)
			}
		}
		return nil
	})
	return ahead, err
}

// sqlCountAhead counts, span by span of the line, what stands before the end of each.
// A step reads at most $1 entries, and the walk ends with the first count that
// reaches $1.
//
// PostgreSQL ends the scan of an index at a bound of one column behind columns that
// are given. A bound like (a, b) < ($1, $2) ends it by its first column only, and
// keeps others from being looked at; behind NOT it is none. So a span has three
// parts: what was moved before all others, the places of earlier moments than its
// end's, and those of its end's own moment. In the second those of the span's first
// moment come again that the span before has counted.
//
// $2 is never, $3 the spans, a JSON list of spanRow, $4 a JSON list of classes.
const sqlCountAhead = `
WITH RECURSIVE spans AS ({{spans}}),
     walk (i, n) AS (
  SELECT CAST(0 AS bigint), CAST(0 AS bigint)
   UNION ALL
  SELECT s.i, w.n + (SELECT count(*)
                       FROM (SELECT 1
                               FROM jobs {{use jobs_line_idx}}
                              WHERE state = 'queued' AND due AND class {{among}} AND s.from_first < $2
                                AND first_at >= s.from_first AND first_at <= s.moved_to
                                AND NOT (first_at, place_at, place_id) < (s.from_first, s.from_at, s.from_id)
                                AND NOT (first_at, place_at, place_id) >= (s.to_first, s.to_at, s.to_id)
                              UNION ALL
                             SELECT 1
                               FROM jobs {{use jobs_line_idx}}
                              WHERE state = 'queued' AND due AND class {{among}} AND s.to_first = $2 AND s.low_at < s.to_at
                                AND first_at = $2 AND place_at >= s.low_at AND place_at < s.to_at
                                AND (place_at > s.low_at OR place_id >= s.low_id)
                              UNION ALL
                             SELECT 1
                               FROM jobs {{use jobs_line_idx}}
                              WHERE state = 'queued' AND due AND class {{among}} AND s.to_first = $2
                                AND first_at = $2 AND place_at = s.to_at AND place_id >= s.last_id AND place_id < s.to_id
                              LIMIT $1) AS span)
    FROM walk AS w
    JOIN spans AS s ON s.i = w.i + 1
   WHERE w.n < $1)
SELECT n
  FROM walk
 WHERE i > 0
 ORDER BY i`

// spanRow is a part of the line: from a place to the next, in stored forms.
type spanRow struct {
	I         int          `json:"i"` // from 1
	FromFirst driver.Value `json:"from_first"`
	FromAt    driver.Value `json:"from_at"`
	FromID    string       `json:"from_id"`
	ToFirst   driver.Value `json:"to_first"`
	ToAt      driver.Value `json:"to_at"`
	ToID      string       `json:"to_id"`
	// MovedTo is ToFirst, or the last moment before never; Low is from where those that
	// nobody moved are counted, Last from where those of ToAt are.
	MovedTo driver.Value `json:"moved_to"`
	LowAt   driver.Value `json:"low_at"`
	LowID   string       `json:"low_id"`
	LastID  string       `json:"last_id"`
}

// spansOf are the parts of the line that end at each of some places, which ascend.
func spansOf(places []linePlace) (spans []spanRow, err error) {
	start := linePlace{first: at(time.Unix(0, 0)), at: at(time.Unix(0, 0))}
	from := start
	for i, to := range places {
		low := from
		if from.first.t.Before(never.t) {
			low = start
		}
		row := spanRow{I: i + 1, FromID: from.id, ToID: to.id, LowID: low.id}
		if low.at.t.Equal(to.at.t) {
			row.LastID = low.id
		}
		moved := to.first
		if moved.t.Equal(never.t) {
			moved = dbTime{never.t.Add(-time.Microsecond)}
		}
		for stored, v := range map[*driver.Value]dbTime{
			&row.FromFirst: from.first, &row.FromAt: from.at, &row.ToFirst: to.first, &row.ToAt: to.at, &row.LowAt: low.at, &row.MovedTo: moved,
		} {
			if *stored, err = v.Value(); err != nil {
				return nil, err
			}
		}
		spans = append(spans, row)
		from = to
	}
	return spans, nil
}

// countAhead counts the due jobs of the classes before each of some places, which
// ascend. A count above most says no more than that.
func (t *tx) countAhead(classes []string, places []linePlace, most int) ([]int, error) {
	spans, err := spansOf(places)
	if err != nil {
		return nil, err
	}
	var counts []int
	if err := t.all(&counts, sqlCountAhead, most+1, never, dbJSON[[]spanRow]{spans}, dbJSON[[]string]{classes}); err != nil {
		return nil, err
	}
	for len(counts) < len(places) { // the walk has ended: behind most
		counts = append(counts, most+1)
	}
	return counts, nil
}

// FirstInLine implements service.Store.
func (s *Store) FirstInLine(ctx context.Context, classes []string, max int) (ids []string, err error) {
	err = s.inRead(ctx, "read who is first in line", func(t *tx) error {
		rows, err := t.firstInLine(classes, max)
		for _, r := range rows {
			ids = append(ids, r.Job)
		}
		return err
	})
	return ids, err
}

// firstInLine lists the first max due jobs of the classes. It merges the starts of the
// classes' lines, so that no whole line is sorted, and reads at first what each class
// would have there if all had as many; then, where a class turns out to have more,
// all that it could have.
func (t *tx) firstInLine(classes []string, max int) ([]headRow, error) {
	if max <= 0 || len(classes) == 0 {
		return nil, nil
	}
	part := min(max, share(max, len(classes)))
	rows, err := t.starts(classes, part)
	if err != nil {
		return nil, err
	}
	rows = foremost(rows, max)
	read := map[string]int{}
	for _, r := range rows {
		read[r.Class]++
	}
	var more []string
	for class, n := range read {
		if n == part && part < max {
			more = append(more, class)
		}
	}
	if len(more) == 0 {
		return rows, nil
	}
	longer, err := t.starts(more, max)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r headRow) bool { return read[r.Class] == part })
	return foremost(append(rows, longer...), max), nil
}

// starts reads the first n due jobs of each class.
func (t *tx) starts(classes []string, n int) (rows []headRow, err error) {
	if t.s.d.starts == "" {
		err = t.all(&rows, t.s.d.heads, dbJSON[[]string]{classes}, n)
		return rows, err
	}
	each := make(map[string]int, len(classes))
	for _, class := range classes {
		each[class] = n
	}
	want, err := (*sessionReads)(nil).wanted(each)
	if err != nil {
		return nil, err
	}
	err = t.all(&rows, t.s.d.starts, want)
	return rows, err
}

// foremost sorts jobs by their places and keeps the first max.
func foremost(rows []headRow, max int) []headRow {
	slices.SortFunc(rows, func(a, b headRow) int { return a.place().compare(b.place()) })
	return rows[:min(max, len(rows))]
}

func (r headRow) place() linePlace { return linePlace{r.FirstAt, r.PlaceAt, r.PlaceID} }

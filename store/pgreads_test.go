//go:build linux

package store

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// sqlFillReads makes $1 finished jobs, one in 500 of them failed, and as many queued
// ones behind them, in twenty classes. Until a commit is flushed, VACUUM doesn't mark
// its rows as visible to all.
const sqlFillReads = `
SET LOCAL synchronous_commit TO on;
INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id, attempts, started_at, finished_at, route_lane)
SELECT '01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'), 'c' || lpad(CAST(i % 20 AS text), 2, '0'), 'c',
       CASE WHEN i % 500 = 0 THEN 'failed' WHEN i > $1 THEN 'queued' ELSE 'succeeded' END, now(), now(), true,
       now() + i * interval '1 ms', '01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'), 1, now(),
       CASE WHEN i > $1 AND i % 500 > 0 THEN NULL ELSE now() END, 'wide'
  FROM generate_series(1, 2 * $1) AS i`

// What a page reads hangs on the page, not on the backlog or on what was done: the
// planner, which knows neither that nor how the states lie in the order of ids, has
// one way only, and no step of that passes more than it is allowed to.
func TestPostgresReadsStayFlat(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	const n = 20_000
	if _, err := s.write.ExecContext(t.Context(), strings.ReplaceAll(sqlFillReads, "$1", strconv.Itoa(n))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.ExecContext(t.Context(), "VACUUM ANALYZE jobs"); err != nil {
		t.Fatal(err)
	}
	check := func(name, q string, most int, args ...any) {
		t.Helper()
		plan, buffers := explainRead(t, s, q, args...)
		if strings.Contains(plan, "Seq Scan on jobs") || strings.Contains(plan, "Bitmap") || buffers > most {
			t.Errorf("%s: %d blocks, want at most %d\n%s", name, buffers, most, plan)
		}
	}
	var classes []string
	for i := range 20 {
		classes = append(classes, fmt.Sprintf("c%02d", i))
	}
	page := func(from int) (places []linePlace) {
		for i := range 50 {
			d, err := s.Job(t.Context(), fmt.Sprintf("01900000-0000-7000-8000-%012x", from+i+i/499))
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, linePlaceOf(d.Job))
		}
		return places
	}
	for name, from := range map[string]int{"front": n + 1, "middle": n + 1501, "end": 2*n - 60} {
		spans, err := spansOf(page(from))
		if err != nil {
			t.Fatal(err)
		}
		check("ahead of the line's "+name, sqlCountAhead, 8000, service.AheadCounted+1, never, dbJSON[[]spanRow]{spans}, dbJSON[[]string]{classes})
	}
	part := map[string]int{}
	for _, class := range classes {
		part[class] = share(20, len(classes))
	}
	want, err := (*sessionReads)(nil).wanted(part)
	if err != nil {
		t.Fatal(err)
	}
	check("first in line", s.d.starts, 180, want)
	// Of so few rows the table is as cheap; of a million it is not. The database is for
	// other tests, too, so the index comes back.
	tx, err := s.write.BeginTxx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tx.ExecContext(t.Context(), "DROP INDEX jobs_state_class_idx"); err != nil {
		t.Fatal(err)
	}
	var plan []string
	if err := tx.SelectContext(t.Context(), &plan, "EXPLAIN "+s.d.sql(sqlCountDue)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(plan, "\n"), "Index Only Scan using jobs_line_idx") {
		t.Errorf("the count of the lines reads the table:\n%s", strings.Join(plan, "\n"))
	}
}

// A page of jobs costs what is on it, and a seek for each class where only states are
// asked for: not the backlog in front of what was done, nor what was done behind.
func TestPostgresListsStayFlat(t *testing.T) {
	t.Parallel()
	const n = 20_000
	const queued, succeeded, failed, running = lanegate.StateQueued, lanegate.StateSucceeded, lanegate.StateFailed, lanegate.StateRunning
	states := func(s ...lanegate.State) service.JobFilter { return service.JobFilter{States: s} }
	classes := func(c ...string) service.JobFilter { return service.JobFilter{Classes: c} }
	both := service.JobFilter{Classes: []string{"c7"}, States: []lanegate.State{succeeded}}
	later := time.Now().Add(time.Hour)
	for _, many := range []int{20, 200} {
		s := newPG(t, Options{})
		fill := strings.NewReplacer("$1", strconv.Itoa(n), "lpad(CAST(i % 20 AS text), 2, '0')", fmt.Sprintf("i %% %d", many)).Replace(sqlFillReads)
		for _, q := range []string{fill, "VACUUM ANALYZE jobs", "VACUUM ANALYZE attempts"} {
			if _, err := s.write.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		const (
			page = 51 * 6                                // each job in the index, by its key, and the row
			turn = 50                                    // the first along the keys, and its end
			most = listStep * (1<<(2*listSteps) - 1) / 3 // of all turns, in rows; a block has a dozen
		)
		for name, c := range map[string]struct {
			f          service.JobFilter
			most, jobs int
		}{
			"all":              {service.JobFilter{}, 25, 50},
			"queued":           {states(queued), 25, 50},
			"succeeded":        {states(succeeded), turn + page + 12*many, 50}, // behind the whole backlog
			"failed":           {states(failed), turn + page + 12*many, 50},
			"queued or failed": {states(queued, failed), 25, 50},
			"running, none":    {states(running), turn + 5, 0},
			"one class":        {classes("c7"), turn + page + 50, 50},
			"two classes":      {classes("c7", "c11"), turn + page + 100, 50},
			"no such class":    {classes("zz"), turn + 50, 0},
			"class and state":  {both, turn + page + 50, 50},
			"submitted before": {service.JobFilter{SubmittedTo: &later}, 25, 50},
			"lane":             {service.JobFilter{Lane: "wide"}, most / 8, most/500 + 1}, // those of the backlog that failed
			// In vain: along the keys, and some by key where they are of some state.
			"no such client":          {service.JobFilter{Client: "nobody"}, most / 8, 0},
			"no such client of state": {service.JobFilter{Client: "nobody", States: []lanegate.State{queued}}, most/8 + most/keyCost*5 + 25*many, 0},
		} {
			c.f.Limit = 50
			pageBlocks(t, s, c.f) // a session reads the first block of each index once
			jobs, blocks := pageBlocks(t, s, c.f)
			if jobs != c.jobs || blocks > c.most {
				t.Errorf("%s, of %d classes: %d jobs for %d blocks, want %d for at most %d", name, many, jobs, blocks, c.jobs, c.most)
			}
		}
	}
}

// pageBlocks reads a page, and says how many jobs are on it and how many blocks of the
// tables of jobs and attempts and of their indexes that took.
func pageBlocks(t *testing.T, s *Store, f service.JobFilter) (jobs, blocks int) {
	t.Helper()
	err := s.inRead(t.Context(), "read a page", func(tx *tx) error {
		count := func() (n int, err error) {
			err = tx.q.GetContext(t.Context(), &n, `
SELECT sum(pg_stat_get_xact_blocks_fetched(oid))
  FROM pg_class
 WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN (CAST('jobs' AS regclass), CAST('attempts' AS regclass)))
    OR oid IN (CAST('jobs' AS regclass), CAST('attempts' AS regclass))`)
			return n, err
		}
		before, err := count()
		if err != nil {
			return err
		}
		rows, _, err := tx.listJobs(f)
		if err != nil {
			return err
		}
		after, err := count()
		jobs, blocks = len(rows), after-before
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return jobs, blocks
}

var blocksRead = regexp.MustCompile(`Buffers: shared hit=(\d+)(?: read=(\d+))?`)

// explainRead runs a statement as the reading pool does, and says how, and how many
// blocks that took.
func explainRead(t *testing.T, s *Store, q string, args ...any) (plan string, blocks int) {
	t.Helper()
	var lines []string
	if err := s.read.SelectContext(t.Context(), &lines, "EXPLAIN (ANALYZE, BUFFERS) "+s.d.sql(q), args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	plan = strings.Join(lines, "\n")
	m := blocksRead.FindStringSubmatch(plan)
	if m == nil {
		t.Fatalf("no count of blocks in\n%s", plan)
	}
	for _, n := range m[1:] {
		var k int
		if n != "" {
			if err := json.Unmarshal([]byte(n), &k); err != nil {
				t.Fatal(err)
			}
		}
		blocks += k
	}
	return plan, blocks
}

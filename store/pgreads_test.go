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
// ones behind them, in twenty classes.
const sqlFillReads = `
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
	const queued, succeeded, failed, running = lanegate.StateQueued, lanegate.StateSucceeded, lanegate.StateFailed, lanegate.StateRunning
	states := func(s ...lanegate.State) service.JobFilter { return service.JobFilter{States: s} }
	now := time.Now()
	for name, c := range map[string]struct {
		f    service.JobFilter
		most int // of the dearest way
	}{
		"all":              {service.JobFilter{}, 20},
		"queued":           {states(queued), 20},
		"succeeded":        {states(succeeded), 20}, // behind the whole backlog
		"failed":           {states(failed), 80},    // a block each
		"running, none":    {states(running), 20},
		"one class":        {service.JobFilter{Classes: []string{"c07"}}, 80},
		"no such class":    {service.JobFilter{Classes: []string{"zz"}}, 20},
		"class and state":  {service.JobFilter{Classes: []string{"c07"}, States: []lanegate.State{succeeded}}, listStep + 100},
		"lane":             {service.JobFilter{Lane: "wide"}, 100},
		"no such client":   {service.JobFilter{Client: "nobody"}, 100},
		"submitted before": {service.JobFilter{SubmittedTo: &now}, 100},
	} {
		for _, w := range waysOf(c.f) {
			q, args := listPart(c.f, w, w.values[0], listStep, 51)
			check(name+" by "+w.column, q, c.most, args...)
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
	check("first in line", sqlFirstInLine, 600, dbJSON[[]string]{classes}, 20)
	// Of so few rows the table is as cheap; of a million it is not.
	for _, index := range []string{"jobs_state_idx", "jobs_class_idx"} {
		if _, err := s.write.ExecContext(t.Context(), "DROP INDEX IF EXISTS "+index); err != nil {
			t.Fatal(err)
		}
	}
	plan, _ := explainRead(t, s, sqlCountDue)
	if !strings.Contains(plan, "Index Only Scan using jobs_line_idx") {
		t.Errorf("the count of the lines reads the table:\n%s", plan)
	}
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

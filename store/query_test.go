package store

import (
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// plan returns SQLite's plan for a statement, one step a line.
func plan(t *testing.T, s *Store, q string, args ...any) string {
	t.Helper()
	var steps []struct {
		ID     int    `db:"id"`
		Parent int    `db:"parent"`
		Unused int    `db:"notused"`
		Detail string `db:"detail"`
	}
	for len(args) < 5 {
		args = append(args, nil)
	}
	if err := s.write.Select(&steps, "EXPLAIN QUERY PLAN "+s.d.sql(q), args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	var lines []string
	for _, step := range steps {
		lines = append(lines, step.Detail)
	}
	return strings.Join(lines, "\n")
}

// C73: no statement of the busy paths may read the backlog or the finished rows.
func TestStatementsUseTheirIndexes(t *testing.T) {
	s := newStore(t, Options{})
	for name, c := range map[string]struct{ sql, want string }{
		"heads":           {s.d.heads, "SEARCH h USING INDEX jobs_line_idx (class=?)"},
		"stands":          {sqlReadStands, "jobs_ready_idx"},
		"ready":           {sqlListReady, "SEARCH jobs USING INDEX jobs_ready_idx (ready_at<?)"},
		"next ready":      {sqlNextReady, "jobs_ready_idx"},
		"ready heads":     {sqlListReadyHeads, "jobs_ready_idx (ready_at<?)"},
		"due bells":       {sqlListDueBells, "SEARCH jobs USING COVERING INDEX jobs_ring_idx (ring_at>? AND ring_at<?)"},
		"next bell":       {sqlNextBell, "USING COVERING INDEX jobs_ring_idx"},
		"in flight":       {sqlListInFlight, "SCAN attempts USING INDEX attempts_in_flight_idx"},
		"held":            {sqlListHeld, "attempts_in_flight_idx"},
		"running one":     {sqlFindRunning, "SEARCH jobs USING INDEX jobs_state_idx (state=? AND id=?)"},
		"due one":         {sqlFindDue, "SEARCH jobs USING INDEX jobs_line_idx (class=?)"},
		"waiting one":     {sqlFindWaiting, "SEARCH jobs USING INDEX jobs_line_idx (class=?)"},
		"count of due":    {sqlCountDue, "USING COVERING INDEX jobs_line_idx"},
		"count of others": {sqlCountWaiting, "USING COVERING INDEX jobs_ready_idx"},
		"old jobs":        {sqlDeleteJobs, "jobs_finished_idx (finished_at<?)"},
		"old keys":        {sqlDeleteKeys, "SEARCH idempotency_keys USING PRIMARY KEY (client=? AND key=?)"},
		"old runs":        {sqlDeleteRuns, "run_log_ended_idx (ended_at<?)"},
		"runs":            {sqlListRuns, "run_log_ended_idx (ended_at>? AND ended_at<?)"},
		"imported, too":   {sqlListAllRuns, "run_log_ended_idx (ended_at>? AND ended_at<?)"},
		"recent runs":     {sqlListRecent, "run_log_class_ended_idx (class=?)"},
		"waiting jobs":    {sqlListNotDue, "jobs_ready_idx"},
		"runs of a class": {sqlListClassRuns, "run_log_class_ended_idx (class=? AND ended_at>? AND ended_at<?)"},
		"history":         {sqlListHistory, "history_subject_idx (subject=? AND id<?)"},
		"open job":        {sqlFindOpenJob, "SEARCH jobs USING INDEX jobs_state_idx (state=?)"},
	} {
		if got := plan(t, s, c.sql); !strings.Contains(got, c.want) {
			t.Errorf("%s: plan\n%s\nlacks %q", name, got, c.want)
		}
	}
}

// Lists come in the order of an index that one of their filters leads, and end at
// their limit: nothing is sorted, and none reads the whole table in search of a few.
func TestListsAreReadInOrder(t *testing.T) {
	s := newStore(t, Options{})
	const queued, failed = lanegate.StateQueued, lanegate.StateFailed
	for name, c := range map[string]struct {
		f    service.JobFilter
		want []string // of each way that takes turns
	}{
		"all":         {service.JobFilter{Before: "x"}, []string{"sqlite_autoindex_jobs_1 (id<?)"}},
		"a lane":      {service.JobFilter{Lane: "serial"}, []string{"sqlite_autoindex_jobs_1 (id<?)"}},
		"classes":     {service.JobFilter{Classes: []string{"a", "b"}}, []string{"jobs_class_idx (class>? AND (class,id)<(?,?))"}},
		"states":      {service.JobFilter{States: []lanegate.State{queued, failed}}, []string{"jobs_state_idx (state>? AND (state,id)<(?,?))"}},
		"every state": {service.JobFilter{States: lanegate.States}, []string{"sqlite_autoindex_jobs_1 (id<?)"}},
		"both": {service.JobFilter{Classes: []string{"a"}, States: []lanegate.State{failed}, Client: "c"},
			[]string{"jobs_state_idx (state>? AND (state,id)<(?,?))", "jobs_class_idx (class>? AND (class,id)<(?,?))"}},
	} {
		ways := waysOf(c.f)
		if len(ways) != len(c.want) {
			t.Errorf("%s: %d ways, want %d", name, len(ways), len(c.want))
			continue
		}
		for i, w := range ways {
			q, args := listPart(c.f, w, w.values[0], 100, 10)
			got := plan(t, s, q, args...)
			if !strings.Contains(got, c.want[i]) || strings.Contains(got, "TEMP B-TREE") {
				t.Errorf("%s: plan\n%s\nlacks %q, or sorts", name, got, c.want[i])
			}
		}
	}
}

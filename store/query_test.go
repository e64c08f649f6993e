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
		"heads":           {s.d.heads, "SEARCH h USING COVERING INDEX jobs_line_idx (class=?)"},
		"first heads":     {s.d.first, "SEARCH h USING COVERING INDEX jobs_line_idx (class=?)"},
		"stands":          {sqlReadStands, "jobs_ready_idx"},
		"ready":           {sqlListReady, "SEARCH jobs USING INDEX jobs_ready_idx (ready_at<?)"},
		"next ready":      {sqlNextReady, "jobs_ready_idx"},
		"ready heads":     {sqlReadStandsOfAll, "SEARCH jobs USING INDEX jobs_ready_idx (ready_at<?)"},
		"due bells":       {sqlListDueBells, "SEARCH jobs USING COVERING INDEX jobs_ring_idx (ring_at>? AND ring_at<?)"},
		"next bell":       {sqlNextBell, "USING COVERING INDEX jobs_ring_idx"},
		"in flight":       {sqlListInFlight, "SCAN attempts USING INDEX attempts_in_flight_idx"},
		"held":            {sqlListHeld, "attempts_in_flight_idx"},
		"running one":     {sqlFindRunning, "SEARCH jobs USING INDEX jobs_state_idx (state=? AND class=? AND id=?)"},
		"due one":         {sqlFindDue, "SEARCH jobs USING INDEX jobs_line_idx (class=?)"},
		"waiting one":     {sqlFindWaiting, "SEARCH jobs USING INDEX jobs_line_idx (class=?)"},
		"count of due":    {sqlCountDue, "USING COVERING INDEX jobs_line_idx"},
		"count of others": {sqlCountWaiting, "USING COVERING INDEX jobs_ready_idx"},
		"old jobs":        {sqlListOld, "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id>?)"},
		"gone jobs":       {sqlDeleteJobs, "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"},
		"old keys":        {sqlDeleteKeys, "SEARCH idempotency_keys USING PRIMARY KEY (client=? AND key=?)"},
		"old runs":        {sqlDeleteRuns, "run_log_ended_idx (ended_at<?)"},
		"runs":            {sqlListRuns, "run_log_ended_idx (ended_at>? AND ended_at<?)"},
		"imported, too":   {sqlListAllRuns, "run_log_ended_idx (ended_at>? AND ended_at<?)"},
		"recent runs":     {sqlListRecent, "run_log_class_ended_idx (class=?)"},
		"waiting jobs":    {sqlListNotDue, "jobs_ready_idx"},
		"runs of a class": {sqlListClassRuns, "run_log_class_ended_idx (class=? AND ended_at>? AND ended_at<?)"},
		"history":         {sqlListHistory, "history_subject_idx (subject=? AND id<?)"},
		"open job":        {sqlFindOpenJob, "SEARCH jobs USING COVERING INDEX jobs_state_idx (state=? AND class>? AND class<?)"},
		"open attempt":    {sqlFindOpenJob, "attempts_in_flight_idx"},
		"first wait":      {sqlFirstWait, "SEARCH jobs USING INDEX jobs_state_idx (state=? AND class>? AND class<?)"},
		"classes":         {sqlListClassesIn, "SEARCH j USING COVERING INDEX jobs_state_idx (state=? AND class<?)"},
		"groups":          {s.d.groups, "SEARCH h USING COVERING INDEX jobs_state_idx (state=? AND class=? AND id<?)"},
		"those that run":  {sqlListRunning, "SEARCH attempts USING INDEX attempts_in_flight_idx (job_id<?)"},
		"a page's end":    {sqlListEnd, "SEARCH jobs USING COVERING INDEX sqlite_autoindex_jobs_1 (id<?)"},
	} {
		if got := plan(t, s, c.sql); !strings.Contains(got, c.want) {
			t.Errorf("%s: plan\n%s\nlacks %q", name, got, c.want)
		}
	}
}

// A list comes in the order of the keys and ends at its limit, and rows of a merged one
// are sought by key, and not among all of a state or class, whatever the filter.
func TestListsAreReadInOrder(t *testing.T) {
	s := newStore(t, Options{})
	for _, f := range []service.JobFilter{{}, {States: lanegate.States[:1]}, {States: lanegate.States[:2], Classes: []string{"a", "b"}, Client: "c", Lane: "serial"}} {
		args := append([]any{"x"}, listFilter(f)...)
		if got := plan(t, s, sqlListKeys, append(args, 100, 10)...); !strings.Contains(got, "sqlite_autoindex_jobs_1 (id<?)") || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("%+v along the keys: plan\n%s\nsorts, or goes another way", f, got)
		}
		args[0] = dbJSON[[]string]{[]string{"x", "y"}}
		if got := plan(t, s, sqlListByKey, args...); !strings.Contains(got, "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)") {
			t.Errorf("%+v by key: plan\n%s", f, got)
		}
	}
}

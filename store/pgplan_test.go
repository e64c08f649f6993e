//go:build linux

package store

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/store/pgtest"
)

// Plans of the busy statements are made once, when a database may be empty, and must
// hang on keys and on the lines' indexes even then: one that reads all queued jobs
// is quick at first and never again.
func TestPostgresPlansMadeForEmptyTables(t *testing.T) {
	t.Parallel()
	// A server that starts processes for whatever it can: a table of some pages would
	// be enough elsewhere.
	server := pgtest.New(t, "parallel_setup_cost=0", "parallel_tuple_cost=0", "min_parallel_table_scan_size=0", "min_parallel_index_scan_size=0")
	s := newStore(t, Options{Path: server.URL("test")})
	checkBusyPlans(t, s)
}

// Statistics are of a moment: where jobs mostly run at once, none is queued when the
// tables are measured, and an index of all queued jobs looks as good as the lines'.
func TestPostgresPlansMadeWhenNothingWasQueued(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{Path: pgtest.New(t, "autovacuum=off").URL("test")})
	for _, q := range []string{
		`INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id)
		 SELECT 'j' || to_char(i, 'FM0000000'), 'c' || i % 20, 'a', 'queued', now(), now(), true, now() + i * interval '1 ms', 'j' || to_char(i, 'FM0000000')
		   FROM generate_series(1, 40000) AS i`,
		`INSERT INTO attempts (job_id, number, token, class, lane, units, fingerprint, worker, ready_at, started_at, ended_at, outcome)
		 SELECT id, 1, 't', class, 'serial', '{}', 'f', 'w', now(), now(), now(), 'succeeded' FROM jobs`,
		"UPDATE jobs SET state = 'succeeded', finished_at = now()",
		"ANALYZE",
	} {
		if _, err := s.write.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	checkBusyPlans(t, s)
}

// checkBusyPlans judges the plans of the busy statements as they would be made now.
func checkBusyPlans(t *testing.T, s *Store) {
	t.Helper()
	for name, c := range map[string]struct {
		sql, args, want string
	}{
		"succeed":       {sqlPGSucceed, nulls(13), "jobs_pkey"},
		"accept":        {sqlPGAccept, nulls(12), "Index Scan using idempotency_keys_pkey on idempotency_keys k"},
		"begin group":   {sqlPGReadGroup, "NULL, NULL", "idempotency_keys_pkey"},
		"lock group":    {sqlPGLockSubmissions, "NULL, NULL, NULL", "One-Time Filter"},
		"start":         {sqlPGStartJobs, nulls(13), "jobs_pkey"},
		"start kept":    {sqlPGStartKept, nulls(13), "job_payloads_pkey"},
		"lock granted":  {sqlPGLockGrants, "NULL", "jobs_pkey"},
		"lock jobs":     {sqlPGLockJobs, "NULL", "jobs_pkey"},
		"end":           {bulkEndAttempt.many, nulls(10), "attempts_pkey"},
		"settle":        {bulkUpdateJob.many, nulls(19), "jobs_pkey"},
		"heads":         {s.d.heads, "NULL, NULL", "jobs_line_idx"},
		"starts":        {s.d.starts, "NULL", "jobs_line_idx"},
		"stands":        {sqlReadStands, "", "jobs_ready_idx"},
		"stands for":    {sqlReadStandsFor, "NULL", "attempts_in_flight_idx"},
		"stands' next":  {sqlReadStandsFor, "NULL", "jobs_ready_idx"},
		"stands of all": {sqlPGStandsAll, "NULL", "attempts_in_flight_idx"},
		"stands' me":    {sqlReadStandsFor, "NULL", "workers_pkey"},
		"since, new":    {sqlPGStandsSince, "NULL, NULL, NULL", "Index Scan using attempts_start_idx"},
		"since, seen":   {sqlPGStandsSince, "NULL, NULL, NULL", "attempts_in_flight_idx on attempts attempts_1"},
		"returned":      {s.d.starts, "NULL", "jobs_returned_idx"},
		"became due":    {sqlPGFindReady, "NULL, NULL", "jobs_ready_idx"},
		"next ready":    {sqlNextReady, "", "jobs_ready_idx"},
		"in flight":     {sqlListInFlight, "", "attempts_in_flight_idx"},
		"due one":       {sqlFindDue, "NULL, NULL", "jobs_line_idx"},
		"running one":   {sqlFindRunning, "NULL, NULL", "attempts_in_flight_idx"},
		"due bells":     {sqlListDueBells, "NULL, NULL", "jobs_ring_idx"},
		"lock one job":  {sqlGetJobLocked, "NULL", "jobs_pkey"},
		"end one":       {sqlEndAttempt, nulls(13), "attempts_"},
		"start one":     {sqlStartJob, "NULL, NULL, NULL, NULL, NULL", "jobs_"},
		"held":          {sqlListHeld, "NULL", "Index Scan using attempts_"},
		"lines' wait":   {sqlCountWaiting, "NULL", "jobs_ready_idx"},
		"lines":         {sqlCountDue, "", "jobs_line_idx"},
		"open job":      {sqlFindOpenJob, "NULL", "jobs_state_class_idx"},
		"classes in":    {sqlListClassesIn, "NULL, NULL", "jobs_state_class_idx"},
		"list":          {sqlListKeys, nulls(10), "jobs_pkey"},
		"list by key":   {sqlListByKey, nulls(8), "jobs_pkey"},
		"groups":        {sqlPGGroups, "NULL, NULL", "jobs_state_class_idx"},
		"forsaken":      {sqlListForsaken, "", "jobs_worker_idx"},
		"forsaken by":   {sqlListForsakenBy, "NULL", "jobs_worker_idx"},
	} {
		plan := explainPrepared(t, s, "", s.d.sql(c.sql), c.args)
		if !strings.Contains(plan, c.want) || strings.Contains(plan, "Seq Scan on jobs") || strings.Contains(plan, "Seq Scan on attempts") {
			t.Errorf("%s: plan\n%s\nlacks %q or reads a whole table", name, plan, c.want)
		}
		if c.want == "jobs_pkey" && strings.Contains(plan, "jobs_state_class_idx") {
			t.Errorf("%s: plan\n%s\nreads all jobs of a state", name, plan)
		}
		if strings.HasPrefix(c.sql, pgStarting) && !startsInOrder.MatchString(plan) {
			t.Errorf("%s: plan\n%s\ndoes not go through the jobs in the order they were given, by which it locks them", name, plan)
		}
		if strings.Contains(plan, "JIT") || strings.Contains(plan, "Gather") {
			t.Errorf("%s: plan\n%s\nis compiled, or starts processes", name, plan)
		}
	}
}

// nulls are n arguments.
func nulls(n int) string { return strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") }

// startsInOrder: for each row of the CTE w, in their order, a seek of its job.
var startsInOrder = regexp.MustCompile(`Update on jobs [^\n]*\n\s+->  Nested Loop [^\n]*\n\s+->  CTE Scan on w`)

// explainPrepared is the plan of a statement as the writing pool prepares it; how has
// EXPLAIN's options.
func explainPrepared(t *testing.T, s *Store, how, text, args string) string {
	t.Helper()
	conn, err := s.write.Connx(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, err := conn.ExecContext(t.Context(), "DEALLOCATE p")
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := conn.ExecContext(t.Context(), "PREPARE p AS "+text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if args != "" {
		args = "(" + args + ")"
	}
	var lines []string
	if err := conn.SelectContext(t.Context(), &lines, "EXPLAIN "+how+" EXECUTE p"+args); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return strings.Join(lines, "\n")
}

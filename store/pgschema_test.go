//go:build linux

package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate/migrations"
	"github.com/lanegate/lanegate/store/pgtest"
)

// column is a column as far as the dialects must agree on it.
type column struct {
	Table   string `db:"tab"`
	Name    string `db:"name"`
	Type    string `db:"type"`
	NotNull bool   `db:"not_null"`
}

// sqliteTypes are what PostgreSQL's types are on SQLite.
var sqliteTypes = map[string]string{
	"bigint": "integer", "boolean": "integer", "text": "text", "json": "text", "timestamp with time zone": "text", "bytea": "blob",
}

// Both dialects have the same tables with the same columns in the same order; but starts
// have numbers for the sessions of a server only, see sessionReads.
func TestDialectsHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	lite, pg := newStore(t, Options{}), newPG(t, Options{})
	var want, got []column
	if err := lite.write.Select(&want, `
SELECT m.name AS tab, c.name AS name, lower(c.type) AS type, c."notnull" OR c.pk > 0 AS not_null
  FROM sqlite_master AS m, pragma_table_info(m.name) AS c
 WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' AND m.name NOT LIKE 'goose_%'
 ORDER BY m.name, c.cid`); err != nil {
		t.Fatal(err)
	}
	if err := pg.write.Select(&got, `
SELECT table_name AS tab, column_name AS name, data_type AS type, is_nullable = 'NO' AS not_null
  FROM information_schema.columns
 WHERE table_schema = 'public' AND table_name NOT LIKE 'goose_%'
 ORDER BY table_name COLLATE "C", ordinal_position`); err != nil {
		t.Fatal(err)
	}
	all := len(got)
	if got = slices.DeleteFunc(got, func(c column) bool { return c.Table == "attempts" && c.Name == "start_number" }); len(got) != all-1 {
		t.Error("attempts has no start_number on PostgreSQL")
	}
	for i := range got {
		got[i].Type = sqliteTypes[got[i].Type]
	}
	if len(want) < 100 {
		t.Errorf("only %d columns on SQLite", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-SQLite +PostgreSQL):\n%s", diff)
	}
}

func TestPostgresMigrationsUpAndDown(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	s := newStore(t, Options{Path: server.URL("test")})
	tables := func() (names []string) {
		if err := s.write.Select(&names, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE 'goose_%' ORDER BY 1"); err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := tables()
	p, err := migrator(s.write.DB, "postgres", migrations.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if left := tables(); len(left) != 0 {
		t.Errorf("left after going down: %v", left)
	}
	if err := migrate(t.Context(), s.write.DB, "postgres", migrations.Postgres(), s.log); err != nil {
		t.Fatal(err)
	}
	if after := tables(); !slices.Equal(before, after) {
		t.Errorf("tables %v, want %v", after, before)
	}
}

// Tables that grow with each job are vacuumed in shares that stay about the same, at
// the shares that migration 10 tells the reasons of. Without them a vacuum comes when
// a table has grown by a fifth.
func TestPostgresVacuumsInSmallShares(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	// Rows of new entries, and of dead ones, that a table of n rows is vacuumed after.
	var due []struct {
		Table string  `db:"relname"`
		New   float64 `db:"fresh"`
		Dead  float64 `db:"dead"`
	}
	const rows = 10_000_000
	if err := s.write.Select(&due, `
SELECT relname,
       coalesce(max(v) FILTER (WHERE k = 'autovacuum_vacuum_insert_threshold'), 1000)
           + $1 * coalesce(max(v) FILTER (WHERE k = 'autovacuum_vacuum_insert_scale_factor'), 0.2) AS fresh,
       50 + $1 * coalesce(max(v) FILTER (WHERE k = 'autovacuum_vacuum_scale_factor'), 0.2) AS dead
  FROM (SELECT c.relname, o.option_name AS k, CAST(o.option_value AS double precision) AS v
          FROM pg_class AS c, pg_options_to_table(c.reloptions) AS o
         WHERE c.relnamespace = CAST('public' AS regnamespace) AND c.relkind = 'r') AS options
 GROUP BY relname`, rows); err != nil {
		t.Fatal(err)
	}
	got := map[string][2]float64{}
	for _, d := range due {
		got[d.Table] = [2]float64{d.New, d.Dead}
	}
	const dead = 50 + rows/50
	for table, want := range map[string][2]float64{
		"jobs": {1000 + rows/50, dead}, "attempts": {1000 + rows/50, dead},
		"job_payloads": {70_000, dead}, "job_results": {70_000, dead}, "attempt_outputs": {70_000, dead},
		"idempotency_keys": {70_000, dead}, "run_log": {70_000, dead},
	} {
		if got[table] != want {
			t.Errorf("%s with %d rows is vacuumed after %v new and dead ones, want %v", table, rows, got[table], want)
		}
	}
}

// Measuring costs more than vacuuming: it comes after a fifth of changes, and takes a
// small sample of what is found by key alone.
func TestPostgresMeasuresLittle(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	var got []struct {
		Table  string  `db:"relname"`
		Share  float64 `db:"share"`
		Target int     `db:"target"`
	}
	if err := s.write.Select(&got, `
SELECT c.relname,
       coalesce((SELECT CAST(o.option_value AS double precision) FROM pg_options_to_table(c.reloptions) AS o
                  WHERE o.option_name = 'autovacuum_analyze_scale_factor'), 0.1) AS share,
       (SELECT max(CASE WHEN a.attstattarget >= 0 THEN a.attstattarget ELSE 100 END)
          FROM pg_attribute AS a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS target
  FROM pg_class AS c
 WHERE c.relnamespace = CAST('public' AS regnamespace)
   AND c.relname IN ('jobs', 'attempts', 'job_payloads', 'job_results', 'attempt_outputs', 'idempotency_keys')
 ORDER BY c.relname COLLATE "C"`); err != nil {
		t.Fatal(err)
	}
	want := "[{attempt_outputs 0.1 10} {attempts 0.2 100} {idempotency_keys 0.1 10} {job_payloads 0.1 10} {job_results 0.1 10} {jobs 0.2 100}]"
	if got := fmt.Sprint(got); got != want {
		t.Errorf("tables, shares of changes and targets of statistics\n%s, want\n%s", got, want)
	}
}

// C73: on a large database no statement of the busy paths reads the backlog or
// the finished rows.
func TestPostgresStatementsUseTheirIndexes(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addClasses(t, s, 40)
	fill := []string{
		`INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id, finished_at)
		 SELECT 'q' || lpad(CAST(i AS text), 8, '0'), 'class-' || lpad(CAST(i % 39 AS text), 3, '0'), 'c',
		        CASE WHEN i % 20 = 0 THEN 'queued' ELSE 'succeeded' END, now(), now() + CASE WHEN i % 40 = 0 THEN interval '1 day' ELSE interval '0' END,
		        i % 40 <> 0, now(), CAST(i AS text), CASE WHEN i % 20 = 0 THEN NULL ELSE now() - i * interval '1 second' END
		   FROM generate_series(1, 20000) AS i`,
		`INSERT INTO attempts (job_id, number, token, class, lane, units, fingerprint, worker, ready_at, started_at, ended_at, outcome)
		 SELECT id, 1, 't', class, 'serial', '{}', '', 'w', now(), now(), now(), 'succeeded' FROM jobs WHERE state = 'succeeded'`,
		`INSERT INTO run_log (job_id, attempt, class, lane, fingerprint, units, started_at, ended_at, duration, outcome, source)
		 SELECT job_id, 1, class, lane, '', '{}', now(), now(), 1, 'succeeded', 'own' FROM attempts`,
		`INSERT INTO idempotency_keys (client, key, digest, job_id) SELECT 'c', id, '', id FROM jobs`,
		`ANALYZE`,
	}
	for _, q := range fill {
		if _, err := s.write.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	now, old := at(time.Now()), at(time.Now().Add(-19_900*time.Second))
	for name, c := range map[string]struct {
		sql  string
		args []any
		want string
	}{
		"heads":        {s.d.heads, []any{`["class-001","class-002"]`, 1}, "jobs_line_idx"},
		"starts":       {s.d.starts, []any{`[{"class":"class-001","n":1},{"class":"class-002","n":5}]`}, "jobs_line_idx"},
		"stands":       {sqlReadStandsFor, []any{"w"}, "attempts_in_flight_idx"},
		"ready":        {sqlPGFindReady, []any{now, 10}, "jobs_ready_idx"},
		"next ready":   {sqlNextReady, nil, "jobs_ready_idx"},
		"due bells":    {sqlListDueBells, []any{now, 10}, "jobs_ring_idx"},
		"next bell":    {sqlNextBell, nil, "jobs_ring_idx"},
		"in flight":    {sqlListInFlight, nil, "attempts_in_flight_idx"},
		"held":         {sqlListHeld, []any{"w"}, "Index Scan using attempts_"},
		"due one":      {sqlFindDue, []any{"class-001", ""}, "jobs_line_idx"},
		"running one":  {sqlFindRunning, []any{"class-001", ""}, "attempts_in_flight_idx"},
		"key":          {sqlGetKey, []any{"c", "q1"}, "idempotency_keys_pkey"},
		"lock jobs":    {sqlPGLockJobs, []any{textArray(map[string]bool{"q1": true, "q2": true})}, "jobs_pkey"},
		"old jobs":     {sqlListOld, []any{old, now, "q1", 10}, "Index Scan using jobs_pkey"},
		"gone jobs":    {sqlDeleteJobs, []any{old, now, 10, `["q1","q2"]`}, "jobs_pkey"},
		"old runs":     {sqlDeleteRuns, []any{old, 10}, "run_log_pkey"},
		"runs":         {sqlListRuns, []any{now, 0, now, 10}, "run_log_pkey"},
		"all runs":     {sqlListAllRuns, []any{now, 0, now, 10}, "run_log_pkey"},
		"open job":     {sqlFindOpenJob, []any{"class-001"}, "Index Only Scan using jobs_state_class_idx"},
		"first wait":   {sqlFirstWait, []any{"class-001"}, "Index Scan using jobs_state_class_idx"},
		"trial runs":   {sqlListTrialRuns, []any{"v"}, "attempts_verification_idx"},
		"made up":      {sqlListMadeUp, []any{"v"}, "Index Scan using attempts_"},
		"failed by id": {sqlPGFindFailed, []any{textArray(map[string]bool{"c": true}), textArray(map[string]bool{"q1": true})}, "idempotency_keys_pkey"},
	} {
		var lines []string
		if err := s.write.Select(&lines, "EXPLAIN "+s.d.sql(c.sql), c.args...); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		plan := strings.Join(lines, "\n")
		if !strings.Contains(plan, c.want) || strings.Contains(plan, "Seq Scan on jobs") || strings.Contains(plan, "Seq Scan on attempts") || strings.Contains(plan, "Seq Scan on run_log") {
			t.Errorf("%s: plan\n%s\nlacks %q or reads a whole table", name, plan, c.want)
		}
	}
}

// Names sort by their bytes whatever the database's locale, as the planner sorts them.
func TestPostgresSortsByBytes(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	var loose []string
	if err := s.read.Select(&loose, `
SELECT format('%s.%s', c.relname, a.attname)
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indrelid
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
  JOIN pg_collation AS l ON l.oid = a.attcollation
 WHERE c.relnamespace = CAST('public' AS regnamespace) AND l.collname <> 'C' AND a.attname <> 'state'`); err != nil {
		t.Fatal(err)
	}
	if len(loose) != 0 {
		t.Errorf("indexed texts in the database's order: %v", loose)
	}
}

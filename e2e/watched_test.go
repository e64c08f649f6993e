//go:build linux

package e2e

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/e2e/history"
	"github.com/lanegate/lanegate/store/pgtest"
)

// watchSQL makes the database keep a log of what changes in it. The number of an
// entry is taken while its row is written and so before others can see the row: an
// end has a smaller one than the start that it made room for.
const watchSQL = `
CREATE TABLE chaos_changes (
    seq  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    name text NOT NULL,
    gone boolean NOT NULL,
    line json NOT NULL
);
CREATE FUNCTION chaos_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_changes (name, gone, line)
    VALUES (TG_TABLE_NAME, TG_OP = 'DELETE', to_json(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END));
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_watch AFTER INSERT OR UPDATE OR DELETE ON job_classes FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch AFTER INSERT OR UPDATE OR DELETE ON lanes FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch AFTER INSERT OR UPDATE OR DELETE ON resources FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch AFTER INSERT OR UPDATE OR DELETE ON verification_members FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch AFTER INSERT OR UPDATE OR DELETE ON verification_runs FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch AFTER INSERT OR DELETE ON attempts FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch_outcome AFTER UPDATE OF outcome ON attempts FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch AFTER INSERT OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION chaos_watch();
CREATE TRIGGER chaos_watch_line AFTER UPDATE ON jobs FOR EACH ROW
    WHEN ((OLD.state, OLD.due, OLD.first_at, OLD.place_at, OLD.place_id, OLD.attempts) IS DISTINCT FROM (NEW.state, NEW.due, NEW.first_at, NEW.place_at, NEW.place_id, NEW.attempts))
    EXECUTE FUNCTION chaos_watch();
`

// watched is a fleet whose database keeps a log of its changes, which is judged
// together with the jobs' own record.
type watched struct {
	*fleet
	db    *sql.DB // the test's own way to the database
	cuts  []cut   // since the last judgement
	total tally
	// before is what was in force then.
	before []history.Change
}

func newWatched(t *testing.T, args ...string) *watched {
	t.Helper()
	// A crash of the server then loses no commit, and each commit has its time.
	pg := pgtest.New(t, "synchronous_commit=on", "track_commit_timestamp=on")
	m := &watched{fleet: newFleetOn(t, pg, args...), total: tally{}}
	db, err := sql.Open("postgres", pg.URL("test"))
	if err != nil {
		t.Fatal(err)
	}
	m.db = db
	t.Cleanup(func() { _ = db.Close() })
	return m
}

// watchDatabase begins the log; there must be tables.
func (m *watched) watchDatabase() {
	m.t.Helper()
	if err := m.pg.Exec(m.t.Context(), "test", watchSQL); err != nil {
		m.t.Fatal(err)
	}
}

// never is how the database writes that there is no run-next.
const never = "9999-"

// line is any watched row.
type line struct {
	ID           string         `json:"id"`
	Name         string         `json:"name"`
	Lane         string         `json:"lane"`
	MaxInFlight  int            `json:"max_in_flight"`
	Units        lanegate.Units `json:"units"`
	Fingerprint  string         `json:"fingerprint"`
	Width        int            `json:"width"`
	Paused       bool           `json:"paused"`
	Capacity     int            `json:"capacity"`
	Pool         bool           `json:"pool"`
	Verification string         `json:"verification"`
	Class        string         `json:"class"`
	Verdict      string         `json:"verdict"`
	Copies       int            `json:"copies"`
	HoldSerial   bool           `json:"hold_serial"`
	HeldAt       *time.Time     `json:"held_at"`
	EndedAt      *time.Time     `json:"ended_at"`
	Client       string         `json:"client"`
	Key          string         `json:"idempotency_key"`
	State        lanegate.State `json:"state"`
	Due          bool           `json:"due"`
	FirstAt      string         `json:"first_at"`
	PlaceAt      time.Time      `json:"place_at"`
	PlaceID      string         `json:"place_id"`
	Attempts     int            `json:"attempts"`
	Losses       int            `json:"losses"`
	JobID        string         `json:"job_id"`
	Number       int            `json:"number"`
	Attempt      int            `json:"attempt"`
	RouteReason  string         `json:"route_reason"`
	RouteWanted  string         `json:"route_wanted"`
	Worker       string         `json:"worker"`
	StartedAt    *time.Time     `json:"started_at"`
	Outcome      string         `json:"outcome"`
	Spec         struct {
		Paused bool `json:"paused"`
	} `json:"spec"`
}

func (l line) job() history.Job {
	j := history.Job{
		ID: l.ID, Class: l.Class, Client: l.Client, Key: l.Key, State: l.State, Due: l.Due, PlaceAt: l.PlaceAt, PlaceID: l.PlaceID,
		Attempts: l.Attempts, Losses: l.Losses, Verification: l.Verification, Worker: l.Worker,
	}
	if first, err := time.Parse(time.RFC3339, l.FirstAt); err == nil && !strings.HasPrefix(l.FirstAt, never) {
		j.FirstAt = first
	}
	return j
}

func (l line) attempt() history.Attempt {
	a := history.Attempt{
		Job: l.JobID, Number: l.Number, Class: l.Class, Lane: l.Lane, Reason: l.RouteReason, Wanted: l.RouteWanted, Units: l.Units,
		Fingerprint: l.Fingerprint, Worker: l.Worker, Verification: l.Verification, Outcome: lanegate.Outcome(l.Outcome),
	}
	if l.StartedAt != nil {
		a.StartedAt = *l.StartedAt
	}
	return a
}

// change is the row of a table as the history wants it.
func (l line) change(table string) (c history.Change, err error) {
	switch table {
	case "job_classes":
		c.Class = &history.Class{ID: l.ID, Lane: l.Lane, MaxInFlight: l.MaxInFlight, Paused: l.Spec.Paused, Units: l.Units, Fingerprint: l.Fingerprint}
	case "lanes":
		c.Lane = &history.Lane{Name: l.Name, Width: l.Width, Paused: l.Paused}
	case "resources":
		c.Resource = &history.Resource{Name: l.Name, Capacity: l.Capacity, Pool: l.Pool}
	case "verification_members":
		c.Proof = &history.Proof{Run: l.Verification, Class: l.Class, Fingerprint: l.Fingerprint, Verdict: l.Verdict, Copies: l.Copies}
	case "verification_runs":
		c.Hold = &history.Hold{Run: l.ID, Held: l.HoldSerial && l.HeldAt != nil && l.EndedAt == nil}
	case "jobs":
		j := l.job()
		c.Job = &j
	case "attempts":
		a := l.attempt()
		c.Attempt = &a
	default:
		err = fmt.Errorf("table %s is not known", table)
	}
	return c, err
}

// lines reads rows of (line json).
func (m *watched) lines(query string) (all []line) {
	m.t.Helper()
	rows, err := m.db.Query(query)
	if err != nil {
		m.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text []byte
		var l line
		if err := errors.Join(rows.Scan(&text), json.Unmarshal(text, &l)); err != nil {
			m.t.Fatalf("%v: %s", err, text)
		}
		all = append(all, l)
	}
	if err := rows.Err(); err != nil {
		m.t.Fatal(err)
	}
	return all
}

// beginEpoch forgets what was judged.
func (m *watched) beginEpoch() {
	m.t.Helper()
	m.before, m.cuts = nil, nil
	for _, table := range []string{"job_classes", "lanes", "resources", "verification_members"} {
		for _, l := range m.lines("SELECT to_json(x) FROM " + table + " AS x") {
			c, err := l.change(table)
			if err != nil {
				m.t.Fatal(err)
			}
			m.before = append(m.before, c)
		}
	}
	if _, err := m.db.Exec("DELETE FROM chaos_changes"); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Remove(m.path("events")); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
}

// collect reads the history of the epoch, in which nothing is in flight any more.
func (m *watched) collect(accepted []history.Accepted) history.History {
	m.t.Helper()
	h := history.History{
		Before: m.before, Lease: mixedLease, Accepted: accepted,
		// A commit is seen a moment after its time was taken; how long a moment is,
		// a busy machine decides.
		OrderSlack: time.Second, ClockSlack: 5 * time.Millisecond,
	}
	m.changes(&h)
	const mine = "(SELECT DISTINCT line->>'id' FROM chaos_changes WHERE name = 'jobs')"
	for _, l := range m.lines("SELECT to_json(x) FROM jobs AS x WHERE id IN " + mine) {
		h.Jobs = append(h.Jobs, l.job())
	}
	for _, l := range m.lines("SELECT to_json(x) FROM attempts AS x WHERE job_id IN " + mine) {
		h.Attempts = append(h.Attempts, l.attempt())
	}
	for _, l := range m.lines("SELECT json_build_object('job_id', job_id, 'attempt', attempt, 'outcome', outcome) FROM run_log WHERE source = 'own' AND job_id IN " + mine) {
		h.RunLog = append(h.RunLog, history.Logged{Ref: history.Ref{Job: l.JobID, Number: l.Attempt}, Outcome: lanegate.Outcome(l.Outcome)})
	}
	text, err := os.ReadFile(m.path("events"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	if h.Marks, err = history.ReadMarks(string(text)); err != nil {
		m.t.Fatal(err)
	}
	for _, c := range m.cuts {
		for _, id := range m.workersOf(c.pid) {
			h.Cuts = append(h.Cuts, history.Cut{Worker: id, From: c.from, To: c.to})
		}
	}
	return h
}

func (m *watched) changes(h *history.History) {
	m.t.Helper()
	rows, err := m.db.Query("SELECT at, pg_xact_commit_timestamp(xid::xid), name, gone, line FROM chaos_changes ORDER BY seq")
	if err != nil {
		m.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var at time.Time
		var committed sql.NullTime
		var table string
		var gone bool
		var text []byte
		var l line
		if err := rows.Scan(&at, &committed, &table, &gone, &text); err != nil {
			m.t.Fatal(err)
		}
		if err := json.Unmarshal(text, &l); err != nil {
			m.t.Fatalf("%v: %s", err, text)
		}
		c, err := l.change(table)
		if err != nil {
			m.t.Fatal(err)
		}
		c.At, c.Committed, c.Gone = at, committed.Time, gone
		h.Changes = append(h.Changes, c)
	}
	if err := rows.Err(); err != nil {
		m.t.Fatal(err)
	}
}

// workersOf lists the identities that a process has had.
func (m *watched) workersOf(pid int) (ids []string) {
	m.t.Helper()
	rows, err := m.db.Query("SELECT id FROM workers WHERE pid = $1", pid)
	if err != nil {
		m.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			m.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		m.t.Fatal(err)
	}
	return ids
}

// tally counts what happened.
type tally map[string]int

func (c tally) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		all = append(all, fmt.Sprintf("%s %d", name, c[name]))
	}
	return strings.Join(all, ", ")
}

// judge checks the history. What breaks a rule is kept in a folder of its own.
func (m *watched) judge(label string, h history.History) {
	m.t.Helper()
	if len(h.Accepted) == 0 || len(h.Attempts) == 0 {
		m.t.Errorf("%s: %d jobs were accepted and %d attempts made: nothing was shown", label, len(h.Accepted), len(h.Attempts))
	}
	m.total["jobs"] += len(h.Jobs)
	for _, a := range h.Attempts {
		m.total["attempts "+string(a.Outcome)]++
		m.total["attempts in "+a.Lane]++
	}
	found := history.Check(h)
	if len(found) == 0 {
		m.log.forget()
		return
	}
	dir, err := os.MkdirTemp("", "lanegate-chaos-")
	if err != nil {
		m.t.Fatal(err)
	}
	text, err := json.MarshalIndent(h, "", " ")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "history.json"), text, 0o600),
			os.WriteFile(filepath.Join(dir, "gateways.log"), []byte(m.log.tail(64<<20)), 0o600))
	}
	m.t.Errorf("%s: %d violations; the history and the gateways' log are in %s (%v)", label, len(found), dir, err)
	for _, v := range found[:min(len(found), 20)] {
		m.t.Error(v)
	}
	m.t.FailNow()
}

//go:build linux

package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// runningWide starts n jobs of two classes, with ids that are the same in each
// database, and returns their fences in that order.
func runningWide(t *testing.T, s *Store, n int) (fences []lanegate.Fence) {
	t.Helper()
	addWide(t, s, 2, n)
	if err := s.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: n}); err != nil {
		t.Fatal(err)
	}
	jobs := make([]service.NewJob, n)
	for i := range jobs {
		jobs[i] = service.NewJob{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", i), Class: fmt.Sprintf("wide-%02d", i%2), Client: "c", Payload: []byte("1")}
	}
	if _, err := s.SubmitBatch(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	return startedWide(t, s, jobs)
}

// startedWide starts these jobs, all that wait.
func startedWide(t *testing.T, s *Store, jobs []service.NewJob) []lanegate.Fence {
	t.Helper()
	res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: len(jobs)})
	if err != nil || len(res.Grants) != len(jobs) {
		t.Fatalf("%d grants of %d, %v", len(res.Grants), len(jobs), err)
	}
	byID := map[string]lanegate.Fence{}
	for _, g := range res.Grants {
		byID[g.Job.ID] = g.Attempt.Fence()
	}
	fences := make([]lanegate.Fence, len(jobs))
	for i, n := range jobs {
		fences[i] = byID[n.ID]
	}
	return fences
}

func good(d time.Duration) lanegate.Ending {
	return lanegate.Ending{Outcome: lanegate.Succeeded, Duration: d}
}

// What one statement records is what a transaction records: each row of each table,
// and each answer as far as service.Ended promises it.
func TestPostgresSuccessIsTheSameEitherWay(t *testing.T) {
	t.Parallel()
	var tables [2]map[string][]map[string]any
	var answers [2][]string
	for i := range 2 {
		s := newPG(t, Options{Bells: true})
		s.jitter = func() float64 { return 0 }
		answers[i] = goodHistory(t, s, i == 0)
		tables[i] = dump(t, s)
		var odd int
		if err := s.read.Get(&odd, `SELECT count(*) FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id JOIN run_log AS l ON l.job_id = a.job_id AND l.attempt = a.number
 WHERE j.state = 'succeeded' AND a.outcome = 'succeeded' AND (a.ended_at, l.started_at, l.ready_at, l.submitted_at) IS DISTINCT FROM (j.finished_at, a.started_at, a.ready_at, j.submitted_at)
    OR l.ended_at IS DISTINCT FROM a.ended_at OR l.duration <> a.duration OR a.started_at > a.ended_at`); err != nil || odd != 0 {
			t.Errorf("%d runs have several times of one thing, %v", odd, err)
		}
		if err := s.read.Get(&odd, `SELECT count(*) FROM class_successes AS c WHERE ended_at <> (SELECT max(ended_at) FROM attempts WHERE class = c.class AND outcome = 'succeeded')`); err != nil || odd != 0 {
			t.Errorf("%d classes have another last success than their last one, %v", odd, err)
		}
	}
	if d := cmp.Diff(answers[1], answers[0]); d != "" {
		t.Errorf("answers (-transaction +statement):\n%s", d)
	}
	if d := cmp.Diff(tables[1], tables[0]); d != "" {
		t.Errorf("tables (-transaction +statement):\n%s", d)
	}
	if n := len(tables[0]["class_successes"]); n != 2 || len(tables[0]["run_log"]) != 18 || len(tables[0]["job_results"]) != 3 || len(tables[0]["attempt_outputs"]) != 3 {
		t.Errorf("the history is not what it should be: %v", tables[0])
	}
}

// goodHistory runs nine jobs twice, first in vain, then with success of many kinds, and
// tells the answers.
func goodHistory(t *testing.T, s *Store, short bool) (answers []string) {
	t.Helper()
	zero, three := 0, 3
	ends := []lanegate.Ending{
		good(1),
		good(time.Hour),
		{Outcome: lanegate.Succeeded, Duration: time.Second, ExitCode: &zero, Output: lanegate.Output{Head: "a\x00\"{}\\", Tail: "ñ", Bytes: 7, Dropped: 2}},
		{Outcome: lanegate.Succeeded, Duration: time.Second, ExitCode: &three, Signal: "SIG\x00", Error: "but\x00 \xff"},
		{Outcome: lanegate.Succeeded, Duration: time.Second, Status: 204, Result: []byte(`{"r": "ñ\\"}`)},
		{Outcome: lanegate.Succeeded, Duration: time.Second, Result: []byte{}},
		{Outcome: lanegate.Succeeded, Duration: time.Second, Result: []byte{0, 0xff}, Output: lanegate.Output{Bytes: 9, Dropped: 9}},
		{Outcome: lanegate.Succeeded, Duration: time.Second, Output: lanegate.Output{Tail: "t"}},
		good(time.Second),
	}
	first := runningWide(t, s, len(ends))
	inVain := []lanegate.Outcome{lanegate.Interrupted, lanegate.Deferred, lanegate.Lost}
	var again []service.NewJob
	for i, f := range first {
		e := lanegate.Ending{Outcome: inVain[i%3], Duration: 1, Error: "in vain", DeferFor: time.Microsecond}
		if _, err := s.EndAttempt(t.Context(), f, e); err != nil {
			t.Fatal(err)
		}
		if _, err := s.write.Exec("UPDATE jobs SET state = 'queued', finished_at = NULL, failures = $2, extra_attempts = 2, ready_at = submitted_at, due = true, rings = 3 WHERE id = $1", f.Job, i); err != nil {
			t.Fatal(err)
		}
		again = append(again, service.NewJob{ID: f.Job})
	}
	fences := startedWide(t, s, again)
	if _, err := s.Cancel(t.Context(), fences[8].Job, "ada"); err != nil {
		t.Fatal(err)
	}
	items := make([]*item, len(ends))
	for i, f := range fences {
		items[len(ends)-1-i] = endItem(f, ends[i])
	}
	if !short {
		s.d.atOnce = nil
		oneGroup(t, s.outcomes, items)
	} else if err := s.outcomes.pgAtOnce(items); err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if !it.made() || it.err != nil {
			t.Errorf("%+v is not made: %v", it.end.Ending, it.err)
		}
		a, j := it.end.res.Attempt, it.end.res.Job
		if a.EndedAt == nil || j.FinishedAt == nil || !a.EndedAt.Equal(*j.FinishedAt) || a.Token != it.end.fence.Token {
			t.Errorf("answer %+v, %+v", a, j)
		}
		answers = append(answers, fmt.Sprintf("%s/%d %s %s %q %v %v %v %q %q %d %v / %s %s %q %d %d %d %d %d / %+v", a.Job, a.Number, a.Class, a.Lane, a.Verification,
			a.Outcome, a.Duration, a.Estimated, a.Error, a.Signal, a.Status, a.ExitCode != nil && *a.ExitCode == 3,
			j.ID, j.Class, j.State+lanegate.State(j.Reason), j.Attempts, j.Failures, j.Losses, j.Deferrals, j.Interruptions, it.end.res.Settlement))
	}
	return answers
}

// Each item of a group gets the answer that is its own, and what is plain is not held
// up by what is not.
func TestPostgresMixedOutcomes(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	f := runningWide(t, s, 8)
	if _, err := s.EndAttempt(t.Context(), f[2], lanegate.Ending{Outcome: lanegate.Failed, Duration: 1, Error: "boom"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.EndAttempt(t.Context(), f[3], good(7)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.Exec("UPDATE jobs SET verification = 'v' WHERE id = $1", f[6].Job); err != nil {
		t.Fatal(err)
	}
	stranger, unknown := f[7], f[7]
	stranger.Token = strings.Repeat("0", 32)
	unknown.Job = newID(t)
	cases := []struct {
		name      string
		it        *item
		state     lanegate.State // "": a late write
		repeated  bool
		statement bool // it is for the statement to make it
	}{
		{"a success", endItem(f[0], good(1)), lanegate.StateSucceeded, false, true},
		{"the same again", endItem(f[0], good(1)), lanegate.StateSucceeded, true, false},
		{"another end of it", endItem(f[0], good(2)), "", false, false},
		{"a failure", endItem(f[1], lanegate.Ending{Outcome: lanegate.Failed, Duration: 1, Permanent: true}), lanegate.StateFailed, false, false},
		{"a success after it", endItem(f[1], good(3)), "", false, false},
		{"a late success", endItem(f[2], good(4)), "", false, false},
		{"a repeat", endItem(f[3], good(7)), lanegate.StateSucceeded, true, false},
		{"with trouble", endItem(f[4], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 1, Trouble: []lanegate.PhraseMatch{{Phrase: "deadlock"}}}), lanegate.StateSucceeded, false, false},
		{"not measured", endItem(f[5], lanegate.Ending{Outcome: lanegate.Succeeded}), lanegate.StateSucceeded, false, false},
		{"made up", endItem(f[6], good(1)), lanegate.StateSucceeded, false, false},
		{"by a stranger", endItem(stranger, good(1)), "", false, false},
		{"of an unknown job", endItem(unknown, good(1)), "", false, false},
		{"behind the stranger", endItem(f[7], good(1)), lanegate.StateSucceeded, false, false},
	}
	items := make([]*item, len(cases))
	for i, c := range cases {
		items[i] = c.it
	}
	if err := s.outcomes.pgAtOnce(items); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if c.it.made() != c.statement || c.it.answered {
			t.Errorf("%s: made by the statement: %v", c.name, c.it.made())
		}
	}
	var rest []*item
	for _, it := range items {
		if !it.made() {
			rest = append(rest, it)
		}
	}
	oneGroup(t, s.outcomes, rest)
	for _, c := range cases {
		if late := errors.Is(c.it.err, lanegate.ErrLateWrite); late != (c.state == "") || !late && c.it.err != nil ||
			c.it.end.res.Job.State != c.state || c.it.end.res.Repeated != c.repeated {
			t.Errorf("%s: job %q, repeated %v, %v; want %q, %v", c.name, c.it.end.res.Job.State, c.it.end.res.Repeated, c.it.err, c.state, c.repeated)
		}
	}
	var runs, several int
	if err := s.read.QueryRow("SELECT count(*), count(*) - count(DISTINCT (job_id, attempt)) FROM run_log").Scan(&runs, &several); err != nil || runs != 8 || several != 0 {
		t.Errorf("%d runs are logged, %d of them again; want 8, %v", runs, several, err)
	}
}

// What another transaction does to a job while the statement waits for it counts as it
// is in the end.
func TestPostgresJobChangesUnderItsSuccess(t *testing.T) {
	t.Parallel()
	const lost = `WITH a AS (UPDATE attempts SET outcome = 'lost', ended_at = now(), estimated = true WHERE job_id = $1)
UPDATE jobs SET state = 'queued', losses = 1 WHERE id = $1`
	for name, c := range map[string]struct {
		change string
		want   error
	}{
		"its attempt is lost":       {lost, lanegate.ErrLateWrite},
		"it runs again":             {"WITH a AS (UPDATE attempts SET outcome = 'lost', ended_at = now() WHERE job_id = $1) UPDATE jobs SET attempts = 2 WHERE id = $1", lanegate.ErrLateWrite},
		"only its attempt is ended": {"WITH j AS (SELECT id FROM jobs WHERE id = $1 FOR UPDATE) UPDATE attempts SET outcome = 'lost', ended_at = now() FROM j WHERE job_id = id", lanegate.ErrLateWrite},
		"it is pruned":              {"DELETE FROM jobs WHERE id = $1", lanegate.ErrLateWrite},
		"it is cancelled":           {"WITH a AS (UPDATE attempts SET cancel_requested = true WHERE job_id = $1) UPDATE jobs SET cancel_requested = true, failures = 4 WHERE id = $1", nil},
		"it is heard of":            {"UPDATE attempts SET heartbeat_by = 'infinity', cancel_requested = true WHERE job_id = $1", nil},
		"it is only locked":         {"SELECT id FROM jobs WHERE id = $1 FOR UPDATE", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newPG(t, Options{})
			f := runningWide(t, s, 3)
			change := hold(t, s, c.change, f[1].Job)
			var now dbTime
			items := []*item{endItem(f[0], good(1)), endItem(f[1], good(1)), endItem(f[2], good(1))}
			committed := make(chan error, 1)
			go func() { committed <- s.outcomes.commit(items) }()
			waitsForLock(t, s)
			if err := change.QueryRow("SELECT clock_timestamp()").Scan(&now); err != nil {
				t.Fatal(err)
			}
			var others int
			if err := s.read.Get(&others, "SELECT count(*) FROM attempts WHERE outcome IS NOT NULL"); err != nil || others != 0 {
				t.Errorf("%d attempts are ended already, %v", others, err)
			}
			if err := change.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := <-committed; err != nil {
				t.Fatal(err)
			}
			if err := items[1].err; !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			want := map[bool]int{true: 3, false: 2}[c.want == nil]
			var runs, good, kept int
			if err := s.read.QueryRow(`SELECT (SELECT count(*) FROM run_log), (SELECT count(*) FROM jobs WHERE state = 'succeeded'),
       (SELECT count(*) FROM jobs AS j JOIN attempts AS a ON a.job_id = j.id WHERE j.failures = 4 AND j.cancel_requested AND a.cancel_requested OR heartbeat_by = 'infinity' AND a.cancel_requested)`).Scan(&runs, &good, &kept); err != nil || runs != want || good != want {
				t.Errorf("%d runs, %d jobs succeeded, want %d, %v", runs, good, want, err)
			}
			if writes := strings.Contains(c.change, "cancel_requested"); (kept == 1) != writes {
				t.Errorf("what the other one wrote is there: %d", kept)
			}
			for _, it := range items {
				// The heartbeat is waited for behind the clock: it has no lock of the job.
				if at := it.end.res.Attempt.EndedAt; it.made() && name != "it is heard of" && at.Before(now.t) {
					t.Errorf("ended at %v, before the lock was to be had, at %v", at, now.t)
				}
			}
		})
	}
}

// When the connection is lost while the statement runs, who was in it is told that
// nobody knows, and the others go on; a repeat is recorded, or told that it was.
func TestPostgresConnectionLostUnderAnOutcome(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	f := runningWide(t, s, 3)
	held := hold(t, s, "SELECT id FROM jobs WHERE id = $1 FOR UPDATE", f[0].Job)
	items := []*item{endItem(f[0], good(1)), endItem(f[1], lanegate.Ending{Outcome: lanegate.Failed, Duration: 1, Permanent: true}), endItem(f[2], good(1))}
	committed := make(chan error, 1)
	go func() { committed <- s.outcomes.commit(items) }()
	waitsForLock(t, s)
	if _, err := s.read.Exec("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil || items[1].err != nil || items[1].end.res.Job.State != lanegate.StateFailed {
		t.Errorf("the other one: %+v, %v, %v", items[1].end.res.Job, items[1].err, err)
	}
	for _, i := range []int{0, 2} {
		if !errors.Is(items[i].err, lanegate.ErrOutcomeUnknown) || !items[i].answered || items[i].made() {
			t.Errorf("item %d: %v, want outcome unknown", i, items[i].err)
		}
	}
	answer := make(chan error, 1)
	go func() {
		_, err := s.EndAttempt(context.WithoutCancel(t.Context()), f[0], good(1))
		answer <- err
	}()
	waitsForLock(t, s)
	if _, err := s.read.Exec("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; !errors.Is(err, lanegate.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "the change may or may not have been made") {
		t.Errorf("%v, want the words for a change", err)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	for _, repeated := range []bool{false, true} {
		res, err := s.EndAttempt(t.Context(), f[0], good(1))
		if err != nil || res.Repeated != repeated || res.Job.State != lanegate.StateSucceeded {
			t.Errorf("%+v, %v; want repeated %v", res, err, repeated)
		}
	}
}

// Statements and transactions that end jobs of the same classes at once, in whatever
// order these came, wait for each other and never in a ring: no one has to run again.
func TestPostgresOutcomesInOneOrder(t *testing.T) {
	t.Parallel()
	const rounds, each = 12, 4
	a, b := twoPG(t, Options{})
	f := runningWide(t, a, 2*rounds*each)
	together(2, func(side int) {
		for round := range rounds {
			items := make([]*item, each)
			for i := range items {
				n := (round*each+i)*2 + side // both classes on either side, turned around on one
				if n = n ^ (i & 1); side == 1 {
					items[each-1-i] = endItem(f[n], good(1))
				} else {
					items[i] = endItem(f[n], good(1))
				}
			}
			var err error
			if side == 1 && round%2 == 0 {
				err = b.once(context.Background(), b.write, func(t *tx) error { return b.outcomes.run(t, items, (*tx).together) })
			} else {
				err = []*Store{a, b}[side].outcomes.pgAtOnce(items)
			}
			for _, it := range items {
				if err != nil || it.err != nil || !it.made() {
					t.Errorf("side %d, round %d: job %s: made %v, %v, %v", side, round, it.end.fence.Job, it.made(), it.err, err)
				}
			}
		}
	})
	var runs int
	if err := a.read.Get(&runs, "SELECT count(DISTINCT job_id) FROM run_log WHERE outcome = 'succeeded'"); err != nil || runs != len(f) {
		t.Errorf("%d jobs are logged, want %d, %v", runs, len(f), err)
	}
}

//go:build linux

package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

// keyed is a submission under a key, as plain as can be.
func keyed(t *testing.T, class, key string) service.NewJob {
	t.Helper()
	return service.NewJob{ID: newID(t), Class: class, Client: "c", Key: key, Digest: []byte("d"), Payload: []byte("1")}
}

// submitted is what a submission was answered.
type submitted struct {
	service.Submitted
	err error
}

// submitAside hands in a job and returns where its answer will come.
func submitAside(t *testing.T, s *Store, n service.NewJob) <-chan submitted {
	t.Helper()
	answer := make(chan submitted, 1)
	go func() {
		res, err := s.Submit(context.WithoutCancel(t.Context()), n)
		answer <- submitted{res, err}
	}()
	return answer
}

// noLongWay keeps everybody who goes the long way waiting: it holds the locks of all keys.
func noLongWay(t *testing.T, s *Store) *sql.Tx {
	t.Helper()
	return hold(t, s, "SELECT pg_advisory_xact_lock($1, n) FROM generate_series(0, $2 - 1) AS n", keyLockSpace, keyLocks)
}

func countJobs(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.read.Get(&n, "SELECT count(*) FROM jobs"); err != nil {
		t.Fatal(err)
	}
	return n
}

// warm makes s read its configuration, without which nothing counts as plain.
func warm(t *testing.T, s *Store) {
	t.Helper()
	if _, err := s.Config(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Plain submissions need no lock of a key, alone, in a batch, and due later; what
// is not plain does, here a known key and a class that skips.
func TestPostgresPlainGoesTheShortWay(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{LockTimeout: 300 * time.Millisecond, Bells: true})
	addClasses(t, s, 3)
	setOverlap(t, s, "class-002", lanegate.OverlapSkip)
	warm(t, s)
	held := noLongWay(t, s)
	later := time.Now().Add(time.Hour)
	n := keyed(t, "class-000", "later")
	n.RunAt, n.LogicalDate, n.Worker, n.Payload = &later, "2026-11-29", "w1", []byte{0, 0xff, '"', '\\', '{'}
	res, err := s.Submit(t.Context(), n)
	if err != nil || res.Job.State != lanegate.StateQueued || res.Lane != lanegate.LaneSerial || res.Replayed {
		t.Fatalf("%+v, %v", res, err)
	}
	got, err := s.Job(t.Context(), n.ID)
	if err != nil || !got.RunAt.Equal(lanegate.Micro(later)) || got.LogicalDate != n.LogicalDate || got.Worker != "w1" ||
		!bytes.Equal(got.Payload, n.Payload) || !got.SubmittedAt.Equal(res.Job.SubmittedAt) {
		t.Errorf("the job is %+v, %v", got, err)
	}
	batch := []service.NewJob{keyed(t, "class-001", "b1"), keyed(t, "class-000", "b2"), {ID: newID(t), Class: "class-001"}}
	all, err := s.SubmitBatch(t.Context(), batch)
	if err != nil || len(all) != 3 || !all[0].Job.SubmittedAt.Equal(all[2].Job.SubmittedAt) {
		t.Errorf("batch: %+v, %v", all, err)
	}
	var rung, due int
	if err := s.read.QueryRow("SELECT count(ring_at), count(*) FILTER (WHERE due) FROM jobs WHERE ring_at = ready_at").Scan(&rung, &due); err != nil || rung != 4 || due != 3 {
		t.Errorf("%d jobs have a bell when they are due, %d are due, %v; want 4 and 3", rung, due, err)
	}
	for name, n := range map[string]service.NewJob{"known": keyed(t, "class-000", "b2"), "skip": keyed(t, "class-002", "s")} {
		if _, err := s.Submit(t.Context(), n); !errors.Is(err, lanegate.ErrUnavailable) {
			t.Errorf("%s: %v, want a wait for the locks in vain", name, err)
		}
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Submit(t.Context(), keyed(t, "class-000", "b2")); err != nil || !res.Replayed || res.Job.ID != batch[1].ID {
		t.Errorf("a replay: %+v, %v", res, err)
	}
}

func setOverlap(t *testing.T, s *Store, class string, o lanegate.Overlap) {
	t.Helper()
	err := s.Change(t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		for _, c := range cfg.Classes {
			if c.ID == class {
				c.Overlap = o
				return tx.SaveClass(c)
			}
		}
		return errors.New("no such class")
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A class that another transaction changes while a submission is on its way is
// judged as it is behind that change, and the time is read behind it, too.
func TestPostgresClassChangesUnderASubmission(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		judge  func(t *testing.T, s *Store, got submitted, other lanegate.Job)
	}{
		"it is deleted": {"DELETE FROM job_classes WHERE id = $1", func(t *testing.T, s *Store, got submitted, _ lanegate.Job) {
			if n := countJobs(t, s); !errors.Is(got.err, lanegate.ErrUnknownClass) || n != 1 {
				t.Errorf("%v, and %d jobs", got.err, n)
			}
		}},
		"it skips from now on": {`UPDATE job_classes SET spec = CAST(jsonb_set(CAST(spec AS jsonb), '{overlap}', '"skip"') AS json) WHERE id = $1`,
			func(t *testing.T, _ *Store, got submitted, other lanegate.Job) {
				if got.err != nil || got.Job.State != lanegate.StateSkipped || got.Job.BlockedBy != other.ID {
					t.Errorf("%+v, want it skipped because of %s", got, other.ID)
				}
			}},
		"it is in another lane": {"UPDATE job_classes SET lane = 'parallel' WHERE id = $1", func(t *testing.T, _ *Store, got submitted, _ lanegate.Job) {
			if got.err != nil || got.Lane != lanegate.LaneParallel {
				t.Errorf("lane %q, %v", got.Lane, got.err)
			}
		}},
		"it stays as it was": {"SELECT id FROM job_classes WHERE id = $1 FOR UPDATE", func(t *testing.T, _ *Store, got submitted, _ lanegate.Job) {
			if got.err != nil || got.Job.State != lanegate.StateQueued || got.Lane != lanegate.LaneSerial {
				t.Errorf("%+v", got)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newPG(t, Options{})
			addClasses(t, s, 2)
			other := mustSubmit(t, s, "class-000")
			change := hold(t, s, c.change, "class-000")
			answer := submitAside(t, s, keyed(t, "class-000", "k"))
			waitsForLock(t, s)
			var now dbTime
			if err := change.QueryRow("UPDATE admission SET version = version + 1 WHERE id = 1 RETURNING clock_timestamp()").Scan(&now); err != nil {
				t.Fatal(err)
			}
			if err := change.Commit(); err != nil {
				t.Fatal(err)
			}
			got := <-answer
			c.judge(t, s, got, other)
			if got.err == nil && got.Job.SubmittedAt.Before(now.t) {
				t.Errorf("submitted at %v, before the change that it waited for, at %v: it has an earlier place than its turn", got.Job.SubmittedAt, now.t)
			}
		})
	}
}

// A lane that another process changed is told as it is now, though this one has the
// configuration of before in memory; and a class that it deleted is unknown.
func TestPostgresOtherProcessChangesClasses(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	addClasses(t, a, 2)
	warm(t, a)
	err := b.Change(t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		c := cfg.Classes[0]
		c.Lane = lanegate.LaneParallel
		return errors.Join(tx.SaveClass(c), tx.DeleteClass("class-001"))
	})
	if err != nil {
		t.Fatal(err)
	}
	held := noLongWay(t, a)
	if res, err := a.Submit(t.Context(), keyed(t, "class-000", "k")); err != nil || res.Lane != lanegate.LaneParallel {
		t.Errorf("lane %q, %v", res.Lane, err)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Submit(t.Context(), keyed(t, "class-001", "l")); !errors.Is(err, lanegate.ErrUnknownClass) {
		t.Errorf("a deleted class: %v", err)
	}
}

// Whoever enters a key first wins: the other waits for that commit and answers with
// its job, or enters the key after all.
func TestPostgresKeyOnItsWayElsewhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stays bool
		class string
	}{{true, "class-000"}, {false, "class-000"}, {true, "class-002"}, {false, "class-002"}} {
		t.Run(fmt.Sprintf("committed %v, %s", c.stays, c.class), func(t *testing.T) {
			t.Parallel()
			stays := c.stays
			s := newPG(t, Options{})
			addClasses(t, s, 3)
			setOverlap(t, s, "class-002", lanegate.OverlapSkip) // goes the long way
			warm(t, s)
			// Of the same key in another class, so that no class's row stands between them.
			first := hold(t, s, `INSERT INTO jobs (id, class, client, idempotency_key, place_id, submitted_at, ready_at, place_at, due, state)
VALUES ('first', 'class-001', 'c', 'k', 'first', now(), now(), now(), true, 'queued')`)
			if _, err := first.Exec("INSERT INTO job_payloads (job_id, payload) VALUES ('first', '1')"); err != nil {
				t.Fatal(err)
			}
			if _, err := first.Exec("INSERT INTO idempotency_keys (client, key, digest, job_id) VALUES ('c', 'k', 'd', 'first')"); err != nil {
				t.Fatal(err)
			}
			n := keyed(t, c.class, "k")
			answer := submitAside(t, s, n)
			waitsForLock(t, s)
			want := "first"
			if stays {
				if err := first.Commit(); err != nil {
					t.Fatal(err)
				}
			} else {
				want = n.ID
				if err := first.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
			if got := <-answer; got.err != nil || got.Job.ID != want || got.Replayed != stays {
				t.Errorf("job %s, replayed %v, %v; want %s, %v", got.Job.ID, got.Replayed, got.err, want, stays)
			}
			if n := countJobs(t, s); n != 1 {
				t.Errorf("%d jobs", n)
			}
		})
	}
}

// In a group one known key stands in nobody's way, and who waits for it alone is
// answered by itself; but a batch stays in one transaction.
func TestPostgresKnownKeyInAGroup(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addClasses(t, s, 2)
	known := keyed(t, "class-000", "known")
	if _, err := s.Submit(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	held := noLongWay(t, s)
	again := known
	again.ID = newID(t)
	items := []*item{submitItem(again), submitItem(keyed(t, "class-001", "new"))}
	for _, it := range items {
		it.done = make(chan struct{})
	}
	committed := make(chan error, 1)
	go func() { committed <- s.group.commit(items) }()
	<-items[1].done
	if n := countJobs(t, s); n != 2 {
		t.Errorf("%d jobs when the plain one was answered", n)
	}
	select {
	case <-items[0].done:
		t.Error("the replay was answered without its locks")
	default:
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil || !items[0].submits[0].res.Replayed || items[0].submits[0].res.Job.ID != known.ID {
		t.Errorf("the replay: %+v, %v", items[0].submits[0].res, err)
	}

	held = noLongWay(t, s)
	again.ID = newID(t)
	batch := submitItem(keyed(t, "class-001", "newer"), again)
	go func() { committed <- s.group.commit([]*item{batch}) }()
	waitsForLock(t, s)
	if n := countJobs(t, s); n != 2 {
		t.Errorf("%d jobs: a part of a batch is in already", n)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil || batch.submits[0].res.Replayed || !batch.submits[1].res.Replayed {
		t.Errorf("the batch: %+v, %v", batch.submits, err)
	}
	if n := countJobs(t, s); n != 3 {
		t.Errorf("%d jobs in the end", n)
	}
}

// When the connection is lost while the statement runs, nobody knows whether it was
// committed; one that was lost before costs nothing.
func TestPostgresConnectionLostUnderASubmission(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addClasses(t, s, 1)
	warm(t, s)
	held := hold(t, s, "SELECT id FROM job_classes FOR UPDATE")
	answer := submitAside(t, s, keyed(t, "class-000", "k"))
	waitsForLock(t, s)
	kill := func(what string) {
		t.Helper()
		if _, err := s.read.Exec("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND " + what); err != nil {
			t.Fatal(err)
		}
	}
	kill("wait_event_type = 'Lock'")
	if got := <-answer; !errors.Is(got.err, lanegate.ErrOutcomeUnknown) {
		t.Errorf("%+v, want outcome unknown", got)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Submit(t.Context(), keyed(t, "class-000", "k")); err != nil || res.Replayed {
		t.Errorf("the repeat: %+v, %v", res, err)
	}
	kill("state = 'idle' AND query LIKE '%moment%'") // the session that took the last one in
	mustSubmit(t, s, "class-000")
}

// A lock that is not to be had in time is an answer, as on the long way, and not
// asked for twice.
func TestPostgresClassIsLockedForLong(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{LockTimeout: 300 * time.Millisecond})
	addClasses(t, s, 1)
	warm(t, s)
	hold(t, s, "SELECT id FROM job_classes FOR UPDATE")
	_, err := s.Submit(t.Context(), keyed(t, "class-000", "k"))
	if !errors.Is(err, lanegate.ErrUnavailable) || errors.Is(err, lanegate.ErrOutcomeUnknown) || !strings.Contains(causes(err), "lock timeout") {
		t.Errorf("%v (%s)", err, causes(err))
	}
	if n := countJobs(t, s); n != 0 {
		t.Errorf("%d jobs", n)
	}
}

// The commit comes behind the answer's row: when it fails, nobody is told that the
// change was made, neither of a submission nor of an outcome.
func TestPostgresCommitFailsBehindTheRow(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	s := newStore(t, Options{Path: server.URL("test")})
	addWide(t, s, 1, 1)
	mustRegister(t, s, "w")
	if _, err := s.Submit(t.Context(), keyed(t, "wide-00", "before")); err != nil {
		t.Fatal(err)
	}
	res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 1})
	if err != nil || len(res.Grants) != 1 {
		t.Fatalf("%d grants, %v", len(res.Grants), err)
	}
	fence := res.Grants[0].Attempt.Fence()
	for _, q := range []string{
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused at the commit'; END $$`,
		`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
	} {
		if _, err := s.write.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := s.Submit(t.Context(), keyed(t, "wide-00", "refused")); err == nil {
		t.Errorf("a submission whose commit failed is answered with %+v", res)
	}
	end := lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second}
	if ended, err := s.EndAttempt(t.Context(), fence, end); err == nil {
		t.Errorf("an outcome whose commit failed is answered with %+v", ended)
	}
	if n := countJobs(t, s); n != 1 {
		t.Errorf("%d jobs, want the one before", n)
	}
	if d, err := s.Job(t.Context(), fence.Job); err != nil || d.State != lanegate.StateRunning {
		t.Errorf("the job is %s, %v", d.State, err)
	}
	if _, err := s.write.Exec("DROP TRIGGER refuse ON jobs"); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Submit(t.Context(), keyed(t, "wide-00", "refused")); err != nil || res.Replayed {
		t.Errorf("after it the same submission is answered with %+v, %v", res, err)
	}
	if ended, err := s.EndAttempt(t.Context(), fence, end); err != nil || ended.Job.State != lanegate.StateSucceeded || ended.Repeated {
		t.Errorf("after it the same outcome is answered with %+v, %v", ended, err)
	}
}

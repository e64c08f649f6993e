//go:build linux

package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

// pgTrips stands between a store and its server and counts the messages that the server
// has to answer before the store goes on: round trips.
type pgTrips struct {
	n    atomic.Int64
	rule atomic.Pointer[pgRule] // nil: all goes through
}

// pgRule says what happens to a query with a text, as often as it comes.
type pgRule struct {
	text string
	how  string        // "cut": its connection ends; "swallow": neither it nor any later one has an answer; "unanswered": the server does it, and its answer ends the connection
	came chan struct{} // told when there is room
}

// with applies a rule while do runs.
func (p *pgTrips) with(how, text string, do func(came <-chan struct{})) {
	r := &pgRule{text, how, make(chan struct{}, 1)}
	p.rule.Store(r)
	do(r.came)
	p.rule.Store(nil)
}

// newPGTrips is a store behind a counter.
func newPGTrips(t *testing.T, o Options) (*Store, *pgTrips) {
	t.Helper()
	server, name := pgtest.Database(t, migratePG)
	socket := filepath.Join(t.TempDir(), ".s.PGSQL.5432")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &pgTrips{}
	go func() {
		for {
			front, err := l.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("unix", server.Socket())
			if err != nil {
				_ = front.Close()
				continue
			}
			deaf := &atomic.Bool{}
			go func() {
				_, _ = io.Copy(answers{front, deaf}, back)
				_ = front.Close()
			}()
			go func() {
				p.forward(front, back, deaf)
				_ = back.Close()
			}()
		}
	}()
	o.Path = strings.ReplaceAll(server.URL(name), urlDir(server.Socket()), urlDir(socket))
	return newStore(t, o), p
}

func urlDir(socket string) string { return strings.ReplaceAll(filepath.Dir(socket), "/", "%2F") }

// answers are for a client that may be deaf to them.
type answers struct {
	io.Writer
	deaf *atomic.Bool
}

func (a answers) Write(b []byte) (int, error) {
	if a.deaf.Load() {
		return 0, io.ErrClosedPipe
	}
	return a.Writer.Write(b)
}

// forward passes the client's messages on: a length and what it counts, behind a kind
// for all but the first.
func (p *pgTrips) forward(front io.Reader, back io.Writer, deaf *atomic.Bool) {
	r := bufio.NewReader(front)
	for first := true; ; first = false {
		var head []byte
		if !first {
			kind, err := r.ReadByte()
			if err != nil {
				return
			}
			head = append(head, kind)
		}
		size := make([]byte, 4)
		if _, err := io.ReadFull(r, size); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(size)-4)
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		if !first && (head[0] == 'Q' || head[0] == 'S') { // query, sync
			p.n.Add(1)
		}
		if rule := p.rule.Load(); rule != nil && !first && bytes.Contains(body, []byte(rule.text)) {
			select {
			case rule.came <- struct{}{}:
			default:
			}
			switch rule.how {
			case "cut":
				return
			case "swallow":
				_, _ = io.Copy(io.Discard, r)
				return
			}
			deaf.Store(true)
		}
		if _, err := back.Write(append(append(head, size...), body...)); err != nil {
			return
		}
	}
}

// number is the answer to a question for one.
func number(t *testing.T, s *Store, q string) (n int) {
	t.Helper()
	if err := s.read.Get(&n, q); err != nil {
		t.Fatal(err)
	}
	return n
}

// count is how many round trips do makes.
func (p *pgTrips) count(do func()) int {
	before := p.n.Load()
	do()
	return int(p.n.Load() - before)
}

// What a job that comes alone waits for are round trips: one for its submission, two
// for the pass that starts it. More jobs than pgPassed take one more.
func TestPostgresRoundTripsOfAPass(t *testing.T) {
	t.Parallel()
	s, trips := newPGTrips(t, Options{})
	addWide(t, s, 3, 2*pgPassed)
	mustRegister(t, s, "w")
	round := func(jobs int) (submit, admit, end, idle int) {
		submit = trips.count(func() {
			for range jobs {
				mustSubmit(t, s, "wide-01")
			}
		})
		var res service.Admitted
		admit = trips.count(func() { res = mustAdmit(t, s, "w") })
		if len(res.Grants) != jobs {
			t.Fatalf("%d of %d jobs started", len(res.Grants), jobs)
		}
		for _, g := range res.Grants {
			if string(g.Payload) != `{"a": 1.0}` || g.Job.State != lanegate.StateRunning || g.Attempt.StartedAt.IsZero() || g.Attempt.Number != 1 {
				t.Errorf("started %+v", g)
			}
			end += trips.count(func() {
				if _, err := s.EndAttempt(t.Context(), g.Attempt.Fence(), good(time.Second)); err != nil {
					t.Fatal(err)
				}
			})
		}
		idle = trips.count(func() { mustAdmit(t, s, "w") })
		return submit, admit, end, idle
	}
	round(pgPassed + 1) // prepares
	for jobs, want := range map[int][4]int{1: {1, 2, 1, 2}, pgPassed: {pgPassed, 2, pgPassed, 2}, pgPassed + 1: {pgPassed + 1, 3, pgPassed + 1, 2}} {
		submit, admit, end, idle := round(jobs)
		if got := [4]int{submit, admit, end, idle}; got != want {
			t.Errorf("%d jobs: %v round trips to submit, start, end, and look again; want %v", jobs, got, want)
		}
	}
}

// Other replicas are told of a job by one round trip, at the moment when a pass begins.
func TestPostgresRoundTripsOfANotification(t *testing.T) {
	t.Parallel()
	s, trips := newPGTrips(t, Options{})
	tell := func() {
		if err := s.Notify(t.Context(), "bells", "{}"); err != nil {
			t.Fatal(err)
		}
	}
	tell()
	if n := trips.count(tell); n != 1 {
		t.Errorf("%d round trips, want 1", n)
	}
}

// In flight is counted behind the lock, also where one round trip locks and counts:
// what another process starts while a pass waits for the admission row fills the lane.
func TestPostgresPassCountsBehindTheLock(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 1, 1)
	mustRegister(t, s, "w")
	mustSubmit(t, s, "wide-00")
	first := mustAdmit(t, s, "w").Grants[0] // its statements are prepared
	if _, err := s.EndAttempt(t.Context(), first.Attempt.Fence(), good(time.Second)); err != nil {
		t.Fatal(err)
	}
	mustSubmit(t, s, "wide-00")
	job := mustSubmit(t, s, "wide-00") // not the one that the pass would choose
	other := hold(t, s, "SELECT 1 FROM admission WHERE id = $1 FOR UPDATE", 1)
	granted := make(chan int, 1)
	go func() { granted <- len(mustAdmit(t, s, "w").Grants) }()
	waitsForLock(t, s)
	for _, q := range []string{
		"UPDATE jobs SET state = 'running', attempts = 1, started_at = now() WHERE id = $1",
		`INSERT INTO attempts (job_id, number, token, class, lane, route_reason, route_wanted, units, fingerprint, worker, verification, detached, ready_at, started_at)
		 SELECT $1, 1, 'elsewhere', class, lane, route_reason, route_wanted, units, fingerprint, worker, verification, detached, now(), now() FROM attempts LIMIT 1`,
	} {
		if _, err := other.ExecContext(t.Context(), q, job.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := <-granted; n != 0 {
		t.Errorf("%d starts beside the one that fills the lane", n)
	}
}

// What a process last read of the configuration may be too old: a class that another
// one has made is admitted all the same.
func TestPostgresPassByAnOldConfiguration(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 1, 4)
	mustRegister(t, s, "w")
	mustAdmit(t, s, "w")
	other := newStore(t, Options{Path: s.opts.Path})
	addWide(t, other, 2, 4)
	job := mustSubmit(t, other, "wide-01")
	if res := mustAdmit(t, s, "w"); len(res.Grants) != 1 || res.Grants[0].Job.ID != job.ID {
		t.Errorf("grants = %+v, want the job of the new class", res.Grants)
	}
}

// A commit that came with the starts and was not answered may have been made, or not:
// what was is among what the worker holds at its next beat, and is not started again.
func TestPostgresPassWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for how, lands := range map[string]bool{"cut": false, "unanswered": true} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s, trips := newPGTrips(t, Options{})
			addWide(t, s, 1, 4)
			mustRegister(t, s, "w")
			job := mustSubmit(t, s, "wide-00")
			trips.with(how, "; COMMIT", func(<-chan struct{}) {
				res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 1})
				if !errors.Is(err, lanegate.ErrOutcomeUnknown) || len(res.Grants) != 0 {
					t.Errorf("the answer was lost: %d grants, %v, want %v", len(res.Grants), err, lanegate.ErrOutcomeUnknown)
				}
			})
			eventually(t, "the server has done, or dropped, what was not answered", func() bool {
				return number(t, s, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE '%transaction%'") == 0
			})
			again := mustAdmit(t, s, "w").Grants
			held, err := s.Beat(t.Context(), "w")
			if err != nil {
				t.Fatal(err)
			}
			if n := number(t, s, "SELECT count(*) FROM attempts"); n != 1 || len(held) != 1 || held[0].Fence.Job != job.ID || held[0].Fence.Number != 1 {
				t.Errorf("%d attempts, the worker holds %+v: want the job's first", n, held)
			}
			if started := len(again) == 0; started != lands {
				t.Errorf("%d grants of the next pass, where the commit landed: %v", len(again), lands)
			}
		})
	}
}

// A server that refuses the starts has changed nothing: that is no unknown outcome.
func TestPostgresPassRefused(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{LockTimeout: 300 * time.Millisecond})
	addWide(t, s, 1, 4)
	mustRegister(t, s, "w")
	job := mustSubmit(t, s, "wide-00")
	other := hold(t, s, "SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", job.ID)
	if _, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 1}); !errors.Is(err, lanegate.ErrUnavailable) || errors.Is(err, lanegate.ErrOutcomeUnknown) {
		t.Errorf("the job's row is locked: %v, want %v", err, lanegate.ErrUnavailable)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if res := mustAdmit(t, s, "w"); len(res.Grants) != 1 || res.Grants[0].Attempt.Number != 1 {
		t.Errorf("grants = %+v, want the first attempt", res.Grants)
	}
}

// A pass whose time is over just when its commit is confirmed has committed.
func TestPostgresPassCommittedAtTheLastMoment(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 1, 4)
	mustRegister(t, s, "w")
	mustSubmit(t, s, "wide-00")
	var started int
	err := s.pgInPass(t.Context(), "admit", service.Ask{Worker: "w", Free: 1}, func(q *tx) error {
		res, err := q.admit(service.Ask{Worker: "w", Free: 1})
		started = len(res.Grants)
		ended, cancel := context.WithCancel(q.ctx)
		cancel()
		q.ctx = ended
		_ = q.q.Rollback() // as database/sql does when its time is over
		return err
	})
	if err != nil || started != 1 {
		t.Errorf("%d starts, %v; want one that is told", started, err)
	}
}

// What is gone when it is to start is left out; what it leaves free is filled, and the
// server has nothing to complain about, as its log would have the attempts' tokens.
func TestPostgresPassWithoutTheGone(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	s := newStore(t, Options{Path: server.URL("test")})
	addWide(t, s, 2, 2)
	mustRegister(t, s, "w")
	gone, kept, other := mustSubmit(t, s, "wide-00"), mustSubmit(t, s, "wide-00"), mustSubmit(t, s, "wide-01")
	cancelled := hold(t, s, "UPDATE jobs SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1", gone.ID)
	granted := make(chan []string, 1)
	go func() {
		var ids []string
		for _, g := range mustAdmit(t, s, "w").Grants {
			ids = append(ids, g.Job.ID)
		}
		slices.Sort(ids)
		granted <- ids
	}()
	waitsForLock(t, s)
	if err := cancelled.Commit(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{kept.ID, other.ID}, <-granted); diff != "" {
		t.Errorf("started (-want +got)\n%s", diff)
	}
	if log := server.Log(); strings.Contains(log, "ERROR") {
		t.Errorf("the server's log:\n%s", log)
	}
}

// What fills the places of those that are gone takes only the slots that are left.
func TestPostgresPassFillsWhatIsFree(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 3, 4)
	mustRegister(t, s, "w")
	gone := mustSubmit(t, s, "wide-00")
	for _, class := range []string{"wide-01", "wide-02", "wide-01", "wide-02"} {
		mustSubmit(t, s, class)
	}
	cancelled := hold(t, s, "UPDATE jobs SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1", gone.ID)
	granted := make(chan int, 1)
	go func() {
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 2})
		if err != nil {
			t.Error(err)
		}
		granted <- len(res.Grants)
	}()
	waitsForLock(t, s)
	if err := cancelled.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := <-granted; n != 2 {
		t.Errorf("%d grants for 2 free slots", n)
	}
}

// What has started stands when the pass that is to fill the rest fails; the worker is
// to ask again at once.
func TestPostgresPassKeepsWhatStarted(t *testing.T) {
	t.Parallel()
	s, trips := newPGTrips(t, Options{})
	addWide(t, s, 2, 2)
	mustRegister(t, s, "w")
	gone, kept := mustSubmit(t, s, "wide-00"), mustSubmit(t, s, "wide-01")
	cancelled := hold(t, s, "UPDATE jobs SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1", gone.ID)
	admitted := make(chan service.Admitted, 1)
	go func() {
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 2})
		if err != nil {
			t.Error(err)
		}
		admitted <- res
	}()
	waitsForLock(t, s)
	trips.with("cut", "BEGIN\x00", func(<-chan struct{}) { // of the long way: a pass says more at once
		if err := cancelled.Commit(); err != nil {
			t.Fatal(err)
		}
		res := <-admitted
		if len(res.Grants) != 1 || res.Grants[0].Job.ID != kept.ID || res.NextDue != 0 || res.NoneWaits {
			t.Errorf("grants %+v, next due %v, none waits: %v", res.Grants, res.NextDue, res.NoneWaits)
		}
	})
	if n := number(t, s, "SELECT count(*) FROM attempts WHERE outcome IS NULL"); n != 1 {
		t.Errorf("%d attempts in flight, want 1", n)
	}
}

// A pass does not start a job that has no payload; the long way says which one.
func TestPostgresPassWithoutAPayload(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 2, 2)
	mustRegister(t, s, "w")
	broken, other := mustSubmit(t, s, "wide-00"), mustSubmit(t, s, "wide-01")
	if _, err := s.write.Exec("DELETE FROM job_payloads WHERE job_id = $1", broken.ID); err != nil {
		t.Fatal(err)
	}
	if g := mustAdmit(t, s, "w").Grants; len(g) != 1 || g[0].Job.ID != other.ID {
		t.Errorf("grants = %+v, want the other job's", g)
	}
	if n := number(t, s, "SELECT count(*) FROM jobs WHERE state = 'running'"); n != 1 {
		t.Errorf("%d jobs run, want 1", n)
	}
}

// A notification is given up when the caller's time is over, however silent the server is.
func TestPostgresNotificationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, trips := newPGTrips(t, Options{TxTimeout: 5 * time.Minute}) // which bounds a silence
	if _, _, err := s.Jobs(t.Context(), service.JobFilter{Limit: 1}); err != nil {
		t.Fatal(err)
	}
	others := s.read.Stats().OpenConnections
	ctx, cancel := context.WithCancel(t.Context())
	trips.with("swallow", "pg_notify", func(came <-chan struct{}) {
		told := make(chan error, 1)
		go func() { told <- s.Notify(ctx, "bells", "{}") }()
		<-came
		cancel()
		eventually(t, "it is given up", func() bool { return len(told) == 1 })
		if err := <-told; !errors.Is(err, context.Canceled) {
			t.Errorf("notify: %v, want %v", err, context.Canceled)
		}
	})
	if n := s.read.Stats().OpenConnections; n != others || n == 0 {
		t.Errorf("%d of %d connections of the reading pool are left", n, others)
	}
	if err := s.Notify(t.Context(), "bells", "{}"); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// A server that is silent is not asked twice: each wait holds the process's turn.
func TestPostgresPassMeetsASilentServer(t *testing.T) {
	t.Parallel()
	s, trips := newPGTrips(t, Options{TxTimeout: 2 * time.Second})
	mustRegister(t, s, "w")
	trips.with("swallow", "EXECUTE lanegate_lock", func(<-chan struct{}) {
		n := trips.count(func() {
			if _, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 1}); !errors.Is(err, lanegate.ErrUnavailable) {
				t.Errorf("admit: %v, want %v", err, lanegate.ErrUnavailable)
			}
		})
		if n > 2 { // the first prepares
			t.Errorf("%d messages to a server that says nothing", n)
		}
	})
}

// Whatever a value holds, it comes to the server as it is, by either rule for backslashes.
func TestPostgresLiterals(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	want := []string{``, `NULL`, `"`, `\`, `'`, `\'`, `''`, `{a,b}`, `, "x"`, "a\nb\tc", `{"db":5}`, `$1 ; -- /*`, `é😀`, `\x00`, `E'\\'`}
	rows := make([][]any, len(want))
	for i, v := range want {
		rows[i] = []any{v, at(time.UnixMicro(1_700_000_000_123_456)), i%2 == 0, int64(-i), dbTime{}, []byte(v)}
	}
	literals, err := literalsOf("{{rows text timestamptz boolean bigint timestamptz bytea}}", rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, conforming := range []string{"on", "off"} {
		conn, err := s.read.Connx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.ExecContext(t.Context(), "SET escape_string_warning = off; SET standard_conforming_strings = "+conforming); err != nil {
			t.Fatal(err)
		}
		var got []string
		q := "SELECT a FROM unnest(CAST(" + literals[0] + " AS text[]), CAST(" + literals[1] + " AS timestamptz[]), CAST(" + literals[2] + " AS boolean[]), CAST(" +
			literals[3] + " AS bigint[]), CAST(" + literals[4] + " AS timestamptz[]), CAST(" + literals[5] + " AS bytea[])) WITH ORDINALITY AS r (a, b, c, d, e, f, n) " +
			"WHERE b = '2023-11-14T22:13:20.123456Z' AND c = (n % 2 = 1) AND d = 1 - n AND e IS NULL AND f = convert_to(a, 'UTF8') ORDER BY n"
		if err := conn.SelectContext(t.Context(), &got, q); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("standard_conforming_strings %s: (-sent +got)\n%s", conforming, diff)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

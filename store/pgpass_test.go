//go:build linux

package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
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
	n   atomic.Int64
	cut atomic.Value // string: a query with it ends its connection instead
}

// newPGTrips is a store behind a counter.
func newPGTrips(t *testing.T) (*Store, *pgTrips) {
	t.Helper()
	server, name := pgtest.Database(t, migratePG)
	socket := filepath.Join(t.TempDir(), ".s.PGSQL.5432")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &pgTrips{}
	p.cut.Store("")
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
			go func() {
				_, _ = io.Copy(front, back)
				_ = front.Close()
			}()
			go func() {
				p.forward(front, back)
				_ = back.Close()
			}()
		}
	}()
	url := strings.ReplaceAll(server.URL(name), urlDir(server.Socket()), urlDir(socket))
	return newStore(t, Options{Path: url}), p
}

func urlDir(socket string) string { return strings.ReplaceAll(filepath.Dir(socket), "/", "%2F") }

// forward passes the client's messages on: a length and what it counts, behind a kind
// for all but the first.
func (p *pgTrips) forward(front io.Reader, back io.Writer) {
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
			if cut := p.cut.Load().(string); cut != "" && bytes.Contains(body, []byte(cut)) {
				return
			}
		}
		if _, err := back.Write(append(append(head, size...), body...)); err != nil {
			return
		}
	}
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
	s, trips := newPGTrips(t)
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
	s, trips := newPGTrips(t)
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

// A commit that came with the starts and was not answered may have been made.
func TestPostgresPassWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s, trips := newPGTrips(t)
	addWide(t, s, 1, 4)
	mustRegister(t, s, "w")
	job := mustSubmit(t, s, "wide-00")
	trips.cut.Store("; COMMIT")
	_, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 1})
	if !errors.Is(err, lanegate.ErrOutcomeUnknown) {
		t.Errorf("the answer was lost: %v, want %v", err, lanegate.ErrOutcomeUnknown)
	}
	trips.cut.Store("")
	if res := mustAdmit(t, s, "w"); len(res.Grants) != 1 || res.Grants[0].Job.ID != job.ID || res.Grants[0].Attempt.Number != 1 {
		t.Errorf("grants = %+v, want the job that was not started", res.Grants)
	}
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

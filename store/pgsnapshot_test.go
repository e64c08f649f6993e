//go:build linux

package store

import (
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

// Bounds of what an admission reads of the lines and of what is in flight, in
// blocks of 8 KiB. While somebody else's snapshot is open, nobody can clear away
// what was claimed since: who reads all passes it by, a block for about six claims,
// as a session does for its first admission; the next begins where that was. Once the
// snapshot is gone the entries are noted as dead, and cost an index block for hundreds.
// The bounds are about a half above what is counted here.
const (
	maxBlocksPerClaimHeld = 0.25
	maxBlocksPerClaim     = 0.04
	maxBlocksOfAPass      = 30
)

// C73: a backlog, finished jobs that no vacuum has cleared away, and a transaction
// that stays open: claims go on, each reads no more than the one before, and
// all is well again when the transaction has ended.
func TestPostgresClaimsUnderAnOpenSnapshot(t *testing.T) {
	t.Parallel()
	// A server of its own: a session looks anew at what is dead to all only when the
	// oldest transaction of the whole server is another one.
	server := pgtest.New(t)
	s := newStore(t, Options{Path: server.URL("test")})
	s.lateBy = 0 // the jobs are seconds old
	const claims, slots = 2000, 50
	addWide(t, s, 2, slots)
	for range claims/1000 + 1 {
		jobs := make([]service.NewJob, 1000)
		for i := range jobs {
			jobs[i] = service.NewJob{ID: newID(t), Class: fmt.Sprintf("wide-%02d", i%2), Client: "c", Payload: []byte(`{}`)}
		}
		if _, err := s.SubmitBatch(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: slots}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.Exec("VACUUM ANALYZE"); err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("postgres", s.opts.Path) // without our limits on idle transactions
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	snapshot, err := other.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback() }() // ended below
	if _, err := snapshot.Exec("SELECT 1 FROM jobs LIMIT 1"); err != nil {
		t.Fatal(err)
	}

	empty := admissionBlocks(t, s)
	claimAndEnd(t, s, claims, slots)
	held := admissionBlocks(t, s)
	pass := passBlocks(t, s)
	if err := snapshot.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.Exec("ANALYZE"); err != nil { // plans are made anew
		t.Fatal(err)
	}
	admissionBlocks(t, s) // the first to come clears away
	after := admissionBlocks(t, s)
	t.Logf("blocks: %d at first, %d after %d claims under a snapshot, %d from where the last pass was, %d without the snapshot", empty, held, claims, pass, after)
	if pass > empty+maxBlocksOfAPass || held < 2*(empty+maxBlocksOfAPass) {
		t.Errorf("%d blocks from where the last pass was, %d at all, want at most %d of many more", pass, held, empty+maxBlocksOfAPass)
	}
	if most := empty + int(maxBlocksPerClaimHeld*claims); held > most {
		t.Errorf("%d blocks after %d claims under a snapshot, want at most %d", held, claims, most)
	}
	if most := empty + int(maxBlocksPerClaim*claims); after > most {
		t.Errorf("%d blocks once the snapshot is gone, want at most %d", after, most)
	}
}

// claimAndEnd admits n jobs, up to slots at once, each of which ends well.
func claimAndEnd(t *testing.T, s *Store, n, slots int) {
	t.Helper()
	for n > 0 {
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: slots})
		if err != nil || len(res.Grants) == 0 {
			t.Fatalf("%d grants, %v", len(res.Grants), err)
		}
		items := make([]*item, len(res.Grants))
		for i, g := range res.Grants {
			items[i] = endItem(g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 1})
		}
		oneGroup(t, s.outcomes, items)
		n -= len(items)
	}
}

// passBlocks is how many blocks a pass reads to find the same, from where the last one
// on its session was.
func passBlocks(t *testing.T, s *Store) (n int) {
	t.Helper()
	ask := service.Ask{Worker: "w", Free: 50}
	err := s.pgInPass(t.Context(), "look", ask, func(t1 *tx) error {
		t1.void = true
		seen := t1.joined.reads
		stands, err := seen.stands(ask)
		if err != nil {
			return err
		}
		want, err := seen.wanted(map[string]int{"wide-00": 1, "wide-01": 1})
		if err != nil {
			return err
		}
		for _, q := range []string{stands, "EXECUTE lanegate_lines(" + pq.QuoteLiteral(want) + ")"} {
			var plan []string
			if err := t1.q.SelectContext(t1.ctx, &plan, "EXPLAIN (ANALYZE, BUFFERS) "+q); err != nil {
				return err
			}
			n += blocksOf(t, strings.Join(plan, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// admissionBlocks is how many blocks an admission reads to find the heads of two
// lines and what is in flight.
func admissionBlocks(t *testing.T, s *Store) (n int) {
	t.Helper()
	for _, c := range []struct{ text, args string }{
		{s.d.starts, `'[{"class":"wide-00","n":1},{"class":"wide-01","n":1}]'`}, {sqlListInFlight, ""},
	} {
		plan := explainPrepared(t, s, "(ANALYZE, BUFFERS)", s.d.sql(c.text), c.args)
		if strings.Contains(plan, "Bitmap") {
			t.Errorf("dead entries are never noted by plan\n%s", plan)
		}
		n += blocksOf(t, plan)
	}
	return n
}

// blocksOf is how many blocks the execution of a plan has read.
func blocksOf(t *testing.T, plan string) (n int) {
	t.Helper()
	read := blocks.FindStringSubmatch(plan) // the first line that has any is the whole plan's
	if read == nil {
		t.Fatalf("no buffers in plan\n%s", plan)
	}
	for _, number := range read[1:] {
		if number != "" {
			k, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
	return n
}

var blocks = regexp.MustCompile(`Buffers: shared hit=(\d+)(?: read=(\d+))?`)

//go:build linux

package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// What a pass reads from where the last one on its session was is what is there, whoever
// brought jobs back to a line, or started some, meanwhile.
func TestPostgresSessionReadsWhatIsThere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 0))
			one := newPG(t, Options{})
			addWide(t, one, 4, 12)
			returning := []lanegate.Overlap{lanegate.OverlapQueue, lanegate.OverlapCoalesce, lanegate.OverlapQueue, lanegate.OverlapSkip}
			err := one.Change(t.Context(), func(tx service.ConfigTx) error {
				cfg, err := tx.Config()
				if err != nil {
					return err
				}
				for i, c := range cfg.Classes {
					c.Overlap, c.MaxAttempts = returning[i], 1
					if err := tx.SaveClass(c); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			stores := []*Store{one, newStore(t, Options{Path: one.opts.Path})}
			for i, s := range stores {
				s.lateBy = 0               // submissions come one after the other
				s.write.SetMaxOpenConns(2) // of which passes use one
				mustRegister(t, s, fmt.Sprintf("w%d", i))
			}
			m := &returns{t: t, rnd: rnd}
			for range 250 {
				m.step(stores[rnd.IntN(2)])
				for i, s := range stores {
					if rnd.IntN(2) == 0 {
						m.check(s, fmt.Sprintf("w%d", i))
					}
				}
			}
			if m.bounded < 100 || m.behind < 10 || m.since < 100 {
				t.Errorf("%d lines were read from a place, %d of them with jobs in front of it, %d passes counted from a start", m.bounded, m.behind, m.since)
			}
		})
	}
}

// returns does all that brings jobs to a line, or out of it.
type returns struct {
	t     *testing.T
	rnd   *rand.Rand
	jobs  []string
	runs  []lanegate.Fence
	doing string

	bounded, behind, since int
}

func (m *returns) step(s *Store) {
	ctx, job := m.t.Context(), func() string {
		if len(m.jobs) == 0 {
			return newID(m.t)
		}
		return m.jobs[m.rnd.IntN(len(m.jobs))]
	}
	var err error
	switch n := m.rnd.IntN(12); n {
	case 0, 1, 2:
		m.doing = "submit"
		for range 1 + m.rnd.IntN(4) {
			j := service.NewJob{ID: newID(m.t), Class: fmt.Sprintf("wide-%02d", m.rnd.IntN(4)), Client: "c", Payload: []byte("1")}
			if m.rnd.IntN(4) == 0 {
				j.RunAt = new(time.Now().Add(time.Duration(m.rnd.IntN(40)) * time.Millisecond))
			}
			if _, err = s.Submit(ctx, j); err != nil {
				break
			}
			m.jobs = append(m.jobs, j.ID)
		}
	case 3, 4, 5:
		m.doing = "admit"
		worker := "w0"
		if m.rnd.IntN(2) == 0 {
			worker = "w1"
		}
		var res service.Admitted
		res, err = s.Admit(ctx, service.Ask{Worker: worker, Free: m.rnd.IntN(7)})
		for _, g := range res.Grants {
			m.runs = append(m.runs, g.Attempt.Fence())
		}
	case 6, 7:
		m.doing = "end"
		m.rnd.Shuffle(len(m.runs), func(i, j int) { m.runs[i], m.runs[j] = m.runs[j], m.runs[i] })
		for range m.rnd.IntN(len(m.runs) + 1) {
			e := lanegate.Ending{Outcome: []lanegate.Outcome{lanegate.Succeeded, lanegate.Failed, lanegate.Interrupted}[m.rnd.IntN(3)], Duration: 1}
			if _, err = s.EndAttempt(ctx, m.runs[0], e); err != nil {
				break
			}
			m.runs = m.runs[1:]
		}
	case 8:
		m.doing = "retry"
		_, err = s.Retry(ctx, job(), "a")
	case 9:
		m.doing = "run next"
		_, err = s.RunNext(ctx, job(), "a")
	case 10:
		m.doing = "cancel"
		_, err = s.Cancel(ctx, job(), "a")
	case 11:
		m.doing = "hand over"
		classes := []string{"wide-00", "wide-01", "wide-02", "wide-03"}
		if m.rnd.IntN(2) == 0 {
			_, err = s.TakeOut(ctx, service.HandOverChoice{To: "q", Classes: classes, Limit: 1 + m.rnd.IntN(3)})
		} else {
			_, err = s.TakeBack(ctx, "q", nil)
		}
	}
	if e, own := errors.AsType[*lanegate.Error](err); err != nil && (!own || e.Kind == lanegate.KindUnavailable) {
		m.t.Fatalf("%s: %v", m.doing, err)
	}
}

// check begins a pass, and compares what it read with all that is there.
func (m *returns) check(s *Store, worker string) {
	m.t.Helper()
	err := s.pgInPass(m.t.Context(), "look", service.Ask{Worker: worker, Free: 1 + m.rnd.IntN(5)}, func(t *tx) error {
		t.void = true
		if t.lines == nil { // what classes there are is read now
			_, err := t.config()
			return err
		}
		want, err := (*sessionReads)(nil).wanted(t.lines.first)
		if err != nil {
			return err
		}
		var rows []headRow
		if err := t.all(&rows, t.s.d.starts, want); err != nil {
			return err
		}
		if d := cmp.Diff(dues(nil, rows), t.lines.due); d != "" {
			m.t.Errorf("after %s: lines as they are, and as they were read (-is +read):\n%s", m.doing, d)
		}
		var next dbTime
		if _, err := t.get(&next, sqlNextReady); err != nil || !next.t.Equal(t.standing.next.t) {
			m.t.Errorf("after %s: the next is due at %v, %v was read, %v", m.doing, next.t, t.standing.next.t, err)
		}
		is, err := t.inFlight()
		if err != nil {
			return err
		}
		read, err := t.running(t.standing.running)
		if err != nil {
			return err
		}
		slices.SortFunc(read, func(a, b admission.Running) int { return strings.Compare(a.Job, b.Job) })
		if d := cmp.Diff(is, read); d != "" {
			m.t.Errorf("after %s: what is in flight, and what was read (-is +read):\n%s", m.doing, d)
		}
		seen := t.joined.reads
		for _, r := range rows {
			if from, ok := seen.from[r.Class]; ok && r.place().compare(from) < 0 {
				m.behind++
			}
		}
		m.bounded += len(seen.from)
		if seen.started > 0 {
			m.since++
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// A submission that commits late is seen at its place by the next admission, and one
// that is so late that it can't be one, by the next that reads all.
func TestPostgresSessionReadsLateSubmissions(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 1, 10)
	mustRegister(t, s, "w")
	s.write.SetMaxOpenConns(1) // so that all passes are of one session
	read := func() (jobs []string, from linePlace) {
		err := s.pgInPass(t.Context(), "look", service.Ask{Worker: "w", Free: 5}, func(t *tx) error {
			t.void = true
			if t.lines == nil {
				_, err := t.config()
				return err
			}
			for _, d := range t.lines.due {
				jobs = append(jobs, d.Job)
			}
			from = t.joined.reads.from["wide-00"]
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return jobs, from
	}
	seen := func(change func(r *sessionReads)) {
		conn, err := s.write.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = conn.Raw(func(driven any) error {
			c, ok := driven.(*pgConn)
			if !ok {
				return fmt.Errorf("the connection is a %T", driven)
			}
			change(&c.reads)
			return nil
		})
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	insert := func(job string, ago time.Duration) {
		_, err := s.write.ExecContext(t.Context(), `
INSERT INTO jobs (id, class, client, place_id, submitted_at, ready_at, place_at, due, state)
SELECT $1, 'wide-00', 'c', $1, at, at, at, true, 'queued'
  FROM (SELECT now() - make_interval(secs => $2) AS at) AS a`, job, ago.Seconds())
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if jobs, from := read(); !slices.Equal(jobs, want) {
			t.Errorf("%s: read %v from %v on, want %v", what, jobs, from, want)
		}
	}
	read()
	read()
	if _, from := read(); from == (linePlace{}) {
		t.Fatal("lines are read from their beginning")
	}
	insert("b", s.lateBy-2*time.Second)
	expect("a late one", "b")
	insert("a", s.lateBy+2*time.Minute)
	expect("one from before", "b")
	seen(func(r *sessionReads) { r.sweep = time.Time{} })
	expect("one from before, when all is read", "a", "b")
	expect("and then", "a", "b")
	insert("0", time.Hour)
	expect("one from long before", "a", "b")
	seen(func(r *sessionReads) { r.at = time.Now().Add(time.Minute) })
	read() // its lines are of no use, and are read again where they are needed
	expect("when the clock has gone back", "0", "a", "b")
}

// Where thousands are in flight, as with targets that report later, they are not asked
// for one by one.
func TestPostgresSessionOfMany(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	const many = mostFlying + 200
	addWide(t, s, 1, many)
	if err := s.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: many}); err != nil {
		t.Fatal(err)
	}
	s.write.SetMaxOpenConns(1) // so that all passes are of one session
	for _, part := range []int{100, 900, 200} {
		jobs := make([]service.NewJob, part)
		for i := range jobs {
			jobs[i] = service.NewJob{ID: newID(t), Class: "wide-00", Client: "c", Payload: []byte("1")}
		}
		if _, err := s.SubmitBatch(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		if res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: part}); err != nil || len(res.Grants) != part {
			t.Fatalf("%d grants, want %d, %v", len(res.Grants), part, err)
		}
	}
	for range 2 {
		err := s.pgInPass(t.Context(), "look", service.Ask{Worker: "w", Free: 1}, func(t1 *tx) error {
			t1.void = true
			if n := len(t1.standing.running); n != many {
				t.Errorf("%d in flight, want %d", n, many)
			}
			stands, err := t1.joined.reads.stands(service.Ask{Worker: "w"})
			if len(stands) > 100 {
				t.Errorf("asked for by %d bytes", len(stands))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

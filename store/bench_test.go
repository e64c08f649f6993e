package store

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func newStore(tb testing.TB, o Options) *Store {
	tb.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(tb.TempDir(), "lanegate.db")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

func addClasses(tb testing.TB, s *Store, n int) {
	tb.Helper()
	err := s.Change(tb.Context(), func(tx service.ConfigTx) error {
		for i := range n {
			c := lanegate.Class{ID: fmt.Sprintf("class-%03d", i), Lane: lanegate.LaneSerial, MaxInFlight: 1}
			c.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "true"}
			c.ClassSpec, c.CommandDigest = c.WithDefaults(), "d"
			if err := tx.SaveClass(c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func newID(tb testing.TB) string {
	id, err := uuid.NewV7()
	if err != nil {
		tb.Fatal(err)
	}
	return id.String()
}

// BenchmarkSubmit has 64 callers in the group commit, each waiting for its own
// durable answer.
func BenchmarkSubmit(b *testing.B) {
	s := newStore(b, Options{})
	addClasses(b, s, 40)
	b.SetParallelism(32) // × GOMAXPROCS
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := newID(b)
			_, err := s.Submit(b.Context(), service.NewJob{
				ID: id, Class: "class-007", Client: "bench", Key: id, Digest: []byte(id), Payload: []byte(`{"day":"2026-11-29"}`),
			})
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkAdmit measures one pass with one grant and its outcome, over 200
// classes: the cost must not follow the backlog.
func BenchmarkAdmit(b *testing.B) {
	for _, backlog := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("backlog=%d", backlog), func(b *testing.B) {
			s := newStore(b, Options{})
			addClasses(b, s, 200)
			addBacklog(b, s, backlog, 199)
			ctx := b.Context()
			w := service.WorkerInfo{ID: "w1", Host: "h", PID: 1, Slots: 4, Commands: map[string]string{"true": "d"}}
			if err := s.RegisterWorker(ctx, w); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				if backlog == 0 {
					if _, err := s.Submit(ctx, service.NewJob{ID: newID(b), Class: "class-199", Payload: []byte("1")}); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				res, err := s.Admit(ctx, service.Ask{Worker: "w1", Free: 4, SerialFree: true})
				if err != nil || len(res.Grants) != 1 {
					b.Fatalf("grants = %d, err = %v", len(res.Grants), err)
				}
				b.StopTimer()
				if _, err := s.EndAttempt(ctx, res.Grants[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// addBacklog inserts due jobs directly, spread over the first n classes.
func addBacklog(tb testing.TB, s *Store, jobs, classes int) {
	tb.Helper()
	if jobs == 0 {
		return
	}
	const q = `
INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id)
  WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $1)
SELECT printf('00000000-0000-7000-8000-%012d', i), printf('class-%03d', i % $2), 'bench', 'queued', $3, $3, 1, $3, printf('%012d', i)
  FROM n`
	err := s.inTx(tb.Context(), "fill", func(t *tx) error {
		if _, err := t.exec(q, jobs, classes, at(t.at.Add(-time.Hour))); err != nil {
			return err
		}
		_, err := t.exec("INSERT INTO job_payloads (job_id, payload) SELECT id, $1 FROM jobs", []byte("1"))
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
}

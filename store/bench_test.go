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

// BenchmarkAdmit measures one pass that fills what is free, a slot and serial's:
// the cost must follow the classes, not the backlog.
func BenchmarkAdmit(b *testing.B) {
	for _, backlog := range []int{0, 100_000} {
		for _, size := range []struct{ classes, lanes, resources int }{{3, 2, 1}, {200, 20, 50}} {
			b.Run(fmt.Sprintf("backlog=%d/classes=%d", backlog, size.classes), func(b *testing.B) {
				s := newStore(b, Options{})
				addLanes(b, s, size.classes, size.lanes, size.resources)
				addBacklog(b, s, backlog, size.classes)
				benchmarkAdmit(b, s, fmt.Sprintf("class-%03d", size.classes-1), backlog == 0)
			})
		}
	}
}

func benchmarkAdmit(b *testing.B, s *Store, class string, submit bool) {
	ctx := b.Context()
	w := service.WorkerInfo{ID: "w1", Host: "h", PID: 1, Slots: 4, Commands: map[string]string{"true": "d"}}
	if err := s.RegisterWorker(ctx, w); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		want := 2
		if submit {
			want = 1
			if _, err := s.Submit(ctx, service.NewJob{ID: newID(b), Class: class, Payload: []byte("1")}); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		res, err := s.Admit(ctx, service.Ask{Worker: "w1", Free: 1, SerialFree: true})
		if err != nil || len(res.Grants) != want {
			b.Fatalf("grants = %d, want %d, err = %v", len(res.Grants), want, err)
		}
		b.StopTimer()
		for _, g := range res.Grants {
			if _, err := s.EndAttempt(ctx, g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second}); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}

// addLanes registers classes in serial and in lanes of width 4, in turns, each with
// a limit of its own and units of one of the resources.
func addLanes(tb testing.TB, s *Store, classes, lanes, resources int) {
	tb.Helper()
	err := s.Change(tb.Context(), func(tx service.ConfigTx) error {
		for i := range resources {
			if err := tx.SaveResource(lanegate.Resource{Name: fmt.Sprintf("r%02d", i), Capacity: 40}); err != nil {
				return err
			}
		}
		names := []string{lanegate.LaneSerial}
		for i := 1; i < lanes; i++ {
			names = append(names, fmt.Sprintf("l%02d", i))
			l := lanegate.Lane{Name: names[i], WidthSetting: 4, AllowOvercommit: true, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackWait}
			if err := tx.SaveLane(l); err != nil {
				return err
			}
		}
		for i := range classes {
			c := lanegate.Class{ID: fmt.Sprintf("class-%03d", i), Lane: names[i%lanes], MaxInFlight: 2}
			c.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "true"}
			c.Units = lanegate.Units{fmt.Sprintf("r%02d", i%resources): 1}
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

// addBacklog inserts due jobs directly, spread over the first n classes.
func addBacklog(tb testing.TB, s *Store, jobs, classes int) {
	tb.Helper()
	const (
		q = `
INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id)
  WITH RECURSIVE n(i) AS (SELECT $1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $2)
SELECT printf('00000000-0000-7000-8000-%012d', i), printf('class-%03d', i % $3), 'bench', 'queued', $4, $4, 1, $4, printf('%012d', i)
  FROM n`
		part = 5000 // in one transaction, which has a limit
	)
	for from := 0; from < jobs; from += part {
		err := s.inTx(tb.Context(), "fill", func(t *tx) error {
			if _, err := t.exec(q, from, min(jobs, from+part), classes, at(t.at.Add(-time.Hour))); err != nil {
				return err
			}
			_, err := t.exec("INSERT INTO job_payloads (job_id, payload) SELECT id, $1 FROM jobs WHERE id >= printf('00000000-0000-7000-8000-%012d', $2)", []byte("1"), from)
			return err
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

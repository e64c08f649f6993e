package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// engines are the stores to measure, by name.
var engines = map[string]func(testing.TB) *Store{
	"sqlite":   func(tb testing.TB) *Store { return newStore(tb, Options{}) },
	"postgres": func(tb testing.TB) *Store { return newPG(tb, Options{}) },
}

// BenchmarkAccept has 64 callers, each waiting for its own durable answer, on a
// server that does not wait for its disk.
func BenchmarkAccept(b *testing.B) {
	for name, open := range engines {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			addClasses(b, s, 40)
			b.SetParallelism(32) // × GOMAXPROCS
			perOp := costs(b, s)
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
			perOp()
		})
	}
}

// BenchmarkBacklog empties a backlog of 20 classes: one worker with 100 slots asks,
// and each run ends at once. One operation is one job, admitted and recorded.
func BenchmarkBacklog(b *testing.B) {
	for name, open := range engines {
		b.Run(name, func(b *testing.B) { backlog(b, open(b)) })
	}
}

func backlog(b *testing.B, s *Store) {
	const classes, slots = 20, 100
	addWide(b, s, classes, slots)
	jobs := make([]service.NewJob, 0, b.N)
	for i := range b.N {
		jobs = append(jobs, service.NewJob{ID: newID(b), Class: fmt.Sprintf("wide-%02d", i%classes), Client: "bench", Payload: []byte(`{}`)})
	}
	for len(jobs) > 0 {
		n := min(1000, len(jobs))
		if _, err := s.SubmitBatch(b.Context(), jobs[:n]); err != nil {
			b.Fatal(err)
		}
		jobs = jobs[n:]
	}
	if err := s.RegisterWorker(b.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: slots}); err != nil {
		b.Fatal(err)
	}
	done, free := 0, make(chan error, slots)
	busy := 0
	perOp := costs(b, s)
	b.ResetTimer()
	var wg sync.WaitGroup
	for done < b.N {
		res, err := s.Admit(b.Context(), service.Ask{Worker: "w", Free: slots - busy})
		if err != nil {
			b.Fatal(err)
		}
		for _, g := range res.Grants {
			busy++
			wg.Go(func() {
				_, err := s.EndAttempt(b.Context(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Millisecond})
				free <- err
			})
		}
		for wait := true; wait || len(free) > 0; wait = false {
			if err := <-free; err != nil {
				b.Fatal(err)
			}
			done++
			busy--
		}
	}
	wg.Wait()
	perOp()
}

// addWide makes a lane of that width and classes that may fill it together.
func addWide(tb testing.TB, s *Store, classes, width int) {
	tb.Helper()
	err := s.Change(tb.Context(), func(tx service.ConfigTx) error {
		if err := tx.SaveLane(lanegate.Lane{Name: lanegate.LaneParallel, WidthSetting: width, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackSerial, AllowOvercommit: true}); err != nil {
			return err
		}
		if err := tx.SaveResource(lanegate.Resource{Name: "db", Capacity: 2 * width}); err != nil {
			return err
		}
		for i := range classes {
			c := lanegate.Class{ID: fmt.Sprintf("wide-%02d", i), Lane: lanegate.LaneParallel, MaxInFlight: width}
			c.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://127.0.0.1:1/"}
			c.ClassSpec = c.WithDefaults()
			c.Units = lanegate.Units{"db": 1}
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

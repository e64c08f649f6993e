//go:build linux

package queue_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/store/pgtest"
)

// openBelled is a migrated store with bells on a database of the test's own.
func openBelled(t *testing.T) *store.Store {
	t.Helper()
	open := func(ctx context.Context, url string) (*store.Store, error) {
		return store.Open(ctx, store.Options{Path: url, Bells: true, QueuedLanes: true, Logger: slog.New(slog.DiscardHandler)})
	}
	server, name := pgtest.Database(t, func(ctx context.Context, url string) error {
		s, err := open(ctx, url)
		if err != nil {
			return err
		}
		return s.Close()
	})
	s, err := open(t.Context(), server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A job submitted to PostgreSQL rings over SQS in another process, is admitted
// there once, and its message is gone. The lane becomes available with its queue.
func TestSQSWithPostgreSQL(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	db := openBelled(t)
	ctx := t.Context()
	class := lanegate.Class{ID: "c", Lane: lanegate.LaneParallel, MaxInFlight: 4, CommandDigest: "d"}
	class.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "true"}
	class.ClassSpec = class.WithDefaults()
	if err := db.Change(ctx, func(tx service.ConfigTx) error { return tx.SaveClass(class) }); err != nil {
		t.Fatal(err)
	}
	if err := db.RegisterWorker(ctx, service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: 4, Commands: map[string]string{"true": "d"}}); err != nil {
		t.Fatal(err)
	}
	o := b.options()
	o.Bells = db
	o.Lanes = func(ctx context.Context) ([]lanegate.Lane, error) {
		cfg, err := db.Config(ctx)
		return cfg.Lanes, err
	}
	s, _ := b.open(o)
	o.SendOnly = true
	api, _ := b.open(o)
	available := func() bool {
		lanes, err := o.Lanes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lanes {
			if !l.Available {
				return false
			}
		}
		return true
	}
	eventually(t, "the lanes are available", available)
	job, err := db.Submit(ctx, service.NewJob{ID: uuid.Must(uuid.NewV7()).String(), Class: "c", Client: "c", Payload: []byte(`1`)})
	if err != nil {
		t.Fatal(err)
	}
	// Rings that came with the start are over: from now on only a message wakes.
	eventually(t, "the worker's bell is quiet", func() bool {
		select {
		case <-s.Rings():
			s.Asking()(service.PassCommitted)
			return false
		default:
			return true
		}
	})
	api.Ring("parallel")
	var grants []service.Grant
	eventually(t, "the message wakes the worker", func() bool {
		select {
		case <-s.Rings():
		default:
			return false
		}
		answer := s.Asking()
		got, err := db.Admit(ctx, service.Ask{Worker: "w", Free: 4, SerialFree: true})
		if err != nil {
			t.Fatal(err)
		}
		answer(service.PassCommitted)
		grants = append(grants, got.Grants...)
		return len(grants) > 0
	})
	if len(grants) != 1 || grants[0].Job.ID != job.Job.ID || grants[0].Attempt.Lane != lanegate.LaneParallel {
		t.Errorf("grants %+v", grants)
	}
	eventually(t, "the message is gone", func() bool { return b.held("parallel") == 0 && b.held("serial") == 0 })
	if due, err := db.TakeBells(ctx, service.BellAsk{Max: 10}); err != nil || len(due.Bells) != 0 || due.Next >= 0 {
		t.Errorf("left: %+v, %v", due, err)
	}
}

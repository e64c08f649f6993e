package peer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/worker"
	"github.com/lanegate/lanegate/worker/runner"
)

// inProcess is lanegate's own packages (store, service, worker) with a runner that
// does nothing, inside one process: what a River worker is. The real gateway runs
// jobs in other processes or behind HTTP; that cost is measured apart.
type inProcess struct {
	store *store.Store
	svc   *service.Service
	bell  *queue.Local
	count *sql.DB
	alone bool // no other process can take over

	mu   sync.Mutex
	work func() // ends the worker and waits
}

// NoCommands is an empty catalogue.
type NoCommands struct{}

// Digest implements service.Commands.
func (NoCommands) Digest(string) (string, bool) { return "", false }

// Digests implements service.Commands.
func (NoCommands) Digests() map[string]string { return nil }

func openLanegate(ctx context.Context, cfg Config) (Queue, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s, err := store.Open(ctx, store.Options{Path: cfg.DSN, Logger: log})
	if err != nil {
		return nil, err
	}
	driver := "sqlite"
	if store.IsPostgres(cfg.DSN) {
		driver = "postgres"
	}
	count, err := sql.Open(driver, cfg.DSN)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	q := &inProcess{store: s, bell: queue.NewLocal(), count: count, alone: driver == "sqlite"}
	q.svc = service.New(service.Options{Store: s, Doorbell: q.bell, Commands: NoCommands{}, Log: log})
	if err := Prepare(ctx, s, "http://127.0.0.1:9/", cfg.Own); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// Lane and Resource are what Prepare puts the classes into.
const (
	Lane     = "wide"
	Resource = "db"
	// Width is the lane's.
	Width = 100
)

// Prepare registers the classes c00 to c19 in a lane that is Width wide, with a
// limit of their own and units of a resource, as if each had earned its place by
// a verification run; and the classes of own, each with that limit, in lanes of
// the same name. All run as requests to url.
func Prepare(ctx context.Context, s *store.Store, url string, own map[string]int) error {
	return s.Change(ctx, func(tx service.ConfigTx) error {
		if err := tx.SaveResource(lanegate.Resource{Name: Resource, Capacity: 2 * Width}); err != nil {
			return err
		}
		save := func(id, lane string, limit int, paused bool) error {
			c := lanegate.Class{ID: id, Lane: lane, MaxInFlight: limit, ManagedBy: "api"}
			c.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: url}
			c.Units, c.Paused = lanegate.Units{Resource: 1}, paused
			c.ClassSpec = c.WithDefaults()
			c.Fingerprint = lanegate.Fingerprint(c.ClassSpec, "")
			return tx.SaveClass(c)
		}
		lane := func(name string, width int) error {
			return tx.SaveLane(lanegate.Lane{
				Name: name, WidthSetting: width, AllowOvercommit: true, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackWait, ManagedBy: "api",
			})
		}
		if err := lane(Lane, Width); err != nil {
			return err
		}
		for i := range Classes {
			if err := save(fmt.Sprintf("c%02d", i), Lane, Width/2, false); err != nil {
				return err
			}
			if err := save(fmt.Sprintf("p%02d", i), Lane, Width/2, true); err != nil {
				return err
			}
		}
		for class, limit := range own {
			to := class
			if limit == 0 {
				to, limit = lanegate.LaneSerial, 1
			} else if err := lane(class, limit); err != nil {
				return err
			}
			if err := save(class, to, limit, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// Add implements Queue.
func (q *inProcess) Add(ctx context.Context, j Job) (string, error) {
	res, err := q.svc.Submit(ctx, "bench", service.Submission{Class: j.Class, Payload: j.Payload})
	if err != nil {
		return "", err
	}
	return res.Job.ID, nil
}

// AddMany implements Queue.
func (q *inProcess) AddMany(ctx context.Context, jobs []Job) error {
	for len(jobs) > 0 {
		part := jobs[:min(len(jobs), service.MaxBatchItems)]
		jobs = jobs[len(part):]
		subs := make([]service.Submission, len(part))
		for i, j := range part {
			subs[i] = service.Submission{Class: j.Class, Payload: j.Payload}
		}
		results, err := q.svc.SubmitBatch(ctx, "bench", subs)
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.Err != nil {
				return r.Err
			}
		}
	}
	return nil
}

type noopRunner func([]byte)

// Run implements runner.Runner.
func (r noopRunner) Run(_ context.Context, j runner.Job, _ runner.Lease) lanegate.Ending {
	r(j.Payload)
	return lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 1}
}

// Work implements Queue.
func (q *inProcess) Work(ctx context.Context, width int, ran func([]byte)) error {
	ctx, cancel := context.WithCancel(ctx)
	w := worker.New(worker.Options{
		Backend: q.svc, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), NewID: newID,
		Host: "bench", PID: os.Getpid(), Slots: width, Exec: noopRunner(ran), HTTP: noopRunner(ran),
		Exclusive: q.alone,
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx) })                                                    // how it left does not matter here
	wg.Go(func() { _ = q.svc.RunVerifications(ctx, func() string { return "" }, nil) }) // it tells admission that there are none
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work = func() {
		cancel()
		wg.Wait()
	}
	return nil
}

// Stop implements Queue.
func (q *inProcess) Stop(context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.work != nil {
		q.work()
		q.work = nil
	}
	return nil
}

// Done implements Queue.
func (q *inProcess) Done(ctx context.Context) (n int, err error) {
	err = q.count.QueryRowContext(ctx, "SELECT count(*) FROM run_log WHERE outcome = 'succeeded'").Scan(&n)
	return n, err
}

// Close implements Queue.
func (q *inProcess) Close() error {
	_ = q.Stop(context.Background())
	return errors.Join(q.svc.Close(), q.store.Close(), q.count.Close())
}

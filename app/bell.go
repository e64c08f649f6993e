package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
)

const (
	// sqsPollEnd is what a call for messages may take beyond its wait.
	sqsPollEnd = 10 * time.Second
	// notifyEnd is for the last notification at a stop.
	notifyEnd = 2 * time.Second
	// lastRing bounds ringing for what this process leaves behind.
	lastRing = 5 * time.Second
)

// checkDoorbell completes the doorbell by the database.
func (c *Config) checkDoorbell(f *faults) {
	switch {
	case c.Doorbell == "" && c.Postgres():
		c.Doorbell = DoorbellPostgres
	case c.Doorbell == "":
		c.Doorbell = DoorbellLocal
	case c.Doorbell == DoorbellPostgres && !c.Postgres():
		f.add(c.from("doorbell"), "doorbell", "postgres needs a PostgreSQL database (database is from %s)", c.from("database"))
	case c.Doorbell == DoorbellLocal && c.Postgres():
		c.warn("doorbell local tells no other process of new work: each finds it by its own look at the database, every 30 seconds")
	}
	for _, key := range []string{"sqs.prefix", "sqs.wait", "sqs.visibility"} {
		used := c.Doorbell == DoorbellSQS || len(c.Intake) > 0 && key != "sqs.prefix"
		if _, given := c.origins[key]; given && !used {
			c.warn("%s (from %s) has no effect: the doorbell is %s", key, c.from(key), c.Doorbell)
		}
	}
}

// bellStop is how much longer a stop may take because of the doorbell and the intake.
func (c *Config) bellStop() time.Duration {
	if len(c.Intake) > 0 {
		return c.SQS.Wait + sqsPollEnd
	}
	switch c.Doorbell {
	case DoorbellSQS:
		if c.NoWorkers {
			return sqsPollEnd
		}
		return c.SQS.Wait + sqsPollEnd
	case DoorbellPostgres:
		return notifyEnd
	}
	return 0
}

// bell is the doorbell of this process. The service has it from the start; until
// the config file is taken in, only this process hears it.
type bell struct {
	service.Doorbell // set by New before anything runs beside it

	run func(ctx context.Context) // nil: nothing to run
	sqs *queue.SQS                // nil unless it rings over SQS
}

func newBell() *bell { return &bell{Doorbell: queue.NewLocal()} }

// Asking implements service.AckDoorbell, for doorbells without messages too.
func (b *bell) Asking() (done func(service.Pass)) {
	if ack, ok := b.Doorbell.(service.AckDoorbell); ok {
		return ack.Asking()
	}
	return func(service.Pass) {}
}

// openBell opens the configured doorbell, once the lanes are as the file says.
func (a *App) openBell(ctx context.Context, cfg Config) error {
	switch cfg.Doorbell {
	case DoorbellPostgres:
		p := queue.NewPostgres(queue.PostgresOptions{Notifier: a.store, Log: a.log})
		a.bell.Doorbell, a.bell.run = p, p.Run
	case DoorbellSQS:
		s, err := queue.OpenSQS(ctx, queue.SQSOptions{
			SQSEndpoint: cfg.sqsEndpoint(),
			Bells:       a.store, Lanes: a.lanes, Serve: cfg.ServeLanes, SendOnly: cfg.NoWorkers, Gate: a.mayReceive,
			Prefix: cfg.SQS.Prefix, Wait: cfg.SQS.Wait, Visibility: cfg.SQS.Visibility, Log: a.log, Registerer: a.registry,
		})
		if err != nil {
			return fmt.Errorf("doorbell sqs: %w", err)
		}
		a.bell.Doorbell, a.bell.run, a.bell.sqs = s, s.Run, s
		a.closers.push("sqs doorbell", s.Close)
	}
	a.log.DebugContext(ctx, "doorbell", "kind", cfg.Doorbell)
	return nil
}

func (a *App) lanes(ctx context.Context) ([]lanegate.Lane, error) {
	cfg, err := a.store.Config(ctx)
	return cfg.Lanes, err
}

// mayReceive says whether this process could start a job of the lane now.
func (a *App) mayReceive(lane string) bool { return !a.isStopping() && a.worker.HasRoom(lane) }

// ring runs the doorbell until ctx ends.
func (a *App) ring(ctx context.Context) {
	if a.bell.run != nil {
		a.bell.run(ctx)
	}
}

// ringLast tells others of what this process has left behind: the jobs that went
// back to their places have bells anyway, those behind a slot that became free
// have not. Without it they wait for somebody's own look.
func (a *App) ringLast(ctx context.Context) {
	c := a.config()
	if a.bell.sqs == nil || c.NoWorkers {
		return // PostgreSQL's doorbell notified of every end
	}
	ctx, cancel := context.WithTimeout(ctx, lastRing)
	defer cancel()
	lanes, err := a.lanes(ctx)
	for _, l := range lanes {
		if c.ServeLanes == nil || slices.Contains(c.ServeLanes, l.Name) {
			if err = a.store.RingLane(ctx, l.Name); err != nil {
				break
			}
		}
	}
	if err != nil {
		a.log.WarnContext(ctx, "ringing for what this process leaves behind failed; others find it by themselves", slog.Any("err", err))
	}
}

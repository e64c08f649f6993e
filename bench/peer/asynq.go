package peer

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hibiken/asynq"
)

// asynqQueue is Asynq on a redis-server that syncs every write.
type asynqQueue struct {
	redis  asynq.RedisClientOpt
	client *asynq.Client
	server *asynq.Server
	done   atomic.Int64
}

func openAsynq(_ context.Context, cfg Config) (Queue, error) {
	redis := asynq.RedisClientOpt{Network: "unix", Addr: cfg.Redis}
	q := &asynqQueue{redis: redis, client: asynq.NewClient(redis)}
	return q, q.client.Ping()
}

// Add implements Queue.
func (q *asynqQueue) Add(ctx context.Context, j Job) (string, error) {
	info, err := q.client.EnqueueContext(ctx, asynq.NewTask("bench", j.Payload))
	if err != nil {
		return "", err
	}
	return info.ID, nil
}

// AddMany implements Queue: Asynq has no call for many.
func (q *asynqQueue) AddMany(ctx context.Context, jobs []Job) error {
	for _, j := range jobs {
		if _, err := q.Add(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// Work implements Queue.
func (q *asynqQueue) Work(_ context.Context, width int, ran func([]byte)) error {
	q.server = asynq.NewServer(q.redis, asynq.Config{Concurrency: width, LogLevel: asynq.FatalLevel})
	return q.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		ran(t.Payload())
		q.done.Add(1)
		return nil
	}))
}

// Stop implements Queue.
func (q *asynqQueue) Stop(context.Context) error {
	if q.server != nil {
		q.server.Shutdown()
		q.server = nil
	}
	return nil
}

// Done implements Queue. Asynq forgets what is done: its own count of runs is
// taken, so call it after Stop.
func (q *asynqQueue) Done(context.Context) (int, error) { return int(q.done.Load()), nil }

// Close implements Queue.
func (q *asynqQueue) Close() error {
	return errors.Join(q.Stop(context.Background()), q.client.Close())
}

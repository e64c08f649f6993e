package peer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverArgs is a job of River's.
type riverArgs struct {
	Class   string          `json:"class"`
	Payload json.RawMessage `json:"payload"`
}

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return "bench" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	ran func([]byte)
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, j *river.Job[riverArgs]) error {
	w.ran(j.Args.Payload)
	return nil
}

// riverQueue is River with one of its drivers; T is the driver's transaction.
type riverQueue[T any] struct {
	driver riverdriver.Driver[T]
	count  *sql.DB
	insert *river.Client[T]
	work   *river.Client[T]
	tuned  bool
	close  func() error
}

func openRiverPgx(ctx context.Context, cfg Config) (Queue, error) {
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, err
	}
	pc.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, err
	}
	return openRiver(ctx, cfg, riverpgxv5.New(pool), func() error { pool.Close(); return nil })
}

func openRiverPQ(ctx context.Context, cfg Config) (Queue, error) {
	db, err := sql.Open("postgres", cfg.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	return openRiver(ctx, cfg, riverdatabasesql.New(db), db.Close)
}

func openRiver[T any](ctx context.Context, cfg Config, driver riverdriver.Driver[T], closeDriver func() error) (Queue, error) {
	count, err := sql.Open("postgres", cfg.DSN)
	if err != nil {
		return nil, errors.Join(err, closeDriver())
	}
	q := &riverQueue[T]{driver: driver, count: count, tuned: cfg.Tuned, close: func() error { return errors.Join(count.Close(), closeDriver()) }}
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: silent()})
	if err != nil {
		return nil, errors.Join(err, q.close())
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, errors.Join(err, q.close())
	}
	if q.insert, err = river.NewClient(driver, &river.Config{Logger: silent()}); err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Add implements Queue.
func (q *riverQueue[T]) Add(ctx context.Context, j Job) (string, error) {
	res, err := q.insert.Insert(ctx, riverArgs(j), nil)
	if err != nil {
		return "", err
	}
	return strconv.FormatInt(res.Job.ID, 10), nil
}

// AddMany implements Queue.
func (q *riverQueue[T]) AddMany(ctx context.Context, jobs []Job) error {
	params := make([]river.InsertManyParams, len(jobs))
	for i, j := range jobs {
		params[i] = river.InsertManyParams{Args: riverArgs(j)}
	}
	_, err := q.insert.InsertManyFast(ctx, params)
	return err
}

// Work implements Queue.
func (q *riverQueue[T]) Work(ctx context.Context, width int, ran func([]byte)) (err error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{ran: ran})
	cfg := &river.Config{
		Logger: silent(), Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: width}},
	}
	if q.tuned { // its two times at the least that it takes
		cfg.FetchCooldown, cfg.FetchPollInterval = time.Millisecond, time.Millisecond
	}
	if q.work, err = river.NewClient(q.driver, cfg); err != nil {
		return err
	}
	return q.work.Start(ctx)
}

// Stop implements Queue.
func (q *riverQueue[T]) Stop(ctx context.Context) error {
	if q.work == nil {
		return nil
	}
	err := q.work.Stop(ctx)
	q.work = nil
	return err
}

// Done implements Queue.
func (q *riverQueue[T]) Done(ctx context.Context) (n int, err error) {
	err = q.count.QueryRowContext(ctx, "SELECT count(*) FROM river_job WHERE state = 'completed'").Scan(&n)
	return n, err
}

// Close implements Queue.
func (q *riverQueue[T]) Close() error { return errors.Join(q.Stop(context.Background()), q.close()) }

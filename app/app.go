package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/worker"
)

// Options are what New needs beside the configuration. The zero value works.
type Options struct {
	Version string
	Log     *slog.Logger // default: NewLogger on standard error
	Access  *slog.Logger // for a line about each request; default: Log
	Out     io.Writer    // start-up lines; default: none
}

// App is the gateway as one process. New makes it, Run runs it once.
type App struct {
	opts    Options
	log     *slog.Logger
	cfg     atomic.Pointer[Config]
	closers closers

	store    *store.Store
	svc      *service.Service
	bell     *bell
	metrics  *service.Metrics
	registry *prometheus.Registry
	runners  runners
	probes   probes
	intake   *queue.Intake // nil without intake queues
	worker   *worker.Worker
	listener net.Listener
	server   *http.Server
	health   *health
	// superseded: another set of classes has replaced this process's file.
	superseded atomic.Bool

	reloading sync.Mutex    // one Reload at a time
	stopping  chan struct{} // closed when a stop begins
	leaving   chan struct{} // closed when its drain is over
	hurry     chan struct{} // closed by StopNow
	hurryOnce sync.Once
}

// New opens the database, brings it in line with the configuration, builds all
// parts and listens; nothing is served and no job starts before Run. It waits up
// to cfg.StartWait for another process to let go of the database; the error then
// names that process. ctx bounds New only.
func New(ctx context.Context, cfg Config, o Options) (_ *App, err error) {
	if o.Log == nil {
		o.Log = NewLogger(cfg, os.Stderr)
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	a := &App{opts: o, log: o.Log, bell: newBell(), registry: prometheus.NewRegistry(), stopping: make(chan struct{}), leaving: make(chan struct{}), hurry: make(chan struct{})}
	a.closers.log = o.Log
	a.probes.log = o.Log
	a.cfg.Store(&cfg)
	defer func() {
		if err != nil {
			err = errors.Join(err, a.closers.close())
		}
	}()
	if err := a.openStore(ctx, cfg); err != nil {
		return nil, err
	}
	if err := a.buildRunners(ctx, cfg); err != nil {
		return nil, err
	}
	a.buildService(cfg)
	if cfg.Postgres() {
		if err := a.svc.AgreeLease(ctx, cfg.Lease); err != nil {
			return nil, fmt.Errorf("lease (from %s): %w", cfg.from("lease"), err)
		}
	}
	// A SQLite file is nobody else's, so what the file says is the newest word.
	if err := a.sync(ctx, cfg, !cfg.Postgres()); err != nil {
		return nil, err
	}
	if err := a.openBell(ctx, cfg); err != nil {
		return nil, err
	}
	if err := a.openIntake(ctx, cfg); err != nil {
		return nil, err
	}
	if err := a.probes.replace(cfg.Resources); err != nil {
		return nil, err
	}
	a.closers.push("probes", a.probes.close)
	a.buildWorker(cfg)
	if err := a.listen(ctx, cfg); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *App) config() *Config { return a.cfg.Load() }

// Addr is the address that is listened on, with the port that was chosen for 0.
func (a *App) Addr() string { return a.listener.Addr().String() }

// StopNow makes a stop, under way or to come, end running jobs and requests at
// once; the jobs go back to their place. It may be called more than once.
func (a *App) StopNow() {
	a.hurryOnce.Do(func() { close(a.hurry) })
	a.worker.StopNow()
}

func (a *App) openStore(ctx context.Context, cfg Config) error {
	a.log.DebugContext(ctx, "opening the database", "database", cfg.ShownDatabase(), "start_wait", cfg.StartWait.String())
	s, err := openStore(ctx, cfg, a.log)
	if err != nil && !cfg.Postgres() {
		err = withHolderRuns(err, cfg.Database)
	}
	if err != nil {
		return err
	}
	a.store = s
	a.closers.push("database", s.Close)
	return nil
}

func openStore(ctx context.Context, cfg Config, log *slog.Logger) (*store.Store, error) {
	sqs := cfg.Doorbell == DoorbellSQS
	return store.Open(ctx, store.Options{
		Path: cfg.Database, LockWait: cfg.StartWait, StarveAfter: cfg.StarveAfter, Logger: log,
		MaxConns: cfg.Conns, Bells: sqs, QueuedLanes: sqs,
	})
}

// Migrate brings the tables up to date and closes the database again.
func Migrate(ctx context.Context, cfg Config, log *slog.Logger) error {
	s, err := openStore(ctx, cfg, log) // opening migrates
	if err != nil {
		return err
	}
	return s.Close()
}

func (a *App) buildService(cfg Config) {
	a.metrics = service.NewMetrics()
	a.svc = service.New(service.Options{
		Store: a.store, Doorbell: a.bell, Commands: a.runners.catalogue, Log: a.log, Metrics: a.metrics,
		ConfigFile: cfg.File, DefaultTarget: cfg.DefaultTarget, Intakes: cfg.intakeQueues(),
		MaxPayload: cfg.Limits.Payload, MaxDepth: cfg.Limits.Depth,
		KeepJobs: cfg.Retention.Jobs, KeepRunLog: cfg.Retention.RunLog, Lease: cfg.Lease,
	})
	a.closers.push("analysis", a.svc.Close)
}

func (a *App) buildWorker(cfg Config) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // it is for people only
	}
	opts := worker.Options{
		Backend: a.svc, Log: a.log, NewID: func() string { return uuid.Must(uuid.NewV7()).String() },
		Host: host, PID: os.Getpid(), Lanes: cfg.ServeLanes, Slots: cfg.Slots,
		Commands: a.runners.offers, Exec: a.runners.exec, HTTP: a.runners.http,
		Probes: a.probes.all,
		Lease:  cfg.Lease, Beat: cfg.Beat, KillGrace: cfg.KillGrace, Drain: cfg.Drain,
		Exclusive: !cfg.Postgres(), // one process per SQLite file
	}
	if a.runners.sqs != nil { // a nil pointer would not be a nil Runner
		opts.SQS = a.runners.sqs
	}
	a.worker = worker.New(opts)
}

// sync brings the database in line with the file. Without force a set that
// another one has replaced is left alone: a replica that starts again with an
// older file must not undo a newer one. The set's hash covers the definitions of
// the commands, too, as those of two replicas may differ for a while. A file that
// declares no set, such as that of a replica without workers, takes nobody else's away.
func (a *App) sync(ctx context.Context, cfg Config, force bool) error {
	if !force && cfg.declaresNothing() {
		return a.svc.FillCommands(ctx)
	}
	fc := cfg.FileConfig()
	fc.Force = force
	fc.Hash = hashWith(fc.Hash, a.runners.catalogue.Digests())
	applied, err := a.svc.SyncFile(ctx, fc)
	if err != nil {
		return cfg.explain(err)
	}
	a.superseded.Store(!applied)
	if !applied {
		return a.svc.FillCommands(ctx)
	}
	return a.svc.SyncCommands(ctx)
}

// listen opens the port, so that an address in use ends the start.
func (a *App) listen(ctx context.Context, cfg Config) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("%s: listen on %s: %w", cfg.from("listen"), cfg.Listen, err)
	}
	a.listener = l
	a.closers.push("listener", func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return a.buildServer(cfg)
}

// loops are what goes on beside serving and working.
func (a *App) loops() []loop {
	return []loop{
		{name: "prune", first: time.Minute, every: time.Hour, limit: 30 * time.Minute, once: func(ctx context.Context) error {
			return a.svc.Prune(ctx, time.Now())
		}},
		{name: "foresee", first: time.Second, every: time.Second, limit: 30 * time.Second, once: a.svc.Foresee},
		{name: "watch runs", first: time.Minute, every: time.Minute, limit: time.Minute, once: a.svc.WatchRuns},
	}
}

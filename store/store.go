package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/migrations"
	"github.com/lanegate/lanegate/service"
)

// Options of a store. Only Path is required.
type Options struct {
	// Path of the SQLite file; it is made, readable by its owner only, when absent.
	// Its directory must exist. A URL that starts with postgres:// or postgresql://
	// is a PostgreSQL database instead; see Open.
	Path string
	// LockWait is how long Open waits for another process to let go of the file
	// (the drain time of a deploy). 0: one try.
	LockWait time.Duration
	// Retry of transactions that another one was in the way of.
	Retry Retry
	// MaxPending bounds the submissions and outcomes that wait for a commit;
	// beyond it callers get lanegate.ErrOverloaded. Default 4096.
	MaxPending int
	// TxTimeout bounds one transaction, which a caller's context doesn't cut. Default 10s.
	TxTimeout time.Duration
	// StarveAfter: see admission.Input. Default admission.DefaultStarveAfter.
	StarveAfter time.Duration
	// Logger; default slog.Default().
	Logger *slog.Logger
	// Bells: every queued job gets a bell for a relay to send, see service.BellStore.
	// Without a relay they would pile up.
	Bells bool
	// QueuedLanes: a lane other than serial is available only once its queue was seen.
	QueuedLanes bool
	// MaxConns bounds the connections to PostgreSQL: two of them are kept for beats,
	// a third of the others reads. Default 16, at least 6. A run holds none.
	MaxConns int
	// ConnWait bounds the wait for one of them, and for this process's other
	// admission. Default 5s on PostgreSQL; 0, without a bound but the caller's, on SQLite.
	ConnWait time.Duration
	// LockTimeout bounds one wait for another transaction on PostgreSQL; IdleTimeout
	// is after what time without a statement the server ends a transaction, so that
	// a frozen process stops the others for seconds only. Defaults 5s and 4s.
	LockTimeout, IdleTimeout time.Duration
	// Now is the process's clock, the truth for due times as long as one process
	// owns the file. Default time.Now. PostgreSQL has a clock of its own.
	Now func() time.Time
}

// Retry says how often a transaction that did nothing, because another one was
// in the way, is run again, and how long to wait before: a random part of Wait,
// doubled each time.
type Retry struct {
	Attempts int           // in all; default 3
	Wait     time.Duration // default 20ms
}

func (o *Options) setDefaults() error {
	if o.Path == "" {
		return errors.New("a database path is required")
	}
	if o.MaxConns < 0 || o.ConnWait < 0 || o.LockTimeout < 0 || o.IdleTimeout < 0 || o.LockWait < 0 || o.MaxPending < 0 || o.TxTimeout < 0 || o.StarveAfter < 0 || o.Retry.Attempts < 0 || o.Retry.Wait < 0 {
		return errors.New("store options must not be negative")
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.TxTimeout, 10*time.Second)
	def(&o.StarveAfter, admission.DefaultStarveAfter)
	def(&o.Retry.Wait, 20*time.Millisecond)
	if o.Retry.Attempts == 0 {
		o.Retry.Attempts = 3
	}
	if o.MaxPending == 0 {
		o.MaxPending = 4096
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Store implements service.Store. Its methods may be called from any goroutine.
type Store struct {
	d    *dialect
	opts Options
	log  *slog.Logger

	// beat is the pool of beats, the same as write on SQLite.
	write, read, beat *sqlx.DB
	// group shares commits of submissions, outcomes those of outcomes: the same one
	// on SQLite, side by side where transactions may be.
	group, outcomes *group
	// hot are the statements of the busy paths by their text, prepared once on the
	// pools that write.
	hot map[*sqlx.DB]map[string]*sqlx.Stmt
	// idle is how many connections each pool keeps; empty on SQLite.
	idle map[*sqlx.DB]int
	// turn has room for the process's one admission at a time; nil on SQLite, whose
	// writers wait for each other anyway.
	turn chan struct{}

	// listening are the times of Listen, on PostgreSQL.
	listening listening

	// lateBy is how long a submission may take from its time to its commit.
	lateBy time.Duration

	// config is the last set of classes, lanes and resources that was read,
	// good as long as the admission row has its version.
	config atomic.Pointer[configState]
	// emptied are the classes whose part of a line, read for an admission, was too
	// short lately. It is only a guess at how much to read at once.
	emptied atomic.Pointer[map[string]bool]
	// busy is how many jobs of each class were in flight for the last admission.
	busy atomic.Pointer[map[string]int]
	// lines is how many classes had jobs in line at the last admission, another guess.
	lines   atomic.Int64
	blocked blockedHeads
	// pruned is the last job that retention has found, nil to begin with the first.
	pruned atomic.Pointer[string]
	// jitter is a random number in [0,1) for backoffs.
	jitter func() float64

	closing sync.Once
	closed  error // of the first Close

	path string // real path of the database file, "" on PostgreSQL
	lock *fileLock
}

var _ service.Store = (*Store)(nil)

// Open opens the database that o.Path names, brings its tables up to date and
// returns the store. ctx bounds opening only.
//
// A SQLite file is locked until Close or the process's end: one process per file.
// When another one has it for longer than o.LockWait, the error names its pid.
//
// A PostgreSQL database, version 14 or newer, takes any number of processes; of
// those that start at once one migrates and the others wait. Its URL must say
// sslmode, unless it names a unix socket. A pooler that shares sessions
// between clients (PgBouncer's transaction mode) is refused.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if IsPostgres(o.Path) {
		return openPostgres(ctx, o)
	}
	path, err := realPath(o.Path)
	if err != nil {
		return nil, fmt.Errorf("database file %s: %w", o.Path, err)
	}
	s := &Store{d: sqliteDialect(o.Now), opts: o, log: o.Logger, jitter: rand.Float64, path: path}
	if s.lock, err = takeLock(ctx, path, o.LockWait); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.lock.release())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	if s.write, s.read, err = openSQLite(ctx, s.path); err != nil {
		return err
	}
	s.beat = s.write
	if err := migrate(ctx, s.write.DB, s.d.name, migrations.SQLite(), s.log); err != nil {
		return errors.Join(err, s.closePools())
	}
	if err := s.prepare(ctx); err != nil {
		return errors.Join(err, s.closePools())
	}
	s.group = startGroup(s, s.opts.MaxPending)
	s.outcomes = s.group
	return nil
}

// realPath makes the file if it is absent and returns its path without links, so
// that two names of one file mean one lock.
func realPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// takeLock takes path.lock and writes this process's pid into it.
func takeLock(ctx context.Context, path string, wait time.Duration) (*fileLock, error) {
	file := path + ".lock"
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lock, err := lockFile(waitCtx, file)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, errors.Join(ctx.Err(), err)
	case errors.Is(err, errLockHeld):
		holder := "another process"
		if pid := lockHolder(file); pid != 0 {
			holder = fmt.Sprintf("process %d", pid)
		}
		return nil, fmt.Errorf("database %s is in use by %s (lock file %s, waited %v): stop that process or wait for it to end; one process at a time may serve a SQLite file, several replicas need PostgreSQL: %w",
			path, holder, file, wait, errLockHeld)
	default:
		return nil, err
	}
	if err := lock.write(fmt.Sprintf("%d\n", os.Getpid())); err != nil {
		return nil, errors.Join(fmt.Errorf("write pid to %s: %w", file, err), lock.release())
	}
	return lock, nil
}

// RunsLockPath is the file that every guard of a run holds a shared flock on, so
// that a starting process can tell when the last run of an earlier one has ended.
// "" on PostgreSQL, where no start of one process means the end of another.
func (s *Store) RunsLockPath() string {
	if s.path == "" {
		return ""
	}
	return s.path + ".runs"
}

// AwaitRuns waits until no guard of an earlier process holds the lock file of
// runs and keeps new ones out until release is called: in between, dead workers
// may be reaped without running beside a dying run. When ctx ends first it
// returns ctx's error. On PostgreSQL it returns at once.
func (s *Store) AwaitRuns(ctx context.Context) (release func(), err error) {
	if s.path == "" {
		return func() {}, nil
	}
	lock, err := lockFile(ctx, s.RunsLockPath())
	if errors.Is(err, errLockHeld) {
		return nil, fmt.Errorf("runs of an earlier process still end (%s): %w", s.RunsLockPath(), ctx.Err())
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.release() }, nil
}

// Pools returns the connection pools by name, for their statistics only.
func (s *Store) Pools() map[string]Pool {
	pools := map[string]Pool{"write": s.write, "read": s.read}
	if s.beat != s.write {
		pools["beat"] = s.beat
	}
	return pools
}

const sqlPing = `
INSERT INTO pings (id, at)
VALUES (1, $1)
    ON CONFLICT (id) DO UPDATE SET at = excluded.at`

// Ping implements service.Store.
func (s *Store) Ping(ctx context.Context) error {
	return s.inTx(ctx, "ping", func(t *tx) error {
		return t.one(sqlPing, nil, at(t.at))
	})
}

// Close refuses new work, waits for what was already handed in, closes the
// database and drops the lock. Later calls of any method fail.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.group.close()
		s.outcomes.close()
		s.closed = s.closePools()
		if s.lock != nil {
			s.closed = errors.Join(s.closed, s.lock.release())
		}
	})
	return s.closed
}

// closePools closes those that are open; closing one twice does nothing.
func (s *Store) closePools() error {
	var errs []error
	for _, db := range []*sqlx.DB{s.read, s.beat, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

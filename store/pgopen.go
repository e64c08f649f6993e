package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/lanegate/lanegate/migrations"
)

const (
	// postgresOldest is the oldest server that is served, as server_version_num.
	postgresOldest = 140000
	// connLife is how long a connection is used, so that a pool finds its way back
	// after addresses have moved.
	connLife = 30 * time.Minute
	// beatConns are kept for beats, so that no load can make a worker look dead.
	beatConns = 2
	// connectWait bounds making one connection.
	connectWait              = 5 * time.Second
	defaultConns, leastConns = 16, 6
)

func (o *Options) setPostgresDefaults() error {
	if o.MaxConns == 0 {
		o.MaxConns = defaultConns
	}
	if o.MaxConns < leastConns {
		return fmt.Errorf("at most %d connections to PostgreSQL are too few: two are kept for beats, and submissions, outcomes, admission and readers need one each; allow at least %d", o.MaxConns, leastConns)
	}
	for v, d := range map[*time.Duration]time.Duration{
		&o.ConnWait: 5 * time.Second, &o.LockTimeout: 5 * time.Second, &o.IdleTimeout: 4 * time.Second,
	} {
		if *v == 0 {
			*v = d
		}
	}
	return nil
}

// openPostgres opens the database at the URL o.Path.
func openPostgres(ctx context.Context, o Options) (*Store, error) {
	if err := o.setPostgresDefaults(); err != nil {
		return nil, err
	}
	cfg, err := postgresConfig(o.Path)
	if err != nil {
		return nil, err
	}
	s := &Store{d: postgresDialect(), opts: o, log: o.Logger, jitter: rand.Float64, turn: make(chan struct{}, 1), listening: defaultListening, lateBy: o.TxTimeout + lateMargin}
	if err := s.checkPostgres(ctx, cfg); err != nil {
		return nil, refused(err)
	}
	if err := s.migratePostgres(ctx, cfg); err != nil {
		return nil, refused(err)
	}
	if err := s.openPools(ctx, cfg); err != nil {
		return nil, errors.Join(refused(err), s.closePools())
	}
	s.group = startGroup(s, o.MaxPending)
	s.outcomes = startGroup(s, o.MaxPending)
	return s, nil
}

// postgresConfig reads the URL. Its errors never show it, as it may hold a password.
func postgresConfig(dsn string) (pq.Config, error) {
	cfg, err := pq.NewConfig(dsn)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return cfg, fmt.Errorf("the database URL can't be read: %s. Its form is postgres://user:password@host:5432/database?sslmode=verify-full, with other characters than letters and digits in user and password percent-encoded", strings.ReplaceAll(err.Error(), dsn, "…"))
	}
	if cfg.SSLMode == "" {
		if !onSocket(cfg) {
			return cfg, errors.New("the database URL names no sslmode: add ?sslmode=verify-full (and sslrootcert=FILE for a private authority), sslmode=require to encrypt without checking who answers, or sslmode=disable on a network that you trust, such as this machine's own; only a unix socket needs none")
		}
		cfg.SSLMode = pq.SSLModeDisable
	}
	if cfg.TargetSessionAttrs == "" {
		// Of several hosts, or after a failover behind one name, only the primary will do.
		cfg.TargetSessionAttrs = pq.TargetSessionAttrsReadWrite
	}
	if cfg.ApplicationName == "" {
		cfg.ApplicationName = "lanegate"
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectWait
	}
	return cfg, nil
}

// session are the settings of every connection. They win over those of the role
// and the database, as what is promised hangs on them.
func (o Options) session() map[string]string {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return map[string]string{
		// Admission reads what others have committed before it got its lock.
		"default_transaction_isolation":       "read committed",
		"lock_timeout":                        ms(o.LockTimeout),
		"idle_in_transaction_session_timeout": ms(o.IdleTimeout),
		"statement_timeout":                   ms(o.TxTimeout),
		// The server's side of a connection whose client is gone without a word.
		"tcp_user_timeout":        ms(connSilence),
		"tcp_keepalives_idle":     "5",
		"tcp_keepalives_interval": "2",
		"tcp_keepalives_count":    "3",
		"timezone":                "UTC",
		// To compile one of these short statements, or to start processes for it, takes
		// longer than to run it. That scans of tables are priced out, see openPools, makes
		// both look worth while.
		"jit":                             "off",
		"max_parallel_workers_per_gather": "0",
	}
}

// connector makes connections with the given session settings; silence bounds how
// long one may wait for the server, 0 means for ever.
func connector(cfg pq.Config, session map[string]string, silence time.Duration) (*pgConnector, error) {
	c, err := pq.NewConnectorConfig(cfg)
	if err != nil {
		return nil, err
	}
	c.Dialer(&pgDialer{silence: silence})
	var set strings.Builder
	for _, k := range slices.Sorted(maps.Keys(session)) {
		fmt.Fprintf(&set, "SET %s = %s; ", k, pq.QuoteLiteral(session[k]))
	}
	return &pgConnector{Connector: c, set: set.String()}, nil
}

// migratePostgres brings the tables up to date, on connections of its own: a
// migration may take long, and its lock belongs to a session.
func (s *Store) migratePostgres(ctx context.Context, cfg pq.Config) error {
	return onConnections(cfg, map[string]string{"lock_timeout": "60000", "statement_timeout": "0"}, 0, func(db *sql.DB) error {
		return migrate(ctx, db, s.d.name, migrations.Postgres(), s.log)
	})
}

// checkPostgres checks the server and the way to it before anything is written.
func (s *Store) checkPostgres(ctx context.Context, cfg pq.Config) error {
	return onConnections(cfg, nil, sessionWait, func(db *sql.DB) error {
		if err := checkServer(ctx, db, s.opts.MaxConns); err != nil {
			return err
		}
		return checkSessions(ctx, db)
	})
}

// onConnections calls fn with connections as connector makes them, and closes them.
func onConnections(cfg pq.Config, session map[string]string, silence time.Duration, fn func(*sql.DB) error) error {
	c, err := connector(cfg, session, silence)
	if err != nil {
		return err
	}
	db := sql.OpenDB(c)
	return errors.Join(fn(db), db.Close())
}

// checkServer refuses servers that are too old or have too few connections.
func checkServer(ctx context.Context, db *sql.DB, conns int) error {
	var version, most int
	err := db.QueryRowContext(ctx, `
SELECT CAST(current_setting('server_version_num') AS int),
       CAST(current_setting('max_connections') AS int) - CAST(current_setting('superuser_reserved_connections') AS int)`).Scan(&version, &most)
	if err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	if version < postgresOldest {
		return fmt.Errorf("the server is PostgreSQL %d.%d; version 14 or newer is required", version/10000, version%10000)
	}
	if most < conns {
		return fmt.Errorf("the server takes %d connections, and this process may use %d: raise its max_connections or lower the number here", most, conns)
	}
	return nil
}

// openPools opens the three pools and prepares the busy statements.
func (s *Store) openPools(ctx context.Context, cfg pq.Config) error {
	session := s.opts.session()
	// What these pools do hangs on keys and on the narrow indexes of lines, whatever
	// the tables hold: their plans are made once, for a database that may still be
	// empty, so no table is read whole. Nor is one read by a bitmap: only a plain scan
	// of an index notes which of its entries lead to nothing any more, and the lines
	// and what is in flight leave one behind for each job, until the next vacuum.
	keyed := maps.Clone(session)
	keyed["plan_cache_mode"], keyed["enable_seqscan"], keyed["enable_bitmapscan"] = "force_generic_plan", "off", "off"
	// What readers ask is planned for what they ask where it is not prepared, or where a
	// plan for all values looks dearer. It ends at a limit, where a bitmap is whole before
	// its first row comes, and what is counted is in an index.
	lists := maps.Clone(keyed)
	lists["plan_cache_mode"] = "auto"
	rest := s.opts.MaxConns - beatConns
	readers := max(1, rest/3)
	s.idle = map[*sqlx.DB]int{}
	for _, p := range []struct {
		db      **sqlx.DB
		conns   int
		session map[string]string
	}{{&s.beat, beatConns, keyed}, {&s.read, readers, lists}, {&s.write, rest - readers, keyed}} {
		// Bytes go as they are, not as twice as many characters: arrays, too, see pgArray.
		cfg.BinaryParameters = true
		c, err := connector(cfg, p.session, s.opts.TxTimeout+connSilence)
		if err != nil {
			return err
		}
		if p.db == &s.write {
			c.named = pgNamed(s.d)
		}
		db := sqlx.NewDb(sql.OpenDB(c), "postgres")
		db.SetMaxOpenConns(p.conns)
		db.SetMaxIdleConns(p.conns)
		db.SetConnMaxLifetime(connLife)
		*p.db, s.idle[db] = db, p.conns
	}
	if err := checkSettings(ctx, s.write, session); err != nil {
		return err
	}
	return s.prepare(ctx)
}

// checkSettings reads the session's settings back: a pooler may swallow them.
func checkSettings(ctx context.Context, db *sqlx.DB, want map[string]string) error {
	for _, name := range []string{"default_transaction_isolation", "lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout"} {
		var got string
		if err := db.GetContext(ctx, &got, `SELECT CASE unit WHEN 'ms' THEN setting ELSE current_setting(name) END FROM pg_settings WHERE name = $1`, name); err != nil {
			return fmt.Errorf("read back %s: %w", name, err)
		}
		if got != want[name] {
			return fmt.Errorf("%w (%s is %s instead of %s)", errPooler, name, got, want[name])
		}
	}
	return nil
}

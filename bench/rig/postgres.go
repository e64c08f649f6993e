package rig

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "github.com/lib/pq" // the driver that is named below
)

// Postgres is a private PostgreSQL server on a unix socket, with its default
// durability: fsync, full_page_writes and synchronous_commit are on.
type Postgres struct {
	Version string // as the server tells it, e.g. "15.18"
	dir     string
	proc    *Process
	admin   *sql.DB
}

// StartPostgres makes a cluster in a folder of its own and starts a server on it.
// The programs are looked for in LANEGATE_TEST_PG_BIN, in PATH and below
// /usr/lib/postgresql. Settings are name=value.
func StartPostgres(ctx context.Context, settings ...string) (*Postgres, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "lgbench")
	if err != nil {
		return nil, err
	}
	s := &Postgres{dir: dir}
	if err := s.start(ctx, bin, settings); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func postgresPrograms() (string, error) {
	var dirs []string
	if dir := os.Getenv("LANEGATE_TEST_PG_BIN"); dir != "" {
		dirs = append(dirs, dir)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
	slices.Reverse(installed)
	for _, dir := range append(dirs, installed...) {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no PostgreSQL server programs found: apt-get install -y postgresql, or set LANEGATE_TEST_PG_BIN to their folder")
}

func (s *Postgres) start(ctx context.Context, bin string, settings []string) error {
	cred, err := serverUser(s.dir)
	if err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
	initdb.Dir, initdb.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: cred}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	// Beside where it listens only what a measurement needs is set: room for every
	// contestant's connections.
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "max_connections=200")
	for _, setting := range settings {
		cmd.Args = append(cmd.Args, "-c", setting)
	}
	cmd.Dir, cmd.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: cred}
	if s.proc, err = Start(cmd); err != nil {
		return err
	}
	if s.admin, err = sql.Open("postgres", s.URL("postgres")); err != nil {
		return err
	}
	if err := s.proc.Await(time.Minute, func() error { return s.admin.PingContext(ctx) }); err != nil {
		return err
	}
	return s.admin.QueryRowContext(ctx, "SELECT split_part(current_setting('server_version'), ' ', 1)").Scan(&s.Version)
}

// serverUser finds a user for the server, which refuses to run as root, and gives
// the folder to it; nil when this process is not root.
func serverUser(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, int(uid), int(gid))
	}
	return nil, errors.New("there is neither a user postgres nor a user nobody to run the server as")
}

// PID is the process id of the server, the parent of all that work for it.
func (s *Postgres) PID() int { return s.proc.PID() }

// Create makes an empty database and returns its URL.
func (s *Postgres) Create(ctx context.Context, name string) (string, error) {
	if _, err := s.admin.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	return s.URL(name), nil
}

// Drop removes a database, with whoever still uses it.
func (s *Postgres) Drop(ctx context.Context, name string) error {
	_, err := s.admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

// URL is the address of one of the server's databases.
func (s *Postgres) URL(database string) string {
	q := url.Values{"host": {s.dir}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// Counters are what the server has done since its start.
type Counters struct {
	WALBytes, Fsyncs, Commits float64
}

// Sub is what was done between two readings.
func (c Counters) Sub(before Counters) Counters {
	return Counters{c.WALBytes - before.WALBytes, c.Fsyncs - before.Fsyncs, c.Commits - before.Commits}
}

// Counters reads them. Sessions report what they did with a delay of up to a
// second, so readings are meaningful after one of rest.
func (s *Postgres) Counters(ctx context.Context) (c Counters, err error) {
	var num int
	if err := s.admin.QueryRowContext(ctx, "SELECT CAST(current_setting('server_version_num') AS int)").Scan(&num); err != nil {
		return c, err
	}
	fsyncs := "(SELECT wal_sync FROM pg_stat_wal)"
	if num >= 180000 { // moved there
		fsyncs = "(SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')"
	}
	err = s.admin.QueryRowContext(ctx, `
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'), coalesce(`+fsyncs+`, 0),
       (SELECT sum(xact_commit) FROM pg_stat_database)`).Scan(&c.WALBytes, &c.Fsyncs, &c.Commits)
	return c, err
}

// Checkpoint writes out what is dirty, so that no measurement pays for the one before it.
func (s *Postgres) Checkpoint(ctx context.Context) error {
	_, err := s.admin.ExecContext(ctx, "CHECKPOINT")
	return err
}

// Open opens a pool on one of the databases.
func (s *Postgres) Open(database string) (*sql.DB, error) {
	return sql.Open("postgres", s.URL(database))
}

// Close stops the server and removes its data.
func (s *Postgres) Close() error {
	var err error
	if s.admin != nil {
		err = s.admin.Close()
	}
	if s.proc != nil {
		s.proc.Stop(syscall.SIGINT)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// DatabaseName reads the database of a URL that this package made.
func DatabaseName(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

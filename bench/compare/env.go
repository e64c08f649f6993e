package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate/api"
	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
	"github.com/lanegate/lanegate/store"
)

// env is what all cells share.
type env struct {
	binary, out  string
	quick, large bool
	rounds       int
	quiet        time.Duration

	self  string // this program
	dir   string
	pg    *rig.Postgres
	redis *rig.Redis
	made  int
}

func (e *env) open(ctx context.Context) (err error) {
	if e.self, err = os.Executable(); err != nil {
		return err
	}
	if _, err := os.Stat(e.binary); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	if e.binary, err = filepath.Abs(e.binary); err != nil {
		return err
	}
	if e.dir, err = os.MkdirTemp("", "lgcompare"); err != nil {
		return err
	}
	if e.redis, err = rig.StartRedis(); err != nil {
		return err
	}
	e.pg, err = rig.StartPostgres(ctx)
	return err
}

func (e *env) close() error {
	var errs []error
	if e.pg != nil {
		errs = append(errs, e.pg.Close())
	}
	if e.redis != nil {
		errs = append(errs, e.redis.Close())
	}
	if e.dir != "" {
		errs = append(errs, os.RemoveAll(e.dir))
	}
	return errors.Join(errs...)
}

// pick is n in a full run and small in a quick one.
func pick[T any](e *env, n, small T) T {
	if e.quick {
		return small
	}
	return n
}

// database makes a new PostgreSQL database, or the path of a new SQLite file.
func (e *env) database(ctx context.Context, sqlite bool) (string, error) {
	e.made++
	if sqlite {
		return filepath.Join(e.dir, fmt.Sprintf("d%d.db", e.made)), nil
	}
	return e.pg.Create(ctx, fmt.Sprintf("d%d", e.made))
}

// runner is a contestant that is running: the gateway or a peer.
type runner struct {
	rig.Target
	dsn  string
	proc *rig.Process
	// target gets what the gateway runs as HTTP requests; nil for peers.
	target *target
	env    *env
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// peer starts one of package peer's in a process of its own.
func (e *env) peer(ctx context.Context, kind string, cfg peer.Config) (*runner, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	if kind == "asynq" {
		if err := e.redis.Empty(); err != nil {
			return nil, err
		}
	}
	cfg.Redis = e.redis.Socket
	if cfg.DSN == "" {
		if cfg.DSN, err = e.database(ctx, strings.HasSuffix(kind, "-sqlite")); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	p, err := rig.Start(exec.Command(e.self, "peer", kind, addr, string(text)))
	if err != nil {
		return nil, err
	}
	r := &runner{Target: rig.Target{Addr: addr}, dsn: cfg.DSN, proc: p, env: e}
	return r, r.await(ctx)
}

func (r *runner) await(ctx context.Context) error {
	err := r.proc.Await(time.Minute, func() error {
		conn, err := net.Dial("tcp", r.Addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		r.close(ctx)
	}
	return err
}

// close stops it and removes its database.
func (r *runner) close(ctx context.Context) {
	r.proc.Stop(syscall.SIGTERM)
	if r.target != nil {
		r.target.close()
	}
	if store.IsPostgres(r.dsn) {
		if err := r.env.pg.Drop(context.WithoutCancel(ctx), rig.DatabaseName(r.dsn)); err != nil {
			log.Printf("drop a database: %v", err)
		}
	}
}

// gatewayOptions are what cells set about the gateway.
type gatewayOptions struct {
	sqlite bool
	dsn    string         // of a database that is there already
	own    map[string]int // see peer.Prepare
	lines  string         // more of the config file
}

// gateway starts the real binary with its defaults, with tokens, and with the
// classes of peer.Prepare, whose jobs are requests to a handler of this process.
func (e *env) gateway(ctx context.Context, o gatewayOptions) (*runner, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	if o.dsn == "" {
		if o.dsn, err = e.database(ctx, o.sqlite); err != nil {
			return nil, err
		}
	}
	t, err := newTarget()
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, o.dsn, t.url, o.own); err != nil {
		return nil, err
	}
	token, sum := api.NewToken()
	config := fmt.Sprintf("listen: %s\ndatabase: %q\nslots: %d\nmetrics_public: true\ntokens: [{name: bench, role: admin, sha256: %s}]\n%s", addr, o.dsn, peer.Width, sum, o.lines)
	e.made++
	file := filepath.Join(e.dir, fmt.Sprintf("lanegate%d.yaml", e.made))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(e.binary, "serve", "--config", file)
	cmd.Dir = e.dir
	p, err := rig.Start(cmd)
	if err != nil {
		return nil, err
	}
	r := &runner{Target: rig.Target{Addr: addr, Token: token}, dsn: o.dsn, proc: p, target: t, env: e}
	return r, r.await(ctx)
}

// prepare puts the classes into a database before the gateway opens it.
func prepare(ctx context.Context, dsn, url string, own map[string]int) error {
	s, err := store.Open(ctx, store.Options{Path: dsn})
	if err != nil {
		return err
	}
	return errors.Join(peer.Prepare(ctx, s, url, own), s.Close())
}

// get reads a JSON answer of a peer's control.
func (r *runner) get(path string, into any) error {
	body, err := r.Once(r.Get(path))
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// post sends an empty POST.
func (r *runner) post(path string) error {
	_, err := r.Once(r.Post(path, nil))
	return err
}

// body makes the n-th submission; keyed ones carry an idempotency key.
func body(class string, key string) []byte {
	b := make([]byte, 0, 200)
	b = append(b, `{"class":"`...)
	b = append(b, class...)
	b = append(b, `","payload":{"day":"2026-11-29","store":1234,"kind":"nightly"}`...)
	if key != "" {
		b = append(b, `,"idempotency_key":"`...)
		b = append(b, key...)
		b = append(b, '"')
	}
	return append(b, '}')
}

// submissions makes the requests of one connection: all classes in turns, each
// with a key of its own. Classes p00 to p19 are paused, so nothing of it runs.
func (r *runner) submissions(prefix string) func(conn int) func() []byte {
	return func(conn int) func() []byte {
		i := conn
		return func() []byte {
			i++
			class := prefix + twoDigits(i%peer.Classes)
			return r.Post("/jobs", body(class, strconv.Itoa(conn)+"-"+strconv.FormatInt(time.Now().UnixNano(), 36)))
		}
	}
}

func twoDigits(n int) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }

//go:build linux

package pgtest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver that is named below
)

// startWait bounds how long a server may take to answer.
const startWait = 60 * time.Second

// Server is a private PostgreSQL server that listens on a unix socket only. It
// keeps nothing over a crash of the machine, and no server outlives the test
// process that started it.
type Server struct {
	bin, dir string
	settings []string
	cred     *syscall.Credential // nil: as this process

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  serverLog
}

// newServer makes a database cluster and starts a server on it.
func newServer(bin string, settings ...string) (*Server, error) {
	dir, err := shortDir()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, settings: settings}
	if err := s.init(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// shortDir makes a folder whose socket's path fits into the 107 bytes there are.
func shortDir() (string, error) {
	base := os.TempDir()
	if len(base) > 60 {
		base = "/tmp"
	}
	return os.MkdirTemp(base, "lgpg")
}

// init runs initdb, as another user when this one is root: the server refuses to
// run as root.
func (s *Server) init() error {
	if os.Geteuid() == 0 {
		cred, err := plainUser()
		if err != nil {
			return err
		}
		s.cred = cred
		if err := os.Chown(s.dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return err
		}
	}
	cmd := exec.Command(filepath.Join(s.bin, "initdb"), "-D", s.data(), "-U", "postgres",
		"-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// plainUser finds a user for the server: postgres, else nobody.
func plainUser() (*syscall.Credential, error) {
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
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("there is neither a user postgres nor a user nobody to run the server as")
}

// serverLog is what a server has written since its last start.
type serverLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *serverLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *serverLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Reset forgets all.
func (l *serverLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// Log is what the server has written since its last start.
func (s *Server) Log() string { return s.log.String() }

// Start starts the server, again after a Stop, and returns when it answers.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Reset()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data(), "-k", s.dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off",
		"-c", "max_connections=200", "-c", "shared_buffers=32MB", "-c", "autovacuum=off")
	for _, setting := range s.settings {
		cmd.Args = append(cmd.Args, "-c", setting)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, &s.log, &s.log
	done, err := startChild(cmd, s.cred, syscall.SIGQUIT)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.cmd, s.done = cmd, done
	if err := s.await(); err != nil {
		_ = cmd.Process.Kill()
		<-done
		return fmt.Errorf("%w\n%s", err, s.log.String())
	}
	return nil
}

// startChild starts cmd as the user cred, and with this process, however that ends,
// goes the child, by the signal last. done is closed when it has ended.
func startChild(cmd *exec.Cmd, cred *syscall.Credential, last syscall.Signal) (done chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Pdeathsig: last}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The death signal comes when the starting thread ends, so that one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // a server that ended is noticed by those who need it
		}
		close(done)
	}()
	return done, <-started
}

// await returns when the server takes statements.
func (s *Server) await() error { return awaitAnswer(s.URL("postgres"), "postgres", s.done) }

// awaitAnswer returns when the program behind url answers; done is closed when it has ended.
func awaitAnswer(url, program string, done <-chan struct{}) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = db.PingContext(ctx); err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%s ended at its start", program)
		case <-ctx.Done():
			return fmt.Errorf("%s did not answer within %v: %w", program, startWait, err)
		case <-tick.C:
		}
	}
}

// Stop ends the server at once, without waiting for its clients, and returns when
// it has ended. Its databases stay for the next Start.
func (s *Server) Stop() error { return s.end(syscall.SIGINT) }

// Crash ends the server without giving it time for anything, so that the next
// Start recovers its databases from their log. With New's own settings the last
// commits may be lost then; with "synchronous_commit=on" none is.
func (s *Server) Crash() error { return s.end(syscall.SIGQUIT) }

func (s *Server) end(how syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Signal(how)
	<-s.done
	s.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// remove stops the server and deletes its databases.
func (s *Server) remove() error { return errors.Join(s.Stop(), os.RemoveAll(s.dir)) }

// Socket is the path of the unix socket that the server listens on.
func (s *Server) Socket() string { return filepath.Join(s.dir, ".s.PGSQL.5432") }

// URL is the address of one of the server's databases.
func (s *Server) URL(database string) string {
	q := url.Values{"host": {s.dir}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// Program is the path of one of PostgreSQL's programs, e.g. psql: the one beside
// the server, else that of another installed version, which speaks to it as well.
func (s *Server) Program(tb testing.TB, name string) string {
	tb.Helper()
	others, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
	for _, dir := range append([]string{s.bin}, others...) {
		if path := filepath.Join(dir, name); executable(path) {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("%v: apt-get install -y postgresql-client", err)
	}
	return path
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&0o111 != 0
}

// Exec runs one statement in one of the server's databases.
func (s *Server) Exec(ctx context.Context, database, statement string) error {
	db, err := sql.Open("postgres", s.URL(database))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

//go:build linux

package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Pooler is a private PgBouncer before a Server, on a unix socket only.
type Pooler struct{ dir string }

// NewPooler starts a PgBouncer before the server for as long as the test runs. The
// settings, as "name=value", go into its configuration, e.g. "pool_mode=transaction".
// Without PgBouncer on this machine the test ends like one without PostgreSQL.
func (s *Server) NewPooler(tb testing.TB, settings ...string) *Pooler {
	tb.Helper()
	bin, err := findPooler()
	if err != nil {
		missing(tb, err)
	}
	dir, err := shortDir()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	p := &Pooler{dir: dir}
	conf := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=%s port=5432 user=postgres\n[pgbouncer]\nunix_socket_dir = %s\nlisten_port = 6432\nauth_type = any\n%s\n",
		s.dir, dir, strings.Join(settings, "\n"))
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
	if s.cred != nil { // it refuses to run as root, too
		if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	cmd := exec.Command(bin, conf)
	var log bytes.Buffer // read only once it has ended
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	done, err := startChild(cmd, s.cred, syscall.SIGKILL)
	if err != nil {
		tb.Fatalf("start pgbouncer: %v", err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		<-done
		if tb.Failed() {
			tb.Logf("pgbouncer's log:\n%s", log.String())
		}
	})
	if err := awaitAnswer(p.URL("postgres"), "pgbouncer", done); err != nil {
		tb.Fatal(err)
	}
	return p
}

// URL is the address of one of the server's databases through the pooler.
func (p *Pooler) URL(database string) string {
	q := url.Values{"host": {p.dir}, "port": {"6432"}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// findPooler looks for pgbouncer in PATH and where distributions put it, which is
// not in everybody's PATH.
func findPooler() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no PgBouncer found: apt-get install -y pgbouncer")
}

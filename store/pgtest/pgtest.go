//go:build linux

package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// oldest is the oldest major version that lanegate supports.
const oldest = 14

// Migrate fills the empty database at url; it must close its connections, as a
// database that is in use can't be copied.
type Migrate func(ctx context.Context, url string) error

var shared struct {
	once   sync.Once
	server *Server
	err    error

	mu       sync.Mutex
	migrated bool
	made     int
	free     []string // emptied databases for the next tests
}

// Run runs the tests and removes the shared server, if one was started. A test
// binary that uses Database calls it in TestMain.
func Run(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			return max(code, 1)
		}
	}
	return code
}

// Database gives the test a database of its own on the shared server and returns
// the server and the database's name. migrate runs once per test binary, on the
// template. Afterwards another test may get the database with the rows it has now:
// tests that change tables or settings use New.
func Database(tb testing.TB, migrate Migrate) (s *Server, name string) {
	tb.Helper()
	bin := programs(tb)
	shared.once.Do(func() { shared.server, shared.err = newServer(bin) })
	if shared.err != nil {
		tb.Fatalf("start a PostgreSQL server: %v", shared.err)
	}
	name, err := shared.server.database(tb.Context(), migrate)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		// The test's context is over by now.
		if err := shared.server.Exec(context.Background(), name, restore); err != nil {
			tb.Error(err)
			return
		}
		shared.mu.Lock()
		defer shared.mu.Unlock()
		shared.free = append(shared.free, name)
	})
	return shared.server, name
}

// database takes an emptied database or copies the template, which it makes first
// when there is none.
func (s *Server) database(ctx context.Context, migrate Migrate) (name string, err error) {
	shared.mu.Lock() // one copy at a time: a template in use can't be copied
	defer shared.mu.Unlock()
	if n := len(shared.free); n > 0 {
		name, shared.free = shared.free[n-1], shared.free[:n-1]
		return name, nil
	}
	if !shared.migrated {
		if err := s.Exec(ctx, "postgres", "CREATE DATABASE tmpl"); err != nil {
			return "", err
		}
		if err := migrate(ctx, s.URL("tmpl")); err != nil {
			return "", fmt.Errorf("migrate the template: %w", err)
		}
		if err := s.Exec(ctx, "tmpl", remember); err != nil {
			return "", err
		}
		shared.migrated = true
	}
	shared.made++
	name = fmt.Sprintf("t%d", shared.made)
	return name, s.Exec(ctx, "postgres", "CREATE DATABASE "+name+" TEMPLATE tmpl")
}

// remember copies every table as the migrations left it; restore empties the
// tables and fills them from the copies. Emptying costs a tenth of a new database.
const (
	remember = `
CREATE SCHEMA pgtest_seed;
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('CREATE TABLE pgtest_seed.%I AS TABLE public.%I', name, name);
    END LOOP;
END $$`
	restore = `
SET session_replication_role = replica; -- foreign keys don't ask for an order
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'pgtest_seed' LOOP
        EXECUTE format('DELETE FROM public.%I', name);
        EXECUTE format('INSERT INTO public.%I SELECT * FROM pgtest_seed.%I', name, name);
    END LOOP;
END $$`
)

// New starts a server of the test's own, for tests that stop it or change its
// settings, with an empty database named "test". The settings, as "name=value",
// win over what servers are started with here.
func New(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := newServer(programs(tb), settings...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.remove(); err != nil {
			tb.Error(err)
		}
	})
	if err := s.Exec(tb.Context(), "postgres", "CREATE DATABASE test"); err != nil {
		tb.Fatal(err)
	}
	return s
}

// programs returns the folder of the server programs; without any the test ends.
func programs(tb testing.TB) string {
	tb.Helper()
	bin, err := find(tb.Context())
	if err == nil {
		return bin
	}
	missing(tb, err)
	return ""
}

// missing ends a test that needs a program which this machine lacks.
func missing(tb testing.TB, err error) {
	tb.Helper()
	if os.Getenv("LANEGATE_TEST_PG") == "require" {
		tb.Fatal(err)
	}
	tb.Skip(err)
}

// find looks for postgres and initdb, version 14 or newer, side by side.
func find(ctx context.Context) (string, error) {
	if dir := os.Getenv("LANEGATE_TEST_PG_BIN"); dir != "" {
		if !usable(ctx, dir) {
			return "", fmt.Errorf("LANEGATE_TEST_PG_BIN=%s holds no postgres of version %d or newer with initdb beside it", dir, oldest)
		}
		return dir, nil
	}
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	installed, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	for i := len(installed) - 1; i >= 0; i-- {
		dirs = append(dirs, installed[i])
	}
	for _, dir := range dirs {
		if usable(ctx, dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no PostgreSQL server of version %d or newer found: apt-get install -y postgresql, or set LANEGATE_TEST_PG_BIN to the folder of one", oldest)
}

func usable(ctx context.Context, dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return false
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return false
	}
	// "postgres (PostgreSQL) 15.18 (Debian …)", "… 18beta1"
	fields := strings.Fields(string(out))
	if len(fields) < 3 {
		return false
	}
	major := fields[2]
	if i := strings.IndexFunc(major, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		major = major[:i]
	}
	n, err := strconv.Atoi(major)
	return err == nil && n >= oldest
}

package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/migrations"
	"github.com/lanegate/lanegate/service"
)

// crashed copies the files of an open store as a power cut would leave them.
func crashed(t *testing.T, s *Store) string {
	t.Helper()
	copyOf := filepath.Join(t.TempDir(), "copy.db")
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(s.path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copyOf+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return copyOf
}

func mustSubmit(t *testing.T, s *Store, class string) lanegate.Job {
	t.Helper()
	res, err := s.Submit(t.Context(), service.NewJob{ID: newID(t), Class: class, Client: "c", Payload: []byte(`{"a": 1.0}`)})
	if err != nil {
		t.Fatal(err)
	}
	return res.Job
}

func mustAdmit(t *testing.T, s *Store, worker string) service.Admitted {
	t.Helper()
	res, err := s.Admit(t.Context(), service.Ask{Worker: worker, Free: 8, SerialFree: true})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func mustRegister(t *testing.T, s *Store, id string) {
	t.Helper()
	w := service.WorkerInfo{ID: id, Host: "h", PID: 1, Slots: 8, Commands: map[string]string{"true": "d"}}
	if err := s.RegisterWorker(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func TestAcceptedIsDurable(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	var ids []string
	for range 5 {
		ids = append(ids, mustSubmit(t, s, "class-000").ID)
	}
	check(t, "after a crash", newStore(t, Options{Path: crashed(t, s)}), ids)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, "after a close", newStore(t, Options{Path: s.path}), ids)
}

func check(t *testing.T, name string, s *Store, ids []string) {
	t.Helper()
	for _, id := range ids {
		d, err := s.Job(t.Context(), id)
		if err != nil || d.State != lanegate.StateQueued || string(d.Payload) != `{"a": 1.0}` {
			t.Errorf("%s: job %s: %+v, %v", name, id, d, err)
		}
	}
}

// C25, C27: whatever was running when the process was killed, the line moves once
// the dead worker is reaped, and serial never has two.
func TestSerialAfterCrash(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	first := mustSubmit(t, s, "class-000").ID
	mustSubmit(t, s, "class-000")
	mustRegister(t, s, "w0")
	if res := mustAdmit(t, s, "w0"); len(res.Grants) != 1 {
		t.Fatalf("grants = %d", len(res.Grants))
	}
	for i := 1; i < lanegate.MaxLosses; i++ {
		s = newStore(t, Options{Path: crashed(t, s)})
		w := fmt.Sprintf("w%d", i)
		mustRegister(t, s, w)
		if res := mustAdmit(t, s, w); len(res.Grants) != 0 {
			t.Fatalf("crash %d: a second run beside one that may still be going on", i)
		}
		if _, err := s.ReapWorker(t.Context(), fmt.Sprintf("w%d", i-1), 0); err != nil {
			t.Fatal(err)
		}
		res := mustAdmit(t, s, w)
		if len(res.Grants) != 1 || res.Grants[0].Job.ID != first || res.Grants[0].Attempt.Number != i+1 {
			t.Fatalf("crash %d: granted %+v", i, res.Grants)
		}
	}
}

// C15: an attempt whose worker's row is gone is found and becomes lost.
func TestReapOrphanWithoutRow(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	id := mustSubmit(t, s, "class-000").ID
	mustRegister(t, s, "w")
	mustAdmit(t, s, "w")
	for _, gone := range []string{"UPDATE workers SET ended_at = beat_at", "DELETE FROM workers"} {
		if _, err := s.write.Exec(gone); err != nil {
			t.Fatal(err)
		}
		if silent, err := s.Silent(t.Context(), time.Hour); err != nil || silent[lanegate.LaneSerial] != 1 { // C17: until then it is shown
			t.Errorf("%s: silent attempts %v, %v", gone, silent, err)
		}
	}
	ended, err := s.ReapOrphans(t.Context())
	if err != nil || len(ended) != 1 {
		t.Fatalf("ended %v, %v", ended, err)
	}
	if a := ended[0].Attempt; a.Job != id || a.Outcome != lanegate.Lost || !a.Estimated || a.Duration != 0 {
		t.Errorf("attempt %+v", a)
	}
}

func TestPragmasAreReadBack(t *testing.T) {
	s := newStore(t, Options{})
	ctx := t.Context()
	for pool, want := range map[string][]pragma{"write": writePragmas, "read": readPragmas} {
		db := s.write
		if pool == "read" {
			db = s.read
		}
		if err := checkPragmas(ctx, db, want); err != nil {
			t.Errorf("%s: %v", pool, err)
		}
	}
	for _, change := range []string{"synchronous = NORMAL", "foreign_keys = off", "busy_timeout = 1", "temp_store = FILE"} {
		bare, err := openPool(ctx, filepath.Join(t.TempDir(), "x.db"), 1, url.Values{
			"_busy_timeout": {"5000"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_foreign_keys": {"on"}, "_dqs": {"0"},
			"_pragma": {"temp_store(MEMORY)"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPragmas(ctx, bare, writePragmas); err != nil {
			t.Errorf("the right settings: %v", err)
		}
		if _, err := bare.Exec("PRAGMA " + change); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(change, " ")
		if err := checkPragmas(ctx, bare, writePragmas); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error = %v, want one that names it", change, err)
		}
		if err := bare.Close(); err != nil {
			t.Error(err)
		}
	}
	loose, err := openPool(ctx, filepath.Join(t.TempDir(), "x.db"), 1, url.Values{"_dqs": {"1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = loose.Close() }()
	if err := checkPragmas(ctx, loose, nil); err == nil {
		t.Error("double-quoted strings were not noticed")
	}
	if _, err := s.read.Exec("DELETE FROM lanes"); err == nil {
		t.Error("the read pool writes")
	}
}

func TestPathsAreTakenLiterally(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a b?mode=memory#c%41&d.db")
	s := newStore(t, Options{Path: path})
	addClasses(t, s, 1)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() == 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("size %d, mode %v: payloads are for the owner only", info.Size(), info.Mode())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)) {
			t.Errorf("a file of another name: %s", e.Name())
		}
	}
	if _, err := Open(t.Context(), Options{Path: filepath.Join(dir, "none", "x.db")}); err == nil {
		t.Error("a missing directory was taken")
	}
	if _, err := Open(t.Context(), Options{}); err == nil {
		t.Error("an empty path was taken")
	}
}

func TestOneProcessPerFile(t *testing.T) {
	ctx := t.Context()
	s := newStore(t, Options{})
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(s.path, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{s.path, link} {
		_, err := Open(ctx, Options{Path: path, LockWait: 60 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) || !strings.Contains(err.Error(), "stop that process") {
			t.Errorf("%s: error = %v, want one that names the holder and the remedy", path, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Open(ended, Options{Path: s.path, LockWait: time.Hour}); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want the context's", err)
	}
	// One that waits gets in when the first has gone.
	type opened struct {
		s   *Store
		err error
	}
	waiting := make(chan opened)
	go func() {
		next, err := Open(ctx, Options{Path: link, LockWait: time.Minute})
		waiting <- opened{next, err}
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next := <-waiting
	if next.err != nil {
		t.Fatal(next.err)
	}
	if err := next.s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAwaitRuns(t *testing.T) {
	s := newStore(t, Options{})
	guard, err := os.OpenFile(s.RunsLockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Close() }()
	if err := flock(guard, syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 80*time.Millisecond)
	defer cancel()
	if _, err := s.AwaitRuns(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want the context's", err)
	}
	got := make(chan func())
	go func() {
		release, err := s.AwaitRuns(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- release
	}()
	if err := flock(guard, syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	release := <-got
	if err := flock(guard, syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a run could start before the dead were reaped: %v", err)
	}
	release()
	if err := flock(guard, syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

func TestMigrationsUpAndDown(t *testing.T) {
	ctx := t.Context()
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	tables := func() (names []string) {
		if err := s.write.Select(&names, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%' ORDER BY name"); err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := tables()
	p, err := migrator(s.write.DB, "sqlite", migrations.SQLite())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DownTo(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if left := tables(); len(left) != 0 {
		t.Errorf("left after going down: %v", left)
	}
	if err := migrate(ctx, s.write.DB, "sqlite", migrations.SQLite(), s.log); err != nil {
		t.Fatal(err)
	}
	if after := tables(); strings.Join(before, " ") != strings.Join(after, " ") {
		t.Errorf("tables %v, want %v", after, before)
	}
	var loose []string
	if err := s.write.Select(&loose, "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%'"); err != nil {
		t.Fatal(err)
	}
	if len(loose) != 0 {
		t.Errorf("tables that are not STRICT: %v", loose)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	s := newStore(t, Options{})
	if _, err := s.write.Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1); UPDATE compatibility SET oldest_program = 99998"); err != nil {
		t.Fatal(err)
	}
	path := s.path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Path: path})
	if err == nil || !strings.Contains(err.Error(), "version 99999") {
		t.Fatalf("error = %v, want a refusal that names the version", err)
	}
	// The refusal let go of the lock.
	lock, err := takeLock(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.release(); err != nil {
		t.Error(err)
	}
}

// C55: a row that can't be handled stops nobody else.
func TestBrokenRowsStandAlone(t *testing.T) {
	s := newStore(t, Options{})
	addClasses(t, s, 1)
	mustRegister(t, s, "w")
	broken := mustSubmit(t, s, "class-000").ID
	if _, err := s.write.Exec("DELETE FROM job_payloads"); err != nil {
		t.Fatal(err)
	}
	if res := mustAdmit(t, s, "w"); len(res.Grants) != 0 {
		t.Fatalf("granted %+v without a payload", res.Grants)
	}
	d, err := s.Job(t.Context(), broken)
	if err != nil || d.State != lanegate.StateQueued || d.Attempts != 0 {
		t.Errorf("job %+v, %v: want it untouched", d.Job, err)
	}
	if _, err := s.Cancel(t.Context(), broken, "ada"); err != nil {
		t.Fatal(err)
	}
	good := mustSubmit(t, s, "class-000").ID
	if res := mustAdmit(t, s, "w"); len(res.Grants) != 1 || res.Grants[0].Job.ID != good {
		t.Errorf("granted %+v, want the next job", res.Grants)
	}
	// An attempt whose job ended behind its back can't become lost; the other does.
	if _, err := s.write.Exec(`INSERT INTO attempts (job_id, number, token, class, lane, units, fingerprint, worker, ready_at, started_at)
		SELECT id, 1, 't', class, 'serial', '{}', '', 'w', submitted_at, submitted_at FROM jobs WHERE id = $1`, broken); err != nil {
		t.Fatal(err)
	}
	ended, err := s.ReapWorker(t.Context(), "w", 0)
	if err != nil || len(ended) != 1 || ended[0].Job.ID != good {
		t.Errorf("ended %+v, %v, want the attempt of %s", ended, err, good)
	}
}

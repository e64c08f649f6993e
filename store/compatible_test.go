//go:build linux

package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/migrations"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

// released gives each engine's own migrations and a database of the test's own.
var released = map[string]func(t *testing.T) (fs.FS, Options){
	"sqlite": func(t *testing.T) (fs.FS, Options) { return migrations.SQLite(), Options{} },
	"postgres": func(t *testing.T) (fs.FS, Options) {
		return migrations.Postgres(), Options{Path: pgtest.New(t).URL("test"), MaxConns: 8}
	},
}

// withLater is files and one migration more.
func withLater(t *testing.T, files fs.FS, version int, up string) fs.FS {
	t.Helper()
	all := fstest.MapFS{fmt.Sprintf("%05d_later.sql", version): {Data: []byte("-- +goose Up\n" + up + "\n")}}
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations %v: %v", names, err)
	}
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &fstest.MapFile{Data: b}
	}
	return all
}

// addEverywhere is a migration that adds what an additive one may: a column with a
// default to each table, one without, an index, a table.
func addEverywhere(t *testing.T, s *Store) string {
	t.Helper()
	q := "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%'"
	if s.d.name == "postgres" {
		q = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE 'goose_%'"
	}
	var tables []string
	if err := s.write.Select(&tables, q); err != nil {
		t.Fatal(err)
	}
	if len(tables) < 15 || !slices.Contains(tables, "jobs") {
		t.Fatalf("tables %v", tables)
	}
	var up strings.Builder
	for _, name := range tables {
		fmt.Fprintf(&up, "ALTER TABLE %s ADD COLUMN later integer NOT NULL DEFAULT 7;\nALTER TABLE %s ADD COLUMN later_text text;\n", name, name)
	}
	up.WriteString("CREATE INDEX jobs_later_idx ON jobs (later, id);\nCREATE TABLE later (id integer PRIMARY KEY);\nINSERT INTO later (id) VALUES (1);")
	return up.String()
}

// use has four callers at once submit, admit, end, beat, read and change, and
// checks that every job that was accepted has run.
func use(t *testing.T, when string, s *Store) {
	t.Helper()
	worker := "w-" + newID(t)
	mustRegister(t, s, worker)
	ids := make([][]string, 4)
	together(4, func(i int) {
		for n := range 5 {
			id, err := useOnce(t.Context(), s, worker, newID(t), n)
			if err != nil {
				t.Errorf("%s: %v", when, err)
				return
			}
			ids[i] = append(ids[i], id)
		}
	})
	eventually(t, "the jobs "+when, func() bool {
		if err := endAll(t.Context(), s, worker); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		return !slices.ContainsFunc(slices.Concat(ids...), func(id string) bool {
			d, err := s.Job(t.Context(), id)
			return err != nil || d.State != lanegate.StateSucceeded
		})
	})
	if jobs, _, err := s.Jobs(t.Context(), service.JobFilter{Limit: 3}); err != nil || len(jobs) != 3 {
		t.Errorf("%s: a page of %d jobs: %v", when, len(jobs), err)
	}
	_, config := s.Config(t.Context())
	_, snapshot := s.Snapshot(t.Context())
	_, workers := s.LiveWorkers(t.Context())
	_, left := s.LeaveWorker(t.Context(), worker)
	if err := errors.Join(config, snapshot, workers, left); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// useOnce submits a job, alone and in a batch with a skipped one, and ends what starts.
func useOnce(ctx context.Context, s *Store, worker, id string, n int) (string, error) {
	job := service.NewJob{ID: id, Class: fmt.Sprintf("wide-%02d", n%2), Client: "c", Key: id, Digest: []byte(id), Payload: []byte(`{"a": 1.0}`)}
	var errs [4]error
	if n%2 == 0 {
		_, errs[0] = s.Submit(ctx, job)
	} else {
		_, errs[0] = s.SubmitBatch(ctx, []service.NewJob{job})
	}
	errs[1] = endAll(ctx, s, worker)
	_, errs[2] = s.Beat(ctx, worker)
	errs[3] = s.Change(ctx, func(tx service.ConfigTx) error { return tx.SetSetting("k", id) })
	return id, errors.Join(errs[:]...)
}

func endAll(ctx context.Context, s *Store, worker string) error {
	res, err := s.Admit(ctx, service.Ask{Worker: worker, Free: 8, SerialFree: true})
	if err != nil {
		return err
	}
	for _, g := range res.Grants {
		end := lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Millisecond, Result: []byte("1"), Output: lanegate.Output{Head: "done"}}
		if _, err := s.EndAttempt(ctx, g.Attempt.Fence(), end); err != nil {
			return err
		}
	}
	return nil
}

// migrateAs does what the start of a binary with these migrations does.
func migrateAs(t *testing.T, s *Store, files fs.FS) {
	t.Helper()
	db := s.write.DB
	if s.d.name == "postgres" {
		var err error
		if db, err = sql.Open("postgres", s.opts.Path); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
	}
	if err := migrate(t.Context(), db, s.d.name, files, s.log); err != nil {
		t.Fatal(err)
	}
}

// A binary works on under the migrations of a later release, and starts after them,
// until one of them says that it is too old.
func TestOlderBinaryRunsOnNewerSchema(t *testing.T) {
	t.Parallel()
	for name, own := range released {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, o := own(t)
			s := newStore(t, o)
			addWide(t, s, 2, 8)
			use(t, "before", s)
			additive := withLater(t, files, 90001, addEverywhere(t, s))
			migrateAs(t, s, additive)
			use(t, "after, open before", s)
			if s.path != "" { // one process at a time
				o.Path = s.path
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s2 := newStore(t, o)
			use(t, "opened after", s2)

			// What this binary does without is taken away.
			newest := newestOf(t, files)
			taken := withLater(t, additive, 90002, fmt.Sprintf("DROP TABLE later;\nUPDATE compatibility SET oldest_program = %d;", newest))
			migrateAs(t, s2, taken)
			use(t, "after what it does without was taken", s2)
			if s2.path != "" {
				if err := s2.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s3 := newStore(t, o)
			use(t, "opened after that", s3)

			migrateAs(t, s3, withLater(t, taken, 90003, fmt.Sprintf("UPDATE compatibility SET oldest_program = %d;", newest+1)))
			if err := s3.Close(); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("the database has schema version 90003, which only binaries that know version %d or newer may use, and this one knows up to %d: run the binary that migrated it", newest+1, newest)
			if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, want %q", err, want)
			}
		})
	}
}

func newestOf(t *testing.T, files fs.FS) int {
	t.Helper()
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations %v: %v", names, err)
	}
	var newest int
	if _, err := fmt.Sscanf(slices.Max(names), "%05d", &newest); err != nil {
		t.Fatal(err)
	}
	return newest
}

// Both engines' migrations keep to the rule: none after the ninth refuses binaries
// that know all before it, and the table stays.
func TestMigrationsTakeTheReleaseBefore(t *testing.T) {
	t.Parallel()
	for name, own := range released {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, o := own(t)
			s := newStore(t, o)
			p, err := migrator(s.write.DB, s.d.name, files)
			if err != nil {
				t.Fatal(err)
			}
			// Down and up again, as the versions in between show only on the way.
			const first = 9
			if _, err := p.DownTo(t.Context(), first-1); err != nil {
				t.Fatal(err)
			}
			if _, err := p.UpTo(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			last := oldestAfter(t, s, first, first, first) // older ones refuse by themselves
			for _, m := range p.ListSources() {
				if m.Version <= first {
					continue
				}
				if _, err := p.UpTo(t.Context(), m.Version); err != nil {
					t.Fatal(err)
				}
				last = oldestAfter(t, s, m.Version, last, m.Version-1)
			}
		})
	}
}

// oldestAfter reads the oldest program and checks it to be in [least, most].
func oldestAfter(t *testing.T, s *Store, version, least, most int64) int64 {
	t.Helper()
	var oldest int64
	if err := s.write.Get(&oldest, sqlOldestProgram); err != nil {
		t.Fatalf("after migration %d: %v", version, err)
	}
	if oldest < least || oldest > most {
		t.Errorf("after migration %d the oldest program is %d, want %d to %d", version, oldest, least, most)
	}
	return oldest
}

// Statements of the release before name indexes, without which SQLite refuses them.
func TestSQLiteTakesStatementsOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	for _, q := range []string{
		"SELECT id FROM jobs INDEXED BY jobs_state_idx WHERE (state, id) < ($1, $2) AND state >= $1 ORDER BY state DESC, id DESC LIMIT 3",
		"SELECT id FROM jobs INDEXED BY jobs_class_idx WHERE (class, id) < ($1, $2) AND class >= $1 ORDER BY class DESC, id DESC LIMIT 3",
		"SELECT id FROM jobs INDEXED BY jobs_state_idx WHERE class = $1 AND state IN ('queued', 'running') AND id < $2 LIMIT 1",
	} {
		var ids []string
		if err := s.read.Select(&ids, q, "queued", "x"); err != nil {
			t.Errorf("%s: %v", q, err)
		}
	}
}

// What a migration leaves when it breaks off is no obstacle for the next start, which
// says that it may take a while.
func TestPostgresIndexesAreBuiltAfterABreak(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{Path: pgtest.New(t).URL("test"), MaxConns: 8})
	p, err := migrator(s.write.DB, s.d.name, migrations.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	indexes := func() (defs []string) {
		t.Helper()
		if err := s.write.Select(&defs, "SELECT indexdef FROM pg_indexes WHERE tablename IN ('jobs', 'run_log') ORDER BY 1"); err != nil {
			t.Fatal(err)
		}
		return defs
	}
	want := indexes()
	for name, left := range map[string]string{
		"at the first index": "CREATE INDEX jobs_state_class_idx ON jobs (id)",
		"at the key":         "DROP INDEX jobs_class_idx, jobs_finished_idx; CREATE UNIQUE INDEX run_log_key_idx ON run_log (ended_at, id)",
		"behind the key": `CREATE UNIQUE INDEX run_log_key_idx ON run_log (ended_at, id);
ALTER TABLE run_log DROP CONSTRAINT run_log_pkey, ADD CONSTRAINT run_log_pkey PRIMARY KEY USING INDEX run_log_key_idx`,
	} {
		if _, err := p.DownTo(t.Context(), 9); err != nil {
			t.Fatal(err)
		}
		if before := indexes(); slices.Equal(before, want) {
			t.Fatalf("the way down changes nothing: %v", before)
		}
		if _, err := s.write.Exec(left); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		if err := migrate(t.Context(), s.write.DB, s.d.name, migrations.Postgres(), slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatalf("broken off %s: %v", name, err)
		}
		if got := indexes(); !slices.Equal(got, want) {
			t.Errorf("broken off %s: indexes %v, want %v", name, got, want)
		}
		if !strings.Contains(log.String(), "migrating the database, or waiting for the replica that does; with large tables this takes a while") || !strings.Contains(log.String(), "from=9") {
			t.Errorf("broken off %s: the log says\n%s", name, log.String())
		}
	}
}

package store

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// migrate brings the tables up to the newest version that this binary knows. A
// database that a newer binary has migrated is served as long as its migrations say
// that it may be (see compatible), so that one release runs before and after the
// migrations of the next. The lock of those that migrate is taken only when there is
// something to do: a replica that finds nothing starts while another one, of a later
// release, builds indexes.
func migrate(ctx context.Context, db *sql.DB, dialect string, files fs.FS, log *slog.Logger) error {
	p, err := migrator(db, dialect, files)
	if err != nil {
		return err
	}
	if _, err := compatible(ctx, db, p); err != nil {
		return err
	}
	pending, err := p.HasPending(ctx)
	if err != nil {
		return fmt.Errorf("compare the schema with the migrations: %w", err)
	}
	if pending {
		if err := migrateUp(ctx, p, log); err != nil {
			return err
		}
	}
	// A newer binary may have been the one that was waited for.
	newer, err := compatible(ctx, db, p)
	if newer > 0 {
		log.InfoContext(ctx, "a newer release has migrated the database, this one may use it", "version", newer)
	}
	return err
}

// migrateUp applies what is missing, unless another replica does, which it waits for.
// It says so first: an index of a large table takes minutes.
func migrateUp(ctx context.Context, p *goose.Provider, log *slog.Logger) error {
	have, newest, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if have > 0 {
		log.InfoContext(ctx, "migrating the database, or waiting for the replica that does; with large tables this takes a while", "from", have, "to", newest)
	}
	results, err := p.Up(ctx)
	for _, r := range results {
		if r.Error == nil {
			log.InfoContext(ctx, "migration applied", "version", r.Source.Version, "took", r.Duration)
		}
	}
	if err != nil {
		return fmt.Errorf("migrate the schema: %w", err)
	}
	return nil
}

const sqlOldestProgram = `
SELECT oldest_program
  FROM compatibility`

// compatible refuses a database whose schema is newer than what this binary knows,
// unless the migrations that made it so say that a binary of this age may use it: its
// rows may mean things that this one would overwrite. Binaries are numbered by the
// newest migration that they know; see migration 9. It returns the schema's version
// if that is newer, else 0. It takes no lock.
func compatible(ctx context.Context, db *sql.DB, p *goose.Provider) (newer int64, err error) {
	have, newest, err := p.GetVersions(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	if have <= newest {
		return 0, nil
	}
	var oldest int64
	if err := db.QueryRowContext(ctx, sqlOldestProgram).Scan(&oldest); err != nil {
		return 0, fmt.Errorf("the database has schema version %d, this binary knows up to %d; ask which binaries may use it: %w", have, newest, err)
	}
	if oldest > newest {
		return 0, fmt.Errorf("the database has schema version %d, which only binaries that know version %d or newer may use, and this one knows up to %d: run the binary that migrated it, or one between the two, or restore a backup from before", have, oldest, newest)
	}
	return have, nil
}

func migrator(db *sql.DB, dialect string, files fs.FS) (*goose.Provider, error) {
	names := map[string]goose.Dialect{"sqlite": goose.DialectSQLite3, "postgres": goose.DialectPostgres}
	// Globally registered Go migrations belong to whoever else uses goose in this process.
	opts := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler))}
	if dialect == "postgres" {
		// Of replicas that start at once one migrates; the others look every second.
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600), lock.WithUnlockTimeout(1, 30))
		if err != nil {
			return nil, fmt.Errorf("lock the migrations: %w", err)
		}
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(names[dialect], db, files, opts...)
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return p, nil
}

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
// database that a newer binary has migrated is refused: its rows may mean things
// that this one would overwrite.
func migrate(ctx context.Context, db *sql.DB, dialect string, files fs.FS, log *slog.Logger) error {
	p, err := migrator(db, dialect, files)
	if err != nil {
		return err
	}
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if have > newest {
		return fmt.Errorf("the database has schema version %d, this binary knows up to %d: run the newer binary that migrated it, or restore a backup from before", have, newest)
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

package peer

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"maragu.dev/goqite"
)

// goqiteQueue is goqite on SQLite or PostgreSQL. Its tables are made as its
// documentation says that they must be.
type goqiteQueue struct {
	db   *sql.DB
	q    *goqite.Queue
	stop context.CancelFunc
	wg   sync.WaitGroup
	done atomic.Int64
}

const (
	goqiteSQLite = `
CREATE TABLE goqite (
    id       TEXT PRIMARY KEY DEFAULT ('m_' || lower(hex(randomblob(16)))),
    created  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')),
    updated  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')),
    queue    TEXT NOT NULL,
    body     BLOB NOT NULL,
    timeout  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')),
    received INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TRIGGER goqite_updated AFTER UPDATE ON goqite BEGIN
    UPDATE goqite SET updated = strftime('%Y-%m-%dT%H:%M:%fZ') WHERE id = old.id;
END;
CREATE INDEX goqite_line_idx ON goqite (queue, priority DESC, created);`
	goqitePG = `
CREATE EXTENSION IF NOT EXISTS pgcrypto;
CREATE TABLE goqite (
    id       text PRIMARY KEY DEFAULT ('m_' || encode(gen_random_bytes(16), 'hex')),
    created  timestamptz NOT NULL DEFAULT now(),
    updated  timestamptz NOT NULL DEFAULT now(),
    queue    text NOT NULL,
    body     bytea NOT NULL,
    timeout  timestamptz NOT NULL DEFAULT now(),
    received integer NOT NULL DEFAULT 0,
    priority integer NOT NULL DEFAULT 0
);
CREATE INDEX goqite_line_idx ON goqite (queue, priority DESC, created);`
)

func openGoqiteSQLite(ctx context.Context, cfg Config) (Queue, error) {
	db, err := openSQLite(cfg.DSN)
	if err != nil {
		return nil, err
	}
	return openGoqite(ctx, db, goqiteSQLite, goqite.SQLFlavorSQLite)
}

func openGoqitePG(ctx context.Context, cfg Config) (Queue, error) {
	db, err := sql.Open("postgres", cfg.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	return openGoqite(ctx, db, goqitePG, goqite.SQLFlavorPostgreSQL)
}

func openGoqite(ctx context.Context, db *sql.DB, schema string, flavor goqite.SQLFlavor) (Queue, error) {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &goqiteQueue{db: db, q: goqite.New(goqite.NewOpts{DB: db, Name: "bench", SQLFlavor: flavor})}, nil
}

// Add implements Queue.
func (g *goqiteQueue) Add(ctx context.Context, j Job) (string, error) {
	id, err := g.q.SendAndGetID(ctx, goqite.Message{Body: j.Payload})
	return string(id), err
}

// AddMany implements Queue.
func (g *goqiteQueue) AddMany(ctx context.Context, jobs []Job) error {
	tx, err := g.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := g.q.SendTx(ctx, tx, goqite.Message{Body: j.Payload}); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

// Work implements Queue.
func (g *goqiteQueue) Work(ctx context.Context, width int, ran func([]byte)) error {
	ctx, g.stop = context.WithCancel(ctx)
	for range width {
		g.wg.Go(func() {
			for ctx.Err() == nil {
				m, err := g.q.ReceiveAndWait(ctx, 10_000_000)
				if err != nil || m == nil {
					continue
				}
				ran(m.Body)
				if g.q.Delete(context.WithoutCancel(ctx), m.ID) == nil {
					g.done.Add(1)
				}
			}
		})
	}
	return nil
}

// Stop implements Queue.
func (g *goqiteQueue) Stop(context.Context) error {
	if g.stop != nil {
		g.stop()
		g.wg.Wait()
		g.stop = nil
	}
	return nil
}

// Done implements Queue: what is done is deleted, so these were counted.
func (g *goqiteQueue) Done(context.Context) (int, error) { return int(g.done.Load()), nil }

// Close implements Queue.
func (g *goqiteQueue) Close() error {
	return errors.Join(g.Stop(context.Background()), g.db.Close())
}

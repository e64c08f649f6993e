package peer

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/lib/pq"
	_ "modernc.org/sqlite" // the driver that is named below
)

// onlyAdds is embedded by peers that run nothing.
type onlyAdds struct{}

var errRunsNothing = errors.New("this peer only takes jobs in")

// Work implements Queue.
func (onlyAdds) Work(context.Context, int, func([]byte)) error { return errRunsNothing }

// Stop implements Queue.
func (onlyAdds) Stop(context.Context) error { return nil }

// Done implements Queue.
func (onlyAdds) Done(context.Context) (int, error) { return 0, errRunsNothing }

// noop is the handler alone: the floor.
type noop struct{ onlyAdds }

func openNoop(context.Context, Config) (Queue, error) { return noop{}, nil }

// Add implements Queue.
func (noop) Add(context.Context, Job) (string, error) { return newID(), nil }

// AddMany implements Queue.
func (noop) AddMany(context.Context, []Job) error { return nil }

// Close implements Queue.
func (noop) Close() error { return nil }

func newID() string { return uuid.Must(uuid.NewV7()).String() }

const bareTable = `CREATE TABLE bare (id text PRIMARY KEY, class text NOT NULL, payload text NOT NULL)`

// insert is one prepared INSERT for each request, committed by itself.
type insert struct {
	onlyAdds
	db  *sql.DB
	one *sql.Stmt
}

func openInsert(ctx context.Context, cfg Config) (Queue, error) {
	db, err := sql.Open("postgres", cfg.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	return prepared(ctx, db)
}

// poolSize is every peer's number of connections, the gateway's default.
const poolSize = 16

func openInsertSQLite(ctx context.Context, cfg Config) (Queue, error) {
	db, err := openSQLite(cfg.DSN)
	if err != nil {
		return nil, err
	}
	return prepared(ctx, db)
}

// openSQLite opens a file as the gateway does: WAL, and every commit synced.
func openSQLite(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=5000&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate")
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

func prepared(ctx context.Context, db *sql.DB) (Queue, error) {
	if _, err := db.ExecContext(ctx, bareTable); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	one, err := db.PrepareContext(ctx, "INSERT INTO bare (id, class, payload) VALUES ($1, $2, $3)")
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &insert{db: db, one: one}, nil
}

// Add implements Queue.
func (q *insert) Add(ctx context.Context, j Job) (string, error) {
	id := newID()
	_, err := q.one.ExecContext(ctx, id, j.Class, string(j.Payload))
	return id, err
}

// AddMany implements Queue.
func (q *insert) AddMany(ctx context.Context, jobs []Job) error { return unnest(ctx, q.db, jobs) }

// Close implements Queue.
func (q *insert) Close() error { return errors.Join(q.one.Close(), q.db.Close()) }

func unnest(ctx context.Context, db *sql.DB, jobs []Job) error {
	ids, classes, payloads := make([]string, len(jobs)), make([]string, len(jobs)), make([]string, len(jobs))
	for i, j := range jobs {
		ids[i], classes[i], payloads[i] = newID(), j.Class, string(j.Payload)
	}
	_, err := db.ExecContext(ctx, `
INSERT INTO bare (id, class, payload)
SELECT * FROM unnest(CAST($1 AS text[]), CAST($2 AS text[]), CAST($3 AS text[]))`, pq.Array(ids), pq.Array(classes), pq.Array(payloads))
	return err
}

// group is the limit: what came in while the last statement ran goes into the next
// one, a single INSERT through lib/pq.
type group struct {
	onlyAdds
	db    *sql.DB
	queue chan waiting
	ended chan struct{}
	shut  atomic.Bool
}

type waiting struct {
	job  Job
	done chan error
}

func openGroup(ctx context.Context, cfg Config) (Queue, error) {
	db, err := sql.Open("postgres", cfg.DSN)
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, bareTable); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	g := &group{db: db, queue: make(chan waiting, 4096), ended: make(chan struct{})}
	go g.write()
	return g, nil
}

func (g *group) write() {
	defer close(g.ended)
	for first := range g.queue {
		all := []waiting{first}
		for more := true; more && len(all) < 512; {
			select {
			case w, ok := <-g.queue:
				if more = ok; ok {
					all = append(all, w)
				}
			default:
				more = false
			}
		}
		jobs := make([]Job, len(all))
		for i, w := range all {
			jobs[i] = w.job
		}
		err := unnest(context.Background(), g.db, jobs)
		for _, w := range all {
			w.done <- err
		}
	}
}

// Add implements Queue.
func (g *group) Add(_ context.Context, j Job) (string, error) {
	w := waiting{j, make(chan error, 1)}
	g.queue <- w
	return "", <-w.done
}

// AddMany implements Queue.
func (g *group) AddMany(ctx context.Context, jobs []Job) error { return unnest(ctx, g.db, jobs) }

// Close implements Queue; nobody may add any more.
func (g *group) Close() error {
	if !g.shut.Swap(true) {
		close(g.queue)
	}
	<-g.ended
	return g.db.Close()
}

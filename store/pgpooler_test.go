package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"sync"
	"testing"
)

// fakePool is a server behind a pooler: clients share its sessions.
type fakePool struct {
	mu   sync.Mutex
	free []int64 // sessions that no client has, the last one is given first
	next int64
	// shared: a client has a session during a transaction only, as in PgBouncer's
	// transaction mode; otherwise from connecting on.
	shared bool
}

func (p *fakePool) take() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		pid := p.free[n-1]
		p.free = p.free[:n-1]
		return pid
	}
	p.next++
	return p.next
}

func (p *fakePool) give(pid int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, pid)
}

// Connect implements driver.Connector.
func (p *fakePool) Connect(context.Context) (driver.Conn, error) {
	c := &fakeClient{pool: p}
	if !p.shared {
		c.pid = p.take()
	}
	return c, nil
}

// Driver implements driver.Connector.
func (p *fakePool) Driver() driver.Driver { return nil }

// fakeClient answers every query with the id of the session that it has.
type fakeClient struct {
	pool *fakePool
	pid  int64 // 0: none now
}

func (c *fakeClient) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("not used")
}
func (c *fakeClient) Close() error { return nil }

func (c *fakeClient) Begin() (driver.Tx, error) {
	if c.pool.shared {
		c.pid = c.pool.take()
	}
	return c, nil
}
func (c *fakeClient) Commit() error { return c.Rollback() }

func (c *fakeClient) Rollback() error {
	if c.pool.shared {
		c.pool.give(c.pid)
		c.pid = 0
	}
	return nil
}

func (c *fakeClient) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	pid := c.pid
	if pid == 0 {
		pid = c.pool.take()
		c.pool.give(pid)
	}
	return &fakeRows{pid: pid}, nil
}

// fakeRows is one row with one number.
type fakeRows struct {
	pid  int64
	done bool
}

func (r *fakeRows) Columns() []string { return []string{"pid"} }
func (r *fakeRows) Close() error      { return nil }
func (r *fakeRows) Next(dest []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done, dest[0] = true, r.pid
	return nil
}

// A pooler that moves clients between sessions is refused, however many sessions
// it has open already; one that gives each client its own is not.
func TestPoolerIsRecognised(t *testing.T) {
	for name, c := range map[string]struct {
		pool *fakePool
		want error
	}{
		"sessions of one's own":       {&fakePool{}, nil},
		"shared, none open":           {&fakePool{shared: true}, errPooler},
		"shared, one open":            {&fakePool{shared: true, free: []int64{7}, next: 7}, errPooler},
		"shared, many open":           {&fakePool{shared: true, free: []int64{7, 3, 9, 4}, next: 9}, errPooler},
		"one's own, from a warm pool": {&fakePool{free: []int64{7, 3, 9, 4}, next: 9}, nil},
	} {
		db := sql.OpenDB(c.pool)
		if err := checkSessions(t.Context(), db); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

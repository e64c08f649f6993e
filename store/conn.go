package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// connWait bounds ctx by how long a caller waits for a connection.
func (s *Store) connWait(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.opts.ConnWait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.opts.ConnWait)
}

// connection takes a connection of a pool. A failure that is not the caller's is
// the database's, whatever the driver says.
func (s *Store) connection(ctx context.Context, db *sqlx.DB) (*sqlx.Conn, error) {
	wait, cancel := s.connWait(ctx)
	defer cancel()
	conn, err := db.Connx(wait)
	switch {
	case err == nil, ctx.Err() != nil, s.d.sort(err) != faultNone:
		return conn, err
	case wait.Err() != nil:
		err = fmt.Errorf("no connection was free within %v: %w", s.opts.ConnWait, err)
	}
	return nil, &faultError{kind: faultAway, text: err.Error()}
}

// begun is an open transaction with its connection.
type begun struct {
	s      *Store
	conn   *sqlx.Conn
	q      *sqlx.Tx
	ctx    context.Context // of its statements
	cancel context.CancelFunc
}

// beginOn takes a connection and begins a transaction. ctx bounds the wait for the
// connection, and the transaction, too, unless limit says how long that one may
// take. A connection that turns out to be dead, as after a restart of the server,
// is replaced once: nothing has happened on it.
func (s *Store) beginOn(ctx context.Context, db *sqlx.DB, opts *sql.TxOptions, limit time.Duration) (*begun, error) {
	b, err := s.tryBegin(ctx, db, opts, limit)
	if err != nil && s.d.spent != nil && diedIdle(err) {
		return s.tryBegin(ctx, db, opts, limit)
	}
	return b, err
}

func (s *Store) tryBegin(ctx context.Context, db *sqlx.DB, opts *sql.TxOptions, limit time.Duration) (*begun, error) {
	conn, err := s.connection(ctx, db)
	if err != nil {
		return nil, err
	}
	b := &begun{s: s, conn: conn}
	b.ctx, b.cancel = limited(ctx, limit)
	if b.q, err = conn.BeginTxx(b.ctx, opts); err == nil {
		return b, nil
	}
	b.cancel()
	if s.d.spent == nil {
		_ = conn.Close()
	} else {
		s.drop(conn)
	}
	return nil, err
}

// limited lets go of ctx's end where limit takes its place.
func limited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// end rolls back what was not committed and returns the connection to its pool, or
// drops it when the error that the transaction ended with says that it is of no use.
func (b *begun) end(err error) {
	_ = b.q.Rollback() // nothing after a commit
	b.cancel()
	if err != nil && b.s.spent(err) {
		b.s.drop(b.conn)
		return
	}
	_ = b.conn.Close()
}

// drop closes a connection, and with it all that nobody uses now: they lead to the
// same server and would each fail one more caller.
func (s *Store) drop(conn *sqlx.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close() // done with already, as a rule
	for db, idle := range s.idle {
		db.SetMaxIdleConns(-1)
		db.SetMaxIdleConns(idle)
	}
}

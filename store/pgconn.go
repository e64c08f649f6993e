package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

// connSilence is how long sent data may stay unconfirmed, and a peer silent beyond
// the longest answer, before the connection counts as dead.
const connSilence = 5 * time.Second

// pgDialer makes connections that don't wait for ever for a peer that is gone.
type pgDialer struct{ silence time.Duration }

// Dial implements pq.Dialer.
func (d *pgDialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialTimeout implements pq.Dialer.
func (d *pgDialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// DialContext implements pq.DialerContext.
func (d *pgDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: connSilence, Interval: 2 * time.Second, Count: 3},
		Control:         tcpUserTimeout(connSilence),
	}
	c, err := dialer.DialContext(ctx, network, address)
	if err != nil || d.silence == 0 {
		return c, err
	}
	silent := &silentConn{Conn: c, silence: d.silence}
	if dialed, ok := ctx.Value(dialedKey{}).(**silentConn); ok {
		*dialed = silent
	}
	return silent, nil
}

// dialedKey is where the context of a connect says who wants to know the connection
// that was dialed last, a **silentConn.
type dialedKey struct{}

// silentConn fails a read or a write that takes too long: TCP's own limits don't
// see a server that is frozen, and a context can't interrupt the driver's reading.
// The driver reads only while it waits for an answer, so an idle connection stays.
type silentConn struct {
	net.Conn
	silence time.Duration
	// limit is the deadline that the driver has set for its handshake, zero when none.
	limit time.Time
}

// SetDeadline keeps the driver's own deadline.
func (c *silentConn) SetDeadline(t time.Time) error {
	c.limit = t
	return c.Conn.SetDeadline(t)
}

func (c *silentConn) deadline() time.Time {
	t := time.Now().Add(c.silence)
	if !c.limit.IsZero() && c.limit.Before(t) {
		return c.limit
	}
	return t
}

// Read implements net.Conn.
func (c *silentConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *silentConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(c.deadline()); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// stale says whether something came from the server that nobody asked for, as it
// says good-bye before it stops, or the connection is closed. It costs a system call.
func (c *silentConn) stale() bool {
	raw, ok := c.Conn.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := raw.SyscallConn()
	return err != nil || unread(rc)
}

// pgConnector is pq's connector with plain transactions, see pgConn, and settings
// for each session. They are statements: a pooler refuses them as startup parameters.
type pgConnector struct {
	*pq.Connector
	set string // SET statements, "" for none
	// named prepares what transactions execute by name, see pgNamed; "" for none.
	named string
}

// Connect implements driver.Connector.
func (c *pgConnector) Connect(ctx context.Context) (driver.Conn, error) {
	var dialed *silentConn
	conn, err := c.Connector.Connect(context.WithValue(ctx, dialedKey{}, &dialed))
	if err != nil {
		return nil, err
	}
	full, ok := conn.(pqConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's connection %T lacks methods", conn), conn.Close())
	}
	if c.set != "" {
		if _, err := full.ExecContext(ctx, c.set, nil); err != nil {
			return nil, errors.Join(fmt.Errorf("settings of the session: %w", err), full.Close())
		}
	}
	return &pgConn{pqConn: full, net: dialed, named: c.named}, nil
}

// pqConn is all that a connection of the driver can do.
type pqConn interface {
	driver.Conn
	driver.Tx // of the transaction that is open
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// pgConn begins transactions that ask for nothing special by a plain BEGIN. The
// driver would say READ WRITE, which overrides default_transaction_read_only: a
// database that was closed to writes would go on taking ours.
type pgConn struct {
	pqConn
	net *silentConn                        // nil: unknown
	own map[string]driver.StmtQueryContext // what once has prepared here, by its text
	// named prepares statements by name, and has done so.
	named    string
	prepared bool
	reads    sessionReads
}

// stale says whether the connection should not be used without a look at it first.
func (c *pgConn) stale() bool { return c.net == nil || c.net.stale() }

// BeginTx implements driver.ConnBeginTx.
func (c *pgConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if opts.ReadOnly || opts.Isolation != driver.IsolationLevel(sql.LevelDefault) {
		return c.pqConn.BeginTx(ctx, opts)
	}
	if joined, ok := ctx.Value(joinedKey{}).(**joinedTx); ok && c.named != "" {
		tx, err := c.beginJoined(ctx)
		*joined = tx
		return tx, err
	}
	return c.Begin() // deprecated for lack of a context; every statement after it has one
}

// errPooler says what a transaction-pooling PgBouncer can't do.
var errPooler = errors.New("the database URL leads to a pooler that gives a session to several clients, like PgBouncer with pool_mode = transaction: lanegate needs sessions of its own for its time-outs, prepared statements and the lock of its migrations. Point it at PostgreSQL itself, or at a PgBouncer with pool_mode = session")

// refused turns the errors by which a pooler shows itself into a sentence.
func refused(err error) error {
	if err == nil || errors.Is(err, errPooler) {
		return err
	}
	if pq.As(err, pqerror.InvalidSQLStatementName, pqerror.DuplicatePstatement) != nil {
		return fmt.Errorf("%w (%v)", errPooler, err)
	}
	return fmt.Errorf("open the PostgreSQL database: %w", err)
}

// sessionWait bounds the wait for an answer while sessions are compared: a pooler
// lets a client wait for minutes while it has no session for it.
const sessionWait = 10 * time.Second

// checkSessions refuses a pooler that moves clients between the server's sessions,
// or has less than two: one client's session must stay its own while another one is
// in a transaction. The connections of db must end a wait by themselves, see silentConn.
func checkSessions(ctx context.Context, db *sql.DB) error {
	a, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	if _, err := backend(ctx, a); err != nil {
		return err
	}
	// The server answers; who has to wait now waits for the pooler.
	err = compareSessions(ctx, a, db)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() && ctx.Err() == nil {
		return fmt.Errorf("%w, with room for every connection of all replicas (while one session was in use, no other one answered: %v)", errPooler, err)
	}
	return err
}

func compareSessions(ctx context.Context, a *sql.Conn, db *sql.DB) error {
	b, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	for range 3 {
		mine, err := backend(ctx, a)
		if err != nil {
			return err
		}
		q, err := b.BeginTx(ctx, nil)
		if errors.Is(err, driver.ErrBadConn) {
			return fmt.Errorf("%w (it ended a session that began a transaction, as with pool_mode = statement)", errPooler)
		}
		if err != nil {
			return err
		}
		other, err := backend(ctx, q)
		if err != nil {
			return errors.Join(err, q.Rollback())
		}
		again, err := backend(ctx, a)
		if err = errors.Join(err, q.Rollback()); err != nil {
			return err
		}
		if mine == other || mine != again {
			return errPooler
		}
	}
	return nil
}

// backend is the process id of the server's session that answers.
func backend(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (pid int, err error) {
	err = q.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid, err
}

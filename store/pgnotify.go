package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/lib/pq"
)

// listening are the times of a connection that waits for notifications.
type listening struct {
	ping    time.Duration // a sign of life on a quiet connection
	silence time.Duration // without an answer for so long it counts as dead; more than ping
	// A lost connection is made again after retryMin, then twice that, up to retryMax.
	retryMin, retryMax time.Duration
}

var defaultListening = listening{ping: 15 * time.Second, silence: 40 * time.Second, retryMin: 250 * time.Millisecond, retryMax: 10 * time.Second}

var errNoNotify = errors.New("notifications need PostgreSQL")

const sqlNotify = `SELECT pg_notify($1, $2)`

// Notify sends payload, less than 8,000 bytes, to all who listen on the channel.
// It is PostgreSQL's NOTIFY in a statement that commits by itself: never inside a
// transaction that submits, as the server commits notifying ones one after the other,
// and in one round trip, as an admission begins at the same moment.
func (s *Store) Notify(ctx context.Context, channel, payload string) error {
	if s.d.name != "postgres" {
		return errNoNotify
	}
	err := s.notify(ctx, channel, payload)
	if err != nil && ctx.Err() == nil && isLost(err) {
		err = s.notify(ctx, channel, payload) // the connection was dead; twice is as good as once
	}
	if err != nil {
		return s.mapped(ctx, wrap("notify", err))
	}
	return nil
}

func (s *Store) notify(ctx context.Context, channel, payload string) error {
	conn, err := s.connection(ctx, s.write)
	if err != nil {
		return err
	}
	err = conn.Raw(func(driven any) error {
		c, ok := driven.(*pgConn)
		if !ok {
			return fmt.Errorf("the connection is a %T", driven)
		}
		return c.notify(ctx, channel, payload)
	})
	switch {
	case err != nil && ctx.Err() != nil: // closed by us: the other connections are none the worse
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	case err != nil && (isLost(err) || s.spent(err)):
		s.drop(conn)
		return err
	}
	_ = conn.Close()
	return err
}

// notify runs sqlNotify. The connection is closed when ctx ends before the answer has
// come: that is no wait for a silent server, as the driver's own end of a statement is.
func (c *pgConn) notify(ctx context.Context, channel, payload string) error {
	if c.net != nil {
		defer context.AfterFunc(ctx, func() { _ = c.net.Close() })()
	}
	_, err := c.ExecContext(context.WithoutCancel(ctx), sqlNotify, []driver.NamedValue{{Ordinal: 1, Value: channel}, {Ordinal: 2, Value: payload}})
	return err
}

// Listen calls heard for each notification on the channel and connected each time
// listening begins, at first and after every lost connection: what was sent in
// between is lost. Both are called one after the other and must not block. It holds
// one connection beside the pools and returns when ctx ends, with its error, or when
// the server refuses to let it listen.
func (s *Store) Listen(ctx context.Context, channel string, heard func(payload string), connected func()) error {
	if s.d.name != "postgres" {
		return errNoNotify
	}
	dsn, err := listenDSN(s.opts.Path)
	if err != nil {
		return err
	}
	times := s.listening
	dialer := &pgDialer{silence: times.silence}
	l := pq.NewDialListener(dialer, dsn, times.retryMin, times.retryMax, s.listenEvents(ctx, channel))
	// Whatever the listener's own goroutines do meanwhile, they hold its lock: none
	// of its methods is waited for.
	defer func() {
		go func() { _ = l.Close() }()
		go func() {
			for range l.Notify { // it blocks on a full channel, closed or not
			}
		}()
	}()
	listens := make(chan error, 1)
	go func() { listens <- l.Listen(channel) }()
	stopPings := make(chan struct{})
	defer close(stopPings)
	go pingEvery(times.ping, l, stopPings)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-listens:
			if err != nil {
				return s.mapped(ctx, wrap("listen on "+channel, err))
			}
			connected()
		case n := <-l.Notify:
			if n == nil { // a new connection
				connected()
			} else {
				heard(n.Extra)
			}
		}
	}
}

// pingEvery makes the server say something on a quiet connection. It is the
// connection's own limit on silence that ends it when no answer comes; a ping
// that waits for one then fails.
func pingEvery(every time.Duration, l *pq.Listener, stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			_ = l.Ping() // a failure is seen as a lost connection
		}
	}
}

// listenEvents logs one line when listening is lost and one when it is back.
func (s *Store) listenEvents(ctx context.Context, channel string) pq.EventCallbackType {
	lost := false // the listener calls from one goroutine
	return func(e pq.ListenerEventType, err error) {
		switch {
		case ctx.Err() != nil:
		case e == pq.ListenerEventConnected || e == pq.ListenerEventReconnected:
			if lost {
				s.log.InfoContext(ctx, "listening for notifications again", "channel", channel)
			}
			lost = false
		case !lost:
			lost = true
			s.log.WarnContext(ctx, "listening for notifications was lost; connecting again", "channel", channel, "err", err)
		}
	}
}

// listenDSN is the URL with the defaults that the pools' connections have: the
// listener takes a text only.
func listenDSN(dsn string) (string, error) {
	cfg, err := postgresConfig(dsn)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("the database URL can't be read") // without the URL, which may hold a password
	}
	q := u.Query()
	q.Set("sslmode", string(cfg.SSLMode))
	q.Set("target_session_attrs", string(cfg.TargetSessionAttrs))
	q.Set("application_name", cfg.ApplicationName)
	q.Set("connect_timeout", strconv.Itoa(int(max(cfg.ConnectTimeout/time.Second, 1))))
	u.RawQuery = q.Encode()
	return u.String(), nil
}

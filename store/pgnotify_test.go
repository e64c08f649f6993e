//go:build linux

package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate/store/pgtest"
)

// ears is a listener with what it heard.
type ears struct {
	mu        sync.Mutex
	heard     []string
	connected int
	done      chan error
}

func listen(t *testing.T, s *Store) *ears {
	t.Helper()
	e := &ears{done: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		e.done <- s.Listen(ctx, "bells", func(p string) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.heard = append(e.heard, p)
		}, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.connected++
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-e.done; !errors.Is(err, context.Canceled) {
			t.Errorf("Listen ended with %v", err)
		}
	})
	e.await(t, "listening", 1)
	return e
}

func (e *ears) state() (connected int, heard string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.connected, fmt.Sprint(e.heard)
}

func (e *ears) await(t *testing.T, what string, connected int) {
	t.Helper()
	eventually(t, what, func() bool { n, _ := e.state(); return n >= connected })
}

// notifyAndHear checks that a notification of each of the stores arrives.
func notifyAndHear(t *testing.T, when string, e *ears, from ...*Store) {
	t.Helper()
	for i, s := range from {
		text := fmt.Sprintf("%s %d", when, i)
		if err := s.Notify(t.Context(), "bells", text); err != nil {
			t.Fatal(err)
		}
		eventually(t, text, func() bool { _, heard := e.state(); return strings.Contains(heard, text) })
	}
}

func TestPostgresNotifications(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	e := listen(t, a)
	notifyAndHear(t, "at first", e, a, b)
	// A killed connection is replaced, and whoever listens is told.
	_, err := b.write.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	 WHERE datname = current_database() AND query ILIKE 'LISTEN%' AND pid <> pg_backend_pid()`)
	if err != nil {
		t.Fatal(err)
	}
	e.await(t, "listening again", 2)
	notifyAndHear(t, "after the kill", e, a, b)
}

// C69: the server stops and starts.
func TestPostgresNotificationsAfterARestart(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	s := newStore(t, Options{Path: server.URL("test")})
	e := listen(t, s)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Notify(t.Context(), "bells", "into the void"); err == nil {
		t.Error("Notify succeeded without a server")
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	e.await(t, "listening again", 2)
	eventually(t, "notifying again", func() bool { return s.Notify(t.Context(), "bells", "probe") == nil })
	notifyAndHear(t, "after the restart", e, s)
}

// A server that accepts everything and answers nothing any more is noticed, and
// a connection that works is made as soon as there is one.
func TestPostgresNotificationsNoticeSilence(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	direct, err := url.Parse(server.URL("test"))
	if err != nil {
		t.Fatal(err)
	}
	mid := newMiddleman(t, filepath.Join(direct.Query().Get("host"), ".s.PGSQL.5432"))
	s := newStore(t, Options{Path: fmt.Sprintf("postgres://postgres@%s/test?sslmode=disable", mid.Addr())})
	s.listening = listening{ping: 100 * time.Millisecond, silence: time.Second, retryMin: 50 * time.Millisecond, retryMax: 200 * time.Millisecond}
	e := listen(t, s)
	notifyAndHear(t, "at first", e, s)
	mid.mute()
	e.await(t, "listening again", 2)
	notifyAndHear(t, "after the silence", e, s)
}

// middleman passes bytes on between clients and a server's socket.
type middleman struct {
	net.Listener
	mu    sync.Mutex
	muted []chan struct{} // one per connection; closed: its answers are swallowed
}

func newMiddleman(t *testing.T, socket string) *middleman {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middleman{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.serve(c, socket)
		}
	}()
	return m
}

func (m *middleman) serve(client net.Conn, socket string) {
	server, err := net.Dial("unix", socket)
	if err != nil {
		_ = client.Close()
		return
	}
	muted := make(chan struct{})
	m.mu.Lock()
	m.muted = append(m.muted, muted)
	m.mu.Unlock()
	pass := func(to, from net.Conn, muted <-chan struct{}) {
		defer to.Close()
		buf := make([]byte, 4096)
		for {
			n, err := from.Read(buf)
			select {
			case <-muted:
			default:
				_, _ = to.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}
	go pass(server, client, nil)
	go pass(client, server, muted)
}

// mute swallows the answers on all present connections.
func (m *middleman) mute() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.muted {
		close(c)
	}
	m.muted = nil
}

func TestNotificationsNeedPostgres(t *testing.T) {
	s := newStore(t, Options{})
	if err := s.Notify(t.Context(), "bells", ""); !errors.Is(err, errNoNotify) {
		t.Errorf("Notify: %v", err)
	}
	if err := s.Listen(t.Context(), "bells", nil, nil); !errors.Is(err, errNoNotify) {
		t.Errorf("Listen: %v", err)
	}
}

func TestListenDSN(t *testing.T) {
	got, err := listenDSN("postgres://u:p%40ss@localhost:5433/d?application_name=x&sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	if want := "postgres://u:p%40ss@localhost:5433/d?application_name=x&connect_timeout=5&sslmode=disable&target_session_attrs=read-write"; got != want {
		t.Errorf("DSN = %s, want %s", got, want)
	}
}

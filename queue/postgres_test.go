//go:build linux

package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/queuetest"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/store/pgtest"
)

// hanging is a notifier that doesn't answer while it is told so.
type hanging struct {
	queue.Notifier
	mu   sync.Mutex
	free chan struct{} // nil: it answers; guarded by mu
}

func (h *hanging) Notify(ctx context.Context, channel, payload string) error {
	h.mu.Lock()
	free := h.free
	h.mu.Unlock()
	if free != nil {
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h.Notifier.Notify(ctx, channel, payload)
}

func (h *hanging) hang(*testing.T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free = make(chan struct{})
}

func (h *hanging) mend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.free != nil {
		close(h.free)
		h.free = nil
	}
}

// startPostgres runs a bell until stop is called or the test ends.
func startPostgres(t *testing.T, n queue.Notifier, log *slog.Logger) (p *queue.Postgres, stop func()) {
	t.Helper()
	p = queue.NewPostgres(queue.PostgresOptions{Notifier: n, Log: log, Backoff: queue.Backoff{Base: 50 * time.Millisecond, Max: time.Second}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return p, stop
}

func openStore(t *testing.T, server *pgtest.Server, log *slog.Logger) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Path: server.URL("test"), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestPostgresContract(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T) *queuetest.Setup {
		var log logBook
		server := pgtest.New(t)
		ringer := &hanging{Notifier: openStore(t, server, log.logger())}
		a, _ := startPostgres(t, ringer, log.logger())
		ears := openStore(t, server, log.logger())
		b, stopB := startPostgres(t, ears, log.logger())
		c, _ := startPostgres(t, ears, log.logger())
		for _, l := range []*queue.Postgres{a, b, c} { // each begins with a ring
			eventually(t, "listening", func() bool {
				select {
				case <-l.Rings():
					return true
				default:
					return false
				}
			})
		}
		stopped := false
		return &queuetest.Setup{
			Ring: a.Ring, Listeners: []service.Doorbell{b, c}, Lines: log.lines, Patience: 20 * time.Second,
			Close: func(*testing.T) { stopB() },
			Cut: func(t *testing.T) {
				stopped = true
				if err := server.Stop(); err != nil {
					t.Fatal(err)
				}
			},
			Hang: ringer.hang,
			Mend: func(t *testing.T) {
				ringer.mend()
				if !stopped {
					return
				}
				stopped = false
				if err := server.Start(); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// fakeNotifier is a channel in this process that can be made to fail.
type fakeNotifier struct {
	mu        sync.Mutex
	failing   bool
	sent      []string
	listeners map[int]listener
}

type listener struct {
	heard func(string)
	end   chan struct{}
}

func (f *fakeNotifier) Notify(_ context.Context, _, payload string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing {
		return errors.New("no database")
	}
	f.sent = append(f.sent, payload)
	for _, l := range f.listeners {
		l.heard(payload)
	}
	return nil
}

func (f *fakeNotifier) Listen(ctx context.Context, _ string, heard func(string), connected func()) error {
	f.mu.Lock()
	if f.failing {
		f.mu.Unlock()
		return errors.New("no database")
	}
	if f.listeners == nil {
		f.listeners = map[int]listener{}
	}
	id, end := len(f.listeners), make(chan struct{})
	f.listeners[id] = listener{heard, end}
	f.mu.Unlock()
	connected()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-end:
		return errors.New("refused")
	}
}

// fail makes every call fail, and ends what listens.
func (f *fakeNotifier) fail(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = on
	if on {
		for _, l := range f.listeners {
			close(l.end)
		}
		f.listeners = nil
	}
}

func (f *fakeNotifier) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

func heardNow(p *queue.Postgres) bool {
	synctest.Wait()
	select {
	case <-p.Rings():
		return true
	default:
		return false
	}
}

func TestPostgresRings(t *testing.T) {
	setup := func(t *testing.T) (*fakeNotifier, *queue.Postgres, *queue.Postgres, *logBook, context.CancelFunc) {
		var f fakeNotifier
		var log logBook
		ctx, stop := context.WithCancel(t.Context())
		bells := make([]*queue.Postgres, 2)
		for i := range bells {
			bells[i] = queue.NewPostgres(queue.PostgresOptions{Notifier: &f, Log: log.logger()})
			go bells[i].Run(ctx)
			if !heardNow(bells[i]) {
				t.Fatal("no ring when listening began")
			}
		}
		return &f, bells[0], bells[1], &log, stop
	}
	t.Run("the ringing process is woken at once and once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, a, b, _, stop := setup(t)
			defer stop()
			a.Ring("serial")
			if !heardNow(a) || !heardNow(b) {
				t.Error("a ring was not heard by both")
			}
			if heardNow(a) {
				t.Error("woken by its own notification")
			}
		})
	})
	t.Run("rings share notifications", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, a, _, _, stop := setup(t)
			defer stop()
			for i := range 1000 {
				a.Ring(fmt.Sprintf("lane-%d", i%250))
			}
			synctest.Wait()
			time.Sleep(time.Second)
			synctest.Wait()
			if n := f.count(); n < 3 || n > 6 {
				t.Errorf("1000 rings of 250 lanes were %d notifications, want 3 to 6", n)
			}
			for _, p := range f.sent {
				if len(p) > 7999 {
					t.Errorf("a notification of %d bytes", len(p))
				}
			}
		})
	})
	t.Run("an outage is logged once a minute and over by itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, a, b, log, stop := setup(t)
			defer stop()
			f.fail(true)
			a.Ring("serial")
			time.Sleep(10*time.Minute + time.Second)
			if n := log.lines(); n < 10 || n > 36 { // two bells that can't listen, one that can't notify
				t.Errorf("ten minutes logged %d lines:\n%s", n, log)
			}
			heardNow(a)
			heardNow(b)
			f.fail(false)
			time.Sleep(time.Minute)
			if !heardNow(a) || !heardNow(b) {
				t.Error("no ring after the outage")
			}
			if f.count() != 1 {
				t.Errorf("%d notifications, want the one that waited", f.count())
			}
			if s := log.String(); strings.Count(s, "works again") != 3 {
				t.Errorf("the end of the outage:\n%s", s)
			}
		})
	})
	t.Run("what is rung just before a stop is sent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, a, _, _, stop := setup(t)
			a.Ring("serial") // the next one has to wait a little
			synctest.Wait()
			a.Ring("parallel")
			stop()
			synctest.Wait()
			if f.count() != 2 || !strings.Contains(f.sent[1], "parallel") {
				t.Errorf("sent %q, want both lanes", f.sent)
			}
		})
	})
	t.Run("a payload of another version rings", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, a, _, _, stop := setup(t)
			defer stop()
			if err := f.Notify(t.Context(), "", "?"); err != nil {
				t.Fatal(err)
			}
			if !heardNow(a) {
				t.Error("not heard")
			}
		})
	})
}

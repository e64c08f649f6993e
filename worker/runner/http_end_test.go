package runner

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/proctest"
)

// C80: a target that accepts and never answers costs its time limit, no more.
func TestHTTPNoAnswer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
	}{
		{"nothing at all", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"a header, never a body", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{"a body without an end", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "still working\n")
				_ = http.NewResponseController(w).Flush()
				<-time.After(10 * time.Millisecond)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			job := httpJob(newTarget(t, tt.handler))
			job.Timeout = 300 * time.Millisecond
			end := NewHTTP(HTTPOptions{}).Run(t.Context(), job, Unfenced)
			wantOutcome(t, end, lanegate.TimedOut)
			if !strings.Contains(end.Error, "timed out, outcome unknown") || !strings.Contains(end.Error, "300ms") {
				t.Errorf("error %q", end.Error)
			}
			if end.Duration > proctest.Patience/2 {
				t.Errorf("took %v", end.Duration)
			}
		})
	}
	t.Run("the default limit", func(t *testing.T) {
		job := httpJob(newTarget(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		job.Timeout = 0
		end := NewHTTP(HTTPOptions{Timeout: 200 * time.Millisecond}).Run(t.Context(), job, Unfenced)
		wantOutcome(t, end, lanegate.TimedOut)
	})
}

func TestHTTPStops(t *testing.T) {
	for _, tt := range []struct {
		cause error
		want  lanegate.Outcome
	}{{ErrCancelled, lanegate.Cancelled}, {ErrDrained, lanegate.Interrupted}, {ErrFenced, lanegate.Interrupted}} {
		t.Run(tt.cause.Error(), func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			url := newTarget(t, func(_ http.ResponseWriter, r *http.Request) {
				cancel(tt.cause)
				<-r.Context().Done()
			})
			end := NewHTTP(HTTPOptions{}).Run(ctx, httpJob(url), Unfenced)
			wantOutcome(t, end, tt.want)
			if !strings.Contains(end.Error, "may still be working") {
				t.Errorf("error %q", end.Error)
			}
		})
	}
	t.Run("when the lease runs out", func(t *testing.T) {
		url := newTarget(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})
		clock := NewLeaseClock()
		clock.Renew(Boottime() + 200*time.Millisecond)
		end := NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob(url), clock)
		wantOutcome(t, end, lanegate.Interrupted)
		if !strings.Contains(end.Error, "lease") {
			t.Errorf("error %q", end.Error)
		}
	})
}

// freeAddress returns an address on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// watchDials returns a channel that gets a token after a dial has failed.
func watchDials(h *HTTP) (*HTTP, <-chan struct{}) {
	failed := make(chan struct{}, 1)
	dial := h.transport.DialContext
	h.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			select {
			case failed <- struct{}{}:
			default:
			}
		}
		return c, err
	}
	return h, failed
}

func TestHTTPConnectionNeverEstablished(t *testing.T) {
	t.Run("refused for good", func(t *testing.T) {
		end := NewHTTP(HTTPOptions{ConnectFor: 300 * time.Millisecond}).Run(t.Context(), httpJob("http://"+freeAddress(t)), Unfenced)
		wantOutcome(t, end, lanegate.Failed)
		if end.Permanent || !strings.Contains(end.Error, "nothing was sent") || !strings.Contains(end.Error, "refused") {
			t.Errorf("permanent %v, error %q", end.Permanent, end.Error)
		}
	})
	t.Run("the server comes up", func(t *testing.T) {
		address := freeAddress(t)
		h, refused := watchDials(NewHTTP(HTTPOptions{}))
		done := make(chan lanegate.Ending, 1)
		go func() { done <- h.Run(t.Context(), httpJob("http://"+address), Unfenced) }()
		<-refused
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: answer(200, nil, "true")}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		wantOutcome(t, <-done, lanegate.Succeeded)
	})
	t.Run("an untrusted certificate", func(t *testing.T) {
		srv := httptest.NewUnstartedServer(answer(200, nil, ""))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		defer srv.Close()
		end := NewHTTP(HTTPOptions{ConnectFor: proctest.Patience}).Run(t.Context(), httpJob(srv.URL), Unfenced)
		wantOutcome(t, end, lanegate.Failed)
		if !strings.Contains(end.Error, "certificate") || end.Duration > proctest.Patience/2 {
			t.Errorf("error %q after %v", end.Error, end.Duration)
		}
	})
	t.Run("cancelled while trying", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		h, refused := watchDials(NewHTTP(HTTPOptions{ConnectFor: proctest.Patience}))
		go func() {
			<-refused
			cancel(ErrCancelled)
		}()
		end := h.Run(ctx, httpJob("http://"+freeAddress(t)), Unfenced)
		wantOutcome(t, end, lanegate.Cancelled)
		if !strings.Contains(end.Error, "nothing was sent") {
			t.Errorf("error %q", end.Error)
		}
	})
	t.Run("a request that can't be built", func(t *testing.T) {
		end := NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob("http://[broken"), Unfenced)
		wantOutcome(t, end, lanegate.Failed)
		if !end.Permanent {
			t.Error("not permanent")
		}
	})
}

// Once a connection stood, the request may have arrived: exactly one is sent, and
// without a complete answer the run is lost.
func TestHTTPAnswerMissing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		answer func(c net.Conn)
	}{
		{"closed without an answer", 0, func(net.Conn) {}},
		{"reset", 0, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }},
		{"half a header", 0, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-") }},
		{"no HTTP", 0, func(c net.Conn) { _, _ = io.WriteString(c, "220 smtp ready\r\n\r\n") }},
		{"half a body", 200, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"rows\":")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var connections atomic.Int32
			go func() {
				for {
					c, err := l.Accept()
					if errors.Is(err, net.ErrClosed) {
						return
					}
					connections.Add(1)
					buf := make([]byte, 64<<10)
					_, _ = c.Read(buf)
					tt.answer(c)
					c.Close()
				}
			}()
			end := NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob("http://"+l.Addr().String()), Unfenced)
			wantOutcome(t, end, lanegate.Lost)
			if n := connections.Load(); n != 1 {
				t.Errorf("%d connections, want 1: the request was repeated", n)
			}
			if end.Status != tt.status || end.Result != nil || !strings.Contains(end.Error, "outcome is unknown") {
				t.Errorf("status %d, result %q, error %q", end.Status, end.Result, end.Error)
			}
		})
	}
}

package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate/api"
	"github.com/lanegate/lanegate/worker"
)

// Long polls must not hold up a stop; other requests must not be cut off by it.
func TestEndWaits(t *testing.T) {
	a := &App{stopping: make(chan struct{})}
	arrived := make(chan struct{})
	finish := make(chan struct{})
	h := a.endWaits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-r.Context().Done(): // the API tells a stop from a client that left by the cause
			if !errors.Is(context.Cause(r.Context()), api.ErrStopping) {
				t.Errorf("cut off with cause %v", context.Cause(r.Context()))
			}
		case <-finish:
			io.WriteString(w, "done")
		}
	}))
	serve := func(path string) <-chan *httptest.ResponseRecorder {
		out := make(chan *httptest.ResponseRecorder, 1)
		rec := httptest.NewRecorder()
		go func() {
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
			out <- rec
		}()
		<-arrived
		return out
	}
	poll, other := serve("/jobs/x/wait?timeout=5m"), serve("/jobs/x")
	close(a.stopping)
	if rec := <-poll; rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") != "5" || !strings.Contains(rec.Body.String(), `"code":"draining"`) {
		t.Errorf("the poll got %d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	close(finish)
	if rec := <-other; rec.Code != http.StatusOK || rec.Body.String() != "done" {
		t.Errorf("the other request got %d %s", rec.Code, rec.Body)
	}
}

func TestClientAddress(t *testing.T) {
	for _, tt := range []struct {
		name, peer, forwarded, want string
	}{
		{"from a trusted proxy", "10.0.0.1:1234", "203.0.113.7", "203.0.113.7:0"},
		{"the last untrusted hop counts", "10.0.0.1:1234", "6.6.6.6, 203.0.113.7, 10.0.0.2", "203.0.113.7:0"},
		{"from anybody else the header is no news", "203.0.113.9:1234", "127.0.0.1", "203.0.113.9:1234"},
		{"rubbish", "10.0.0.1:1234", "who knows", "10.0.0.1:1234"},
		{"no header", "10.0.0.1:1234", "", "10.0.0.1:1234"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got string
			h := clientAddress(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr }),
				[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = tt.peer
			if tt.forwarded != "" {
				r.Header.Set("X-Forwarded-For", tt.forwarded)
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
			if got != tt.want {
				t.Errorf("remote = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPublicMetrics(t *testing.T) {
	h := publicMetrics(http.NotFoundHandler(), prometheus.NewRegistry())
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/jobs": http.StatusNotFound} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", path, rec.Code, want)
		}
	}
}

// The database is asked once for everybody who asks within two seconds, and a
// database that doesn't answer is one that doesn't take writes.
func TestHealthAsksRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var answer func(ctx context.Context) error
		a := &App{log: slog.New(slog.DiscardHandler), stopping: make(chan struct{}), worker: &worker.Worker{}}
		h := &health{app: a, ping: func(ctx context.Context) error { asked++; return answer(ctx) }}
		answer = func(context.Context) error { return nil }
		for range 10 {
			if p := h.parts(t.Context()); !p[0].OK {
				t.Fatalf("parts = %+v", p)
			}
		}
		if asked != 1 {
			t.Errorf("the database was asked %d times", asked)
		}
		<-time.After(pingAge + time.Millisecond)
		answer = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		if p := h.parts(t.Context()); p[0].OK || time.Since(began) != pingLimit {
			t.Errorf("parts = %+v after %v, want a failure after %v", p, time.Since(began), pingLimit)
		}
		<-time.After(pingAge + time.Millisecond)
		answer = func(context.Context) error { return errors.New("read-only") }
		if p := h.parts(t.Context()); p[0].OK || strings.Contains(p[0].Detail, "read-only") {
			t.Errorf("parts = %+v, want a failure without the private cause", p)
		}
		close(a.stopping)
		if p := h.parts(t.Context()); p[len(p)-1].OK || p[len(p)-1].Name != "stop" {
			t.Errorf("parts = %+v, want that of the stop", p)
		}
	})
}

// A loop goes on after failures, each round within its limit, until it is stopped.
func TestLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds []time.Duration
		began := time.Now()
		stop := runLoops(t.Context(), slog.New(slog.DiscardHandler), []loop{{
			name: "x", first: time.Minute, every: time.Hour, limit: time.Minute,
			once: func(ctx context.Context) error {
				rounds = append(rounds, time.Since(began))
				<-ctx.Done()
				return ctx.Err()
			},
		}})
		<-time.After(3 * time.Hour)
		stop()
		want := []time.Duration{time.Minute, 62 * time.Minute, 123 * time.Minute}
		if len(rounds) != len(want) || rounds[0] != want[0] || rounds[1] != want[1] || rounds[2] != want[2] {
			t.Errorf("rounds at %v, want %v", rounds, want)
		}
	})
}

func TestClosers(t *testing.T) {
	var order []string
	bad := errors.New("bad")
	c := closers{log: slog.New(slog.DiscardHandler)}
	for _, name := range []string{"first", "second", "third"} {
		c.push(name, func() error {
			order = append(order, name)
			if name == "third" {
				return bad
			}
			return nil
		})
	}
	err := c.close()
	if strings.Join(order, " ") != "third second first" || !errors.Is(err, bad) || !strings.Contains(err.Error(), "close third") {
		t.Errorf("order %q, err %v", order, err)
	}
	if err := c.close(); err != nil {
		t.Errorf("a second close = %v", err)
	}
}

func TestIsLoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.1.2.3:1": true, "[::1]:1": true, "localhost:1": true,
		":8080": false, "0.0.0.0:1": false, "[::]:1": false, "192.168.1.1:1": false, "example.com:1": false,
	} {
		if got := isLoopback(listen); got != want {
			t.Errorf("isLoopback(%q) = %v", listen, got)
		}
	}
}

// A refusal names what the holder of the database still runs.
func TestWithHolderRuns(t *testing.T) {
	const job = "0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d"
	proc := t.TempDir()
	for pid, p := range map[string]struct{ stat, cmdline string }{
		"7":  {"7 (a (b) c) S 42 7 7 0", "/proc/self/exe\x00guard\x00" + job + "\x00"},
		"8":  {"8 (x) S 42 8 8 0", "sh\x00-c\x00guard\x00"},
		"9":  {"9 (x) S 43 9 9 0", "/proc/self/exe\x00guard\x00" + job + "\x00"},
		"10": {"broken", ""},
		"me": {"", ""},
	} {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"stat": p.stat, "cmdline": p.cmdline} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := guardedJobs(proc, 42)
	if len(got) != 1 || got[0] != job {
		t.Errorf("jobs = %q, want the one of the guard under 42", got)
	}
	if text := runsText(got); text != "1 job: "+job {
		t.Errorf("one run is told as %q", text)
	}
	if text := runsText([]string{"a", "b"}); text != "2 jobs: a, b" {
		t.Errorf("two runs are told as %q", text)
	}
	if text := runsText(slices.Repeat([]string{"a"}, maxHolderRuns+1)); !strings.HasPrefix(text, "11 jobs: a, ") || !strings.HasSuffix(text, ", …") || strings.Count(text, "a") != maxHolderRuns {
		t.Errorf("eleven runs are told as %q", text)
	}
	if got := guardedJobs(filepath.Join(proc, "none"), 42); got != nil {
		t.Errorf("without /proc: %q", got)
	}
}

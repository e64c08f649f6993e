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

// heldRequest is a request whose handler waits, as a long poll does, until it is
// told to finish or its context ends.
type heldRequest struct {
	finish chan struct{}
	answer chan *httptest.ResponseRecorder
	cause  chan error // why its context ended, if it did
}

// hold sends a request through wrap and returns once its handler waits.
func hold(wrap func(http.Handler) http.Handler, path string) heldRequest {
	held := heldRequest{make(chan struct{}), make(chan *httptest.ResponseRecorder, 1), make(chan error, 1)}
	arrived := make(chan struct{})
	h := wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		select {
		case <-r.Context().Done(): // the API tells a stop from a client that left by the cause
			held.cause <- context.Cause(r.Context())
		case <-held.finish:
			io.WriteString(w, "done")
		}
	}))
	go func() {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		held.answer <- rec
	}()
	<-arrived
	return held
}

// Long polls must not hold up a stop; other requests must not be cut off by it,
// and polls that are asked for while it waits for running jobs last until then.
func TestEndWaits(t *testing.T) {
	a := &App{stopping: make(chan struct{}), leaving: make(chan struct{})}
	wantDraining := func(what string, held heldRequest) {
		t.Helper()
		rec := <-held.answer
		if cause := <-held.cause; !errors.Is(cause, api.ErrStopping) {
			t.Errorf("%s was cut off with cause %v", what, cause)
		}
		if rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") != "5" || !strings.Contains(rec.Body.String(), `"code":"draining"`) {
			t.Errorf("%s got %d %v %s", what, rec.Code, rec.Header(), rec.Body)
		}
	}
	wantDone := func(what string, rec *httptest.ResponseRecorder) {
		t.Helper()
		if rec.Code != http.StatusOK || rec.Body.String() != "done" {
			t.Errorf("%s got %d %s", what, rec.Code, rec.Body)
		}
	}
	poll, other := hold(a.endWaits, "/jobs/x/wait?timeout=5m"), hold(a.endWaits, "/jobs/x")
	close(a.stopping)
	wantDraining("the poll", poll)

	late, later := hold(a.endWaits, "/jobs/x/wait"), hold(a.endWaits, "/jobs/y/wait/")
	close(late.finish)
	wantDone("a poll of the drain whose job ends", <-late.answer)
	close(a.leaving)
	wantDraining("a poll at the drain's end", later)

	close(other.finish)
	wantDone("the other request", <-other.answer)
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
		a := &App{log: slog.New(slog.DiscardHandler), stopping: make(chan struct{}), worker: &worker.Worker{}, bell: newBell()}
		a.cfg.Store(&Config{})
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

package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
)

func httpJob(url string) Job {
	job := newJob()
	job.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: url, Mode: lanegate.ModeSync}
	job.Timeout = patience
	return job
}

func newTarget(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The server watches for the client's leaving only once the body is read.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		handler(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // targets abort on purpose
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

func answer(status int, header map[string]string, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestHTTPStatus(t *testing.T) {
	for _, tt := range []struct {
		status    int
		want      lanegate.Outcome
		permanent bool
	}{
		{200, lanegate.Succeeded, false}, {201, lanegate.Succeeded, false}, {202, lanegate.Succeeded, false}, {204, lanegate.Succeeded, false},
		{300, lanegate.Failed, false}, {304, lanegate.Failed, false},
		{400, lanegate.Failed, true}, {401, lanegate.Failed, true}, {404, lanegate.Failed, true}, {409, lanegate.Failed, true}, {422, lanegate.Failed, true},
		{408, lanegate.Failed, false}, {425, lanegate.Failed, false}, {429, lanegate.Failed, false},
		{500, lanegate.Failed, false}, {502, lanegate.Failed, false}, {503, lanegate.Failed, false}, {599, lanegate.Failed, false},
	} {
		t.Run(fmt.Sprint(tt.status), func(t *testing.T) {
			url := newTarget(t, answer(tt.status, nil, ""))
			end := NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob(url), Unfenced)
			wantOutcome(t, end, tt.want)
			if end.Permanent != tt.permanent || end.Status != tt.status {
				t.Errorf("permanent %v, status %d; want %v, %d", end.Permanent, end.Status, tt.permanent, tt.status)
			}
			if tt.want == lanegate.Failed && !strings.Contains(end.Error, fmt.Sprint(tt.status)) {
				t.Errorf("error %q does not name the status", end.Error)
			}
		})
	}
}

// C66: a stated Retry-After is kept, within a cap; values that are none are ignored.
func TestHTTPRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, tt := range []struct {
		value    string
		want     time.Duration
		deferred bool
	}{
		{"90", 90 * time.Second, true},
		{" 90 ", 90 * time.Second, true},
		{"0", 0, true},
		{"172800", 24 * time.Hour, true},
		{date(2 * time.Minute), 2 * time.Minute, true},
		{date(72 * time.Hour), 24 * time.Hour, true},
		{date(-time.Minute), 0, false},
		{date(0), 0, false},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 0, false},
		{"-1", 0, false},
		{"+5", 0, false},
		{"1.5", 0, false},
		{"1e3", 0, false},
		{"soon", 0, false},
		{"99999999999999999999", 0, false},
		{"9223372036854775807", 0, false},
		{"", 0, false},
	} {
		for _, status := range []int{429, 503} {
			t.Run(fmt.Sprintf("%d %q", status, tt.value), func(t *testing.T) {
				header := http.Header{"Retry-After": {tt.value}}
				for _, clock := range []struct {
					name string
					now  time.Time
				}{{"by our clock", now}, {"by the target's, ours being wrong", now.Add(-5 * time.Hour)}} {
					if clock.now != now {
						header.Set("Date", date(0))
					}
					end := judge(status, header, clock.now)
					want := lanegate.Failed
					if tt.deferred {
						want = lanegate.Deferred
					}
					if end.Outcome != want || end.DeferFor != tt.want || end.Permanent {
						t.Errorf("%s: %s for %v, permanent %v; want %s for %v", clock.name, end.Outcome, end.DeferFor, end.Permanent, want, tt.want)
					}
				}
			})
		}
	}
	t.Run("of another status it says nothing", func(t *testing.T) {
		if end := judge(500, http.Header{"Retry-After": {"90"}}, now); end.Outcome != lanegate.Failed {
			t.Errorf("outcome %s", end.Outcome)
		}
	})
}

// C81: a redirect is never followed, whatever its kind, and never a success.
func TestHTTPRedirectsFail(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var others atomic.Int32
			url := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/jobs" {
					others.Add(1)
					return
				}
				w.Header().Set("Location", "/elsewhere?token=hunter2")
				w.WriteHeader(status)
			})
			end := NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob(url+"/jobs"), Unfenced)
			wantOutcome(t, end, lanegate.Failed)
			if others.Load() != 0 {
				t.Error("the redirect was followed")
			}
			if end.Permanent || !strings.Contains(end.Error, "/elsewhere was not followed") || strings.Contains(end.Error, "hunter2") {
				t.Errorf("permanent %v, error %q", end.Permanent, end.Error)
			}
		})
	}
}

func TestHTTPRequest(t *testing.T) {
	type seen struct {
		method, body string
		header       http.Header
		length       int64
	}
	got := make(chan seen, 1)
	url := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- seen{r.Method, string(body), r.Header, r.ContentLength}
		_, _ = io.WriteString(w, `{"rows": 3889108265204450030}`+"\n")
	})
	job := httpJob(url)
	job.Payload = []byte("{\"b\":1e400, \"a\":\"\\u0000\"}")
	job.LogicalDate = "2026-11-30\r\nX-Evil: 1"
	job.Run.Headers = map[string]string{"Authorization": "Bearer x", "idempotency-key": "fixed", "lanegate-job-id": "other", "Content-Type": "application/vnd.pos+json"}
	end := NewHTTP(HTTPOptions{}).Run(t.Context(), job, Unfenced)
	wantOutcome(t, end, lanegate.Succeeded)
	if string(end.Result) != `{"rows": 3889108265204450030}` {
		t.Errorf("result %q", end.Result)
	}
	r := <-got
	if r.method != "POST" || r.body != string(job.Payload) || r.length != int64(len(job.Payload)) {
		t.Errorf("got %s %q of length %d", r.method, r.body, r.length)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/vnd.pos+json", "Authorization": "Bearer x", "Idempotency-Key": job.ID, "Lanegate-Job-Id": job.ID,
		"Lanegate-Attempt": "3", "Lanegate-Class": "pos-sales", "Lanegate-Logical-Date": "2026-11-30X-Evil: 1", "Lanegate-Verification": "",
	} {
		if values := r.header.Values(name); (want == "" && len(values) > 0) || (want != "" && (len(values) != 1 || values[0] != want)) {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
}

func TestHTTPResponseIsBounded(t *testing.T) {
	const size = 3 << 20
	url := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		for range size / 1024 {
			_, _ = w.Write([]byte(strings.Repeat("x", 1024)))
		}
	})
	t.Run("what is read is counted", func(t *testing.T) {
		end := NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob(url), Unfenced)
		wantOutcome(t, end, lanegate.Succeeded)
		if end.Output.Bytes != size || len(end.Output.Head) != DefaultKeep || len(end.Output.Tail) != DefaultKeep || end.Result != nil {
			t.Errorf("%d bytes, head %d, tail %d, result %d", end.Output.Bytes, len(end.Output.Head), len(end.Output.Tail), len(end.Result))
		}
	})
	t.Run("beyond the limit the response is cut", func(t *testing.T) {
		end := NewHTTP(HTTPOptions{Drain: 1 << 20}).Run(t.Context(), httpJob(url), Unfenced)
		wantOutcome(t, end, lanegate.Succeeded)
		if end.Output.Bytes != 1<<20 || end.Status != 200 {
			t.Errorf("%d bytes read, status %d", end.Output.Bytes, end.Status)
		}
	})
}

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
			if end.Duration > patience/2 {
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
		done := make(chan lanegate.Ending, 1)
		go func() { done <- NewHTTP(HTTPOptions{}).Run(t.Context(), httpJob("http://"+address), Unfenced) }()
		<-time.After(150 * time.Millisecond) // let it be refused at least once
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
		end := NewHTTP(HTTPOptions{ConnectFor: patience}).Run(t.Context(), httpJob(srv.URL), Unfenced)
		wantOutcome(t, end, lanegate.Failed)
		if !strings.Contains(end.Error, "certificate") || end.Duration > patience/2 {
			t.Errorf("error %q after %v", end.Error, end.Duration)
		}
	})
	t.Run("cancelled while trying", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(ErrCancelled) })
		end := NewHTTP(HTTPOptions{ConnectFor: patience}).Run(ctx, httpJob("http://"+freeAddress(t)), Unfenced)
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

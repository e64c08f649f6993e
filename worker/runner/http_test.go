package runner

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/proctest"
)

func httpJob(url string) Job {
	job := newJob()
	job.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: url, Mode: lanegate.ModeSync}
	job.Timeout = proctest.Patience
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

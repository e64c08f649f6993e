package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// brokenStore is a store whose submissions do what the test says.
type brokenStore struct {
	service.Store
	submit func(ctx context.Context, j service.NewJob) (service.Submitted, error)
}

func (s *brokenStore) Submit(ctx context.Context, j service.NewJob) (service.Submitted, error) {
	return s.submit(ctx, j)
}

func submitFails(err error) func(*setup) {
	return func(s *setup) {
		s.wrap = func(st service.Store) service.Store {
			return &brokenStore{st, func(context.Context, service.NewJob) (service.Submitted, error) { return service.Submitted{}, err }}
		}
	}
}

// curl runs the real program, as cron does, and returns what it prints and its exit code.
func curl(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	program, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("curl is needed: apt-get install -y curl")
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"-sS", "--noproxy", "*", "--max-time", "10"}, args...)...)
	text, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(text), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text), 0
}

func TestClientCurl(t *testing.T) {
	g := newGateway(t)
	g.class("pos-sales")
	jobs := g.listen().URL + "/jobs"
	file := filepath.Join(t.TempDir(), "job.json")
	g.must(os.WriteFile(file, []byte("{\n  \"class\": \"pos-sales\",\n  \"payload\": {\"n\": 899999999999999990}\n}\n"), 0o600))

	t.Run("the recipe", func(t *testing.T) {
		recipe := []string{"--fail-with-body", "--json", "@" + file, "-H", "Idempotency-Key: nightly-2026-11-29T00:00Z", "--retry", "8", "--retry-max-time", "900", "--retry-connrefused", "-w", " %{http_code}", jobs}
		out, code := curl(t, recipe...)
		if code != 0 || !strings.HasSuffix(out, " 201") || !strings.Contains(out, "899999999999999990") {
			t.Fatalf("exit %d: %s", code, out)
		}
		if out, code := curl(t, recipe...); code != 0 || !strings.HasSuffix(out, " 200") {
			t.Errorf("the repeat: exit %d: %s", code, out)
		}
	})
	t.Run("without --fail the reason is in cron's mail", func(t *testing.T) {
		out, code := curl(t, "--json", `{"class":"pos-sale"}`, jobs)
		if code != 0 || !strings.Contains(out, `"unknown_class"`) || !strings.Contains(out, "nothing was enqueued") {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	t.Run("with --fail the exit code tells", func(t *testing.T) {
		if out, code := curl(t, "--fail", "--json", `{"class":"pos-sale"}`, jobs); code != 22 {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	t.Run("with --fail-with-body both", func(t *testing.T) {
		if out, code := curl(t, "--fail-with-body", "--json", `{"class":`, jobs); code != 22 || !strings.Contains(out, "Nothing was enqueued") {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	t.Run("-d alone sends a form and is told which flag to use", func(t *testing.T) {
		if out, _ := curl(t, "-d", `{"class":"pos-sales"}`, jobs); !strings.Contains(out, "--json") || !strings.Contains(out, "Nothing was enqueued") {
			t.Errorf("%s", out)
		}
	})
	t.Run("too large is refused before it is sent", func(t *testing.T) {
		big := filepath.Join(t.TempDir(), "big.json")
		g.must(os.WriteFile(big, []byte(`{"class":"pos-sales","payload":"`+strings.Repeat("x", 2<<20)+`"}`), 0o600))
		out, code := curl(t, "--fail-with-body", "--json", "@"+big, "-w", " %{http_code} %{size_upload}", jobs)
		if code != 22 || !strings.HasSuffix(out, " 413 0") || !strings.Contains(out, "1056768 bytes") {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	t.Run("chunked from a pipe", func(t *testing.T) {
		out, code := curl(t, "--fail-with-body", "-H", "Content-Type: application/json", "-H", "Transfer-Encoding: chunked", "--data-binary", "@"+file, "-w", " %{http_code}", jobs)
		if code != 0 || !strings.HasSuffix(out, " 201") {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	t.Run("a redirect is never followed", func(t *testing.T) {
		out, code := curl(t, "-L", "--fail-with-body", "--json", `{"class":"pos-sales"}`, "-w", " %{http_code} %{num_redirects}", jobs+"/")
		if code != 0 || !strings.HasSuffix(out, " 201 0") {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	if n := g.count(); n != 3 {
		t.Errorf("%d jobs, want 3", n)
	}
}

// curl --retry honours Retry-After and gets through when the gateway is well again.
func TestClientCurlRetries(t *testing.T) {
	calls := 0
	g := newGateway(t, func(s *setup) {
		s.wrap = func(st service.Store) service.Store {
			return &brokenStore{st, func(ctx context.Context, j service.NewJob) (service.Submitted, error) {
				if calls++; calls == 1 {
					return service.Submitted{}, lanegate.ErrOverloaded
				}
				return st.Submit(ctx, j)
			}}
		}
	})
	g.class("c")
	out, code := curl(t, "--fail-with-body", "--retry", "2", "--json", `{"class":"c","idempotency_key":"k"}`, g.listen().URL+"/jobs")
	if code != 0 || calls != 2 || g.count() != 1 {
		t.Errorf("exit %d after %d calls, %d jobs: %s", code, calls, g.count(), out)
	}
}

func TestClientAirflow(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	t.Run("a dict as data is a form", func(t *testing.T) {
		form := url.Values{"class": {"c"}, "payload": {"{'n': 1}"}}.Encode()
		p := g.do("POST", "/jobs", form, "Content-Type", "application/x-www-form-urlencoded").refused(415, "form_body")
		if !strings.Contains(p.Detail, "Content-Type: application/json") {
			t.Errorf("%q does not say what to send", p.Detail)
		}
	})
	t.Run("a cleared run keeps its run id", func(t *testing.T) {
		const body = `{"class": "c", "payload": {"ds": "2026-11-29"}, "logical_date": "2026-11-29", "if_failed": "retry", "idempotency_key": "dag__task__scheduled__2026-11-29T00:00:00+00:00"}`
		headers := []string{"User-Agent", "python-requests/2.32", "Accept", "*/*"}
		first := g.submit(body, headers...)
		g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Failed, Error: "exit 1"})
		cleared := into[job](g.do("POST", "/jobs", body, headers...).want(200))
		if cleared.ID != first.ID || cleared.State != "queued" {
			t.Errorf("the cleared run: %+v", cleared)
		}
	})
}

func TestClientEventBridge(t *testing.T) {
	headers := func(auth ...string) []string {
		return append([]string{
			"Content-Type", "application/json; charset=utf-8", "User-Agent", "Amazon/EventBridge/ApiDestinations",
			"Range", "bytes=0-1048575", "Accept-Encoding", "gzip,deflate", "Connection", "close",
		}, auth...)
	}
	t.Run("Range is ignored", func(t *testing.T) {
		g := newGateway(t)
		g.class("c")
		began := time.Now()
		a := g.do("POST", "/jobs", `{"class":"c","idempotency_key":"event-1"}`, headers()...).want(201)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %v, the client waits 5 s", took)
		}
		if a.header.Get("Content-Range") != "" || a.header.Get("Content-Encoding") != "" {
			t.Errorf("headers %v", a.header)
		}
		g.do("POST", "/jobs", `{"class":"c","idempotency_key":"event-1"}`, headers()...).want(200)
	})
	t.Run("a batch is an array", func(t *testing.T) {
		g := newGateway(t)
		g.class("c")
		p := g.do("POST", "/jobs", `[{"class":"c"},{"class":"c"}]`, headers()...).refused(422, "array_body")
		if !strings.Contains(p.Detail, "MaxBatchSize") || !strings.Contains(p.Detail, "/jobs/batch") || g.count() != 0 {
			t.Errorf("%d jobs, %q", g.count(), p.Detail)
		}
	})
	t.Run("401 asks for a new token", func(t *testing.T) {
		tok, _ := token("eb", RoleSubmit)
		g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{tok} })
		a := g.do("POST", "/jobs", `{"class":"c"}`, headers("Authorization", "Bearer old")...)
		a.refused(401, "token_unknown")
		if a.header.Get("WWW-Authenticate") != `Bearer realm="lanegate"` {
			t.Errorf("headers %v", a.header)
		}
	})
	for name, tt := range map[string]struct {
		err    error
		status int
		code   string
		after  int
	}{
		"overloaded":             {lanegate.ErrOverloaded, 429, "overloaded", 1},
		"the database is away":   {fmt.Errorf("submit: %w", lanegate.ErrUnavailable), 503, "store_unavailable", 5},
		"commit not confirmed":   {lanegate.ErrOutcomeUnknown, 503, "outcome_unknown", 2},
		"out of time":            {fmt.Errorf("submit: %w", context.DeadlineExceeded), 503, "store_unavailable", 5},
		"a very long Retry":      {&lanegate.Error{Kind: lanegate.KindLimited, Code: "x", Message: "x", RetryAfter: time.Hour}, 429, "x", 300},
		"a part of a second":     {&lanegate.Error{Kind: lanegate.KindUnavailable, Code: "x", Message: "x", RetryAfter: time.Millisecond}, 503, "x", 1},
		"no Retry-After":         {&lanegate.Error{Kind: lanegate.KindUnavailable, Code: "x", Message: "x"}, 503, "x", 1},
		"a negative Retry-After": {&lanegate.Error{Kind: lanegate.KindLimited, Code: "x", Message: "x", RetryAfter: -time.Minute}, 429, "x", 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, submitFails(tt.err))
			a := g.do("POST", "/jobs", `{"class":"c"}`, headers()...)
			a.refused(tt.status, tt.code)
			if got := a.header.Get("Retry-After"); got != strconv.Itoa(tt.after) {
				t.Errorf("Retry-After %q, want %d", got, tt.after)
			}
		})
	}
}

func TestClientCloudScheduler(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	headers := []string{
		"Content-Type", "application/octet-stream", "User-Agent", "Google-Cloud-Scheduler", "X-CloudScheduler", "true",
		"X-CloudScheduler-JobName", "nightly", "X-CloudScheduler-ScheduleTime", "2026-11-29T00:00:00Z",
	}
	body := func(at string) string { return `{"class":"c","idempotency_key":"nightly ` + at + `"}` }
	first := g.submit(body("2026-11-29T00:00:00Z"), headers...)
	if dup := into[job](g.do("POST", "/jobs", body("2026-11-29T00:00:00Z"), headers...).want(200)); dup.ID != first.ID {
		t.Error("a duplicate delivery made a second job")
	}
	// The headers can be forged and are no key: without one, each call is a job.
	if a, b := g.submit(`{"class":"c"}`, headers...), g.submit(`{"class":"c"}`, headers...); a.ID == b.ID {
		t.Error("the schedule time was taken as a key")
	}
	// "Run now" may carry the next run's time: that run is then a replay, and says so.
	g.submit(body("2026-11-30T00:00:00Z"), headers...)
	if a := g.do("POST", "/jobs", body("2026-11-30T00:00:00Z"), headers...).want(200); a.header.Get("Idempotency-Replayed") != "true" {
		t.Error("a replay does not say that it is one")
	}
}

func TestClientJenkins(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	g.do("POST", "/jobs", `{"class":"c"}`, "Content-Type", "").want(201)
}

// C81: Jenkins and Airflow take a redirect for success, curl -L turns it into GET.
func TestNoRedirects(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	server := g.listen()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]int{
		"/jobs": 201, "/jobs/": 201, "//jobs": 201, "/jobs//": 201, "/./jobs": 404, "/x/../jobs": 404, "/JOBS": 404, "/jobs/batch/": 422, "/": 405, "": 405, "/docs": 405, "/docs/": 405,
	} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, strings.NewReader(`{"class":"c"}`))
		g.must(err)
		req.URL.Opaque = "//" + req.URL.Host + path // as it stands, not cleaned
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		g.must(err)
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("POST %s: %d, want %d", path, res.StatusCode, want)
		}
	}
	for _, path := range []string{"/docs/", "/lanes/", "/openapi.json/", "/jobs/?limit=1"} {
		res, err := client.Get(server.URL + path)
		g.must(err)
		_ = res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("GET %s: %d", path, res.StatusCode)
		}
	}
}

// Rundeck's and Jenkins' steps are GET unless told otherwise; that must be red.
func TestClientRundeckGetByMistake(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	id := g.submit(`{"class":"c"}`).ID
	a := g.do("GET", "/jobs/"+id+"/cancel", "")
	a.refused(405, "method_not_allowed")
	if a.header.Get("Allow") != "POST" {
		t.Errorf("Allow %q", a.header.Get("Allow"))
	}
	// The list of jobs would look like success.
	if p := g.do("GET", "/jobs", `{"class":"c"}`).refused(400, "body_on_get"); !strings.Contains(p.Detail, "POST it to /jobs") {
		t.Errorf("%q does not name the right call", p.Detail)
	}
	g.do("GET", "/jobs/batch", "").refused(405, "method_not_allowed")
	if n := g.count(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
}

func TestClientRestTemplateChunked(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	server := g.listen()
	conn := dial(t, server)
	fmt.Fprint(conn, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
	for _, part := range []string{`{"class":`, `"c","payload":`, `1e400}`} {
		fmt.Fprintf(conn, "%x\r\n%s\r\n", len(part), part)
	}
	fmt.Fprint(conn, "0\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	g.must(err)
	defer res.Body.Close()
	var j job
	g.must(json.NewDecoder(res.Body).Decode(&j))
	if res.StatusCode != 201 || string(j.Payload) != "1e400" {
		t.Errorf("%d %+v", res.StatusCode, j)
	}
}

// Logic Apps polls the Location of a 202 until it stops: so there is none.
func TestClientLogicApps(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	a := g.do("POST", "/jobs", `{"class":"c"}`, "x-ms-workflow-run-id", "08585").want(201)
	poll := func(want string) job {
		t.Helper()
		j := into[job](g.do("GET", a.header.Get("Location"), "").want(200))
		if j.State != want {
			t.Fatalf("state %q, want %q", j.State, want)
		}
		return j
	}
	poll("queued")
	grant := g.admit(g.worker())[0]
	if j := poll("running"); j.Route.Lane != "serial" || j.Attempts != 1 {
		t.Errorf("running: %+v", j)
	}
	g.end(grant, lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`{"rows":3889108265204450030}`), Duration: time.Second})
	if j := poll("succeeded"); string(j.Result) != `{"rows":3889108265204450030}` {
		t.Errorf("result %s", j.Result)
	}
}

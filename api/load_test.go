package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// C82: slow headers, slow bodies, and bodies that are refused unread.
func TestSlowReadersAndBodiesAreCutOff(t *testing.T) {
	tok, auth := token("cron", RoleSubmit)
	g := newGateway(t, func(s *setup) {
		s.api.Tokens = []Token{tok}
		s.api.BodyTimeout = 300 * time.Millisecond
	})
	g.class("c")
	server := httptest.NewUnstartedServer(g.router)
	server.Config = NewServer(g.router, g.api.log)
	server.Config.ReadHeaderTimeout = 300 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	heads := map[string]string{
		"header":              "POST /jobs HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		"body":                "POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: " + auth[1] + "\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"chunked body":        "POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: " + auth[1] + "\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
		"body without token":  "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"body of a bad route": "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
		"body of a bad type":  "POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: " + auth[1] + "\r\nContent-Type: text/xml\r\nContent-Length: 1000\r\n\r\n<",
	}
	type cut struct {
		name string
		err  error
	}
	const each = 20
	cuts := make(chan cut, each*len(heads))
	for name, head := range heads {
		for range each {
			conn := dial(t, server)
			go func() {
				_, err := io.WriteString(conn, head)
				if err == nil {
					_, err = io.Copy(io.Discard, conn) // ends when the server closes
				}
				cuts <- cut{name, err}
			}()
		}
	}
	began := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/jobs", strings.NewReader(`{"class":"c"}`))
	g.must(err)
	req.Header.Set("Authorization", auth[1])
	req.Header.Set("Content-Type", "application/json")
	res, err := server.Client().Do(req)
	g.must(err)
	_ = res.Body.Close()
	if took := time.Since(began); res.StatusCode != 201 || took > time.Second {
		t.Errorf("a normal POST meanwhile: %d after %v", res.StatusCode, took)
	}
	for range each * len(heads) {
		c := <-cuts
		if errors.Is(c.err, os.ErrDeadlineExceeded) {
			t.Errorf("a slow %s held its connection for 10 s", c.name)
		}
	}
	if n := g.count(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
}

// A body that came in time does not leave its deadline behind: neither for the
// handler nor for the next request on the connection.
func TestBodyDeadlineEndsWithTheBody(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.api.BodyTimeout = 200 * time.Millisecond })
	g.class("c")
	server := g.listen()
	conn := dial(t, server)
	r := bufio.NewReader(conn)
	read := func() int {
		t.Helper()
		res, err := http.ReadResponse(r, nil)
		g.must(err)
		_, err = io.Copy(io.Discard, res.Body)
		g.must(err)
		return res.StatusCode
	}
	id := g.submit(`{"class":"c"}`).ID
	for range 2 {
		fmt.Fprint(conn, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"class\":\"c\"}")
		if got := read(); got != 201 {
			t.Fatalf("POST: %d", got)
		}
		fmt.Fprint(conn, "GET /jobs/"+id+"/wait?timeout=500ms HTTP/1.1\r\nHost: x\r\n\r\n")
		if got := read(); got != 200 {
			t.Fatalf("wait: %d", got)
		}
	}
}

// C49, C50: everybody's cron says 00:00.
func TestThousandAtOnce(t *testing.T) {
	g := newGateway(t)
	for i := range 40 {
		g.class(fmt.Sprintf("class-%d", i))
	}
	began := time.Now()
	answers := together(g, 1000, func(i int) answer {
		return g.do("POST", "/jobs", fmt.Sprintf(`{"class":"class-%d","payload":%d,"idempotency_key":"k%d"}`, i%40, i, i))
	})
	took := time.Since(began)
	accepted := map[string]bool{}
	unknown := 0
	for i, a := range answers {
		switch a.status {
		case 201:
			j := into[job](a)
			accepted[j.ID] = true
			if string(j.Payload) != strconv.Itoa(i) {
				t.Errorf("answer %d is another job's: %s", i, a.body)
			}
		case 429, 503:
			if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 || n > 300 {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
			if a.problem().Code == lanegate.ErrOutcomeUnknown.Code {
				unknown++
			}
		default:
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	t.Logf("%d of 1000 accepted, all answered within %v", len(accepted), took)
	stored, _, err := g.store.Jobs(t.Context(), service.JobFilter{Limit: 2000})
	g.must(err)
	for _, j := range stored {
		if !accepted[j.ID] {
			unknown-- // it was committed after its client had been told that nobody knows
		}
		delete(accepted, j.ID)
	}
	if len(accepted) > 0 {
		t.Errorf("accepted, but not in the store: %v", accepted)
	}
	if unknown < 0 {
		t.Errorf("%d jobs are in the store whose clients were told that they are not", -unknown)
	}
	// The others come again with their keys.
	for i, a := range answers {
		if a.status == 201 {
			continue
		}
		if again := g.do("POST", "/jobs", fmt.Sprintf(`{"class":"class-%d","payload":%d,"idempotency_key":"k%d"}`, i%40, i, i)); again.status != 201 && again.status != 200 {
			t.Errorf("the repeat: %d %s", again.status, again.body)
		}
	}
	if n := g.count(); n != 1000 {
		t.Errorf("%d jobs in the end, want 1000", n)
	}
}

// When all places for submissions are taken, more are shed at once and reads go on.
func TestSubmissionsAreShed(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	g := newGateway(t, func(s *setup) {
		s.api.Submits = 2
		s.wrap = func(st service.Store) service.Store {
			return &brokenStore{st, func(ctx context.Context, j service.NewJob) (service.Submitted, error) {
				entered <- struct{}{}
				<-leave
				return st.Submit(ctx, j)
			}}
		}
	})
	g.class("c")
	done := make(chan answer, 2)
	for range 2 {
		go func() { done <- g.do("POST", "/jobs", `{"class":"c"}`) }()
		<-entered
	}
	a := g.do("POST", "/jobs", `{"class":"c"}`)
	a.refused(429, "overloaded")
	g.do("POST", "/jobs/batch", `{"jobs":[{"class":"c"}]}`).refused(429, "overloaded")
	g.do("GET", "/jobs", "").want(200)
	g.do("GET", "/healthz", "").want(200)
	if text := string(g.do("GET", "/metrics", "").want(200).body); !strings.Contains(text, "lanegate_http_submissions_shed_total 2") {
		t.Error("shed submissions are not counted")
	}
	close(leave)
	for range 2 {
		if a := <-done; a.status != 201 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
}

// C78: a client that leaves has submitted all the same; its repeat is a replay.
func TestClientThatLeaves(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	server := g.listen()
	const body = `{"class":"c","idempotency_key":"k"}`
	conn := dial(t, server)
	fmt.Fprintf(conn, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	g.must(conn.(interface{ CloseWrite() error }).CloseWrite())
	eventually(t, "the job is there", func() bool { return g.count() == 1 })
	a := g.do("POST", "/jobs", body).want(200)
	if a.header.Get("Idempotency-Replayed") != "true" || g.count() != 1 {
		t.Errorf("%d jobs, repeat %s", g.count(), a.body)
	}
}

// Clients that give up on a long poll are no faults of the gateway.
func TestClientLeavesWait(t *testing.T) {
	g, _ := cutWait(t, nil)
	g.observed(499)
}

// A long poll that a stop of the gateway cuts off is answered, logged and counted
// as what it is.
func TestStopEndsWait(t *testing.T) {
	g, rec := cutWait(t, ErrStopping)
	if rec.Code != 503 || !strings.Contains(rec.Body.String(), `"draining"`) || rec.Header().Get("Retry-After") != "5" {
		t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	g.observed(503)
}

// cutWait ends a long poll's context with a cause.
func cutWait(t *testing.T, cause error) (*gateway, *httptest.ResponseRecorder) {
	t.Helper()
	g := newGateway(t)
	g.class("c")
	id := g.submit(`{"class":"c"}`).ID
	ctx, cut := context.WithCancelCause(t.Context())
	req := httptest.NewRequestWithContext(ctx, "GET", "/jobs/"+id+"/wait?timeout=5m", nil)
	rec := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.router.ServeHTTP(rec, req)
	}()
	cut(cause)
	<-done
	return g, rec
}

// observed checks the status that a long poll was logged and counted with.
func (g *gateway) observed(status int) {
	g.Helper()
	if log := g.log.String(); !strings.Contains(log, fmt.Sprintf("status=%d", status)) || strings.Contains(log, "level=ERROR") {
		g.Errorf("log: %s", log)
	}
	want := fmt.Sprintf(`lanegate_http_request_duration_seconds_count{method="GET",route="/jobs/{id}/wait",status="%dxx"} 1`, status/100)
	if body := string(g.do("GET", "/metrics", "").want(200).body); !strings.Contains(body, want) {
		g.Errorf("no %s in the metrics", want)
	}
}

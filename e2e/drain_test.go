package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A stop that waits for a running job keeps the API open: people see what it
// waits for and can cancel it. New work is refused in a way that clients repeat,
// and what was accepted before goes on in the next process (C21).
func TestDrainKeepsTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config(longConfig)
	g := w.start("--drain", "wait")
	long := w.submit("long", "")
	w.running(long.ID, 1)
	queued := w.submit("short", "")
	polled := w.poll(long.ID)

	g.signal(syscall.SIGTERM)
	w.eventually(10*time.Second, "/readyz says no", func() bool { return w.status("GET", "/readyz", "") == http.StatusServiceUnavailable })
	select {
	case status := <-polled:
		if status != http.StatusServiceUnavailable {
			t.Errorf("the poll under way got %d", status)
		}
	case <-time.After(5 * time.Second):
		t.Error("the poll under way holds on during the stop")
	}
	for path, body := range map[string]string{
		"/jobs": `{"class": "short"}`, "/jobs/batch": `{"jobs": [{"class": "short"}]}`,
		"/jobs/" + long.ID + "/retry": "", "/jobs/" + queued.ID + "/run-next": "",
	} {
		w.wantDraining(path, body)
	}
	for _, path := range []string{"/jobs?state=running", "/jobs/" + long.ID, "/lanes", "/livez", "/metrics"} {
		if status := w.status("GET", path, ""); status != http.StatusOK {
			t.Errorf("GET %s during the drain: %d", path, status)
		}
	}
	if j := w.job(queued.ID); j.State != "queued" {
		t.Errorf("a job was started during the drain: %s", j.State)
	}
	select {
	case <-g.done:
		t.Fatal("the gateway ended although its job still runs")
	default:
	}

	w.must("POST", "/jobs/"+long.ID+"/cancel", "", nil)
	select {
	case <-g.done:
		if g.err != nil {
			t.Errorf("the stop ended with %v", g.err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the gateway is still there after its last run was cancelled")
	}
	w.start()
	if j := w.job(long.ID); j.State != "cancelled" {
		t.Errorf("the cancelled job is %s", j.State)
	}
	if j := w.final(queued.ID, 20*time.Second); j.State != "succeeded" {
		t.Errorf("the job that waited ended as %s", j.State)
	}
	w.checkEvents(nil, 0)
}

// poll waits for a job's end in the background. It returns when the request is
// with the gateway: written, and others that were sent after it are answered.
func (w *world) poll(id string) <-chan int {
	w.t.Helper()
	answered := make(chan int, 1)
	written := make(chan struct{})
	wrote := sync.OnceFunc(func() { close(written) })
	ctx := httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { wrote() }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url("/jobs/"+id+"/wait?timeout=5m"), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		resp, err := client.Do(req)
		if err != nil {
			w.t.Errorf("the poll got no answer: %v", err)
			answered <- 0
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	<-written
	for range 5 {
		w.job(id)
	}
	return answered
}

func (w *world) status(method, path, body string) int {
	w.t.Helper()
	status, text, err := w.do(method, path, body)
	if err != nil {
		w.t.Errorf("%s %s: %v %s", method, path, err, text)
	}
	return status
}

// wantDraining posts and wants the refusal of a gateway that is stopping.
func (w *world) wantDraining(path, body string) {
	w.t.Helper()
	resp, err := client.Post(w.url(path), "application/json", strings.NewReader(body))
	if err != nil {
		w.t.Errorf("POST %s during the drain: %v", path, err)
		return
	}
	defer resp.Body.Close()
	var p struct {
		Code string `json:"code"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		w.t.Errorf("POST %s during the drain: %v", path, err)
	}
	if resp.StatusCode != http.StatusServiceUnavailable || p.Code != "draining" || resp.Header.Get("Retry-After") == "" ||
		resp.Header.Get("Content-Type") != "application/problem+json" {
		w.t.Errorf("POST %s during the drain: %d %q %v", path, resp.StatusCode, p.Code, resp.Header)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeGateway accepts one kind of job; its state is what the test says.
type fakeGateway struct {
	mu      sync.Mutex
	bodies  []string // of POST /jobs, guarded by mu
	auth    []string // of all requests, guarded by mu
	refuse  []int    // statuses to answer before accepting, guarded by mu
	waits   []string // states that …/wait answers one after the other; the last one stays; guarded by mu
	problem string
}

func (g *fakeGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.auth = append(g.auth, r.Header.Get("Authorization"))
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/jobs":
		g.bodies = append(g.bodies, string(body))
		if len(g.refuse) > 0 {
			status := g.refuse[0]
			g.refuse = g.refuse[1:]
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(status)
			io.WriteString(w, g.problem)
			return
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"id":"j1","class":"x","state":"queued"}`)
	case strings.HasSuffix(r.URL.Path, "/wait"):
		state := g.waits[0]
		if len(g.waits) > 1 {
			g.waits = g.waits[1:]
		}
		fmt.Fprintf(w, `{"id":"j1","class":"x","state":%q,"reason":"exit code 7","blocked_by":"j0","result":{"n":3889108265204450030}}`, state)
	case strings.HasSuffix(r.URL.Path, "/output"):
		io.WriteString(w, "what the job printed\n")
	}
}

func newGateway(t *testing.T) (*fakeGateway, map[string]string) {
	t.Helper()
	g := &fakeGateway{waits: []string{"succeeded"}}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	return g, map[string]string{"LANEGATE_URL": s.URL}
}

// kong reads variables by itself; the test's map is put into the real environment.
func setenv(t *testing.T, env map[string]string) {
	t.Helper()
	for k, v := range env {
		t.Setenv(k, v)
	}
}

func TestSubmitSendsTheVeryBytes(t *testing.T) {
	g, env := newGateway(t)
	setenv(t, env)
	payload := `{"n": 3889108265204450030, "e":1e400, "s":"\ud834\udd1e", "b":1, "a":0.1000000000000000055}`
	file := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(file, []byte(payload+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runLine(t, "", env, "submit", "x", "--payload", payload).want(t, 0, "j1\n", "")
	runLine(t, "", env, "submit", "x", "--payload", "@"+file).want(t, 0, "j1\n", "")
	runLine(t, payload, env, "submit", "x", "--payload", "-", "--key", "k1", "--logical-date", "2026-11-28", "--run-at", "2026-11-29T02:00:00Z", "--retry-failed").want(t, 0, "j1\n", "")
	for i, body := range g.bodies {
		if !strings.Contains(body, payload) || !json.Valid([]byte(body)) {
			t.Errorf("body %d does not have the payload as given: %s", i, body)
		}
	}
	var last map[string]json.RawMessage
	if err := json.Unmarshal([]byte(g.bodies[2]), &last); err != nil {
		t.Fatal(err)
	}
	if string(last["idempotency_key"]) != `"k1"` || string(last["logical_date"]) != `"2026-11-28"` ||
		string(last["run_at"]) != `"2026-11-29T02:00:00Z"` || string(last["if_failed"]) != `"retry"` {
		t.Errorf("body = %v", last)
	}
}

func TestSubmitRetriesUnderOneKey(t *testing.T) {
	g, env := newGateway(t)
	setenv(t, env)
	g.refuse = []int{503, 429, 502}
	runLine(t, "", env, "submit", "x").want(t, 0, "j1\n", "status 429")
	keys := map[string]bool{}
	for _, body := range g.bodies {
		var b struct {
			Key string `json:"idempotency_key"`
		}
		if err := json.Unmarshal([]byte(body), &b); err != nil || b.Key == "" {
			t.Fatalf("body %s: %v", body, err)
		}
		keys[b.Key] = true
	}
	if len(g.bodies) != 4 || len(keys) != 1 {
		t.Errorf("%d requests under %d keys, want 4 under 1", len(g.bodies), len(keys))
	}
}

func TestSubmitExitCodes(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String()
	closed.Close()
	for _, tt := range []struct {
		name   string
		args   []string
		refuse []int
		waits  []string
		code   int
		out    string
		says   string
	}{
		{"succeeded", []string{"--wait"}, nil, []string{"queued", "running", "succeeded"}, 0, `{"n":3889108265204450030}`, "waiting for job j1"},
		{"failed, with its output", []string{"--wait"}, nil, []string{"failed"}, 1, "", "what the job printed"},
		{"failed, with the reason", []string{"--wait"}, nil, []string{"failed"}, 1, "", "job j1 failed: exit code 7"},
		{"cancelled", []string{"--wait"}, nil, []string{"cancelled"}, 3, "", "was cancelled"},
		{"skipped", []string{"--wait"}, nil, []string{"skipped"}, 3, "", "job j0 stood in its way"},
		{"refused", nil, []int{422}, nil, 2, "", "unknown_class: no such class\n  /class is wrong"},
		{"overloaded for too long", []string{"--retry-for", "0s"}, []int{503}, nil, 4, "", "answered 503"},
		{"nobody there", []string{"--retry-for", "0s", "--url", nobody}, nil, nil, 4, "", "may or may not have been accepted"},
		{"waited long enough", []string{"--wait", "--timeout", "1ns"}, nil, nil, 5, "", "it goes on"},
		{"payload is no JSON", []string{"--payload", "hello"}, nil, nil, 2, "", "not a JSON value"},
		{"payload file is missing", []string{"--payload", "@/nonexistent"}, nil, nil, 2, "", "no such file"},
		{"time is none", []string{"--run-at", "tomorrow"}, nil, nil, 2, "", "RFC 3339"},
		{"URL is none", []string{"--url", "localhost:8080"}, nil, nil, 2, "", "not an http or https URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, env := newGateway(t)
			setenv(t, env)
			g.refuse, g.problem = tt.refuse, `{"code":"unknown_class","detail":"no such class","fields":[{"pointer":"/class","detail":"is wrong"}]}`
			if tt.waits != nil {
				g.waits = tt.waits
			}
			runLine(t, "", env, append([]string{"submit", "x"}, tt.args...)...).want(t, tt.code, tt.out, tt.says)
		})
	}
}

func TestSubmitToken(t *testing.T) {
	g, env := newGateway(t)
	setenv(t, env)
	env["LANEGATE_TOKEN"] = "lg_variable"
	runLine(t, "", env, "submit", "x").want(t, 0, "j1", "")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("lg_file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runLine(t, "", env, "submit", "x", "--token-file", file).want(t, 0, "j1", "")
	if g.auth[0] != "Bearer lg_variable" || g.auth[1] != "Bearer lg_file" {
		t.Errorf("Authorization = %q", g.auth)
	}
	runLine(t, "", env, "submit", "x", "--token-file", file+".none").want(t, 2, "", "--token-file")
}

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		header string
		want   time.Duration
		ok     bool
	}{
		{"90", 90 * time.Second, true},
		{"0", 200 * time.Millisecond, true},
		{"-1", 0, false},
		{"rubbish", 0, false},
		{"999999", 0, false},
		{"", 0, false},
	} {
		got, ok := retryAfter(http.Header{"Retry-After": {tt.header}})
		if got != tt.want || ok != tt.ok {
			t.Errorf("%q: %v, %v; want %v, %v", tt.header, got, ok, tt.want, tt.ok)
		}
	}
}

func TestHealth(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, `{"path":"`+r.URL.Path+`"}`)
	}))
	t.Cleanup(s.Close)
	addr := strings.TrimPrefix(s.URL, "http://")
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	runLine(t, "", map[string]string{"LANEGATE_LISTEN": "0.0.0.0:" + port}, "health").want(t, 0, `{"path":"/healthz"}`, "")
	runLine(t, "", nil, "health", "--listen", addr).want(t, 0, "healthz", "")
	// A file that was edited badly since the start does not make the gateway ill.
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: "+addr+"\nnonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runLine(t, "", nil, "health", "--config", file).want(t, 0, "healthz", "")
	status = http.StatusServiceUnavailable
	runLine(t, "", nil, "health", "--url", s.URL).want(t, 1, "healthz", "Service Unavailable")
	s.Close()
	runLine(t, "", nil, "health", "--url", s.URL).want(t, 1, "", "does not answer")
}

func TestReachable(t *testing.T) {
	for listen, want := range map[string]string{
		"0.0.0.0:8080": "127.0.0.1:8080", ":8080": "127.0.0.1:8080", "[::]:80": "[::1]:80", "127.0.0.1:1": "127.0.0.1:1", "host:1": "host:1",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("reachable(%q) = %q, want %q", listen, got, want)
		}
	}
}

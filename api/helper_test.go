package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
)

// setup is what a test can choose about its gateway.
type setup struct {
	path     string
	wrap     func(service.Store) service.Store
	service  service.Options
	api      Options
	commands fakeCommands
	logger   *slog.Logger // instead of one that gateway.log collects
}

// gateway is the API over the real service and the real SQLite store.
type gateway struct {
	testing.TB
	store    *store.Store
	svc      *service.Service
	api      *API
	router   chi.Router
	registry *prometheus.Registry
	log      *logBuffer
	path     string
}

// fakeCommands is a catalogue: name → digest.
type fakeCommands map[string]string

func (c fakeCommands) Digest(name string) (string, bool) { d, ok := c[name]; return d, ok }
func (c fakeCommands) Digests() map[string]string        { return c }

// logBuffer collects the log; it may be written to from any goroutine.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newGateway(t testing.TB, edits ...func(*setup)) *gateway {
	t.Helper()
	s := setup{
		path: filepath.Join(t.TempDir(), "x.db"), wrap: func(s service.Store) service.Store { return s },
		commands: fakeCommands{"true": "digest-of-true"},
	}
	for _, edit := range edits {
		edit(&s)
	}
	g := &gateway{TB: t, registry: prometheus.NewRegistry(), log: &logBuffer{}, path: s.path}
	log := s.logger
	if log == nil {
		log = slog.New(slog.NewTextHandler(g.log, nil))
	}
	var err error
	if g.store, err = store.Open(t.Context(), store.Options{Path: s.path, Logger: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.store.Close() }) // a test may have closed it
	metrics := service.NewMetrics()
	s.service.Store, s.service.Doorbell, s.service.Commands = s.wrap(g.store), queue.NewLocal(), s.commands
	s.service.Log, s.service.Metrics = log, metrics
	g.svc = service.New(s.service)
	if err := metrics.Register(g.registry, g.svc); err != nil {
		t.Fatal(err)
	}
	s.api.Service, s.api.Log, s.api.Registry = g.svc, log, g.registry
	g.api = newAPI(s.api)
	g.router = g.api.router()
	return g
}

// answer is a response that was read to its end.
type answer struct {
	testing.TB
	status int
	header http.Header
	body   []byte
}

// do sends a request through the router and checks the answer against the
// specification. Headers are name, value pairs; a body gets Content-Type JSON
// unless one is given ("" means none).
func (g *gateway) do(method, target, body string, headers ...string) answer {
	g.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, target, r)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
		if headers[i] == "Content-Type" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return g.send(req, []byte(body))
}

func (g *gateway) send(req *http.Request, body []byte) answer {
	g.Helper()
	rec := httptest.NewRecorder()
	g.router.ServeHTTP(rec, req)
	a := answer{g.TB, rec.Code, rec.Result().Header, rec.Body.Bytes()}
	checkAnswer(g.TB, g.router, req, body, a)
	return a
}

// want stops the test unless the answer has the status.
func (a answer) want(status int) answer {
	a.Helper()
	if a.status != status {
		a.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// refused stops the test unless the answer is a problem with status and code.
func (a answer) refused(status int, code string) problem {
	a.Helper()
	p := a.want(status).problem()
	if p.Code != code || p.Status != status {
		a.Fatalf("code %q status %d, want %q %d: %s", p.Code, p.Status, code, status, a.body)
	}
	return p
}

func (a answer) problem() problem {
	a.Helper()
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		a.Fatalf("content type %q: %s", ct, a.body)
	}
	p := into[problem](a)
	if p.Code == "" || p.Detail == "" || p.Title == "" {
		a.Fatalf("not a whole problem document: %s", a.body)
	}
	return p
}

// into decodes a JSON answer.
func into[T any](a answer) T {
	a.Helper()
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		a.Fatalf("%v: %q", err, a.body)
	}
	return v
}

// job is what tests read of a job's answer.
type job struct {
	ID, State, Class, Reason, Client string
	IdempotencyKey                   string `json:"idempotency_key"`
	BlockedBy                        string `json:"blocked_by"`
	Payload                          json.RawMessage
	Result                           json.RawMessage
	Attempts, Failures               int
	Route                            *lanegate.Route
	WaitingOn                        []struct {
		Reason string
		Jobs   []string
		Until  *time.Time
	} `json:"waiting_on"`
	Ahead *struct {
		Count   int
		AtLeast bool `json:"at_least"`
		First   []string
	}
	CancelRequested bool `json:"cancel_requested"`
	Place           *struct {
		At      time.Time
		ID      string
		FirstAt *time.Time `json:"first_at"`
	}
	RunAt       *time.Time `json:"run_at"`
	LogicalDate string     `json:"logical_date"`
	Links       map[string]string
}

func (j job) reasons() string {
	var out []string
	for _, w := range j.WaitingOn {
		out = append(out, w.Reason)
	}
	return strings.Join(out, " ")
}

// class saves a class that runs the command "true" in serial, changed by edits.
// It goes past the API, so that tests can have promoted classes.
func (g *gateway) class(id string, edits ...func(*lanegate.Class)) lanegate.Class {
	g.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	c := lanegate.Class{
		ID: id, Lane: lanegate.LaneSerial, MaxInFlight: 1, ManagedBy: lanegate.ManagedByAPI,
		CommandDigest: "digest-of-true", CreatedAt: now, UpdatedAt: now,
	}
	c.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "true"}
	for _, edit := range edits {
		edit(&c)
	}
	c.ClassSpec = c.WithDefaults()
	c.Fingerprint = lanegate.Fingerprint(c.ClassSpec, c.CommandDigest)
	g.must(g.store.Change(g.Context(), func(tx service.ConfigTx) error { return tx.SaveClass(c) }))
	return c
}

func promoted(n int, units lanegate.Units) func(*lanegate.Class) {
	return func(c *lanegate.Class) { c.Lane, c.MaxInFlight, c.Units = lanegate.LaneParallel, n, units }
}

func (g *gateway) resource(name string, capacity int, pool bool) {
	g.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	r := lanegate.Resource{Name: name, Capacity: capacity, Pool: pool, ManagedBy: lanegate.ManagedByAPI, CreatedAt: now, UpdatedAt: now}
	g.must(g.store.Change(g.Context(), func(tx service.ConfigTx) error { return tx.SaveResource(r) }))
}

func (g *gateway) must(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

// submit posts a job that must be new.
func (g *gateway) submit(body string, headers ...string) job {
	g.Helper()
	return into[job](g.do("POST", "/jobs", body, headers...).want(http.StatusCreated))
}

func (g *gateway) job(id string) job {
	g.Helper()
	return into[job](g.do("GET", "/jobs/"+id, "").want(http.StatusOK))
}

// count is the number of jobs in the store.
func (g *gateway) count() int {
	g.Helper()
	jobs, _, err := g.store.Jobs(context.Background(), service.JobFilter{Limit: 100_000})
	g.must(err)
	return len(jobs)
}

// worker registers a live worker that serves all lanes and returns its id.
func (g *gateway) worker() string {
	g.Helper()
	id := "w-" + g.Name()
	g.must(g.svc.RegisterWorker(g.Context(), service.WorkerInfo{
		ID: id, Host: "h", PID: 1, Slots: 10, Commands: map[string]string{"true": "digest-of-true"},
	}))
	return id
}

// admit starts whatever may start.
func (g *gateway) admit(worker string) []service.Grant {
	g.Helper()
	res, err := g.svc.Admit(g.Context(), service.Ask{Worker: worker, Free: 10, SerialFree: true})
	g.must(err)
	return res.Grants
}

func (g *gateway) end(grant service.Grant, e lanegate.Ending) {
	g.Helper()
	_, err := g.svc.EndAttempt(g.Context(), grant.Attempt.Fence(), e)
	g.must(err)
}

// token makes a configured token and the header that sends it.
func token(name string, role Role, classes ...string) (Token, []string) {
	text, sum := NewToken()
	return Token{Name: name, Role: role, SHA256: sum, Classes: classes}, []string{"Authorization", "Bearer " + text}
}

// eventually polls a condition that another goroutine brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("%s: did not happen within 10s", what)
		case <-tick.C:
		}
	}
}

// listen serves the gateway on a port of its own.
func (g *gateway) listen(edits ...func(*http.Server)) *httptest.Server {
	g.Helper()
	s := httptest.NewUnstartedServer(g.router)
	s.Config = NewServer(g.router, slog.New(slog.DiscardHandler))
	for _, edit := range edits {
		edit(s.Config)
	}
	s.Start()
	g.Cleanup(s.Close)
	return s
}

// newRecorder serves a request as it is, without holding it against the specification.
func newRecorder(g *gateway, req *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	g.router.ServeHTTP(rec, req)
	return rec
}

func defaultTarget() *lanegate.ClassSpec {
	return &lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunExec, Command: "true"}}
}

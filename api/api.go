// Package api serves lanegate's HTTP API: it decodes and checks requests, calls
// the use cases in package service, and encodes answers. Every failure leaves as
// a problem document (RFC 9457) with a stable code; status codes are decided in
// one place, from the kind of the error.
//
//	@title			lanegate
//	@version		1
//	@description	HTTP job gateway: schedulers POST jobs, each job class's stored metadata picks the lane.
//	@license.name	Apache-2.0
//	@license.url	https://www.apache.org/licenses/LICENSE-2.0
//	@BasePath		/
//	@securityDefinitions.apikey	bearer
//	@in				header
//	@name			Authorization
package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate/service"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configure the API. Service, Log and Registry are required.
type Options struct {
	Service *service.Service
	Log     *slog.Logger
	// Access gets a line for each request, at its end. Default: Log.
	Access   *slog.Logger
	Registry *prometheus.Registry
	// Tokens that are accepted. Without any, every request is taken as the client
	// "local" with role admin: the caller must then listen on loopback only.
	Tokens []Token
	// MaxPayload bounds one job (default 1 MiB), MaxBatch one batch (default 16 MiB), in bytes.
	MaxPayload int64
	MaxBatch   int64
	MaxDepth   int
	// Parts reports the parts of the process for readiness and health.
	Parts   func(ctx context.Context) []Part
	Version string
	// Draining says whether a stop has begun: new jobs are then refused with 503
	// "draining", everything else is answered as ever. Default: never.
	Draining func() bool
	// Submits bounds how many submissions are worked on at once; more get 429
	// while the reads keep their connections. Default 2048: the thousand of a full
	// hour go in together, as they share commits.
	Submits int
	// BodyTimeout is how long a client may take to send a body (default 30 s),
	// WriteTimeout how long to fetch the answer once it is there (default 30 s).
	BodyTimeout, WriteTimeout time.Duration
}

// Part is one part's health.
type Part struct {
	Name   string `json:"name" example:"database"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// Time limits of handlers. Waiting endpoints have their own.
const (
	handlerTimeout = 5 * time.Second
	submitTimeout  = 3 * time.Second
)

// API is the state shared by the handlers.
type API struct {
	o       Options
	svc     *service.Service
	log     *slog.Logger
	submits chan struct{} // one token per submission in work
	views   chan struct{} // one token per look beside a submission, see asItStands
	bodies  budget        // bytes of all bodies in memory
	metrics *metrics
	keys    keyring
	pages   pages
}

// route is one line of the route table.
type route struct {
	method  string
	pattern string
	role    Role
	handle  func(http.ResponseWriter, *http.Request) error
}

// routes is the whole surface. Every route names the role it needs; a test
// compares the table with the served tree and with the specification.
func (a *API) routes() []route {
	return []route{
		{"POST", "/jobs", RoleSubmit, a.unlessDraining(a.submit)},
		{"POST", "/jobs/batch", RoleSubmit, a.unlessDraining(a.submitBatch)},
		{"GET", "/jobs", RoleSubmit, a.listJobs},
		{"GET", "/jobs/{id}", RoleSubmit, a.getJob},
		{"GET", "/jobs/{id}/attempts", RoleSubmit, a.listAttempts},
		{"GET", "/jobs/{id}/output", RoleSubmit, a.getOutput},
		{"GET", "/jobs/{id}/wait", RoleSubmit, a.waitJob},
		{"POST", "/jobs/{id}/attempts/{n}/heartbeat", RoleAttempt, a.heartbeatAttempt},
		{"POST", "/jobs/{id}/attempts/{n}/complete", RoleAttempt, a.completeAttempt},
		{"POST", "/jobs/{id}/cancel", RoleOperate, a.cancelJob},
		{"POST", "/jobs/{id}/retry", RoleOperate, a.unlessDraining(a.retryJob)},
		{"POST", "/jobs/{id}/run-next", RoleOperate, a.unlessDraining(a.runNext)},
		{"POST", "/jobs/hand-over", RoleAdmin, a.handOver},
		{"POST", "/jobs/hand-over/confirm", RoleAdmin, a.confirmHandOver},
		{"POST", "/jobs/hand-over/undo", RoleAdmin, a.undoHandOver},

		{"POST", "/grants", RoleAgent, a.unlessDraining(a.grants)},
		{"POST", "/grants/heartbeat", RoleAgent, a.beatGrants},
		{"POST", "/grants/leave", RoleAgent, a.leaveGrants},

		{"GET", "/job-classes", RoleView, a.listClasses},
		{"POST", "/job-classes", RoleAdmin, a.createClass},
		{"GET", "/job-classes/{id}", RoleView, a.getClass},
		{"PUT", "/job-classes/{id}", RoleAdmin, a.putClass},
		{"PATCH", "/job-classes/{id}", RoleAdmin, a.patchClass},
		{"DELETE", "/job-classes/{id}", RoleAdmin, a.deleteClass},
		{"POST", "/job-classes/{id}/pause", RoleOperate, a.pauseClass},
		{"POST", "/job-classes/{id}/resume", RoleOperate, a.resumeClass},
		{"GET", "/job-classes/{id}/history", RoleView, a.classHistory},
		{"GET", "/job-classes/{id}/stats", RoleView, a.classStats},
		{"GET", "/job-classes/{id}/proofs", RoleView, a.classProofs},
		{"POST", "/job-classes/{id}/phrases", RoleOperate, a.tryPhrases},
		{"PATCH", "/job-classes/{id}/promote", RoleAdmin, a.promoteClass},
		{"POST", "/job-classes/{id}/promote", RoleAdmin, a.promoteClassPost},
		{"PATCH", "/job-classes/{id}/demote", RoleOperate, a.demoteClass},
		{"POST", "/job-classes/{id}/demote", RoleOperate, a.demoteClassPost},
		{"POST", "/job-classes/{id}/verification-runs", RoleAdmin, a.verifyClass},

		{"GET", "/verification-runs", RoleView, a.listVerifications},
		{"POST", "/verification-runs", RoleAdmin, a.createVerification},
		{"GET", "/verification-runs/{id}", RoleView, a.getVerification},
		{"POST", "/verification-runs/{id}/abort", RoleOperate, a.abortVerification},

		{"GET", "/lanes", RoleView, a.listLanes},
		{"GET", "/lanes/{name}", RoleView, a.getLane},
		{"PUT", "/lanes/{name}", RoleAdmin, a.putLane},
		{"DELETE", "/lanes/{name}", RoleAdmin, a.deleteLane},
		{"POST", "/lanes/{name}/pause", RoleOperate, a.pauseLane},
		{"POST", "/lanes/{name}/resume", RoleOperate, a.resumeLane},

		{"GET", "/resources", RoleView, a.listResources},
		{"GET", "/resources/{name}", RoleView, a.getResource},
		{"PUT", "/resources/{name}", RoleAdmin, a.putResource},
		{"DELETE", "/resources/{name}", RoleAdmin, a.deleteResource},

		{"GET", "/advice", RoleView, a.getAdvice},
		{"POST", "/run-log", RoleAdmin, a.importRunLog},
		{"GET", "/freshness", RoleView, a.getFreshness},

		{"GET", "/livez", RolePublic, a.livez},
		{"GET", "/readyz", RolePublic, a.readyz},
		{"GET", "/healthz", RolePublic, a.healthz},
		{"GET", "/metrics", RoleView, a.serveMetrics},
		{"GET", "/", RolePublic, a.index},
		{"GET", "/openapi.json", RolePublic, a.spec},
		{"GET", "/docs", RolePublic, a.docs},
		{"GET", "/docs/{file}", RolePublic, a.docsFile},
	}
}

// New returns the API as a handler. It panics on missing parts, which is a wiring mistake.
func New(o Options) http.Handler { return newAPI(o).router() }

func newAPI(o Options) *API {
	if o.Service == nil || o.Log == nil || o.Registry == nil {
		panic("api: New: Service, Log and Registry are required")
	}
	if o.Access == nil {
		o.Access = o.Log
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = service.DefaultMaxPayload
	}
	if o.MaxBatch == 0 {
		o.MaxBatch = 16 << 20
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = service.DefaultMaxDepth
	}
	if o.Submits == 0 {
		o.Submits = 2048
	}
	if o.BodyTimeout == 0 {
		o.BodyTimeout = bodyTimeout
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = writeTimeout
	}
	if o.Draining == nil {
		o.Draining = func() bool { return false }
	}
	if o.Parts == nil {
		o.Parts = func(context.Context) []Part { return nil }
	}
	return &API{
		o: o, svc: o.Service, log: o.Log, submits: make(chan struct{}, o.Submits), views: make(chan struct{}, maxViews),
		bodies:  budget{max: max(maxBodies, 2*o.MaxBatch)},
		metrics: newMetrics(o.Registry), keys: newKeyring(o.Tokens), pages: newPages(),
	}
}

func (a *API) router() chi.Router {
	r := chi.NewRouter()
	known := methodsOf(a.routes())
	notAllowed := a.wrap(route{role: RolePublic, handle: known.notAllowed(r)})
	r.Use(a.observe, a.recoverPanics, tolerantPath, known.literal(notAllowed))
	r.NotFound(a.wrap(route{role: RolePublic, handle: func(http.ResponseWriter, *http.Request) error { return errNoRoute }}))
	r.MethodNotAllowed(notAllowed)
	for _, rt := range a.routes() {
		h := a.wrap(rt)
		r.Method(rt.method, rt.pattern, h)
		if rt.method == http.MethodGet {
			r.Method(http.MethodHead, rt.pattern, h)
		}
	}
	return r
}

// Server time limits. Those of bodies and answers are set for each request, as
// long polls take longer than others.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 90 * time.Second // longer than load balancers keep a connection
)

// NewServer returns a server for h with the limits that keep slow clients from
// holding it: header 10 s, body 30 s, idle 90 s, and a bit over 5 min for the
// answer, which is what GET /jobs/{id}/wait may take.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

package api

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-json-experiment/json"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var (
	errNoRoute = &lanegate.Error{
		Kind: lanegate.KindNotFound, Code: "no_such_route",
		Message: "there is nothing at this path; GET /docs lists what there is.",
	}
	errInternal = &lanegate.Error{
		Kind: lanegate.KindInternal, Code: "internal",
		Message: "an internal fault; it is in the gateway's log under this request id.",
	}
	// A scheduler whose method was left at GET would see the list of jobs as success.
	errGetBody = &lanegate.Error{
		Kind: lanegate.KindBadRequest, Code: "body_on_get",
		Message: "a GET takes no body; to submit a job, POST it to /jobs. Nothing was done.",
	}
	// ErrStopping answers a request that a stop of the gateway cut off. Whoever
	// cuts a request off gives it as the cause with which its context ends: a
	// context that ends with any other cause means that the client has left.
	ErrStopping = &lanegate.Error{
		Kind: lanegate.KindUnavailable, Code: "draining", RetryAfter: 5 * time.Second,
		Message: "this gateway is stopping; what was accepted goes on as its state says. Ask again.",
	}
)

// clientLeft says whether a request's context ended because its client left.
func clientLeft(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrStopping)
}

// problem is the body of every failure (RFC 9457), with lanegate's own members.
type problem struct {
	Type   string                `json:"type" example:"about:blank"`
	Title  string                `json:"title" example:"Unprocessable Entity"`
	Status int                   `json:"status" example:"422"`
	Code   string                `json:"code" example:"unknown_class"`
	Detail string                `json:"detail"`
	Fields []lanegate.FieldError `json:"fields,omitempty"`
	// Details carries numbers that go with the code, e.g. a lane's width before and after.
	Details   map[string]any `json:"details,omitempty"`
	RequestID string         `json:"request_id,omitempty"`
}

// statusOf maps the kind of an error to its status code; nothing else does.
func statusOf(k lanegate.Kind) int {
	switch k {
	case lanegate.KindBadRequest:
		return http.StatusBadRequest
	case lanegate.KindInvalid:
		return http.StatusUnprocessableEntity
	case lanegate.KindTooLarge:
		return http.StatusRequestEntityTooLarge
	case lanegate.KindMediaType:
		return http.StatusUnsupportedMediaType
	case lanegate.KindUnauthorized:
		return http.StatusUnauthorized
	case lanegate.KindForbidden:
		return http.StatusForbidden
	case lanegate.KindNotFound:
		return http.StatusNotFound
	case lanegate.KindConflict:
		return http.StatusConflict
	case lanegate.KindLimited:
		return http.StatusTooManyRequests
	case lanegate.KindUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// statusError carries a status that no kind of error has (405, 408).
type statusError struct {
	err    *lanegate.Error
	status int
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// wrap adapts a handler: it checks the caller's role, bounds the time and turns
// an error into a problem document.
func (a *API) wrap(rt route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := a.authorize(r, rt)
		if err == nil {
			err = sameOrigin(r)
		}
		if err == nil && rt.role != RolePublic && r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			err = errGetBody
		}
		if err == nil {
			err = rt.handle(w, r)
		}
		if err != nil {
			a.fail(w, r, err)
		}
	}
}

// timed bounds a handler's work; what runs out of time is 503 and may be repeated.
func timed(r *http.Request, d time.Duration) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), d)
	return r.WithContext(ctx), cancel
}

// fail writes the problem document for err and logs what the client can't mend.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*lanegate.Error](err)
	switch {
	case ok:
	case errors.Is(err, context.DeadlineExceeded):
		e = lanegate.ErrUnavailable.Because(err)
	case errors.Is(err, context.Canceled): // the client has left, or we are stopping
		e = ErrStopping.Because(err)
	default:
		e = errInternal.Because(err)
	}
	status := statusOf(e.Kind)
	if s, ok := errors.AsType[*statusError](err); ok {
		status = s.status
	}
	if status >= 500 && e.Code != ErrStopping.Code {
		a.log.ErrorContext(r.Context(), "request failed", "request", requestIDOf(r), "method", r.Method, "path", r.URL.Path, "code", e.Code, "err", err)
	}
	message := e.Message
	if e.Kind == lanegate.KindInternal {
		message = errInternal.Message
	}
	if !submits(r) { // the readers of bodies are shared and speak of submissions
		message = strings.ReplaceAll(message, "othing was enqueued", "othing was changed")
	}
	if e.Code != codeSlow && e.Code != codeCutOff { // nothing more comes
		a.linger(w, r)
	}
	writeProblem(w, status, problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Code: e.Code, Detail: message,
		Fields: e.Fields, Details: e.Details, RequestID: requestIDOf(r),
	}, e.RetryAfter)
}

// submits says whether a request asks for jobs to be enqueued.
func submits(r *http.Request) bool {
	path := strings.TrimSuffix(r.URL.Path, "/")
	return r.Method == http.MethodPost && (path == "/jobs" || path == "/jobs/batch")
}

func writeProblem(w http.ResponseWriter, status int, p problem, retryAfter time.Duration) {
	h := w.Header()
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="lanegate"`)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		seconds := int(math.Ceil(retryAfter.Seconds()))
		h.Set("Retry-After", strconv.Itoa(min(max(seconds, 1), 300))) // seconds: the form every client reads
	}
	if status == http.StatusRequestEntityTooLarge || status == http.StatusRequestTimeout {
		h.Set("Connection", "close") // the rest of the body is not read
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	text, err := json.Marshal(p, encodeOptions)
	if err != nil { // Details that can't be encoded
		p.Details = nil
		text, _ = json.Marshal(p, encodeOptions)
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // an error means that the client has left
}

// tolerantPath makes /jobs/ and //jobs the same as /jobs. It never redirects: a
// client that follows one turns its POST into a GET.
func tolerantPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chi.RouteContext(r.Context()).RoutePath = plainPath(r)
		next.ServeHTTP(w, r)
	})
}

func plainPath(r *http.Request) string {
	path := r.URL.Path
	if n := len(path); n > 0 && path[0] == '/' && (n == 1 || path[n-1] != '/') && !strings.Contains(path, "//") {
		return path
	}
	return "/" + strings.Join(strings.FieldsFunc(path, func(c rune) bool { return c == '/' }), "/")
}

// setDeadlines bounds the reading of the body, also of one that no handler asks
// for, and the writing of the answer; work is how long the handler may take.
// Without them a client that sends or takes a byte now and then would hold a
// goroutine for ever.
func (a *API) setDeadlines(w http.ResponseWriter, r *http.Request, work time.Duration) {
	rc, now := http.NewResponseController(w), time.Now()
	if r.ContentLength != 0 {
		_ = rc.SetReadDeadline(now.Add(a.o.BodyTimeout)) // a recorder in a test knows no deadlines
	}
	_ = rc.SetWriteDeadline(now.Add(a.o.BodyTimeout + work + a.o.WriteTimeout))
}

// call is what is known of a request while it is served; it is its goroutine's own.
type call struct {
	id     string
	caller caller // once authorize has let it in
	held   int64  // bytes that its body has taken from the budget; observe gives them back
}

type callKey struct{}

// callOf finds the call of a request's context; outside the router there is none,
// and what is told to the one that is returned is lost.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{caller: caller{Role: RolePublic}}
}

func requestIDOf(r *http.Request) string { return callOf(r.Context()).id }

// recoverPanics answers 500 without detail and logs the stack.
func (a *API) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // net/http's own way to cut a connection
			}
			a.log.ErrorContext(r.Context(), "panic in a handler", "request", requestIDOf(r), "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			writeProblem(w, http.StatusInternalServerError, problem{
				Type: "about:blank", Title: http.StatusText(http.StatusInternalServerError), Status: http.StatusInternalServerError,
				Code: errInternal.Code, Detail: errInternal.Message, RequestID: requestIDOf(r),
			}, 0)
		}()
		next.ServeHTTP(w, r)
	})
}

// observe gives each request an id of ours, and counts and logs it once, at its end.
// A client's own id is not trusted as one, it could repeat or forge log lines.
func (a *API) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		c := &call{id: service.NewID(), caller: caller{Role: RolePublic}}
		w.Header()["X-Request-Id"] = []string{c.id}
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		a.setDeadlines(ww, r, handlerTimeout)
		defer func() {
			a.bodies.give(c.held)
			status := ww.Status()
			if status == 0 {
				status = http.StatusOK
			}
			if status == http.StatusServiceUnavailable && clientLeft(r.Context()) {
				status = statusClientLeft
			}
			took := time.Since(began)
			pattern := patternOf(r)
			a.metrics.request(pattern, r.Method, status, took)
			level := slog.LevelInfo
			if quiet(pattern) {
				level = slog.LevelDebug
			}
			a.o.Access.LogAttrs(r.Context(), level, "request", slog.String("method", r.Method), slog.String("path", r.URL.Path),
				slog.Int("status", status), slog.Int("bytes", ww.BytesWritten()), slog.String("took", took.Round(time.Microsecond).String()),
				slog.String("remote", r.RemoteAddr), slog.String("request", c.id))
		}()
		next.ServeHTTP(ww, r)
	})
}

// statusClientLeft is logged and counted, as nginx does, for requests whose
// client did not wait for the answer: they say nothing about the gateway.
const statusClientLeft = 499

// patternOf is the route's pattern: the only form of a path that may label a metric.
func patternOf(r *http.Request) string {
	if rc := chi.RouteContext(r.Context()); rc != nil && rc.RoutePattern() != "" && !strings.Contains(rc.RoutePattern(), "*") {
		return rc.RoutePattern()
	}
	return "other"
}

func quiet(pattern string) bool {
	switch pattern {
	case "/livez", "/readyz", "/healthz", "/metrics":
		return true
	}
	return false
}

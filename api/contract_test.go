package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/openapi"
)

// specification is the committed document, closed: an answer with a field that
// it does not name is a fault.
var specification = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Document())
	if err != nil {
		return nil, err
	}
	doc.Servers = nil
	for _, ref := range doc.Components.Schemas {
		closeSchema(ref.Value)
	}
	return doc, nil
})

// closeSchema forbids fields that a schema does not name. Objects that name none
// hold free data: a payload, a result, evidence.
func closeSchema(s *openapi3.Schema) {
	if s == nil || len(s.Properties) == 0 {
		return
	}
	closed := false
	s.AdditionalProperties = openapi3.AdditionalProperties{Has: &closed}
	for _, p := range s.Properties {
		if p.Ref == "" {
			closeSchema(p.Value)
		}
	}
}

// checkAnswer holds an answer against the specification, and an accepted JSON
// request too. Left out: what has no operation (404, 405) and HEAD.
func checkAnswer(t testing.TB, served chi.Router, req *http.Request, body []byte, a answer) {
	t.Helper()
	doc, err := specification()
	if err != nil {
		t.Fatal(err)
	}
	rc := chi.NewRouteContext()
	if req.Method == http.MethodHead || a.status == http.StatusMethodNotAllowed || !served.Match(rc, req.Method, strings.TrimSuffix(req.URL.Path, "/")) {
		return
	}
	item := doc.Paths.Find(rc.RoutePattern())
	if item == nil || item.GetOperation(req.Method) == nil {
		t.Fatalf("%s %s is not in the specification", req.Method, rc.RoutePattern())
	}
	params := map[string]string{}
	for i, key := range rc.URLParams.Keys {
		params[key] = rc.URLParams.Values[i]
	}
	again := req.Clone(context.Background())
	again.Body = io.NopCloser(bytes.NewReader(body))
	in := &openapi3filter.RequestValidationInput{
		Request: again, PathParams: params,
		Route:   &routers.Route{Spec: doc, Path: rc.RoutePattern(), PathItem: item, Method: req.Method, Operation: item.GetOperation(req.Method)},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	perItem := rc.RoutePattern() == "/jobs/batch" // a 200 may hold refusals
	if a.status < 300 && !perItem && (len(body) == 0 || req.Header.Get("Content-Type") == "application/json") {
		if err := openapi3filter.ValidateRequest(t.Context(), in); err != nil {
			t.Errorf("%s %s was accepted, but does not fit the specification: %v\n%.500s", req.Method, req.URL, err, body)
		}
	}
	isJSON := strings.HasSuffix(a.header.Get("Content-Type"), "json")
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: !isJSON},
	})
	if err != nil {
		t.Errorf("the answer %d to %s %s does not fit the specification: %v\n%.1000s", a.status, req.Method, req.URL, err, a.body)
	}
}

func TestRoutesHaveARole(t *testing.T) {
	roles := append([]Role{RolePublic, RoleAttempt}, Roles...)
	seen := map[string]bool{}
	for _, rt := range (&API{}).routes() {
		if !slices.Contains(roles, rt.role) {
			t.Errorf("%s %s has the role %q, which does not exist", rt.method, rt.pattern, rt.role)
		}
		if key := rt.method + " " + rt.pattern; seen[key] {
			t.Errorf("%s is in the table twice", key)
		} else {
			seen[key] = true
		}
	}
}

func TestServedRoutesAreTheSpecified(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Document())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Errorf("the specification is not valid: %v", err)
	}
	specified := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			specified[method+" "+path] = true
		}
	}
	served := map[string]bool{}
	err = chi.Walk(newGateway(t).router, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method == http.MethodHead { // mirrors GET
			return nil
		}
		served[method+" "+pattern] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for route := range served {
		if !specified[route] {
			t.Errorf("%s is served, but not specified: comment its handler, then go generate ./openapi", route)
		}
	}
	for route := range specified {
		if !served[route] {
			t.Errorf("%s is specified, but not served", route)
		}
	}
	if len(served) < 30 {
		t.Errorf("only %d routes were found", len(served))
	}
}

func TestOperationsAreDescribed(t *testing.T) {
	doc, err := specification()
	if err != nil {
		t.Fatal(err)
	}
	role := map[string]Role{}
	for _, rt := range (&API{}).routes() {
		role[rt.method+" "+rt.pattern] = rt.role
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			name := method + " " + path
			if op.OperationID == "" || ids[op.OperationID] || op.Summary == "" || len(op.Tags) != 1 {
				t.Errorf("%s: id %q, summary %q, tags %v", name, op.OperationID, op.Summary, op.Tags)
			}
			ids[op.OperationID] = true
			secured := op.Security != nil && len(*op.Security) > 0
			if public := role[name] == RolePublic; secured == public {
				t.Errorf("%s: role %s, but secured %v in the specification", name, role[name], secured)
			}
			for _, status := range []string{"401", "403"} {
				if (op.Responses.Value(status) != nil) != secured {
					t.Errorf("%s: secured %v, but %s is documented: %v", name, secured, status, !secured)
				}
			}
		}
	}
}

func TestHeadMirrorsGet(t *testing.T) {
	g := newGateway(t)
	for _, path := range []string{"/livez", "/jobs", "/lanes/serial", "/openapi.json", "/docs"} {
		get, head := g.do("GET", path, ""), g.do("HEAD", path, "")
		if head.status != http.StatusOK || head.header.Get("Content-Type") != get.header.Get("Content-Type") {
			t.Errorf("HEAD %s: %d %s", path, head.status, head.header.Get("Content-Type"))
		}
	}
	// Over the wire a HEAD has no body.
	res, err := http.Head(g.listen().URL + "/jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || len(text) > 0 {
		t.Errorf("HEAD has a body: %q, %v", text, err)
	}
}

// series counts the exposed time series and lints their names.
func (g *gateway) series() int {
	g.Helper()
	families, err := g.registry.Gather()
	g.must(err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	g.must(err)
	for _, p := range problems {
		g.Errorf("metric %s: %s", p.Metric, p.Text)
	}
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// C86: series must not grow with what clients invent.
func TestMetricSeriesDoNotGrow(t *testing.T) {
	g := newGateway(t)
	g.class("known")
	noise := func(i int) {
		g.submit(`{"class":"known"}`)
		g.do("POST", "/jobs", fmt.Sprintf(`{"class":"invented-%d"}`, i)).refused(422, "unknown_class")
		g.do("GET", fmt.Sprintf("/no/such/path-%d", i), "").refused(404, "no_such_route")
		g.do("GET", fmt.Sprintf("/job-classes/invented-%d", i), "").refused(404, "class_not_found")
		g.do("GET", "/jobs/"+lanegateID(i), "").refused(404, "job_not_found")
		g.do(fmt.Sprintf("METHOD%d", i), "/jobs", "").refused(405, "method_not_allowed")
		g.do("POST", fmt.Sprintf("/jobs/%s/nothing", lanegateID(i)), "").refused(404, "no_such_route")
	}
	noise(0)
	before := g.series()
	for i := range 100 {
		noise(i + 1)
	}
	if after := g.series(); after != before {
		t.Errorf("%d series after the noise, %d before", after, before)
	}
	text := string(g.do("GET", "/metrics", "").want(200).body)
	for _, want := range []string{
		`lanegate_jobs_submitted_total{class="known"} 101`, `lanegate_lane_queued{lane="serial"}`,
		`lanegate_http_request_duration_seconds_count{method="POST",route="/jobs",status="2xx"} 101`, `route="other"`, `method="other"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if strings.Contains(text, "invented") || strings.Contains(text, lanegateID(7)) {
		t.Error("a name that a client invented is a label")
	}
}

func lanegateID(i int) string { return fmt.Sprintf("0193779e-66ac-7c2b-8f4e-%012x", i) }

func TestUnknownPathsAndMethods(t *testing.T) {
	g := newGateway(t)
	for _, tt := range []struct{ method, path, allow string }{
		{"DELETE", "/jobs", "GET, HEAD, POST"},
		{"GET", "/jobs/" + lanegateID(1) + "/cancel", "POST"},
		{"PUT", "/", "GET, HEAD"},
		{"POST", "/lanes/", "GET, HEAD"},
		{"OPTIONS", "/resources/db", "GET, HEAD, PUT, DELETE"},
		{"BREW", "/job-classes/x", "GET, HEAD, PUT, PATCH, DELETE"},
	} {
		a := g.do(tt.method, tt.path, "")
		p := a.refused(405, "method_not_allowed")
		if got := a.header.Get("Allow"); got != tt.allow {
			t.Errorf("%s %s: Allow %q, want %q", tt.method, tt.path, got, tt.allow)
		}
		if !strings.Contains(p.Detail, tt.allow) {
			t.Errorf("%s %s: %q does not say what the path takes", tt.method, tt.path, p.Detail)
		}
	}
	g.do("GET", "/nothing/here", "").refused(404, "no_such_route")
}

// A path of the table refuses every method that the table does not give it, also
// where a parameter of another pattern would fit it.
func TestEveryPathRefusesOtherMethods(t *testing.T) {
	tok, _ := token("a", RoleAdmin)
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{tok} })
	takes := map[string][]string{}
	for _, rt := range g.api.routes() {
		takes[rt.pattern] = append(takes[rt.pattern], rt.method)
		if rt.method == "GET" {
			takes[rt.pattern] = append(takes[rt.pattern], "HEAD")
		}
	}
	fill := strings.NewReplacer("{id}", lanegateID(1), "{name}", "db", "{file}", "index.html")
	for pattern, methods := range takes {
		path := fill.Replace(pattern)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			for _, path := range []string{path, strings.ReplaceAll(path, "/", "//") + "/"} {
				a := g.do(method, path, "")
				if slices.Contains(methods, method) {
					if a.status == 405 {
						t.Errorf("%s %s: 405, but it is in the table", method, path)
					}
					continue
				}
				a.refused(405, "method_not_allowed")
				got, want := strings.Split(a.header.Get("Allow"), ", "), slices.Clone(methods)
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%s %s: Allow %v, want %v", method, path, got, want)
				}
			}
		}
	}
	if got := g.do("GET", "/jobs/batch", "").header.Get("Allow"); got != "POST" {
		t.Errorf("GET /jobs/batch: Allow %q, want POST", got)
	}
}

func TestEveryAnswerHasARequestID(t *testing.T) {
	g := newGateway(t)
	a := g.do("GET", "/jobs/nonsense", "", "X-Request-Id", "forged")
	p := a.refused(404, "job_not_found")
	id := a.header.Get("X-Request-Id")
	if !lanegate.ValidID(id) || p.RequestID != id {
		t.Errorf("header %q, document %q: want one id of our own", id, p.RequestID)
	}
	if !strings.Contains(g.log.String(), id) {
		t.Error("the log does not name the request")
	}
}

func TestNewPanicsOnMissingParts(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New without parts did not panic")
		}
	}()
	New(Options{})
}

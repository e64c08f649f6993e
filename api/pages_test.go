package api

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/openapi"
	"github.com/lanegate/lanegate/service"
)

// outside finds URLs of other hosts in what a browser would load.
var outside = regexp.MustCompile(`(?i)(?:src|href)\s*=\s*["']?(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import`)

// The pages work without the internet: nothing is loaded from anywhere else, and
// the browser is told to hold to that.
func TestDocsAskNobodyElse(t *testing.T) {
	g := newGateway(t)
	page := g.do("GET", "/docs", "").want(200)
	if !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
		t.Errorf("content type %q", page.header.Get("Content-Type"))
	}
	loaded := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(string(page.body), -1)
	if len(loaded) < 4 {
		t.Fatalf("the page loads only %v", loaded)
	}
	paths := []string{"/docs", "/docs/", "/openapi.json", "/docs/LICENSE"}
	for _, m := range loaded {
		if !strings.HasPrefix(m[1], "/docs/") && m[1] != "/openapi.json" {
			t.Errorf("the page loads %s", m[1])
		}
		paths = append(paths, m[1])
	}
	for _, path := range paths {
		a := g.do("GET", path, "").want(200)
		policy := a.header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "script-src 'self';") || strings.Contains(policy, "http") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", path, a.header)
		}
		if path == "/docs/swagger-ui-bundle.js" || path == "/docs/LICENSE" { // a library's own strings; the policy binds it
			continue
		}
		if m := outside.Find(a.body); m != nil {
			t.Errorf("%s loads from outside: %s", path, m)
		}
		if again := g.do("GET", path, "", "If-None-Match", a.header.Get("Etag")); again.status != 304 || len(again.body) != 0 {
			t.Errorf("%s with its tag: %d", path, again.status)
		}
	}
	g.do("GET", "/docs/none.js", "").refused(404, "no_such_route")
	g.do("GET", "/docs/..%2fopenapi.go", "").refused(404, "no_such_route")
	if spec := g.do("GET", "/openapi.json", ""); !bytes.Equal(spec.body, openapi.Document()) {
		t.Error("/openapi.json is not the committed document")
	}
}

func TestIndexNamesWhatThereIs(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.api.Version = "v1.2.3" })
	index := into[map[string]string](g.do("GET", "/", "").want(200))
	if index["version"] != "v1.2.3" {
		t.Errorf("index %v", index)
	}
	for name, path := range index {
		if strings.HasPrefix(path, "/") {
			if a := g.do("GET", path, ""); a.status != 200 {
				t.Errorf("%s: GET %s is %d", name, path, a.status)
			}
		}
	}
}

func TestHealth(t *testing.T) {
	parts := []Part{{Name: "database", OK: true}}
	g := newGateway(t, func(s *setup) { s.api.Parts = func(context.Context) []Part { return parts } })
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		if doc := document(g.do("GET", path, "").want(200)); doc["status"] != "ok" {
			t.Errorf("%s: %v", path, doc)
		}
	}
	parts = append(parts, Part{Name: "workers", Detail: "the last beat is 40s old"})
	for _, path := range []string{"/readyz", "/healthz"} {
		a := g.do("GET", path, "").want(503)
		if doc := document(a); doc["status"] != "failing" || !strings.Contains(string(a.body), "40s old") || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	g.do("GET", "/livez", "").want(200) // a part that fails is no reason to restart the process
}

// panickyStore panics where a job is read.
type panickyStore struct{ service.Store }

func (panickyStore) Job(context.Context, string) (service.JobDetail, error) {
	panic("password authentication failed for user boss")
}

// secretStore answers with errors that are nobody's business.
type secretStore struct{ service.Store }

func (secretStore) Job(context.Context, string) (service.JobDetail, error) {
	return service.JobDetail{}, errors.New("dial tcp 10.0.0.5:5432: secret")
}

// A fault of ours is 500 without detail; the log has it under the request's id.
func TestFaultsShowNoDetail(t *testing.T) {
	for name, tt := range map[string]struct {
		wrap   func(service.Store) service.Store
		secret string
	}{
		"a panic":             {func(s service.Store) service.Store { return panickyStore{s} }, "password"},
		"an error of no kind": {func(s service.Store) service.Store { return secretStore{s} }, "10.0.0.5"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, func(s *setup) { s.wrap = tt.wrap })
			a := g.do("GET", "/jobs/"+lanegateID(1), "")
			p := a.refused(500, "internal")
			if strings.Contains(string(a.body), tt.secret) {
				t.Errorf("the answer tells the cause: %s", a.body)
			}
			log := g.log.String()
			if !strings.Contains(log, tt.secret) || !strings.Contains(log, p.RequestID) || !strings.Contains(log, "level=ERROR") {
				t.Errorf("the log lacks the cause or the request: %s", log)
			}
			if !strings.Contains(log, "status=500") {
				t.Errorf("the request's own line lacks the status: %s", log)
			}
			g.do("GET", "/livez", "").want(200)
		})
	}
}

// What was never encoded whole must not leave as half an answer with status 200.
func TestEncodeFaultIsNoHalfAnswer(t *testing.T) {
	rec := httptest.NewRecorder()
	if err := encode(rec, 200, map[string]any{"a": 1, "f": func() {}}); err == nil {
		t.Error("a function was encoded")
	}
	if rec.Body.Len() > 0 || len(rec.Result().Header) > 0 {
		t.Errorf("half an answer: %q %v", rec.Body, rec.Result().Header)
	}
}

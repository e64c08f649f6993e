package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const fullClass = `{
	"description": "till slips", "run": {"kind": "http", "url": "https://pos.example/run", "headers": {"X-A": "1"}, "version": "abc"},
	"serial_because": "one session", "units": {"db": 5}, "timeout": "2h", "warn_after": "1h30m", "max_attempts": 3,
	"backoff": {"base": "10s", "max": "10m"}, "repeatable": false, "overlap": "skip", "fresh_within": "26h", "paused": true}`

// document reads an answer as free JSON.
func document(a answer) map[string]any { a.Helper(); return into[map[string]any](a) }

func TestClassRoundTrip(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, true)
	a := g.do("PUT", "/job-classes/pos-sales", fullClass).want(201)
	if a.header.Get("Location") != "/job-classes/pos-sales" {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	var sent map[string]any
	g.must(json.Unmarshal([]byte(fullClass), &sent))
	sent["run"].(map[string]any)["mode"] = "sync" // the default is shown
	shown := g.do("GET", "/job-classes/pos-sales", "").want(200)
	doc := document(shown)
	for name, want := range sent {
		if diff := cmp.Diff(want, doc[name]); diff != "" {
			t.Errorf("%s (-sent +shown):\n%s", name, diff)
		}
	}
	if doc["lane"] != "serial" || doc["max_in_flight"] != 1.0 || doc["managed_by"] != "api" || len(doc["fingerprint"].(string)) != 16 {
		t.Errorf("read-only fields: %s", shown.body)
	}
	// What GET gives, PUT takes, and nothing changes.
	again := g.do("PUT", "/job-classes/pos-sales", string(shown.body)).want(200)
	delete(doc, "standing") // GET shows it; it is not a field of the class
	if diff := cmp.Diff(doc, document(again)); diff != "" {
		t.Errorf("GET → PUT (-before +after):\n%s", diff)
	}
	if n := len(into[struct{ Items []any }](g.do("GET", "/job-classes/pos-sales/history", "").want(200)).Items); n != 1 {
		t.Errorf("%d entries of history after a PUT that changed nothing, want 1", n)
	}
	// PUT replaces: what is left out goes back to its default.
	plain := document(g.do("PUT", "/job-classes/pos-sales", `{"run":{"kind":"exec","command":"true"}}`).want(200))
	for _, gone := range []string{"description", "serial_because", "units", "timeout", "warn_after", "repeatable", "fresh_within"} {
		if v, ok := plain[gone]; ok {
			t.Errorf("%s is still %v", gone, v)
		}
	}
	if plain["max_attempts"] != 1.0 || plain["overlap"] != "queue" {
		t.Errorf("defaults: %v", plain)
	}
}

// units {} declares that nothing is used; that is not the same as nothing declared.
func TestClassEmptyUnitsAreADeclaration(t *testing.T) {
	g := newGateway(t)
	const run = `"run":{"kind":"exec","command":"true"}`
	undeclared := document(g.do("PUT", "/job-classes/a", `{`+run+`}`).want(201))
	declared := g.do("PUT", "/job-classes/b", `{`+run+`,"units":{}}`).want(201)
	doc := document(declared)
	if _, ok := doc["units"]; !ok || undeclared["units"] != nil {
		t.Fatalf("units: declared %v, undeclared %v", doc["units"], undeclared["units"])
	}
	if doc["fingerprint"] == undeclared["fingerprint"] {
		t.Error("the declaration is not in the fingerprint")
	}
	if again := document(g.do("PUT", "/job-classes/b", string(declared.body)).want(200)); again["fingerprint"] != doc["fingerprint"] {
		t.Error("GET → PUT lost the declaration")
	}
	if patched := document(g.do("PATCH", "/job-classes/b", `{"description":"x"}`).want(200)); patched["fingerprint"] != doc["fingerprint"] {
		t.Error("a patch of something else lost the declaration")
	}
	if patched := document(g.do("PATCH", "/job-classes/b", `{"units":null}`).want(200)); patched["units"] != nil {
		t.Errorf("units null removes the declaration, but it is %v", patched["units"])
	}
	if patched := document(g.do("PATCH", "/job-classes/b", `{"units":{}}`).want(200)); patched["fingerprint"] != doc["fingerprint"] {
		t.Error("units {} does not declare again")
	}
}

func TestClassReadOnlyFields(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	const run = `"run":{"kind":"exec","command":"true"}`
	for field, value := range map[string]string{
		"id": `"other"`, "lane": `"parallel"`, "max_in_flight": `5`, "managed_by": `"file"`, "fingerprint": `"0123456789abcdef"`,
		"created_at": `"2020-01-01T00:00:00Z"`, "updated_at": `"2020-01-01T00:00:00Z"`,
	} {
		p := g.do("PUT", "/job-classes/c", `{`+run+`,"`+field+`":`+value+`}`).refused(422, "invalid_fields")
		if len(p.Fields) != 1 || p.Fields[0].Pointer != "/"+field || !strings.Contains(p.Fields[0].Detail, "read-only") {
			t.Errorf("%s: fields %v", field, p.Fields)
		}
		p = g.do("PATCH", "/job-classes/c", `{"`+field+`":`+value+`}`).refused(422, "read_only_field")
		if p.Fields[0].Pointer != "/"+field {
			t.Errorf("%s: fields %v", field, p.Fields)
		}
	}
	// A new class is serial, whatever is asked for.
	g.do("PUT", "/job-classes/new", `{`+run+`,"lane":"parallel"}`).refused(422, "invalid_fields")
	g.do("POST", "/job-classes", `{"id":"new",`+run+`,"max_in_flight":2}`).refused(422, "invalid_fields")
	g.do("GET", "/job-classes/new", "").refused(404, "class_not_found")
}

func TestClassCreate(t *testing.T) {
	g := newGateway(t)
	a := g.do("POST", "/job-classes", `{"id":"c","run":{"kind":"exec","command":"true"}}`).want(201)
	if a.header.Get("Location") != "/job-classes/c" {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	if p := g.do("POST", "/job-classes", `{"id":"c","run":{"kind":"exec","command":"true"}}`).refused(409, "class_exists"); !strings.Contains(p.Detail, "PATCH /job-classes/c") {
		t.Errorf("%q", p.Detail)
	}
	if p := g.do("POST", "/job-classes", `{"run":{"kind":"exec","command":"true"}}`).refused(422, "invalid_fields"); p.Fields[0].Pointer != "/id" {
		t.Errorf("%v", p.Fields)
	}
}

// Of several creations at once one wins; the others are told, and change nothing.
func TestClassCreateAtOnce(t *testing.T) {
	g := newGateway(t)
	created := 0
	for i, a := range together(g, 10, func(i int) answer {
		return g.do("POST", "/job-classes", fmt.Sprintf(`{"id":"c","description":"%d","run":{"kind":"exec","command":"true"}}`, i))
	}) {
		if a.status != 201 {
			a.refused(409, "class_exists")
			continue
		}
		created++
		if doc := document(g.do("GET", "/job-classes/c", "").want(200)); doc["description"] != fmt.Sprint(i) {
			t.Errorf("creation %d won, but the class is of %v", i, doc["description"])
		}
	}
	if created != 1 {
		t.Errorf("%d creations won, want 1", created)
	}
}

func TestClassFaultsAreNamedTogether(t *testing.T) {
	g := newGateway(t)
	pointers := func(p problem) string {
		var out []string
		for _, f := range p.Fields {
			out = append(out, f.Pointer)
		}
		return strings.Join(out, " ")
	}
	p := g.do("PUT", "/job-classes/c", `{"run":{"kind":"exec"},"units":{"db":-1,"nope":1},"max_attempts":-1,"overlap":"maybe","backoff":{"base":"1h","max":"1s"}}`).refused(422, "invalid_fields")
	for _, want := range []string{"/run/command", "/units/db", "/units/nope", "/max_attempts", "/overlap", "/backoff/max"} {
		if !strings.Contains(" "+pointers(p)+" ", " "+want+" ") {
			t.Errorf("%s is not among %s", want, pointers(p))
		}
	}
	if !strings.Contains(fmt.Sprint(p.Fields), "PUT /resources/nope") {
		t.Errorf("an unknown resource: %v", p.Fields)
	}
	for body, pointer := range map[string]string{
		`{"run":{"kind":"exec","command":"rm -rf /"}}`:                                               "/run/command",
		`{"run":{"kind":"http","url":"file:///etc/passwd"}}`:                                         "/run/url",
		`{"run":{"kind":"http","url":"http://u:p@h/"}}`:                                              "/run/url",
		`{"run":{"kind":"http","url":"http://h/","headers":{"X":"a\r\nY: b"}}}`:                      "/run/headers",
		`{"run":{"kind":"sqs","queue":"not a queue"}}`:                                               "/run/queue",
		`{"run":{"kind":"http","url":"http://h/","heartbeat":"9s"}}`:                                 "/run/heartbeat",
		`{"run":{"kind":"exec","command":"true"},"description":"` + strings.Repeat("x", 2001) + `"}`: "/description",
	} {
		if p := g.do("PUT", "/job-classes/c", body).refused(422, "invalid_fields"); p.Fields[0].Pointer != pointer {
			t.Errorf("%s points at %s, want %s", body, pointers(p), pointer)
		}
	}
	for body, want := range map[string][2]string{
		`{"run":{"kind":"exec","command":"true"},"timeout":"2 hours"}`:  {"wrong_type", "/timeout"},
		`{"run":{"kind":"exec","command":"true"},"timeout":7200}`:       {"wrong_type", "/timeout"},
		`{"run":{"kind":"exec","command":"true"},"timeout":"-1s"}`:      {"wrong_type", "/timeout"},
		`{"run":{"kind":"exec","command":"true"},"units":{"db":1.5}}`:   {"wrong_type", "/units/db"},
		`{"run":{"kind":"exec","command":"true"},"units":{"db":1e400}}`: {"wrong_type", "/units/db"},
		`{"run":{"kind":"exec","comand":"true"}}`:                       {"unknown_field", "/run/comand"},
		`{"runs":{}}`:    {"unknown_field", "/runs"},
		`{"run":"true"}`: {"wrong_type", "/run"},
	} {
		if p := g.do("PUT", "/job-classes/c", body).refused(422, want[0]); p.Fields[0].Pointer != want[1] {
			t.Errorf("%s points at %s, want %s", body, pointers(p), want[1])
		}
	}
	for _, id := range []string{"Pos", "-x", "a%20b", strings.Repeat("x", 64)} {
		g.do("PUT", "/job-classes/"+id, `{"run":{"kind":"exec","command":"true"}}`).refused(422, "invalid_fields")
	}
	if list := into[struct{ Items []any }](g.do("GET", "/job-classes", "").want(200)); len(list.Items) != 0 {
		t.Errorf("%d classes were made", len(list.Items))
	}
}

// On these routes nothing would be enqueued, so the answers speak of changes.
func TestRefusalsSpeakOfWhatTheRouteDoes(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for _, tt := range []struct{ method, path string }{{"PUT", "/job-classes/c"}, {"PATCH", "/job-classes/c"}, {"POST", "/job-classes"}, {"PUT", "/lanes/long"}, {"PUT", "/resources/db"}} {
		for _, send := range []struct {
			body    string
			headers []string
		}{
			{`{`, nil}, {`[]`, nil}, {`null`, nil}, {`{"a":1,"a":2}`, nil}, {"{\"a\":\"\xff\"}", nil}, {`{"a":"\u0000"}`, nil}, {`{"paylod":1}`, nil},
			{`a=b`, []string{"Content-Type", "application/x-www-form-urlencoded"}}, {`x`, []string{"Content-Type", "text/plain"}},
			{`{}`, []string{"Content-Encoding", "gzip"}}, {`{"a":"` + strings.Repeat("x", 2<<20) + `"}`, nil},
		} {
			p := g.do(tt.method, tt.path, send.body, send.headers...).problem()
			if strings.Contains(p.Detail, "enqueue") || strings.Contains(p.Detail, "/jobs/batch") {
				t.Errorf("%s %s with %.20q: %q", tt.method, tt.path, send.body, p.Detail)
			}
		}
	}
}

func TestClassMergePatch(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.resource("api", 3, false)
	g.do("PUT", "/job-classes/c", fullClass).want(201)
	patch := func(body string) map[string]any {
		t.Helper()
		return document(g.do("PATCH", "/job-classes/c", body, "Content-Type", "application/merge-patch+json").want(200))
	}
	before := document(g.do("GET", "/job-classes/c", "").want(200))
	doc := patch(`{"timeout":null,"backoff":{"base":"20s"},"units":{"api":2},"run":{"headers":{"X-A":null,"X-B":"2"}},"paused":false}`)
	if _, ok := doc["timeout"]; ok {
		t.Errorf("null left timeout %v", doc["timeout"])
	}
	for name, want := range map[string]any{
		"backoff": map[string]any{"base": "20s", "max": "10m"}, "units": map[string]any{"db": 5.0, "api": 2.0}, "paused": false,
		"run":         map[string]any{"kind": "http", "url": "https://pos.example/run", "mode": "sync", "headers": map[string]any{"X-B": "2"}, "version": "abc"},
		"description": before["description"], "fresh_within": before["fresh_within"], "repeatable": false,
	} {
		if diff := cmp.Diff(want, doc[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if same := patch(`{}`); same["updated_at"] != doc["updated_at"] {
		t.Error("an empty patch changed the class")
	}
	if d := patch(`{"repeatable":null,"units":{"api":null}}`); d["repeatable"] != nil || len(d["units"].(map[string]any)) != 1 {
		t.Errorf("after nulls: %v", d)
	}
	g.do("PATCH", "/job-classes/c", `{"description":"by plain JSON"}`).want(200)
	g.do("PATCH", "/job-classes/c", `{"run":null}`).refused(422, "invalid_fields")
	g.do("PATCH", "/job-classes/c", `{"run":{"kind":"exec"}}`).refused(422, "invalid_fields")
	if p := g.do("PATCH", "/job-classes/c", `{"timout":"1h"}`).refused(422, "unknown_field"); !strings.Contains(p.Fields[0].Detail, `"timeout"`) {
		t.Errorf("%v", p.Fields)
	}
	g.do("PATCH", "/job-classes/c", `{"units":{"db":1e400}}`).want(422)
	g.do("PATCH", "/job-classes/c", `[{"op":"remove","path":"/timeout"}]`).refused(422, "array_body")
	g.do("PATCH", "/job-classes/nobody", `{}`).refused(404, "class_not_found")
}

// An edit that voids the proof of a promoted class needs to be meant.
func TestClassWouldDemote(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.class("fast", promoted(2, lanegate.Units{"db": 5}))
	p := g.do("PATCH", "/job-classes/fast", `{"units":{"db":4}}`).refused(409, "would_demote")
	if p.Details["lane"] != "parallel" || p.Details["fingerprint_before"] == p.Details["fingerprint_after"] || !strings.Contains(p.Detail, "demote=true") {
		t.Errorf("%+v", p)
	}
	g.do("PUT", "/job-classes/fast", `{"run":{"kind":"exec","command":"true","version":"2"},"units":{"db":5}}`).refused(409, "would_demote")
	if doc := document(g.do("PATCH", "/job-classes/fast", `{"timeout":"1h","overlap":"skip","description":"x"}`).want(200)); doc["lane"] != "parallel" || doc["max_in_flight"] != 2.0 {
		t.Errorf("an edit beside the fingerprint demoted it: %v", doc)
	}
	doc := document(g.do("PATCH", "/job-classes/fast?demote=true&accept=width&reason=smaller%20pool", `{"units":{"db":4}}`).want(200))
	if doc["lane"] != "serial" || doc["max_in_flight"] != 1.0 {
		t.Errorf("demoted: %v", doc)
	}
	history := string(g.do("GET", "/job-classes/fast/history", "").want(200).body)
	if !strings.Contains(history, `"event":"demoted"`) || !strings.Contains(history, "smaller pool") || !strings.Contains(history, `"actor":"local"`) {
		t.Errorf("history %s", history)
	}
}

func TestAcceptWidth(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.class("fast", promoted(2, lanegate.Units{"db": 5}))
	width := func() any {
		t.Helper()
		return document(g.do("GET", "/lanes/parallel", "").want(200))["width"]
	}
	if w := width(); w != 3.0 {
		t.Fatalf("width %v, want 15 / 5 = 3", w)
	}
	// A new serial class with large units takes a reserve: (15 − 10) / 5 = 1.
	const big = `{"run":{"kind":"exec","command":"true"},"units":{"db":10}}`
	p := g.do("PUT", "/job-classes/big", big).refused(409, "width_lowered")
	lowered, err := json.Marshal(p.Details["lanes"])
	g.must(err)
	if !strings.Contains(p.Detail, "from 3 to 1") || !strings.Contains(p.Detail, "accept=width") || !strings.Contains(string(lowered), "parallel") {
		t.Errorf("%q, details %s", p.Detail, lowered)
	}
	g.do("GET", "/job-classes/big", "").refused(404, "class_not_found")
	g.do("PUT", "/job-classes/big?accept=width", big).want(201)
	if w := width(); w != 1.0 {
		t.Errorf("width %v, want 1", w)
	}
	g.do("PUT", "/resources/db", `{"capacity":5}`).want(200) // (5 − 0) / 5: the width stays
	g.do("PUT", "/resources/db", `{"capacity":30}`).want(200)
	if w := width(); w != 4.0 {
		t.Errorf("width %v, want (30 − 10) / 5 = 4", w)
	}
	if p := g.do("PUT", "/resources/db", `{"capacity":20}`).refused(409, "width_lowered"); !strings.Contains(p.Detail, "from 4 to 2") {
		t.Errorf("%q", p.Detail)
	}
	g.do("PUT", "/resources/db?accept=width", `{"capacity":20}`).want(200)
}

func TestManagedByFile(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.service.ConfigFile = "/etc/lanegate.yaml" })
	_, err := g.svc.SyncFile(t.Context(), service.FileConfig{
		Hash: "1", Classes: map[string]lanegate.ClassSpec{"c": *defaultTarget()}, Resources: []lanegate.Resource{{Name: "db", Capacity: 5}},
		Lanes: []lanegate.Lane{{Name: "long", WidthSetting: 1, Order: lanegate.OrderFIFO, WhenUnavailable: lanegate.FallbackSerial}},
	})
	g.must(err)
	for _, tt := range []struct{ method, path, body string }{
		{"PUT", "/job-classes/c", `{"run":{"kind":"exec","command":"true"}}`}, {"PATCH", "/job-classes/c", `{"timeout":"1h"}`}, {"DELETE", "/job-classes/c", ""},
		{"PUT", "/lanes/long", `{"width":1}`}, {"DELETE", "/lanes/long", ""}, {"PUT", "/resources/db", `{"capacity":6}`}, {"DELETE", "/resources/db", ""},
	} {
		p := g.do(tt.method, tt.path, tt.body).refused(409, "managed_by_file")
		if !strings.Contains(p.Detail, "/etc/lanegate.yaml") || p.Details["file"] != "/etc/lanegate.yaml" {
			t.Errorf("%s %s does not name the file: %+v", tt.method, tt.path, p)
		}
	}
	// A pause is for the night when something goes wrong.
	if doc := document(g.do("POST", "/job-classes/c/pause", "").want(200)); doc["paused"] != true || doc["managed_by"] != "file" {
		t.Errorf("paused: %v", doc)
	}
	g.do("POST", "/lanes/long/pause", "").want(200)
}

func TestClassPauseAndResume(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	g.do("POST", "/job-classes/c/pause?reason=broken", "").want(200)
	g.do("POST", "/job-classes/c/pause", "").want(200) // again: nothing changes
	j := g.submit(`{"class":"c"}`)
	if got := g.job(j.ID); got.reasons() != "paused:class" {
		t.Errorf("it waits on %q", got.reasons())
	}
	if grants := g.admit(w); len(grants) != 0 {
		t.Error("a paused class started a job")
	}
	if doc := document(g.do("POST", "/job-classes/c/resume", "").want(200)); doc["paused"] != false {
		t.Errorf("resumed: %v", doc)
	}
	if grants := g.admit(w); len(grants) != 1 {
		t.Error("a resumed class started no job")
	}
	g.do("POST", "/job-classes/nobody/pause", "").refused(404, "class_not_found")
}

func TestClassDelete(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	j := g.submit(`{"class":"c"}`)
	g.do("DELETE", "/job-classes/c", "").refused(409, "in_use")
	grant := g.admit(w)[0]
	g.do("DELETE", "/job-classes/c", "").refused(409, "in_use")
	g.end(grant, lanegate.Ending{Outcome: lanegate.Succeeded})
	if a := g.do("DELETE", "/job-classes/c", "").want(204); len(a.body) != 0 {
		t.Errorf("a 204 with a body: %q", a.body)
	}
	g.do("GET", "/job-classes/c", "").refused(404, "class_not_found")
	g.do("DELETE", "/job-classes/c", "").refused(404, "class_not_found")
	if got := g.job(j.ID); got.State != "succeeded" {
		t.Errorf("the finished job of a deleted class: %+v", got)
	}
	if history := string(g.do("GET", "/job-classes/c/history", "").want(200).body); !strings.Contains(history, `"event":"deleted"`) {
		t.Errorf("history %s", history)
	}
}

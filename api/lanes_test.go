package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

func TestLaneRoundTrip(t *testing.T) {
	g := newGateway(t)
	a := g.do("PUT", "/lanes/long", `{"width":1,"order":"fifo","when_unavailable":"wait","queue":"q-long"}`).want(201)
	if a.header.Get("Location") != "/lanes/long" {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	doc := document(g.do("GET", "/lanes/long", "").want(200))
	for name, want := range map[string]any{
		"name": "long", "width": 1.0, "width_setting": 1.0, "order": "fifo", "when_unavailable": "wait", "queue": "q-long", "paused": false,
		"available": false, "managed_by": "api", "in_flight": 0.0, "queued": 0.0, "not_due": 0.0, "oldest_wait": "0s", "allow_overcommit": false,
		"empty_reason": "empty already: nothing is due or runs in it",
	} {
		if diff := cmp.Diff(want, doc[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if at, ok := doc["empty_at"].(map[string]any); !ok || at["p50"] == nil || at["p90"] != at["p50"] {
		t.Errorf("an empty lane is empty at %v", doc["empty_at"])
	}
	if doc := document(g.do("PUT", "/lanes/long", `{}`).want(200)); doc["width_setting"] != "auto" || doc["order"] != "fifo" || doc["when_unavailable"] != "serial" {
		t.Errorf("defaults: %v", doc)
	}
	g.do("PUT", "/lanes/long", `{"width":"auto"}`).want(200)
	for body, pointer := range map[string]string{
		`{"width":0}`: "/width", `{"width":-1}`: "/width", `{"width":1.5}`: "/width", `{"width":"many"}`: "/width", `{"width":10001}`: "/width", `{"width":1e400}`: "/width",
		`{"order":"lifo"}`: "/order", `{"when_unavailable":"never"}`: "/when_unavailable", `{"widht":1}`: "/widht", `{"paused":true}`: "/paused", `{"name":"x"}`: "/name",
	} {
		a := g.do("PUT", "/lanes/long", body).want(422)
		if p := a.problem(); p.Fields[0].Pointer != pointer {
			t.Errorf("%s: %v", body, p.Fields)
		}
	}
	g.do("PUT", "/lanes/Long", `{}`).refused(422, "invalid_fields")
	var names []string
	for _, l := range into[struct{ Items []struct{ Name string } }](g.do("GET", "/lanes", "").want(200)).Items {
		names = append(names, l.Name)
	}
	if got := strings.Join(names, " "); got != "long parallel serial" {
		t.Errorf("lanes %s", got)
	}
	g.do("DELETE", "/lanes/long", "").want(204)
	g.do("GET", "/lanes/long", "").refused(404, "lane_not_found")
	g.do("DELETE", "/lanes/long", "").refused(404, "lane_not_found")
}

func TestBuiltinLanes(t *testing.T) {
	g := newGateway(t)
	for _, name := range []string{"serial", "parallel"} {
		g.do("DELETE", "/lanes/"+name, "").refused(409, "lane_is_builtin")
	}
	g.do("PUT", "/lanes/serial", `{"width":2}`).refused(409, "lane_is_builtin")
	g.do("PUT", "/lanes/serial", `{}`).refused(409, "lane_is_builtin")
	serial := document(g.do("GET", "/lanes/serial", "").want(200))
	if serial["width"] != 1.0 || serial["order"] != "fifo" {
		t.Errorf("serial: %v", serial)
	}
	g.do("PUT", "/lanes/parallel", `{"width":1}`).want(200)
}

func TestLaneArithmetic(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.class("slow", func(c *lanegate.Class) { c.Units = lanegate.Units{"db": 5} })
	g.class("fast", promoted(2, lanegate.Units{"db": 5}))
	lane := func() map[string]any {
		t.Helper()
		return document(g.do("GET", "/lanes/parallel", "").want(200))
	}
	doc := lane()
	sum := doc["arithmetic"].(map[string]any)
	want := map[string]any{"resource": "db", "capacity": 15.0, "reserve": 5.0, "others": 0.0, "units": 5.0, "result": 2.0}
	if diff := cmp.Diff([]any{want}, sum["sums"]); diff != "" {
		t.Errorf("sums (-want +got):\n%s", diff)
	}
	if doc["width"] != 2.0 || sum["width"] != 2.0 || !strings.Contains(sum["sentence"].(string), "(15 − 5 − 0) / 5 = 2") {
		t.Errorf("width %v, arithmetic %v", doc["width"], sum)
	}
	p := g.do("PUT", "/lanes/parallel", `{"width":3}`).refused(409, "width_overcommitted")
	if p.Details["width"] != 3.0 || p.Details["arithmetic"] != 2.0 || !strings.Contains(p.Detail, "(15 − 5 − 0) / 5 = 2") {
		t.Errorf("%+v", p)
	}
	g.do("PUT", "/lanes/parallel", `{"width":3,"allow_overcommit":true}`).want(200)
	doc = lane()
	if doc["width"] != 3.0 || doc["allow_overcommit"] != true || doc["arithmetic"].(map[string]any)["overcommitted"] != true {
		t.Errorf("overcommitted: %v", doc)
	}
	if text := string(g.do("GET", "/metrics", "").want(200).body); !strings.Contains(text, `lanegate_lane_overcommitted{lane="parallel"} 1`) {
		t.Error("the overcommitment is not exported")
	}
	g.do("PUT", "/lanes/parallel", `{"width":1}`).want(200) // a smaller number is what was asked for
	// A second lane takes its share of what is there: (15 − 5 − 1×5) / 5 = 1.
	g.do("PUT", "/lanes/parallel", `{"width":"auto"}`).want(200)
	g.do("PUT", "/lanes/long?accept=width", `{"width":1}`).want(201)
}

func TestLanePauseStopsStarts(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	if doc := document(g.do("POST", "/lanes/serial/pause?reason=night", "").want(200)); doc["paused"] != true {
		t.Errorf("paused: %v", doc)
	}
	j := g.submit(`{"class":"c"}`)
	if got := g.job(j.ID).reasons(); got != "paused:lane" {
		t.Errorf("it waits on %q", got)
	}
	if grants := g.admit(w); len(grants) != 0 {
		t.Error("a paused lane started a job")
	}
	g.do("POST", "/lanes/serial/resume", "").want(200)
	if grants := g.admit(w); len(grants) != 1 {
		t.Error("a resumed lane started no job")
	}
	g.do("POST", "/lanes/nobody/pause", "").refused(404, "lane_not_found")
	g.do("POST", "/lanes/nobody/resume", "").refused(404, "lane_not_found")
}

func TestLaneShowsWhatGoesOn(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	first, second := g.submit(`{"class":"c"}`), g.submit(`{"class":"c"}`)
	g.submit(`{"class":"c","run_at":"` + inAnHour() + `"}`)
	g.admit(w)
	doc := into[struct {
		Available bool
		InFlight  int `json:"in_flight"`
		Running   []struct{ Job, Class string }
		Queued    int
		NotDue    int `json:"not_due"`
	}](g.do("GET", "/lanes/serial", "").want(200))
	if !doc.Available || doc.InFlight != 1 || doc.Queued != 1 || doc.NotDue != 1 || len(doc.Running) != 1 || doc.Running[0].Job != first.ID || doc.Running[0].Class != "c" {
		t.Errorf("lane %+v while %s runs and %s waits", doc, first.ID, second.ID)
	}
}

func TestLaneInUse(t *testing.T) {
	g := newGateway(t)
	g.do("PUT", "/lanes/long", `{"width":1}`).want(201)
	g.class("heavy", func(c *lanegate.Class) { c.Lane = "long" })
	if p := g.do("DELETE", "/lanes/long", "").refused(409, "in_use"); !strings.Contains(p.Detail, "heavy") {
		t.Errorf("%q does not name the class", p.Detail)
	}
}

func TestResourceRoundTrip(t *testing.T) {
	g := newGateway(t)
	a := g.do("PUT", "/resources/db", `{"capacity":15,"pool":true}`).want(201)
	if a.header.Get("Location") != "/resources/db" {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	want := map[string]any{"name": "db", "capacity": 15.0, "pool": true, "in_use": 0.0, "holders": []any{}, "managed_by": "api"}
	if diff := cmp.Diff(want, document(g.do("GET", "/resources/db", "").want(200))); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
	if doc := document(g.do("PUT", "/resources/db", `{"capacity":10}`).want(200)); doc["capacity"] != 10.0 || doc["pool"] != false {
		t.Errorf("PUT replaces: %v", doc)
	}
	for body, pointer := range map[string]string{
		`{}`: "/capacity", `{"capacity":null}`: "/capacity", `{"capacity":-1}`: "/capacity", `{"capacity":1000001}`: "/capacity", `{"capacity":1.5}`: "/capacity",
		`{"capacity":"15"}`: "/capacity", `{"capacity":99999999999999999999}`: "/capacity", `{"capacity":1,"pol":true}`: "/pol",
	} {
		if p := g.do("PUT", "/resources/db", body).want(422).problem(); p.Fields[0].Pointer != pointer {
			t.Errorf("%s: %v", body, p.Fields)
		}
	}
	g.do("PUT", "/resources/DB", `{"capacity":1}`).refused(422, "invalid_fields")
	g.do("GET", "/resources/nope", "").refused(404, "resource_not_found")
	if list := into[struct{ Items []any }](g.do("GET", "/resources", "").want(200)); len(list.Items) != 1 {
		t.Errorf("%d resources, want 1", len(list.Items))
	}
	g.do("PUT", "/job-classes/c", `{"run":{"kind":"exec","command":"true"},"units":{"db":5}}`).want(201)
	if p := g.do("DELETE", "/resources/db", "").refused(409, "in_use"); !strings.Contains(p.Detail, `"c"`) {
		t.Errorf("%q does not name the class", p.Detail)
	}
	g.do("PATCH", "/job-classes/c", `{"units":null}`).want(200)
	g.do("DELETE", "/resources/db", "").want(204)
	g.do("DELETE", "/resources/db", "").refused(404, "resource_not_found")
}

func TestResourceShowsItsHolders(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.class("c", func(c *lanegate.Class) { c.Units = lanegate.Units{"db": 5} })
	j := g.submit(`{"class":"c"}`)
	g.admit(g.worker())
	doc := document(g.do("GET", "/resources/db", "").want(200))
	want := []any{map[string]any{"job": j.ID, "class": "c", "lane": "serial", "units": 5.0}}
	if diff := cmp.Diff(want, doc["holders"]); diff != "" || doc["in_use"] != 5.0 {
		t.Errorf("in use %v, holders (-want +got):\n%s", doc["in_use"], diff)
	}
	// A capacity below what runs stops nothing; it only starts nothing.
	g.do("PUT", "/resources/db", `{"capacity":1}`).want(200)
	if doc := document(g.do("GET", "/resources/db", "").want(200)); doc["in_use"] != 5.0 || doc["capacity"] != 1.0 {
		t.Errorf("after the cut: %v", doc)
	}
}

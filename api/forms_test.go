package api

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/lanegate/lanegate"
)

// The key of an event is its source and id unless one is given, in whichever way.
func TestEventKeyGivesWayToTheHeader(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	event := func(id string) string {
		return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"t","unknown":1,"data":{"class":"c"}}`
	}
	const typ = "application/cloudevents+json; charset=utf-8"
	a := into[job](g.do("POST", "/jobs", event("1"), "Content-Type", typ).want(http.StatusCreated))
	b := into[job](g.do("POST", "/jobs", event("1"), "Content-Type", typ).want(http.StatusOK))
	if a.ID != b.ID || a.IdempotencyKey == "" {
		t.Errorf("the same event gave %s and %s (key %q)", a.ID, b.ID, a.IdempotencyKey)
	}
	c := into[job](g.do("POST", "/jobs", event("2"), "Content-Type", typ, "Idempotency-Key", `"mine"`).want(http.StatusCreated))
	if c.IdempotencyKey != "mine" {
		t.Errorf("key %q, want the header's", c.IdempotencyKey)
	}
	// A source is a URI of any length; the event must not be lost for that.
	long := strings.Replace(event("3"), "/s", "/"+strings.Repeat("s", 400), 1)
	d := into[job](g.do("POST", "/jobs", long, "Content-Type", typ).want(http.StatusCreated))
	e := into[job](g.do("POST", "/jobs", long, "Content-Type", typ).want(http.StatusOK))
	if d.ID != e.ID {
		t.Error("the same event with a long source gave two jobs")
	}
}

// What stands beside a problem's own members has the API's names, too.
func TestDetailsAreInSnakeCase(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, true)
	g.class("p", promoted(3, lanegate.Units{"db": 5}))
	a := g.do("PUT", "/resources/db", `{"capacity":5,"pool":true}`)
	a.refused(http.StatusConflict, "width_lowered")
	for _, want := range []string{`"lane":"parallel"`, `"before":3`, `"after":1`} {
		if !strings.Contains(string(a.body), want) {
			t.Errorf("the document lacks %s: %s", want, a.body)
		}
	}
}

func TestOnlyOneOfTwoCreatesAClass(t *testing.T) {
	g := newGateway(t)
	statuses := make([]int, 20)
	var all sync.WaitGroup
	for i := range statuses {
		all.Go(func() {
			statuses[i] = g.do("POST", "/job-classes", `{"id":"one","run":{"kind":"exec","command":"true"}}`).status
		})
	}
	all.Wait()
	created := 0
	for _, s := range statuses {
		switch s {
		case http.StatusCreated:
			created++
		case http.StatusConflict:
		default:
			t.Errorf("status %d", s)
		}
	}
	if created != 1 {
		t.Errorf("%d calls created the class, want 1", created)
	}
}

// A lane made by the API has the same defaults as one in the config file.
func TestNewLaneIsFIFO(t *testing.T) {
	g := newGateway(t)
	for name, want := range map[string]string{"long": "fifo", "parallel": "fair"} {
		lane := into[struct{ Order string }](g.do("PUT", "/lanes/"+name, `{}`))
		if lane.Order != want {
			t.Errorf("lane %s has the order %q, want %q", name, lane.Order, want)
		}
	}
}

// C81: no redirect, and no other answer either, for slashes too many.
func TestSlashesTooMany(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for _, path := range []string{"/jobs/", "//jobs", "/jobs//", "//jobs//"} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://x", strings.NewReader(`{"class":"c"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Path = path
		req.Header.Set("Content-Type", "application/json")
		rec := newRecorder(g, req)
		if rec.Code != http.StatusCreated {
			t.Errorf("POST %s: status %d, want 201: %s", path, rec.Code, rec.Body)
		}
	}
}

// Malformed and empty parameters are refused like unknown ones.
func TestParametersAreNeverGuessed(t *testing.T) {
	g := newGateway(t)
	for _, query := range []string{"limit=%zz", "limit=", "limit=0", "limit=501", "limit=-1", "limit=1&limit=2", "limit=1;state=queued", "limt=1", "cursor=x", "cursor=" + sealCursor("pos-sales"), "state=", "submitted_from=yesterday"} {
		g.do("GET", "/jobs?"+query, "").refused(http.StatusBadRequest, "bad_parameter")
	}
}

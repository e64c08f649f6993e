package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

// A token that is restricted to some classes may neither see nor touch others.
func TestRestrictedTokenKeepsToItsClasses(t *testing.T) {
	admin, header := token("team", RoleAdmin, "mine")
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{admin} })
	g.class("mine")
	g.class("theirs")
	const spec = `{"run":{"kind":"exec","command":"true"}}`
	for _, tt := range []struct{ method, path, body string }{
		{"GET", "/job-classes/theirs", ""},
		{"PUT", "/job-classes/theirs", spec},
		{"PATCH", "/job-classes/theirs", `{"paused":true}`},
		{"DELETE", "/job-classes/theirs", ""},
		{"POST", "/job-classes/theirs/pause", ""},
		{"POST", "/job-classes/theirs/resume", ""},
		{"GET", "/job-classes/theirs/history", ""},
		{"GET", "/job-classes/theirs/stats", ""},
		{"POST", "/job-classes", `{"id":"new","run":{"kind":"exec","command":"true"}}`},
		{"POST", "/jobs", `{"class":"theirs"}`},
		{"PUT", "/lanes/long", `{"width":1}`},
		{"POST", "/lanes/serial/pause", ""},
		{"PUT", "/resources/db", `{"capacity":1}`},
	} {
		if a := g.do(tt.method, tt.path, tt.body, header...); a.status != http.StatusForbidden {
			t.Errorf("%s %s: status %d, want 403: %s", tt.method, tt.path, a.status, a.body)
		}
	}
	for _, path := range []string{"/job-classes/mine", "/job-classes/mine/history", "/job-classes/mine/stats"} {
		g.do("GET", path, "", header...).want(http.StatusOK)
	}
	g.do("PATCH", "/job-classes/mine", `{"description":"x"}`, header...).want(http.StatusOK)
	if list := g.do("GET", "/job-classes", "", header...).want(http.StatusOK); strings.Contains(string(list.body), "theirs") {
		t.Errorf("the list names a class that the token is not for: %s", list.body)
	}
}

// Lanes and resources show how much is in use, but not by whom, when that is a
// class that the token is not for.
func TestRestrictedTokenSeesNoRunsOfOthers(t *testing.T) {
	view, header := token("team", RoleView, "mine")
	poster, post := token("all", RoleAdmin)
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{view, poster} })
	g.resource("db", 15, true)
	g.class("theirs", func(c *lanegate.Class) { c.Units = lanegate.Units{"db": 5} })
	g.submit(`{"class":"theirs"}`, post...)
	if n := len(g.admit(g.worker())); n != 1 {
		t.Fatalf("%d grants", n)
	}
	for path, count := range map[string]string{"/lanes/serial": `"in_flight":1`, "/resources/db": `"in_use":5`, "/lanes": `"in_flight":1`, "/resources": `"in_use":5`} {
		body := string(g.do("GET", path, "", header...).want(http.StatusOK).body)
		if strings.Contains(body, "theirs") || !strings.Contains(body, count) {
			t.Errorf("%s: want %s and no run of others: %s", path, count, body)
		}
	}
}

// Without tokens a page of somebody else's, open in a browser on the gateway's
// own machine, could otherwise post jobs: a body without a type needs no preflight.
func TestPagesOfOtherOriginsChangeNothing(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	j := g.submit(`{"class":"c"}`)
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site", "Content-Type", ""},
		{"Origin", "https://elsewhere.example", "Content-Type", ""},
	} {
		g.do("POST", "/jobs", `{"class":"c"}`, header...).want(http.StatusForbidden).problem()
		g.do("POST", "/jobs/"+j.ID+"/cancel", "", header...).want(http.StatusForbidden).problem()
		g.do("GET", "/jobs", "", header...).want(http.StatusOK)
	}
	if n := g.count(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
	g.do("POST", "/jobs", `{"class":"c"}`, "Sec-Fetch-Site", "same-origin").want(http.StatusCreated)
}

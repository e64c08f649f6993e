package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

// everyone has a token of each role; the gateway's classes are c and other.
type everyone struct {
	*gateway
	auth map[Role][]string
}

func newEveryone(t *testing.T) everyone {
	t.Helper()
	e := everyone{auth: map[Role][]string{}}
	var tokens []Token
	for _, role := range Roles {
		tok, auth := token("the-"+string(role), role)
		tokens, e.auth[role] = append(tokens, tok), auth
	}
	e.gateway = newGateway(t, func(s *setup) { s.api.Tokens = tokens })
	e.class("c")
	e.class("other")
	return e
}

// mayCall is the table of DESIGN: admin includes operate, which includes view and
// submit; a submit token posts jobs and sees its own; an agent's is for grants only.
func mayCall(token Role, rt route) bool {
	if rt.role == RoleAttempt { // nobody's role: the attempt's own token decides
		return true
	}
	posts := rt.role == RoleSubmit && rt.method == http.MethodPost
	switch token {
	case RoleSubmit:
		return rt.role == RoleSubmit
	case RoleView:
		return (rt.role == RoleSubmit && !posts) || rt.role == RoleView
	case RoleOperate:
		return rt.role == RoleSubmit || rt.role == RoleView || rt.role == RoleOperate
	case RoleAdmin:
		return rt.role != RoleAgent
	case RoleRun:
		return rt.role == RoleSubmit || rt.role == RoleAgent
	}
	return rt.role == RoleAgent
}

func TestEachRoleOnEachRoute(t *testing.T) {
	e := newEveryone(t)
	bodies := map[string]string{
		"POST /jobs": `{"class":"c"}`, "POST /jobs/batch": `{"jobs":[{"class":"c"}]}`,
		"POST /job-classes": `{}`, "PUT /job-classes/{id}": `{}`, "PATCH /job-classes/{id}": `{}`, "PUT /lanes/{name}": `{}`, "PUT /resources/{name}": `{}`,
	}
	path := strings.NewReplacer("{id}", lanegateID(1), "{n}", "1", "{name}", "nobody", "{file}", "docs.js")
	for _, rt := range e.api.routes() {
		name, target := rt.method+" "+rt.pattern, path.Replace(rt.pattern)
		if rt.role == RolePublic {
			if a := e.do(rt.method, target, ""); a.status != http.StatusOK {
				t.Errorf("%s is public, but without a token: %d", name, a.status)
			}
			continue
		}
		a := e.do(rt.method, target, bodies[name])
		a.refused(401, "token_required")
		if a.header.Get("WWW-Authenticate") != `Bearer realm="lanegate"` {
			t.Errorf("%s: 401 without WWW-Authenticate", name)
		}
		for _, role := range Roles {
			a := e.do(rt.method, target, bodies[name], e.auth[role]...)
			if forbidden := a.status == 403; forbidden == mayCall(role, rt) {
				t.Errorf("%s with a token of role %s: %d %s", name, role, a.status, a.body)
			}
			if a.status != 403 {
				continue
			}
			if p := a.refused(403, "role_insufficient"); !strings.Contains(p.Detail, "the-"+string(role)) || !strings.Contains(p.Detail, string(rt.role)) {
				t.Errorf("%s: %q does not name the token and the role it needs", name, p.Detail)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	e := newEveryone(t)
	good := strings.TrimPrefix(e.auth[RoleView][1], "Bearer ")
	for header, code := range map[string]string{
		"":                          "token_required",
		"Bearer":                    "token_required",
		"Basic dXNlcjpwYXNz":        "token_required",
		good:                        "token_required",
		"Bearer ":                   "token_unknown",
		"Bearer x":                  "token_unknown",
		"Bearer " + good + "x":      "token_unknown",
		"Bearer " + good[1:]:        "token_unknown",
		"Bearer " + HashToken(good): "token_unknown", // what the configuration holds opens nothing
	} {
		p := e.do("GET", "/jobs", "", "Authorization", header).refused(401, code)
		if strings.Contains(p.Detail, good) {
			t.Errorf("the answer repeats the token: %q", p.Detail)
		}
	}
	for _, header := range []string{"Bearer " + good, "bearer " + good, "BEARER  " + good + " "} {
		e.do("GET", "/jobs", "", "Authorization", header).want(200)
	}
	if strings.Contains(e.log.String(), good) {
		t.Error("a token is in the log")
	}
}

func TestNewTokenIsRandomAndNamed(t *testing.T) {
	a, sum := NewToken()
	b, _ := NewToken()
	if a == b || !strings.HasPrefix(a, "lg_") || len(a) != 3+43 {
		t.Errorf("tokens %q and %q", a, b)
	}
	if sum != HashToken(a) || len(sum) != 64 {
		t.Errorf("digest %q", sum)
	}
}

func TestWithoutTokensEverybodyIsLocal(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	if j := g.submit(`{"class":"c"}`, "Authorization", "Bearer whatever"); j.Client != "local" {
		t.Errorf("client %q, want local", j.Client)
	}
	g.do("DELETE", "/lanes/nobody", "").refused(404, "lane_not_found")
}

func TestMalformedTokenPanicsAtStart(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a digest that is not 64 hex digits was taken")
		}
	}()
	newGateway(t, func(s *setup) { s.api.Tokens = []Token{{Name: "x", Role: RoleView, SHA256: "abc"}} })
}

// A submit token sees its own jobs and no trace of others'.
func TestSubmitTokenSeesItsOwnJobs(t *testing.T) {
	mine, mineAuth := token("mine", RoleSubmit)
	theirs, theirsAuth := token("theirs", RoleSubmit)
	boss, bossAuth := token("boss", RoleOperate)
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{mine, theirs, boss} })
	g.class("c")
	a := g.submit(`{"class":"c"}`, mineAuth...)
	b := g.submit(`{"class":"c"}`, theirsAuth...)
	for _, path := range []string{"", "/attempts", "/output", "/wait?timeout=0s"} {
		g.do("GET", "/jobs/"+a.ID+path, "", mineAuth...).want(200)
		g.do("GET", "/jobs/"+b.ID+path, "", mineAuth...).refused(404, "job_not_found")
		g.do("GET", "/jobs/"+b.ID+path, "", bossAuth...).want(200)
	}
	list := func(auth []string) string {
		var ids []string
		for _, j := range into[struct{ Items []job }](g.do("GET", "/jobs", "", auth...).want(200)).Items {
			ids = append(ids, j.ID)
		}
		return strings.Join(ids, " ")
	}
	if got := list(mineAuth); got != a.ID {
		t.Errorf("my list: %s", got)
	}
	if got := list(bossAuth); got != b.ID+" "+a.ID {
		t.Errorf("the boss's list: %s", got)
	}
	// The same answer for a job of others and for none at all.
	none := g.do("GET", "/jobs/"+lanegateID(9), "", mineAuth...).refused(404, "job_not_found")
	other := g.do("GET", "/jobs/"+b.ID, "", mineAuth...).refused(404, "job_not_found")
	if none.Detail != other.Detail {
		t.Errorf("%q and %q tell them apart", none.Detail, other.Detail)
	}
}

func TestTokenRestrictedToClasses(t *testing.T) {
	limited, auth := token("limited", RoleAdmin, "c")
	boss, bossAuth := token("boss", RoleAdmin)
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{limited, boss} })
	g.class("c")
	g.class("other")
	g.resource("db", 5, false)
	mine := g.submit(`{"class":"c"}`, auth...)
	hidden := g.submit(`{"class":"other"}`, bossAuth...)

	g.do("POST", "/jobs", `{"class":"other"}`, auth...).refused(403, "role_insufficient")
	g.do("POST", "/jobs", `{"class":"invented"}`, auth...).refused(403, "role_insufficient")
	for _, path := range []string{"", "/attempts", "/output", "/wait?timeout=0s"} {
		g.do("GET", "/jobs/"+hidden.ID+path, "", auth...).refused(404, "job_not_found")
	}
	for _, action := range []string{"cancel", "retry", "run-next"} {
		g.do("POST", "/jobs/"+hidden.ID+"/"+action, "", auth...).refused(404, "job_not_found")
	}
	list := into[struct{ Items []job }](g.do("GET", "/jobs", "", auth...).want(200))
	if len(list.Items) != 1 || list.Items[0].ID != mine.ID {
		t.Errorf("list %+v, want %s only", list.Items, mine.ID)
	}
	g.do("GET", "/jobs?class=c&class=other", "", auth...).refused(403, "role_insufficient")

	for _, tt := range []struct{ method, path, body string }{
		{"GET", "", ""}, {"PUT", "", `{}`}, {"PATCH", "", `{}`}, {"DELETE", "", ""}, {"POST", "/pause", ""}, {"POST", "/resume", ""}, {"GET", "/history", ""}, {"GET", "/stats", ""},
	} {
		g.do(tt.method, "/job-classes/other"+tt.path, tt.body, auth...).refused(403, "role_insufficient")
	}
	g.do("POST", "/job-classes", `{"id":"third","run":{"kind":"exec","command":"true"}}`, auth...).refused(403, "role_insufficient")
	classes := into[struct{ Items []struct{ ID string } }](g.do("GET", "/job-classes", "", auth...).want(200))
	if len(classes.Items) != 1 || classes.Items[0].ID != "c" {
		t.Errorf("classes %+v, want c only", classes.Items)
	}
	g.do("POST", "/job-classes/c/pause", "", auth...).want(200)

	// What all classes share is read, not changed.
	g.do("GET", "/lanes/serial", "", auth...).want(200)
	g.do("GET", "/resources/db", "", auth...).want(200)
	g.do("POST", "/lanes/serial/pause", "", auth...).refused(403, "role_insufficient")
	g.do("PUT", "/lanes/long", `{}`, auth...).refused(403, "role_insufficient")
	g.do("PUT", "/resources/db", `{"capacity":1}`, auth...).refused(403, "role_insufficient")
	g.do("DELETE", "/resources/db", "", auth...).refused(403, "role_insufficient")
	for id, state := range map[string]lanegate.State{hidden.ID: lanegate.StateQueued, mine.ID: lanegate.StateQueued} {
		if j, err := g.store.Job(t.Context(), id); err != nil || j.State != state {
			t.Errorf("job %s: %v, %v", id, j.State, err)
		}
	}
}

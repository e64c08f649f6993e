package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// agents is a gateway with two agents' tokens, one of lanegate run, and a class of kind agent.
func agents(t *testing.T) *gateway {
	t.Helper()
	g := newGateway(t, func(s *setup) {
		s.api.Tokens = []Token{
			{Name: "one", Role: RoleAgent, SHA256: HashToken("one")}, {Name: "two", Role: RoleAgent, SHA256: HashToken("two")},
			{Name: "cron", Role: RoleRun, SHA256: HashToken("cron")}, {Name: "bound", Role: RoleRun, SHA256: HashToken("bound"), Classes: []string{"far"}},
		}
	})
	_, _, err := g.svc.PutClass(t.Context(), "far", lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunAgent, Command: "cmd"}}, service.ChangeOptions{Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func as(token string) []string { return []string{"Authorization", "Bearer " + token} }

const offer = `{"worker":"w-%s","slots":2,"free":2,"serial_free":true,"commands":{"cmd":"%s"}}`

func TestGrantsAreRunAndCompleted(t *testing.T) {
	g := agents(t)
	got := into[grantsResponse](g.do("POST", "/grants", fmt.Sprintf(offer, "1", "d1"), as("one")...).want(200))
	if len(got.Grants) != 0 || got.LeaseSeconds != 60 {
		t.Errorf("grants %+v", got)
	}
	// The class's fingerprint is about the definition that the agent told of.
	c, err := g.svc.Class(t.Context(), "far")
	if err != nil || c.CommandDigest != "d1" || c.Fingerprint != lanegate.Fingerprint(c.ClassSpec, "d1") {
		t.Errorf("class %+v, %v", c, err)
	}
	j := into[job](g.do("POST", "/jobs", `{"class":"far","payload":{"n": 1.50}}`, as("cron")...).want(201))
	got = into[grantsResponse](g.do("POST", "/grants", fmt.Sprintf(offer, "1", "d1"), as("one")...).want(200))
	if len(got.Grants) != 1 || got.Grants[0].Job != j.ID || got.Grants[0].Payload != `{"n": 1.50}` || got.Grants[0].Command != "cmd" {
		t.Fatalf("grants %+v", got)
	}
	held := into[beatResponse](g.do("POST", "/grants/heartbeat", `{"worker":"w-1"}`, as("one")...).want(200))
	if len(held.Attempts) != 1 || held.Attempts[0].Token != got.Grants[0].Token {
		t.Errorf("held %+v", held)
	}
	f := lanegate.Fence{Job: j.ID, Number: 1, Token: got.Grants[0].Token}
	g.do("POST", attemptPath(f, "complete"), `{"outcome":"succeeded"}`, bearerOf(f)...).want(200)
	g.do("POST", "/grants/leave", `{"worker":"w-1"}`, as("one")...).want(204)
	g.do("POST", "/grants/leave", `{"worker":"w-1"}`, as("one")...).want(204)
	g.do("POST", "/grants", fmt.Sprintf(offer, "1", "d1"), as("one")...).refused(409, "worker_not_live")
}

func TestAgentsAnswerToTheirTokenOnly(t *testing.T) {
	g := agents(t)
	if err := g.svc.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w-gateway", Slots: 1}); err != nil {
		t.Fatal(err)
	}
	g.do("POST", "/grants", fmt.Sprintf(offer, "1", "d1"), as("one")...).want(200)
	for _, worker := range []string{"w-1", "w-gateway", "w-nobody"} {
		body := `{"worker":"` + worker + `"}`
		g.do("POST", "/grants/heartbeat", body, as("two")...).refused(409, "worker_not_live")
		g.do("POST", "/grants/leave", body, as("two")...).want(204) // which changes nothing
	}
	g.do("POST", "/grants", fmt.Sprintf(offer, "1", "d2"), as("two")...).refused(409, "worker_not_live")
	if live, err := g.svc.LiveWorkers(t.Context()); err != nil || len(live) != 2 {
		t.Errorf("live %+v, %v", live, err)
	}
	// A job on the spot needs an agent of the same token, and a command for the class.
	for worker, says := range map[string]string{"w-1": "no live agent of this token", "w-gateway": "no live agent"} {
		p := g.do("POST", "/jobs", `{"class":"far","worker":"`+worker+`"}`, as("cron")...).refused(422, "invalid_fields")
		if p.Fields[0].Pointer != "/worker" || !strings.Contains(p.Fields[0].Detail, says) {
			t.Errorf("%s: %+v", worker, p.Fields)
		}
	}
	g.do("POST", "/grants", fmt.Sprintf(offer, "b", "d1"), as("bound")...).refused(403, "role_insufficient")
	here := `{"worker":"w-b","slots":1,"free":1,"serial_free":true,"commands":{"here:far":"argv"}}`
	g.do("POST", "/grants", here, as("bound")...).want(200)
	j := into[job](g.do("POST", "/jobs", `{"class":"far","worker":"w-b"}`, as("bound")...).want(201))
	if got := into[grantsResponse](g.do("POST", "/grants", here, as("bound")...).want(200)); len(got.Grants) != 1 || got.Grants[0].Job != j.ID {
		t.Errorf("grants %+v", got)
	}
}

func TestAgentsQuestionsAreChecked(t *testing.T) {
	g := agents(t)
	for body, pointer := range map[string]string{
		`{"worker":"W 1","slots":1,"free":0,"serial_free":false,"commands":{}}`:              "/worker",
		`{"worker":"w","slots":1,"free":2,"serial_free":false,"commands":{}}`:                "/free",
		`{"worker":"w","slots":-1,"free":-1,"serial_free":false,"commands":{}}`:              "/slots",
		`{"worker":"w","slots":1,"free":1,"serial_free":false,"commands":{"A b":"x"}}`:       "/commands",
		`{"worker":"w","slots":1,"free":1,"serial_free":false,"commands":{"a":""}}`:          "/commands/a",
		`{"worker":"w","slots":1,"free":1,"serial_free":false,"commands":{},"wait":"31s"}`:   "/wait",
		`{"worker":"w","slots":1,"free":1,"serial_free":false,"commands":{},"lanes":["No"]}`: "/lanes",
	} {
		if p := g.do("POST", "/grants", body, as("one")...).refused(422, "invalid_fields"); p.Fields[0].Pointer != pointer {
			t.Errorf("%s points at %+v, want %s", body, p.Fields, pointer)
		}
	}
}

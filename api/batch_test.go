package api

import (
	"strings"
	"testing"
)

func TestSubmitBatch(t *testing.T) {
	tok, auth := token("cron", RoleSubmit, "a", "b")
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{tok} })
	g.class("a")
	g.class("b")
	g.class("secret")
	type item struct {
		Status   int
		Replayed bool
		Job      *job
		Problem  *problem
	}
	type batch struct{ Items []item }
	post := func(body string) answer { return g.do("POST", "/jobs/batch", body, auth...) }
	res := into[batch](post(`{"jobs":[
		{"class":"a","payload":{"n":1e400},"idempotency_key":"k"},
		{"class":"nope"}, {"class":"secret"}, {"payload":1}, {"class":"b","if_failed":"x"},
		{"class":"a","payload":{"n":1e400},"idempotency_key":"k"},
		{"class":"a","payload":2,"idempotency_key":"k"},
		{"class":"b","payload":""}]}`).want(200))
	want := []struct {
		status int
		code   string
	}{{201, ""}, {403, "role_insufficient"}, {403, "role_insufficient"}, {422, "invalid_fields"}, {422, "invalid_fields"}, {200, ""}, {422, "idempotency_key_reused"}, {201, ""}}
	if len(res.Items) != len(want) {
		t.Fatalf("%d items, want %d", len(res.Items), len(want))
	}
	for i, w := range want {
		got := res.Items[i]
		if got.Status != w.status || (got.Problem == nil) != (w.code == "") || (got.Problem != nil && got.Problem.Code != w.code) || (got.Job == nil) != (w.code != "") {
			t.Errorf("item %d: %+v %+v, want %v", i, got, got.Problem, w)
		}
	}
	if a, b := res.Items[0], res.Items[5]; !b.Replayed || a.Job.ID != b.Job.ID || string(a.Job.Payload) != `{"n":1e400}` {
		t.Errorf("replay inside a batch: %+v, %+v", a.Job, b.Job)
	}
	if n := g.count(); n != 2 {
		t.Errorf("%d jobs, want 2", n)
	}
	post(`{"jobs":[]}`).refused(422, "bad_batch")
	post(`{}`).refused(422, "bad_batch")
	post(`{"jobs":null}`).refused(422, "bad_batch")
	post(`{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"class":"a"},`, 1001), ",")+`]}`).refused(422, "bad_batch")
	if p := post(`[{"class":"a"}]`).refused(422, "array_body"); !strings.Contains(p.Detail, `{"jobs": `) {
		t.Errorf("%q does not say how to send many", p.Detail)
	}
	if p := post(`{"jobs":[{"class":"a"},{"clas":"a"}]}`).refused(422, "unknown_field"); p.Fields[0].Pointer != "/jobs/1/clas" || !strings.Contains(p.Fields[0].Detail, `"class"`) {
		t.Errorf("fields %v", p.Fields)
	}
	post(`{"jobs":[{"class":"a","payload":"\ud800"}]}`).refused(422, "lone_surrogate")
	if n := g.count(); n != 2 {
		t.Errorf("%d jobs after refused batches, want 2", n)
	}
	all := into[batch](post(`{"jobs":[` + strings.TrimSuffix(strings.Repeat(`{"class":"a"},`, 1000), ",") + `]}`).want(200))
	for i := 1; i < len(all.Items); i++ {
		if all.Items[i-1].Job.ID >= all.Items[i].Job.ID {
			t.Fatalf("ids of items %d and %d do not ascend", i-1, i)
		}
	}
}

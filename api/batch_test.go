package api

import (
	"strings"
	"testing"
)

type batch struct {
	Items []struct {
		Status   int
		Replayed bool
		Job      *job
		Problem  *problem
	}
}

func TestSubmitBatch(t *testing.T) {
	tok, auth := token("cron", RoleSubmit, "a", "b")
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{tok} })
	g.class("a")
	g.class("b")
	g.class("secret")
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
	if a, b := res.Items[0], res.Items[5]; !b.Replayed || a.Job.ID != b.Job.ID {
		t.Errorf("replay inside a batch: %+v, %+v", a.Job, b.Job)
	}
	if n := g.count(); n != 2 {
		t.Errorf("%d jobs, want 2", n)
	}
	post(`{"jobs":[]}`).refused(422, "bad_batch")
	post(`{}`).refused(422, "bad_batch")
	post(`{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"class":"a"},`, 1001), ",")+`]}`).refused(422, "bad_batch")
	if p := post(`[{"class":"a"}]`).refused(422, "array_body"); !strings.Contains(p.Detail, `{"jobs": `) {
		t.Errorf("%q does not say how to send many", p.Detail)
	}
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

// A job that can't even be read is refused in its place, as it would be alone,
// and the others stand.
func TestBatchItemsFailAlone(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.api.MaxPayload, s.service.MaxPayload = 1000, 1000 })
	g.class("c")
	const good = `{"class":"c","payload":{"n": 1e400}}`
	for _, tt := range []struct {
		name, item string
		status     int
		code       string
		pointer    string
		says       string
	}{
		{"an unknown field", `{"class":"c","clas":"a"}`, 422, "unknown_field", "/clas", `did you mean \"class\"?`},
		{"a wrong type", `{"class":7}`, 422, "wrong_type", "/class", "a number"},
		{"a time that is none", `{"class":"c","run_at":"tomorrow"}`, 422, "wrong_type", "/run_at", "RFC 3339"},
		{"no class", `{"payload":1}`, 422, "invalid_fields", "/class", "required"},
		{"a class twice", `{"class":"c","class":"c"}`, 422, "duplicate_key", "/class", "twice"},
		{"a payload key twice", `{"class":"c","payload":{"a":[{"b":1,"b":2}]}}`, 422, "duplicate_key", "/payload/a/0/b", "twice"},
		{"NUL", `{"class":"c","payload":"\u0000"}`, 422, "nul_character", "/payload", "U+0000"},
		{"half a pair", `{"class":"c","payload":"\ud800"}`, 422, "lone_surrogate", "/payload", "surrogate"},
		{"too deep", `{"class":"c","payload":` + nested(600) + `}`, 422, "too_deep", "/payload", "deeper than"},
		{"far too deep", `{"class":"c","payload":` + nested(4000) + `}`, 422, "too_deep", "/payload", "deeper than"},
		{"a payload over the limit", `{"class":"c","payload":"` + strings.Repeat("x", 1000) + `"}`, 413, "payload_too_large", "", "1002 bytes"},
		{"a job over the limit", `{"class":"c","payload":"` + strings.Repeat("x", 10000) + `"}`, 413, "body_too_large", "", "the limit is 9192"},
		{"null", `null`, 422, "not_an_object", "", "each job is a JSON object"},
		{"an array", `[{"class":"c"}]`, 422, "not_an_object", "", "each job is a JSON object"},
		{"a string", `"c"`, 422, "not_an_object", "", ""},
		{"a number", `1e400`, 422, "not_an_object", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := *g
			g.TB = t
			before := g.count()
			a := g.do("POST", "/jobs/batch", `{"jobs":[`+good+` , `+tt.item+`,`+good+`]}`).want(200)
			res := into[batch](a)
			if len(res.Items) != 3 || res.Items[0].Status != 201 || res.Items[2].Status != 201 || g.count() != before+2 {
				t.Fatalf("%d jobs more, answer %s", g.count()-before, a.body)
			}
			if kept := g.do("GET", res.Items[2].Job.Links["self"], "").want(200).body; !strings.Contains(string(kept), `{"n": 1e400}`) {
				t.Errorf("the payload behind it was not kept: %s", kept)
			}
			got := res.Items[1]
			if got.Status != tt.status || got.Problem == nil || got.Problem.Code != tt.code || got.Problem.Status != tt.status || got.Job != nil {
				t.Fatalf("answer %s, want %d %s", a.body, tt.status, tt.code)
			}
			pointer := ""
			if len(got.Problem.Fields) > 0 {
				pointer = got.Problem.Fields[0].Pointer
			}
			if pointer != tt.pointer || !strings.Contains(string(a.body), tt.says) {
				t.Errorf("points at %q: %s, want %q and %q", pointer, a.body, tt.pointer, tt.says)
			}
			if !strings.Contains(got.Problem.Detail, "his job was not enqueued") || strings.Contains(got.Problem.Detail, "othing was") {
				t.Errorf("%q does not speak of this job alone", got.Problem.Detail)
			}
		})
	}
	t.Run("all of them", func(t *testing.T) {
		before := g.count()
		res := into[batch](g.do("POST", "/jobs/batch", `{"jobs":[1,{},"x"]}`).want(200))
		if len(res.Items) != 3 || res.Items[1].Problem.Code != "invalid_fields" || g.count() != before {
			t.Errorf("%+v", res.Items)
		}
	})
}

// A document that is none is refused whole, whatever good jobs it holds.
func TestBatchDocumentsAreRefusedWhole(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.api.MaxBatch = 100_000 })
	g.class("c")
	const good = `{"class":"c"}`
	for name, tt := range map[string]struct {
		body    string
		status  int
		code    string
		pointer string
	}{
		"empty":                     {" ", 400, "empty_body", ""},
		"cut off":                   {`{"jobs":[` + good, 400, "bad_json", ""},
		"an item that is no JSON":   {`{"jobs":[` + good + `,{"class":c}]}`, 400, "bad_json", ""},
		"a comma too many":          {`{"jobs":[` + good + `,]}`, 400, "bad_json", ""},
		"Latin-1":                   {`{"jobs":[` + good + `,{"class":"c","payload":"` + "\xf8" + `"}]}`, 400, "invalid_utf8", ""},
		"data behind":               {`{"jobs":[` + good + `]}]`, 422, "trailing_data", ""},
		"another behind":            {`{"jobs":[` + good + `]}{"jobs":[` + good + `]}`, 422, "trailing_data", ""},
		"jobs twice":                {`{"jobs":[` + good + `],"jobs":[` + good + `]}`, 422, "duplicate_key", "/jobs"},
		"another field":             {`{"jobs":[` + good + `],"job":1}`, 422, "unknown_field", "/job"},
		"jobs is null":              {`{"jobs":null}`, 422, "wrong_type", "/jobs"},
		"jobs is an object":         {`{"jobs":{"class":"c"}}`, 422, "wrong_type", "/jobs"},
		"one job":                   {good, 422, "unknown_field", "/class"},
		"an array":                  {`[` + good + `]`, 422, "array_body", ""},
		"a string":                  {`"c"`, 422, "not_an_object", ""},
		"deeper than can be read":   {`{"jobs":[` + good + `,` + nested(10_000) + `]}`, 422, "too_deep", "*"},
		"brackets":                  {`{"jobs":` + strings.Repeat("[", 50_000), 422, "too_deep", "*"},
		"larger than a batch":       {`{"jobs":[` + good + `,"` + strings.Repeat("x", 100_000) + `"]}`, 413, "body_too_large", ""},
		"more jobs than may be":     {`{"jobs":[` + strings.Repeat(good+",", 1000) + good + `]}`, 422, "bad_batch", "/jobs"},
		"far more":                  {`{"jobs":[` + strings.Repeat("0,", 30_000) + `0]}`, 422, "bad_batch", "/jobs"},
		"far more, then no JSON":    {`{"jobs":[` + strings.Repeat("0,", 30_000) + `]}`, 400, "bad_json", ""},
		"no job":                    {`{"jobs":[ ]}`, 422, "bad_batch", "/jobs"},
		"no jobs":                   {`{}`, 422, "bad_batch", "/jobs"},
		"a member without a value":  {`{"jobs"}`, 400, "bad_json", ""},
		"a byte order mark":         {"\ufeff{}", 400, "bad_json", ""},
		"no JSON at all":            {"class=c", 400, "bad_json", ""},
		"two values without braces": {`1 2`, 422, "not_an_object", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := *g
			g.TB = t
			p := g.do("POST", "/jobs/batch", tt.body).refused(tt.status, tt.code)
			pointer := ""
			if len(p.Fields) > 0 {
				pointer = p.Fields[0].Pointer
			}
			if pointer != tt.pointer && tt.pointer != "*" {
				t.Errorf("points at %q, want %q", pointer, tt.pointer)
			}
			if !strings.Contains(p.Detail, "othing was enqueued") {
				t.Errorf("%q does not say what became of the jobs", p.Detail)
			}
		})
	}
	if n := g.count(); n != 0 {
		t.Errorf("%d jobs were enqueued", n)
	}
}

// One key can't stand for a batch; ignored, it would let a repeat run every job twice.
func TestBatchRefusesTheKeyHeader(t *testing.T) {
	g := newGateway(t)
	g.class("a")
	a := g.do("POST", "/jobs/batch", `{"jobs":[{"class":"a"}]}`, "Idempotency-Key", "k").want(400)
	if p := into[problem](a); p.Code != "idempotency_key_of_batch" {
		t.Errorf("code %s", p.Code)
	}
	if n := len(into[struct{ Items []job }](g.do("GET", "/jobs", "").want(200)).Items); n != 0 {
		t.Errorf("%d jobs were enqueued", n)
	}
}

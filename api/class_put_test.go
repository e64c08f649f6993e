package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate/service"
)

// A pause is what people set and unset at night; who edits a class without a word
// of it changes nothing about it.
func TestClassPutKeepsThePause(t *testing.T) {
	g := newGateway(t)
	const run = `"run":{"kind":"exec","command":"true"}`
	put := func(rest string) bool {
		t.Helper()
		return document(g.do("PUT", "/job-classes/c", `{`+run+rest+`}`))["paused"] == true
	}
	if put("") {
		t.Error("a new class is paused")
	}
	g.do("POST", "/job-classes/c/pause", "").want(200)
	if !put(`,"description":"edited"`) {
		t.Error("a PUT without paused resumed the class")
	}
	if put(`,"paused":false`) {
		t.Error("paused false did not resume it")
	}
	if !put(`,"paused":true`) || !put("") {
		t.Error("paused true did not pause it")
	}
	if doc := document(g.do("PATCH", "/job-classes/c", `{"paused":null}`).want(200)); doc["paused"] != false {
		t.Errorf("a patch that removes paused: %v", doc)
	}
}

// What a PUT says it has read is judged while nobody else can change the class.
func TestClassPutIsJudgedWhereItIsDone(t *testing.T) {
	var between func()
	g := newGateway(t, func(s *setup) {
		s.wrap = func(st service.Store) service.Store { return &interrupted{Store: st, before: &between} }
	})
	shown := g.do("PUT", "/job-classes/c", `{"run":{"kind":"exec","command":"true"}}`).want(201)
	between = func() {
		g.must(g.store.Change(t.Context(), func(tx service.ConfigTx) error {
			cfg, err := tx.Config()
			if err != nil {
				return err
			}
			c := cfg.Classes[0]
			c.Description, c.UpdatedAt = "of somebody faster", c.UpdatedAt.Add(time.Second)
			return tx.SaveClass(c)
		}))
	}
	p := g.do("PUT", "/job-classes/c", string(shown.body)).refused(422, "invalid_fields")
	if p.Fields[0].Pointer != "/updated_at" || !strings.Contains(p.Fields[0].Detail, "changed since you read it") {
		t.Errorf("fields %v", p.Fields)
	}
	if doc := document(g.do("GET", "/job-classes/c", "").want(200)); doc["description"] != "of somebody faster" {
		t.Errorf("overwritten: %v", doc)
	}
}

// interrupted is a store where somebody else is faster by one change.
type interrupted struct {
	service.Store
	before *func()
}

func (s *interrupted) Change(ctx context.Context, fn func(service.ConfigTx) error) error {
	if f := *s.before; f != nil {
		*s.before = nil
		f()
	}
	return s.Store.Change(ctx, fn)
}

// A duration that can't be meant is refused with what is true of it, wherever a
// class declares one, by every way of declaring it.
func TestClassDurations(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	const run = `"run":{"kind":"http","url":"http://x/"`
	for _, body := range []string{
		`{` + run + `},"timeout":%s}`, `{` + run + `},"warn_after":%s}`, `{` + run + `},"fresh_within":%s}`,
		`{` + run + `},"backoff":{"base":%s}}`, `{` + run + `},"backoff":{"max":%s}}`, `{` + run + `,"mode":"async","heartbeat":%s}}`,
	} {
		for value, says := range map[string]string{
			`"0s"`: "at least 1ms; to have none, or the default, leave the field out", `"0"`: "at least 1ms", `"1ns"`: "at least 1ms",
			`"999us"`: "at least 1ms", `"-1s"`: "must not be negative", `"-99999999h"`: "must not be negative",
			`"99999999h"`: "is too long: at most 87840h, which is ten years", `"87841h"`: "is too long: at most 87840h",
			`"soon"`: "is not a duration", `90`: "must be a duration in quotes", `{}`: "must be a duration in quotes",
		} {
			doc := fmt.Sprintf(body, value)
			for _, a := range []answer{
				g.do("PUT", "/job-classes/c", doc), g.do("PATCH", "/job-classes/c", doc), g.do("POST", "/job-classes", `{"id":"d",`+doc[1:]),
			} {
				if p := a.refused(422, "wrong_type"); !strings.Contains(p.Fields[0].Detail, says) {
					t.Errorf("%s: %v, want %q", doc, p.Fields, says)
				}
			}
		}
		least := `"1ms"`
		if strings.Contains(body, "heartbeat") {
			p := g.do("PUT", "/job-classes/c", fmt.Sprintf(body, least)).refused(422, "invalid_fields")
			if p.Fields[0].Pointer != "/run/heartbeat" || !strings.Contains(p.Fields[0].Detail, "from 1s to 24h") {
				t.Errorf("a heartbeat of 1ms: %v", p.Fields)
			}
			least = `"1s"`
		}
		g.do("PUT", "/job-classes/c", fmt.Sprintf(body, least)).want(200)
	}
	g.do("GET", "/job-classes/d", "").refused(404, "class_not_found")
}

func TestClassBackoffIsCompleted(t *testing.T) {
	g := newGateway(t)
	const run = `{"run":{"kind":"exec","command":"true"}`
	for _, tt := range []struct{ backoff, base, max string }{
		{`{"base":"2h"}`, "2h", "2h"}, {`{"base":"1s"}`, "1s", "1h"}, {`{"max":"5s"}`, "5s", "5s"}, {`{"max":"9h"}`, "30s", "9h"}, {`{}`, "30s", "1h"},
	} {
		doc := document(g.do("PUT", "/job-classes/c", run+`,"backoff":`+tt.backoff+`}`))
		if want := map[string]any{"base": tt.base, "max": tt.max}; !cmp.Equal(doc["backoff"], want) {
			t.Errorf("%s is stored as %v, want %v", tt.backoff, doc["backoff"], want)
		}
	}
	if doc := document(g.do("PATCH", "/job-classes/c", `{"backoff":{"base":"2h","max":null}}`).want(200)); !cmp.Equal(doc["backoff"], map[string]any{"base": "2h", "max": "2h"}) {
		t.Errorf("patched to %v", doc["backoff"])
	}
}

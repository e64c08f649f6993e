package api

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// importText is nights in which heavy holds up five short classes.
func importText() string {
	var s strings.Builder
	s.WriteString("kind,submitted,started,finished,status\n")
	begin := time.Now().UTC().Add(-6 * 24 * time.Hour).Truncate(time.Minute)
	for night := range 5 {
		at := func(minutes int) string {
			return begin.Add(time.Duration(night*24*60+minutes) * time.Minute).Format(time.RFC3339)
		}
		fmt.Fprintf(&s, "heavy,%s,%s,%s,success\n", at(0), at(0), at(900))
		for i := range 5 {
			fmt.Fprintf(&s, "c%d,%s,%s,%s,success\n", i, at(1), at(900+3*i), at(903+3*i))
		}
	}
	s.WriteString("late,2001-01-01T00:00:00Z,2001-01-01T00:00:00Z,2001-01-01T00:01:00Z,success\n")
	return s.String()
}

func TestRunLogIsImportedAndAdvisedOn(t *testing.T) {
	g := newGateway(t)
	g.do("GET", "/advice", "").refused(404, "no_runs")
	for i, want := range []string{`"added":30,"already_there":0`, `"added":0,"already_there":30`} {
		a := g.do("POST", "/run-log?columns=class%3Dkind", importText(), "Content-Type", "text/csv").want(200)
		if text := string(a.body); !strings.Contains(text, want) || !strings.Contains(text, `"rows":31,"used":30`) || !strings.Contains(text, "ended before the time that the run log is kept for") {
			t.Errorf("import %d: %s", i, text)
		}
	}
	g.do("POST", "/run-log?columns=nonsense", importText(), "Content-Type", "text/csv").refused(400, "bad_parameter")
	g.do("POST", "/run-log", "this is no log\n1\n", "Content-Type", "text/plain").refused(422, "bad_run_log")
	g.do("POST", "/run-log", "\x1f\x8b rest", "Content-Type", "text/csv").refused(415, "unsupported_media_type")
	g.do("POST", "/run-log", "x", "Content-Type", "multipart/form-data; boundary=x").refused(415, "unsupported_media_type")

	// The window is another than that of the first question, whose answer is kept.
	page := g.do("GET", "/advice?window=8d", "", "Accept", "text/html,*/*").want(200)
	if typ := page.header.Get("Content-Type"); !strings.HasPrefix(typ, "text/html") || !strings.Contains(string(page.body), "Isolate heavy") {
		t.Errorf("page %s: %.200s", typ, page.body)
	}
	if text := string(g.do("GET", "/advice?window=8d", "").want(200).body); !strings.Contains(text, `"kind":"isolate"`) || !strings.Contains(text, `"verify_cli":"lanegate verify heavy`) {
		t.Errorf("report %.300s", text)
	}
	if text := string(g.do("GET", "/advice?window=8d&format=text", "", "Accept", "text/html").want(200).body); !strings.HasPrefix(text, "Isolate heavy") {
		t.Errorf("text %.200s", text)
	}
	if text := string(g.do("GET", "/advice?compare=promotion", "").want(200).body); !strings.Contains(text, "nothing to compare") {
		t.Errorf("comparison %s", text)
	}
	g.do("GET", "/advice?compare=promotion&format=html", "").refused(400, "bad_parameter")
	g.do("GET", "/advice?format=pdf", "").refused(400, "bad_parameter")
}

func TestFreshnessAnswer(t *testing.T) {
	g := newGateway(t)
	g.do("PUT", "/job-classes/pos", `{"run":{"kind":"http","url":"http://127.0.0.1:1/"},"fresh_within":"1h"}`).want(201)
	if text := string(g.do("GET", "/freshness", "").want(200).body); !strings.Contains(text, `"items":[]`) {
		t.Errorf("freshness %s", text)
	}
	text := string(g.do("GET", "/freshness?all=true", "").want(200).body)
	for _, want := range []string{`"class":"pos","status":"fresh"`, `"expected_finish":null`, `"expected_finish_reason":"not foretold yet`, `"in_the_way":[],"help":[]`} {
		if !strings.Contains(text, want) {
			t.Errorf("freshness %s lacks %s", text, want)
		}
	}
}

// Advice, imports and freshness are about the whole gateway.
func TestRestrictedTokensGetNoAdvice(t *testing.T) {
	tok, secret := token("a", RoleAdmin)
	tok.Classes = []string{"pos"}
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{tok} })
	for _, c := range [][2]string{{"GET", "/advice"}, {"POST", "/run-log"}, {"GET", "/freshness"}} {
		g.do(c[0], c[1], "", secret...).refused(403, "role_insufficient")
	}
}

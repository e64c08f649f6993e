package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A page may be short, or empty, and name a next one: the command goes on until it
// has what was asked for, or the list ends.
func TestJobsGoesOnBehindShortPages(t *testing.T) {
	pages := map[string]string{
		"limit=3&state=failed":           `{"items":[],"next_cursor":"p2"}`,
		"cursor=p2&limit=3&state=failed": `{"items":[{"id":"j1","class":"a","state":"failed","reason":"first"}],"next_cursor":"p3"}`,
		"cursor=p3&limit=2&state=failed": `{"items":[{"id":"j2","class":"a","state":"failed","reason":"second"},{"id":"j3","class":"a","state":"failed","reason":"third"}],"next_cursor":"p4"}`,
		"limit=9&state=failed":           `{"items":[{"id":"j1","class":"a","state":"failed","reason":"first"}],"next_cursor":"p9"}`,
		"cursor=p9&limit=8&state=failed": `{"items":[]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Query().Encode()]
		if !ok {
			t.Errorf("asked for %s", r.URL)
		}
		io.WriteString(w, page)
	}))
	t.Cleanup(s.Close)
	runLine(t, "", nil, "jobs", "--state", "failed", "--limit", "3", "--url", s.URL).want(t, 0, "third\n", "")
	runLine(t, "", nil, "jobs", "--state", "failed", "--limit", "9", "--url", s.URL).want(t, 0, "first\n", "")
}

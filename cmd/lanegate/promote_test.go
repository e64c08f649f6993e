package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What must be accepted is said in the words of the command line.
func TestPromoteSpeaksInFlags(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("dry_run") == "true" {
			io.WriteString(w, `{"classes":[{"id":"a","lane":"parallel","max_in_flight":2}],"changed":true,
 "consequences":{"widths":[{"lane":"parallel","before":10,"after":2}],"needs":["accept=width"]}}`)
			return
		}
		w.WriteHeader(http.StatusConflict)
		message := "the width in force of lane parallel would go down from 10 to 2. Repeat with ?accept=width if that is meant."
		io.WriteString(w, `{"code":"promotion_refused","detail":"not promoted: `+message+`","details":{"conditions":[{"code":"width_lowered","message":"`+message+`"}]}}`)
	}))
	t.Cleanup(s.Close)
	runLine(t, "", nil, "promote", "a", "--dry-run", "--url", s.URL).want(t, 0, "needed: --accept-width\n", "")
	o := runLine(t, "", nil, "promote", "a", "--url", s.URL)
	o.want(t, exitVerifyRefused, "", "Repeat with --accept-width if that is meant.")
	if strings.Contains(o.err, "?accept") {
		t.Errorf("speaks of query parameters:\n%s", o.err)
	}
}

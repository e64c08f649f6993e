package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lanegate/lanegate/service"
)

// A drain that meets nothing but jobs which can't be sent ends with what to do, before
// it has more of them to name than the gateway takes.
func TestDrainEndsWhenTooManyCanNotBeSent(t *testing.T) {
	n, most := 0, 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Skip   []string `json:"skip"`
			Limit  int      `json:"limit"`
			DryRun bool     `json:"dry_run"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		if most = max(most, len(q.Skip)); len(q.Skip) > service.MaxHandOverSkip {
			w.WriteHeader(http.StatusUnprocessableEntity) // as the gateway does
			return
		}
		if q.DryRun {
			fmt.Fprint(w, `{"counts": {"queued": 5000}}`)
			return
		}
		var out handedOver
		for range q.Limit {
			n++
			out.Left = append(out.Left, struct {
				ID  string `json:"id"`
				Why string `json:"why"`
			}{fmt.Sprint("job-", n), "its payload is too large for a message"})
		}
		if err := json.NewEncoder(w).Encode(out); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	o := runLine(t, "", nil, "drain", "--to-sqs", "http://127.0.0.1:1/0/out", "--region", "eu-west-1", "--endpoint", "http://127.0.0.1:1", "--allow-http", "--url", srv.URL)
	o.want(t, 1, "0 jobs sent", "job-1 stays: its payload is too large for a message")
	o.want(t, 1, "", "jobs can't be sent, see above why: mend that and do it again")
	if most > service.MaxHandOverSkip {
		t.Errorf("a request named %d jobs to skip, the gateway takes %d", most, service.MaxHandOverSkip)
	}
}

package api

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/lanegate/lanegate"
)

// A gateway that is stopping refuses what would start a job, and nothing else:
// people still see, cancel and change what they need to.
func TestDrainingRefusesNewWorkOnly(t *testing.T) {
	var draining atomic.Bool
	g := newGateway(t, func(s *setup) { s.api.Draining = draining.Load })
	g.class("c")
	queued, second := g.submit(`{"class":"c","idempotency_key":"k"}`), g.submit(`{"class":"c"}`)
	w := g.worker()
	failed := g.admit(w)[0]
	g.end(failed, lanegate.Ending{Outcome: lanegate.Failed, Error: "why"})
	if failed.Job.ID != queued.ID {
		t.Fatalf("%s started first, want %s", failed.Job.ID, queued.ID)
	}
	jobs := g.count()

	draining.Store(true)
	for path, body := range map[string]string{
		"/jobs":                             `{"class":"c"}`,
		"//jobs/":                           `{"class":"c"}`,
		"/jobs/batch":                       `{"jobs":[{"class":"c"}]}`,
		"/jobs/" + failed.Job.ID + "/retry": "",
		"/jobs/" + second.ID + "/run-next":  "",
	} {
		a := g.do("POST", path, body)
		a.refused(http.StatusServiceUnavailable, "draining")
		if a.header.Get("Retry-After") != "5" || a.header.Get("Connection") != "close" {
			t.Errorf("POST %s: header %v, want a time to come back and the connection's end", path, a.header)
		}
	}
	if n := g.count(); n != jobs {
		t.Errorf("%d jobs, want %d: something was enqueued", n, jobs)
	}
	if j := g.job(failed.Job.ID); j.State != "failed" {
		t.Errorf("the refused retry left the job %s", j.State)
	}
	for _, path := range []string{"/jobs", "/jobs/" + second.ID, "/jobs/" + failed.Job.ID + "/attempts", "/job-classes/c", "/lanes", "/livez", "/metrics"} {
		g.do("GET", path, "").want(http.StatusOK)
	}
	g.do("POST", "/job-classes/c/pause", "").want(http.StatusOK)
	if j := into[job](g.do("POST", "/jobs/"+second.ID+"/cancel", "").want(http.StatusOK)); j.State != "cancelled" {
		t.Errorf("cancelled job is %s", j.State)
	}

	draining.Store(false)
	g.submit(`{"class":"c"}`)
}

package api

import (
	"net/http"
	"testing"
)

// What a call without a body is given anyway is refused, never ignored.
func TestActionsTakeNoBody(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	job := into[job](g.do("POST", "/jobs", `{"class":"c"}`).want(http.StatusCreated))
	for _, path := range []string{"/job-classes/c/pause", "/job-classes/c/resume", "/lanes/serial/pause", "/lanes/serial/resume", "/jobs/" + job.ID + "/run-next"} {
		g.do("POST", path, `{"reason":"tonight"}`).refused(http.StatusUnprocessableEntity, "body_not_taken")
		g.do("POST", path, `{"reason":`).refused(http.StatusBadRequest, "bad_json")
		g.do("POST", path, `{}`).want(http.StatusOK)
		g.do("POST", path, "").want(http.StatusOK)
	}
	g.do("POST", "/jobs/"+job.ID+"/cancel", `{"zz":`).refused(http.StatusBadRequest, "bad_json")
	if got := into[struct{ State string }](g.do("GET", "/jobs/"+job.ID, "").want(http.StatusOK)); got.State != "queued" {
		t.Errorf("a refused cancel left the job %s", got.State)
	}
}

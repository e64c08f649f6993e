package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// A dry run is answered with all that the change would do and needs, at once.
func TestDryRunNeeds(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, true)
	g.class("fast", promoted(2, lanegate.Units{"db": 1}))
	g.class("other", promoted(2, lanegate.Units{"db": 1}))
	const edit = `{"units":{"db":14}}`
	g.do("PATCH", "/job-classes/fast", edit).refused(http.StatusConflict, "would_demote")
	dry := func(query string) consequencesResponse {
		t.Helper()
		return into[dryRunResponse](g.do("PATCH", "/job-classes/fast?dry_run=true"+query, edit).want(http.StatusOK)).Consequences
	}
	got := dry("")
	if !cmp.Equal(got.Needs, []string{"demote=true", "accept=width"}) || !cmp.Equal(got.Demotes, []string{"fast"}) || len(got.Widths) != 1 {
		t.Errorf("consequences %+v", got)
	}
	if got := dry("&demote=true&accept=width"); got.Needs != nil || len(got.Widths) != 1 {
		t.Errorf("all accepted: %+v", got)
	}
	g.do("PATCH", "/job-classes/fast?dry_run=true", `{"units":{"nothing":1}}`).refused(http.StatusUnprocessableEntity, "invalid_fields")
	if c := into[classDocument](g.do("GET", "/job-classes/fast", "").want(http.StatusOK)); c.Lane != lanegate.LaneParallel || c.Units["db"] != 1 {
		t.Errorf("the dry run changed it: %+v", c)
	}
}

// What a call can't need to have accepted, it does not take.
func TestAcceptWhereItMeansSomething(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for _, target := range []string{
		"POST /job-classes/c/pause?accept=width", "POST /job-classes/c/demote?demote=true", "POST /lanes/parallel/pause?demote=true",
		"DELETE /job-classes/c?demote=true", "PATCH /job-classes/c/demote?accept=width",
	} {
		method, path, _ := strings.Cut(target, " ")
		g.do(method, path, "").refused(http.StatusBadRequest, "bad_parameter")
	}
	g.do("DELETE", "/job-classes/c?accept=width", "").want(http.StatusNoContent)
}

// A job that a verification run made up names it, like its attempt.
func TestMadeUpJobNamesItsRun(t *testing.T) {
	g := newGateway(t)
	g.class("a", repeatable)
	worker := g.worker()
	run := into[verificationResponse](g.do("POST", "/job-classes/a/verification-runs", `{"source":"payloads"}`).want(http.StatusCreated))
	grants := g.admit(worker)
	if len(grants) != 1 {
		t.Fatalf("%d started, want 1", len(grants))
	}
	type named struct {
		Verification string `json:"verification"`
	}
	if got := into[named](g.do("GET", "/jobs/"+grants[0].Job.ID, "").want(http.StatusOK)); got.Verification != run.ID {
		t.Errorf("the job names %q, want %s", got.Verification, run.ID)
	}
	if got := into[named](g.do("GET", "/jobs/"+g.submit(`{"class":"a"}`).ID, "").want(http.StatusOK)); got.Verification != "" {
		t.Errorf("an ordinary job names %q", got.Verification)
	}
}

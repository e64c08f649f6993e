package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// detach starts one job of an asynchronous class and returns its fence.
func (g *gateway) detach() lanegate.Fence {
	g.Helper()
	_, _, err := g.svc.PutClass(g.Context(), "export", lanegate.ClassSpec{
		Run: lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://target/", Mode: lanegate.ModeAsync},
	}, service.ChangeOptions{Actor: "test"})
	if err != nil {
		g.Fatal(err)
	}
	if err := g.svc.RegisterWorker(g.Context(), service.WorkerInfo{ID: "w", Slots: 8}); err != nil {
		g.Fatal(err)
	}
	if _, err := g.svc.Submit(g.Context(), "cron", service.Submission{Class: "export"}); err != nil {
		g.Fatal(err)
	}
	res, err := g.svc.Admit(g.Context(), service.Ask{Worker: "w", Free: 8, SerialFree: true})
	if err != nil || len(res.Grants) != 1 {
		g.Fatalf("granted %v, %v", res.Grants, err)
	}
	return res.Grants[0].Attempt.Fence()
}

func attemptPath(f lanegate.Fence, what string) string {
	return fmt.Sprintf("/jobs/%s/attempts/%d/%s", f.Job, f.Number, what)
}

func bearerOf(f lanegate.Fence) []string { return []string{"Authorization", "Bearer " + f.Token} }

// secured is a gateway with one client token, which no target knows.
func secured(s *setup) {
	s.api.Tokens = []Token{{Name: "ops", Role: RoleAdmin, SHA256: HashToken("lg_ops")}}
}

func TestAttemptReportsByItsToken(t *testing.T) {
	g := newGateway(t, secured)
	f := g.detach()
	heartbeat, complete := attemptPath(f, "heartbeat"), attemptPath(f, "complete")

	g.do("POST", heartbeat, "").refused(401, "token_required")
	g.do("POST", complete, `{"outcome": "succeeded"}`).refused(401, "token_required")
	first := into[heartbeatResponse](g.do("POST", heartbeat, "", bearerOf(f)...).want(200))
	if first.CancelRequested || first.WithinSeconds != 300 {
		t.Errorf("heartbeat %+v", first)
	}
	g.do("POST", heartbeat, `{}`, bearerOf(f)...).want(200)
	if _, err := g.svc.Cancel(t.Context(), f.Job, "ada"); err != nil {
		t.Fatal(err)
	}
	if got := into[heartbeatResponse](g.do("POST", heartbeat, `{"token": "`+f.Token+`"}`).want(200)); !got.CancelRequested {
		t.Error("the heartbeat does not tell of the cancel")
	}
	// A client's token is not the attempt's, whatever its role.
	g.do("POST", heartbeat, "", "Authorization", "Bearer lg_ops").refused(409, "attempt_lost")

	body := `{"outcome": "succeeded", "result": {"rows": 1e2 }, "output": "done\n", "duration": "1.5s"}`
	done := into[completeResponse](g.do("POST", complete, body, bearerOf(f)...).want(200))
	if done != (completeResponse{Outcome: "succeeded", State: "succeeded", ResultKept: true}) {
		t.Errorf("completed: %+v", done)
	}
	job := g.do("GET", "/jobs/"+f.Job, "", "Authorization", "Bearer lg_ops").want(200)
	if !strings.Contains(string(job.body), `"result":{"rows": 1e2 }`) {
		t.Errorf("the result is not verbatim: %s", job.body)
	}
	if out := g.do("GET", "/jobs/"+f.Job+"/output", "", "Authorization", "Bearer lg_ops").want(200); string(out.body) != "done\n" {
		t.Errorf("output %q", out.body)
	}
	again := into[completeResponse](g.do("POST", complete, body, bearerOf(f)...).want(200))
	if !again.Repeated || again.Outcome != "succeeded" {
		t.Errorf("repeated: %+v", again)
	}
	late := g.do("POST", complete, `{"outcome": "failed", "error": "after all"}`, bearerOf(f)...).refused(409, "attempt_lost")
	if late.Details["outcome"] != "succeeded" || !strings.Contains(late.Detail, "already has the outcome succeeded") {
		t.Errorf("late: %+v", late)
	}
	g.do("POST", heartbeat, "", bearerOf(f)...).refused(409, "attempt_lost")
	if after := g.do("GET", "/jobs/"+f.Job, "", "Authorization", "Bearer lg_ops").want(200); string(after.body) != string(job.body) {
		t.Errorf("a late report changed the job:\n%s\n%s", job.body, after.body)
	}
}

func TestForeignReportsChangeNothing(t *testing.T) {
	g := newGateway(t)
	f := g.detach()
	other := f
	other.Job = "01997e2a-0000-7000-8000-000000000000"
	next := f
	next.Number = 2
	for name, tt := range map[string]struct {
		path, token, says string
		status            int
		code              string
	}{
		"another token":   {attemptPath(f, "complete"), "foreign", "not the token of attempt 1", 409, "attempt_lost"},
		"another attempt": {attemptPath(next, "complete"), f.Token, "no attempt 2", 409, "attempt_lost"},
		"another job":     {attemptPath(other, "complete"), f.Token, "no job with this id", 409, "attempt_lost"},
		"no id":           {"/jobs/x/attempts/1/complete", f.Token, "", 404, "job_not_found"},
		"no number":       {"/jobs/" + f.Job + "/attempts/one/complete", f.Token, "", 404, "attempt_not_found"},
	} {
		p := g.do("POST", tt.path, `{"outcome": "succeeded"}`, "Authorization", "Bearer "+tt.token).refused(tt.status, tt.code)
		if !strings.Contains(p.Detail, tt.says) {
			t.Errorf("%s: %q does not say %q", name, p.Detail, tt.says)
		}
	}
	job := into[job](g.do("GET", "/jobs/"+f.Job, "").want(200))
	if job.State != "running" {
		t.Errorf("job is %s", job.State)
	}
}

func TestCompletionIsChecked(t *testing.T) {
	g := newGateway(t)
	f := g.detach()
	path := attemptPath(f, "complete")
	for body, pointer := range map[string]string{
		`{}`:                      "/outcome",
		`{"outcome": "finished"}`: "/outcome",
		`{"outcome": "failed", "duration": "-1s"}`:                                     "/duration",
		`{"outcome": "deferred", "defer_for": "soon"}`:                                 "/defer_for",
		`{"outcome": "failed", "output": "x", "output_bytes": 1, "output_dropped": 2}`: "/output_dropped",
		`{"outcome": "failed", "reason": "x"}`:                                         "/reason",
	} {
		p := g.do("POST", path, body, bearerOf(f)...).want(422).problem()
		if len(p.Fields) != 1 || p.Fields[0].Pointer != pointer {
			t.Errorf("%s: %+v, want %s", body, p.Fields, pointer)
		}
	}
	// Too large a result does not cost the success.
	big := `{"outcome": "succeeded", "result": "` + strings.Repeat("x", 64<<10) + `"}`
	if got := into[completeResponse](g.do("POST", path, big, bearerOf(f)...).want(200)); got.ResultKept || got.State != "succeeded" {
		t.Errorf("completed: %+v", got)
	}
}

func TestWorkersAttemptsTakeNoHeartbeat(t *testing.T) {
	g := newGateway(t)
	g.detach() // makes the worker
	_, _, err := g.svc.PutClass(t.Context(), "plain", lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://target/"}}, service.ChangeOptions{Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.store.Change(t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		for _, c := range cfg.Classes {
			if c.ID == "plain" {
				c.Lane = lanegate.LaneParallel
				return tx.SaveClass(c)
			}
		}
		return lanegate.ErrClassNotFound
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.svc.Submit(t.Context(), "cron", service.Submission{Class: "plain"}); err != nil {
		t.Fatal(err)
	}
	res, err := g.svc.Admit(t.Context(), service.Ask{Worker: "w", Free: 8})
	if err != nil || len(res.Grants) != 1 {
		t.Fatalf("granted %v, %v", res.Grants, err)
	}
	f := res.Grants[0].Attempt.Fence()
	g.do("POST", attemptPath(f, "heartbeat"), "", bearerOf(f)...).refused(409, "not_detached")
}

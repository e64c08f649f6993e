package api

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func inAnHour() string { return time.Now().Add(time.Hour).UTC().Format(time.RFC3339) }

func TestJobNotFound(t *testing.T) {
	g := newGateway(t)
	for _, id := range []string{lanegateID(1), "nonsense", "0193779E-66AC-7C2B-8F4E-000000000001", "..", "%00", "%ff"} {
		g.do("GET", "/jobs/"+id, "").refused(404, "job_not_found")
	}
	for _, rest := range []string{"/attempts", "/output", "/wait"} {
		g.do("GET", "/jobs/"+lanegateID(1)+rest, "").refused(404, "job_not_found")
	}
	for _, rest := range []string{"/cancel", "/retry", "/run-next"} {
		g.do("POST", "/jobs/"+lanegateID(1)+rest, "").refused(404, "job_not_found")
	}
}

func TestListJobs(t *testing.T) {
	g := newGateway(t)
	g.class("a")
	g.class("b")
	w := g.worker()
	var ids []string
	for i := range 7 {
		ids = append(ids, g.submit(fmt.Sprintf(`{"class":%q,"payload":{"n":%d}}`, []string{"a", "b"}[i%2], i)).ID)
	}
	g.admit(w) // the first job of a runs
	list := func(query string) (got []string, next string) {
		t.Helper()
		page := into[struct {
			Items      []job
			NextCursor string `json:"next_cursor"`
		}](g.do("GET", "/jobs?"+query, "").want(200))
		for _, j := range page.Items {
			got = append(got, j.ID)
			if j.Payload != nil {
				t.Errorf("the list shows payloads")
			}
		}
		return got, page.NextCursor
	}
	pick := func(index ...int) (want []string) {
		for _, i := range index {
			want = append(want, ids[i])
		}
		return want
	}
	middle, err := g.store.Job(t.Context(), ids[3])
	g.must(err)
	at := url.QueryEscape(middle.SubmittedAt.Format(time.RFC3339Nano))
	for query, want := range map[string][]string{
		"":                               pick(6, 5, 4, 3, 2, 1, 0),
		"class=b":                        pick(5, 3, 1),
		"class=a&class=b&limit=2":        pick(6, 5),
		"state=running":                  pick(0),
		"state=queued&state=running":     pick(6, 5, 4, 3, 2, 1, 0),
		"state=failed":                   nil,
		"lane=serial&class=a":            pick(6, 4, 2, 0),
		"lane=parallel":                  nil,
		"submitted_from=" + at:           pick(6, 5, 4, 3),
		"submitted_to=" + at:             pick(2, 1, 0),
		"class=nobody":                   nil,
		"verification=true&state=queued": pick(6, 5, 4, 3, 2, 1),
	} {
		if got, _ := list(query); !cmp.Equal(got, want) {
			t.Errorf("GET /jobs?%s: %v, want %v", query, got, want)
		}
	}
	var paged []string
	for cursor := ""; ; {
		got, next := list("limit=3" + cursor)
		paged = append(paged, got...)
		if next == "" {
			break
		}
		cursor = "&cursor=" + next
	}
	if !cmp.Equal(paged, pick(6, 5, 4, 3, 2, 1, 0)) {
		t.Errorf("pages gave %v", paged)
	}
}

func TestCancel(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	running, queued := g.submit(`{"class":"c"}`), g.submit(`{"class":"c"}`)
	grant := g.admit(w)[0]
	if j := into[job](g.do("POST", "/jobs/"+queued.ID+"/cancel", "").want(200)); j.State != "cancelled" {
		t.Errorf("a queued job: %+v", j)
	}
	g.do("POST", "/jobs/"+queued.ID+"/cancel", "").refused(409, "job_already_done")
	if j := into[job](g.do("POST", "/jobs/"+running.ID+"/cancel", "").want(200)); j.State != "running" || !j.CancelRequested {
		t.Errorf("a running job: %+v", j)
	}
	held, err := g.svc.Beat(t.Context(), w)
	if err != nil || len(held) != 1 || !held[0].CancelRequested {
		t.Errorf("the worker is told %+v, %v", held, err)
	}
	g.end(grant, lanegate.Ending{Outcome: lanegate.Cancelled})
	if j := g.job(running.ID); j.State != "cancelled" {
		t.Errorf("after its end: %+v", j)
	}
}

func TestRetry(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	j := g.submit(`{"class":"c"}`)
	g.do("POST", "/jobs/"+j.ID+"/retry", "").refused(409, "job_not_failed")
	for n := 1; n <= 2; n++ {
		grant := g.admit(w)[0]
		g.end(grant, lanegate.Ending{Outcome: lanegate.Failed, Error: "exit 1"})
		failed := g.job(j.ID)
		if failed.State != "failed" || failed.Failures != n || !strings.Contains(failed.Reason, fmt.Sprintf("failed %d of %d", n, n)) {
			t.Fatalf("after failure %d: %+v", n, failed)
		}
		if again := into[job](g.do("POST", "/jobs/"+j.ID+"/retry", "").want(200)); again.State != "queued" || again.Place.ID != j.ID {
			t.Fatalf("retried: %+v", again)
		}
	}
	g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Succeeded})
	g.do("POST", "/jobs/"+j.ID+"/retry", "").refused(409, "job_not_failed")
}

func TestRunNext(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	first := g.submit(`{"class":"c"}`)
	g.submit(`{"class":"c"}`)
	last := g.submit(`{"class":"c"}`)
	grant := g.admit(w)[0]
	g.do("POST", "/jobs/"+first.ID+"/run-next", "").refused(409, "job_not_queued")
	moved := into[job](g.do("POST", "/jobs/"+last.ID+"/run-next", "").want(200))
	if moved.Place.FirstAt == nil || moved.Ahead.Count != 0 {
		t.Errorf("moved: %+v", moved)
	}
	g.end(grant, lanegate.Ending{Outcome: lanegate.Succeeded})
	if next := g.admit(w); len(next) != 1 || next[0].Job.ID != last.ID {
		t.Errorf("next is %+v, want %s", next, last.ID)
	}
	if history := string(g.do("GET", "/job-classes/c/history", "").want(200).body); !strings.Contains(history, `"event":"run_next"`) || !strings.Contains(history, last.ID) {
		t.Errorf("it is not audited: %s", history)
	}
}

func TestAttempts(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.class("c", func(c *lanegate.Class) {
		c.MaxAttempts, c.Units = 3, lanegate.Units{"db": 2}
		c.Backoff = &lanegate.Backoff{Base: 1, Max: 1} // a nanosecond
	})
	w := g.worker()
	j := g.submit(`{"class":"c"}`)
	if none := into[struct{ Items []any }](g.do("GET", "/jobs/"+j.ID+"/attempts", "").want(200)); len(none.Items) != 0 {
		t.Errorf("attempts before the first: %v", none.Items)
	}
	code := 3
	g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Failed, Error: "exit status 3", ExitCode: &code, Duration: 1500 * time.Millisecond})
	var second []service.Grant
	eventually(t, "the backoff is over", func() bool { second = g.admit(w); return len(second) == 1 })
	list := into[struct{ Items []map[string]any }](g.do("GET", "/jobs/"+j.ID+"/attempts", "").want(200)).Items
	if len(list) != 2 {
		t.Fatalf("%d attempts, want 2", len(list))
	}
	for name, want := range map[string]any{
		"number": 1.0, "outcome": "failed", "lane": "serial", "worker": w, "duration": "1.5s", "error": "exit status 3", "exit_code": 3.0,
		"units": map[string]any{"db": 2.0}, "route": map[string]any{"lane": "serial"},
	} {
		if diff := cmp.Diff(want, list[0][name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, absent := range []string{"outcome", "ended_at", "duration", "exit_code"} {
		if v, ok := list[1][absent]; ok || list[1]["number"] != 2.0 {
			t.Errorf("the running attempt has %s %v", absent, v)
		}
	}
	for _, a := range list {
		if _, ok := a["token"]; ok {
			t.Error("the fence's token is shown")
		}
	}
	g.end(second[0], lanegate.Ending{Outcome: lanegate.Failed, Signal: "SIGKILL", Error: "killed"})
	if body := string(g.do("GET", "/jobs/"+j.ID+"/attempts", "").body); !strings.Contains(body, `"signal":"SIGKILL"`) {
		t.Errorf("no signal: %s", body)
	}
}

func TestOutput(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	j := g.submit(`{"class":"c"}`)
	output := func(query string) string {
		t.Helper()
		a := g.do("GET", "/jobs/"+j.ID+"/output"+query, "").want(200)
		if a.header.Get("Content-Type") != "text/plain; charset=utf-8" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("headers %v", a.header)
		}
		return string(a.body)
	}
	if got := output(""); got != "" {
		t.Errorf("before the first attempt: %q", got)
	}
	g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Failed, Error: "x", Output: lanegate.Output{Head: "<b>first</b>\n", Bytes: 13}})
	g.do("POST", "/jobs/"+j.ID+"/retry", "").want(200)
	g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Succeeded, Output: lanegate.Output{Head: "head", Tail: "tail\n", Bytes: 1009, Dropped: 1000}})
	if got := output("?attempt=1"); got != "<b>first</b>\n" {
		t.Errorf("attempt 1: %q", got)
	}
	for _, query := range []string{"", "?attempt=2"} {
		if got := output(query); got != "head\n[… truncated: 1000 of 1009 bytes not kept …]\ntail\n" {
			t.Errorf("output%s: %q", query, got)
		}
	}
	g.do("GET", "/jobs/"+j.ID+"/output?attempt=3", "").refused(404, "attempt_not_found")
}

func TestWait(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	j := g.submit(`{"class":"c"}`)
	if got := into[job](g.do("GET", "/jobs/"+j.ID+"/wait?timeout=20ms", "").want(200)); got.State != "queued" {
		t.Errorf("at the timeout: %+v", got)
	}
	grant := g.admit(w)[0]
	done := make(chan answer, 1)
	go func() { done <- g.do("GET", "/jobs/"+j.ID+"/wait?timeout=1m", "") }()
	g.end(grant, lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`{"rows":7}`)})
	select {
	case a := <-done:
		if got := into[job](a.want(200)); got.State != "succeeded" || string(got.Result) != `{"rows":7}` {
			t.Errorf("at the end: %s", a.body)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("wait did not return at the job's end")
	}
	// Of a job that has ended it returns at once.
	began := time.Now()
	g.do("GET", "/jobs/"+j.ID+"/wait", "").want(200)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// Invariant 10: a wait explains itself.
func TestWaitingOn(t *testing.T) {
	g := newGateway(t)
	g.resource("db", 15, false)
	g.class("a")
	g.class("b")
	g.class("big", func(c *lanegate.Class) { c.Units = lanegate.Units{"db": 16} })
	g.class("stranger", func(c *lanegate.Class) { c.Run.Command = "elsewhere" })
	g.class("stopped", func(c *lanegate.Class) { c.Paused = true })
	g.class("fast", promoted(1, lanegate.Units{"db": 10}))
	g.class("wide", promoted(1, lanegate.Units{"db": 10}))
	first := g.submit(`{"class":"a"}`)
	if got := g.job(first.ID).reasons(); got != "no_worker:serial" && !strings.HasPrefix(got, "no_worker") {
		t.Errorf("without any worker it waits on %q", got)
	}
	w := g.worker()
	fast := g.submit(`{"class":"fast"}`)
	if n := len(g.admit(w)); n != 2 {
		t.Fatalf("%d started, want 2", n)
	}
	jobs := map[string]job{}
	for name, body := range map[string]string{
		"behind": `{"class":"b"}`, "big": `{"class":"big"}`, "stranger": `{"class":"stranger"}`, "stopped": `{"class":"stopped"}`,
		"fast again": `{"class":"fast"}`, "wide": `{"class":"wide"}`, "later": `{"class":"b","run_at":"` + inAnHour() + `"}`,
	} {
		jobs[name] = g.submit(body)
	}
	behindAgain := g.submit(`{"class":"b"}`)
	for name, want := range map[string]string{
		"behind": "lane_full", "big": "over_capacity:db lane_full", "stranger": "no_worker:elsewhere lane_full", "stopped": "paused:class lane_full",
		"fast again": "lane_full class_limit resource:db", "wide": "lane_full resource:db", "later": "not_due",
	} {
		got := g.job(jobs[name].ID)
		if got.reasons() != want {
			t.Errorf("%s waits on %q, want %q", name, got.reasons(), want)
		}
	}
	if got := g.job(jobs["behind"].ID).WaitingOn[0].Jobs; !cmp.Equal(got, []string{first.ID}) {
		t.Errorf("lane_full names %v, want %s", got, first.ID)
	}
	for _, on := range g.job(jobs["wide"].ID).WaitingOn {
		if !cmp.Equal(on.Jobs, []string{fast.ID}) {
			t.Errorf("%s names %v, want %s", on.Reason, on.Jobs, fast.ID)
		}
	}
	if got := g.job(behindAgain.ID); got.reasons() != "earlier_of_class" || !cmp.Equal(got.WaitingOn[0].Jobs, []string{jobs["behind"].ID}) {
		t.Errorf("the second of its class waits on %+v", got.WaitingOn)
	}
	if got := g.job(first.ID); got.WaitingOn != nil || got.Ahead != nil || got.Place != nil {
		t.Errorf("a running job waits on %+v", got)
	}
}

func TestRouteShowsTheFallback(t *testing.T) {
	g := newGateway(t)
	g.class("fast", promoted(1, lanegate.Units{}))
	j := g.job(g.submit(`{"class":"fast"}`).ID)
	want := &lanegate.Route{Lane: "serial", Reason: "lane_unavailable", Wanted: "parallel"}
	if diff := cmp.Diff(want, j.Route); diff != "" {
		t.Errorf("route without a worker (-want +got):\n%s", diff)
	}
	g.worker()
	if diff := cmp.Diff(&lanegate.Route{Lane: "parallel"}, g.job(j.ID).Route); diff != "" {
		t.Errorf("route with a worker (-want +got):\n%s", diff)
	}
}

func TestAheadCountsAndNamesTheFirst(t *testing.T) {
	g := newGateway(t)
	g.class("a")
	g.class("b")
	var before []string
	for i := range 25 {
		before = append(before, g.submit(fmt.Sprintf(`{"class":%q}`, []string{"a", "b"}[i%2])).ID)
	}
	got := g.job(g.submit(`{"class":"a"}`).ID).Ahead
	if got.Count != 25 || !cmp.Equal(got.First, before[:20]) {
		t.Errorf("ahead %d %v, want 25 and the first 20", got.Count, got.First)
	}
	if first := g.job(before[0]).Ahead; first.Count != 0 || len(first.First) != 0 {
		t.Errorf("ahead of the first: %+v", first)
	}
}

// A long line is counted up to a bound, and says so; a number stays a number.
func TestAheadOfALongLine(t *testing.T) {
	g := newGateway(t)
	g.class("a")
	ids := []string{g.submit(`{"class":"a"}`).ID}
	for range 3 {
		items := strings.TrimSuffix(strings.Repeat(`{"class":"a"},`, 1000), ",")
		g.do("POST", "/jobs/batch", `{"jobs":[`+items+`]}`).want(200)
	}
	ids = append(ids, g.submit(`{"class":"a"}`).ID)
	if first := g.job(ids[0]).Ahead; first.Count != 0 || first.AtLeast {
		t.Errorf("ahead of the first: %+v", first)
	}
	if last := g.job(ids[1]).Ahead; last.Count != service.AheadCounted || !last.AtLeast || len(last.First) != 20 || last.First[0] != ids[0] {
		t.Errorf("ahead of the last: %+v", last)
	}
	page := into[struct {
		Items []struct{ Ahead map[string]any }
	}](g.do("GET", "/jobs?limit=1", "").want(200))
	if a := page.Items[0].Ahead; a["count"] != 2000. || a["at_least"] != true {
		t.Errorf("ahead in a page: %v", a)
	}
}

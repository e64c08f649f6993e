package api

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// together sends the same n times at once and returns the answers.
func together(g *gateway, n int, send func(i int) answer) []answer {
	g.Helper()
	out := make([]answer, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			out[i] = send(i)
		})
	}
	close(start)
	wg.Wait()
	return out
}

// oneJob checks that exactly one of the answers is 201, all others are replays,
// and all name one job.
func oneJob(t *testing.T, answers []answer) {
	t.Helper()
	created, ids := 0, map[string]bool{}
	for _, a := range answers {
		ids[into[job](a).ID] = true
		switch {
		case a.status == 201:
			created++
		case a.status == 200 && a.header.Get("Idempotency-Replayed") == "true":
		default:
			t.Errorf("status %d, headers %v: %s", a.status, a.header, a.body)
		}
	}
	if created != 1 || len(ids) != 1 {
		t.Errorf("%d created, %d jobs; want 1 and 1", created, len(ids))
	}
}

// C14: two schedulers fire the same entry within 100 ms of each other.
func TestSameKeyAtOnceIsOneJob(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	for i := range 100 {
		body := fmt.Sprintf(`{"class":"c","payload":%d,"idempotency_key":"pair-%d"}`, i, i)
		oneJob(t, together(g, 2, func(int) answer { return g.do("POST", "/jobs", body) }))
	}
	oneJob(t, together(g, 50, func(i int) answer {
		if i%2 == 0 { // half by header, half by body
			return g.do("POST", "/jobs", `{"class":"c"}`, "Idempotency-Key", "fifty")
		}
		return g.do("POST", "/jobs", `{"class":"c","idempotency_key":"fifty"}`)
	}))
	if n := g.count(); n != 101 {
		t.Errorf("%d jobs, want 101", n)
	}
}

// C62: a key with another body is refused, whatever state the first job is in.
func TestKeyWithAnotherBody(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	g.class("d")
	const sent = `{"class":"c","payload":{"a":1},"logical_date":"2026-11-29","idempotency_key":"k"}`
	first := g.submit(sent)
	others := []string{
		`{"class":"c","payload":{"a":2},"logical_date":"2026-11-29","idempotency_key":"k"}`,
		`{"class":"c","payload":{"a": 1},"logical_date":"2026-11-29","idempotency_key":"k"}`, // verbatim bytes count
		`{"class":"d","payload":{"a":1},"logical_date":"2026-11-29","idempotency_key":"k"}`,
		`{"class":"c","payload":{"a":1},"logical_date":"2026-11-30","idempotency_key":"k"}`,
		`{"class":"c","payload":{"a":1},"idempotency_key":"k"}`,
		`{"class":"c","payload":{"a":1},"logical_date":"2026-11-29","run_at":"2026-11-29T00:00:00Z","idempotency_key":"k"}`,
	}
	check := func(state string) {
		t.Helper()
		for _, body := range others {
			g.do("POST", "/jobs", body).refused(422, "idempotency_key_reused")
		}
		a := g.do("POST", "/jobs", sent).want(200)
		if j := into[job](a); j.ID != first.ID || j.State != state || a.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("replay while %s: %s", state, a.body)
		}
		// The fields' order and the white space between them are not the submission.
		same := `{ "idempotency_key":"k", "logical_date":"2026-11-29", "payload":{"a":1}, "class":"c" }`
		if j := into[job](g.do("POST", "/jobs", same).want(200)); j.ID != first.ID {
			t.Errorf("replay with other white space: another job")
		}
	}
	check("queued")
	w := g.worker()
	grant := g.admit(w)[0]
	check("running")
	g.end(grant, lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`{"rows":3889108265204450030}`)})
	check("succeeded")
	if n := g.count(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
}

// C10: the key lives in the database, not in the process.
func TestKeyOutlivesTheProcess(t *testing.T) {
	first := newGateway(t)
	first.class("c")
	const body = `{"class":"c","payload":1,"idempotency_key":"k"}`
	j := first.submit(body)
	first.must(first.store.Close())

	second := newGateway(t, func(s *setup) { s.path = first.path })
	a := second.do("POST", "/jobs", body).want(200)
	if again := into[job](a); again.ID != j.ID || a.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("after a restart the key gave %s", a.body)
	}
	second.do("POST", "/jobs", `{"class":"c","payload":2,"idempotency_key":"k"}`).refused(422, "idempotency_key_reused")
}

func TestKeysAreScopedByClient(t *testing.T) {
	cron, cronAuth := token("cron", RoleSubmit)
	airflow, airflowAuth := token("airflow", RoleSubmit)
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{cron, airflow} })
	g.class("c")
	a := g.submit(`{"class":"c","payload":1,"idempotency_key":"k"}`, cronAuth...)
	b := g.submit(`{"class":"c","payload":2,"idempotency_key":"k"}`, airflowAuth...)
	if a.ID == b.ID || a.Client != "cron" || b.Client != "airflow" {
		t.Errorf("jobs %+v and %+v", a, b)
	}
}

// A submission without a key is new each time: nothing is guessed to be a repeat.
func TestNoKeyNoReplay(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	if a, b := g.submit(`{"class":"c"}`), g.submit(`{"class":"c"}`); a.ID == b.ID {
		t.Error("two submissions without a key are one job")
	}
}

func TestReplayRetriesAFailedJobWhenAsked(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	j := g.submit(`{"class":"c","idempotency_key":"k"}`)
	g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Failed, Error: "exit 1", Duration: time.Second})

	plain := into[job](g.do("POST", "/jobs", `{"class":"c","idempotency_key":"k"}`).want(200))
	if plain.ID != j.ID || plain.State != "failed" {
		t.Errorf("a plain replay shows %+v, want the failed job as it stands", plain)
	}
	const again = `{"class":"c","idempotency_key":"k","if_failed":"retry"}`
	a := g.do("POST", "/jobs", again).want(200)
	if revived := into[job](a); revived.ID != j.ID || revived.State != "queued" || a.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("if_failed: retry gave %s", a.body)
	}
	if twice := into[job](g.do("POST", "/jobs", again).want(200)); twice.ID != j.ID || twice.State != "queued" {
		t.Errorf("a second if_failed: retry gave %+v", twice)
	}
	grants := g.admit(w)
	if len(grants) != 1 || grants[0].Attempt.Number != 2 {
		t.Fatalf("grants %+v, want attempt 2", grants)
	}
	g.end(grants[0], lanegate.Ending{Outcome: lanegate.Succeeded})
	if done := into[job](g.do("POST", "/jobs", again).want(200)); done.State != "succeeded" {
		t.Errorf("a job that succeeded was run again: %+v", done)
	}
	if n := g.count(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
}

// A replay shows the job as it stands: with its result, and with what it waits on.
func TestReplayShowsTheJobAsItStands(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	j := g.submit(`{"class":"c","payload":{"n":1},"idempotency_key":"k"}`)
	replay := func() job {
		t.Helper()
		return into[job](g.do("POST", "/jobs", `{"class":"c","payload":{"n":1},"idempotency_key":"k"}`).want(200))
	}
	g.end(g.admit(w)[0], lanegate.Ending{Outcome: lanegate.Succeeded, Result: []byte(`{"rows":1}`)})
	if got := replay(); got.ID != j.ID || got.State != "succeeded" || string(got.Result) != `{"rows":1}` || string(got.Payload) != `{"n":1}` {
		t.Errorf("replay %+v", got)
	}
}

// C24, C47: skip never drops silently: it answers with the job that stands in the
// way, and its key replays that answer.
func TestOverlapSkipNamesTheJobInTheWay(t *testing.T) {
	g := newGateway(t)
	g.class("c", func(c *lanegate.Class) { c.Overlap = lanegate.OverlapSkip })
	w := g.worker()
	first := g.submit(`{"class":"c"}`)
	grant := g.admit(w)[0]

	a := g.do("POST", "/jobs", `{"class":"c","idempotency_key":"k"}`).want(200)
	skipped := into[job](a)
	if skipped.State != "skipped" || skipped.BlockedBy != first.ID || !strings.Contains(skipped.Reason, first.ID) {
		t.Errorf("skipped: %s", a.body)
	}
	if a.header.Get("Idempotency-Replayed") != "" {
		t.Error("a new job is not a replay")
	}
	g.end(grant, lanegate.Ending{Outcome: lanegate.Succeeded})
	again := g.do("POST", "/jobs", `{"class":"c","idempotency_key":"k"}`).want(200)
	if j := into[job](again); j.ID != skipped.ID || j.State != "skipped" || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("its key replays as %s", again.body)
	}
	if next := g.submit(`{"class":"c","idempotency_key":"k2"}`); next.State != "queued" {
		t.Errorf("after the end of the first: %+v", next)
	}
	if got := g.job(skipped.ID); got.BlockedBy != first.ID || got.State != "skipped" {
		t.Errorf("GET shows %+v", got)
	}
}

// C24, C47: a worker that dies with the job does not block the class for ever.
func TestOverlapSkipAfterACrash(t *testing.T) {
	g := newGateway(t)
	no := false
	g.class("c", func(c *lanegate.Class) { c.Overlap, c.Repeatable = lanegate.OverlapSkip, &no })
	w := g.worker()
	first := g.submit(`{"class":"c"}`)
	g.admit(w)
	if j := into[job](g.do("POST", "/jobs", `{"class":"c"}`).want(200)); j.BlockedBy != first.ID {
		t.Errorf("while it runs: %+v", j)
	}
	g.must(g.svc.ReapWorker(t.Context(), w, 0))
	if j := g.job(first.ID); j.State != "failed" || !strings.Contains(j.Reason, "worker died") {
		t.Fatalf("the job of a dead worker: %+v", j)
	}
	g.submit(`{"class":"c"}`)
}

func TestOverlapCoalesce(t *testing.T) {
	g := newGateway(t)
	g.class("c", func(c *lanegate.Class) { c.Overlap = lanegate.OverlapCoalesce })
	first := g.submit(`{"class":"c","payload":1,"idempotency_key":"k"}`)
	other := g.submit(`{"class":"c","payload":2,"logical_date":"2026-11-30"}`)
	newest := g.submit(`{"class":"c","payload":3}`)
	if old := g.job(first.ID); old.State != "skipped" || old.BlockedBy != newest.ID {
		t.Errorf("the replaced job %+v, want skipped, naming %s", old, newest.ID)
	}
	got := g.job(newest.ID)
	if got.Place.ID != first.ID || !got.Place.At.Equal(first.Place.At) {
		t.Errorf("the newest has place %+v, want the one of %s", got.Place, first.ID)
	}
	if j := g.job(other.ID); j.State != "queued" {
		t.Errorf("another date's job %+v", j)
	}
	a := g.do("POST", "/jobs", `{"class":"c","payload":1,"idempotency_key":"k"}`).want(200)
	if j := into[job](a); j.ID != first.ID || j.State != "skipped" || j.BlockedBy != newest.ID {
		t.Errorf("the replaced job's key replays as %s", a.body)
	}
}

package service_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestSubmissionFaultsComeAllAtOnce(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	past, future := time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), time.Now().Add(367*24*time.Hour)
	for _, sub := range []service.Submission{
		{Class: "No", Key: "a\x00b", LogicalDate: "yesterday", RunAt: &past},
		{Class: "", Key: "\xf8", LogicalDate: "2026-02-30", RunAt: &future},
		{Class: strings.Repeat("c", 64), Key: strings.Repeat("k", 256), LogicalDate: "2026-11-29T00:00:00." + strings.Repeat("0", 100) + "Z", RunAt: &past},
	} {
		_, err := f.svc.Submit(t.Context(), "cron", sub)
		wantFields(t, err, "/class", "/idempotency_key", "/logical_date", "/run_at")
	}
	if lines, err := f.store.Lines(t.Context()); err != nil || lines != nil {
		t.Errorf("lines %v, %v: something was enqueued", lines, err)
	}
}

func TestSubmissionsAtTheBounds(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	for _, key := range []string{"k", strings.Repeat("k", 255), "schlüssel 日本", "a b"} {
		if job := f.mustSubmit("c", func(s *service.Submission) { s.Key = key }); job.Key != key {
			t.Errorf("key %q became %q", key, job.Key)
		}
	}
	for _, key := range []string{"a\nb", "a\u200bb", "\u2028", strings.Repeat("é", 128), "\xc3("} {
		_, err := f.svc.Submit(t.Context(), "cron", service.Submission{Class: "c", Key: key})
		wantFields(t, err, "/idempotency_key")
	}
	for _, date := range []string{"2026-11-29", "2026-11-29T00:00:00Z", "2026-11-29T01:00:00.123456789+01:00"} {
		if job := f.mustSubmit("c", func(s *service.Submission) { s.LogicalDate = date }); job.LogicalDate != date {
			t.Errorf("logical date %q became %q", date, job.LogicalDate)
		}
	}
	for _, at := range []time.Time{time.Unix(0, 0).UTC(), time.Now().Add(365 * 24 * time.Hour)} {
		if job := f.mustSubmit("c", func(s *service.Submission) { s.RunAt = &at }); job.RunAt == nil || !job.RunAt.Equal(lanegate.Micro(at)) {
			t.Errorf("run_at %v became %v", at, job.RunAt)
		}
	}
}

func TestPayloadLimits(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.options.MaxPayload, s.options.MaxDepth = 16, 3 })
	f.mustPut("c", execSpec())
	if f.svc.MaxPayload() != 16 {
		t.Errorf("limit %d", f.svc.MaxPayload())
	}
	submit := func(payload string) error {
		_, err := f.svc.Submit(t.Context(), "cron", service.Submission{Class: "c", Payload: []byte(payload)})
		return err
	}
	for _, ok := range []string{"", "null", `"12345678901234"`, "[[[1]]]", `{"a":[{}]}`} {
		if err := submit(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	if err := submit(`"123456789012345"`); lanegate.KindOf(err) != lanegate.KindTooLarge {
		t.Errorf("a byte too many: %v", err)
	}
	if e, ok := errors.AsType[*lanegate.Error](submit("[[[[1]]]]")); !ok || e.Code != "too_deep" {
		t.Errorf("a level too many: %v", e)
	}
}

// Invariant 8: the bytes a scheduler sent are the bytes the job gets.
func TestPayloadIsVerbatim(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	for sent, want := range map[string]string{
		` { "b" : 3889108265204450030, "a":1e400,"é":"\u00e9\/" } `: "",
		`0.1000000000000000055`: "",
		``:                      `null`,
	} {
		if want == "" {
			want = sent
		}
		job := f.mustSubmit("c", func(s *service.Submission) { s.Payload = []byte(sent) })
		if view, err := f.svc.Job(t.Context(), job.ID); err != nil || string(view.Payload) != want {
			t.Errorf("payload %q, %v, want %q", view.Payload, err, want)
		}
		g := f.mustAdmit("w", 1).Grants[0]
		if string(g.Payload) != want {
			t.Errorf("granted payload %q, want %q", g.Payload, want)
		}
		f.mustEnd(g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded})
	}
}

// What is the same submission: class, payload bytes, run_at as an instant and
// logical date; if_failed says what to do about a repeat and is none of it.
func TestWhatMakesARepeat(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustPut("d", execSpec())
	at := time.Now().Add(time.Hour)
	first := service.Submission{Class: "c", Key: "k", Payload: []byte(`{"a":1}`), RunAt: &at, LogicalDate: "2026-11-29"}
	res, err := f.svc.Submit(t.Context(), "cron", first)
	f.must(err)
	elsewhere, later := at.In(time.FixedZone("CET", 3600)).Truncate(time.Microsecond), at.Add(time.Microsecond)
	for _, tt := range []struct {
		name   string
		edit   func(*service.Submission)
		replay bool
	}{
		{"nothing differs", func(*service.Submission) {}, true},
		{"run_at in another zone", func(s *service.Submission) { s.RunAt = &elsewhere }, true},
		{"if_failed", func(s *service.Submission) { s.RetryFailed = true }, true},
		{"class", func(s *service.Submission) { s.Class = "d" }, false},
		{"payload by a space", func(s *service.Submission) { s.Payload = []byte(`{"a": 1}`) }, false},
		{"no payload", func(s *service.Submission) { s.Payload = nil }, false},
		{"run_at", func(s *service.Submission) { s.RunAt = &later }, false},
		{"no run_at", func(s *service.Submission) { s.RunAt = nil }, false},
		{"logical date", func(s *service.Submission) { s.LogicalDate = "2026-11-30" }, false},
		{"no logical date", func(s *service.Submission) { s.LogicalDate = "" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sub := first
			tt.edit(&sub)
			again, err := f.svc.Submit(t.Context(), "cron", sub)
			if !tt.replay {
				wantError(t, err, lanegate.ErrKeyReused)
				return
			}
			if err != nil || !again.Replayed || again.Job.ID != res.Job.ID {
				t.Errorf("replayed %v as %s, %v", again.Replayed, again.Job.ID, err)
			}
		})
	}
	other, err := f.svc.Submit(t.Context(), "another client", first)
	if err != nil || other.Replayed {
		t.Errorf("another client's key: replayed %v, %v", other.Replayed, err)
	}
	none, err := f.svc.Submit(t.Context(), "cron", service.Submission{Class: "c", Key: "n"})
	f.must(err)
	null, err := f.svc.Submit(t.Context(), "cron", service.Submission{Class: "c", Key: "n", Payload: []byte("null")})
	if err != nil || null.Job.ID != none.Job.ID {
		t.Errorf("no payload and null differ: %v", err)
	}
}

func TestWhatRingsAndCounts(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("c", execSpec())
	f.mustPut("p", execSpec())
	f.mustPut("s", lanegate.ClassSpec{Run: execSpec().Run, Overlap: lanegate.OverlapSkip})
	f.mustPromote("p", lanegate.LaneParallel, 1)
	f.bell.heard()
	// One lane more than needed may be rung, as availability may be a second old.
	rang := func(what string, want ...string) {
		t.Helper()
		got := f.bell.heard()
		for _, lane := range want {
			if !slices.Contains(got, lane) {
				t.Errorf("%s: rang %v, want %v", what, got, want)
			}
		}
		if len(want) == 0 && len(got) > 0 {
			t.Errorf("%s: rang %v", what, got)
		}
	}
	counted := func(class string, want float64) {
		t.Helper()
		if n := f.metric("lanegate_jobs_submitted_total", "class="+class); n != want {
			t.Errorf("%v of %s counted, want %v", n, class, want)
		}
	}
	f.mustSubmit("p")
	rang("a class whose lane nobody serves", lanegate.LaneSerial)
	f.mustWorker("w", 2)
	f.mustSubmit("p")
	rang("a class of parallel", lanegate.LaneParallel)
	counted("p", 2)
	keyed := func(s *service.Submission) { s.Key = "k" }
	job := f.mustSubmit("c", keyed)
	rang("a class of serial", lanegate.LaneSerial)
	f.mustSubmit("c", keyed)
	rang("a replay")
	counted("c", 1)
	at := time.Now().Add(time.Hour)
	f.mustSubmit("c", func(s *service.Submission) { s.RunAt = &at })
	rang("a later job, for the timer", lanegate.LaneSerial)
	_, err := f.svc.Submit(ctx, "cron", service.Submission{Class: "unknown"})
	wantError(t, err, lanegate.ErrUnknownClass)
	rang("a refused one")
	f.mustSubmit("s")
	rang("the first", lanegate.LaneSerial)
	if second := f.mustSubmit("s"); second.State != lanegate.StateSkipped {
		t.Fatalf("state %s", second.State)
	}
	rang("a skipped one")
	counted("s", 2)

	// A revived job is no new one, but it wants to run.
	for f.mustState(job.ID) != lanegate.StateFailed {
		for _, g := range f.mustAdmit("w", 2).Grants {
			f.mustEnd(g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed, Permanent: true})
		}
	}
	f.bell.heard()
	res, err := f.svc.Submit(ctx, "cron", service.Submission{Class: "c", Key: "k", RetryFailed: true})
	if err != nil || !res.Revived {
		t.Fatalf("revived %v, %v", res.Revived, err)
	}
	rang("a revived one", lanegate.LaneSerial)
	counted("c", 2)
}

func (f *fixture) mustState(job string) lanegate.State {
	f.t.Helper()
	view, err := f.svc.Job(f.t.Context(), job)
	f.must(err)
	return view.State
}

func TestBatchItemsFailAlone(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("c", execSpec())
	f.mustPut("d", execSpec())
	f.bell.heard()
	results, err := f.svc.SubmitBatch(ctx, "cron", []service.Submission{
		{Class: "c", Key: "k"},
		{Class: "c", Payload: []byte("{")},
		{Class: "unknown"},
		{Class: "d"},
		{Class: "c", Key: "k"},
		{Class: "c", Key: "k", LogicalDate: "2026-11-29"},
	})
	f.must(err)
	for i, want := range []string{"", "bad_json", "unknown_class", "", "", "idempotency_key_reused"} {
		code := ""
		if e, ok := errors.AsType[*lanegate.Error](results[i].Err); ok {
			code = e.Code
		}
		if code != want {
			t.Errorf("item %d: %q, want %q", i, code, want)
		}
	}
	if !results[4].Replayed || results[4].Job.ID != results[0].Job.ID {
		t.Error("the same key within a batch is no replay")
	}
	if got := f.bell.heard(); !slices.Equal(got, []string{lanegate.LaneSerial}) {
		t.Errorf("rang %v, want serial once", got)
	}
	if n := f.metric("lanegate_jobs_submitted_total", "class=c"); n != 1 {
		t.Errorf("%v of c counted", n)
	}
	for _, n := range []int{0, service.MaxBatchItems + 1} {
		_, err := f.svc.SubmitBatch(ctx, "cron", make([]service.Submission, n))
		wantFields(t, err, "/jobs")
	}
	results, err = f.svc.SubmitBatch(ctx, "cron", make([]service.Submission, service.MaxBatchItems))
	if err != nil || len(results) != service.MaxBatchItems || results[0].Err == nil {
		t.Errorf("a full batch of nonsense: %d results, %v", len(results), err)
	}
}

func TestRefusalsChangeNoPayload(t *testing.T) {
	payload := []byte(` {"a":1} `)
	kept := bytes.Clone(payload)
	if err := service.CheckJSON(payload, 10, ""); err != nil || !bytes.Equal(payload, kept) {
		t.Errorf("%q, %v", payload, err)
	}
}

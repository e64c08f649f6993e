package service_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// Invariant 10, "A wait explains itself". Each case brings about one state of the
// world and returns a queued job with what it must be said to wait on.
func TestAWaitExplainsItself(t *testing.T) {
	type waits = []service.WaitingOn
	starving := func(s *setup) { s.starveAfter = time.Second }
	for _, tt := range []struct {
		name  string
		build func(f *fixture) (job string, on waits)
	}{
		{"nothing: it is about to start", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			f.mustPut("c", execSpec())
			return f.mustSubmit("c").ID, nil
		}},
		{"not_due", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			f.mustPut("c", execSpec())
			at := f.clock.Now().Add(time.Hour)
			return f.mustSubmit("c", func(s *service.Submission) { s.RunAt = &at }).ID, waits{{Reason: "not_due", Until: &at}}
		}},
		{"not_due until its backoff is over", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			spec := execSpec()
			spec.MaxAttempts = 2
			f.mustPut("c", spec)
			job := f.mustSubmit("c").ID
			ended := f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: lanegate.Deferred, DeferFor: time.Minute})
			at := f.clock.Now().Add(time.Minute)
			if !ended.Job.ReadyAt.Equal(at) {
				f.t.Errorf("ready at %v, want %v", ended.Job.ReadyAt, at)
			}
			return job, waits{{Reason: "not_due", Until: &at}}
		}},
		{"earlier_of_class", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			f.mustPut("c", execSpec())
			head := f.mustSubmit("c").ID
			f.clock.advance(time.Second)
			f.mustSubmit("c")
			return f.mustSubmit("c").ID, waits{{Reason: "earlier_of_class", Jobs: []string{head}}}
		}},
		{"lane_full", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			f.mustPut("a", execSpec())
			f.mustPut("b", execSpec())
			running := f.mustSubmit("a").ID
			f.mustStart("w", 1, running)
			return f.mustSubmit("b").ID, waits{{Reason: "lane_full", Jobs: []string{running}}}
		}},
		{"lane_full and class_limit", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			f.mustPut("c", execSpec())
			running := f.mustSubmit("c").ID
			f.mustStart("w", 1, running)
			by := []string{running}
			return f.mustSubmit("c").ID, waits{{Reason: "lane_full", Jobs: by}, {Reason: "class_limit", Jobs: by}}
		}},
		{"class_limit", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9)
			f.mustResource("db", 15, false)
			f.mustPut("c", execSpec("db", 5))
			f.mustPromote("c", lanegate.LaneParallel, 1)
			running := f.mustSubmit("c").ID
			f.mustStart("w", 9, running)
			return f.mustSubmit("c").ID, waits{{Reason: "class_limit", Jobs: []string{running}}}
		}},
		{"resource", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9)
			f.wideLane("a", 10, "b", 10)
			running := f.mustSubmit("a").ID
			f.mustStart("w", 9, running)
			return f.mustSubmit("b").ID, waits{{Reason: "resource:db", Jobs: []string{running}}}
		}},
		{"over_capacity", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9)
			f.mustResource("db", 15, false)
			f.mustPut("c", execSpec("db", 16))
			return f.mustSubmit("c").ID, waits{{Reason: "over_capacity:db"}}
		}},
		{"paused class in a paused lane", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9)
			f.mustPut("c", execSpec())
			_, err := f.svc.PauseClass(f.t.Context(), "c", admin)
			f.must(err)
			f.must(f.svc.PauseLane(f.t.Context(), lanegate.LaneSerial, admin))
			return f.mustSubmit("c").ID, waits{{Reason: "paused:class"}, {Reason: "paused:lane"}}
		}},
		{"no_worker that has the command", func(f *fixture) (string, waits) {
			f.mustPut("c", execSpec())
			f.commands.set("cmd", "another definition")
			f.mustWorker("w", 9)
			return f.mustSubmit("c").ID, waits{{Reason: "no_worker:cmd"}}
		}},
		{"no_worker that serves the lane", func(f *fixture) (string, waits) {
			f.mustPut("c", execSpec())
			f.mustWorker("w", 9, lanegate.LaneParallel)
			return f.mustSubmit("c").ID, waits{{Reason: "no_worker:serial"}}
		}},
		{"no_worker at all", func(f *fixture) (string, waits) {
			f.mustPut("c", execSpec())
			return f.mustSubmit("c").ID, waits{{Reason: "no_worker:serial"}, {Reason: "no_worker:cmd"}}
		}},
		{"kept_for", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9)
			_, big := f.starve()
			small := f.mustSubmit("small").ID
			return small, waits{{Reason: "kept_for:" + big, Jobs: []string{big}}}
		}},
		{"resource, for the job that it is kept for", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9)
			running, big := f.starve()
			return big, waits{{Reason: "resource:db", Jobs: []string{running}}}
		}},
		{"worker_full", func(f *fixture) (string, waits) {
			f.mustWorker("w", 1)
			f.wideLane("a", 1, "b", 1)
			running := f.mustSubmit("a").ID
			f.mustStart("w", 1, running)
			return f.mustSubmit("b").ID, waits{{Reason: "worker_full", Jobs: []string{running}}}
		}},
		{"lane_unavailable", func(f *fixture) (string, waits) {
			f.mustWorker("w", 9, lanegate.LaneSerial)
			l := lane("long", 1)
			l.WhenUnavailable = lanegate.FallbackWait
			f.mustLane(l)
			f.mustPut("c", execSpec())
			f.mustPromote("c", "long", 1)
			return f.mustSubmit("c").ID, waits{{Reason: "lane_unavailable"}, {Reason: "no_worker:long"}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, starving)
			job, want := tt.build(f)
			got := f.mustWaiting(job)
			if diff := cmp.Diff(want, got.On, cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(0)); diff != "" {
				t.Errorf("waits on (-want +got):\n%s", diff)
			}
			f.wantListAgrees()
			// And it is true: what waits for nothing starts now, the rest does not.
			started := slices.ContainsFunc(f.mustAdmitIfLive(), func(g service.Grant) bool { return g.Job.ID == job })
			if started != (len(want) == 0) {
				t.Errorf("started: %v, but it was said to wait on %v", started, got.On)
			}
		})
	}
}

// wideLane makes a lane whose width is no hindrance, with two classes of it that
// use units of db, 15.
func (f *fixture) wideLane(a string, unitsA int, b string, unitsB int) {
	f.t.Helper()
	f.mustResource("db", 15, false)
	f.mustLane(overcommitting(lane("wide", 9)))
	f.mustPut(a, execSpec("db", unitsA))
	f.mustPut(b, execSpec("db", unitsB))
	f.mustPromote(a, "wide", 9)
	f.mustPromote(b, "wide", 9)
}

// starve lets a job of class small run and one of class big wait for all of db,
// until that is kept for it.
func (f *fixture) starve() (running, big string) {
	f.t.Helper()
	f.wideLane("small", 5, "big", 15)
	running = f.mustSubmit("small").ID
	f.mustStart("w", 9, running)
	big = f.mustSubmit("big").ID
	f.mustStart("w", 9) // remembered as blocked
	f.clock.advance(time.Second)
	return running, big
}

func (f *fixture) mustWaiting(job string) *service.Waiting {
	f.t.Helper()
	view, err := f.svc.Job(f.t.Context(), job)
	f.must(err)
	if view.Waiting == nil {
		f.t.Fatalf("job %s, %s, explains no wait", job, view.State)
	}
	return view.Waiting
}

// wantListAgrees compares every job of the list with the job alone.
func (f *fixture) wantListAgrees() {
	f.t.Helper()
	page, err := f.svc.Jobs(f.t.Context(), service.JobFilter{Limit: 100})
	f.must(err)
	if len(page.Items) == 0 || page.Next != "" {
		f.t.Fatalf("%d items, next %q", len(page.Items), page.Next)
	}
	for _, item := range page.Items {
		alone, err := f.svc.Job(f.t.Context(), item.ID)
		f.must(err)
		if diff := cmp.Diff(alone, item, cmpopts.IgnoreFields(service.JobDetail{}, "Payload", "Result")); diff != "" {
			f.t.Errorf("job %s alone and in the list differ:\n%s", item.ID, diff)
		}
	}
}

// mustAdmitIfLive asks for work as every live worker would.
func (f *fixture) mustAdmitIfLive() []service.Grant {
	f.t.Helper()
	live, err := f.svc.LiveWorkers(f.t.Context())
	f.must(err)
	var grants []service.Grant
	for _, w := range live {
		held, err := f.svc.Beat(f.t.Context(), w.ID)
		f.must(err)
		grants = append(grants, f.mustAdmit(w.ID, w.Slots-len(held)).Grants...)
	}
	return grants
}

// Two jobs in one line, of which the second waits for the first although that
// one is about to start.
func TestWaitBehindAJobAboutToStart(t *testing.T) {
	f := newFixture(t)
	f.mustWorker("w", 1)
	f.mustPut("c", execSpec())
	head, second := f.mustSubmit("c"), f.mustSubmit("c")
	if w := f.mustWaiting(head.ID); len(w.On) != 0 || w.Ahead.Count != 0 {
		t.Errorf("the head waits on %+v", w)
	}
	w := f.mustWaiting(second.ID)
	want := &service.Waiting{
		Route: lanegate.Route{Lane: lanegate.LaneSerial},
		On:    []service.WaitingOn{{Reason: "earlier_of_class", Jobs: []string{head.ID}}},
		Ahead: service.Ahead{Count: 1, First: []string{head.ID}},
	}
	if w.Expected.Known() || w.Expected.Why == "" {
		t.Errorf("nothing was foretold, and the second is expected to start at %v (%q)", w.Expected.P50, w.Expected.Why)
	}
	want.Expected = w.Expected
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("the second:\n%s", diff)
	}
	if view, err := f.svc.RunNext(t.Context(), second.ID, "ann"); err != nil || len(view.Waiting.On) != 0 || view.Waiting.Ahead.Count != 0 {
		t.Errorf("after run-next it waits on %+v, %v", view.Waiting, err)
	}
	if w := f.mustWaiting(head.ID); w.On[0].Jobs[0] != second.ID || w.Ahead.Count != 1 {
		t.Errorf("the former head waits on %+v", w)
	}
}

// The lane and the jobs ahead are those of where the job would run now.
func TestRouteAndAhead(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("a", execSpec())
	f.mustPut("p", execSpec())
	f.mustPromote("p", lanegate.LaneParallel, 1)
	at := f.clock.Now().Add(time.Hour)
	var jobs []string
	for i := range 26 {
		f.clock.advance(time.Second)
		class := map[bool]string{true: "p", false: "a"}[i%2 == 1]
		jobs = append(jobs, f.mustSubmit(class).ID)
	}
	f.mustSubmit("a", func(s *service.Submission) { s.RunAt = &at }) // not due: ahead of nobody
	last := jobs[25]
	w := f.mustWaiting(last)
	if want := (lanegate.Route{Lane: lanegate.LaneSerial, Reason: lanegate.ReasonLaneUnavailable, Wanted: lanegate.LaneParallel}); w.Route != want {
		t.Errorf("route %+v", w.Route)
	}
	if diff := cmp.Diff(service.Ahead{Count: 25, First: jobs[:20]}, w.Ahead); diff != "" {
		t.Errorf("ahead in serial:\n%s", diff)
	}
	f.mustWorker("w", 9)
	w = f.mustWaiting(last)
	var odd []string
	for i := 1; i < 25; i += 2 {
		odd = append(odd, jobs[i])
	}
	if w.Route != (lanegate.Route{Lane: lanegate.LaneParallel}) {
		t.Errorf("route %+v", w.Route)
	}
	if diff := cmp.Diff(service.Ahead{Count: 12, First: odd}, w.Ahead); diff != "" {
		t.Errorf("ahead in parallel:\n%s", diff)
	}
	f.wantListAgrees()
	if _, err := f.svc.Cancel(ctx, jobs[1], "ann"); err != nil {
		t.Fatal(err)
	}
	if w = f.mustWaiting(last); w.Ahead.Count != 11 {
		t.Errorf("%d ahead after a cancel, want 11", w.Ahead.Count)
	}
	if view, err := f.svc.Job(ctx, jobs[1]); err != nil || view.Waiting != nil {
		t.Errorf("a cancelled job waits on %+v, %v", view.Waiting, err)
	}
}

// A job that starts between the look at it and the look at the line must not be
// said to wait for one behind it.
func TestJobThatStartsMeanwhile(t *testing.T) {
	f := newFixture(t, func(s *setup) {
		s.wrap = func(real service.Store) service.Store { return &lateSnapshot{Store: real} }
	})
	f.mustWorker("w", 1)
	f.mustPut("c", execSpec())
	head := f.mustSubmit("c").ID
	f.clock.advance(time.Second)
	f.mustSubmit("c")
	f.store.(*lateSnapshot).before = func() { f.mustStart("w", 1, head) }
	view, err := f.svc.Job(t.Context(), head)
	if err != nil || view.State != lanegate.StateQueued || len(view.Waiting.On) != 0 {
		t.Errorf("state %s, waits on %+v, %v", view.State, view.Waiting, err)
	}
}

// lateSnapshot lets something happen before the next snapshot.
type lateSnapshot struct {
	service.Store
	before func()
}

func (s *lateSnapshot) Snapshot(ctx context.Context) (in admission.Input, err error) {
	if do := s.before; do != nil {
		s.before = nil
		do()
	}
	return s.Store.Snapshot(ctx)
}

func TestJobsPageByPage(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	want := make([]string, 5)
	for i := range want {
		want[len(want)-1-i] = f.mustSubmit("c").ID
	}
	var got []string
	for before, pages := "", 0; ; pages++ {
		page, err := f.svc.Jobs(t.Context(), service.JobFilter{Limit: 2, Before: before})
		f.must(err)
		for _, item := range page.Items {
			got = append(got, item.ID)
		}
		if page.Next == "" {
			break
		}
		if before = page.Next; pages > 5 {
			t.Fatal("the pages don't end")
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("jobs %v, want %v", got, want)
	}
	if page, err := f.svc.Jobs(t.Context(), service.JobFilter{}); err != nil || len(page.Items) != 5 {
		t.Errorf("%d jobs without a limit, %v", len(page.Items), err)
	}
}

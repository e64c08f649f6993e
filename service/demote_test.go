package service_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Running attempts end where they are and count there; the class starts nothing
// until they have, and others go on.
func TestDemoteLetsRunsEnd(t *testing.T) {
	f := gated(t)
	f.mustPut("night", execSpec("db", 5))
	f.mustWorker("w", 8)
	f.trial(passed("a", "b"))
	f.promote(to(parallel), "a", "b")
	first, second, third := f.mustSubmit("a"), f.mustSubmit("a"), f.mustSubmit("a")
	fences := f.mustStart("w", 8, first.ID, second.ID)

	p, err := f.svc.Demote(t.Context(), "a", admin)
	f.must(err)
	want := service.Consequences{Widths: []service.WidthChange{}, Demotes: []string{"a"}, Warnings: []string{
		"2 runs of a go on in lane parallel; the class starts nothing more until they have ended.",
	}}
	if diff := cmp.Diff(want, p.Consequences); diff != "" || !p.Changed || p.Classes[0].Lane != lanegate.LaneSerial || p.Classes[0].MaxInFlight != 1 {
		t.Errorf("demotion %+v:\n%s", p, diff)
	}
	other := f.mustSubmit("night")
	f.mustEnd(fences[first.ID], lanegate.Ending{Outcome: lanegate.Succeeded})
	f.mustStart("w", 8, other.ID) // serial is free, and a still has a run in parallel
	f.mustEnd(fences[second.ID], lanegate.Ending{Outcome: lanegate.Succeeded})
	f.mustStart("w", 8) // serial is not
	for _, g := range f.mustHeld("w") {
		if g.Fence.Job == other.ID {
			f.mustEnd(g.Fence, lanegate.Ending{Outcome: lanegate.Succeeded})
		}
	}
	f.mustStart("w", 8, third.ID)
}

func (f *fixture) mustHeld(worker string) []service.Held {
	f.t.Helper()
	held, err := f.svc.Beat(f.t.Context(), worker)
	f.must(err)
	return held
}

func TestDemoteByHand(t *testing.T) {
	f := gated(t)
	f.mustResource("db", 20, true)
	f.mustPut("wide", execSpec("db", 8))
	f.mustPut("small", execSpec("db", 2))
	f.trial(passed("wide"))
	f.trial(passed("small"))
	f.mustLane(lane("long", 1))
	f.promote(to("long"), "wide")
	f.promote(to(parallel), "small")
	// It lowers parallel's width by what is kept for serial, and is not refused for that.
	before := f.width(parallel)
	p, err := f.svc.Demote(t.Context(), "wide", admin)
	f.must(err)
	after := f.width(parallel)
	if want := []service.WidthChange{{Lane: parallel, Before: before, After: after}}; before == after || !cmp.Equal(want, p.Consequences.Widths) {
		t.Errorf("widths %+v, %d then %d", p.Consequences.Widths, before, after)
	}
	events := f.history("class:wide")
	last := events[len(events)-1]
	want := service.HistoryEvent{
		Subject: "class:wide", Event: "demoted", Actor: "ann", Reason: "because",
		Evidence: map[string]any{
			"cause": "manual", "from": "long", "max_in_flight_before": 2., "fingerprint": f.mustClass("wide").Fingerprint,
			"widths": []any{map[string]any{"lane": parallel, "before": float64(before), "after": float64(after)}},
		},
	}
	if diff := cmp.Diff(want, last, cmpopts.IgnoreFields(service.HistoryEvent{}, "ID", "At")); diff != "" {
		t.Errorf("event:\n%s", diff)
	}
	if n := f.metric("lanegate_class_demotions_total", "class=wide", "reason=manual"); n != 1 {
		t.Errorf("%v demotions counted", n)
	}
	if f.logs.count("class demoted") != 0 {
		t.Error("a person's demotion is a warning in the log")
	}
	p, err = f.svc.Demote(t.Context(), "wide", admin)
	if err != nil || p.Changed || len(f.history("class:wide")) != len(events) || p.Classes[0].ID != "wide" {
		t.Errorf("again: %+v, %v", p, err)
	}
	_, err = f.svc.Demote(t.Context(), "no", admin)
	wantError(t, err, lanegate.ErrClassNotFound)
}

// A dry run says what the change would do and what would have to be accepted for
// it, and leaves nothing behind.
func TestDryRun(t *testing.T) {
	f := gated(t)
	f.mustPut("small", execSpec("db", 1))
	f.mustPut("free", execSpec("db", 1))
	f.mustLane(lane("long", 1))
	f.mustResource("spare", 3, false)
	f.trial(passed("a"))
	f.trial(passed("small"))
	f.promote(to(parallel, accepting), "small")
	edit := func(units int) func(lanegate.ClassSpec) (lanegate.ClassSpec, error) {
		return func(s lanegate.ClassSpec) (lanegate.ClassSpec, error) {
			s.Units = lanegate.Units{"db": units}
			return s, nil
		}
	}
	lower := []service.WidthChange{{Lane: parallel, Before: 10, After: 2}}
	for _, tt := range []struct {
		name    string
		change  anyChange
		options service.ChangeOptions
		refusal *lanegate.Error // of the change itself, without what options accept
		needs   []string
		want    service.Consequences
	}{
		{"promote", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			_, err := s.Promote(ctx, []string{"a"}, service.PromoteOptions{ChangeOptions: o})
			return err
		}, acceptWidth, lanegate.ErrPromotionRefused, []string{"accept=width"}, service.Consequences{
			Widths: lower, UnprovenBeside: map[string][]string{"a": {"b", "free", "small"}},
			Warnings: []string{"Lane parallel is not available now: its jobs run in serial until a worker serves it."},
		}},
		{"demote", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			_, err := s.Demote(ctx, "small", o)
			return err
		}, admin, nil, nil, service.Consequences{Widths: []service.WidthChange{{Lane: parallel, Before: 10, After: 1}}, Demotes: []string{"small"}}},
		{"a new class", putClass("new", execSpec("db", 13)), acceptWidth, lanegate.ErrWidthLowered, []string{"accept=width"}, service.Consequences{
			Widths: []service.WidthChange{{Lane: parallel, Before: 10, After: 2}}, UnprovenBeside: map[string][]string{"small": {"new"}},
		}},
		{"an edit that demotes", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			_, err := s.PatchClass(ctx, "small", edit(2), o)
			return err
		}, demote, lanegate.ErrWouldDemote, []string{"demote=true"}, service.Consequences{Widths: []service.WidthChange{{Lane: parallel, Before: 10, After: 1}}, Demotes: []string{"small"}}},
		{"an edit that leaves the lane empty", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			_, err := s.PatchClass(ctx, "small", edit(14), o)
			return err
		}, service.ChangeOptions{Actor: "ann", AcceptWidth: true, Demote: true}, lanegate.ErrWouldDemote, []string{"demote=true"}, service.Consequences{Widths: []service.WidthChange{{Lane: parallel, Before: 10, After: 1}}, Demotes: []string{"small"}}},
		{"less of a resource", putResource("db", 12), acceptWidth, lanegate.ErrWidthLowered, []string{"accept=width"}, service.Consequences{Widths: []service.WidthChange{{Lane: parallel, Before: 10, After: 7}}}},
		{"a new lane", putLane(lane("wide", 1)), admin, nil, nil, service.Consequences{Widths: []service.WidthChange{{Lane: "wide", After: 1}}}},
		{"a lane less", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			return s.DeleteLane(ctx, "long", o)
		}, admin, nil, nil, service.Consequences{Widths: []service.WidthChange{{Lane: "long", Before: 1}}}},
		{"a class less", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			return s.DeleteClass(ctx, "free", o)
		}, admin, nil, nil, service.Consequences{Widths: []service.WidthChange{}}},
		{"a resource less", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			return s.DeleteResource(ctx, "spare", o)
		}, admin, nil, nil, service.Consequences{Widths: []service.WidthChange{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stored, demotions := f.config(), f.metric("lanegate_class_demotions_total", "class=small", "reason=manual")
			submitted := f.metric("lanegate_jobs_submitted_total", "class=free")
			subjects := []string{"class:a", "class:small", "class:new", "class:free", "lane:parallel", "lane:long", "lane:wide", "resource:db", "resource:spare"}
			histories := map[string]int{}
			for _, s := range subjects {
				histories[s] = len(f.history(s))
			}
			warned := f.logs.count("")
			f.bell.heard()
			var report service.Consequences
			if tt.refusal != nil {
				wantError(t, tt.change(t.Context(), f.svc, admin), tt.refusal)
			}
			o := admin
			o.DryRun, o.Report = true, &report
			f.must(tt.change(t.Context(), f.svc, o))
			asked := tt.want
			asked.Needs = tt.needs
			if diff := cmp.Diff(asked, report); diff != "" {
				t.Errorf("consequences, nothing accepted:\n%s", diff)
			}
			o = tt.options
			o.DryRun, o.Report = true, &report
			f.must(tt.change(t.Context(), f.svc, o))
			if diff := cmp.Diff(tt.want, report); diff != "" {
				t.Errorf("consequences:\n%s", diff)
			}
			if diff := cmp.Diff(stored, f.config()); diff != "" {
				t.Errorf("the configuration changed:\n%s", diff)
			}
			for _, s := range subjects {
				if n := len(f.history(s)); n != histories[s] {
					t.Errorf("%d new events of %s", n-histories[s], s)
				}
			}
			if rung := f.bell.heard(); len(rung) > 0 || f.logs.count("") != warned ||
				f.metric("lanegate_class_demotions_total", "class=small", "reason=manual") != demotions ||
				f.metric("lanegate_jobs_submitted_total", "class=free") != submitted {
				t.Errorf("somebody heard of it: rung %v", rung)
			}
		})
	}
}

func TestArithmeticSaysWhatWasNotDeclared(t *testing.T) {
	f := gated(t)
	for i := range 33 {
		f.mustPut("undeclared-"+string(rune('a'+i%26))+strings.Repeat("x", i/26), execSpec())
	}
	f.trial(passed("a"))
	p := f.promote(to(parallel), "a")
	if !slices.ContainsFunc(p.Consequences.Warnings, func(w string) bool { return strings.HasPrefix(w, "33 of 35 classes declare no units") }) {
		t.Errorf("warnings %q", p.Consequences.Warnings)
	}
}

// One night's outage of a vendor, which no phrase of trouble tells, demotes nobody; it warns.
func TestFailuresAndOldProofsWarn(t *testing.T) {
	f := gated(t)
	f.mustWorker("w", 8)
	f.trial(passed("a"))
	f.promote(to(parallel), "a")
	fail := func() {
		t.Helper()
		job := f.mustSubmit("a")
		f.mustEnd(f.mustStart("w", 8, job.ID)[job.ID], lanegate.Ending{Outcome: lanegate.Failed, Error: "vendor is down"})
		f.clock.advance(time.Second)
	}
	standing := func() service.Standing {
		t.Helper()
		f.must(f.svc.WatchRuns(t.Context()))
		f.must(f.svc.JudgeFindings(t.Context()))
		st, err := f.svc.Standing(t.Context(), "a")
		f.must(err)
		return st
	}
	fail()
	fail()
	if st := standing(); st.Warnings != nil || f.metric("lanegate_class_failures_in_row", "class=a") != 2 {
		t.Errorf("warnings after two failures: %q", st.Warnings)
	}
	for range 3 {
		fail()
		standing()
	}
	if st := standing(); len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "last 5 runs failed") {
		t.Errorf("warnings after five failures: %q", st.Warnings)
	}
	if n := f.logs.count("needs a look"); n != 1 {
		t.Errorf("%d log lines, want one a day", n)
	}
	f.clock.advance(24 * time.Hour)
	standing()
	if n := f.logs.count("needs a look"); n != 2 {
		t.Errorf("%d log lines on the next day, want 2", n)
	}
	for range 10 {
		fail()
	}
	if st := standing(); !strings.Contains(st.Warnings[0], "at least 10") {
		t.Errorf("warnings %q", st.Warnings)
	}
	job := f.mustSubmit("a")
	f.mustEnd(f.mustStart("w", 8, job.ID)[job.ID], lanegate.Ending{Outcome: lanegate.Succeeded})
	if st := standing(); st.Warnings != nil {
		t.Errorf("warnings after a success: %q", st.Warnings)
	}
	f.clock.advance(lanegate.ProofAge)
	if st := standing(); len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "91 days old") {
		t.Errorf("warnings of an old proof: %q", st.Warnings)
	}
	if age := f.metric("lanegate_class_proof_age_seconds", "class=a"); age < lanegate.ProofAge.Seconds() {
		t.Errorf("age of the proof %v s", age)
	}
	if c := f.mustClass("a"); c.Lane != parallel {
		t.Errorf("lane %s", c.Lane)
	}
}

func TestStandingSaysWhy(t *testing.T) {
	f := gated(t)
	because := func(class, event string) service.Standing {
		t.Helper()
		st, err := f.svc.Standing(t.Context(), class)
		f.must(err)
		if st.Because.Event != event || st.Because.Subject != "class:"+class || st.Because.ID == 0 {
			t.Errorf("%s stands because of %+v, want %s", class, st.Because, event)
		}
		return st
	}
	if st := because("a", "created"); st.Copies != 0 || st.Latest != nil || st.Warnings != nil {
		t.Errorf("standing %+v", st)
	}
	run := f.trial(lanegate.VerdictPassed, map[string]int{"a": 3, "b": 1})
	f.promote(to(parallel, upTo(2)), "a")
	described := execSpec("db", 5)
	described.Description = "said anew"
	f.mustPut("a", described) // an edit that moves nothing explains nothing
	want := service.Standing{
		Copies: 3, Beside: []string{"b"},
		Latest: &lanegate.Proof{Verification: run, Class: "a", Fingerprint: f.mustClass("a").Fingerprint, Verdict: lanegate.VerdictPassed, Copies: 3, Beside: []string{"b"}, EndedAt: f.clock.Now()},
	}
	if diff := cmp.Diff(want, because("a", "promoted"), cmpopts.IgnoreFields(service.Standing{}, "Because")); diff != "" {
		t.Errorf("standing:\n%s", diff)
	}
	_, err := f.svc.Demote(t.Context(), "a", admin)
	f.must(err)
	because("a", "demoted")
	all, err := f.svc.Standings(t.Context(), []string{"a", "b", "no"})
	f.must(err)
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("standings of %v", got)
	}
	_, err = f.svc.Standing(t.Context(), "no")
	wantError(t, err, lanegate.ErrClassNotFound)
}

// A dry run names at once all that a change needs; what can't be accepted it refuses.
func TestDryRunNeedsAll(t *testing.T) {
	f := gated(t)
	f.mustPut("small", execSpec("db", 1))
	f.mustPut("free", execSpec("db", 1))
	f.trial(passed("small", "free"))
	f.promote(to(parallel, accepting), "small", "free")
	var report service.Consequences
	o := admin
	o.DryRun, o.Report = true, &report
	heavy := execSpec("db", 14)
	_, _, err := f.svc.PutClass(t.Context(), "small", heavy, o)
	f.must(err)
	if !slices.Equal(report.Needs, []string{"demote=true", "accept=width"}) || !slices.Equal(report.Demotes, []string{"small"}) ||
		len(report.Widths) != 1 || report.Widths[0].After >= report.Widths[0].Before {
		t.Errorf("consequences %+v", report)
	}
	for _, one := range []struct {
		accepted service.ChangeOptions
		needs    []string
	}{{demote, []string{"accept=width"}}, {acceptWidth, []string{"demote=true"}}, {service.ChangeOptions{Actor: "ann", AcceptWidth: true, Demote: true}, nil}} {
		o := one.accepted
		o.DryRun, o.Report = true, &report
		_, _, err := f.svc.PutClass(t.Context(), "small", heavy, o)
		f.must(err)
		if !slices.Equal(report.Needs, one.needs) {
			t.Errorf("with %+v it needs %q, want %q", one.accepted, report.Needs, one.needs)
		}
		if o.DryRun = false; one.needs != nil {
			if _, _, err := f.svc.PutClass(t.Context(), "small", heavy, o); err == nil {
				t.Errorf("changed without %q", one.needs)
			}
		}
	}
	_, err = f.svc.PutLane(t.Context(), lane("wide", 50), o)
	wantError(t, err, lanegate.ErrWidthOvercommit)
	_, _, err = f.svc.PutClass(t.Context(), "small", execSpec("nothing", 1), o)
	if lanegate.KindOf(err) != lanegate.KindInvalid {
		t.Errorf("an unknown resource: %v", err)
	}
	// The gate refuses what is not proven, and names the width with it.
	_, err = f.svc.Promote(t.Context(), []string{"a"}, service.PromoteOptions{ChangeOptions: o})
	wantUnmet(t, err, "verification_required a", "width_lowered")
}

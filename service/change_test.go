package service_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Invariant 2, "New is serial": whatever a spec says, there is no way to ask for more.
func TestNewClassIsSerial(t *testing.T) {
	f := newFixture(t)
	f.mustResource("db", 15, true)
	spec := execSpec("db", 1)
	spec.Description, spec.MaxAttempts, spec.Overlap = "parallel please", 3, lanegate.OverlapCoalesce
	c, created, err := f.svc.PutClass(t.Context(), "pos-sales", spec, admin)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	for _, got := range []lanegate.Class{c, f.mustClass("pos-sales")} {
		if got.Lane != lanegate.LaneSerial || got.MaxInFlight != 1 {
			t.Errorf("lane %s, max_in_flight %d, want serial and 1", got.Lane, got.MaxInFlight)
		}
		if got.CommandDigest != "d1" || got.Fingerprint != lanegate.Fingerprint(got.ClassSpec, "d1") {
			t.Errorf("digest %q, fingerprint %q", got.CommandDigest, got.Fingerprint)
		}
	}
	if got := f.events("class:pos-sales"); !slices.Equal(got, []string{"created"}) {
		t.Errorf("history %v", got)
	}
	// Edited, it still is; promoted, an edit leaves the lane alone.
	if c = f.mustPut("pos-sales", execSpec("db", 2)); c.Lane != lanegate.LaneSerial {
		t.Errorf("lane %s after an edit", c.Lane)
	}
	f.mustPromote("pos-sales", lanegate.LaneParallel, 2)
	spec = execSpec("db", 2)
	spec.Timeout = lanegate.DefaultHeartbeat
	if c = f.mustPut("pos-sales", spec); c.Lane != lanegate.LaneParallel || c.MaxInFlight != 2 {
		t.Errorf("lane %s, max_in_flight %d after an edit that leaves the fingerprint", c.Lane, c.MaxInFlight)
	}
}

func TestClassFaultsComeAllAtOnce(t *testing.T) {
	f := newFixture(t)
	f.mustPut("old", execSpec())
	wrong := execSpec("db", 2, "vendor", 1)
	wrong.Run.Command, wrong.MaxAttempts, wrong.Overlap = "rm -rf /", -1, "both"
	_, _, err := f.svc.PutClass(t.Context(), "Bad Name", wrong, admin)
	wantFields(t, err, "/id", "/run/command", "/max_attempts", "/overlap", "/units/db", "/units/vendor")
	_, err = f.svc.PatchClass(t.Context(), "old", func(lanegate.ClassSpec) (lanegate.ClassSpec, error) { return wrong, nil }, admin)
	wantFields(t, err, "/run/command", "/max_attempts", "/overlap", "/units/db", "/units/vendor")
	_, _, err = f.svc.PutClass(t.Context(), "later", lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunSQS, Queue: "no queue's name"}}, admin)
	wantFields(t, err, "/run/queue")
	_, err = f.svc.PutLane(t.Context(), lanegate.Lane{Name: "X", WidthSetting: -1}, admin)
	wantFields(t, err, "/name", "/width", "/order", "/when_unavailable")
	_, err = f.svc.PutResource(t.Context(), lanegate.Resource{Name: "X", Capacity: -1}, admin)
	wantFields(t, err, "/name", "/capacity")
}

func TestUnknownNames(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	edit := func(s lanegate.ClassSpec) (lanegate.ClassSpec, error) { return s, nil }
	_, patch := f.svc.PatchClass(ctx, "no", edit, admin)
	_, get := f.svc.Class(ctx, "no")
	_, pause := f.svc.PauseClass(ctx, "no", admin)
	_, history := f.svc.History(ctx, "no", 0, 10)
	_, stats := f.svc.Stats(ctx, "no", 1)
	for what, err := range map[string]error{
		"patch": patch, "get": get, "pause": pause, "history": history, "stats": stats,
		"delete": f.svc.DeleteClass(ctx, "no", admin),
	} {
		if !errors.Is(err, lanegate.ErrClassNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, noLane := f.svc.Lane(ctx, "no")
	for _, err := range []error{noLane, f.svc.PauseLane(ctx, "no", admin), f.svc.DeleteLane(ctx, "no", admin)} {
		wantError(t, err, lanegate.ErrLaneNotFound)
	}
	_, noResource := f.svc.Resource(ctx, "no")
	for _, err := range []error{noResource, f.svc.DeleteResource(ctx, "no", admin)} {
		wantError(t, err, lanegate.ErrResourceNotFound)
	}
}

func TestSavingTheSameWritesNoHistory(t *testing.T) {
	f := newFixture(t)
	f.mustResource("db", 15, true)
	f.mustLane(lane("long", 1))
	spec := lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://x/"}, Units: lanegate.Units{}}
	f.mustPut("c", spec)
	before := f.config()
	again := spec
	again.MaxAttempts, again.Run.Mode, again.Overlap = 1, lanegate.ModeSync, lanegate.OverlapQueue // the defaults, spelled out
	again.Run.Headers = map[string]string{}
	for _, s := range []lanegate.ClassSpec{spec, again} {
		f.clock.advance(1e9)
		f.mustPut("c", s)
		f.mustResource("db", 15, true)
		f.mustLane(lane("long", 1))
		if _, err := f.svc.ResumeClass(t.Context(), "c", admin); err != nil {
			t.Fatal(err)
		}
		f.must(f.svc.ResumeLane(t.Context(), "long", admin))
	}
	for _, subject := range []string{"class:c", "lane:long", "resource:db"} {
		if got := f.events(subject); !slices.Equal(got, []string{"created"}) {
			t.Errorf("history of %s: %v", subject, got)
		}
	}
	if diff := cmp.Diff(before, f.config()); diff != "" {
		t.Errorf("configuration changed:\n%s", diff)
	}
	// Undeclared units and declared emptiness are not the same.
	spec.Units = nil
	f.mustPut("c", spec)
	if got := f.events("class:c"); !slices.Equal(got, []string{"created", "edited"}) {
		t.Errorf("history %v", got)
	}
}

func TestPauseAndResume(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("c", execSpec())
	f.bell.heard()
	for range 2 {
		if c, err := f.svc.PauseClass(ctx, "c", admin); err != nil || !c.Paused {
			t.Fatalf("paused %v, %v", c.Paused, err)
		}
		f.must(f.svc.PauseLane(ctx, lanegate.LaneSerial, admin))
	}
	for range 2 {
		if c, err := f.svc.ResumeClass(ctx, "c", admin); err != nil || c.Paused {
			t.Fatalf("paused %v, %v", c.Paused, err)
		}
		f.must(f.svc.ResumeLane(ctx, lanegate.LaneSerial, admin))
	}
	if !slices.Contains(f.bell.heard(), lanegate.LaneSerial) {
		t.Error("nobody was woken")
	}
	want := []service.HistoryEvent{
		{Subject: "class:c", Event: "paused", Actor: "ann", Reason: "because"},
		{Subject: "class:c", Event: "resumed", Actor: "ann", Reason: "because"},
	}
	if diff := cmp.Diff(want, f.history("class:c")[1:], cmpopts.IgnoreFields(service.HistoryEvent{}, "ID", "At")); diff != "" {
		t.Errorf("history:\n%s", diff)
	}
	if got := f.events("lane:serial"); !slices.Equal(got, []string{"paused", "resumed"}) {
		t.Errorf("history of serial: %v", got)
	}
}

func TestWouldDemote(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustResource("db", 15, true)
	before := f.mustPut("c", execSpec("db", 5))
	f.mustPromote("c", lanegate.LaneParallel, 2)
	stored := f.config()
	change := func(s lanegate.ClassSpec) (lanegate.ClassSpec, error) {
		s.Units = lanegate.Units{"db": 4}
		return s, nil
	}
	_, err := f.svc.PatchClass(ctx, "c", change, admin)
	e := wantError(t, err, lanegate.ErrWouldDemote)
	after := lanegate.Fingerprint(execSpec("db", 4).WithDefaults(), "d1")
	want := map[string]any{"lane": "parallel", "fingerprint_before": before.Fingerprint, "fingerprint_after": after}
	if diff := cmp.Diff(want, e.Details); diff != "" {
		t.Errorf("details:\n%s", diff)
	}
	if diff := cmp.Diff(stored, f.config()); diff != "" {
		t.Errorf("a refused edit left something behind:\n%s", diff)
	}
	c, err := f.svc.PatchClass(ctx, "c", change, demote)
	if err != nil {
		t.Fatal(err)
	}
	if c.Lane != lanegate.LaneSerial || c.MaxInFlight != 1 || c.Fingerprint != after {
		t.Errorf("lane %s, max_in_flight %d, fingerprint %s", c.Lane, c.MaxInFlight, c.Fingerprint)
	}
	if got := f.events("class:c"); !slices.Equal(got, []string{"created", "demoted", "edited"}) {
		t.Errorf("history %v", got)
	}
	if n := f.metric("lanegate_class_demotions_total", "class=c", "reason=fingerprint_changed"); n != 1 {
		t.Errorf("%v demotions counted", n)
	}
	if f.logs.count("class demoted") != 1 {
		t.Error("the demotion was not logged once")
	}
}

// A demotion inside a change that is refused as a whole has not happened, for
// metrics and logs neither.
func TestRefusedChangeLeavesNothingBehind(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustResource("db", 15, true)
	for _, id := range []string{"a", "b"} {
		f.mustPut(id, execSpec("db", 5))
		f.mustPromote(id, lanegate.LaneParallel, 1)
	}
	before := f.config()
	f.bell.heard()
	_, _, err := f.svc.PutClass(ctx, "a", execSpec("db", 6), demote) // back in serial, it raises the reserve
	wantError(t, err, lanegate.ErrWidthLowered)
	if diff := cmp.Diff(before, f.config()); diff != "" {
		t.Errorf("configuration changed:\n%s", diff)
	}
	if got := f.events("class:a"); !slices.Equal(got, []string{"created"}) {
		t.Errorf("history %v", got)
	}
	if n := f.metric("lanegate_class_demotions_total", "class=a"); n != 0 || f.logs.count("demoted") != 0 {
		t.Errorf("%v demotions counted, %d logged", n, f.logs.count("demoted"))
	}
	if got := f.bell.heard(); got != nil {
		t.Errorf("rang %v", got)
	}
	refused := errors.New("no")
	_, err = f.svc.PatchClass(ctx, "a", func(lanegate.ClassSpec) (lanegate.ClassSpec, error) { return execSpec(), refused }, admin)
	if !errors.Is(err, refused) {
		t.Errorf("error %v, want that of the edit", err)
	}
}

// A store may repeat a change that gave way to another transaction: it still
// happened once.
func TestRepeatedChangeCountsOnce(t *testing.T) {
	f := newFixture(t, func(s *setup) {
		s.wrap = func(real service.Store) service.Store { return &repeatingStore{Store: real} }
	})
	f.mustPut("c", execSpec())
	f.mustPromote("c", lanegate.LaneParallel, 1)
	if _, _, err := f.svc.PutClass(t.Context(), "c", execSpec("db", 0), demote); err == nil {
		t.Fatal("a class with an unknown resource was taken")
	}
	f.commands.set("cmd", "d2")
	f.must(f.svc.SyncCommands(t.Context()))
	if n := f.metric("lanegate_class_demotions_total", "class=c"); n != 1 {
		t.Errorf("%v demotions counted", n)
	}
	if got := f.events("class:c"); !slices.Equal(got, []string{"created", "demoted", "command_changed"}) {
		t.Errorf("history %v", got)
	}
}

// repeatingStore runs each change twice; only the second is kept.
type repeatingStore struct{ service.Store }

var errRepeat = errors.New("repeat")

func (s *repeatingStore) Change(ctx context.Context, fn func(service.ConfigTx) error) error {
	err := s.Store.Change(ctx, func(tx service.ConfigTx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return errRepeat
	})
	if !errors.Is(err, errRepeat) {
		return err
	}
	return s.Store.Change(ctx, fn)
}

func TestDeleteWhatIsInUse(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustResource("db", 15, false)
	f.mustLane(lane("long", 1))
	f.mustPut("c", execSpec("db", 0))
	f.mustPut("d", execSpec())
	f.mustPromote("c", "long", 1)
	f.mustWorker("w", 2)
	job := f.mustSubmit("c")
	inUse := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, lanegate.ErrInUse) {
			t.Errorf("%s: %v, want in_use", what, err)
		}
	}
	inUse("class with a queued job", f.svc.DeleteClass(ctx, "c", admin))
	inUse("lane of a class", f.svc.DeleteLane(ctx, "long", admin))
	inUse("declared resource", f.svc.DeleteResource(ctx, "db", admin))
	fence := f.mustStart("w", 1, job.ID)[job.ID]
	f.mustPromote("c", lanegate.LaneSerial, 1)
	inUse("class with a running job", f.svc.DeleteClass(ctx, "c", admin))
	inUse("lane with a running job", f.svc.DeleteLane(ctx, "long", admin))
	f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded})

	f.must(f.svc.DeleteClass(ctx, "c", admin))
	f.must(f.svc.DeleteLane(ctx, "long", admin))
	f.must(f.svc.DeleteResource(ctx, "db", admin))
	for _, subject := range []string{"class:c", "lane:long", "resource:db"} {
		if got := f.events(subject); got[len(got)-1] != "deleted" {
			t.Errorf("history of %s: %v", subject, got)
		}
	}
	if _, err := f.svc.History(ctx, "c", 0, 10); err != nil {
		t.Errorf("history of a deleted class: %v", err)
	}
	if view, err := f.svc.Job(ctx, job.ID); err != nil || view.State != lanegate.StateSucceeded {
		t.Errorf("job of a deleted class: %s, %v", view.State, err)
	}
	for _, name := range []string{lanegate.LaneSerial, lanegate.LaneParallel} {
		wantError(t, f.svc.DeleteLane(ctx, name, admin), lanegate.ErrBuiltinLane)
	}
	_, err := f.svc.PutLane(ctx, lane(lanegate.LaneSerial, 2), admin)
	wantError(t, err, lanegate.ErrBuiltinLane)
}

func TestClassesPageByPage(t *testing.T) {
	f := newFixture(t)
	for _, id := range []string{"c", "a", "b"} {
		f.mustPut(id, execSpec())
	}
	var got []string
	for after, pages := "", 0; ; pages++ {
		classes, next, err := f.svc.Classes(t.Context(), after, 2)
		f.must(err)
		for _, c := range classes {
			got = append(got, c.ID)
		}
		if next == "" {
			break
		}
		if after = next; pages > 3 {
			t.Fatal("the pages don't end")
		}
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("classes %v", got)
	}
	if all, _, err := f.svc.Classes(t.Context(), "", 0); err != nil || len(all) != 3 {
		t.Errorf("%d classes without a limit, %v", len(all), err)
	}
}

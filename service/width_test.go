package service_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// twoWide is DESIGN's example: db 15, units 5 in parallel, 5 kept for serial: width 2.
func twoWide(t *testing.T, edits ...func(*setup)) *fixture {
	t.Helper()
	f := newFixture(t, edits...)
	f.mustResource("db", 15, true)
	f.mustPut("nightly", execSpec("db", 5))
	f.mustPut("fast", execSpec("db", 5))
	f.mustPromote("fast", lanegate.LaneParallel, 2)
	if w := f.width(lanegate.LaneParallel); w != 2 {
		t.Fatalf("width %d, want 2", w)
	}
	return f
}

// anyChange does something with the options given.
type anyChange func(ctx context.Context, s *service.Service, o service.ChangeOptions) error

func putClass(id string, spec lanegate.ClassSpec) anyChange {
	return func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
		_, _, err := s.PutClass(ctx, id, spec, o)
		return err
	}
}

func putResource(name string, capacity int) anyChange {
	return func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
		_, err := s.PutResource(ctx, lanegate.Resource{Name: name, Capacity: capacity, Pool: true}, o)
		return err
	}
}

func putLane(l lanegate.Lane) anyChange {
	return func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
		_, err := s.PutLane(ctx, l, o)
		return err
	}
}

func overcommitting(l lanegate.Lane) lanegate.Lane {
	l.AllowOvercommit = true
	return l
}

func TestLoweredWidthIsAskedFor(t *testing.T) {
	asItIs := func(*fixture) {}
	for _, tt := range []struct {
		name          string
		prepare       func(f *fixture)
		change        anyChange
		before, after int
	}{
		{"a new serial class with large units", asItIs, putClass("heavy", execSpec("db", 10)), 2, 1},
		{"larger units of a serial class", asItIs, putClass("nightly", execSpec("db", 9)), 2, 1},
		{"less capacity", asItIs, putResource("db", 14), 2, 1},
		{"another lane's explicit width", func(f *fixture) {
			f.mustLane(lane("long", 1))
			f.mustPut("slow", execSpec("db", 1))
			f.mustPromote("slow", "long", 1)
			f.mustResource("db", 16, true)
		}, putLane(overcommitting(lane("long", 3))), 2, 1},
		{"a new pool that a class of undeclared units uses", func(f *fixture) {
			f.mustPut("fast2", execSpec())
			f.mustPromote("fast2", lanegate.LaneParallel, 1)
		}, putResource("vendor", 1), 2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := twoWide(t)
			tt.prepare(f)
			stored := f.config()
			err := tt.change(t.Context(), f.svc, admin)
			e := wantError(t, err, lanegate.ErrWidthLowered)
			want := map[string]any{"lanes": []map[string]any{{"lane": "parallel", "before": tt.before, "after": tt.after}}}
			if diff := cmp.Diff(want, e.Details); diff != "" {
				t.Errorf("details:\n%s", diff)
			}
			if diff := cmp.Diff(stored, f.config()); diff != "" {
				t.Errorf("a refused change left something behind:\n%s", diff)
			}
			if err := tt.change(t.Context(), f.svc, acceptWidth); err != nil {
				t.Fatal(err)
			}
			if w := f.width(lanegate.LaneParallel); w != tt.after {
				t.Errorf("width %d, want %d", w, tt.after)
			}
			events := f.history("lane:parallel")
			last := events[len(events)-1]
			if last.Event != "width_lowered" || last.Actor != "ann" || last.Evidence["before"] != float64(tt.before) || last.Evidence["after"] != float64(tt.after) {
				t.Errorf("lane history ends with %+v", last)
			}
			if f.logs.count("lane width lowered") != 1 {
				t.Error("not logged once")
			}
		})
	}
}

func TestWhatLowersNoWidthIsNotAskedFor(t *testing.T) {
	del := func(id string) anyChange {
		return func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			return s.DeleteClass(ctx, id, o)
		}
	}
	described := execSpec("db", 5)
	described.Description = "new words"
	for _, tt := range []struct {
		name   string
		change anyChange
		width  int
	}{
		{"words", putClass("fast", described), 2},
		{"a serial class as large as the largest", putClass("nightly2", execSpec("db", 5)), 2},
		{"more capacity", putResource("db", 20), 3},
		{"a new auto lane", putLane(lane("long", lanegate.WidthAuto)), 2},
		{"the lane's own width set smaller", putLane(lane(lanegate.LaneParallel, 1)), 1},
		{"the lane's own width set to what it is", putLane(lane(lanegate.LaneParallel, 2)), 2},
		{"the last class leaving the lane", del("fast"), 1},
		{"a serial class leaving", del("nightly"), 3},
		{"a pause, which frees the reserve", func(ctx context.Context, s *service.Service, o service.ChangeOptions) error {
			_, err := s.PauseClass(ctx, "nightly", o)
			return err
		}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := twoWide(t)
			if err := tt.change(t.Context(), f.svc, admin); err != nil {
				t.Fatal(err)
			}
			if w := f.width(lanegate.LaneParallel); w != tt.width {
				t.Errorf("width %d, want %d", w, tt.width)
			}
			if got := f.events("lane:parallel"); slices.Contains(got, "width_lowered") || slices.Contains(got, "width_overcommitted") {
				t.Errorf("lane history %v", got)
			}
		})
	}
}

// A pause may be taken back in the middle of the night, whatever that does to widths.
func TestResumeIsNeverRefused(t *testing.T) {
	f := twoWide(t)
	ctx := t.Context()
	_, err := f.svc.PauseClass(ctx, "nightly", admin)
	f.must(err)
	f.must(putLane(lane(lanegate.LaneParallel, 3))(ctx, f.svc, admin)) // fits while nightly is paused
	if _, err := f.svc.ResumeClass(ctx, "nightly", admin); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if got := f.events("lane:parallel"); !slices.Equal(got, []string{"edited", "width_overcommitted"}) {
		t.Errorf("lane history %v", got)
	}
}

func TestExplicitWidthAboveTheArithmetic(t *testing.T) {
	f := twoWide(t)
	ctx := t.Context()
	three := lane(lanegate.LaneParallel, 3)
	err := putLane(three)(ctx, f.svc, acceptWidth) // that accepts consequences, not this
	e := wantError(t, err, lanegate.ErrWidthOvercommit)
	want := map[string]any{"lane": "parallel", "width": 3, "arithmetic": 2}
	if diff := cmp.Diff(want, e.Details); diff != "" {
		t.Errorf("details:\n%s", diff)
	}
	if sum := "(15 − 5 − 0) / 5 = 2"; !strings.Contains(e.Message, sum) {
		t.Errorf("message %q does not show the sum %q", e.Message, sum)
	}
	f.must(putLane(overcommitting(three))(ctx, f.svc, admin))
	if w := f.width(lanegate.LaneParallel); w != 3 {
		t.Errorf("width %d, want 3", w)
	}
	if got := f.events("lane:parallel"); !slices.Equal(got, []string{"edited", "width_overcommitted"}) {
		t.Errorf("lane history %v", got)
	}
	if f.metric("lanegate_lane_overcommitted", "lane=parallel") != 1 {
		t.Error("not exported")
	}
	// Being allowed, it is recorded when it comes about by another change, not asked for.
	f.must(putLane(overcommitting(lane(lanegate.LaneParallel, 2)))(ctx, f.svc, admin))
	f.must(putResource("db", 14)(ctx, f.svc, admin))
	if got := f.events("lane:parallel"); !slices.Equal(got[2:], []string{"edited", "width_overcommitted"}) {
		t.Errorf("lane history %v", got)
	}
	f.must(putLane(overcommitting(three))(ctx, f.svc, admin))
	// It stays so through other changes; taking the permission back is not free.
	f.must(putResource("db", 13)(ctx, f.svc, admin))
	wantError(t, putLane(three)(ctx, f.svc, admin), lanegate.ErrWidthOvercommit)
}

// An explicit width that another change leaves too large is a consequence: it is
// asked for like a lowered width, then recorded, and doesn't stand in the way later.
func TestWidthLeftAboveTheArithmetic(t *testing.T) {
	f := twoWide(t)
	ctx := t.Context()
	two := lane(lanegate.LaneParallel, 2)
	f.must(putLane(two)(ctx, f.svc, admin))
	err := putResource("db", 14)(ctx, f.svc, admin)
	e := wantError(t, err, lanegate.ErrWidthLowered)
	if lanes := e.Details["lanes"].([]map[string]any); lanes[0]["width"] != 2 || lanes[0]["arithmetic"] != 1 || lanes[0]["lane"] != "parallel" {
		t.Errorf("details %v", e.Details)
	}
	f.must(putResource("db", 14)(ctx, f.svc, acceptWidth))
	if got := f.events("lane:parallel"); !slices.Equal(got, []string{"edited", "width_overcommitted"}) {
		t.Errorf("lane history %v", got)
	}
	// Edits in another respect, of the lane itself or of others, need nothing.
	two.WhenUnavailable = lanegate.FallbackWait
	f.must(putLane(two)(ctx, f.svc, admin))
	f.mustPut("other", execSpec("db", 0))
	f.must(putResource("db", 13)(ctx, f.svc, admin))
	// A larger width is a decision of its own, although the lane was above before.
	wantError(t, putLane(lane(lanegate.LaneParallel, 4))(ctx, f.svc, acceptWidth), lanegate.ErrWidthOvercommit)
	f.must(putLane(lane(lanegate.LaneParallel, 1))(ctx, f.svc, admin))
	if f.metric("lanegate_lane_overcommitted", "lane=parallel") != 0 {
		t.Error("still exported as overcommitted")
	}
}

// A lane without classes has an arithmetic of 1, so that any other explicit width
// is a decision; nothing is recorded about it until classes are in the lane.
func TestEmptyLaneWithAnExplicitWidth(t *testing.T) {
	f := twoWide(t)
	ctx := t.Context()
	wide := lane("wide", 4)
	wantError(t, putLane(wide)(ctx, f.svc, admin), lanegate.ErrWidthOvercommit)
	f.must(putLane(overcommitting(wide))(ctx, f.svc, admin))
	f.mustPut("tiny", execSpec("db", 1))
	f.mustPromote("tiny", "wide", 4)
	f.must(f.svc.DeleteClass(ctx, "fast", admin))
	if l, err := f.svc.Lane(ctx, "wide"); err != nil || l.Width.Overcommitted || l.Width.Auto != 10 {
		t.Fatalf("width %+v, %v", l.Width, err)
	}
	f.must(putLane(wide)(ctx, f.svc, admin)) // needs the permission no more
	if got := f.events("lane:wide"); !slices.Equal(got, []string{"created", "edited"}) {
		t.Errorf("history %v", got)
	}
	f.must(f.svc.DeleteClass(ctx, "tiny", admin)) // the last class leaves: nobody to ask
}

// Without a person nothing is refused: it is applied, recorded and alarmed.
func TestUnattendedChangesOfWidths(t *testing.T) {
	f := twoWide(t, withTarget(execSpec("db", 10)))
	ctx := t.Context()
	f.mustSubmit("never-seen")
	if w := f.width(lanegate.LaneParallel); w != 1 {
		t.Errorf("width %d, want 1", w)
	}
	if got := f.events("lane:parallel"); !slices.Equal(got, []string{"width_lowered"}) {
		t.Errorf("lane history %v", got)
	}
	applied, err := f.svc.SyncFile(ctx, service.FileConfig{Hash: "h", Lanes: []lanegate.Lane{lane(lanegate.LaneParallel, 3)}})
	if err != nil || !applied {
		t.Fatalf("applied %v, %v", applied, err)
	}
	if got := f.events("lane:parallel"); !slices.Equal(got, []string{"width_lowered", "edited", "width_overcommitted"}) {
		t.Errorf("lane history %v", got)
	}
	if f.logs.count("above what the resources allow") != 1 || f.logs.count("lane width lowered") != 1 {
		t.Errorf("logged %v", f.logs.lines)
	}
}

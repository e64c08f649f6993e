package service_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const parallel = lanegate.LaneParallel

// gated is a fixture with db 15 and the serial classes a and b, 5 units each.
func gated(t *testing.T, edits ...func(*setup)) *fixture {
	t.Helper()
	f := newFixture(t, edits...)
	f.mustResource("db", 15, true)
	f.mustPut("a", execSpec("db", 5))
	f.mustPut("b", execSpec("db", 5))
	return f
}

// Invariant 5, "Promotion is gated": one case for each way to lack the proof.
func TestPromotionIsGated(t *testing.T) {
	day := 24 * time.Hour
	for _, tt := range []struct {
		name    string
		prepare func(f *fixture) service.PromoteOptions
		want    []string
	}{
		{"never verified", func(*fixture) service.PromoteOptions { return to(parallel) }, []string{"verification_required a"}},
		{"a lane of one's own is gated, too", func(f *fixture) service.PromoteOptions {
			f.mustLane(lane("long", 1))
			return to("long")
		}, []string{"verification_required a"}},
		{"no such run", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			return to(parallel, by("0190"))
		}, []string{"verification_not_found"}},
		{"a run of others", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			return to(parallel, by(f.trial(passed("b"))))
		}, []string{"not_a_member a"}},
		{"the run failed", func(f *fixture) service.PromoteOptions {
			return to(parallel, by(f.trial(failed("a"))))
		}, []string{"verification_not_passed a"}},
		{"the latest run failed, none named", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			f.trial(failed("a"))
			return to(parallel)
		}, []string{"verification_not_passed a"}},
		{"the run is inconclusive", func(f *fixture) service.PromoteOptions {
			return to(parallel, by(f.trial(lanegate.VerdictInconclusive, twoOf("a"))))
		}, []string{"verification_not_passed a"}},
		{"the run is not over", func(f *fixture) service.PromoteOptions {
			return to(parallel, by(f.trialAs("", twoOf("a"), func(v *lanegate.Verification) { v.State = lanegate.VerificationPlanned })))
		}, []string{"verification_not_passed a"}},
		{"a later run failed", func(f *fixture) service.PromoteOptions {
			run := f.trial(passed("a"))
			f.clock.advance(time.Second)
			f.trial(failed("a"))
			return to(parallel, by(run))
		}, []string{"superseded a"}},
		{"a later run failed, and a later one passed again", func(f *fixture) service.PromoteOptions {
			run := f.trial(passed("a"))
			f.clock.advance(time.Second)
			f.trial(failed("a"))
			f.clock.advance(time.Second)
			f.trial(passed("a"))
			return to(parallel, by(run))
		}, []string{"superseded a"}},
		{"it was edited since", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			f.mustPut("a", execSpec("db", 4))
			return to(parallel)
		}, []string{"fingerprint_changed a"}},
		{"it was edited since the run that is named", func(f *fixture) service.PromoteOptions {
			run := f.trial(passed("a"))
			f.mustPut("a", execSpec("db", 4))
			f.trial(passed("a"))
			return to(parallel, by(run))
		}, []string{"fingerprint_changed a"}},
		{"its command was changed since", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			f.commands.set("cmd", "d2")
			f.must(f.svc.SyncCommands(f.t.Context()))
			return to(parallel)
		}, []string{"fingerprint_changed a"}},
		{"the proof is old", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			f.clock.advance(90*day + time.Microsecond)
			return to(parallel)
		}, []string{"proof_expired a"}},
		{"more than proven", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			return to(parallel, upTo(3))
		}, []string{"copies_not_proven a"}},
		{"copies of a voided run don't count", func(f *fixture) service.PromoteOptions {
			f.trial(lanegate.VerdictPassed, map[string]int{"a": 5})
			f.clock.advance(time.Second)
			f.trial(failed("a"))
			f.clock.advance(time.Second)
			f.trial(passed("a"))
			return to(parallel, upTo(3))
		}, []string{"copies_not_proven a"}},
		{"no units declared", func(f *fixture) service.PromoteOptions {
			f.mustPut("a", execSpec())
			f.trial(passed("a"))
			return to(parallel)
		}, []string{"units_undeclared a"}},
		{"no such lane", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			return to("long")
		}, []string{"lane_not_found"}},
		{"serial", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			return to(lanegate.LaneSerial)
		}, []string{"lane_serial"}},
		{"more units than there are", func(f *fixture) service.PromoteOptions {
			f.mustPut("a", execSpec("db", 16))
			f.trial(passed("a"))
			return to(parallel)
		}, []string{"over_capacity a"}},
		{"everything at once", func(f *fixture) service.PromoteOptions {
			f.trial(passed("a"))
			f.mustPut("a", execSpec())
			return to("long", upTo(7))
		}, []string{"fingerprint_changed a", "copies_not_proven a", "units_undeclared a", "lane_not_found"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := gated(t)
			o := tt.prepare(f)
			stored, before := f.config(), len(f.history("class:a"))
			_, err := f.svc.Promote(t.Context(), []string{"a"}, o)
			wantUnmet(t, err, tt.want...)
			if diff := cmp.Diff(stored, f.config()); diff != "" || len(f.history("class:a")) != before {
				t.Errorf("a refused promotion left something behind:\n%s", diff)
			}
		})
	}
}

func TestConditionsCarryNumbers(t *testing.T) {
	f := gated(t)
	run := f.trial(passed("a", "b"))
	old := f.mustClass("a").Fingerprint
	now := f.mustPut("a", execSpec("db", 4)).Fingerprint
	f.clock.advance(100 * 24 * time.Hour)
	_, err := f.svc.Promote(t.Context(), []string{"a", "b", "no"}, to(parallel, by(run), upTo(3)))
	got := map[string]map[string]any{}
	for _, c := range wantUnmet(t, err, "fingerprint_changed a", "copies_not_proven a", "copies_not_proven b", "proof_expired b", "class_not_found no") {
		got[c.Code+" "+c.Class] = c.Numbers
	}
	ended := f.clock.Now().Add(-100 * 24 * time.Hour)
	want := map[string]map[string]any{
		"fingerprint_changed a": {"verification": run, "verified": old, "present": now},
		"copies_not_proven a":   {"asked": 3, "proven": 0},
		"copies_not_proven b":   {"asked": 3, "proven": 2},
		"proof_expired b":       {"verification": run, "ended_at": ended, "age_days": 100, "max_days": 90},
		"class_not_found no":    nil,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("numbers:\n%s", diff)
	}
	_, err = f.svc.Promote(t.Context(), []string{"no"}, to(parallel))
	wantError(t, err, lanegate.ErrClassNotFound)
	_, err = f.svc.Promote(t.Context(), nil, to(parallel, upTo(-1)))
	wantFields(t, err, "/classes", "/max_in_flight")
}

// One run promotes all its members at once; the second request finds nothing to do.
func TestPromote(t *testing.T) {
	f := gated(t)
	f.mustPut("c", execSpec("db", 5))
	run := f.trial(lanegate.VerdictPassed, map[string]int{"a": 3, "b": 1})
	p := f.promote(to("", by(run)), "b", "a", "b")
	if !p.Changed || len(p.Classes) != 2 || p.Classes[0].ID != "b" || p.Classes[1].ID != "a" {
		t.Fatalf("promotion %+v", p)
	}
	for id, copies := range map[string]int{"a": 3, "b": 1} {
		c := f.mustClass(id)
		if c.Lane != parallel || c.MaxInFlight != copies {
			t.Errorf("%s: lane %s, max_in_flight %d", id, c.Lane, c.MaxInFlight)
		}
		if !slices.ContainsFunc(p.Classes, func(k lanegate.Class) bool { return cmp.Equal(k, c) }) {
			t.Errorf("%s was answered differently", id)
		}
	}
	widths := []service.WidthChange{{Lane: parallel, Before: 1, After: 2}}
	want := service.Consequences{
		Widths:         widths,
		UnprovenBeside: map[string][]string{"a": {"c"}, "b": {"c"}},
		Warnings: []string{
			"Lane parallel is not available now: its jobs run in serial until a worker serves it.",
			"max_in_flight 3 of a is more than the width of lane parallel, 2; that limits it.",
		},
	}
	if diff := cmp.Diff(want, p.Consequences); diff != "" {
		t.Errorf("consequences:\n%s", diff)
	}
	event := f.history("class:a")[1]
	wantEvidence := map[string]any{
		"verification": run, "fingerprint": f.mustClass("a").Fingerprint, "from": "serial", "lane": "parallel",
		"max_in_flight_before": 1., "max_in_flight": 3., "copies": 3., "beside": []any{"b"}, "unproven_beside": []any{"c"},
		"widths": []any{map[string]any{"lane": "parallel", "before": 1., "after": 2.}},
	}
	if diff := cmp.Diff(wantEvidence, event.Evidence); diff != "" || event.Event != "promoted" || event.Actor != "ann" || event.Reason != "because" {
		t.Errorf("event %+v\n%s", event, diff)
	}

	stored := f.config()
	for _, o := range []service.PromoteOptions{to(parallel), to(parallel, by(run))} {
		f.clock.advance(time.Hour)
		if p = f.promote(o, "a", "b"); p.Changed || len(p.Classes) != 2 || len(p.Consequences.Widths) != 0 {
			t.Errorf("again: %+v", p)
		}
	}
	if diff := cmp.Diff(stored, f.config()); diff != "" || len(f.history("class:a")) != 2 {
		t.Errorf("a repeated promotion changed something:\n%s", diff)
	}
}

func TestPromotionIsAllOrNone(t *testing.T) {
	f := gated(t)
	f.trial(passed("a"))
	_, err := f.svc.Promote(t.Context(), []string{"a", "b"}, to(parallel))
	wantUnmet(t, err, "verification_required b")
	if c := f.mustClass("a"); c.Lane != lanegate.LaneSerial {
		t.Errorf("a went alone to %s", c.Lane)
	}
}

// The age of a proof matters only for what a class does not have yet.
func TestOldProofKeepsWhatItGave(t *testing.T) {
	f := gated(t)
	f.mustLane(lane("long", 1))
	f.trial(lanegate.VerdictPassed, map[string]int{"a": 3})
	f.clock.advance(lanegate.ProofAge) // just not older
	f.promote(to(parallel, upTo(2)), "a")
	f.clock.advance(time.Hour)
	if p := f.promote(to(parallel, upTo(2)), "a"); p.Changed {
		t.Error("changed by a repeated request")
	}
	for what, o := range map[string]service.PromoteOptions{
		"more copies": to(parallel, upTo(3)), "another lane": to("long", upTo(2)),
	} {
		_, err := f.svc.Promote(t.Context(), []string{"a"}, o)
		t.Log(what)
		wantUnmet(t, err, "proof_expired a")
	}
	if p := f.promote(to(parallel, upTo(1)), "a"); !p.Changed || f.mustClass("a").MaxInFlight != 1 {
		t.Errorf("fewer copies: %+v", p)
	}
	_, err := f.svc.Demote(t.Context(), "a", admin)
	f.must(err)
	_, err = f.svc.Promote(t.Context(), []string{"a"}, to(parallel))
	wantUnmet(t, err, "proof_expired a")
}

// Going back to what was proven brings the proof back; the class is still to be promoted with it.
func TestEarlierFingerprintBringsItsProofBack(t *testing.T) {
	f := gated(t)
	f.trial(passed("a"))
	f.promote(to(parallel), "a")
	_, _, err := f.svc.PutClass(t.Context(), "a", execSpec("db", 4), demote)
	f.must(err)
	_, err = f.svc.Promote(t.Context(), []string{"a"}, to(parallel))
	wantUnmet(t, err, "fingerprint_changed a")
	f.trial(failed("a")) // of another fingerprint
	if c := f.mustPut("a", execSpec("db", 5)); c.Lane != lanegate.LaneSerial {
		t.Errorf("lane %s without a promotion", c.Lane)
	}
	if p := f.promote(to(parallel), "a"); !p.Changed || f.mustClass("a").MaxInFlight != 2 {
		t.Errorf("promotion %+v", p)
	}
}

// A later failed run closes the gate and moves the class back: nothing proves it any more.
func TestFailedRunClosesTheGate(t *testing.T) {
	f := gated(t)
	f.trial(passed("a"))
	f.promote(to(parallel, upTo(1)), "a")
	f.clock.advance(time.Second)
	run := f.trial(failed("a"))
	if c := f.mustClass("a"); c.Lane != lanegate.LaneSerial || c.MaxInFlight != 1 {
		t.Errorf("in lane %s after its verification failed", c.Lane)
	}
	if n := f.metric("lanegate_class_demotions_total", "class=a", "reason=proof_voided"); n != 1 {
		t.Errorf("%v demotions counted", n)
	}
	for _, o := range []service.PromoteOptions{to(parallel, upTo(1)), to(parallel), to(parallel, upTo(2))} {
		if _, err := f.svc.Promote(t.Context(), []string{"a"}, o); err == nil {
			t.Errorf("promoted by a voided proof: %+v", o)
		}
	}
	st, err := f.svc.Standing(t.Context(), "a")
	f.must(err)
	if st.Copies != 0 || st.Latest == nil || st.Latest.Verification != run || st.Because.Event != "demoted" || st.Because.Evidence["verification"] != run {
		t.Errorf("standing %+v", st)
	}
	f.clock.advance(time.Second)
	f.trial(lanegate.VerdictPassed, map[string]int{"a": 1, "b": 1})
	_, err = f.svc.Promote(t.Context(), []string{"a"}, to(parallel, upTo(2)))
	wantUnmet(t, err, "copies_not_proven a")
}

func TestPromotionAsksAboutWidths(t *testing.T) {
	f := gated(t)
	f.mustPut("small", execSpec("db", 2))
	f.trial(passed("small"))
	f.promote(to(parallel), "small")
	f.trial(passed("a"))
	_, err := f.svc.Promote(t.Context(), []string{"a"}, to(parallel))
	c := wantUnmet(t, err, "width_lowered")[0]
	if diff := cmp.Diff(map[string]any{"lane": "parallel", "before": 5, "after": 2}, c.Numbers); diff != "" {
		t.Errorf("numbers:\n%s", diff)
	}
	p := f.promote(to(parallel, accepting), "a")
	if diff := cmp.Diff([]service.WidthChange{{Lane: parallel, Before: 5, After: 2}}, p.Consequences.Widths); diff != "" {
		t.Errorf("widths:\n%s", diff)
	}
	if events := f.events("lane:parallel"); !slices.Contains(events, "width_lowered") {
		t.Errorf("the lane's history %v", events)
	}

	f.mustLane(overcommitting(lane("long", 3)))
	f.mustLane(lane("long2", 1))
	f.trial(passed("b"))
	f.must(f.store.Change(t.Context(), func(tx service.ConfigTx) error { // 3 was fine while capacity allowed it
		l := lane("long2", 3)
		return tx.SaveLane(l)
	}))
	_, err = f.svc.Promote(t.Context(), []string{"b"}, to("long2"))
	if c := wantUnmet(t, err, "width_overcommitted", "width_lowered"); c[0].Numbers["lane"] == nil || c[1].Numbers["lane"] == nil {
		t.Errorf("conditions %+v", c)
	}
}

// A file never sets a lane, so promotion and demotion are the API's for its classes, too.
func TestClassesOfTheFileArePromoted(t *testing.T) {
	f := newFixture(t)
	file := service.FileConfig{Hash: "1", Classes: map[string]lanegate.ClassSpec{"a": execSpec("db", 5)}, Resources: []lanegate.Resource{{Name: "db", Capacity: 15}}}
	_, err := f.svc.SyncFile(t.Context(), file)
	f.must(err)
	f.trial(passed("a"))
	f.promote(to(parallel), "a")
	file.Hash = "2"
	_, err = f.svc.SyncFile(t.Context(), file)
	f.must(err)
	if c := f.mustClass("a"); c.Lane != parallel || c.MaxInFlight != 2 || c.ManagedBy != lanegate.ManagedByFile {
		t.Errorf("after a reload: %+v", c)
	}
	p, err := f.svc.Demote(t.Context(), "a", admin)
	if err != nil || !p.Changed || f.mustClass("a").Lane != lanegate.LaneSerial {
		t.Errorf("demote: %+v, %v", p, err)
	}
}

// A pair counts while both sides' proofs hold at what they are now.
func TestUnprovenBeside(t *testing.T) {
	f := gated(t)
	f.mustPut("c", execSpec("db", 5))
	f.trial(passed("a", "b", "c"))
	f.promote(to(parallel), "a", "b")
	unproven := func(class string) []string {
		t.Helper()
		st, err := f.svc.Standing(t.Context(), class)
		f.must(err)
		return st.UnprovenBeside
	}
	if got := unproven("a"); got != nil {
		t.Errorf("unproven beside %v, all ran together", got)
	}
	f.mustPut("d", execSpec("db", 1))
	f.mustPut("c", execSpec("db", 4)) // what a was proven beside is gone
	if got := unproven("a"); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("unproven beside %v, want c and d", got)
	}
	if got := unproven("c"); got != nil {
		t.Errorf("a serial class is unproven beside %v", got)
	}
	for class, want := range map[string][]string{"a": {"b"}, "b": {"a"}, "c": nil} { // what is said agrees
		if st, err := f.svc.Standing(t.Context(), class); err != nil || !slices.Equal(st.Beside, want) {
			t.Errorf("%s is proven beside %v, want %v (%v)", class, st.Beside, want, err)
		}
	}
	proofs, err := f.svc.Proofs(t.Context(), "a")
	f.must(err)
	if len(proofs) != 1 || !slices.Equal(proofs[0].Beside, []string{"b", "c"}) {
		t.Errorf("what the run proved then is gone: %+v", proofs)
	}
	f.trial(passed("a", "c"))
	f.trial(passed("a", "d"))
	if got := unproven("a"); got != nil {
		t.Errorf("unproven beside %v", got)
	}
	if got := unproven("b"); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("b is unproven beside %v, want c and d", got)
	}
}

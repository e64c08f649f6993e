package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// One Planner answers like Plan, however often it was asked before: nothing of one
// answer stays for the next.
func TestPlannerAnswersLikePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapidPicker{t})
		for range 12 {
			first := w.input("")
			planner := NewPlanner(first.Lanes, first.Classes, first.Resources)
			for _, asking := range []string{"", "w1", ""} {
				in := w.input(asking)
				want := Plan(in)
				bare := in
				bare.Lanes, bare.Classes, bare.Resources = nil, nil, nil
				if diff := cmp.Diff(want, planner.Plan(bare)); diff != "" {
					t.Fatalf("asking %q: Planner differs (-Plan +Planner):\n%s\ninput: %+v", asking, diff, in)
				}
				bare.NoWaits = true
				if want.Waits = nil; !cmp.Equal(want, planner.Plan(bare)) {
					t.Fatalf("asking %q: without waits: %+v, want %+v", asking, planner.Plan(bare), want)
				}
				w.apply(asking, want)
			}
			w.act()
		}
	})
}

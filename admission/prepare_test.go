package admission

import (
	"slices"
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

// Whoever lists the starts of the lines only, and lists more of the classes that a
// decision has emptied until it empties none of those, gets the decision about all.
// What a verification run needs is listed from the first.
func TestPlanFromPartsOfTheLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapidPicker{t})
		for range 12 {
			asking := rapid.SampledFrom([]string{"", "w1"}).Draw(t, "asking")
			in := w.input(asking)
			in.NoWaits = true
			want, all := Plan(in), in.Due
			listed := map[string]int{}
			for _, d := range all {
				listed[d.Class] = rapid.IntRange(1, 3).Draw(t, "listed")
			}
			if in.Trial != nil {
				for _, class := range slices.Concat(in.Trial.Members, in.Trial.Round) { // judged by all it may need
					listed[class] = len(all)
				}
			}
			got, plans := Decision{}, 0
			for more := true; more; plans++ {
				if plans > len(listed) {
					t.Fatal("no end")
				}
				in.Due = firstOf(all, listed)
				got, more = Plan(in), false
				for _, class := range got.Emptied {
					more = more || listed[class] < len(all)
					listed[class] = len(all)
				}
			}
			want.Emptied, got.Emptied = nil, nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("asking %q: from parts it differs (-whole +parts):\n%s\ninput: %+v", asking, diff, in)
			}
			w.apply(asking, want)
			w.act()
		}
	})
}

// firstOf is the first n[class] jobs of each class.
func firstOf(all []Due, n map[string]int) (some []Due) {
	seen := map[string]int{}
	for _, d := range all {
		if seen[d.Class]++; seen[d.Class] <= n[d.Class] {
			some = append(some, d)
		}
	}
	return some
}

package runlog

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// serialDays is a line that runs one job at a time: each day both classes are
// submitted, first in the order that firstIsFirst says, and run for ten minutes.
func serialDays(days int, firstIsFirst func(day int) bool) []grouped {
	const minute, day = int64(60e9), int64(86400e9)
	groups := []grouped{{class: 0}, {class: 1}}
	for d := range days {
		one, two := 0, 1
		if !firstIsFirst(d) {
			one, two = 1, 0
		}
		at := int64(d) * day
		groups[one].runs = append(groups[one].runs, Run{Class: int32(one), Ready: at, Start: at, Took: 10 * minute, HasReady: true, HasStart: true})
		groups[two].runs = append(groups[two].runs, Run{Class: int32(two), Ready: at + minute, Start: at + 10*minute, Took: 10 * minute, HasReady: true, HasStart: true})
	}
	return groups
}

// A serial line keeps any two jobs apart. Only where the same class always came
// first may the order mean something.
func TestHiddenOrderNeedsOneDirection(t *testing.T) {
	names := []string{"export", "load"}
	found := func(groups []grouped) (pairs []string) {
		for _, o := range hiddenOrder(names, groups) {
			pairs = append(pairs, o.First+" before "+o.Then)
		}
		return pairs
	}
	if diff := cmp.Diff([]string{"export before load"}, found(serialDays(20, func(int) bool { return true }))); diff != "" {
		t.Errorf("always in that order:\n%s", diff)
	}
	if got := found(serialDays(40, func(day int) bool { return day/2%2 == 0 })); len(got) != 0 {
		t.Errorf("in either order: %v", got)
	}
}

package runlog

import (
	"cmp"
	"math"
	"slices"
)

// Conditions of a hidden order.
const (
	minCycles     = 5
	keptPart      = 0.9 // of the cycles
	heldPart      = 0.1
	maxOrderClass = 60 // the classes with the most runs are looked at, pair by pair
	maxOrders     = 50
)

// hiddenOrder finds pairs (First, Then) in which Then started only after First had
// ended in nearly every cycle. A cycle goes from one moment at which First
// becomes due to the next, and counts when a run of Then becomes due in it; only
// classes with about as many runs are compared (a quarter more or less).
//
// Only pairs that the line kept apart count: in at least a tenth of the cycles
// Then was due before First had ended. Where that never happened the clock keeps
// the order, and lanes don't change it. A pair that is held both ways is no order:
// a line that runs one job at a time keeps any two apart, whichever comes first.
func hiddenOrder(classes []string, groups []grouped) []Order {
	var known []grouped
	for _, g := range groups {
		g.runs = slices.DeleteFunc(slices.Clone(g.runs), func(r Run) bool { return !r.HasReady || !r.HasStart })
		if len(g.runs) >= minCycles {
			known = append(known, g)
		}
	}
	slices.SortStableFunc(known, func(a, b grouped) int { return cmp.Compare(len(b.runs), len(a.runs)) })
	known = known[:min(len(known), maxOrderClass)]
	list := []Order{}
	for _, first := range known {
		for _, then := range known {
			if first.class == then.class || !alike(len(first.runs), len(then.runs)) {
				continue
			}
			if o := cycles(first.runs, then.runs); o.Cycles >= minCycles &&
				float64(o.Kept) >= keptPart*float64(o.Cycles) && float64(o.Held) >= math.Max(1, heldPart*float64(o.Cycles)) {
				o.First, o.Then = classes[first.class], classes[then.class]
				list = append(list, o)
			}
		}
	}
	list = oneWay(list)
	slices.SortStableFunc(list, func(a, b Order) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Gap, b.Gap))
	})
	return list[:min(len(list), maxOrders)]
}

// oneWay leaves out each pair that was held less than twice as often as the same
// pair the other way round.
func oneWay(list []Order) []Order {
	type pair struct{ first, then string }
	held := make(map[pair]int, len(list))
	for _, o := range list {
		held[pair{o.First, o.Then}] = o.Held
	}
	return slices.DeleteFunc(list, func(o Order) bool { return o.Held < 2*held[pair{o.Then, o.First}] })
}

func alike(a, b int) bool { return 4*a <= 5*b && 4*b <= 5*a }

// cycles compares two classes, each sorted by Ready.
func cycles(first, then []Run) Order {
	var o Order
	var gaps []int64
	j := 0
	for i := range first {
		until := int64(math.MaxInt64)
		if i+1 < len(first) {
			until = first[i+1].Ready
		}
		for j < len(then) && then[j].Ready < first[i].Ready {
			j++
		}
		if j == len(then) || then[j].Ready >= until {
			continue
		}
		o.Cycles++
		if then[j].Start >= first[i].End() {
			o.Kept++
			gaps = append(gaps, then[j].Start-first[i].End())
			if then[j].Ready < first[i].End() {
				o.Held++
			}
		}
	}
	slices.Sort(gaps)
	o.Gap = seconds(quantile(gaps, 0.5))
	return o
}

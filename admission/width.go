package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// Width is how many jobs of a lane may be in flight at once, and why.
type Width struct {
	Lane string
	// InForce is the width that counts; at least 1.
	InForce int
	// Setting is what is set: lanegate.WidthAuto or an explicit number. 1 for serial.
	Setting int
	// Auto is what the arithmetic gives, whatever is set; at least 1.
	Auto int
	// Sums has the arithmetic for each resource that the lane's classes use, by name.
	Sums []Sum
	// Sentence is the arithmetic in words, for people.
	Sentence string
	// Overcommitted: an explicit width is above what the arithmetic gives.
	Overcommitted bool
	// Undeclared counts the classes, over all lanes, that declare no units: each
	// counts as 1 of every pool resource wherever it enters a sum.
	Undeclared int
}

// Sum is the arithmetic of one lane over one resource:
//
//	Result = floor((Capacity − Reserve − Others) / Units)
//
// all but Result in units of the resource. Result is a number of jobs and may be
// less than 1.
type Sum struct {
	Resource string
	Capacity int // 0 when a class names a resource that is not declared
	Reserve  int // kept for serial, see Reserve
	Others   int // Σ width × largest units of the other lanes but serial
	Units    int // the largest of the lane's classes
	Result   int
}

// Change is a lane whose width in force changes.
type Change struct {
	Lane          string
	Before, After int
}

// Widths computes every lane in lanes, and serial, by name. An auto lane's width
// is the smallest Result of its Sums, at least 1; 1 too when its classes use no
// resource, or when it has no classes.
//
// Several auto lanes share what the explicit lanes leave in a fixed order:
// parallel first, then by name. Each counts the auto lanes before it with the
// width they got and those after it with 1, which is the least they can get; so
// no lane's width depends on itself, and a new auto lane takes one run's units
// from parallel, not all of them. The arithmetic of an explicit lane counts all
// auto lanes with the widths they got.
func Widths(lanes []lanegate.Lane, classes []lanegate.Class, resources []lanegate.Resource) map[string]Width {
	l := newLedger(resources, classes)
	undeclared := 0
	for i := range classes {
		if classes[i].Units == nil {
			undeclared++
		}
	}
	solved := solve(l, lanes, classes)
	widths := make(map[string]Width, len(solved))
	for i := range solved {
		s := &solved[i]
		w := Width{
			Lane:          s.lane.Name,
			InForce:       s.inForce,
			Setting:       s.lane.WidthSetting,
			Auto:          s.auto,
			Sums:          s.sums(l),
			Overcommitted: s.inForce > s.auto,
			Undeclared:    undeclared,
		}
		if s.serial() {
			w.Setting = 1
		}
		w.Sentence = w.sentence(s.classes, len(classes), len(l.pool) > 0)
		widths[w.Lane] = w
	}
	return widths
}

// Reserve is how many units of a resource are kept for serial:
//
//	min(largest units of an unpaused serial class, capacity − largest units of a promoted class), ≥ 0
//
// so that a flood of parallel jobs never blocks serial, and serial's largest
// class never shuts out a promoted one.
func Reserve(resource lanegate.Resource, classes []lanegate.Class) int {
	serial, promoted := 0, 0
	for i := range classes {
		c := &classes[i]
		units := c.Units[resource.Name]
		if c.Units == nil && resource.Pool {
			units = 1
		}
		switch {
		case !isSerial(c):
			promoted = max(promoted, units)
		case !c.Paused:
			serial = max(serial, units)
		}
	}
	return reserve(max(0, resource.Capacity), serial, promoted)
}

// reserve is the formula of Reserve.
func reserve(capacity, serial, promoted int) int {
	return max(0, min(serial, capacity-promoted))
}

// Lowered lists the lanes, by name, whose width in force is lower after a change
// than before it. A lane that is gone is not lowered.
func Lowered(before, after map[string]Width) []Change {
	var changes []Change
	for name, a := range after {
		if b, ok := before[name]; ok && a.InForce < b.InForce {
			changes = append(changes, Change{Lane: name, Before: b.InForce, After: a.InForce})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Lane, b.Lane) })
	return changes
}

// solution is the arithmetic of one lane, in numbers.
type solution struct {
	lane    *lanegate.Lane
	classes int
	largest []need // the largest units of its classes, by resource name
	others  []int  // parallel to largest: what the other lanes claim
	inForce int
	auto    int
}

func (s *solution) serial() bool { return s.lane.Name == lanegate.LaneSerial }

func (s *solution) isAuto() bool { return s.lane.WidthSetting <= lanegate.WidthAuto }

// solve computes all widths: auto lanes in the order of Widths, then explicit
// ones, then serial. The ledger is only read.
func solve(l *ledger, lanes []lanegate.Lane, classes []lanegate.Class) []solution {
	all := gather(l, lanes, classes)
	slices.SortFunc(all, func(a, b solution) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), strings.Compare(a.lane.Name, b.lane.Name))
	})
	// claimed is Σ width × largest units over all lanes but serial, as far as known.
	claimed := make([]int, len(l.accounts))
	claim := func(s *solution, width int) {
		for _, n := range s.largest {
			claimed[n.resource] += width * n.units
		}
	}
	for i := range all {
		if s := &all[i]; !s.serial() {
			claim(s, s.inForce)
		}
	}
	for i := range all {
		s := &all[i]
		if s.serial() {
			continue
		}
		claim(s, -s.inForce)
		for _, n := range s.largest {
			s.others = append(s.others, claimed[n.resource])
		}
		s.auto = s.arithmetic(l)
		if s.isAuto() {
			s.inForce = s.auto
		}
		claim(s, s.inForce)
	}
	return all
}

// rank is the lane's turn in solve.
func (s *solution) rank() int {
	switch {
	case s.serial():
		return 3
	case !s.isAuto():
		return 2
	case s.lane.Name == lanegate.LaneParallel:
		return 0
	}
	return 1
}

// gather opens one solution per lane, serial included, with the largest units of
// its classes and its least width.
func gather(l *ledger, lanes []lanegate.Lane, classes []lanegate.Class) []solution {
	all := make([]solution, 0, len(lanes)+1)
	index := make(map[string]int, len(lanes)+1)
	for i := range lanes {
		index[lanes[i].Name] = len(all)
		all = append(all, solution{lane: &lanes[i]})
	}
	if _, ok := index[lanegate.LaneSerial]; !ok {
		index[lanegate.LaneSerial] = len(all)
		all = append(all, solution{lane: &lanegate.Lane{Name: lanegate.LaneSerial}})
	}
	largest := make([][]int, len(all)) // by lane, then resource
	for i := range all {
		s := &all[i]
		s.inForce, s.auto = 1, 1
		if !s.serial() && !s.isAuto() {
			s.inForce = s.lane.WidthSetting
		}
		largest[i] = make([]int, len(l.accounts))
	}
	for i := range classes {
		c := &classes[i]
		name := c.Lane
		if isSerial(c) {
			name = lanegate.LaneSerial
		}
		at, ok := index[name]
		if !ok {
			continue // its lane is gone: it runs in serial until someone moves it
		}
		all[at].classes++
		l.each(c, func(r, units int) { largest[at][r] = max(largest[at][r], units) })
	}
	for i := range all {
		for r, units := range largest[i] {
			if units > 0 {
				all[i].largest = append(all[i].largest, need{r, units})
			}
		}
		l.sort(all[i].largest)
	}
	return all
}

// arithmetic is the smallest result over the lane's resources, at least 1.
func (s *solution) arithmetic(l *ledger) int {
	width := 0
	for i, n := range s.largest {
		a := &l.accounts[n.resource]
		result := floorDiv(a.capacity-a.reserve-s.others[i], n.units)
		if i == 0 || result < width {
			width = result
		}
	}
	return max(1, width)
}

func (s *solution) sums(l *ledger) []Sum {
	if s.serial() {
		return nil
	}
	var sums []Sum
	for i, n := range s.largest {
		a := &l.accounts[n.resource]
		sums = append(sums, Sum{
			Resource: a.name,
			Capacity: a.capacity,
			Reserve:  a.reserve,
			Others:   s.others[i],
			Units:    n.units,
			Result:   floorDiv(a.capacity-a.reserve-s.others[i], n.units),
		})
	}
	return sums
}

// floorDiv rounds towards minus infinity; b > 0.
func floorDiv(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// sentence words the arithmetic. classes is the number of the lane's classes,
// all that of all classes; pool says whether there is a pool resource.
func (w Width) sentence(classes, all int, pool bool) string {
	var b strings.Builder
	switch {
	case w.Lane == lanegate.LaneSerial:
		return "1: serial runs one job at a time, always"
	case classes == 0:
		b.WriteString("1: no class belongs to this lane yet")
	case len(w.Sums) == 0:
		b.WriteString("1: the classes of this lane use no resource, so there is nothing to divide")
	default:
		least := slices.MinFunc(w.Sums, func(a, b Sum) int { return cmp.Compare(a.Result, b.Result) })
		b.WriteString(least.sentence())
	}
	if w.Setting > lanegate.WidthAuto {
		fmt.Fprintf(&b, "; set to %d", w.Setting)
	}
	if w.Overcommitted {
		b.WriteString(", which is more: a start still waits until its units are free")
	}
	if pool && w.Undeclared > 0 {
		b.WriteString("; " + undeclared(w.Undeclared, all) + " as 1 of each pool resource")
	}
	return b.String()
}

func undeclared(n, all int) string {
	switch {
	case all == 1:
		return "the only class declares no units and counts"
	case n == 1:
		return fmt.Sprintf("1 of %d classes declares no units and counts", all)
	}
	return fmt.Sprintf("%d of %d classes declare no units and count", n, all)
}

func (s Sum) sentence() string {
	var b strings.Builder
	fmt.Fprintf(&b, "(%d − %d − %d) / %d = %d", s.Capacity, s.Reserve, s.Others, s.Units, s.Result)
	if s.Result*s.Units != s.Capacity-s.Reserve-s.Others {
		b.WriteString(" rounded down")
	}
	fmt.Fprintf(&b, " by %s: capacity %d, %d kept for serial, ", s.Resource, s.Capacity, s.Reserve)
	if s.Others > 0 {
		fmt.Fprintf(&b, "%d for other lanes, ", s.Others)
	}
	fmt.Fprintf(&b, "%d per run", s.Units)
	if s.Result < 1 {
		b.WriteString("; that is less than 1, so the width is 1 and a start still waits until its units are free")
	}
	return b.String()
}

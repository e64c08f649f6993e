package runlog

import (
	"cmp"
	"slices"
)

// maxNamed bounds the classes that a report names one by one where it looks at
// pairs or at every layout; the others, those with the least run time, go under
// one name there.
const (
	maxNamed   = 500
	otherNames = "(other classes)"
)

// matrix is who waits for whom in one line: hours[blocker][victim] in
// microseconds of waiting.
type matrix struct {
	names []string
	hours [][]float64
	total float64
	cross float64 // without what a class waits for itself
}

// named maps classes to the rows of a matrix.
type named struct {
	names []string
	slot  []int // of each class
}

// nameClasses picks the classes to name, by busy time.
func nameClasses(classes []string, groups []grouped) named {
	n := named{slot: make([]int, len(classes))}
	byBusy := make([]int, len(classes))
	for i := range byBusy {
		byBusy[i] = i
	}
	slices.SortStableFunc(byBusy, func(a, b int) int { return cmp.Compare(groups[b].busy, groups[a].busy) })
	for rank, class := range byBusy {
		if rank < maxNamed || len(classes) <= maxNamed {
			n.slot[class] = len(n.names)
			n.names = append(n.names, classes[class])
			continue
		}
		n.slot[class] = maxNamed
	}
	if len(classes) > maxNamed {
		n.names = append(n.names, otherNames)
	}
	return n
}

// blame charges every second that a job waits in one line to the class that has
// the line at that moment. A line that is never idle while a job waits, as the
// replay's is, leaves no second over: the sum of the matrix is the sum of all
// waits. (The idea is that of blocked-time attribution: a wait belongs to what
// holds the resource, not to what stands next in the queue.)
//
// runs are sorted by Ready, starts is the one-line replay's.
func blame(runs []Run, starts []int64, n named) *matrix {
	m := &matrix{names: n.names, hours: make([][]float64, len(n.names))}
	order := make([]int32, len(runs))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(starts[a], starts[b]), cmp.Compare(a, b))
	})
	w := waiting{count: make([]int, len(n.names))}
	next := 0
	for _, job := range order {
		start := starts[job]
		for ; next < len(runs) && runs[next].Ready <= start; next++ {
			w.add(n.slot[runs[next].Class])
		}
		w.remove(n.slot[runs[job].Class])
		took := runs[job].Took
		if took == 0 {
			continue
		}
		blocker := n.slot[runs[job].Class]
		if m.hours[blocker] == nil {
			m.hours[blocker] = make([]float64, len(n.names))
		}
		row := m.hours[blocker]
		for _, victim := range w.active {
			row[victim] += float64(w.count[victim]) * float64(took)
		}
		for ; next < len(runs) && runs[next].Ready < start+took; next++ {
			victim := n.slot[runs[next].Class]
			row[victim] += float64(start + took - runs[next].Ready)
			w.add(victim)
		}
	}
	m.sum()
	return m
}

func (m *matrix) sum() {
	for b, row := range m.hours {
		for v, us := range row {
			m.total += us
			if b != v {
				m.cross += us
			}
		}
	}
}

// waiting counts the jobs in line by class.
type waiting struct {
	count  []int
	active []int // the classes with a job in line
}

func (w *waiting) add(class int) {
	if w.count[class]++; w.count[class] == 1 {
		w.active = append(w.active, class)
	}
}

func (w *waiting) remove(class int) {
	if w.count[class]--; w.count[class] == 0 {
		i := slices.Index(w.active, class)
		w.active[i] = w.active[len(w.active)-1]
		w.active = w.active[:len(w.active)-1]
	}
}

// harm is what a blocker does to others.
func (m *matrix) harm(blocker int) (harm, own float64) {
	for victim, us := range m.hours[blocker] {
		if victim == blocker {
			own += us
		} else {
			harm += us
		}
	}
	return harm, own
}

// blockers ranks the classes by harm to others.
func (m *matrix) blockers() []Blocker {
	list := make([]Blocker, 0, len(m.names))
	for i, name := range m.names {
		harm, own := m.harm(i)
		if harm+own == 0 {
			continue
		}
		b := Blocker{Class: name, Harm: hours(harm), Own: hours(own)}
		if m.cross > 0 {
			b.Share = round(harm/m.cross, 1e4)
		}
		list = append(list, b)
	}
	slices.SortStableFunc(list, func(a, b Blocker) int { return cmp.Compare(b.Harm, a.Harm) })
	return list
}

// maxPairs bounds the pairs that a report lists.
const maxPairs = 200

// pairs lists who waits for whom, the most hours first.
func (m *matrix) pairs() []Blame {
	list := []Blame{}
	for b, row := range m.hours {
		for v, us := range row {
			if us > 0 {
				list = append(list, Blame{Blocker: m.names[b], Victim: m.names[v], Hours: hours(us), Share: round(us/m.total, 1e4)})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Blame) int { return cmp.Compare(b.Hours, a.Hours) })
	return list[:min(len(list), maxPairs)]
}

// lengthBiased is the median length of the run that a moment of the class's busy
// time falls into: half of that time is spent in runs at least that long. It is
// what a job finds in its way, and unlike the median it does not hide ten long
// runs behind a thousand short ones (length-biased sampling; Cox, "Renewal
// Theory", 1962).
func lengthBiased(runs []Run) int64 {
	took := make([]int64, len(runs))
	total := int64(0)
	for i, r := range runs {
		took[i] = r.Took
		total += r.Took
	}
	slices.Sort(took)
	sum := int64(0)
	for _, t := range took {
		if sum += t; 2*sum >= total {
			return t
		}
	}
	return 0
}

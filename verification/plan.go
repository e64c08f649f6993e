package verification

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/lanegate/lanegate"
)

// Member is one class of an experiment, as far as its plan needs to know it.
type Member struct {
	Class  string
	Copies int            // that shall run at once; less than 1 counts as 1
	Units  lanegate.Units // that one run takes
	// Alone is how many baseline rounds it needs, each with one run of it.
	Alone int
}

// PlanInput is what a plan depends on. Classes must differ.
type PlanInput struct {
	Members []Member
	// Available is how much of each resource the runs of one round may use together.
	// Of a resource that is not in here there is nothing.
	Available map[string]int
	// Repeat is how often every pair is to be covered; less than 1 counts as 1.
	Repeat int
	// MaxGang bounds the runs of one round; 0 stands for lanegate.MaxGang.
	MaxGang int
}

// Misfit is something that can never run at once.
type Misfit struct {
	// A and B are the classes. B is "" when one run of A is too much already, and
	// A when it is about Copies runs of A.
	A, B   string
	Copies int
	// Resource is what there is too little of, "" when it is the size of a round.
	Resource          string
	Needed, Available int
}

// String words the misfit for people.
func (m Misfit) String() string {
	who := fmt.Sprintf("%s beside %s", m.A, m.B)
	switch m.B {
	case "":
		who = "one run of " + m.A
	case m.A:
		who = fmt.Sprintf("%d runs of %s", m.Copies, m.A)
	}
	if m.Resource == "" {
		return fmt.Sprintf("%s: a round has at most %d runs", who, m.Available)
	}
	return fmt.Sprintf("%s: needs %d of %s, at most %d can be had", who, m.Needed, m.Resource, m.Available)
}

// Plan lists the rounds of an experiment: first the baselines, each member alone
// as often as it needs; then, Repeat times, rounds that cover every pair of
// different members, and each member with itself in all its copies. No round is
// above MaxGang or Available. What can't be covered within them is in misfits,
// and then the rounds cover the rest.
//
// The cover is greedy: of the rounds that can be grown from an open pair, the one
// that covers most is taken, until none is open. It is not always the shortest;
// the same input always gives the same plan.
func Plan(in PlanInput) (rounds []lanegate.Round, misfits []Misfit) {
	p := newPlanner(in)
	p.findMisfits()
	for _, m := range p.members {
		for range m.Alone {
			rounds = append(rounds, lanegate.Round{Kind: lanegate.RoundBaseline, Classes: []string{m.Class}})
		}
	}
	cover := p.cover()
	for range max(1, in.Repeat) {
		for _, g := range cover {
			rounds = append(rounds, lanegate.Round{Kind: lanegate.RoundBeside, Classes: p.classes(g)})
		}
	}
	return rounds, p.misfits
}

// planner is the state of one call of Plan. Members are sorted by class and named
// by their index.
type planner struct {
	members   []Member
	resources []string // that some member uses, sorted
	units     [][]int  // by member, then resource
	available []int    // by resource
	maxGang   int
	// open has the tasks that no round covers yet: open[a][b], a < b, is the pair,
	// open[a][a] all copies of a at once.
	open    [][]bool
	misfits []Misfit
}

// gang is a round in the making: the number of runs of each member.
type gang struct {
	count []int
	size  int
	used  []int // by resource
}

func newPlanner(in PlanInput) *planner {
	p := &planner{members: slices.Clone(in.Members), maxGang: in.MaxGang}
	if p.maxGang == 0 {
		p.maxGang = lanegate.MaxGang
	}
	slices.SortFunc(p.members, func(a, b Member) int { return cmp.Compare(a.Class, b.Class) })
	used := map[string]bool{}
	for i := range p.members {
		m := &p.members[i]
		m.Copies = max(1, m.Copies)
		for name, n := range m.Units {
			if n > 0 {
				used[name] = true
			}
		}
	}
	p.resources = slices.Sorted(maps.Keys(used))
	for _, name := range p.resources {
		p.available = append(p.available, max(0, in.Available[name]))
	}
	for a, m := range p.members {
		units := make([]int, len(p.resources))
		for r, name := range p.resources {
			units[r] = max(0, m.Units[name])
		}
		p.units = append(p.units, units)
		open := make([]bool, len(p.members))
		open[a] = m.Copies > 1
		for b := a + 1; b < len(p.members); b++ {
			open[b] = true
		}
		p.open = append(p.open, open)
	}
	return p
}

// findMisfits closes the tasks that no round can cover. A member that doesn't fit
// alone is reported once, not with every other.
func (p *planner) findMisfits() {
	tooLarge := make([]bool, len(p.members))
	for a, m := range p.members {
		if bad := p.unfit(m.Class, "", 1, p.with(nil, a, 1)); bad != nil {
			tooLarge[a] = true
			p.misfits = append(p.misfits, *bad)
		}
	}
	for a, m := range p.members {
		for b := a; b < len(p.members); b++ {
			switch {
			case !p.open[a][b]:
				continue
			case tooLarge[a] || tooLarge[b]:
				p.open[a][b] = false
				continue
			}
			g, copies := p.seed(a, b), 1
			if a == b {
				copies = m.Copies
			}
			if bad := p.unfit(m.Class, p.members[b].Class, copies, g); bad != nil {
				p.open[a][b] = false
				p.misfits = append(p.misfits, *bad)
			}
		}
	}
}

// unfit says what stands against a round: the resource that lacks most.
func (p *planner) unfit(a, b string, copies int, g gang) *Misfit {
	if g.size > p.maxGang {
		return &Misfit{A: a, B: b, Copies: copies, Needed: g.size, Available: p.maxGang}
	}
	worst, lack := -1, 0
	for r := range p.resources {
		if over := g.used[r] - p.available[r]; over > lack {
			worst, lack = r, over
		}
	}
	if worst < 0 {
		return nil
	}
	return &Misfit{A: a, B: b, Copies: copies, Resource: p.resources[worst], Needed: g.used[worst], Available: p.available[worst]}
}

// seed is the smallest round that covers the task (a, b).
func (p *planner) seed(a, b int) gang {
	if a == b {
		return p.with(nil, a, p.members[a].Copies)
	}
	g := p.with(nil, a, 1)
	return p.with(&g, b, 1)
}

// with is g, nil for an empty one, with n more runs of a member.
func (p *planner) with(g *gang, member, n int) gang {
	out := gang{count: make([]int, len(p.members)), used: make([]int, len(p.resources))}
	if g != nil {
		copy(out.count, g.count)
		copy(out.used, g.used)
		out.size = g.size
	}
	out.count[member] += n
	out.size += n
	for r, units := range p.units[member] {
		out.used[r] += n * units
	}
	return out
}

func (p *planner) fits(g *gang, member, n int) bool {
	if g.size+n > p.maxGang {
		return false
	}
	for r, units := range p.units[member] {
		if units > 0 && g.used[r]+n*units > p.available[r] {
			return false
		}
	}
	return true
}

// seedsTried bounds how many open tasks a round is grown from, so that a plan for
// dozens of members still takes milliseconds.
const seedsTried = 48

// cover is the rounds that close all tasks.
func (p *planner) cover() []gang {
	var cover []gang
	for {
		var best gang
		most, tried := 0, 0
		for a := range p.members {
			for b := a; b < len(p.members) && tried < seedsTried; b++ {
				if !p.open[a][b] {
					continue
				}
				tried++
				if g := p.grow(p.seed(a, b)); p.gain(&g) > most {
					best, most = g, p.gain(&g)
				}
			}
		}
		if most == 0 {
			return p.withoutNeedless(cover)
		}
		p.close(&best)
		cover = append(cover, best)
	}
}

// grow adds runs to g for as long as one fits that covers an open task.
func (p *planner) grow(g gang) gang {
	for {
		member, runs, most := -1, 0, 0
		for m := range p.members {
			n, gain := p.addition(&g, m)
			if gain > most || gain == most && gain > 0 && n < runs {
				member, runs, most = m, n, gain
			}
		}
		if member < 0 {
			return g
		}
		g = p.with(&g, member, runs)
	}
}

// addition is how many runs of m to add to g, and how many open tasks that covers:
// all its copies where that is open and fits, else one run.
func (p *planner) addition(g *gang, m int) (runs, gain int) {
	if g.count[m] == 0 {
		for other, n := range g.count {
			if n > 0 && p.open[min(m, other)][max(m, other)] {
				gain++
			}
		}
	}
	if missing := p.members[m].Copies - g.count[m]; p.open[m][m] && missing > 0 && p.fits(g, m, missing) {
		return missing, gain + 1
	}
	if gain == 0 || !p.fits(g, m, 1) {
		return 0, 0
	}
	return 1, gain
}

// gain is how many open tasks g covers.
func (p *planner) gain(g *gang) int {
	n := 0
	p.eachCovered(g, func(a, b int) {
		if p.open[a][b] {
			n++
		}
	})
	return n
}

func (p *planner) close(g *gang) {
	p.eachCovered(g, func(a, b int) { p.open[a][b] = false })
}

// eachCovered calls f for every task that g covers.
func (p *planner) eachCovered(g *gang, f func(a, b int)) {
	for a, n := range g.count {
		if n == 0 {
			continue
		}
		if n >= p.members[a].Copies && n > 1 {
			f(a, a)
		}
		for b := a + 1; b < len(g.count); b++ {
			if g.count[b] > 0 {
				f(a, b)
			}
		}
	}
}

// withoutNeedless drops rounds whose tasks later choices cover as well.
func (p *planner) withoutNeedless(cover []gang) []gang {
	times := map[[2]int]int{}
	for i := range cover {
		p.eachCovered(&cover[i], func(a, b int) { times[[2]int{a, b}]++ })
	}
	return slices.DeleteFunc(cover, func(g gang) bool {
		needless := true
		p.eachCovered(&g, func(a, b int) { needless = needless && times[[2]int{a, b}] > 1 })
		if needless {
			p.eachCovered(&g, func(a, b int) { times[[2]int{a, b}]-- })
		}
		return needless
	})
}

// classes names the runs of g, sorted.
func (p *planner) classes(g gang) []string {
	names := make([]string, 0, g.size)
	for m, n := range g.count {
		for range n {
			names = append(names, p.members[m].Class)
		}
	}
	return names
}

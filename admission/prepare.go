package admission

import (
	"slices"

	"github.com/lanegate/lanegate"
)

// Planner plans for lanes, classes and resources that stay as they are. It is for
// a replay, which asks about one configuration millions of times; a decision about
// what the database says now has nothing to prepare. It is for one goroutine.
type Planner struct {
	lanes     []lanegate.Lane
	classes   []lanegate.Class
	resources []lanegate.Resource
	standing  *standing
}

// NewPlanner computes what depends on its arguments alone; they must not change
// as long as the Planner is in use.
func NewPlanner(lanes []lanegate.Lane, classes []lanegate.Class, resources []lanegate.Resource) *Planner {
	s := newStanding(lanes, classes, resources)
	s.lines = make(map[string]line, len(classes))
	for i := range classes {
		ln := line{class: &classes[i]}
		s.enter(&ln)
		s.lines[ln.class.ID] = ln
	}
	return &Planner{lanes: lanes, classes: classes, resources: resources, standing: s}
}

// Plan answers as the function Plan does for in with the planner's lanes, classes
// and resources.
func (pl *Planner) Plan(in Input) Decision {
	in.Lanes, in.Classes, in.Resources = pl.lanes, pl.classes, pl.resources
	return newPass(in, pl.standing).run()
}

// standing is what stands still while jobs come and go.
type standing struct {
	ledger *ledger // with nothing in use
	lanes  []lane  // with nothing in use, in a fixed order
	index  map[string]int
	rows   map[string]*lanegate.Lane
	// lines has every class without jobs; nil without a Planner.
	lines map[string]line
}

func newStanding(lanes []lanegate.Lane, classes []lanegate.Class, resources []lanegate.Resource) *standing {
	s := &standing{ledger: newLedger(resources, classes)}
	widths := solve(s.ledger, lanes, classes)
	s.lanes = make([]lane, len(widths))
	s.index = make(map[string]int, len(widths))
	for i := range widths {
		w := &widths[i]
		s.index[w.lane.Name] = i
		s.lanes[i] = lane{
			name:   w.lane.Name,
			paused: w.lane.Paused,
			serial: w.serial(),
			fair:   w.lane.Order == lanegate.OrderFair && !w.serial(),
			width:  w.inForce,
		}
	}
	s.rows = make(map[string]*lanegate.Lane, len(lanes))
	for i := range lanes {
		s.rows[lanes[i].Name] = &lanes[i]
	}
	return s
}

// enter finds the route of a class and what one run of it takes.
func (s *standing) enter(ln *line) {
	ln.route, ln.wait = routeOf(ln.class, s.rows[ln.class.Lane])
	ln.needs = s.ledger.needs(ln.class)
}

// open starts a ledger and lanes for one pass.
func (s *standing) open() (*ledger, []lane) {
	if s.lines == nil { // used once
		return s.ledger, s.lanes
	}
	l := *s.ledger
	l.accounts = slices.Clone(l.accounts)
	return &l, slices.Clone(s.lanes)
}

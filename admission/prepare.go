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
	s.room = &room{}
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
	// room is nil without a Planner.
	room *room
}

// room is the memory that a pass works in. A Planner uses it again for each of its
// passes; nothing of it is in a Decision.
type room struct {
	ledger   ledger
	accounts []account
	own      []lane
	lanes    []*lane
	byClass  map[string]*line
	dues     []*Due
	blanks   []line
	lines    []*line
}

// linesByClass is an empty map, made for n lines.
func (r *room) linesByClass(n int) map[string]*line {
	if r.byClass == nil {
		r.byClass = make(map[string]*line, n)
	}
	clear(r.byClass)
	return r.byClass
}

// forDue has n places for due jobs, and room for as many lines, which so never move.
func (r *room) forDue(n int) ([]*Due, []line) {
	r.dues = slices.Grow(r.dues[:0], n)[:n]
	r.blanks = slices.Grow(r.blanks[:0], n)
	return r.dues, r.blanks
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
	r := s.room
	r.accounts = append(r.accounts[:0], s.ledger.accounts...)
	r.own = append(r.own[:0], s.lanes...)
	r.ledger = *s.ledger
	r.ledger.accounts = r.accounts
	return &r.ledger, r.own
}

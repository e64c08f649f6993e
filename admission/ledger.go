package admission

import (
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// need is what one run takes of one resource.
type need struct {
	resource int // index into ledger.accounts
	units    int // > 0
}

// account is one resource with everything that is taken of it. "Outside" means
// outside the serial line: verification attempts are outside whatever lane is
// written on them, because the serial line may flow on beside them and its
// reserve must not be spent twice.
type account struct {
	name     string
	capacity int // 0 for a resource that a class names but nobody declared
	reserve  int // see Reserve
	outside  int // units in use outside serial
	serial   int // units in use by serial
	kept     int // units that are kept for the one job with a reservation
	round    int // units that are kept for the trial's round
}

// never says whether a run of that many units can't start however idle
// everything is.
func (a *account) never(units int, serial bool) bool {
	if serial {
		return units > a.capacity
	}
	return units > a.capacity-a.reserve
}

// full says whether that many units are not to be had now.
func (a *account) full(units int, serial bool) bool {
	if serial {
		return units+a.outside+a.serial > a.capacity
	}
	return units+a.outside > a.capacity-max(a.reserve, a.serial)
}

// withheld says whether a start would take what is kept for another job, which
// waits in serial or not (keptSerial). Nothing is counted twice: serial runs one
// job at a time, so what is kept for a serial job and what serial uses now are
// never in use together; and serial's reserve is its own, so a reservation
// outside serial never withholds it.
func (a *account) withheld(units int, serial, keptSerial bool) bool {
	switch {
	case a.kept == 0:
		return false
	case serial && !keptSerial && units <= a.reserve:
		return false
	case serial:
		return units+a.outside+a.serial+a.kept > a.capacity
	case keptSerial:
		return units+a.outside > a.capacity-max(a.reserve, a.serial, a.kept)
	default:
		return units+a.outside+a.kept > a.capacity-max(a.reserve, a.serial)
	}
}

// roundNever says whether a round of that many units can't start however idle
// everything is. A round that holds serial's slot needs to leave it nothing.
func (a *account) roundNever(units int, holds bool) bool {
	return units > a.capacity-a.reserve && (!holds || units > a.capacity)
}

// room is what a round may bring the units in use outside serial to.
func (a *account) room(holds bool) int {
	if holds {
		return a.capacity - a.serial
	}
	return a.capacity - max(a.reserve, a.serial)
}

// roundWithheld says whether the trial's round would no longer fit after a start
// outside serial.
func (a *account) roundWithheld(units int, holds bool) bool {
	return a.round > 0 && units+a.outside+a.round > a.room(holds)
}

// ledger is all resources.
type ledger struct {
	accounts []account
	index    map[string]int
	pool     []need // what a run takes whose class declares nothing
	// keptSerial: the kept units are for a job that waits in serial.
	keptSerial bool
	// holds: the trial whose round waits for units holds serial's slot.
	holds bool
}

// newLedger opens one account per resource that is declared or that a class
// names, with nothing in use.
func newLedger(resources []lanegate.Resource, classes []lanegate.Class) *ledger {
	l := &ledger{index: make(map[string]int, len(resources))}
	for _, r := range resources {
		i := l.open(r.Name)
		l.accounts[i].capacity = max(0, r.Capacity)
		if r.Pool {
			l.pool = append(l.pool, need{i, 1})
		}
	}
	l.sort(l.pool)
	for i := range classes {
		for name := range classes[i].Units {
			l.open(name)
		}
	}
	serial := make([]int, len(l.accounts))
	promoted := make([]int, len(l.accounts))
	for i := range classes {
		c := &classes[i]
		largest := promoted
		if isSerial(c) {
			if c.Paused {
				continue
			}
			largest = serial
		}
		l.each(c, func(i, units int) { largest[i] = max(largest[i], units) })
	}
	for i := range l.accounts {
		a := &l.accounts[i]
		a.reserve = reserve(a.capacity, serial[i], promoted[i])
	}
	return l
}

func (l *ledger) open(name string) int {
	i, ok := l.index[name]
	if !ok {
		i = len(l.accounts)
		l.index[name] = i
		l.accounts = append(l.accounts, account{name: name})
	}
	return i
}

// each calls f for every resource that one run of c takes something of, in no
// particular order.
func (l *ledger) each(c *lanegate.Class, f func(resource, units int)) {
	if c.Units == nil {
		for _, n := range l.pool {
			f(n.resource, n.units)
		}
		return
	}
	for name, units := range c.Units {
		if units > 0 {
			f(l.index[name], units)
		}
	}
}

// needs lists what one run of c takes, by resource name. Classes that declare
// nothing share one slice.
func (l *ledger) needs(c *lanegate.Class) []need {
	if c.Units == nil {
		return l.pool
	}
	ns := make([]need, 0, len(c.Units))
	l.each(c, func(i, units int) { ns = append(ns, need{i, units}) })
	l.sort(ns)
	return ns
}

func (l *ledger) sort(ns []need) {
	slices.SortFunc(ns, func(a, b need) int {
		return strings.Compare(l.accounts[a.resource].name, l.accounts[b.resource].name)
	})
}

// enter writes down what an attempt in flight holds. A resource that no class
// and no declaration names any more can't hold anybody up and is left out.
func (l *ledger) enter(r *Running) {
	for name, units := range r.Units {
		if i, ok := l.index[name]; ok && units > 0 {
			if r.Lane == lanegate.LaneSerial && r.Verification == "" {
				l.accounts[i].serial += units
			} else {
				l.accounts[i].outside += units
			}
		}
	}
}

// take enters a start (sign 1), or takes it back (sign −1).
func (l *ledger) take(ns []need, serial bool, sign int) {
	for _, n := range ns {
		if serial {
			l.accounts[n.resource].serial += sign * n.units
		} else {
			l.accounts[n.resource].outside += sign * n.units
		}
	}
}

// keep withholds ns from everybody but the job that is waiting for them.
func (l *ledger) keep(ns []need, serial bool) {
	l.keptSerial = serial
	for _, n := range ns {
		l.accounts[n.resource].kept = n.units
	}
}

// keepRound withholds ns, outside serial, from everybody but the trial's round.
func (l *ledger) keepRound(ns []need, holds bool) {
	l.holds = holds
	for _, n := range ns {
		l.accounts[n.resource].round = n.units
	}
}

// total is what several runs take together, by resource name.
func (l *ledger) total(runs []gangRuns) []need {
	sums := make([]int, len(l.accounts))
	for _, r := range runs {
		for _, n := range r.line.needs {
			sums[n.resource] += n.units * r.runs
		}
	}
	var ns []need
	for i, units := range sums {
		if units > 0 {
			ns = append(ns, need{i, units})
		}
	}
	l.sort(ns)
	return ns
}

// never, full, withheld and those about the round ask the same of every resource
// in ns: they return the first account that says yes, nil when none does.
func (l *ledger) never(ns []need, serial bool) *account {
	return l.find(ns, func(a *account, units int) bool { return a.never(units, serial) })
}

func (l *ledger) full(ns []need, serial bool) *account {
	return l.find(ns, func(a *account, units int) bool { return a.full(units, serial) })
}

func (l *ledger) withheld(ns []need, serial bool) *account {
	return l.find(ns, func(a *account, units int) bool { return a.withheld(units, serial, l.keptSerial) })
}

func (l *ledger) roundFull(ns []need, holds bool) *account {
	return l.find(ns, func(a *account, units int) bool { return units+a.outside > a.room(holds) })
}

// roundWithheld withholds nothing from serial: it runs one job at a time, and
// when that ends, a round that lacks nothing else goes first.
func (l *ledger) roundWithheld(ns []need, serial bool) *account {
	if serial {
		return nil
	}
	return l.find(ns, func(a *account, units int) bool { return a.roundWithheld(units, l.holds) })
}

func (l *ledger) find(ns []need, says func(a *account, units int) bool) *account {
	for _, n := range ns {
		if a := &l.accounts[n.resource]; says(a, n.units) {
			return a
		}
	}
	return nil
}

// isSerial says whether c belongs to serial by its own metadata. A class
// without a lane was never promoted.
func isSerial(c *lanegate.Class) bool { return c.Lane == lanegate.LaneSerial || c.Lane == "" }

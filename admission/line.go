package admission

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// RouteOf says in which lane jobs of c start while lanes stand as they do. wait
// is true when they must wait for that lane to become available.
//
// A class of a lane that is not available goes to serial, with the reason, or
// waits, as the lane says. A class whose lane does not exist goes to serial. A
// paused lane holds its classes even when it is not available: losing its
// workers must not undo a person's pause.
func RouteOf(c lanegate.Class, lanes []lanegate.Lane) (route lanegate.Route, wait bool) {
	for i := range lanes {
		if lanes[i].Name == c.Lane {
			return routeOf(&c, &lanes[i])
		}
	}
	return routeOf(&c, nil)
}

// routeOf is RouteOf with the class's own lane found, nil when it does not exist.
func routeOf(c *lanegate.Class, own *lanegate.Lane) (route lanegate.Route, wait bool) {
	switch {
	case isSerial(c):
		return lanegate.Route{Lane: lanegate.LaneSerial}, false
	case own != nil && own.Available:
		return lanegate.Route{Lane: c.Lane}, false
	case own != nil && (own.Paused || own.WhenUnavailable == lanegate.FallbackWait):
		return lanegate.Route{Lane: c.Lane}, true
	}
	return lanegate.Route{
		Lane:   lanegate.LaneSerial,
		Reason: lanegate.ReasonLaneUnavailable,
		Wanted: c.Lane,
	}, false
}

// lane is a lane during one pass.
type lane struct {
	name   string
	serial bool
	paused bool
	fair   bool
	width  int
	// taken counts the slots in use: attempts in flight, a hold, starts of this pass.
	taken int
	// served: at least one live worker serves the lane.
	served bool
	// line holds the classes that still want to start something, the next one first.
	line []*line
}

func (l *lane) full() bool { return l.taken >= l.width }

// compare is the lane's order.
func (l *lane) compare(a, b *line) int {
	if l.fair && a.inFlight != b.inFlight {
		return cmp.Compare(a.inFlight, b.inFlight)
	}
	return comparePlaces(a, b)
}

// enter puts ln in its position in the lane's line.
func (l *lane) enter(ln *line) {
	at, _ := slices.BinarySearchFunc(l.line, ln, l.compare)
	l.line = slices.Insert(l.line, at, ln)
}

// comparePlaces orders classes by the place of their next jobs, over all lanes.
func comparePlaces(a, b *line) int {
	switch {
	case Before(*a.next(), *b.next()):
		return -1
	case Before(*b.next(), *a.next()):
		return 1
	}
	return strings.Compare(a.class.ID, b.class.ID)
}

// line is a class with due jobs during one pass.
type line struct {
	class *lanegate.Class
	route lanegate.Route
	wait  bool // for its lane to become available
	lane  *lane
	needs []need
	able  []*worker // those that serve the lane and have the command
	all   []*worker // every live one
	due   []*Due    // in the order of the line
	// started counts the jobs of due that this pass started, those left to other
	// workers included; granted only what is given out. Both count from the head:
	// what is left to another worker comes after everything granted.
	started, granted int
	// inFlight counts every attempt of the class and the starts of this pass;
	// verifying those of the trial, which its limit does not bound.
	inFlight, verifying int
	// reserved: none of the due jobs may start but as part of the trial.
	reserved bool
	// more: when the last of due had been started, the class and its lane had room.
	more bool
	// passed is the job that had its turn, with a free slot, and could not start.
	passed *Due
}

// next is the first job that was not started in this pass.
func (ln *line) next() *Due { return ln.due[ln.started] }

// runners are the workers that can run the next job.
func (ln *line) runners() []*worker {
	pin := ln.next().Worker
	if pin == "" {
		return ln.able
	}
	for _, w := range ln.all {
		if w.ID == pin && w.serves(ln.lane.name) && w.waitsFor(ln.class, ln.lane.serial) {
			return []*worker{w}
		}
	}
	return nil
}

// waiting is the first job that was not granted, nil when none is left.
func (ln *line) waiting() *Due {
	if ln.granted == len(ln.due) {
		return nil
	}
	return ln.due[ln.granted]
}

// limit is the class's max_in_flight; a class that was stored without one has
// the default.
func (ln *line) limit() int { return max(1, ln.class.MaxInFlight) }

// ordinary counts the attempts that the class's limit bounds: all but the trial's,
// whose plan bounds them. Runs that go on after their verification run is over are
// among them: nobody proved what another one beside them would do.
func (ln *line) ordinary() int { return ln.inFlight - ln.verifying }

// open says whether only slots, units and workers' slots can stand in the way
// of the class's next job.
func (p *pass) open(ln *line) bool {
	return ln.started < len(ln.due) &&
		ln.ordinary() < ln.limit() &&
		!ln.reserved && !ln.class.Paused && !ln.lane.paused && !ln.wait &&
		len(ln.runners()) > 0 &&
		p.ledger.never(ln.needs, ln.lane.serial) == nil
}

// worker is a live worker during one pass.
type worker struct {
	*Worker
	free       int  // local slots outside serial
	serialFree bool // the local slot of serial
	// held of free are kept for the job with the reservation: 0 or 1.
	held int
}

func (w *worker) serves(lane string) bool { return w.Lanes == nil || slices.Contains(w.Lanes, lane) }

// has says whether the worker can run the class: every gateway can send a request,
// one that reaches SQS can send a message, and commands must be in its catalogue
// with the very definition the class is about.
func (w *worker) has(c *lanegate.Class) bool {
	if w.Agent != (c.Run.Kind == lanegate.RunAgent) {
		return false
	}
	switch {
	case c.Run.Kind == lanegate.RunSQS:
		_, ok := w.Commands[SQSTargets]
		return ok
	case !needsCommand(c):
		return true
	}
	digest, ok := w.Commands[c.Run.Command]
	return ok && digest == c.CommandDigest
}

// waitsFor says whether the worker has a command of its own for jobs of the class
// that name it. Outside serial it must be the one that was proven.
func (w *worker) waitsFor(c *lanegate.Class, serial bool) bool {
	digest, ok := w.Commands[OnTheSpot(c.ID)]
	return ok && w.Agent && c.Run.Kind == lanegate.RunAgent && (serial || digest == c.CommandDigest)
}

func needsCommand(c *lanegate.Class) bool {
	return c.Run.Kind == lanegate.RunExec || c.Run.Kind == lanegate.RunAgent
}

// slots is how many runs of that kind the worker can take, held ones counted or not.
func (w *worker) slots(serial, held bool) int {
	switch {
	case serial && w.serialFree:
		return 1
	case serial:
		return 0
	case held:
		return w.free
	}
	return w.free - w.held
}

// take fills a local slot (sign 1) or empties it (sign −1).
func (w *worker) take(serial bool, sign int) {
	if serial {
		w.serialFree = sign < 0
		return
	}
	w.free -= sign
}

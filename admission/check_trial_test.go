package admission

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// holdAfter is the run that holds serial's slot once d is carried out.
func holdAfter(in Input, d Decision) string {
	if d.Trial != nil && d.Trial.Hold {
		return in.Trial.ID
	}
	return in.Hold
}

// madeUp says whether d starts jobs that have no id yet.
func madeUp(d Decision) bool {
	return d.Trial != nil && slices.ContainsFunc(d.Trial.Gang, func(g Grant) bool { return g.Job == "" })
}

// carriedOut says whether nothing but other jobs, slots and units can keep the
// trial from going on.
func carriedOut(in Input, d Decision) bool {
	if in.Trial.Owner != "" && !slices.ContainsFunc(in.Workers, func(w Worker) bool { return w.ID == in.Trial.Owner }) {
		return false
	}
	return len(d.Trial.Reasons) == 0 ||
		!slices.Contains([]Code{NoWorker, UnknownClass, Paused, LaneWait, OverCapacity}, d.Trial.Reasons[0].Code)
}

// checkTrial checks everything that must hold of what a decision does for a trial.
func checkTrial(t failer, in Input, d Decision) {
	t.Helper()
	if (in.Trial == nil) != (d.Trial == nil) {
		t.Fatalf("trial in the input: %+v, in the decision: %+v", in.Trial, d.Trial)
	}
	if d.Trial == nil {
		return
	}
	if !carriedOut(in, d) {
		checkNoTrial(t, in, d)
		return
	}
	checkTaken(t, in, d)
	checkGang(t, in, d)
	for _, g := range d.Grants {
		taken := in.Trial.Owner != "" || d.Trial.Take
		if isMember(in, g.Class) && (taken || in.Trial.WantsHold && g.Route.Lane == lanegate.LaneSerial) {
			t.Errorf("%s of member %s started ordinarily", g.Job, g.Class)
		}
	}
	started := in.Trial.Owner != "" && len(in.Trial.Round) == 0
	if (d.Trial.Start || started) && len(d.Trial.Reasons) > 0 {
		t.Errorf("the round has started, and waits for %v", d.Trial.Reasons)
	}
	if in.Asking == "" && !started && !d.Trial.Start && len(d.Trial.Reasons) == 0 {
		t.Errorf("the round does not start, and nothing says why")
	}
	running := after(in, d)
	for _, r := range d.Trial.Reasons {
		for _, job := range r.Jobs {
			if r.Code != KeptFor && count(running, func(r Running) bool { return r.Job == job }) == 0 {
				t.Errorf("the trial waits for %s, said to be held by %s, which does not run", r, job)
			}
		}
	}
}

func isMember(in Input, class string) bool {
	return slices.Contains(in.Trial.Members, class) || slices.Contains(in.Trial.Round, class)
}

// checkNoTrial: a trial that can't be carried out changes nothing for anybody.
func checkNoTrial(t failer, in Input, d Decision) {
	t.Helper()
	if d.Trial.Take || d.Trial.Hold || d.Trial.Start || len(d.Trial.Gang) > 0 {
		t.Errorf("a trial that can't be carried out goes on: %+v", d.Trial)
	}
	in.Trial, d.Trial = nil, nil
	if diff := cmp.Diff(Plan(in), d); diff != "" {
		t.Errorf("a trial that can't be carried out changes the decision (-without +with):\n%s", diff)
	}
}

// checkTaken: only a worker that asks and can run everything takes the trial, and
// serial's slot is taken only while it is free.
func checkTaken(t failer, in Input, d Decision) {
	t.Helper()
	if d.Trial.Take {
		able := func(w Worker) bool {
			return (in.Asking == "" || w.ID == in.Asking) && !slices.ContainsFunc(in.Trial.Members, func(m string) bool { return !hasCommand(w, findClass(in, m)) })
		}
		if in.Trial.Owner != "" || !slices.ContainsFunc(in.Workers, able) {
			t.Errorf("taken by %q, which can't; the owner was %q", in.Asking, in.Trial.Owner)
		}
		if in.Trial.WantsHold && holdAfter(in, d) != in.Trial.ID {
			t.Errorf("taken without serial's slot")
		}
	}
	if !d.Trial.Hold {
		return
	}
	serial := count(after(in, d), func(r Running) bool { return r.Lane == lanegate.LaneSerial && r.Verification == "" })
	if serial > 0 || in.Hold != "" || !in.Trial.WantsHold {
		t.Errorf("serial's slot is taken beside %d attempts and the hold of %q; wanted: %v", serial, in.Hold, in.Trial.WantsHold)
	}
}

// checkGang: the whole of what the round lacks starts or nothing does, on the
// owner, when no member runs otherwise, within the capacities.
func checkGang(t failer, in Input, d Decision) {
	t.Helper()
	gang := d.Trial.Gang
	if !d.Trial.Start {
		if len(gang) > 0 {
			t.Errorf("starts of a round that does not start: %+v", gang)
		}
		return
	}
	if in.Trial.Owner == "" && !d.Trial.Take || len(in.Trial.Round) == 0 || in.Trial.WantsHold && holdAfter(in, d) != in.Trial.ID {
		t.Errorf("a round starts without owner, hold or plan: %+v, %+v", in.Trial, d.Trial)
	}
	got, want := map[string]int{}, map[string]int{}
	for _, class := range in.Trial.Round {
		want[class]++
	}
	for class := range want {
		want[class] -= count(in.InFlight, func(r Running) bool { return r.Class == class && r.Verification == in.Trial.ID })
		if want[class] <= 0 {
			delete(want, class)
		}
	}
	for _, g := range gang {
		got[g.Class]++
		c := findClass(in, g.Class)
		if route, wait := RouteOf(c, in.Lanes); route != g.Route || wait || c.Paused {
			t.Errorf("gang start %+v in a lane that is not its class's, or of a paused class", g)
		}
		if g.Verification != in.Trial.ID || (g.Job != "") != in.Trial.FromQueue {
			t.Errorf("gang start %+v of trial %+v", g, in.Trial)
		}
		if g.Worker != gang[0].Worker || in.Asking != "" && g.Worker != in.Asking || in.Trial.Owner != "" && g.Worker != in.Trial.Owner {
			t.Errorf("gang start %+v is not on the owner", g)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the gang is not what the round lacks (-want +got):\n%s", diff)
	}
	if n := count(after(in, d), func(r Running) bool { return isMember(in, r.Class) && r.Verification != in.Trial.ID }); n > 0 {
		t.Errorf("a round starts beside %d ordinary attempts of its members", n)
	}
	checkGangUnits(t, in, d)
}

func checkGangUnits(t failer, in Input, d Decision) {
	t.Helper()
	for _, res := range append(slices.Clone(in.Resources), lanegate.Resource{Name: "undeclared"}) {
		if !slices.ContainsFunc(d.Trial.Gang, func(g Grant) bool { return g.Units[res.Name] > 0 }) {
			continue
		}
		serial, outside := 0, 0
		for _, r := range append(slices.Clone(in.InFlight), after(Input{}, Decision{Trial: d.Trial})...) {
			if r.Lane == lanegate.LaneSerial && r.Verification == "" {
				serial += r.Units[res.Name]
			} else {
				outside += r.Units[res.Name]
			}
		}
		room := res.Capacity - serial
		if !in.Trial.WantsHold {
			room = min(room, res.Capacity-Reserve(res, in.Classes))
		}
		if outside > room {
			t.Errorf("the round brings %s to %d outside serial and %d in it, of %d", res.Name, outside, serial, res.Capacity)
		}
	}
}

// simTrial is a verification run in a world, with its plan.
type simTrial struct {
	Trial
	rounds  [][]string
	round   int
	started bool
	// window: a round is over while its runs go on.
	window bool
}

// newTrial plans a verification run of some classes.
func (w *world) newTrial() {
	w.made++
	s := &simTrial{window: w.pick(3) == 0}
	s.ID, s.PlaceAt = "v"+leftPad(w.made), w.now
	s.FromQueue, s.WantsHold = w.pick(2) == 0, w.pick(3) > 0
	for range 1 + w.pick(3) {
		s.Members = append(s.Members, w.classes[w.pick(len(w.classes))].ID)
	}
	if w.pick(12) == 0 {
		s.Members = append(s.Members, "ghost")
	}
	for range 1 + w.pick(3) {
		var round []string
		for range 1 + w.pick(3) {
			round = append(round, s.Members[w.pick(len(s.Members))])
		}
		s.rounds = append(s.rounds, round)
	}
	w.trial = s
}

// input is the trial as a decision sees it.
func (s *simTrial) input() *Trial {
	t := s.Trial
	if !s.started {
		t.Round = slices.Clone(s.rounds[s.round])
	}
	return &t
}

// coordinate does the owner's part: it moves on when a round is over.
func (w *world) coordinate() {
	s := w.trial
	if s == nil || !s.started {
		return
	}
	if !s.window && count(w.running, func(r Running) bool { return r.Verification == s.ID }) > 0 {
		return
	}
	s.started = false
	if s.round++; s.round == len(s.rounds) {
		w.endTrial()
	}
}

// endTrial lets go of everything but the runs that go on.
func (w *world) endTrial() { w.trial, w.hold = nil, "" }

// applyTrial writes down what a decision that was made for asking does.
func (w *world) applyTrial(asking string, step *TrialStep) {
	if step == nil {
		return
	}
	s := w.trial
	if step.Take {
		s.Owner = asking
	}
	if step.Hold {
		w.hold = s.ID
	}
	s.started = s.started || step.Start
	for _, g := range step.Gang {
		if g.Job == "" {
			w.made++
			g.Job = "made" + leftPad(w.made)
		}
		w.begin(g)
	}
}

func TestCarriedOut(t *testing.T) {
	in := newInput(classes(newClass("a", "serial", db(16))))
	in.Trial = &Trial{ID: "v1", WantsHold: true, Members: []string{"a"}, Round: []string{"a"}}
	if d := Plan(in); carriedOut(in, d) {
		t.Errorf("a trial above the capacities is carried out: %+v", d.Trial)
	}
	in.Classes[0].Units = db(15)
	if d := Plan(in); !carriedOut(in, d) {
		t.Errorf("a trial within the capacities is not carried out: %+v", d.Trial)
	}
}

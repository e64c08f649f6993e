package service_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// gateTrials is what the model of TestNobodyGetsAroundTheGate knows of experiments
// that the gateway carries out itself.
type gateTrials struct {
	coord   *service.Coordinator
	checker *fakeChecker
	trials  map[string]*gateTrial
	started map[string]start // a job's last attempt
}

// start is what an attempt was started as, whatever is said of it later.
type start struct{ run, fingerprint string }

// gateTrial is one verification run, as seen from outside.
type gateTrial struct {
	copies       map[string]int    // asked for, by member
	fingerprints map[string]string // when it was asked for
	most         map[string]int    // runs of it that were in flight at once, by class
	beside       map[string]bool   // jobs that ran beside others of it
	// bad: a criterion has failed. lost: its worker went while it was carried out.
	bad, lost, aborted bool
	over               bool
	// goesOn: some of its runs had not ended when it was over.
	goesOn  bool
	verdict lanegate.Verdict // "" unless done
}

// end says how it ended, for what was seen.
func (t *gateTrial) end() string {
	return cmp.Or(string(t.verdict), "aborted")
}

// open lists the runs that are not over, oldest first.
func (w *gateWorld) open() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.trials)), func(id string) bool { return w.trials[id].over })
}

// verify asks for an experiment.
func (w *gateWorld) verify(rt *rapid.T) {
	if len(w.open()) > 1 {
		rt.Skip("enough are open")
	}
	spec := lanegate.VerificationSpec{
		Source: rapid.SampledFrom([]lanegate.VerificationSource{lanegate.SourcePayloads, lanegate.SourcePayloads, lanegate.SourceQueue}).Draw(rt, "source"),
		Rounds: 1, MaxHold: lanegate.Duration(24 * time.Hour), HoldSerial: rapid.Bool().Draw(rt, "hold"), HoldReason: "the line must flow",
	}
	if rapid.Bool().Draw(rt, "windowed") {
		spec.Criteria.Window = lanegate.Duration(5 * time.Minute)
	}
	if rapid.IntRange(0, 3).Draw(rt, "checked") == 0 {
		withCheck(&spec)
	}
	copies, fingerprints := map[string]int{}, map[string]string{}
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom(gateClasses), 1, 2, rapid.ID).Draw(rt, "members") {
		c, err := w.svc.Class(w.t.Context(), id)
		if err != nil {
			continue
		}
		copies[id], fingerprints[id] = rapid.SampledFrom([]int{2, 2, 3, 1}).Draw(rt, "copies"), c.Fingerprint
		spec.Members = append(spec.Members, lanegate.VerificationMember{Class: id, Copies: copies[id]})
		if spec.Source == lanegate.SourceQueue && len(w.open()) == 0 {
			w.practise(rt, id)
		}
	}
	v, err := w.svc.CreateVerification(w.t.Context(), spec, service.VerifyOptions{Actor: "ann"})
	if err != nil {
		if !errors.Is(err, lanegate.ErrVerificationRefused) {
			rt.Fatalf("verify: %v", err)
		}
		w.seen["refused"]++
		return
	}
	w.runs = append(w.runs, v.ID)
	w.trials[v.ID] = &gateTrial{copies: copies, fingerprints: fingerprints, most: map[string]int{}, beside: map[string]bool{}}
}

// practise gives a class the history that the source "queue" asks for.
func (w *gateWorld) practise(rt *rapid.T, class string) {
	for range lanegate.BaselineRuns {
		w.mustSubmit(class)
	}
	for range lanegate.BaselineRuns {
		w.admit(rt)
		w.finishAll(rt)
	}
}

// look is the coordinator's.
func (w *gateWorld) look(rt *rapid.T) {
	w.checker.ending = rapid.SampledFrom([]lanegate.Ending{good, good, good, {Outcome: lanegate.Failed}}).Draw(rt, "check")
	before := w.checker.count()
	w.must(w.coord.Look(w.t.Context()))
	if w.checker.ending.Outcome == lanegate.Failed && w.checker.count() > before {
		for _, id := range w.open() {
			if v := w.verification(id); v.State != lanegate.VerificationPlanned {
				w.trials[id].bad = true
			}
		}
	}
	w.learn(rt)
}

func (w *gateWorld) verification(id string) lanegate.Verification {
	w.t.Helper()
	v, err := w.svc.Verification(w.t.Context(), id)
	w.must(err)
	return v
}

// carryOn takes what is open some rounds further: most runs end well, some badly,
// some go on.
func (w *gateWorld) carryOn(rt *rapid.T) {
	open := w.open()
	if len(open) == 0 {
		rt.Skip("nothing is open")
	}
	id := open[0]
	spec := w.verification(id).Spec
	for n := rapid.IntRange(1, 8).Draw(rt, "rounds"); n > 0 && !w.trials[id].over; n-- {
		if spec.Source == lanegate.SourceQueue {
			w.submitFor(w.trials[id].copies)
		}
		w.admit(rt)
		w.look(rt)
		w.clock.advance(usual)
		switch ending := rapid.IntRange(0, 7).Draw(rt, "ending"); {
		case ending < 2, ending < 5 && spec.Criteria.Window > 0 && len(w.inFlight(id)) > 1:
			w.clock.advance(5 * usual) // together for as long as a window
		case ending == 5 && len(w.inFlight(id)) > 1:
			w.finish(rt, w.mustHeld(w.worker)[0], deadlocked(lanegate.Failed))
		case ending == 6:
			w.end(rt)
		default:
			w.finishAll(rt)
		}
		w.look(rt)
		w.check(rt)
	}
	if w.trials[id].over { // what it proved, and what it left running, is tried
		for _, class := range slices.Sorted(maps.Keys(w.trials[id].copies)) {
			w.promoteTo(rt, []string{class}, service.PromoteOptions{ChangeOptions: acceptWidth, Lane: parallel, Verification: id})
		}
		w.check(rt)
		w.submitFor(map[string]int{"a": 1, "b": 1, "c": 1})
		w.admit(rt)
		w.admit(rt)
	}
}

// submitFor makes jobs due, for each class so many.
func (w *gateWorld) submitFor(copies map[string]int) {
	for _, class := range slices.Sorted(maps.Keys(copies)) {
		if _, err := w.svc.Class(w.t.Context(), class); err != nil {
			continue
		}
		for range copies[class] {
			w.mustSubmit(class)
		}
	}
}

func (w *gateWorld) abort(rt *rapid.T) {
	if len(w.trials) == 0 {
		rt.Skip("nothing to abort")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(w.trials))).Draw(rt, "run")
	over := w.trials[id].over
	_, err := w.svc.AbortVerification(w.t.Context(), id, admin)
	if over != (err != nil) || err != nil && !errors.Is(err, lanegate.ErrVerificationOver) {
		rt.Fatalf("abort of a run that is over (%v): %v", over, err)
	}
	if !over {
		w.trials[id].aborted = true
	}
}

// learn takes note of what became of the experiments. A verdict is believed as far
// as what was seen bears it out.
func (w *gateWorld) learn(rt *rapid.T) {
	for _, id := range slices.Sorted(maps.Keys(w.trials)) {
		t := w.trials[id]
		if t.over && (t.verdict != lanegate.VerdictPassed || !t.goesOn) {
			continue
		}
		v := w.verification(id)
		if v.State.Final() == t.over && v.Verdict == t.verdict {
			continue
		}
		if t.over && v.Verdict == lanegate.VerdictFailed {
			w.seen["failed late"]++
		}
		t.over, t.verdict = v.State.Final(), v.Verdict
		w.seen[t.end()]++
		if t.lost {
			w.seen["lost"]++
		}
		switch {
		case !t.over, t.aborted != (v.State == lanegate.VerificationAborted):
			rt.Fatalf("run %s is %s; aborted: %v", id, v.State, t.aborted)
		case v.Verdict == lanegate.VerdictPassed && (t.bad || t.lost):
			rt.Fatalf("run %s passed; a criterion failed: %v, its worker was lost: %v", id, t.bad, t.lost)
		case v.Verdict == lanegate.VerdictFailed && !t.bad:
			rt.Fatalf("run %s failed, and nothing was wrong: %+v", id, v.Reasons)
		}
		w.noteProofs(rt, id, t)
		if t.goesOn = t.goesOn || len(w.inFlight(id)) > 0; t.goesOn {
			w.seen["runs left over"]++
		}
	}
}

// noteProofs compares the proofs that a run left with what was seen of it, and
// remembers them.
func (w *gateWorld) noteProofs(rt *rapid.T, id string, t *gateTrial) {
	for class, fingerprint := range t.fingerprints {
		proofs, err := w.store.Proofs(w.t.Context(), class)
		w.must(err)
		i := slices.IndexFunc(proofs, func(p lanegate.Proof) bool { return p.Verification == id })
		conclusive := t.verdict == lanegate.VerdictPassed || t.verdict == lanegate.VerdictFailed
		if conclusive != (i >= 0) {
			rt.Fatalf("run %s ended %s; it left a proof of %s: %v", id, t.end(), class, i >= 0)
		}
		w.proofs[class] = slices.DeleteFunc(w.proofs[class], func(p lanegate.Proof) bool { return p.Verification == id })
		if !conclusive {
			continue
		}
		p := proofs[i]
		if p.Verdict != t.verdict || p.Fingerprint != fingerprint || p.Copies > t.most[class] || p.Verdict == lanegate.VerdictPassed && p.Copies < 1 {
			rt.Fatalf("run %s ended %s at fingerprint %s with at most %d runs of %s at once, and proves %+v", id, t.end(), fingerprint, t.most[class], class, p)
		}
		w.proofs[class] = append(w.proofs[class], p)
		slices.SortFunc(w.proofs[class], func(a, b lanegate.Proof) int {
			return cmp.Or(a.EndedAt.Compare(b.EndedAt), cmp.Compare(a.Verification, b.Verification))
		})
		if t.verdict == lanegate.VerdictFailed && w.licences[class].fingerprint == fingerprint {
			delete(w.licences, class)
		}
	}
}

// inFlight lists the attempts of a run that have not ended.
func (w *gateWorld) inFlight(run string) []admission.Running {
	in, err := w.store.Snapshot(w.t.Context())
	w.must(err)
	return slices.DeleteFunc(in.InFlight, func(r admission.Running) bool { return w.started[r.Job].run != run })
}

func (w *gateWorld) admit(rt *rapid.T) {
	w.learn(rt)
	grants := w.mustAdmit(w.worker, 8).Grants
	for _, g := range grants {
		w.started[g.Job.ID] = start{g.Attempt.Verification, g.Attempt.Fingerprint}
	}
	in, err := w.store.Snapshot(w.t.Context())
	w.must(err)
	s := w.standing(in)
	for _, g := range grants {
		if g.Attempt.Verification != "" {
			w.judgeTrialStart(rt, g, s)
		} else {
			w.judgeStart(rt, g, s)
		}
	}
	if units := s.units["db"]; len(grants) > 0 && units > 12 {
		rt.Fatalf("a start made it %d units of db in use, there are 12", units)
	}
	if s.serial > 1 || s.serial > 0 && in.Hold != "" {
		rt.Fatalf("%d ordinary runs in serial, hold %q", s.serial, in.Hold)
	}
}

// standing is what is in flight, counted.
type standing struct {
	all      map[string]int // by class
	ordinary map[string]int // by class; with those that a run which is over has left
	serial   int            // started as ordinary ones there
	// left counts attempts of runs that are over, leftSerial those of runs that did
	// not pass which are in serial.
	left, leftSerial int
	units            lanegate.Units
}

// standing counts what is in flight, and notes what is together in experiments.
func (w *gateWorld) standing(in admission.Input) standing {
	s := standing{all: map[string]int{}, ordinary: map[string]int{}, units: lanegate.Units{}}
	together := map[string]map[string]int{} // run → class → runs at the fingerprint under trial
	for _, r := range in.InFlight {
		s.all[r.Class]++
		for name, n := range r.Units {
			s.units[name] += n
		}
		as := w.started[r.Job]
		t := w.trials[as.run]
		switch {
		case t == nil:
			if s.ordinary[r.Class]++; r.Lane == lanegate.LaneSerial {
				s.serial++
			}
			continue
		case t.over:
			s.ordinary[r.Class]++
			if s.left++; t.verdict != lanegate.VerdictPassed && r.Lane == lanegate.LaneSerial {
				s.leftSerial++
			}
		}
		if together[as.run] == nil {
			together[as.run] = map[string]int{}
		}
		if as.fingerprint == t.fingerprints[r.Class] {
			together[as.run][r.Class]++
		}
		t.beside[r.Job] = t.beside[r.Job] || slices.ContainsFunc(in.InFlight, func(o admission.Running) bool {
			return w.started[o.Job].run == as.run && o.Job != r.Job
		})
	}
	for id, classes := range together {
		for class, n := range classes {
			w.trials[id].most[class] = max(w.trials[id].most[class], n)
		}
	}
	return s
}

// judgeStart judges an ordinary start.
func (w *gateWorld) judgeStart(rt *rapid.T, g service.Grant, s standing) {
	l, ok := w.licences[g.Job.Class]
	if ok = ok && l.fingerprint == g.Attempt.Fingerprint; !ok {
		l.copies = 1
	}
	switch lane := g.Attempt.Lane; {
	case lane != lanegate.LaneSerial && !ok:
		rt.Fatalf("class %s started in lane %s at fingerprint %s; it has %+v", g.Job.Class, lane, g.Attempt.Fingerprint, l)
	case s.ordinary[g.Job.Class] > l.copies:
		rt.Fatalf("a start in lane %s made it %d runs of %s at once, %d copies are proven", lane, s.ordinary[g.Job.Class], g.Job.Class, l.copies)
	case lane == lanegate.LaneSerial && s.leftSerial > 0:
		rt.Fatalf("class %s started in serial beside %d runs that an experiment which did not pass left there", g.Job.Class, s.leftSerial)
	case lane != lanegate.LaneSerial:
		w.seen["start outside serial"]++
	}
	if s.left > 0 {
		w.seen["start while runs are left over"]++
	}
}

// judgeTrialStart judges a start that belongs to an experiment: it must be open,
// about the class, and all that is planned.
func (w *gateWorld) judgeTrialStart(rt *rapid.T, g service.Grant, s standing) {
	id, class := g.Attempt.Verification, g.Job.Class
	t := w.trials[id]
	if v := w.verification(id); t == nil || t.over || v.State != lanegate.VerificationRunning || v.Owner != w.worker {
		rt.Fatalf("class %s started for run %s, which is %s with worker %q: %+v", class, id, v.State, v.Owner, t)
	}
	if s.all[class] > t.copies[class] || s.ordinary[class] > 0 {
		rt.Fatalf("a start for run %s made it %d runs of %s at once, %d of them no part of it; %d copies are to be tried", id, s.all[class], class, s.ordinary[class], t.copies[class])
	}
	w.seen["start for an experiment"]++
	if g.Job.Verification == "" {
		w.seen["start for an experiment from the queue"]++
	}
}

func (w *gateWorld) end(rt *rapid.T) {
	held := w.mustHeld(w.worker)
	if len(held) == 0 {
		return
	}
	h := rapid.SampledFrom(held).Draw(rt, "attempt")
	endings := []lanegate.Ending{good, good, {Outcome: lanegate.Failed}, deadlocked(lanegate.Failed), measuring(4)}
	if h.CancelRequested {
		endings = append(endings, lanegate.Ending{Outcome: lanegate.Cancelled}, lanegate.Ending{Outcome: lanegate.Cancelled})
	}
	w.finish(rt, h, rapid.SampledFrom(endings).Draw(rt, "ending"))
}

// finishAll ends everything well.
func (w *gateWorld) finishAll(rt *rapid.T) {
	for _, h := range w.mustHeld(w.worker) {
		w.finish(rt, h, good)
	}
}

// finish ends an attempt. If that is evidence against its class as it is, the class
// is in serial at once; if it is evidence against a verdict, so is each member.
func (w *gateWorld) finish(rt *rapid.T, h service.Held, ending lanegate.Ending) {
	ended := w.mustEnd(h.Fence, ending)
	a := ended.Attempt
	t := w.trials[a.Verification]
	phrase, above := ending.Output.Head != "", ending.Measured["db"] > a.Units["db"]
	if t != nil {
		t.bad = t.bad || !t.over && ending.Outcome == lanegate.Failed || above || phrase && t.over && t.beside[a.Job]
	}
	w.mustJudge()
	w.learn(rt)
	evidence := a.Lane != lanegate.LaneSerial && (phrase || above)
	if t != nil {
		evidence = t.over && (above || phrase && t.beside[a.Job])
	}
	if !evidence {
		return
	}
	if t != nil && t.verdict == lanegate.VerdictPassed {
		rt.Fatalf("run %s stays passed after %+v of %s", a.Verification, ending, a.Class)
	}
	if class, err := w.svc.Class(w.t.Context(), a.Class); err == nil && class.Fingerprint == a.Fingerprint && class.Lane != lanegate.LaneSerial {
		rt.Fatalf("class %s stayed in lane %s after %+v", class.ID, class.Lane, ending)
	}
	w.check(rt)
}

// restart is a new process on the same database; the old one leaves in order.
func (w *gateWorld) restart(rt *rapid.T) {
	if w.worker != "" {
		w.loseTrials()
		if rapid.Bool().Draw(rt, "drained") {
			w.coord.Stop(w.t.Context())
		}
		w.must(w.svc.LeaveWorker(w.t.Context(), w.worker))
	}
	w.newProcess()
}

// kill ends the process without warning; another replica declares it dead.
func (w *gateWorld) kill(rt *rapid.T) {
	workers, err := w.store.LiveWorkers(w.t.Context())
	w.must(err)
	w.loseTrials()
	for _, worker := range workers {
		w.must(w.svc.ReapWorker(w.t.Context(), worker.ID, worker.Beat))
	}
	if held := len(w.open()); held > 0 {
		w.look(rt) // the dead one's: it may not move what it lost
	}
	w.newProcess()
}

// loseTrials notes which runs go with the worker.
func (w *gateWorld) loseTrials() {
	for _, id := range w.open() {
		if v := w.verification(id); v.State == lanegate.VerificationRunning {
			w.trials[id].lost = true
		}
	}
}

func (w *gateWorld) newProcess() {
	w.svc = service.New(service.Options{Store: w.store, Doorbell: w.bell, Commands: w.commands, Log: discard()})
	w.workers++
	w.worker = fmt.Sprintf("w%d", w.workers)
	w.mustWorker(w.worker, 8)
	w.coord = service.NewCoordinator(w.svc, w.worker, w.checker)
}

package service_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

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

package service_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Nobody gets around the gate. Random sequences of promotions, demotions, edits,
// reloads, command changes, verification runs (carried out by admission and a
// coordinator, aborted, lost with their worker, going on after their verdict, or
// just written), months that pass and runs on the real store are compared with a
// model that knows only who was proven what and what ran at once: no attempt
// starts outside serial and an open verification run without a valid proof of the
// class as it is, never more at once than proven copies, a later failed run closes
// the gate, and whoever has the proof gets through.
func TestNobodyGetsAroundTheGate(t *testing.T) {
	// Each check has a database of its own: fewer and longer ones.
	for name, value := range map[string]string{"rapid.checks": "20", "rapid.steps": "120"} {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set(name, f.DefValue) }()
	}
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		w := newGateWorld(t, rt)
		actions := map[string]func(*rapid.T){
			"": w.check, "promote": w.promote, "demote": w.demote, "edit": w.edit, "reload": w.reload, "command": w.command,
			"verdict": w.verdict, "time": w.passTime, "submit": w.submit, "admit": w.admit, "end": w.end, "delete": w.remove, "restart": w.restart,
			"verify": w.verify, "look": w.look, "carry on": w.carryOn, "abort": w.abort, "kill": w.kill,
		}
		// What leads somewhere more often than what leads back.
		for _, twice := range []string{"promote", "verify", "carry on", "submit", "admit", "end"} {
			actions[twice+" again"], actions[twice+" once more"] = actions[twice], actions[twice]
		}
		rt.Repeat(actions)
		for what, n := range w.seen {
			seen[what] += n
		}
	})
	t.Logf("seen: %v", seen)
	for _, what := range gateMustSee {
		if seen[what] == 0 && !t.Failed() {
			t.Errorf("%s: never, so the test shows nothing about it", what)
		}
	}
}

// gateWorld is a gateway with its model.
type gateWorld struct {
	*fixture
	rt      *rapid.T
	worker  string
	workers int
	reloads int
	// proofs are the verdicts on each class, oldest first.
	proofs map[string][]lanegate.Proof
	runs   []string
	// licences say what each class outside serial was proven when it was promoted.
	licences map[string]licence
	gateTrials
	seen map[string]int // how often what the test is about came about
}

type licence struct {
	fingerprint string
	copies      int
}

var (
	gateClasses = []string{"a", "b", "c"}
	gateLanes   = []string{parallel, "long"}
	gateSpecs   = []lanegate.ClassSpec{repeatable("db", 2), repeatable("db", 2), repeatable("db", 2), repeatable("db", 1), repeatable("db", 20), repeatable()}
	// gateMustSee is what has to come about.
	gateMustSee = []string{
		"promotion", "promotion by an experiment", "start outside serial", "start for an experiment from the queue",
		"passed", "failed", "inconclusive", "aborted", "lost", "runs left over",
	}
)

// repeatable is execSpec of a class that may be tried with made-up payloads.
func repeatable(units ...any) lanegate.ClassSpec {
	yes, s := true, execSpec(units...)
	s.Repeatable = &yes
	return s
}

func newGateWorld(t *testing.T, rt *rapid.T) *gateWorld {
	w := &gateWorld{fixture: newFixture(t), rt: rt, proofs: map[string][]lanegate.Proof{}, licences: map[string]licence{}, seen: map[string]int{}}
	w.gateTrials = gateTrials{trials: map[string]*gateTrial{}, started: map[string]start{}, checker: &fakeChecker{ending: good}}
	w.mustResource("db", 12, true)
	w.mustLane(lane("long", 1))
	for _, c := range gateClasses {
		w.mustPut(c, gateSpecs[0])
	}
	w.restart(rt)
	return w
}

// class draws one that exists, if any does.
func (w *gateWorld) class(rt *rapid.T) lanegate.Class {
	classes := w.config().Classes
	if len(classes) == 0 {
		rt.Skip("no classes")
	}
	return rapid.SampledFrom(classes).Draw(rt, "class")
}

// proven is the model of lanegate.Proven.
func (w *gateWorld) proven(c lanegate.Class) (latest lanegate.Proof, copies int) {
	for _, p := range slices.Backward(w.proofs[c.ID]) {
		if p.Fingerprint != c.Fingerprint {
			continue
		}
		if latest.Verification == "" {
			latest = p
		}
		if p.Verdict == lanegate.VerdictFailed {
			break
		}
		copies = max(copies, p.Copies)
	}
	return latest, copies
}

// may says whether the class may be promoted so, by the model.
func (w *gateWorld) may(c lanegate.Class, o service.PromoteOptions) (ok, changed bool, copies int) {
	base, copies := w.proven(c)
	limit := o.MaxInFlight
	if limit == 0 {
		limit = copies
	}
	if c.Lane == o.Lane && c.MaxInFlight == limit {
		return true, false, copies
	}
	if o.Verification != "" {
		voided := true
		for _, p := range w.proofs[c.ID] {
			switch {
			case p.Verification == o.Verification:
				base, voided = p, p.Verdict != lanegate.VerdictPassed || p.Fingerprint != c.Fingerprint
			case p.Fingerprint == c.Fingerprint && p.Verdict == lanegate.VerdictFailed:
				voided = true // those that follow the one named
			}
		}
		if voided {
			return false, true, copies
		}
	}
	fresh := w.clock.Now().Sub(base.EndedAt) <= lanegate.ProofAge || c.Lane == o.Lane && limit <= c.MaxInFlight
	ok = base.Verdict == lanegate.VerdictPassed && fresh && limit >= 1 && limit <= copies && c.Units != nil && c.Units["db"] <= 12
	return ok, true, copies
}

func (w *gateWorld) promote(rt *rapid.T) {
	o := service.PromoteOptions{ChangeOptions: acceptWidth, Lane: rapid.SampledFrom(gateLanes).Draw(rt, "lane")}
	o.DryRun = rapid.IntRange(0, 5).Draw(rt, "dry") == 0
	o.MaxInFlight = rapid.IntRange(0, 3).Draw(rt, "max_in_flight")
	if len(w.runs) > 0 && rapid.Bool().Draw(rt, "named") {
		o.Verification = rapid.SampledFrom(w.runs).Draw(rt, "run")
	}
	w.promoteTo(rt, rapid.SliceOfNDistinct(rapid.SampledFrom(gateClasses), 1, 2, rapid.ID).Draw(rt, "classes"), o)
}

// promoteTo asks for a promotion, and wants the answer that the model gives.
func (w *gateWorld) promoteTo(rt *rapid.T, ids []string, o service.PromoteOptions) {
	want, anything := true, false
	granted := map[string]licence{}
	for _, id := range ids {
		c, err := w.svc.Class(w.t.Context(), id)
		if err != nil {
			want = false
			continue
		}
		ok, changed, copies := w.may(c, o)
		want, anything = want && ok, anything || changed
		if changed {
			granted[id] = licence{c.Fingerprint, copies}
		}
	}
	p, err := w.svc.Promote(w.t.Context(), ids, o)
	switch {
	case want != (err == nil):
		rt.Fatalf("promote %v with %+v: %v; by the model it may pass: %v", ids, o, err, want)
	case err != nil && !errors.Is(err, lanegate.ErrPromotionRefused) && !errors.Is(err, lanegate.ErrClassNotFound):
		rt.Fatalf("promote: %v", err)
	case err == nil && p.Changed != anything:
		rt.Fatalf("changed: %v, by the model %v", p.Changed, anything)
	case err == nil && !o.DryRun:
		maps.Copy(w.licences, granted)
		w.seen["promotion"] += len(granted)
		for id := range granted {
			if latest, _ := w.proven(w.mustClass(id)); w.trials[cmp.Or(o.Verification, latest.Verification)] != nil {
				w.seen["promotion by an experiment"]++
			}
		}
	}
}

func (w *gateWorld) demote(rt *rapid.T) {
	c := w.class(rt)
	w.mustDemote(c.ID)
	delete(w.licences, c.ID)
}

func (w *gateWorld) edit(rt *rapid.T) {
	id := rapid.SampledFrom(gateClasses).Draw(rt, "class")
	o := acceptWidth
	o.Demote, o.DryRun = rapid.Bool().Draw(rt, "demote"), rapid.IntRange(0, 5).Draw(rt, "dry") == 0
	_, _, err := w.svc.PutClass(w.t.Context(), id, rapid.SampledFrom(gateSpecs).Draw(rt, "spec"), o)
	if err != nil && !errors.Is(err, lanegate.ErrWouldDemote) && !errors.Is(err, lanegate.ErrManagedByFile) {
		rt.Fatalf("edit: %v", err)
	}
	w.dropLicences()
}

func (w *gateWorld) reload(rt *rapid.T) {
	w.reloads++
	file := service.FileConfig{Hash: fmt.Sprint(w.reloads), Classes: map[string]lanegate.ClassSpec{}}
	if rapid.Bool().Draw(rt, "declared") {
		file.Classes[rapid.SampledFrom(gateClasses).Draw(rt, "class")] = rapid.SampledFrom(gateSpecs).Draw(rt, "spec")
	}
	_, err := w.svc.SyncFile(w.t.Context(), file)
	w.must(err)
	w.dropLicences()
}

func (w *gateWorld) command(rt *rapid.T) {
	w.commands.set("cmd", rapid.SampledFrom([]string{"d1", "d1", "d1", "d2"}).Draw(rt, "digest"))
	w.must(w.svc.SyncCommands(w.t.Context()))
	w.restart(rt)
	w.dropLicences()
}

// dropLicences takes the licence of each class that is not what it was given for,
// whatever the gateway thinks of it.
func (w *gateWorld) dropLicences() {
	for _, id := range gateClasses {
		if c, err := w.svc.Class(w.t.Context(), id); err != nil || c.Fingerprint != w.licences[id].fingerprint {
			delete(w.licences, id)
		}
	}
}

func (w *gateWorld) verdict(rt *rapid.T) {
	verdict := rapid.SampledFrom([]lanegate.Verdict{lanegate.VerdictPassed, lanegate.VerdictPassed, lanegate.VerdictFailed, lanegate.VerdictInconclusive}).Draw(rt, "verdict")
	copies := map[string]int{}
	for _, c := range w.config().Classes {
		if n := rapid.IntRange(0, 3).Draw(rt, "copies"); n > 0 {
			copies[c.ID] = n
		}
	}
	if len(copies) == 0 {
		return
	}
	run := w.trial(verdict, copies)
	w.runs = append(w.runs, run)
	if verdict == lanegate.VerdictInconclusive {
		return
	}
	for id, n := range copies {
		w.proofs[id] = append(w.proofs[id], lanegate.Proof{
			Verification: run, Class: id, Fingerprint: w.mustClass(id).Fingerprint, Verdict: verdict, Copies: n, EndedAt: w.clock.Now(),
		})
		if verdict == lanegate.VerdictFailed {
			delete(w.licences, id)
		}
	}
}

func (w *gateWorld) passTime(rt *rapid.T) {
	w.clock.advance(rapid.SampledFrom([]time.Duration{time.Second, time.Hour, time.Hour, 45 * 24 * time.Hour, 91 * 24 * time.Hour}).Draw(rt, "time"))
}

func (w *gateWorld) submit(rt *rapid.T) { w.mustSubmit(w.class(rt).ID) }

func (w *gateWorld) remove(rt *rapid.T) {
	id := rapid.SampledFrom(gateClasses).Draw(rt, "class")
	if err := w.svc.DeleteClass(w.t.Context(), id, acceptWidth); err == nil {
		delete(w.licences, id)
	}
}

// check holds after every step: who is outside serial has a licence for what it
// is, and for as many at once.
func (w *gateWorld) check(rt *rapid.T) {
	w.learn(rt)
	for _, c := range w.config().Classes {
		l, ok := w.licences[c.ID]
		switch {
		case c.Lane == lanegate.LaneSerial && c.MaxInFlight != 1:
			rt.Fatalf("%s is in serial with max_in_flight %d", c.ID, c.MaxInFlight)
		case c.Lane == lanegate.LaneSerial:
			delete(w.licences, c.ID) // it takes another promotion to leave again
		case !ok || l.fingerprint != c.Fingerprint || c.MaxInFlight > l.copies:
			rt.Fatalf("%s is in lane %s with max_in_flight %d at fingerprint %s; it has %+v", c.ID, c.Lane, c.MaxInFlight, c.Fingerprint, l)
		}
	}
}

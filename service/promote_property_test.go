package service_test

import (
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
// reloads, command changes, verdicts, months that pass and runs on the real store
// are compared with a model that knows only who was proven what: no attempt starts
// outside serial without a valid proof of the class as it is, never more at once
// than proven copies, a later failed run closes the gate, and whoever has the proof
// gets through.
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
	promotions, starts := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := newGateWorld(t, rt)
		actions := map[string]func(*rapid.T){
			"": w.check, "promote": w.promote, "demote": w.demote, "edit": w.edit, "reload": w.reload, "command": w.command,
			"verdict": w.verdict, "time": w.passTime, "submit": w.submit, "admit": w.admit, "end": w.end, "delete": w.remove, "restart": w.restart,
		}
		// What leads somewhere more often than what leads back.
		for _, twice := range []string{"promote", "verdict", "submit", "admit", "end"} {
			actions[twice+" again"], actions[twice+" once more"] = actions[twice], actions[twice]
		}
		rt.Repeat(actions)
		promotions, starts = promotions+w.promotions, starts+w.starts
	})
	if t.Logf("%d promotions, %d starts outside serial", promotions, starts); promotions == 0 || starts == 0 {
		t.Error("nothing was ever promoted, or nothing started: the test shows nothing")
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
	licences   map[string]licence
	promotions int
	starts     int // outside serial
}

type licence struct {
	fingerprint string
	copies      int
}

var (
	gateClasses = []string{"a", "b", "c"}
	gateLanes   = []string{parallel, "long"}
	gateSpecs   = []lanegate.ClassSpec{execSpec("db", 2), execSpec("db", 2), execSpec("db", 2), execSpec("db", 1), execSpec("db", 20), execSpec()}
)

func newGateWorld(t *testing.T, rt *rapid.T) *gateWorld {
	w := &gateWorld{fixture: newFixture(t), rt: rt, proofs: map[string][]lanegate.Proof{}, licences: map[string]licence{}}
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
	want, anything := true, false
	granted := map[string]licence{}
	ids := rapid.SliceOfNDistinct(rapid.SampledFrom(gateClasses), 1, 2, rapid.ID).Draw(rt, "classes")
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
		w.promotions += len(granted)
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

func (w *gateWorld) admit(rt *rapid.T) {
	grants := w.mustAdmit(w.worker, 8).Grants
	in, err := w.store.Snapshot(w.t.Context())
	w.must(err)
	serial, of := 0, map[string]int{}
	for _, r := range in.InFlight {
		if r.Lane == lanegate.LaneSerial {
			serial++
		}
		of[r.Class]++
	}
	if serial > 1 {
		rt.Fatalf("%d runs in serial", serial)
	}
	for _, g := range grants {
		if g.Attempt.Lane == lanegate.LaneSerial {
			continue
		}
		l, ok := w.licences[g.Job.Class]
		if !ok || l.fingerprint != g.Attempt.Fingerprint {
			rt.Fatalf("class %s started in lane %s at fingerprint %s; it has %+v", g.Job.Class, g.Attempt.Lane, g.Attempt.Fingerprint, l)
		}
		if n := of[g.Job.Class]; n > l.copies {
			rt.Fatalf("a start made it %d runs of %s at once, %d copies are proven", n, g.Job.Class, l.copies)
		}
		w.starts++
	}
}

func (w *gateWorld) end(rt *rapid.T) {
	held := w.mustHeld(w.worker)
	if len(held) == 0 {
		return
	}
	h := rapid.SampledFrom(held).Draw(rt, "attempt")
	ending := rapid.SampledFrom([]lanegate.Ending{
		{Outcome: lanegate.Succeeded}, {Outcome: lanegate.Succeeded}, {Outcome: lanegate.Failed}, deadlocked(lanegate.Failed), measuring(4),
	}).Draw(rt, "ending")
	ended := w.mustEnd(h.Fence, ending)
	w.mustJudge()
	class, err := w.svc.Class(w.t.Context(), ended.Attempt.Class)
	evidence := ended.Attempt.Lane != lanegate.LaneSerial && (ending.Output.Head != "" || ending.Measured["db"] > ended.Attempt.Units["db"])
	if err == nil && evidence && class.Fingerprint == ended.Attempt.Fingerprint {
		if class.Lane != lanegate.LaneSerial {
			rt.Fatalf("class %s stayed in lane %s after %+v", class.ID, class.Lane, ending)
		}
		delete(w.licences, class.ID)
	}
}

func (w *gateWorld) remove(rt *rapid.T) {
	id := rapid.SampledFrom(gateClasses).Draw(rt, "class")
	if err := w.svc.DeleteClass(w.t.Context(), id, acceptWidth); err == nil {
		delete(w.licences, id)
	}
}

// restart is a new process on the same database.
func (w *gateWorld) restart(*rapid.T) {
	if w.worker != "" {
		w.must(w.svc.LeaveWorker(w.t.Context(), w.worker))
	}
	w.svc = service.New(service.Options{Store: w.store, Doorbell: w.bell, Commands: w.commands, Log: discard()})
	w.workers++
	w.worker = fmt.Sprintf("w%d", w.workers)
	w.mustWorker(w.worker, 8)
}

// check holds after every step: who is outside serial has a licence for what it
// is, and for as many at once.
func (w *gateWorld) check(rt *rapid.T) {
	for _, c := range w.config().Classes {
		l, ok := w.licences[c.ID]
		switch {
		case c.Lane == lanegate.LaneSerial && c.MaxInFlight != 1:
			rt.Fatalf("%s is in serial with max_in_flight %d", c.ID, c.MaxInFlight)
		case c.Lane == lanegate.LaneSerial:
		case !ok || l.fingerprint != c.Fingerprint || c.MaxInFlight > l.copies:
			rt.Fatalf("%s is in lane %s with max_in_flight %d at fingerprint %s; it has %+v", c.ID, c.Lane, c.MaxInFlight, c.Fingerprint, l)
		}
	}
}

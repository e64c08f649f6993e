package service_test

import (
	"cmp"
	"maps"
	"slices"

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

package admission

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// live runs a world for some steps and checks after each that nothing idles
// that could run, and that everything that waits says why.
func live(t failer, w *world, steps int) {
	t.Helper()
	for range steps {
		w.act()
		w.settle(t)
		checkNothingIdles(t, w)
	}
}

// checkNothingIdles: once no worker gets anything any more, planning for all of
// them together finds nothing to start either.
func checkNothingIdles(t failer, w *world) {
	t.Helper()
	in := w.input("")
	clone := cloneInput(in)
	d := Plan(in)
	checkUntouched(t, clone, in)
	checkDecision(t, in, d)
	if steps(d) > 0 {
		t.Fatalf("%v and %+v could start, and nobody starts it", starts(d), d.Trial)
	}
}

// TestInvariantHoldsInAnyWorld: whatever people, jobs and workers do, no start
// exceeds a limit, order holds, nothing idles, every wait has true reasons (the
// oracle's), and once nothing stands in the way for good, all that fits ends.
func TestInvariantHoldsInAnyWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapidPicker{t})
		live(t, w, 30)
		w.heal()
		for range 4 * (len(w.queued) + len(w.running)) {
			w.now = w.now.Add(15 * time.Minute)
			w.running = nil // every run ends well
			w.settle(t)
		}
		checkNothingIdles(t, w)
		d := Plan(w.input(""))
		for _, wait := range d.Waits {
			if wait.Reasons[0].Code != OverCapacity {
				t.Fatalf("%s never starts: %v", wait.Job, waits(d))
			}
		}
	})
}

// FuzzPlan lets a fuzzer choose what happens in a world.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a quiet night: three classes, one worker, nothing in parallel"))
	f.Add([]byte{2, 0, 1, 1, 2, 1, 0, 3, 1, 1, 2, 14, 0, 8, 0, 5, 1, 2, 9, 9, 9, 3, 2, 1, 0, 4, 4, 4, 250, 3, 7, 19, 11, 6, 0, 2})
	f.Fuzz(func(t *testing.T, choices []byte) {
		p := &bytePicker{choices}
		w := newWorld(p)
		for steps := 0; len(p.bytes) > 0 && steps < 40; steps++ {
			live(t, w, 1)
		}
	})
}

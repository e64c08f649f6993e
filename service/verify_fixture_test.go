package service_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// fakeChecker answers every check alike, and remembers what it was asked.
type fakeChecker struct {
	mu     sync.Mutex
	ending lanegate.Ending
	asked  []string
	// hang makes a check wait until it is cancelled.
	hang bool
}

func (c *fakeChecker) Check(ctx context.Context, _ lanegate.Verification, _ int, _ lanegate.Run, payload []byte) lanegate.Ending {
	c.mu.Lock()
	c.asked = append(c.asked, string(payload))
	ending, hang := c.ending, c.hang
	c.mu.Unlock()
	if hang {
		<-ctx.Done()
		return lanegate.Ending{Outcome: lanegate.Interrupted}
	}
	return ending
}

func (c *fakeChecker) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asked)
}

// trial is a fixture with classes a and b (5 of db each, 15 there are), each with
// five good runs of a minute, and one worker.
type trial struct {
	*fixture
	checker *fakeChecker
	coord   *service.Coordinator
	fences  map[string][]lanegate.Fence // in flight, by class
}

const usual = time.Minute

func newTrial(t testing.TB, edits ...func(*setup)) *trial {
	t.Helper()
	f := &trial{
		fixture: newFixture(t, edits...), fences: map[string][]lanegate.Fence{},
		checker: &fakeChecker{ending: lanegate.Ending{Outcome: lanegate.Succeeded}},
	}
	f.mustResource("db", 15, true)
	f.mustWorker("w", 4)
	yes := true
	for _, id := range []string{"a", "b"} {
		spec := execSpec("db", 5)
		spec.Repeatable = &yes
		f.mustPut(id, spec)
		f.history(id, lanegate.BaselineRuns)
	}
	f.restart()
	return f
}

// history gives a class so many good runs.
func (f *trial) history(class string, runs int) {
	f.t.Helper()
	for range runs {
		f.mustSubmit(class)
		grants := f.mustAdmit("w", 4).Grants
		if len(grants) != 1 {
			f.t.Fatalf("%d grants, want 1", len(grants))
		}
		f.clock.advance(usual)
		f.mustEnd(grants[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: usual})
	}
}

// restart forgets everything that a coordinator has in memory.
func (f *trial) restart() { f.coord = service.NewCoordinator(f.svc, "w", f.checker) }

func (f *trial) look() {
	f.t.Helper()
	f.must(f.coord.Look(f.t.Context()))
}

// pairSpec asks for a, two copies, and b, from the queue.
func pairSpec(edits ...func(*lanegate.VerificationSpec)) lanegate.VerificationSpec {
	spec := lanegate.VerificationSpec{
		Members:    []lanegate.VerificationMember{{Class: "a", Copies: 2}, {Class: "b", Copies: 1}},
		HoldSerial: true, Reason: "try",
	}
	for _, edit := range edits {
		edit(&spec)
	}
	return spec
}

// fromPayloads is the other source, with one round.
func fromPayloads(s *lanegate.VerificationSpec) {
	s.Source, s.Rounds = lanegate.SourcePayloads, 1
}

func withCheck(s *lanegate.VerificationSpec) {
	s.Check = &lanegate.Run{Kind: lanegate.RunExec, Command: "cmd"}
}

func (f *trial) mustCreate(spec lanegate.VerificationSpec) string {
	f.t.Helper()
	v, err := f.svc.CreateVerification(f.t.Context(), spec, service.VerifyOptions{Actor: "ann"})
	f.must(err)
	return v.ID
}

func (f *trial) get(id string) lanegate.Verification {
	f.t.Helper()
	v, err := f.svc.Verification(f.t.Context(), id)
	f.must(err)
	return v
}

// admit asks for work and remembers what started for the trial, by class.
func (f *trial) admit() int {
	f.t.Helper()
	n := 0
	for _, g := range f.mustAdmit("w", 4).Grants {
		if g.Attempt.Verification != "" {
			f.fences[g.Job.Class] = append(f.fences[g.Job.Class], g.Attempt.Fence())
			n++
		}
	}
	return n
}

// mustRound starts the next round, with so many runs.
func (f *trial) mustRound(runs int) {
	f.t.Helper()
	if n := f.admit(); n != runs {
		in, err := f.store.Snapshot(f.t.Context())
		f.t.Fatalf("%d runs started, want %d; trial %+v, due %v, %v", n, runs, in.Trial, in.Due, err)
	}
}

// end ends all runs of a class.
func (f *trial) end(class string, e lanegate.Ending) {
	f.t.Helper()
	for _, fence := range f.fences[class] {
		f.mustEnd(fence, e)
	}
	delete(f.fences, class)
}

var good = lanegate.Ending{Outcome: lanegate.Succeeded, Duration: usual}

// endRound ends everything after the usual time; the classes in endings so.
func (f *trial) endRound(endings map[string]lanegate.Ending) {
	f.t.Helper()
	f.clock.advance(usual)
	for _, class := range slices.Sorted(maps.Keys(f.fences)) {
		e, ok := endings[class]
		if !ok {
			e = good
		}
		f.end(class, e)
	}
}

// submitPair makes the jobs due that one round of pairSpec takes.
func (f *trial) submitPair() {
	f.mustSubmit("a")
	f.mustSubmit("a")
	f.mustSubmit("b")
}

func (f *trial) wantVerdict(id string, verdict lanegate.Verdict, codes ...string) lanegate.Verification {
	f.t.Helper()
	v := f.get(id)
	var got []string
	for _, r := range v.Reasons {
		if !slices.Contains(got, r.Code) {
			got = append(got, r.Code)
		}
	}
	if v.State != lanegate.VerificationDone || v.Verdict != verdict || !slices.Equal(got, codes) {
		f.t.Fatalf("state %s, verdict %q, reasons %+v; want %s for %v", v.State, v.Verdict, v.Reasons, verdict, codes)
	}
	if v.EndedAt == nil || len(v.Evidence.NotChecked) == 0 {
		f.t.Errorf("ended %v, not checked %q", v.EndedAt, v.Evidence.NotChecked)
	}
	f.wantNoHold()
	return v
}

func (f *trial) wantNoHold() {
	f.t.Helper()
	l, err := f.svc.Lane(f.t.Context(), lanegate.LaneSerial)
	f.must(err)
	if l.Hold != "" {
		f.t.Errorf("serial is still held by %s", l.Hold)
	}
}

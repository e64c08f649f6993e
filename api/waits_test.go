package api

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

func TestWaitingOnFullWorkers(t *testing.T) {
	g := newGateway(t)
	g.class("a", promoted(1, lanegate.Units{}))
	g.class("b", promoted(1, lanegate.Units{}))
	g.must(g.svc.RegisterWorker(t.Context(), service.WorkerInfo{ID: "small", Host: "h", PID: 1, Slots: 1, Commands: map[string]string{"true": "digest-of-true"}}))
	_, err := g.svc.PutLane(t.Context(), lanegate.Lane{Name: lanegate.LaneParallel, WidthSetting: 2, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackSerial, AllowOvercommit: true}, service.ChangeOptions{AcceptWidth: true})
	g.must(err)
	running := g.submit(`{"class":"a"}`)
	if n := len(g.admit("small")); n != 1 {
		t.Fatalf("%d started, want 1", n)
	}
	waiting := g.job(g.submit(`{"class":"b"}`).ID)
	if waiting.reasons() != "worker_full" || !cmp.Equal(waiting.WaitingOn[0].Jobs, []string{running.ID}) {
		t.Errorf("waits on %+v, want worker_full because of %s", waiting.WaitingOn, running.ID)
	}
}

// A verification run that holds the serial slot, or runs a class's jobs, is named
// with the jobs that it runs.
func TestWaitingOnVerification(t *testing.T) {
	const run = "0193a0c0-0000-7000-8000-00000000000f"
	var experiment *admission.Running
	g := newGateway(t, func(s *setup) {
		s.wrap = func(st service.Store) service.Store { return &verifying{Store: st, run: run, attempt: &experiment} }
	})
	g.class("a")
	g.class("b")
	g.class("fast", promoted(1, lanegate.Units{}))
	g.worker()
	serial, fast := g.submit(`{"class":"b"}`), g.submit(`{"class":"fast"}`)
	experiment = &admission.Running{Job: lanegateID(7), Class: "fast", Lane: lanegate.LaneParallel, Units: lanegate.Units{}, Worker: "elsewhere", Verification: run, StartedAt: time.Now()}
	for name, j := range map[string]job{"serial is held": serial, "its class is tried": fast} {
		got := g.job(j.ID)
		if got.reasons() != "verification:"+run || !cmp.Equal(got.WaitingOn[0].Jobs, []string{experiment.Job}) {
			t.Errorf("%s: waits on %+v, want verification:%s because of %s", name, got.WaitingOn, run, experiment.Job)
		}
	}
	for _, j := range into[struct{ Items []job }](g.do("GET", "/jobs?state=queued", "").want(200)).Items {
		if j.reasons() != "verification:"+run {
			t.Errorf("the list says %+v of %s", j.WaitingOn, j.Class)
		}
	}
}

// verifying is a store in which a verification run holds serial, while it has an attempt.
type verifying struct {
	service.Store
	run     string
	attempt **admission.Running
}

func (s *verifying) Snapshot(ctx context.Context) (admission.Input, error) {
	in, err := s.Store.Snapshot(ctx)
	if a := *s.attempt; a != nil {
		in.Hold, in.InFlight = s.run, append(in.InFlight, *a)
		in.Trial = &admission.Trial{ID: s.run, Members: []string{a.Class}, Owner: a.Worker, WantsHold: true}
		in.Workers = append(in.Workers, admission.Worker{ID: a.Worker, Commands: map[string]string{"true": "digest-of-true"}})
	}
	return in, err
}

package service_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// agentStore has one agent and never any work for it; jobs that it can't run become due.
type agentStore struct {
	service.Store
	due           []time.Duration // what the admissions answer, then negative
	looks, admits int
}

func (*agentStore) LiveWorkers(context.Context) ([]service.WorkerInfo, error) {
	return []service.WorkerInfo{{ID: "a", Agent: "token", Slots: 1}}, nil
}
func (*agentStore) Beat(context.Context, string) ([]service.Held, error) { return nil, nil }
func (*agentStore) Config(context.Context) (service.Config, error)       { return service.Config{}, nil }
func (s *agentStore) Snapshot(context.Context) (admission.Input, error) {
	s.looks++
	return admission.Input{}, nil
}

func (s *agentStore) Admit(context.Context, service.Ask) (service.Admitted, error) {
	s.admits++
	res := service.Admitted{NextDue: -1}
	if len(s.due) > 0 {
		res.NextDue, s.due = s.due[0], s.due[1:]
	}
	return res, nil
}

// A question that waits asks the database when a job becomes due, and spaces that,
// whatever the answers are.
func TestWaitingAgentSpacesItsLooks(t *testing.T) {
	for name, c := range map[string]struct {
		due           []time.Duration
		looks, admits int
	}{
		"nothing becomes due":         {nil, 2, 1}, // a look after 15 s, and one at the end
		"due soon, for others":        {[]time.Duration{5 * time.Millisecond}, 2, 2},
		"due in a while":              {[]time.Duration{10 * time.Second}, 1, 2},
		"due one after the other":     {[]time.Duration{time.Second, time.Second, time.Second}, 2, 4},
		"more are due than it noted":  {make([]time.Duration, 1000), 0, 201},
		"due long after the deadline": {[]time.Duration{time.Hour}, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &agentStore{due: c.due}
				svc := service.New(service.Options{Store: s, Doorbell: newBell(), Commands: &fakeCommands{}, Log: slog.New(slog.DiscardHandler), Metrics: service.NewMetrics()})
				began := time.Now()
				out, err := svc.Grants(t.Context(), service.AgentAsk{
					Worker: service.WorkerInfo{ID: "a", Agent: "token", Slots: 1}, Free: 1, SerialFree: true, Wait: 20 * time.Second,
				})
				if err != nil || len(out.Grants) > 0 {
					t.Fatalf("%+v, %v", out, err)
				}
				if waited := time.Since(began); waited != 20*time.Second {
					t.Errorf("waited %v", waited)
				}
				// The last look is at the deadline.
				if s.admits != c.admits || s.looks != c.looks {
					t.Errorf("%d admissions and %d looks, want %d and %d", s.admits, s.looks, c.admits, c.looks)
				}
			})
		})
	}
}

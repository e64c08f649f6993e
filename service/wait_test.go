package service_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// memStore holds one job in memory, as far as waiting for it needs.
type memStore struct {
	service.Store
	mu    sync.Mutex
	state lanegate.State
	looks int
	// repeated: EndAttempt finds the outcome recorded already.
	repeated bool
}

const theJob = "0193a0c0-0000-7000-8000-000000000001"

// Verifications implements service.Store; there is none.
func (*memStore) Verifications(context.Context, service.VerificationFilter) ([]lanegate.Verification, error) {
	return nil, nil
}

// Attempts implements service.Store; none is kept.
func (*memStore) Attempts(context.Context, string) ([]lanegate.Attempt, error) { return nil, nil }

// Look implements service.Store; one job needs no transaction.
func (*memStore) Look(ctx context.Context, fn func(ctx context.Context) error) error { return fn(ctx) }

func (s *memStore) end(state lanegate.State) lanegate.Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	return lanegate.Job{ID: theJob, Class: "c", State: state}
}

func (s *memStore) Job(_ context.Context, id string) (service.JobDetail, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	if id != theJob {
		return service.JobDetail{}, lanegate.ErrJobNotFound
	}
	return service.JobDetail{Job: lanegate.Job{ID: id, Class: "c", State: s.state}}, nil
}

func (s *memStore) Snapshot(context.Context) (admission.Input, error) { return admission.Input{}, nil }

func (s *memStore) Config(context.Context) (service.Config, error) { return service.Config{}, nil }

func (s *memStore) ended(o lanegate.Outcome, state lanegate.State) service.Ended {
	return service.Ended{Attempt: lanegate.Attempt{Job: theJob, Class: "c", Lane: "serial", Number: 1, Outcome: o}, Job: s.end(state)}
}

func (s *memStore) EndAttempt(context.Context, lanegate.Fence, lanegate.Ending) (service.Ended, error) {
	ended := s.ended(lanegate.Succeeded, lanegate.StateSucceeded)
	ended.Repeated = s.repeated
	return ended, nil
}

func (s *memStore) LeaveWorker(context.Context, string) ([]service.Ended, error) {
	return []service.Ended{s.ended(lanegate.Lost, lanegate.StateFailed)}, nil
}

func (s *memStore) ReapWorker(context.Context, string, int64) ([]service.Ended, error) {
	return []service.Ended{s.ended(lanegate.Lost, lanegate.StateFailed)}, nil
}

func (s *memStore) ReapOrphans(context.Context) ([]service.Ended, error) {
	return []service.Ended{s.ended(lanegate.Lost, lanegate.StateFailed)}, nil
}

func (s *memStore) ReapDetached(context.Context, time.Duration) ([]service.Ended, error) {
	return nil, nil
}

func (s *memStore) Cancel(context.Context, string, string) (lanegate.Job, error) {
	return s.end(lanegate.StateCancelled), nil
}

func (s *memStore) Admit(context.Context, service.Ask) (service.Admitted, error) {
	return service.Admitted{Skipped: []string{s.end(lanegate.StateSkipped).ID}}, nil
}

func (s *memStore) Submit(_ context.Context, n service.NewJob) (service.Submitted, error) {
	return service.Submitted{Job: lanegate.Job{ID: n.ID, Class: n.Class, State: lanegate.StateQueued}, Coalesced: s.end(lanegate.StateSkipped).ID}, nil
}

func newWaiting(state lanegate.State) (*service.Service, *memStore) {
	s := &memStore{state: state}
	return service.New(service.Options{
		Store: s, Doorbell: newBell(), Commands: &fakeCommands{}, Log: slog.New(slog.DiscardHandler),
	}), s
}

// However a job ends in this process, who waits for it hears at once; what
// another process ended is seen by the next look.
func TestWaitReturnsWhenTheJobEnds(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name string
		end  func(svc *service.Service, s *memStore) error
		want lanegate.State
		took time.Duration
	}{
		{"its attempt ends", func(svc *service.Service, _ *memStore) error {
			_, err := svc.EndAttempt(ctx, lanegate.Fence{}, lanegate.Ending{})
			return err
		}, lanegate.StateSucceeded, 2500 * time.Millisecond},
		{"its outcome is written again, as the first commit was not confirmed", func(svc *service.Service, s *memStore) error {
			s.repeated = true
			_, err := svc.EndAttempt(ctx, lanegate.Fence{}, lanegate.Ending{})
			return err
		}, lanegate.StateSucceeded, 2500 * time.Millisecond},
		{"it is cancelled", func(svc *service.Service, _ *memStore) error {
			_, err := svc.Cancel(ctx, theJob, "ann")
			return err
		}, lanegate.StateCancelled, 2500 * time.Millisecond},
		{"it is coalesced", func(svc *service.Service, _ *memStore) error {
			_, err := svc.Submit(ctx, "cron", service.Submission{Class: "c"})
			return err
		}, lanegate.StateSkipped, 2500 * time.Millisecond},
		{"it is skipped as it becomes due", func(svc *service.Service, _ *memStore) error {
			_, err := svc.Admit(ctx, service.Ask{})
			return err
		}, lanegate.StateSkipped, 2500 * time.Millisecond},
		{"its worker leaves", func(svc *service.Service, _ *memStore) error {
			return svc.LeaveWorker(ctx, "w")
		}, lanegate.StateFailed, 2500 * time.Millisecond},
		{"its worker is declared dead", func(svc *service.Service, _ *memStore) error {
			return svc.ReapWorker(ctx, "w", 1)
		}, lanegate.StateFailed, 2500 * time.Millisecond},
		{"it is an orphan", func(svc *service.Service, _ *memStore) error {
			return svc.ReapOrphans(ctx)
		}, lanegate.StateFailed, 2500 * time.Millisecond},
		{"another process ends it", func(_ *service.Service, s *memStore) error {
			s.end(lanegate.StateSucceeded)
			return nil
		}, lanegate.StateSucceeded, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc, s := newWaiting(lanegate.StateRunning)
				time.AfterFunc(2500*time.Millisecond, func() {
					if err := tt.end(svc, s); err != nil {
						t.Error(err)
					}
				})
				start := time.Now()
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						view, err := svc.Wait(t.Context(), theJob, time.Minute)
						if took := time.Since(start); err != nil || view.State != tt.want || took != tt.took {
							t.Errorf("%s, %v after %v, want %s after %v", view.State, err, took, tt.want, tt.took)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

func TestWaitEndsWithoutTheJob(t *testing.T) {
	t.Run("timeout", func(t *testing.T) {
		for _, timeout := range []time.Duration{0, 2500 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				svc, s := newWaiting(lanegate.StateQueued)
				start := time.Now()
				view, err := svc.Wait(t.Context(), theJob, timeout)
				if took := time.Since(start); err != nil || view.State != lanegate.StateQueued || view.Waiting == nil || took != timeout {
					t.Errorf("%+v, %v after %v", view, err, took)
				}
				if s.looks > 4 {
					t.Errorf("looked %d times within %v", s.looks, timeout)
				}
			})
		}
	})
	t.Run("the caller goes away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			svc, _ := newWaiting(lanegate.StateRunning)
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := svc.Wait(ctx, theJob, time.Minute)
			if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 2500*time.Millisecond {
				t.Errorf("%v after %v", err, took)
			}
		})
	})
	t.Run("no such job", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			svc, _ := newWaiting(lanegate.StateRunning)
			_, err := svc.Wait(t.Context(), "another", time.Minute)
			wantError(t, err, lanegate.ErrJobNotFound)
		})
	})
	t.Run("it has ended long ago", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			svc, _ := newWaiting(lanegate.StateFailed)
			start := time.Now()
			view, err := svc.Wait(t.Context(), theJob, time.Minute)
			if err != nil || view.State != lanegate.StateFailed || time.Since(start) != 0 {
				t.Errorf("%s, %v after %v", view.State, err, time.Since(start))
			}
		})
	})
}

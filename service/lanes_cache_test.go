package service_test

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// slowConfig accepts jobs of the lane parallel at once, and takes a while to tell the
// lanes, of which that is available or not.
type slowConfig struct {
	service.Store
	takes     time.Duration
	asked     atomic.Int64
	available atomic.Bool
}

func (s *slowConfig) Submit(_ context.Context, job service.NewJob) (service.Submitted, error) {
	return service.Submitted{Job: lanegate.Job{ID: job.ID, Class: job.Class, State: lanegate.StateQueued}, Lane: lanegate.LaneParallel}, nil
}

func (s *slowConfig) Config(context.Context) (service.Config, error) {
	s.asked.Add(1)
	<-time.After(s.takes)
	serial, parallel := lane(lanegate.LaneSerial, 1), lane(lanegate.LaneParallel, 2)
	parallel.Available = s.available.Load()
	return service.Config{Lanes: []lanegate.Lane{serial, parallel}}, nil
}

// A job that comes after a while in which none came is rung for at once and answered:
// nothing is read before. Who stands in for its lane is found out beside it.
func TestSubmissionsDontWaitForLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, bell := &slowConfig{takes: 50 * time.Millisecond}, newBell()
		store.available.Store(true)
		svc := service.New(service.Options{Store: store, Doorbell: bell, Commands: &fakeCommands{}, Log: slog.New(slog.DiscardHandler)})
		defer func() {
			if err := svc.Close(); err != nil {
				t.Error(err)
			}
		}()
		submit := func() (took time.Duration) {
			began := time.Now()
			if _, err := svc.Submit(t.Context(), "cron", service.Submission{Class: "c"}); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		heard := func(when string, want ...string) {
			t.Helper()
			if got := bell.heard(); !slices.Equal(got, want) {
				t.Errorf("%s: rang %v, want %v", when, got, want)
			}
		}
		submit()
		heard("the first", lanegate.LaneParallel)
		<-time.After(time.Hour)
		store.available.Store(false)
		if took := submit(); took != 0 {
			t.Errorf("answered after %v", took)
		}
		heard("an hour later", lanegate.LaneParallel)
		submit()
		<-time.After(time.Second / 2)
		heard("once the lanes are read", lanegate.LaneParallel, lanegate.LaneSerial)
		submit()
		heard("soon after", lanegate.LaneParallel, lanegate.LaneSerial)
		if n := store.asked.Load(); n != 2 {
			t.Errorf("the lanes were read %d times, want 2", n)
		}
	})
}

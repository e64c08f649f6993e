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

// slowConfig accepts jobs at once, each in the lane that its class is named after, and
// takes a while to tell the lanes, of which parallel and other are available or not.
type slowConfig struct {
	service.Store
	takes            time.Duration
	asked            atomic.Int64
	available, other atomic.Bool
	away             atomic.Bool // the lanes can't be read
}

func (s *slowConfig) Submit(_ context.Context, job service.NewJob) (service.Submitted, error) {
	return service.Submitted{Job: lanegate.Job{ID: job.ID, Class: job.Class, State: lanegate.StateQueued}, Lane: job.Class}, nil
}

func (s *slowConfig) Config(context.Context) (service.Config, error) {
	s.asked.Add(1)
	<-time.After(s.takes)
	if s.away.Load() {
		return service.Config{}, lanegate.ErrUnavailable
	}
	serial, parallel, other := lane(lanegate.LaneSerial, 1), lane(lanegate.LaneParallel, 2), lane("other", 2)
	parallel.Available, other.Available = s.available.Load(), s.other.Load()
	return service.Config{Lanes: []lanegate.Lane{serial, parallel, other}}, nil
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
			if _, err := svc.Submit(t.Context(), "cron", service.Submission{Class: lanegate.LaneParallel}); err != nil {
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
		synctest.Wait()
		if n := store.asked.Load(); n != 2 {
			t.Errorf("the lanes were read %d times, want 2", n)
		}
	})
}

// While the lanes are read beside a submission others come, of lanes that had a worker
// when they were read last: who stands in for theirs is rung when that is known, also
// if it has rung for a job that came before theirs.
func TestSubmissionsBesideARereadOfLanes(t *testing.T) {
	for _, test := range []struct {
		name   string
		wanted []string // 10 ms after one another, the first of which is an hour later
		failed bool     // the first reading, so that another one comes 2 s later
		after  []string
	}{
		{"another lane's worker has left", []string{lanegate.LaneParallel, "other"}, false, []string{lanegate.LaneSerial}},
		{"and the one that stands in has rung", []string{lanegate.LaneSerial, "other"}, false, []string{lanegate.LaneSerial}},
		{"only lanes with workers", []string{lanegate.LaneParallel, lanegate.LaneSerial}, false, nil},
		{"read at the second attempt", []string{lanegate.LaneParallel, "other"}, true, []string{lanegate.LaneSerial}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, bell := &slowConfig{takes: 50 * time.Millisecond}, newBell()
				store.available.Store(true)
				store.other.Store(true)
				svc := service.New(service.Options{Store: store, Doorbell: bell, Commands: &fakeCommands{}, Log: slog.New(slog.DiscardHandler)})
				defer func() {
					if err := svc.Close(); err != nil {
						t.Error(err)
					}
				}()
				submit := func(class string) {
					if _, err := svc.Submit(t.Context(), "cron", service.Submission{Class: class}); err != nil {
						t.Fatal(err)
					}
				}
				submit(lanegate.LaneParallel)
				<-time.After(time.Hour)
				store.other.Store(false)
				store.away.Store(test.failed)
				bell.heard()
				for _, class := range test.wanted {
					submit(class)
					<-time.After(10 * time.Millisecond)
				}
				if got := bell.heard(); !slices.Equal(got, test.wanted) {
					t.Errorf("rang %v at once, want %v", got, test.wanted)
				}
				<-time.After(2 * time.Second)
				if test.failed {
					if got := bell.heard(); got != nil {
						t.Errorf("rang %v though the lanes could not be read", got)
					}
					store.away.Store(false)
					submit(lanegate.LaneParallel)
					bell.heard()
					<-time.After(time.Second)
				}
				if got := bell.heard(); !slices.Equal(got, test.after) {
					t.Errorf("rang %v once the lanes were read, want %v", got, test.after)
				}
			})
		})
	}
}

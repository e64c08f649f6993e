package service_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestQuantilesOf(t *testing.T) {
	upTo := func(n int) []time.Duration {
		d := make([]time.Duration, n)
		for i := range d {
			d[i] = time.Duration(i + 1)
		}
		return d
	}
	for _, tt := range []struct {
		name string
		in   []time.Duration
		want service.Quantiles
	}{
		{"none", nil, service.Quantiles{}},
		{"one", []time.Duration{7}, service.Quantiles{N: 1, P50: 7, P90: 7, P99: 7, Max: 7}},
		{"two", []time.Duration{9, 1}, service.Quantiles{N: 2, P50: 1, P90: 9, P99: 9, Max: 9}},
		{"three", []time.Duration{5, 1, 3}, service.Quantiles{N: 3, P50: 3, P90: 5, P99: 5, Max: 5}},
		{"ties", []time.Duration{2, 2, 2, 8}, service.Quantiles{N: 4, P50: 2, P90: 8, P99: 8, Max: 8}},
		{"ten", upTo(10), service.Quantiles{N: 10, P50: 5, P90: 9, P99: 10, Max: 10}},
		{"eleven", upTo(11), service.Quantiles{N: 11, P50: 6, P90: 10, P99: 11, Max: 11}},
		{"a hundred", upTo(100), service.Quantiles{N: 100, P50: 50, P90: 90, P99: 99, Max: 100}},
		{"a hundred and one", upTo(101), service.Quantiles{N: 101, P50: 51, P90: 91, P99: 100, Max: 101}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rand.Shuffle(len(tt.in), func(i, k int) { tt.in[i], tt.in[k] = tt.in[k], tt.in[i] })
			if got := service.QuantilesOf(tt.in); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	// The rank is ⌈q·n⌉ in whole numbers, for every n: no rounding of q·n may move it.
	for n := 1; n <= 3000; n++ {
		got := service.QuantilesOf(upTo(n))
		rank := func(percent int) time.Duration { return time.Duration((percent*n + 99) / 100) }
		if want := (service.Quantiles{N: n, P50: rank(50), P90: rank(90), P99: rank(99), Max: time.Duration(n)}); got != want {
			t.Fatalf("of %d: got %+v, want %+v", n, got, want)
		}
	}
}

// verified adds a run of a verification to what a run log has.
type verified struct{ service.Store }

func (s verified) RunLog(ctx context.Context, class string, from, to time.Time, row func(lanegate.RunRecord) error) error {
	if err := row(lanegate.RunRecord{Class: class, Verification: "v", Outcome: lanegate.Succeeded, Duration: 100 * time.Hour, EndedAt: to}); err != nil {
		return err
	}
	return s.Store.RunLog(ctx, class, from, to, row)
}

// Experiments are no statistics, neither for people nor for warn_after.
func TestVerificationRunsAreLeftOut(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.wrap = func(real service.Store) service.Store { return verified{real} } })
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	for range 5 {
		job := f.mustSubmit("c").ID
		f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Minute})
	}
	f.clock.advance(time.Millisecond)
	got, err := f.svc.Stats(t.Context(), "c", time.Hour)
	if err != nil || got.Runs != 5 || got.Durations.N != 5 || got.Durations.Max != time.Minute {
		t.Errorf("stats %+v, %v", got, err)
	}
	job := f.mustSubmit("c").ID
	f.mustStart("w", 1, job)
	f.clock.advance(4 * time.Minute)
	f.wantOverdue(1, 1)
}

func TestStatsOfAWindow(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	spec := execSpec()
	spec.MaxAttempts, spec.Backoff = 9, &lanegate.Backoff{}
	f.mustPut("c", spec)
	f.mustPut("other", execSpec())
	f.mustWorker("w", 1)
	end := func(class string, wait time.Duration, e lanegate.Ending) time.Time {
		t.Helper()
		job := f.mustSubmit(class).ID
		f.clock.advance(wait)
		for _, g := range f.mustAdmit("w", 1).Grants {
			if g.Job.ID != job {
				t.Fatalf("granted %s, want %s", g.Job.ID, job)
			}
			f.mustEnd(g.Attempt.Fence(), e)
		}
		return f.clock.Now()
	}
	f.clock.advance(-4 * time.Hour)
	end("c", 0, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Hour}) // before the window
	f.clock.advance(2 * time.Hour)
	last := end("c", time.Minute, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 10 * time.Second})
	end("other", time.Minute, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Hour})
	permanent := lanegate.Ending{Outcome: lanegate.Failed, Duration: 3 * time.Second, Permanent: true}
	end("c", 2*time.Minute, permanent)
	permanent.Outcome, permanent.Duration = lanegate.TimedOut, 5*time.Second
	end("c", 0, permanent)
	end("c", 0, lanegate.Ending{Outcome: lanegate.Deferred, Duration: time.Second})

	got, err := f.svc.Stats(ctx, "c", 3*time.Hour)
	f.must(err)
	if got.To.Sub(got.From) != 3*time.Hour {
		t.Errorf("window from %v to %v", got.From, got.To)
	}
	got.From, got.To = time.Time{}, time.Time{}
	want := service.ClassStats{
		Class: "c", Runs: 4, LastSuccess: &last,
		Outcomes:  map[lanegate.Outcome]int{lanegate.Succeeded: 1, lanegate.Failed: 1, lanegate.TimedOut: 1, lanegate.Deferred: 1},
		Waits:     service.Quantiles{N: 4, P50: 0, P90: 2 * time.Minute, P99: 2 * time.Minute, Max: 2 * time.Minute},
		Durations: service.Quantiles{N: 1, P50: 10 * time.Second, P90: 10 * time.Second, P99: 10 * time.Second, Max: 10 * time.Second},
		Failing:   service.Quantiles{N: 2, P50: 3 * time.Second, P90: 5 * time.Second, P99: 5 * time.Second, Max: 5 * time.Second},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stats:\n%s", diff)
	}
	if got, err = f.svc.Stats(ctx, "c", time.Minute); err != nil || got.Runs != 0 || got.LastSuccess != nil {
		t.Errorf("stats of a quiet minute: %+v, %v", got, err)
	}
}

package lanegate

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

//go:fix inline

func TestSettle(t *testing.T) {
	exec := ClassSpec{Run: Run{Kind: RunExec, Command: "c"}}
	web := ClassSpec{Run: Run{Kind: RunHTTP, URL: "http://x/"}}
	three := exec
	three.MaxAttempts = 3
	stubborn := exec
	stubborn.Repeatable = new(false)
	webAgain := web
	webAgain.Repeatable = new(true)
	minute := 60 * time.Second

	for _, tt := range []struct {
		name  string
		job   Job
		spec  ClassSpec
		end   Ending
		state State
		in    time.Duration // at jitter 0.5
		want  Settlement    // counters and flag only
	}{
		{"success", Job{Deferrals: 3, Interruptions: 4}, exec, Ending{Outcome: Succeeded}, StateSucceeded, 0, Settlement{}},
		{"failure without retries", Job{}, exec, Ending{Outcome: Failed}, StateFailed, 0, Settlement{Failures: 1}},
		{"first failure of three", Job{}, three, Ending{Outcome: Failed}, StateQueued, 15 * time.Second, Settlement{Failures: 1}},
		{"second failure doubles the ceiling", Job{Failures: 1}, three, Ending{Outcome: TimedOut}, StateQueued, 30 * time.Second, Settlement{Failures: 2}},
		{"last failure", Job{Failures: 2}, three, Ending{Outcome: Failed}, StateFailed, 0, Settlement{Failures: 3}},
		{"a person's retry permits one more", Job{Failures: 2, ExtraAttempts: 1}, three, Ending{Outcome: Failed}, StateQueued, minute, Settlement{Failures: 3}},
		{"permanent failure ends at once", Job{}, three, Ending{Outcome: Failed, Permanent: true}, StateFailed, 0, Settlement{Failures: 1}},
		{"deferral asks for its time", Job{Failures: 1}, three, Ending{Outcome: Deferred, DeferFor: 90 * time.Second}, StateQueued, 90 * time.Second, Settlement{Failures: 1, Deferrals: 1}},
		{"deferral is capped", Job{}, exec, Ending{Outcome: Deferred, DeferFor: 1000 * time.Hour}, StateQueued, MaxDefer, Settlement{Deferrals: 1}},
		{"deferral without a time", Job{}, exec, Ending{Outcome: Deferred}, StateQueued, 30 * time.Second, Settlement{Deferrals: 1}},
		{"twentieth deferral in a row", Job{Deferrals: 19}, exec, Ending{Outcome: Deferred}, StateFailed, 0, Settlement{Deferrals: 20}},
		{"interruption costs nothing", Job{Failures: 1}, three, Ending{Outcome: Interrupted}, StateQueued, 0, Settlement{Failures: 1, Interruptions: 1}},
		{"fifth interruption in a row is flagged", Job{Interruptions: 4}, exec, Ending{Outcome: Interrupted}, StateQueued, 0, Settlement{Interruptions: 5, Flagged: true}},
		{"interrupted and not repeatable", Job{}, stubborn, Ending{Outcome: Interrupted}, StateFailed, 0, Settlement{Interruptions: 1}},
		{"an http run is not repeated unasked", Job{}, web, Ending{Outcome: Lost}, StateFailed, 0, Settlement{Losses: 1}},
		{"an http run declared repeatable is", Job{}, webAgain, Ending{Outcome: Lost}, StateQueued, 0, Settlement{Losses: 1}},
		{"worker died four times", Job{Losses: 3}, exec, Ending{Outcome: Lost}, StateQueued, 0, Settlement{Losses: 4}},
		{"worker died five times", Job{Losses: 4}, exec, Ending{Outcome: Lost}, StateFailed, 0, Settlement{Losses: 5}},
		{"cancelled", Job{}, exec, Ending{Outcome: Cancelled}, StateCancelled, 0, Settlement{}},
		{"a requested cancel beats a lost worker", Job{CancelRequested: true}, exec, Ending{Outcome: Lost}, StateCancelled, 0, Settlement{}},
		{"a requested cancel beats a retry", Job{CancelRequested: true}, three, Ending{Outcome: Failed}, StateCancelled, 0, Settlement{Failures: 1}},
		{"success beats a requested cancel", Job{CancelRequested: true}, exec, Ending{Outcome: Succeeded}, StateSucceeded, 0, Settlement{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Settle(tt.job, tt.spec, tt.end, 0.5)
			if got.State != tt.state || got.ReadyIn != tt.in {
				t.Errorf("state = %s in %v, want %s in %v (%s)", got.State, got.ReadyIn, tt.state, tt.in, got.Reason)
			}
			if to, ok := NextState(StateRunning, got.Event); !ok || to != got.State {
				t.Errorf("event %s does not lead from running to %s", got.Event, got.State)
			}
			got.Event, got.State, got.Reason, got.ReadyIn = "", "", "", 0
			if got != tt.want {
				t.Errorf("counters = %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A job that a verification run made up ends with its one attempt, whatever its
// class allows, and says so.
func TestSettleNeverRepeatsMadeUpJobs(t *testing.T) {
	spec := ClassSpec{Run: Run{Kind: RunExec}, MaxAttempts: 9, Repeatable: new(true)}
	for _, tt := range []struct {
		outcome   Outcome
		cancelled bool
		state     State
		counters  Settlement
	}{
		{Succeeded, false, StateSucceeded, Settlement{}},
		{Succeeded, true, StateSucceeded, Settlement{}},
		{Failed, false, StateFailed, Settlement{Failures: 1}},
		{Failed, true, StateCancelled, Settlement{Failures: 1}},
		{TimedOut, false, StateFailed, Settlement{Failures: 1}},
		{Deferred, false, StateFailed, Settlement{Deferrals: 1}},
		{Interrupted, false, StateFailed, Settlement{Interruptions: 1}},
		{Interrupted, true, StateCancelled, Settlement{}},
		{Lost, false, StateFailed, Settlement{Losses: 1}},
		{Lost, true, StateCancelled, Settlement{}},
		{Cancelled, false, StateCancelled, Settlement{}},
	} {
		got := Settle(Job{Verification: "v", CancelRequested: tt.cancelled}, spec, Ending{Outcome: tt.outcome, Error: "the cause"}, 0.5)
		if got.State != tt.state || got.ReadyIn != 0 {
			t.Errorf("%s (cancel asked for: %v): %+v, want it %s", tt.outcome, tt.cancelled, got, tt.state)
		}
		if got.State == StateFailed && (!strings.Contains(got.Reason, "never repeated") || !strings.Contains(got.Reason, "the cause") || !strings.Contains(got.Reason, string(tt.outcome))) {
			t.Errorf("%s: reason %q", tt.outcome, got.Reason)
		}
		got.Event, got.State, got.Reason = "", "", ""
		if got != tt.counters {
			t.Errorf("%s: counters %+v, want %+v", tt.outcome, got, tt.counters)
		}
	}
}

// C64: a job that kills its worker ends, with that reason.
func TestSettleSaysWorkerDied(t *testing.T) {
	got := Settle(Job{Losses: MaxLosses - 1}, ClassSpec{Run: Run{Kind: RunExec}}, Ending{Outcome: Lost}, 0)
	if !strings.Contains(got.Reason, "worker died") {
		t.Errorf("reason = %q", got.Reason)
	}
}

// C67: five hundred jobs that fail together don't come back together.
func TestBackoffSpreadsJobsThatFailTogether(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := Backoff{Base: Duration(30 * time.Second), Max: Duration(time.Hour)}
	perSecond := map[int]int{}
	for range 500 {
		d := BackoffDelay(b, 1, rng.Float64())
		if d < 0 || d >= 30*time.Second {
			t.Fatalf("delay %v is outside [0, base)", d)
		}
		perSecond[int(d/time.Second)]++
	}
	for s, n := range perSecond {
		if n > 100 {
			t.Errorf("%d of 500 in second %d: more than a fifth", n, s)
		}
	}
	for failures := 1; failures < 200; failures++ {
		if d := BackoffDelay(b, failures, 0.999999); d > time.Hour {
			t.Fatalf("after %d failures the delay %v is over the cap", failures, d)
		}
	}
}

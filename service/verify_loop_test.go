package service_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestAbortVerification(t *testing.T) {
	for _, running := range []bool{false, true} {
		f := newTrial(t)
		id := f.mustCreate(pairSpec(fromPayloads, withCheck))
		if running {
			f.mustRound(1)
			f.look()
		}
		v, err := f.svc.AbortVerification(t.Context(), id, admin)
		f.must(err)
		if v.State != lanegate.VerificationAborted || v.Verdict != "" || len(v.Reasons) != 1 || v.Reasons[0].Code != "aborted" || !strings.Contains(v.Reasons[0].Message, "ann") {
			t.Errorf("aborted: %+v", v)
		}
		f.wantNoHold()
		if running {
			held, err := f.svc.Beat(t.Context(), "w")
			f.must(err)
			if len(held) != 1 || !held[0].CancelRequested {
				t.Errorf("in flight: %+v", held)
			}
		}
		events := f.fixture.history("class:b")
		if e := events[len(events)-1]; e.Event != "verification_aborted" || e.Actor != "ann" || e.Reason != "because" {
			t.Errorf("event %+v", e)
		}
		_, err = f.svc.AbortVerification(t.Context(), id, admin)
		wantError(t, err, lanegate.ErrVerificationOver)
		if f.metric("lanegate_verification_runs_total", "verdict=aborted") != 1 {
			t.Error("not counted")
		}
	}
	f := newFixture(t)
	_, err := f.svc.AbortVerification(t.Context(), "0198c0de-0000-7000-8000-000000000000", admin)
	wantError(t, err, lanegate.ErrVerificationNotFound)
}

// An abort ends the check that is under way.
func TestAbortEndsTheCheck(t *testing.T) {
	f := newTrial(t)
	f.checker.hang = true
	id := f.mustCreate(pairSpec(withCheck))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.svc.RunVerifications(ctx, func() string { return "w" }, f.checker) }()
	f.submitPair()
	f.mustRound(3)
	f.endRound(nil)
	f.until("the check is under way", func() bool { return f.checker.count() == 1 })
	_, err := f.svc.AbortVerification(t.Context(), id, admin)
	f.must(err)
	f.until("the evidence is written", func() bool { return len(f.get(id).Evidence.NotChecked) > 0 })
	stop()
	f.must(<-done)
	if f.checker.count() != 1 {
		t.Errorf("checked %d times", f.checker.count())
	}
}

// until waits for what happens in other goroutines.
func (f *trial) until(what string, holds func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			f.t.Fatalf("not in time: %s", what)
		}
		timer := time.NewTimer(5 * time.Millisecond)
		<-timer.C
	}
}

// The loop itself: it wakes, carries a run to its verdict, and at a stop ends the
// one that is under way.
func TestRunVerifications(t *testing.T) {
	f := newTrial(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.svc.RunVerifications(ctx, func() string { return "w" }, f.checker) }()
	first := f.mustCreate(pairSpec(withCheck))
	f.submitPair()
	f.mustRound(3)
	f.endRound(nil)
	f.until("verdict", func() bool { return f.get(first).State.Final() })
	f.wantVerdict(first, lanegate.VerdictPassed)
	second := f.mustCreate(pairSpec())
	f.submitPair()
	f.mustRound(3)
	stop()
	f.must(<-done)
	f.wantVerdict(second, lanegate.VerdictInconclusive, "stopped")
}

// Without a free slot a worker asks the database only while a run may be open.
func TestAdmitWithoutASlot(t *testing.T) {
	var asked int
	f := newTrial(t, func(s *setup) {
		s.wrap = func(inner service.Store) service.Store { return countingAdmit{inner, &asked} }
	})
	full := service.Ask{Worker: "w"}
	ask := func(want int) {
		t.Helper()
		before := asked
		res, err := f.svc.Admit(t.Context(), full)
		f.must(err)
		if asked-before != want || want == 0 && (res.NextDue >= 0 || len(res.Grants) > 0) {
			t.Errorf("asked %d times, want %d: %+v", asked-before, want, res)
		}
	}
	ask(1) // nobody has looked yet
	f.look()
	ask(0)
	id := f.mustCreate(pairSpec(fromPayloads))
	ask(1)
	if v := f.get(id); v.State != lanegate.VerificationRunning || !v.Started {
		t.Errorf("a full worker did not start the round: %s %v", v.State, v.Started)
	}
	f.look()
	ask(1)
	_, err := f.svc.AbortVerification(t.Context(), id, admin)
	f.must(err)
	f.look()
	ask(0)
}

type countingAdmit struct {
	service.Store
	n *int
}

func (s countingAdmit) Admit(ctx context.Context, ask service.Ask) (service.Admitted, error) {
	*s.n++
	return s.Store.Admit(ctx, ask)
}

func TestVerificationsPages(t *testing.T) {
	f := newTrial(t)
	var ids []string
	for range 5 {
		ids = append(ids, f.mustCreate(pairSpec()))
	}
	slices.Reverse(ids)
	var got []string
	filter := service.VerificationFilter{Class: "a", Limit: 2}
	for pages := 0; ; pages++ {
		runs, next, err := f.svc.Verifications(t.Context(), filter)
		f.must(err)
		for _, v := range runs {
			got = append(got, v.ID)
		}
		if next == "" {
			break
		}
		if filter.Before = next; pages > 5 {
			t.Fatal("no end")
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("listed %v, want %v", got, ids)
	}
	if _, err := f.svc.Proofs(t.Context(), "nobody"); !errors.Is(err, lanegate.ErrClassNotFound) {
		t.Errorf("proofs of nobody: %v", err)
	}
}

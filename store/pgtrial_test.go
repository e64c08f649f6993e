//go:build linux

package store

import (
	"errors"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// A job that is cancelled while an admission has chosen it for a round takes the
// round with it; with another job in its place the round starts whole.
func TestPostgresChosenRoundIsCancelled(t *testing.T) {
	t.Parallel()
	for name, spare := range map[string]bool{"without a spare job": false, "with a spare job": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newPG(t, Options{})
			addClasses(t, s, 3)
			id := mustPlan(t, s, lanegate.SourceQueue, "class-000", "class-001")
			kept, gone := mustSubmit(t, s, "class-000"), mustSubmit(t, s, "class-001")
			want := map[string]bool{}
			if spare {
				want[kept.ID], want[mustSubmit(t, s, "class-001").ID] = true, true
			}
			mustRegister(t, s, "w")
			cancelled := hold(t, s, "UPDATE jobs SET state = 'cancelled', finished_at = now() WHERE id = $1", gone.ID)
			got := make(chan service.Admitted, 1)
			go func() {
				res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 8, SerialFree: true})
				if err != nil {
					t.Error(err)
				}
				got <- res
			}()
			waitsForLock(t, s)
			if err := cancelled.Commit(); err != nil {
				t.Fatal(err)
			}
			res := <-got
			if len(res.Grants) != len(want) || res.Trial != id {
				t.Errorf("granted %+v, trial %q; want %v", res.Grants, res.Trial, want)
			}
			for _, g := range res.Grants {
				if !want[g.Job.ID] {
					t.Errorf("granted job %s, want %v", g.Job.ID, want)
				}
			}
			if v := mustVerification(t, s, id); !v.Holds() || v.Started != spare {
				t.Errorf("run %+v, want it taken, and started: %v", v, spare)
			}
		})
	}
}

// Who has read a run to change it keeps it until its commit: the end of its owner
// comes before or after, never in between.
func TestPostgresOwnerDiesWhileItsRunIsSaved(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	addClasses(t, a, 1)
	id := mustPlan(t, a, lanegate.SourcePayloads, "class-000")
	mustRegister(t, a, "w")
	mustAdmit(t, a, "w")
	reaped := make(chan error, 1)
	err := a.Change(t.Context(), func(tx service.ConfigTx) error {
		v, err := tx.Verification(id)
		if err != nil {
			return err
		}
		go func() {
			_, err := b.ReapWorker(t.Context(), "w", 0)
			reaped <- err
		}()
		waitsForLock(t, a)
		v.Evidence.NotChecked = []string{"the moon"}
		v.Round, v.Started = 1, false
		return tx.SaveVerification(v)
	})
	if err = errors.Join(err, <-reaped); err != nil {
		t.Fatal(err)
	}
	v := mustVerification(t, b, id)
	if v.Verdict != lanegate.VerdictInconclusive || len(v.Reasons) != 1 || v.Reasons[0].Code != ownerLost || len(v.Evidence.NotChecked) != 1 || v.Round != 1 {
		t.Errorf("run %+v, want it ended with what was saved before", v)
	}
	if err := a.Change(t.Context(), func(tx service.ConfigTx) error {
		v.State, v.Verdict = lanegate.VerificationRunning, ""
		return tx.SaveVerification(v)
	}); !errors.Is(err, lanegate.ErrVerificationOver) {
		t.Errorf("error = %v, want a dead owner's run to stay over", err)
	}
}

// Everything that changes a trial at once, on two processes: it ends, holds
// nothing, leaves nothing in flight, and nobody waits in a circle.
func TestPostgresTrialUnderFire(t *testing.T) {
	t.Parallel()
	a, b := twoPG(t, Options{})
	addClasses(t, a, 3)
	deadlocks := countDeadlocks(t, a)
	for round := range 12 {
		source := []lanegate.VerificationSource{lanegate.SourcePayloads, lanegate.SourceQueue}[round%2]
		owner, other := newID(t), newID(t)
		mustRegister(t, a, owner)
		mustRegister(t, b, other)
		for _, class := range []string{"class-000", "class-001", "class-002"} {
			if source == lanegate.SourceQueue {
				mustSubmit(t, a, class)
			}
		}
		id := mustPlan(t, a, source, "class-000", "class-001", "class-002")
		var gang []service.Grant
		for range 10 { // ordinary jobs of the round before may come first
			res := mustAdmit(t, a, owner)
			if res.Trial == id && len(res.Grants) == 3 {
				gang = res.Grants
				break
			}
			for _, g := range res.Grants {
				if _, err := a.EndAttempt(t.Context(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(gang) != 3 {
			t.Fatalf("round %d: the trial did not start", round)
		}
		together(6, func(i int) {
			switch i {
			case 0, 1, 2:
				s := []*Store{a, b}[i%2]
				_, err := s.EndAttempt(t.Context(), gang[i].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded})
				if err != nil && !errors.Is(err, lanegate.ErrLateWrite) {
					t.Errorf("end: %v", err)
				}
			case 3:
				if _, err := b.ReapWorker(t.Context(), owner, 0); err != nil {
					t.Errorf("reap: %v", err)
				}
			case 4:
				err := a.Change(t.Context(), func(tx service.ConfigTx) error {
					v, err := tx.Verification(id)
					if err != nil {
						return err
					}
					if err := tx.CancelTrial(id); err != nil {
						return err
					}
					if !v.State.Final() {
						v.State, v.Verdict = lanegate.VerificationDone, lanegate.VerdictFailed
					}
					return tx.SaveVerification(v)
				})
				if err != nil {
					t.Errorf("change: %v", err)
				}
			case 5:
				if _, err := b.Admit(t.Context(), service.Ask{Worker: other}); err != nil {
					t.Errorf("admit: %v", err)
				}
			}
		})
		in, err := a.Snapshot(t.Context())
		if err != nil || in.Hold != "" || in.Trial != nil || len(in.InFlight) != 0 {
			t.Fatalf("round %d: hold %q, trial %+v, in flight %v, %v", round, in.Hold, in.Trial, in.InFlight, err)
		}
		if v := mustVerification(t, a, id); !v.State.Final() {
			t.Errorf("round %d: run %+v", round, v)
		}
		if _, err := b.LeaveWorker(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if n := countDeadlocks(t, a); n != deadlocks {
		t.Errorf("%d deadlocks", n-deadlocks)
	}
}

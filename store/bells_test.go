//go:build linux

package store

import (
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// onBoth runs a test on both engines. run gets a way to let time go by for bells.
func onBoth(t *testing.T, o Options, run func(t *testing.T, s *Store, wait func(time.Duration))) {
	t.Run("sqlite", func(t *testing.T) {
		clock := newClock()
		o.Now = clock.Now
		run(t, newStore(t, o), clock.advance)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		o.Now = nil
		s := newPG(t, o)
		// The server's clock can't be moved, but what it is compared with can.
		run(t, s, func(d time.Duration) {
			if _, err := s.write.Exec(`UPDATE jobs SET ring_at = ring_at - $1 * interval '1 second', rung_at = rung_at - $1 * interval '1 second'`, d.Seconds()); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func mustTake(t *testing.T, s *Store, limit int) service.DueBells {
	t.Helper()
	due, err := s.TakeBells(t.Context(), service.BellAsk{Max: limit})
	if err != nil {
		t.Fatal(err)
	}
	return due
}

// wantBells takes all due bells and checks whose they are.
func wantBells(t *testing.T, what string, s *Store, jobs ...lanegate.Job) []service.Bell {
	t.Helper()
	due := mustTake(t, s, 100)
	want := map[string]bool{}
	for _, j := range jobs {
		want[j.ID] = true
	}
	for _, b := range due.Bells {
		if !want[b.Job] {
			t.Errorf("%s: a bell of job %s", what, b.Job)
		}
		delete(want, b.Job)
	}
	if len(want) > 0 {
		t.Errorf("%s: no bell of %v", what, want)
	}
	return due.Bells
}

func mustClear(t *testing.T, s *Store, bells []service.Bell) {
	t.Helper()
	if err := s.ClearBells(t.Context(), bells); err != nil {
		t.Fatal(err)
	}
}

// Fewer bells of a lane than a batch stay while the oldest is young; whole batches of
// the oldest go at once, and nothing of another lane waits for them.
func TestBellsThatWaitForABatch(t *testing.T) {
	t.Parallel()
	onBoth(t, Options{Bells: true}, func(t *testing.T, s *Store, wait func(time.Duration)) {
		addClasses(t, s, 1)
		const young = time.Hour // the server's clock goes on meanwhile
		ask := func(limit int) service.DueBells {
			t.Helper()
			due, err := s.TakeBells(t.Context(), service.BellAsk{Max: limit, Batch: 3, Young: young})
			if err != nil {
				t.Fatal(err)
			}
			return due
		}
		var jobs []string
		submit := func() { jobs = append(jobs, mustSubmit(t, s, "class-000").ID) }
		submit()
		submit()
		if due := ask(100); len(due.Bells) != 0 || due.Left != 2 || due.Next <= 0 || due.Next > young {
			t.Errorf("two young ones: %+v", due)
		}
		if due := ask(2); len(due.Bells) != 0 || due.Left != 2 || due.Next <= 0 {
			t.Errorf("two young ones that are as many as were asked for: %+v", due)
		}
		submit()
		submit()
		due := ask(100)
		if len(due.Bells) != 3 || due.Left != 1 || due.Next <= 0 || due.Next > young {
			t.Fatalf("four: %+v", due)
		}
		for i, b := range due.Bells {
			if b.Job != jobs[i] {
				t.Errorf("bell %d is job %s's, want the oldest", i, b.Job)
			}
		}
		mustClear(t, s, due.Bells)
		wait(young)
		submit()
		if due := ask(100); len(due.Bells) != 2 || due.Left != 0 {
			t.Errorf("the oldest is ripe, the youngest goes along: %+v", due)
		}
	})
}

func TestBells(t *testing.T) {
	t.Parallel()
	onBoth(t, Options{Bells: true}, func(t *testing.T, s *Store, wait func(time.Duration)) {
		addClasses(t, s, 2)
		if due := mustTake(t, s, 10); len(due.Bells) != 0 || due.Next >= 0 {
			t.Errorf("bells without a job: %+v", due)
		}
		a, b := mustSubmit(t, s, "class-000"), mustSubmit(t, s, "class-001")
		if due := mustTake(t, s, 1); len(due.Bells) != 1 || due.Next != 0 || due.Bells[0] != (service.Bell{
			Job: a.ID, Class: "class-000", Lane: lanegate.LaneSerial, Until: due.Bells[0].Until,
		}) {
			t.Errorf("the first of two: %+v", due)
		}
		taken := wantBells(t, "the other one", s, b)
		wantBells(t, "nobody gets what another one has", s)
		mustClear(t, s, taken)
		wait(bellHeld + time.Second)
		again := wantBells(t, "what was not cleared is due again", s, a)
		mustClear(t, s, taken) // of an earlier taking: it does nothing
		mustClear(t, s, again)
		mustClear(t, s, nil)
		wait(bellHeld + time.Second)
		wantBells(t, "all are rung", s)
	})
}

func TestBellsFollowTheJob(t *testing.T) {
	t.Parallel()
	onBoth(t, Options{Bells: true}, func(t *testing.T, s *Store, wait func(time.Duration)) {
		addClasses(t, s, 1)
		mustRegister(t, s, "w")
		later := s.opts.Now().Add(time.Hour)
		res, err := s.Submit(t.Context(), service.NewJob{ID: newID(t), Class: "class-000", Client: "c", Payload: []byte(`1`), RunAt: &later})
		if err != nil {
			t.Fatal(err)
		}
		if due := mustTake(t, s, 10); len(due.Bells) != 0 || due.Next < 59*time.Minute || due.Next > time.Hour {
			t.Errorf("a job for later: %+v", due)
		}
		wait(time.Hour)
		wantBells(t, "its time has come", s, res.Job)
		if _, err := s.Cancel(t.Context(), res.Job.ID, "x"); err != nil {
			t.Fatal(err)
		}
		wait(bellHeld + time.Second)
		wantBells(t, "cancelled", s)

		job := mustSubmit(t, s, "class-000")
		g := mustAdmit(t, s, "w").Grants
		if len(g) != 1 {
			t.Fatalf("grants %+v", g)
		}
		wantBells(t, "what has started needs no bell", s)
		if _, err := s.EndAttempt(t.Context(), g[0].Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Interrupted}); err != nil {
			t.Fatal(err)
		}
		wantBells(t, "back in its line it has one again", s, job)
	})
}

func TestNoBellsUnlessAsked(t *testing.T) {
	t.Parallel()
	onBoth(t, Options{}, func(t *testing.T, s *Store, _ func(time.Duration)) {
		addClasses(t, s, 1)
		mustSubmit(t, s, "class-000")
		wantBells(t, "without a relay", s)
	})
}

func TestStaleBells(t *testing.T) {
	t.Parallel()
	onBoth(t, Options{Bells: true}, func(t *testing.T, s *Store, wait func(time.Duration)) {
		addClasses(t, s, 3)
		mustRegister(t, s, "w")
		stale := func(what string, want int) {
			t.Helper()
			got, err := s.StaleBells(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case want == 0 && len(got) == 0:
			case len(got) == 1 && got[0] == (service.StaleLane{Lane: lanegate.LaneSerial, Queued: want}):
			default:
				t.Errorf("%s: stale lanes %+v, want %d queued in serial", what, got, want)
			}
		}
		stale("without a job", 0)
		first := mustSubmit(t, s, "class-000")
		mustSubmit(t, s, "class-000")
		stale("not rung yet", 0)
		mustClear(t, s, mustTake(t, s, 10).Bells)
		stale("just rung", 0)
		wait(sweepFirst)
		stale("rung long ago", 2)
		ring := func() {
			t.Helper()
			if err := s.RingLane(t.Context(), lanegate.LaneSerial); err != nil {
				t.Fatal(err)
			}
		}
		ring()
		stale("about to be rung", 0)
		mustClear(t, s, wantBells(t, "the first of its class", s, first))
		wait(sweepFirst)
		stale("the interval doubles", 0)
		wait(sweepFirst)
		stale("the doubled interval is over", 2)
		if g := mustAdmit(t, s, "w").Grants; len(g) != 1 {
			t.Fatalf("grants %+v", g)
		}
		stale("a busy lane goes on by itself", 0)
	})
}

func TestSweepAfter(t *testing.T) {
	for rings, want := range map[int]time.Duration{0: 2 * time.Minute, 1: 2 * time.Minute, 2: 4 * time.Minute, 5: 32 * time.Minute, 6: time.Hour, 1000: time.Hour} {
		if got := sweepAfter(rings); got != want {
			t.Errorf("after %d rings: %v, want %v", rings, got, want)
		}
	}
}

// DESIGN section 5: with queues a lane is available once its queue has existed.
func TestQueuedLanesWaitForTheirQueues(t *testing.T) {
	t.Parallel()
	onBoth(t, Options{QueuedLanes: true}, func(t *testing.T, s *Store, _ func(time.Duration)) {
		mustRegister(t, s, "w")
		available := func() map[string]bool {
			t.Helper()
			cfg, err := s.Config(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, l := range cfg.Lanes {
				got[l.Name] = l.Available
			}
			return got
		}
		if got := available(); !got["serial"] || got["parallel"] {
			t.Errorf("before a queue: %v", got)
		}
		for range 2 {
			if err := s.LaneQueueSeen(t.Context(), "parallel"); err != nil {
				t.Fatal(err)
			}
		}
		if got := available(); !got["serial"] || !got["parallel"] {
			t.Errorf("with a queue: %v", got)
		}
	})
}

package worker

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate/service"
)

func infos(beats map[string]int64) []service.WorkerInfo {
	var out []service.WorkerInfo
	for id, beat := range beats {
		out = append(out, service.WorkerInfo{ID: id, Beat: beat})
	}
	return out
}

// Liveness is judged by observation on one's own monotonic clock (invariant 13).
func TestObserver(t *testing.T) {
	t0 := time.Now()
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	still := func(id string) []service.WorkerInfo { return infos(map[string]int64{id: 1}) }

	t.Run("a counter that stands still for a lease is dead", func(t *testing.T) {
		o := newObserver(60*time.Second, 10*time.Second)
		for s := 0; s < 60; s += 10 {
			if dead := o.look(at(s), still("a")); len(dead) > 0 {
				t.Fatalf("dead after %d s", s)
			}
		}
		if dead := o.look(at(60), still("a")); len(dead) != 1 {
			t.Errorf("dead = %v after a whole lease", dead)
		}
	})
	t.Run("a counter that moves lives, however old the row", func(t *testing.T) {
		o := newObserver(60*time.Second, 10*time.Second)
		for s := range 1000 {
			if dead := o.look(at(10*s), infos(map[string]int64{"a": int64(s / 5)})); len(dead) > 0 {
				t.Fatalf("dead at %d s although it beats every 50 s", 10*s)
			}
		}
	})
	t.Run("an outage of the database voids what was seen", func(t *testing.T) {
		o := newObserver(60*time.Second, 10*time.Second)
		o.look(at(0), still("a"))
		o.look(at(10), still("a"))
		o.forget()
		for s := 20; s < 80; s += 10 {
			if dead := o.look(at(s), still("a")); len(dead) > 0 {
				t.Fatalf("dead %d s after the outage", s-20)
			}
		}
		if dead := o.look(at(80), still("a")); len(dead) != 1 {
			t.Error("not dead after a whole lease of its own")
		}
	})
	t.Run("a sleep of the observer voids what was seen", func(t *testing.T) {
		o := newObserver(60*time.Second, 10*time.Second)
		o.look(at(0), still("a"))
		if dead := o.look(at(3600), still("a")); len(dead) > 0 {
			t.Error("declared dead by a process that slept itself")
		}
	})
}

func TestWorkerReapsTheDeadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		b.live = infos(map[string]int64{"w1": 0, "other": 7}) // w1 is this worker
		w, _ := newTestWorker(b, nil)
		stop, ended := start(t, w)
		time.Sleep(DefaultLease + 3*DefaultBeat)
		synctest.Wait()
		if got := b.reapedIDs(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("reaped = %v, want the other one only", got)
		}
		stop()
		ended()
	})
}

// C31: settings under which everything looks dead are refused, naming the numbers.
func TestCheckLease(t *testing.T) {
	if err := CheckLease(60*time.Second, 10*time.Second, 10*time.Second); err != nil {
		t.Errorf("defaults refused: %v", err)
	}
	for _, tt := range [][3]time.Duration{
		{60 * time.Second, 60 * time.Second, 10 * time.Second},
		{30 * time.Second, 10 * time.Second, 10 * time.Second},
		{60 * time.Second, 0, 10 * time.Second},
	} {
		if CheckLease(tt[0], tt[1], tt[2]) == nil {
			t.Errorf("lease %v, beat %v, grace %v accepted", tt[0], tt[1], tt[2])
		}
	}
}

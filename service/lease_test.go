package service_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// All processes on one database have one lease: with a shorter one of its own a
// process would declare workers dead whose runs live on.
func TestAgreeLease(t *testing.T) {
	f := newFixture(t)
	agree := func(when string, lease time.Duration, ok bool) {
		t.Helper()
		err := f.svc.AgreeLease(t.Context(), lease)
		if ok && err != nil {
			t.Errorf("%s, %v: %v", when, lease, err)
		}
		if !ok && (!errors.Is(err, lanegate.ErrLeaseDiffers) || !strings.Contains(err.Error(), "1m")) {
			t.Errorf("%s, %v: %v, want a refusal that names the lease in force", when, lease, err)
		}
	}
	agree("the first", time.Minute, true)
	agree("just before the first registers its worker", 30*time.Second, false)
	f.must(f.svc.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", Slots: 1}))
	agree("a second one", time.Minute, true)
	f.clock.advance(10 * time.Minute)
	if _, err := f.svc.Beat(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	agree("beside a live worker", 30*time.Second, false)
	agree("beside a live worker", 2*time.Minute, false)
	f.clock.advance(50 * time.Second)
	agree("beside one that may live by its own, longer lease", 30*time.Second, false)
	f.clock.advance(11 * time.Second)
	agree("after a crash of all", 30*time.Second, true)
	f.clock.advance(3 * time.Minute)
	f.must(f.svc.LeaveWorker(t.Context(), "w"))
	agree("with nobody", time.Minute, true)
}

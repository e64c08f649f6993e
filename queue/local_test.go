package queue_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/lanegate/lanegate/queue"
)

func rung(l *queue.Local) bool {
	select {
	case <-l.Rings():
		return true
	default:
		return false
	}
}

func TestLocalRings(t *testing.T) {
	t.Run("a new bell is silent", func(t *testing.T) {
		if rung(queue.NewLocal()) {
			t.Error("a token without a ring")
		}
	})
	t.Run("many rings of many lanes are one token", func(t *testing.T) {
		l := queue.NewLocal()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { l.Ring("serial"); l.Ring("parallel") })
		}
		wg.Wait() // nobody listened: Ring doesn't block
		if !rung(l) {
			t.Error("no token after rings")
		}
		if rung(l) {
			t.Error("a second token after the first was taken")
		}
	})
	t.Run("a ring after the token was taken is heard", func(t *testing.T) {
		l := queue.NewLocal()
		l.Ring("serial")
		if !rung(l) {
			t.Fatal("no token")
		}
		l.Ring("serial")
		if !rung(l) {
			t.Error("the second ring was lost")
		}
	})
}

func TestLocalWakesAWaitingWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := queue.NewLocal()
		woken := false
		go func() {
			<-l.Rings()
			woken = true
		}()
		synctest.Wait()
		if woken {
			t.Fatal("woken without a ring")
		}
		l.Ring("long")
		synctest.Wait()
		if !woken {
			t.Error("the ring woke nobody")
		}
	})
}

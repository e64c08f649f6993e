package worker

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// busyBackend takes its time for each ask.
type busyBackend struct {
	*fakeBackend
	takes time.Duration
	none  bool // says that no job waits when it grants nothing
}

func (b *busyBackend) Admit(ctx context.Context, ask service.Ask) (service.Admitted, error) {
	<-time.After(b.takes)
	res, err := b.fakeBackend.Admit(ctx, ask)
	res.NoneWaits = b.none
	return res, err
}

// Rings that lead to nothing take a fifth of the time and no more, whether jobs wait
// or others take them; the slot that a run leaves is filled at once, however many rings
// wait, and what a ring is about is found when its turn comes.
func TestWorkerRestsAfterFruitlessAsks(t *testing.T) {
	for _, none := range []bool{false, true} {
		t.Run(fmt.Sprint("none waits: ", none), func(t *testing.T) { restsAfterFruitlessAsks(t, none) })
	}
}

func restsAfterFruitlessAsks(t *testing.T, none bool) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 2 * time.Millisecond
		b := &busyBackend{fakeBackend: newFakeBackend(), takes: takes, none: none}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Slots = b, 1 })
		stop, ended := start(t, w)
		<-time.After(time.Second)
		before := len(b.asked())
		storm, calm := context.WithCancel(t.Context())
		go func() {
			for storm.Err() == nil {
				ring(b.rings)
				<-time.After(100 * time.Microsecond)
			}
		}()
		<-time.After(time.Second)
		if n, most := len(b.asked())-before, int(time.Second/(takes*(1+restShare)))+1; n > most || n < most/2 {
			t.Errorf("%d asks in a second of rings that lead to nothing, want about %d", n, most)
		}
		b.enqueue("first", lanegate.LaneParallel, 300*time.Millisecond)
		b.enqueue("second", lanegate.LaneParallel, 300*time.Millisecond)
		<-time.After(takes*(2+restShare) + 300*time.Millisecond + takes + time.Millisecond)
		synctest.Wait()
		if got := b.got("first"); len(got) != 1 {
			t.Errorf("the first job ended as %v: its ring was not heard in its turn", got)
		}
		if b.set(func() { before = len(b.queue) }); before != 0 {
			t.Error("the second job did not get the slot at once")
		}
		calm()
		stop()
		ended()
	})
}

// Where short jobs run, slots are filled together: an ask lets those pass that become
// free within the time that the last one took. After a while without, none waits.
func TestWorkerGathersFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, slots, jobs = 2 * time.Millisecond, 10, 100
		b := &busyBackend{fakeBackend: newFakeBackend(), takes: takes}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Slots = b, slots })
		stop, ended := start(t, w)
		<-time.After(time.Second)
		before := len(b.asked())
		for i := range jobs {
			b.enqueue(fmt.Sprint("job-", i), lanegate.LaneParallel, time.Duration(i%slots+1)*takes/(2*slots))
		}
		ring(b.rings)
		<-time.After(time.Second)
		if n := len(b.asked()) - before; n < jobs/slots || n > jobs/slots+2 { // one that finds nothing more, and the ring's
			t.Errorf("%d jobs took %d asks for %d slots", jobs, n, slots)
		}
		if got := b.got("job-99"); len(got) != 1 {
			t.Errorf("the last job ended as %v", got)
		}
		b.submit("alone", lanegate.LaneParallel, time.Millisecond)
		<-time.After(takes + 2*time.Millisecond)
		synctest.Wait()
		if got := b.got("alone"); len(got) != 1 {
			t.Errorf("a job that came after a while ended as %v: it had to wait", got)
		}
		stop()
		ended()
	})
}

// With all runs over there is nothing more to gather: where runs are shorter than an
// ask, the next one follows at once.
func TestWorkerGathersNoMoreThanRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, runs, slots, jobs = 10 * time.Millisecond, time.Millisecond, 4, 40
		b := &busyBackend{fakeBackend: newFakeBackend(), takes: takes}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Slots = b, slots })
		stop, ended := start(t, w)
		<-time.After(time.Second)
		for i := range jobs {
			b.enqueue(fmt.Sprint("job-", i), lanegate.LaneParallel, runs)
		}
		ring(b.rings)
		<-time.After(jobs/slots*(takes+runs) + takes)
		synctest.Wait()
		left := 0
		b.set(func() { left = len(b.queue) })
		if got := b.got("job-39"); len(got) != 1 {
			t.Errorf("%d of %d jobs still wait: slots were left empty", left, jobs)
		}
		stop()
		ended()
	})
}

// That all runs are over is no news once others have begun: slots that they leave one
// after the other are filled together.
func TestWorkerGathersAfterTheLastRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, rounds = 20 * time.Millisecond, 50
		b := &busyBackend{fakeBackend: newFakeBackend(), takes: takes}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Slots = b, 4 })
		stop, ended := start(t, w)
		<-time.After(time.Second)
		before := len(b.asked())
		for i := range rounds {
			b.submit(fmt.Sprint("alone-", i), lanegate.LaneParallel, 10*time.Millisecond)
			<-time.After(takes + 5*time.Millisecond)
			b.enqueue(fmt.Sprint("short-", i), lanegate.LaneParallel, 5*time.Millisecond) // both start when it ends
			b.enqueue(fmt.Sprint("long-", i), lanegate.LaneParallel, 12*time.Millisecond)
			<-time.After(time.Second)
		}
		if n := len(b.asked()) - before; n > 3*rounds { // one for each start, and one that finds nothing more
			t.Errorf("%d asks in %d rounds: slots were filled one by one", n, rounds)
		}
		stop()
		ended()
	})
}

// Where no job waits, the next ring is about a new one: it is heard at once, though
// the ask before it, for the slot that a run left, brought nothing.
func TestWorkerHearsTheNextJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 2 * time.Millisecond
		b := &busyBackend{fakeBackend: newFakeBackend(), takes: takes, none: true}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Slots = b, 2 })
		stop, ended := start(t, w)
		<-time.After(time.Second)
		b.submit("first", lanegate.LaneParallel, time.Microsecond)
		<-time.After(3*takes + takes/4) // asked and run, waited for other slots, and asked in vain
		before := len(b.asked())
		b.submit("second", lanegate.LaneParallel, time.Microsecond)
		<-time.After(takes + takes/2)
		synctest.Wait()
		if got := b.got("second"); len(got) != 1 {
			t.Errorf("the second job ended as %v after %d asks: its ring had to wait", got, len(b.asked())-before)
		}
		stop()
		ended()
	})
}

// Where one job runs at a time there is nothing to gather: the next one starts as soon
// as the slot is free.
func TestWorkerFillsASingleSlotAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, runs, jobs = 10 * time.Millisecond, time.Millisecond, 50
		b := &busyBackend{fakeBackend: newFakeBackend(), takes: takes}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend = b })
		stop, ended := start(t, w)
		<-time.After(time.Second)
		for i := range jobs {
			b.enqueue(fmt.Sprint("job-", i), lanegate.LaneSerial, runs)
		}
		ring(b.rings)
		<-time.After(jobs*(takes+runs) + takes)
		synctest.Wait()
		if got := b.got("job-49"); len(got) != 1 {
			left := 0
			b.set(func() { left = len(b.queue) })
			t.Errorf("%d of %d jobs still wait: slots were left empty", left, jobs)
		}
		stop()
		ended()
	})
}

package worker

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// ackBackend notes what every pass is said to have come to.
type ackBackend struct {
	*fakeBackend
	passMu sync.Mutex
	open   int // passes that were begun and not ended
	passes []service.Pass
}

func (b *ackBackend) Asking() func(service.Pass) {
	b.passMu.Lock()
	defer b.passMu.Unlock()
	b.open++
	return func(p service.Pass) {
		b.passMu.Lock()
		defer b.passMu.Unlock()
		b.open--
		b.passes = append(b.passes, p)
	}
}

func (b *ackBackend) last() (p service.Pass, open int) {
	b.passMu.Lock()
	defer b.passMu.Unlock()
	return b.passes[len(b.passes)-1], b.open
}

// A doorbell of messages is told what became of every pass: messages stay when
// the database gave no answer, and are for others when there is no room here.
func TestWorkerAcknowledgesPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &ackBackend{fakeBackend: newFakeBackend()}
		w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Slots = b, 1 })
		stop, ended := start(t, w)
		want := func(when string, want service.Pass) {
			t.Helper()
			ring(b.rings)
			synctest.Wait()
			if p, open := b.last(); p != want || open != 0 {
				t.Errorf("%s: pass %d with %d open, want %d", when, p, open, want)
			}
		}
		want("with free slots", service.PassCommitted)
		if !w.HasRoom(lanegate.LaneSerial) || !w.HasRoom(lanegate.LaneParallel) {
			t.Error("no room although nothing runs")
		}
		b.set(func() { b.down = true })
		want("with the database away", service.PassFailed)
		b.set(func() { b.down = false })
		b.enqueue("s", lanegate.LaneSerial, 10*time.Second)
		b.enqueue("p", lanegate.LaneParallel, 10*time.Second)
		want("with what starts", service.PassCommitted)
		if w.HasRoom(lanegate.LaneSerial) || w.HasRoom(lanegate.LaneParallel) {
			t.Error("room although all slots are taken")
		}
		want("without a free slot", service.PassFull)
		<-time.After(11 * time.Second)
		b.set(func() { b.gone["w1"] = true })
		b.passMu.Lock()
		b.passes = nil
		b.passMu.Unlock()
		ring(b.rings)
		synctest.Wait()
		b.passMu.Lock()
		if len(b.passes) < 2 || b.passes[0] != service.PassFull || b.passes[1] != service.PassCommitted {
			t.Errorf("passes %v: that of a worker declared dead leaves the messages to others, the next one is a new worker's", b.passes)
		}
		b.passMu.Unlock()
		stop()
		ended()
	})
}

// A process without workers looks after those of others all the same.
func TestWorkerWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		b.live = infos(map[string]int64{"dead": 7})
		w, _ := newTestWorker(b, nil)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			w.Watch(ctx)
			close(done)
		}()
		<-time.After(w.opts.Lease + 3*w.opts.Beat)
		stop()
		<-done
		if got := b.reapedIDs(); !slices.Contains(got, "dead") || len(b.identities()) != 0 {
			t.Errorf("reaped %q, registered %q", got, b.identities())
		}
	})
}

// slowBackend answers asks late, or grants and loses the answer.
type slowBackend struct {
	*fakeBackend
	delay time.Duration
	lose  bool
}

func (b *slowBackend) Admit(ctx context.Context, ask service.Ask) (service.Admitted, error) {
	res, err := b.fakeBackend.Admit(ctx, ask)
	<-time.After(b.delay)
	if b.lose && len(res.Grants) > 0 {
		return service.Admitted{}, errDown
	}
	return res, err
}

// A grant whose answer takes many beats is not given back meanwhile: the answer
// would start a run that the database has made somebody else's. Once the answer is
// lost for good it is given back.
func TestWorkerSlowGrantIsNoStray(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose bool
		want lanegate.Outcome
	}{
		{"the answer comes", false, lanegate.Succeeded},
		{"the answer is lost", true, lanegate.Interrupted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &slowBackend{fakeBackend: newFakeBackend(), delay: 7 * time.Second, lose: tt.lose}
				w, _ := newTestWorker(b.fakeBackend, func(o *Options) { o.Backend, o.Beat = b, time.Second })
				b.enqueue("j", lanegate.LaneSerial, 2*time.Second)
				stop, ended := start(t, w)
				time.Sleep(6500 * time.Millisecond) // six beats have named it
				synctest.Wait()
				if got := b.got("j"); len(got) != 0 {
					t.Errorf("ended as %v while its answer was under way", got)
				}
				time.Sleep(4 * time.Second)
				synctest.Wait()
				if got := b.got("j"); !slices.Equal(got, []lanegate.Outcome{tt.want}) {
					t.Errorf("ended as %v, want %v", got, tt.want)
				}
				stop()
				ended()
			})
		})
	}
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/worker/runner"
)

// fakeBackend is a gateway with one line of jobs: serial takes one at a time,
// everything else goes to parallel. It keeps state and expects nothing.
type fakeBackend struct {
	mu       sync.Mutex
	ids      []string // registered workers, in order
	beats    map[string]int64
	gone     map[string]bool
	queue    []service.Grant
	held     map[string]lanegate.Fence // attempts without an outcome, by job
	cancel   map[string]bool
	outcomes map[string][]lanegate.Outcome
	down     bool // every call fails
	// unanswered: the next registration lands, its answer is lost.
	unanswered bool
	left       []string
	draining   bool
	asks       []service.Ask
	reaped     []string
	live       []service.WorkerInfo
	rings      chan struct{}
	nudges     chan struct{}
}

func newFakeBackend() *fakeBackend {
	return &fakeBackend{
		beats: map[string]int64{}, gone: map[string]bool{}, held: map[string]lanegate.Fence{},
		cancel: map[string]bool{}, outcomes: map[string][]lanegate.Outcome{},
		rings: make(chan struct{}, 1), nudges: make(chan struct{}, 1),
	}
}

var errDown = errors.New("database away")

// call runs fn under the lock unless the backend is down.
func (b *fakeBackend) call(fn func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errDown
	}
	return fn()
}

func (b *fakeBackend) set(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
}

// got returns the outcomes recorded for a job.
func (b *fakeBackend) got(job string) (out []lanegate.Outcome) {
	b.set(func() { out = slices.Clone(b.outcomes[job]) })
	return out
}

func (b *fakeBackend) asked() (out []service.Ask) {
	b.set(func() { out = slices.Clone(b.asks) })
	return out
}

func (b *fakeBackend) ending() (draining bool, left []string) {
	b.set(func() { draining, left = b.draining, slices.Clone(b.left) })
	return draining, left
}

func (b *fakeBackend) beatsOf(id string) (n int64) {
	b.set(func() { n = b.beats[id] })
	return n
}

func (b *fakeBackend) identities() (ids []string) {
	b.set(func() { ids = slices.Clone(b.ids) })
	return ids
}

func (b *fakeBackend) reapedIDs() (ids []string) {
	b.set(func() { ids = slices.Clone(b.reaped) })
	return ids
}

func (b *fakeBackend) RegisterWorker(_ context.Context, w service.WorkerInfo) error {
	return b.call(func() error {
		if slices.Contains(b.ids, w.ID) {
			return lanegate.ErrWorkerGone
		}
		b.ids = append(b.ids, w.ID)
		if b.unanswered {
			b.unanswered = false
			return errDown
		}
		return nil
	})
}

func (b *fakeBackend) UpdateWorker(_ context.Context, w service.WorkerInfo) error {
	return b.call(func() error { b.draining = w.Draining; return nil })
}

func (b *fakeBackend) Beat(_ context.Context, id string) (held []service.Held, err error) {
	return held, b.call(func() error {
		if b.gone[id] {
			return lanegate.ErrWorkerGone
		}
		b.beats[id]++
		for _, job := range slices.Sorted(maps.Keys(b.held)) {
			held = append(held, service.Held{Fence: b.held[job], CancelRequested: b.cancel[job], Detached: strings.HasPrefix(job, "d")})
		}
		return nil
	})
}

func (b *fakeBackend) Admit(_ context.Context, ask service.Ask) (res service.Admitted, err error) {
	return res, b.call(func() error {
		if b.gone[ask.Worker] {
			return lanegate.ErrWorkerGone
		}
		b.asks = append(b.asks, ask)
		res.NextDue = -1
		var rest []service.Grant
		for _, g := range b.queue {
			serial := g.Attempt.Lane == lanegate.LaneSerial
			switch {
			case serial && ask.SerialFree:
				ask.SerialFree = false
			case !serial && ask.Free > 0:
				ask.Free--
			default:
				rest = append(rest, g)
				continue
			}
			b.held[g.Job.ID] = g.Attempt.Fence()
			res.Grants = append(res.Grants, g)
		}
		b.queue = rest
		return nil
	})
}

func (b *fakeBackend) EndAttempt(_ context.Context, f lanegate.Fence, e lanegate.Ending) (service.Ended, error) {
	return service.Ended{}, b.call(func() error {
		if b.held[f.Job] != f {
			return lanegate.ErrLateWrite
		}
		delete(b.held, f.Job)
		b.outcomes[f.Job] = append(b.outcomes[f.Job], e.Outcome)
		return nil
	})
}

func (b *fakeBackend) LeaveWorker(_ context.Context, id string) error {
	return b.call(func() error { b.left = append(b.left, id); return nil })
}

func (b *fakeBackend) LiveWorkers(context.Context) (live []service.WorkerInfo, err error) {
	return live, b.call(func() error { live = slices.Clone(b.live); return nil })
}

func (b *fakeBackend) ReapWorker(_ context.Context, id string, _ int64) error {
	return b.call(func() error {
		b.reaped = append(b.reaped, id)
		b.live = slices.DeleteFunc(b.live, func(w service.WorkerInfo) bool { return w.ID == id })
		return nil
	})
}

func (b *fakeBackend) ReapOrphans(context.Context) error { return b.call(func() error { return nil }) }
func (b *fakeBackend) Rings() <-chan struct{}            { return b.rings }
func (b *fakeBackend) Nudges() <-chan struct{}           { return b.nudges }

// submit queues a job that takes d (by its payload) in lane and rings.
func (b *fakeBackend) submit(id, lane string, d time.Duration) {
	b.enqueue(id, lane, d)
	ring(b.rings)
}

// enqueue is submit whose ring got lost.
func (b *fakeBackend) enqueue(id, lane string, d time.Duration) {
	b.set(func() {
		b.queue = append(b.queue, service.Grant{
			Job:     lanegate.Job{ID: id, Class: "c"},
			Attempt: lanegate.Attempt{Job: id, Number: 1, Token: "t-" + id, Lane: lane},
			Class:   lanegate.Class{ClassSpec: lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunExec}}},
			Payload: []byte(d.String()),
		})
	})
}

func ring(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleepRunner runs a job by sleeping its payload; a stop ends it after grace.
type sleepRunner struct {
	grace  time.Duration
	mu     sync.Mutex
	causes map[string]error
	now    int // running at once
	most   int
}

// cause is why a job's context ended.
func (r *sleepRunner) cause(job string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.causes[job]
}

// peak is the most that ran at once.
func (r *sleepRunner) peak() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

func (r *sleepRunner) Run(ctx context.Context, job runner.Job, lease runner.Lease) lanegate.Ending {
	r.mu.Lock()
	r.now++
	r.most = max(r.most, r.now)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now--
	}()
	if string(job.Payload) == "panic" {
		panic("planted")
	}
	d, err := time.ParseDuration(string(job.Payload))
	if err != nil {
		return lanegate.Ending{Outcome: lanegate.Failed, Error: err.Error()}
	}
	select {
	case <-time.After(d):
		return lanegate.Ending{Outcome: lanegate.Succeeded}
	case <-ctx.Done():
		time.Sleep(r.grace)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.causes == nil {
			r.causes = map[string]error{}
		}
		r.causes[job.ID] = context.Cause(ctx)
		if errors.Is(context.Cause(ctx), runner.ErrCancelled) {
			return lanegate.Ending{Outcome: lanegate.Cancelled}
		}
		return lanegate.Ending{Outcome: lanegate.Interrupted}
	}
}

// newTestWorker returns a worker with a beat of 10 s, a lease of 60 s and a drain of 30 s.
func newTestWorker(b *fakeBackend, edit func(*Options)) (*Worker, *sleepRunner) {
	run := &sleepRunner{grace: time.Second}
	n := 0
	o := Options{
		Backend: b, Log: slog.New(slog.DiscardHandler), Exec: run, HTTP: run, Slots: 2, Drain: 30 * time.Second,
		NewID: func() string { n++; return fmt.Sprintf("w%d", n) },
	}
	if edit != nil {
		edit(&o)
	}
	return New(o), run
}

// start runs w in the bubble and returns how to stop it and wait for its end.
func start(t *testing.T, w *Worker) (stop func(), ended func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	synctest.Wait()
	return cancel, func() time.Duration {
		began := time.Now()
		<-done
		return time.Since(began)
	}
}

func TestWorkerSlotBeforeJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, run := newTestWorker(b, nil)
		for i := range 5 {
			b.submit(fmt.Sprintf("p%d", i), lanegate.LaneParallel, time.Minute)
		}
		b.submit("s", lanegate.LaneSerial, time.Hour)
		stop, ended := start(t, w)
		if got := w.Running(); got != 3 {
			t.Fatalf("running = %d, want 2 parallel and 1 serial", got)
		}
		time.Sleep(3*time.Minute + time.Second)
		synctest.Wait()
		if run.peak() != 3 {
			t.Errorf("most at once = %d, want 3", run.peak())
		}
		for i := range 5 {
			if got := b.got(fmt.Sprintf("p%d", i)); !slices.Equal(got, []lanegate.Outcome{lanegate.Succeeded}) {
				t.Errorf("p%d = %v: a freed slot must be used at once", i, got)
			}
		}
		for _, ask := range b.asked() {
			if ask.Free < 0 || ask.Free > 2 {
				t.Errorf("asked for %d, there are 2 slots", ask.Free)
			}
		}
		stop()
		ended()
	})
}

func TestWorkerDrain(t *testing.T) {
	for _, tt := range []struct {
		name     string
		takes    time.Duration
		drain    time.Duration
		hurry    bool
		want     lanegate.Outcome
		wantTook time.Duration
	}{
		{"job ends within the drain time", 10 * time.Second, 30 * time.Second, false, lanegate.Succeeded, 10 * time.Second},
		{"job outlives the drain time and goes back", time.Hour, 30 * time.Second, false, lanegate.Interrupted, 31 * time.Second},
		{"drain wait has no limit", time.Hour, DrainWait, false, lanegate.Succeeded, time.Hour},
		{"second signal stops at once", time.Hour, DrainWait, true, lanegate.Interrupted, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFakeBackend()
				w, _ := newTestWorker(b, func(o *Options) { o.Drain = tt.drain })
				b.submit("j", lanegate.LaneSerial, tt.takes)
				stop, ended := start(t, w)
				stop()
				synctest.Wait()
				b.submit("later", lanegate.LaneSerial, 0)
				if tt.hurry {
					w.StopNow()
				}
				if took := ended(); took != tt.wantTook {
					t.Errorf("drain took %v, want %v", took, tt.wantTook)
				}
				if got := b.got("j"); !slices.Equal(got, []lanegate.Outcome{tt.want}) {
					t.Errorf("outcome = %v, want %v", got, tt.want)
				}
				if len(b.got("later")) != 0 {
					t.Error("a draining worker took new work")
				}
				if draining, left := b.ending(); !draining || !slices.Equal(left, []string{"w1"}) {
					t.Errorf("draining = %v, left = %v: the row must say both", draining, left)
				}
				if tt.takes > 10*time.Second && tt.drain == DrainWait && !tt.hurry && b.beatsOf("w1") < 300 {
					t.Errorf("beats = %d: a draining worker must go on beating", b.beatsOf("w1"))
				}
			})
		})
	}
}

// The database is away when the job ends (C32): the outcome is kept and written later.
func TestWorkerKeepsOutcomesWhileTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, _ := newTestWorker(b, func(o *Options) { o.Exclusive = true })
		b.submit("j", lanegate.LaneSerial, 10*time.Second)
		stop, ended := start(t, w)
		b.set(func() { b.down = true })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := w.Running(); got != 1 {
			t.Fatalf("running = %d: the slot stays taken until the outcome is written", got)
		}
		b.set(func() { b.down = false })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := b.got("j"); !slices.Equal(got, []lanegate.Outcome{lanegate.Succeeded}) {
			t.Errorf("outcomes = %v, want one success", got)
		}
		stop()
		ended()
	})
}

func TestWorkerCancelReachesTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, run := newTestWorker(b, nil)
		b.submit("j", lanegate.LaneSerial, time.Hour)
		stop, ended := start(t, w)
		b.set(func() { b.cancel["j"] = true })
		began := time.Now()
		ring(b.nudges)
		for w.Running() > 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("cancel took %v: a nudge brings the beat forward", took)
		}
		if !errors.Is(run.cause("j"), runner.ErrCancelled) || !slices.Equal(b.got("j"), []lanegate.Outcome{lanegate.Cancelled}) {
			t.Errorf("cause = %v, outcomes = %v", run.cause("j"), b.got("j"))
		}
		stop()
		ended()
	})
}

// A run that the database no longer knows as ours is stopped; a zombie's write changes nothing.
func TestWorkerStopsRunsTheDatabaseDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, run := newTestWorker(b, nil)
		b.submit("j", lanegate.LaneSerial, time.Hour)
		stop, ended := start(t, w)
		b.set(func() { delete(b.held, "j") })
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if w.Running() != 0 || !errors.Is(run.cause("j"), runner.ErrFenced) {
			t.Errorf("running = %d, cause = %v", w.Running(), run.cause("j"))
		}
		if len(b.got("j")) != 0 {
			t.Errorf("outcomes = %v, want none", b.got("j"))
		}
		stop()
		ended()
	})
}

// An attempt whose grant got lost on the way is given back, but only when two
// answers in a row name it.
func TestWorkerGivesBackLostGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, _ := newTestWorker(b, nil)
		stop, ended := start(t, w)
		b.set(func() { b.held["x"] = lanegate.Fence{Job: "x", Number: 1, Token: "t"} })
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(b.got("x")) != 0 {
			t.Error("given back after one answer: the grant may still be arriving")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := b.got("x"); !slices.Equal(got, []lanegate.Outcome{lanegate.Interrupted}) {
			t.Errorf("outcomes = %v, want interrupted", got)
		}
		stop()
		ended()
	})
}

func TestWorkerStartsAnewWhenDeclaredDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, run := newTestWorker(b, nil)
		b.submit("j", lanegate.LaneSerial, time.Hour)
		stop, ended := start(t, w)
		b.set(func() { b.gone["w1"] = true; delete(b.held, "j") })
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if !errors.Is(run.cause("j"), runner.ErrFenced) {
			t.Errorf("cause = %v, want ErrFenced", run.cause("j"))
		}
		if !slices.Equal(b.identities(), []string{"w1", "w2"}) {
			t.Fatalf("identities = %v, want a new one", b.identities())
		}
		b.submit("k", lanegate.LaneSerial, time.Second)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := b.got("k"); !slices.Equal(got, []lanegate.Outcome{lanegate.Succeeded}) {
			t.Errorf("outcomes under the new identity = %v", got)
		}
		stop()
		ended()
	})
}

// A registration that landed without an answer leaves a row that nobody beats for:
// the worker goes on under another identity, instead of asking for this one for ever.
func TestWorkerWhoseRegistrationWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		b.unanswered = true
		w, _ := newTestWorker(b, nil)
		b.submit("j", lanegate.LaneSerial, time.Second)
		stop, ended := start(t, w)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(b.identities(), []string{"w1", "w2"}) {
			t.Errorf("identities = %v, want a new one", b.identities())
		}
		if got := b.got("j"); !slices.Equal(got, []lanegate.Outcome{lanegate.Succeeded}) {
			t.Errorf("outcomes = %v", got)
		}
		stop()
		ended()
	})
}

func TestWorkerSurvivesAPanicInARunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, _ := newTestWorker(b, nil)
		b.submit("j", lanegate.LaneSerial, 0)
		b.set(func() { b.queue[0].Payload = []byte("panic") })
		stop, ended := start(t, w)
		if got := b.got("j"); !slices.Equal(got, []lanegate.Outcome{lanegate.Failed}) {
			t.Errorf("outcomes = %v, want failed", got)
		}
		stop()
		ended()
	})
}

// Without a doorbell the slow poll finds work (invariant 9).
func TestWorkerSlowPollFindsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, _ := newTestWorker(b, nil)
		stop, ended := start(t, w)
		b.enqueue("j", lanegate.LaneSerial, 0)
		time.Sleep(DefaultPoll + time.Second)
		synctest.Wait()
		if got := b.got("j"); !slices.Equal(got, []lanegate.Outcome{lanegate.Succeeded}) {
			t.Errorf("outcomes = %v: a lost ring may cost time, never the job", got)
		}
		stop()
		ended()
	})
}

func TestWorkerHealthFollowsBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, _ := newTestWorker(b, nil)
		if w.Healthy() {
			t.Error("healthy before it registered")
		}
		stop, ended := start(t, w)
		if !w.Healthy() {
			t.Error("not healthy after registering")
		}
		b.set(func() { b.down = true })
		time.Sleep(DefaultLease + DefaultBeat)
		if w.Healthy() {
			t.Error("healthy although no beat got through for a lease")
		}
		b.set(func() { b.down = false })
		stop()
		ended()
	})
}

// A run that was handed over is nobody's stray: its outcome is not written here,
// and beats that name it change nothing.
func TestWorkerLeavesDetachedRunsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBackend()
		w, _ := newTestWorker(b, func(o *Options) { o.Exec = handOver{} })
		b.submit("d", lanegate.LaneSerial, 0)
		stop, ended := start(t, w)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := b.got("d"); len(got) != 0 {
			t.Errorf("recorded %v for a run that goes on elsewhere", got)
		}
		if w.Running() != 0 || !w.ask().SerialFree {
			t.Errorf("%d still run here", w.Running())
		}
		stop()
		if took := ended(); took != 0 {
			t.Errorf("the drain waited %v for a run that is elsewhere", took)
		}
	})
}

// handOver is a runner whose runs go on elsewhere.
type handOver struct{}

func (handOver) Run(context.Context, runner.Job, runner.Lease) lanegate.Ending {
	return lanegate.Ending{}
}

// Package worker runs jobs: it asks admission for as much as this process can
// run now, runs each grant, beats while it lives, records every outcome, and
// declares other workers dead that stopped beating.
//
// One Worker serves all its lanes with one loop, since admission fills all lanes
// in one pass. How a single attempt runs is left to package runner; what may
// start, to the database. An agent runs the same loop over another Backend.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/worker/runner"
)

// Backend is what a worker needs from the gateway; *service.Service is one.
type Backend interface {
	RegisterWorker(ctx context.Context, w service.WorkerInfo) error
	UpdateWorker(ctx context.Context, w service.WorkerInfo) error
	Beat(ctx context.Context, worker string) ([]service.Held, error)
	Admit(ctx context.Context, ask service.Ask) (service.Admitted, error)
	EndAttempt(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (service.Ended, error)
	LeaveWorker(ctx context.Context, worker string) error
	LiveWorkers(ctx context.Context) ([]service.WorkerInfo, error)
	ReapWorker(ctx context.Context, worker string, beat int64) error
	ReapOrphans(ctx context.Context) error
	// Rings wakes admission, Nudges ask for a beat now (a cancel was requested).
	// Both hold at most one token and are never closed.
	Rings() <-chan struct{}
	Nudges() <-chan struct{}
}

// Acknowledger is a Backend whose rings may be messages that wait until admission
// has looked: it is told of every pass, as service.AckDoorbell says.
type Acknowledger interface {
	Asking() (done func(service.Pass))
}

// LeaseGiver is a Backend that knows the lease itself, as the gateway of an agent
// does: it then counts instead of Options.Lease.
type LeaseGiver interface {
	// Lease is how long beats may stand still; 0 before a worker was registered.
	Lease() time.Duration
}

// Probe counts what runs really use of a resource; *pgprobe.Probe is one.
type Probe interface {
	// Watch begins to count; the function it returns ends that and says how much was
	// seen in use at once at most, 0 when nothing was seen.
	Watch(job string) (peak func() int)
}

// DrainWait as Options.Drain means: wait for running jobs without a limit.
const DrainWait time.Duration = -1

// Options configure a Worker. Backend, Log, NewID and the runners are required.
type Options struct {
	Backend Backend
	Log     *slog.Logger
	// NewID makes the identity of this process's worker; it is asked again when
	// the worker was declared dead and starts anew.
	NewID func() string
	Host  string
	PID   int
	// Lanes served; nil means all. Slots bounds the runs outside serial.
	Lanes []string
	Slots int
	// Commands are the digests of the catalogue, and admission.SQSTargets where
	// SQS is set; asked at registration and on Reload.
	Commands func() map[string]string
	Exec     runner.Runner
	HTTP     runner.Runner
	// SQS runs classes of kind sqs; nil where none is granted, see Commands.
	SQS runner.Runner
	// Probes are asked for every command that runs outside serial: by resource, what
	// counts how much of it a run really uses. nil for none.
	Probes func() map[string]Probe

	Lease     time.Duration // a worker whose beat stands still this long is dead
	Beat      time.Duration
	KillGrace time.Duration
	Drain     time.Duration // after a stop, before runs are stopped; DrainWait for no limit
	Poll      time.Duration // slow poll of admission, whatever the doorbell says
	// Exclusive: no other process can take over this one's runs (SQLite). Their
	// lease is then renewed by this process's own tick, so that a database that
	// does not answer ends nothing.
	Exclusive bool
}

// Defaults of Options.
const (
	DefaultLease = service.DefaultLease
	DefaultBeat  = 10 * time.Second
	DefaultPoll  = 30 * time.Second
	DefaultSlots = 64
	// leaseMargin is what must remain of a lease beyond three beats and the kill grace.
	leaseMargin = 5 * time.Second
)

// CheckLease says whether the three times fit: even after three lost beats a
// run must be stoppable before its lease is over.
func CheckLease(lease, beat, grace time.Duration) error {
	if beat <= 0 || grace < 0 || 3*beat+grace+leaseMargin > lease {
		return errors.New("beat × 3 + kill_grace + 5s must not be more than lease: with beat " +
			lanegate.FormatDuration(beat) + " and kill_grace " + lanegate.FormatDuration(grace) +
			" the lease must be at least " + lanegate.FormatDuration(3*beat+grace+leaseMargin) + ", it is " + lanegate.FormatDuration(lease))
	}
	return nil
}

// Worker is one worker process. Run may be called once.
type Worker struct {
	opts    Options
	log     *slog.Logger
	backend Backend
	lease   *runner.LeaseClock
	wake    chan struct{} // holds one token: look for work
	empty   chan struct{} // holds one token: the last run is over
	wg      sync.WaitGroup
	hurry   chan struct{} // closed by StopNow
	once    sync.Once

	lastBeat atomic.Int64 // unix nanoseconds of the last successful beat, 0 before the first

	mu   sync.Mutex
	id   string          // guarded by mu; "" while not registered
	runs map[string]*run // by job id; guarded by mu
	// strays are attempts that the last beat's answer named and this process does
	// not run, by token: how many asks for work had begun when it was named first;
	// guarded by mu.
	strays map[string]int
	// begun and settled count the asks for work: those that were sent, and those whose
	// answer has come, with its runs started, or is given up; guarded by mu.
	begun, settled int
}

// run is one attempt in this process.
type run struct {
	fence  lanegate.Fence
	class  string
	serial bool
	trial  bool // part of a verification run: it takes no slot here
	stop   context.CancelCauseFunc
	ended  bool // the runner has returned; only its outcome is being written
}

// New returns a Worker. It panics on missing parts, which is a wiring mistake.
func New(o Options) *Worker {
	if o.Backend == nil || o.Log == nil || o.NewID == nil || o.Exec == nil || o.HTTP == nil {
		panic("worker: New: Backend, Log, NewID, Exec and HTTP are required")
	}
	for v, def := range map[*time.Duration]time.Duration{&o.Lease: DefaultLease, &o.Beat: DefaultBeat, &o.KillGrace: runner.DefaultGrace, &o.Poll: DefaultPoll} {
		if *v == 0 {
			*v = def
		}
	}
	if o.Slots == 0 {
		o.Slots = DefaultSlots
	}
	if o.Probes == nil {
		o.Probes = func() map[string]Probe { return nil }
	}
	if o.Commands == nil {
		o.Commands = func() map[string]string { return nil }
	}
	return &Worker{
		opts: o, log: o.Log, backend: o.Backend, lease: runner.NewLeaseClock(),
		wake: make(chan struct{}, 1), empty: make(chan struct{}, 1), hurry: make(chan struct{}), runs: map[string]*run{},
	}
}

// StopNow makes a drain that is under way, or a later one, stop all runs at once.
func (w *Worker) StopNow() { w.once.Do(func() { close(w.hurry) }) }

// Healthy says whether the worker is registered and has beaten within its lease.
func (w *Worker) Healthy() bool {
	last := w.lastBeat.Load()
	return last != 0 && time.Since(time.Unix(0, last)) < w.leaseTime()
}

func (w *Worker) leaseTime() time.Duration {
	if g, ok := w.backend.(LeaseGiver); ok {
		return g.Lease()
	}
	return w.opts.Lease
}

// Running returns the number of runs in this process.
func (w *Worker) Running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs)
}

// HasRoom says whether this process is at work and could start another run in the
// lane now. It must not block: a doorbell asks before it takes messages.
func (w *Worker) HasRoom(lane string) bool {
	ask := w.ask()
	if ask.Worker == "" {
		return false
	}
	if lane == lanegate.LaneSerial {
		return ask.SerialFree
	}
	return ask.Free > 0
}

// Watch looks after other workers until ctx ends, for a process that runs no jobs
// itself. It takes the place of Run.
func (w *Worker) Watch(ctx context.Context) { w.reapLoop(ctx) }

// Run registers, works until ctx ends, drains, and leaves. It returns when the
// last run has ended and its outcome is recorded or given up. A worker that was
// declared dead meanwhile stops its runs and starts anew under a new identity.
//
// ctx stops the asking for work only; runs live under contexts of their own.
func (w *Worker) Run(ctx context.Context) error {
	for w.register(ctx) {
		w.work(ctx)
		if ctx.Err() != nil {
			return w.leave(ctx)
		}
	}
	return nil
}

// work runs the loops of one identity until ctx ends or the worker is declared
// dead, and then until its last run has ended.
func (w *Worker) work(ctx context.Context) {
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	gone := make(chan struct{})
	var once sync.Once
	dead := func() {
		once.Do(func() {
			w.log.ErrorContext(ctx, "this worker was declared dead; its runs are stopped and it starts anew", "worker", w.identity())
			close(gone)
		})
		stopAsking()
	}
	beating, stopBeats := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeats()
	var loops sync.WaitGroup
	loops.Go(func() { w.beatLoop(beating, dead) })
	loops.Go(func() { w.reapLoop(beating) })
	w.admitLoop(asking, dead)
	w.drainRuns(ctx, gone) // beats go on meanwhile: the row is live until the last run has ended
	stopBeats()
	loops.Wait()
}

// leave ends the worker's row. It is the last thing written; when it can't be,
// the reaper of another process, or of the next start, finds the row.
func (w *Worker) leave(ctx context.Context) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := w.backend.LeaveWorker(call, w.identity()); err != nil && !errors.Is(err, lanegate.ErrWorkerGone) {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// register makes a new identity live; false when ctx ended first.
func (w *Worker) register(ctx context.Context) bool {
	info := w.info(w.opts.NewID())
	for wait := time.Second; ; wait = min(2*wait, 15*time.Second) {
		sent := runner.Boottime()
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := w.backend.RegisterWorker(call, info)
		cancel()
		if err == nil {
			w.mu.Lock()
			w.id = info.ID
			w.strays = nil
			w.mu.Unlock()
			w.beaten(sent)
			w.poke()
			return true
		}
		if ctx.Err() == nil {
			w.log.ErrorContext(ctx, "registering the worker failed", "worker", info.ID, "err", err)
		}
		if errors.Is(err, lanegate.ErrWorkerGone) {
			// The call before has landed, though its answer has not. That row has been
			// there for who knows how long, maybe a lease: it is left to the reapers.
			info = w.info(w.opts.NewID())
		}
		if !sleep(ctx, wait) {
			return false
		}
	}
}

func (w *Worker) info(id string) service.WorkerInfo {
	return service.WorkerInfo{
		ID: id, Host: w.opts.Host, PID: w.opts.PID, Lanes: w.opts.Lanes, Slots: w.opts.Slots, Commands: w.opts.Commands(),
	}
}

// Reload tells the gateway that the catalogue of commands has changed.
func (w *Worker) Reload(ctx context.Context) error {
	w.mu.Lock()
	id := w.id
	w.mu.Unlock()
	if id == "" {
		return nil // it registers with the new catalogue
	}
	defer w.poke()
	return w.backend.UpdateWorker(ctx, w.info(id))
}

// poke makes the admission loop look for work.
func (w *Worker) poke() { signal(w.wake) } // with a token in it, it will look anyway

// signal leaves a token in c, unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// SQSOptions configure an SQS. Bells, Lanes and Log are required.
type SQSOptions struct {
	SQSEndpoint
	// Bells are the rings that the database keeps until SQS has taken them.
	Bells service.BellStore
	// Lanes lists all lanes with their queues' names; it is asked at the start and every 30 seconds.
	Lanes func(ctx context.Context) ([]lanegate.Lane, error)
	// Serve are the lanes whose queues this process receives from; nil: all.
	Serve []string
	// SendOnly: receive from none, as this process has no workers.
	SendOnly bool
	// Gate says whether there is a free slot for the lane now and the database is
	// well; messages are asked for only then. It must not block. nil: always.
	Gate func(lane string) bool
	// Prefix of the queue of a lane that names none: prefix + lane. Default DefaultPrefix.
	Prefix string
	Log    *slog.Logger
	// Registerer gets the metrics; nil: nobody.
	Registerer prometheus.Registerer

	// Wait is how long a receive waits for a message, whole seconds from 1s to 20s.
	// A stop takes as long. Default 20s.
	Wait time.Duration
	// Visibility is how long a received bell is nobody else's, whole seconds. Default 60s.
	Visibility time.Duration
	// UnknownVisibility is when a message that is no bell may come again. Default 30s.
	UnknownVisibility time.Duration
	// Poll is the relay's look at the database when nothing rings. Default 30s.
	Poll time.Duration
	// Sweep is how often idle lanes are looked at for jobs whose bells got lost. Default 1m.
	Sweep time.Duration
	// Unheard is how long nothing may come from the queue of an idle lane whose jobs
	// were rung, before that is told. Default 5m.
	Unheard time.Duration
	// Hold is how long a ring waits for others, and for a worker of this process
	// that makes its message unnecessary. Default 50ms.
	Hold time.Duration
	// Space is the least time between two sends of fewer than ten messages, and how
	// long those wait at most, whichever process took the jobs in. Default 1s.
	Space time.Duration
	// Backoff of failed calls, and how missing queues are looked for.
	Backoff Backoff
}

const (
	// DefaultPrefix of queue names.
	DefaultPrefix = "lanegate-"
	// batchSize is what one call to SQS may carry.
	batchSize = 10
	// deletedWithin is how old a handle may get before it is deleted with others.
	deletedWithin = 15 * time.Second
	maxPrefix     = 17 // with a lane's name of 63 characters the queue's has 80
)

func (o *SQSOptions) setDefaults() error {
	if o.Bells == nil || o.Lanes == nil || o.Log == nil {
		panic("queue: OpenSQS: Bells, Lanes and Log are required")
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Wait, 20*time.Second)
	def(&o.Visibility, 60*time.Second)
	def(&o.UnknownVisibility, 30*time.Second)
	def(&o.Poll, 30*time.Second)
	def(&o.Sweep, time.Minute)
	def(&o.Unheard, 5*time.Minute)
	def(&o.Hold, 50*time.Millisecond)
	def(&o.Space, time.Second)
	o.Backoff.setDefaults()
	if o.Gate == nil {
		o.Gate = func(string) bool { return true }
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if err := CheckPrefix(o.Prefix); err != nil {
		return err
	}
	switch {
	case o.Wait < time.Second || o.Wait > 20*time.Second || o.Wait%time.Second != 0:
		return errors.New("the wait for SQS messages must be whole seconds from 1s to 20s")
	case o.Visibility < time.Second || o.Visibility > time.Hour || o.Visibility%time.Second != 0:
		return errors.New("the visibility of SQS messages must be whole seconds from 1s to 1h")
	}
	return nil
}

// SQS is the doorbell over one SQS queue per lane. A message says that its lane
// has work, nothing more: the database holds the jobs and their leases. So a lost,
// late or doubled message changes when a job starts, never whether or how often.
//
// A ring wakes this process's worker at once; the relay sends the bells that the
// database keeps for others. Received messages are deleted after admission has
// looked, see Asking.
type SQS struct {
	*Local
	o        SQSOptions
	calls    *caller
	m        *metrics
	faults   *faultLog
	endpoint string

	receiving     context.Context // ends with StopReceiving
	stopReceiving context.CancelFunc

	rings atomic.Int64  // since the relay's last look
	relay chan struct{} // holds one token: the relay must look

	mu     sync.Mutex
	queues map[string]*laneQueue // by lane; guarded by mu
	inbox  []*delivery           // received, and no pass has begun since; guarded by mu
	sick   bool                  // the last pass of admission failed; guarded by mu
}

var _ service.AckDoorbell = (*SQS)(nil)

// OpenSQS reads the AWS configuration and the lanes, logs in one line where it
// will ring, and makes no call to SQS yet: missing queues are found by Run, and
// don't stop it. Run it, and Close it after.
func OpenSQS(ctx context.Context, o SQSOptions) (*SQS, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	client, endpoint, err := o.client(ctx)
	if err != nil {
		return nil, err
	}
	return openOver(ctx, o, client, endpoint)
}

// openOver opens an SQS whose options are complete over a client.
func openOver(ctx context.Context, o SQSOptions, client *sqs.Client, endpoint string) (*SQS, error) {
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the doorbell's metrics: %w", err)
	}
	s := &SQS{
		Local: NewLocal(), o: o, calls: &caller{client, m.calls}, m: m, faults: newFaultLog(o.Log), endpoint: endpoint,
		relay: make(chan struct{}, 1), queues: map[string]*laneQueue{},
	}
	s.receiving, s.stopReceiving = context.WithCancel(context.WithoutCancel(ctx))
	lanes, err := o.Lanes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the lanes: %w", err)
	}
	var names []string
	for _, l := range lanes {
		q := newLaneQueue(l, o.Prefix)
		s.queues[l.Name] = q
		m.lane(l.Name)
		names = append(names, l.Name+"="+q.name)
	}
	slices.Sort(names)
	o.Log.InfoContext(ctx, "sqs doorbell", "endpoint", endpoint, "region", client.Options().Region, "queues", strings.Join(names, " "))
	return s, nil
}

// Ring implements service.Doorbell.
func (s *SQS) Ring(lane string) {
	s.Local.Ring(lane)
	s.rings.Add(1)
	poke(s.relay)
}

// Run sends, receives and sweeps until ctx ends, then gives back what it has
// received and not used, and returns. It never cuts off an open poll, as that may
// swallow the next message: it returns up to Wait + 10 s after ctx has ended. It
// may be called once.
func (s *SQS) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { s.laneLoop(ctx) })
	loops.Go(func() { s.relayLoop(ctx) })
	loops.Go(func() { s.sweepLoop(ctx) })
	loops.Wait()
}

// StopReceiving begins a stop: no more messages are asked for, and what a poll
// that is open still brings goes back to its queue at once, for others. Bells are
// sent as ever, until Run's context ends. It may be called more than once.
func (s *SQS) StopReceiving() { s.stopReceiving() }

// Close lets go of the connections. It is called after Run has returned.
func (s *SQS) Close() error {
	if c, ok := s.calls.Options().HTTPClient.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	return nil
}

// Problems says what is wrong with the lanes' queues now, by lane, for readiness;
// lanes without a problem are left out. None of them stops a job: workers also look by themselves.
func (s *SQS) Problems() map[string]string {
	problems := map[string]string{}
	for _, q := range s.allQueues() {
		if p := q.problem(); p != "" {
			problems[q.lane] = p
		}
	}
	return problems
}

// Asking implements service.AckDoorbell.
func (s *SQS) Asking() (done func(service.Pass)) {
	s.mu.Lock()
	asked := s.inbox
	s.inbox = nil
	s.mu.Unlock()
	return func(p service.Pass) {
		s.mu.Lock()
		switch p {
		case service.PassFailed:
			// Not deleted, not given back: they would only come again. A later pass may
			// still answer them, and nothing is received until one succeeds.
			s.inbox = append(asked, s.inbox...)
			s.sick = true
		case service.PassCommitted:
			s.sick = false
		}
		s.mu.Unlock()
		if p != service.PassFailed {
			for _, d := range asked {
				d.answer(p)
			}
		}
	}
}

// well says whether the last pass of admission succeeded, as far as is known.
func (s *SQS) well() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.sick
}

func (s *SQS) allQueues() []*laneQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := make([]*laneQueue, 0, len(s.queues))
	for _, q := range s.queues {
		queues = append(queues, q)
	}
	return queues
}

// queue is a lane's queue, nil when there is no such lane.
func (s *SQS) queue(lane string) *laneQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[lane]
}

// serves says whether this process receives the lane's bells.
func (s *SQS) serves(lane string) bool {
	return !s.o.SendOnly && (s.o.Serve == nil || slices.Contains(s.o.Serve, lane))
}

// seconds is a duration as SQS takes it.
func seconds(d time.Duration) int32 { return int32(d / time.Second) }

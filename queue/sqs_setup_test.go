//go:build linux

package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
)

// fakeBells is a database of jobs and bells in this process.
type fakeBells struct {
	mu    sync.Mutex
	order []string
	jobs  map[string]*fakeJob
	seen  map[string]int
	rung  map[string]int // RingLane calls
	stale []service.StaleLane
	clear int
}

type fakeJob struct {
	lane   string
	ringAt time.Time // zero: no bell
	ran    bool
}

const fakeHold = time.Minute // longer than a test: what a relay took it must send

func newFakeBells() *fakeBells {
	return &fakeBells{jobs: map[string]*fakeJob{}, seen: map[string]int{}, rung: map[string]int{}}
}

// submit queues a job in a lane.
func (f *fakeBells) submit(lane string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := fmt.Sprintf("job-%d", len(f.order))
	f.order = append(f.order, id)
	f.jobs[id] = &fakeJob{lane: lane, ringAt: time.Now()}
	return id
}

// admit starts everything that is queued. That nothing starts twice is the database's
// part, not a bell's: tests of whole gateways show it.
func (f *fakeBells) admit() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if !j.ran {
			j.ran, j.ringAt = true, time.Time{}
		}
	}
}

// ran says whether all of the jobs were started.
func (f *fakeBells) ran(ids ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id string) bool { return !f.jobs[id].ran })
}

// due is how many bells are not cleared.
func (f *fakeBells) due() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if !j.ringAt.IsZero() {
			n++
		}
	}
	return n
}

// oldest is how long the oldest bell that nobody has taken has been due.
func (f *fakeBells) oldest() (age time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if !j.ringAt.IsZero() {
			age = max(age, time.Since(j.ringAt))
		}
	}
	return age
}

func (f *fakeBells) TakeBells(_ context.Context, ask service.BellAsk) (service.DueBells, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	var listed []service.DueBell
	for _, id := range f.order {
		if j := f.jobs[id]; !j.ringAt.IsZero() && !j.ringAt.After(now) && len(listed) < ask.Max {
			listed = append(listed, service.DueBell{Job: id, Class: "class-" + j.lane, Lane: j.lane, Since: j.ringAt})
		}
	}
	take, stay, in := ask.Ripe(listed, now)
	due, until := service.DueBells{Left: len(stay), Next: -1}, now.Add(fakeHold)
	for _, d := range take {
		f.jobs[d.Job].ringAt = until
		due.Bells = append(due.Bells, service.Bell{Job: d.Job, Class: d.Class, Lane: d.Lane, Until: until})
	}
	switch {
	case len(take) > 0 && len(listed) == ask.Max:
		due.Next = 0
	case len(stay) > 0:
		due.Next = in
	}
	return due, nil
}

func (f *fakeBells) ClearBells(_ context.Context, bells []service.Bell) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clear += len(bells)
	for _, b := range bells {
		if j := f.jobs[b.Job]; j.ringAt.Equal(b.Until) {
			j.ringAt = time.Time{}
		}
	}
	return nil
}

func (f *fakeBells) StaleBells(context.Context) ([]service.StaleLane, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stale), nil
}

func (f *fakeBells) RingLane(_ context.Context, lane string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rung[lane]++
	for _, id := range f.order {
		if j := f.jobs[id]; j.lane == lane && !j.ran && j.ringAt.IsZero() {
			j.ringAt = time.Now()
			break
		}
	}
	return nil
}

func (f *fakeBells) LaneQueueSeen(_ context.Context, lane string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[lane]++
	return nil
}

func (f *fakeBells) counts(lane string) (seen, rung int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[lane], f.rung[lane]
}

// bench is what an SQS test stands on: a server, a proxy in front of it and
// queues of the test's own.
type bench struct {
	t      *testing.T
	server *sqstest.Server
	proxy  *sqstest.Proxy
	direct *sqs.Client // past the proxy
	bells  *fakeBells
	log    logBook
	reg    *prometheus.Registry
	prefix string
	lanes  []lanegate.Lane
}

var benches atomic.Int64

// newBench makes the queues of the lanes serial and parallel, without a dead-letter queue.
func newBench(t *testing.T, server *sqstest.Server) *bench {
	t.Helper()
	b := &bench{
		t: t, server: server, proxy: sqstest.NewProxy(t, server), bells: newFakeBells(), reg: prometheus.NewPedanticRegistry(),
		prefix: fmt.Sprintf("t%d-", benches.Add(1)), lanes: []lanegate.Lane{{Name: "serial"}, {Name: "parallel"}},
	}
	b.direct = clientOf(server.URL)
	for _, l := range b.lanes {
		b.create(l.Name, nil)
	}
	return b
}

func clientOf(endpoint string) *sqs.Client {
	return sqs.New(sqs.Options{Region: sqstest.Region, BaseEndpoint: aws.String(endpoint), Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
}

// create makes a lane's queue and returns its URL.
func (b *bench) create(lane string, attributes map[string]string) string {
	b.t.Helper()
	out, err := b.direct.CreateQueue(b.t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(b.prefix + lane), Attributes: attributes})
	if err != nil {
		b.t.Fatal(err)
	}
	return *out.QueueUrl
}

// createWithDead makes a lane with its queue, and the queue "dead" for messages that
// were received most times.
func (b *bench) createWithDead(lane string, most int) {
	b.t.Helper()
	b.create("dead", nil)
	b.create(lane, map[string]string{
		"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:%s:000000000000:%sdead","maxReceiveCount":"%d"}`, sqstest.Region, b.prefix, most),
	})
	b.lanes = append(b.lanes, lanegate.Lane{Name: lane})
}

func (b *bench) url(lane string) string {
	b.t.Helper()
	out, err := b.direct.GetQueueUrl(b.t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(b.prefix + lane)})
	if err != nil {
		b.t.Fatal(err)
	}
	return *out.QueueUrl
}

func (b *bench) delete(lane string) {
	b.t.Helper()
	if _, err := b.direct.DeleteQueue(b.t.Context(), &sqs.DeleteQueueInput{QueueUrl: aws.String(b.url(lane))}); err != nil {
		b.t.Fatal(err)
	}
}

// put sends a message past all bells.
func (b *bench) put(lane, body string) {
	b.t.Helper()
	if _, err := b.direct.SendMessage(b.t.Context(), &sqs.SendMessageInput{QueueUrl: aws.String(b.url(lane)), MessageBody: aws.String(body)}); err != nil {
		b.t.Fatal(err)
	}
}

// get receives one message past all bells, for a moment, with its receive count.
func (b *bench) get(lane string) (body string, count int) {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		out, err := b.direct.ReceiveMessage(b.t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: aws.String(b.url(lane)), WaitTimeSeconds: 1, VisibilityTimeout: 1,
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount},
		})
		if err != nil {
			b.t.Fatal(err)
		}
		if len(out.Messages) == 0 {
			continue
		}
		count, err = strconv.Atoi(out.Messages[0].Attributes["ApproximateReceiveCount"])
		if err != nil {
			b.t.Fatal(err)
		}
		return *out.Messages[0].Body, count
	}
	b.t.Fatalf("no message in the queue of %s", lane)
	return "", 0
}

// held is how many messages the lane's queue has, in flight or not.
func (b *bench) held(lane string) (n int) {
	b.t.Helper()
	out, err := b.direct.GetQueueAttributes(b.t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(b.url(lane)), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, name := range []string{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"} {
		v, err := strconv.Atoi(out.Attributes[name])
		if err != nil {
			b.t.Fatal(err)
		}
		n += v
	}
	return n
}

// options are those of a bell with short times.
func (b *bench) options() queue.SQSOptions {
	return queue.SQSOptions{
		SQSEndpoint: queue.SQSEndpoint{Region: sqstest.Region, URL: b.proxy.URL, AllowHTTP: true},
		Bells:       b.bells, Lanes: func(context.Context) ([]lanegate.Lane, error) { return b.lanes, nil },
		Prefix: b.prefix, Log: b.log.logger(),
		Wait: time.Second, Visibility: 6 * time.Second, UnknownVisibility: time.Second, Poll: time.Second, Sweep: time.Hour,
		Hold: time.Millisecond, Space: 20 * time.Millisecond, Backoff: queue.Backoff{Base: 50 * time.Millisecond, Max: 400 * time.Millisecond},
	}
}

// open runs a bell until stop is called or the test ends.
func (b *bench) open(o queue.SQSOptions) (s *queue.SQS, stop func()) {
	b.t.Helper()
	s, err := queue.OpenSQS(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	stop = func() { cancel(); <-done; _ = s.Close() }
	b.t.Cleanup(stop)
	return s, stop
}

// sender is a bell of a process without workers.
func (b *bench) sender() *queue.SQS {
	b.t.Helper()
	o := b.options()
	o.SendOnly = true
	s, _ := b.open(o)
	return s
}

// worker answers a bell's rings as an admission loop does, until the test ends. It
// looks at a ring, and again soon after a failed pass, never by itself: a job whose
// ring got lost does not run. pass is asked before each pass what will become of
// it; nil: committed.
func (b *bench) worker(s *queue.SQS, pass func() service.Pass) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var failed <-chan time.Time
		for {
			select {
			case <-end:
				return
			case <-s.Rings():
			case <-failed:
			}
			answer := s.Asking()
			p := service.PassCommitted
			if pass != nil {
				p = pass()
			}
			failed = nil
			switch p {
			case service.PassCommitted:
				b.bells.admit()
			case service.PassFailed:
				failed = time.After(20 * time.Millisecond)
			case service.PassFull:
			}
			answer(p)
		}
	}()
	b.t.Cleanup(func() { close(end); <-done })
}

// rested runs a worker on a bell and waits until the rings of its start are long
// over: from then on a job runs only when something rings for it.
func (b *bench) rested(o queue.SQSOptions) *queue.SQS {
	b.t.Helper()
	s, _ := b.open(o)
	b.worker(s, nil)
	eventually(b.t, "its queues are found, and polls of all of them have ended", func() bool {
		for _, l := range b.lanes {
			if seen, _ := b.bells.counts(l.Name); seen == 0 {
				return false
			}
		}
		return b.proxy.Count("ReceiveMessage") >= 2*len(b.lanes)
	})
	return s
}

// idleWorker is a worker that answers rings and finds nothing that may start.
func (b *bench) idleWorker(s *queue.SQS) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-s.Rings():
				s.Asking()(service.PassCommitted)
			}
		}
	}()
	b.t.Cleanup(func() { close(end); <-done })
}

// metric is a counter's value, summed over the labels that are not given.
func metric(t *testing.T, reg *prometheus.Registry, name string, labels map[string]string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			fits := 0
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == l.GetValue() {
					fits++
				}
			}
			if fits == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func lintMetrics(t *testing.T, reg *prometheus.Registry) {
	t.Helper()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
}

// newBenchless is options without a server.
func newBenchless() queue.SQSOptions {
	return queue.SQSOptions{Lanes: func(context.Context) ([]lanegate.Lane, error) { return nil, nil }}
}

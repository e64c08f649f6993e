//go:build linux

package queue_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
)

// fakeJobs makes a job of every message whose body is not "bad", one for each id.
type fakeJobs struct {
	mu   sync.Mutex
	away bool           // guarded by mu
	asks int            // guarded by mu
	got  map[string]int // times taken in, by body; guarded by mu
	last service.Arrival
}

func (f *fakeJobs) take(_ context.Context, messages []service.Arrival) ([]service.Taken, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asks++
	if f.away {
		return nil, lanegate.ErrUnavailable
	}
	taken := make([]service.Taken, len(messages))
	for i, m := range messages {
		if m.Body == "bad" {
			taken[i].Err = lanegate.ErrUnknownClass
			continue
		}
		taken[i] = service.Taken{Job: m.ID, Replayed: f.got[m.Body] > 0}
		f.got[m.Body]++
		f.last = m
	}
	return taken, nil
}

func (f *fakeJobs) ready(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return errors.New("away")
	}
	return nil
}

func (f *fakeJobs) setAway(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

func (f *fakeJobs) counts(body string) (taken, asks int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got[body], f.asks
}

// takeIn receives from the queue of the lane "parallel" until stop is called or the test ends.
func (b *bench) takeIn(edits ...func(o *queue.IntakeOptions)) (jobs *fakeJobs, in *queue.Intake, stop func()) {
	b.t.Helper()
	jobs = &fakeJobs{got: map[string]int{}}
	o := queue.IntakeOptions{
		SQSEndpoint: queue.SQSEndpoint{Region: sqstest.Region, URL: b.proxy.URL, AllowHTTP: true},
		Queues:      []queue.IntakeQueue{{Queue: b.prefix + "parallel", Name: "orders", Take: jobs.take}},
		Ready:       jobs.ready, Log: b.log.logger(), Registerer: b.reg,
		Wait: time.Second, Visibility: 6 * time.Second, Backoff: queue.Backoff{Base: 20 * time.Millisecond, Max: 200 * time.Millisecond},
	}
	for _, edit := range edits {
		edit(&o)
	}
	in, err := queue.OpenIntake(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.Run(ctx)
	}()
	stop = func() { cancel(); <-done; _ = in.Close() }
	b.t.Cleanup(stop)
	return jobs, in, stop
}

func (b *bench) intakeCount(name string) float64 {
	b.t.Helper()
	return metric(b.t, b.reg, "lanegate_intake_"+name, map[string]string{"queue": "orders"})
}

// C12: a message whose deletion fails comes again; then it is a replay, deleted
// again and counted.
func TestIntakeDeleteFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.proxy.Inject(sqstest.Fault{Action: "DeleteMessageBatch", Status: 400, Code: "InternalFailure", Times: 3})
	jobs, _, _ := b.takeIn(func(o *queue.IntakeOptions) { o.Visibility = 2 * time.Second })
	b.put("parallel", "a")
	eventually(t, "deleted", func() bool { return b.intakeCount("messages_deleted_total") == 1 })
	if n, _ := jobs.counts("a"); n != 2 || b.held("parallel") != 0 {
		t.Errorf("taken in %d times, %d left", n, b.held("parallel"))
	}
	for name, want := range map[string]float64{"jobs_accepted_total": 1, "jobs_replayed_total": 1, "messages_undeleted_total": 1, "messages_received_total": 2} {
		if got := b.intakeCount(name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	lintMetrics(t, b.reg)
}

// What can't become a job is left to the queue's own rule; its neighbours are not
// held up, and the log tells once.
func TestIntakeLeavesWhatItCannotTake(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.create("dead", nil)
	b.delete("parallel")
	b.create("redriven", map[string]string{
		"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:` + sqstest.Region + `:000000000000:` + b.prefix + `dead","maxReceiveCount":"2"}`,
	})
	jobs, _, _ := b.takeIn(func(o *queue.IntakeOptions) {
		o.Visibility, o.Queues[0].Queue = time.Second, b.url("redriven") // by its URL
	})
	b.put("redriven", "bad")
	b.put("redriven", "good")
	if body, _ := b.get("dead"); body != "bad" {
		t.Errorf("in the dead-letter queue: %s", body)
	}
	eventually(t, "the neighbour is taken in", func() bool { n, _ := jobs.counts("good"); return n == 1 && b.held("redriven") == 0 })
	if got := b.intakeCount("messages_refused_total"); got != 2 {
		t.Errorf("refused = %v, want 2 receives of one message", got)
	}
	if n := strings.Count(b.log.String(), "can't become a job"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, b.log.String())
	}
}

// A database that is away burns no receive counts: what was received is kept and
// tried again, and nothing more is asked for.
func TestIntakeWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	jobs, in, _ := b.takeIn(func(o *queue.IntakeOptions) { o.Visibility = 30 * time.Second })
	jobs.setAway(true)
	b.put("parallel", "a")
	eventually(t, "it was tried", func() bool { _, asks := jobs.counts("a"); return asks >= 3 })
	polls := b.proxy.Count("ReceiveMessage")
	b.put("parallel", "b")
	_, before := jobs.counts("a")
	eventually(t, "it is tried on", func() bool { _, asks := jobs.counts("a"); return asks >= before+2 })
	if n := b.proxy.Count("ReceiveMessage"); n != polls {
		t.Errorf("%d receive calls while the database was away", n-polls)
	}
	if p := in.Problems()["orders"]; !strings.Contains(p, "the database takes no jobs") {
		t.Errorf("problems %q", in.Problems())
	}
	jobs.setAway(false)
	eventually(t, "both are taken in", func() bool { return b.held("parallel") == 0 })
	jobs.mu.Lock()
	defer jobs.mu.Unlock()
	if jobs.last.Receives != 1 || len(in.Problems()) != 0 {
		t.Errorf("received %d times; problems %v", jobs.last.Receives, in.Problems())
	}
}

// A database that stays away for longer than the messages are ours: they go back by
// themselves, and nothing is asked for before it is ready.
func TestIntakeGivesUpItsMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	jobs, _, _ := b.takeIn(func(o *queue.IntakeOptions) { o.Visibility = time.Second })
	jobs.setAway(true)
	b.put("parallel", "a")
	eventually(t, "it was tried", func() bool { _, asks := jobs.counts("a"); return asks >= 1 })
	polls := b.proxy.Count("ReceiveMessage")
	pause(1500 * time.Millisecond)
	if n := b.proxy.Count("ReceiveMessage"); n != polls {
		t.Errorf("%d receive calls while the database was away", n-polls)
	}
	jobs.setAway(false)
	eventually(t, "it is taken in", func() bool { n, _ := jobs.counts("a"); return n == 1 && b.held("parallel") == 0 })
}

// A missing queue is looked for slowly, told once, and used when it is there.
func TestIntakeMissingQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.delete("parallel")
	jobs, in, _ := b.takeIn()
	eventually(t, "it is missed", func() bool { return b.proxy.Count("GetQueueUrl") >= 4 })
	if p := in.Problems()["orders"]; !strings.Contains(p, "does not exist") || b.intakeCount("queue_up") != 0 {
		t.Errorf("problems %q", p)
	}
	if n := strings.Count(b.log.String(), "sqs intake fails"); n != 1 {
		t.Errorf("%d log lines", n)
	}
	b.create("parallel", nil)
	b.put("parallel", "a")
	eventually(t, "it is taken in", func() bool { n, _ := jobs.counts("a"); return n == 1 && b.intakeCount("queue_up") == 1 })
	if len(in.Problems()) != 0 {
		t.Errorf("problems %v", in.Problems())
	}
}

// A stop lets the open poll end, and gives back at once what could not be taken in.
func TestIntakeStop(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	jobs, _, stop := b.takeIn(func(o *queue.IntakeOptions) { o.Visibility = 60 * time.Second })
	jobs.setAway(true)
	b.put("parallel", "a")
	eventually(t, "in its hands", func() bool { _, asks := jobs.counts("a"); return asks >= 1 })
	stop()
	if _, count := b.get("parallel"); count != 2 {
		t.Errorf("receive count %d", count)
	}
	if b.intakeCount("messages_released_total") != 1 {
		t.Error("it was not given back")
	}
}

// Two processes, messages that come twice, and answers that get lost: each message
// is taken in, and none is left.
func TestIntakeTakesEverything(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	url := b.url("parallel")
	for i := range 25 {
		in := &sqs.SendMessageInput{QueueUrl: aws.String(url), MessageBody: aws.String(strings.Repeat("x", i+1)), MessageAttributes: map[string]types.MessageAttributeValue{
			"text": {DataType: aws.String("String"), StringValue: aws.String("é")}, "bytes": {DataType: aws.String("Binary.x"), BinaryValue: []byte{0, 255}},
		}}
		if _, err := b.direct.SendMessage(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	b.proxy.Inject(sqstest.Fault{Action: "ReceiveMessage", Drop: true, Times: 2})
	b.proxy.Inject(sqstest.Fault{Action: "DeleteMessageBatch", Drop: true, Times: 2})
	short := func(o *queue.IntakeOptions) { o.Visibility, o.Registerer = 2*time.Second, nil }
	one, _, _ := b.takeIn(short)
	two, _, _ := b.takeIn(short)
	eventually(t, "all are gone", func() bool { return b.held("parallel") == 0 })
	for i := range 25 {
		body := strings.Repeat("x", i+1)
		a, _ := one.counts(body)
		c, _ := two.counts(body)
		if a+c == 0 {
			t.Errorf("message %d became no job", i)
		}
	}
	last := one.last
	if last.ID == "" {
		last = two.last
	}
	if a := last.Attributes; a["text"].Text != "é" || a["bytes"].Type != "Binary.x" || string(a["bytes"].Bytes) != "\x00\xff" {
		t.Errorf("attributes %+v", a)
	}
}

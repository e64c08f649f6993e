package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// IntakeQueue is a queue whose messages become jobs.
type IntakeQueue struct {
	Queue string // name or URL
	// Name is what metrics and logs call it.
	Name string
	// Take makes jobs of up to ten messages. What it returns without an error is
	// committed, and an answer without an Err lets its message be deleted. An error
	// means that nothing is known; the same messages are then given again.
	Take func(ctx context.Context, messages []service.Arrival) ([]service.Taken, error)
}

// IntakeOptions configure an Intake. Ready and Log are required.
type IntakeOptions struct {
	SQSEndpoint
	Queues []IntakeQueue
	// Ready says whether jobs could be taken in again, once they could not.
	Ready func(ctx context.Context) error
	Log   *slog.Logger
	// Registerer gets the metrics; nil: nobody.
	Registerer prometheus.Registerer
	// Wait is how long a receive waits for messages, whole seconds from 1s to 20s.
	// Default 20s.
	Wait time.Duration
	// Visibility is how long received messages are nobody else's, whole seconds. Default 60s.
	Visibility time.Duration
	// Backoff of what fails.
	Backoff Backoff
}

// takeTimeout bounds one try to make jobs of messages.
const takeTimeout = 10 * time.Second

// Intake receives messages and deletes those whose jobs are durable. The others
// stay, for the queue's own dead-letter rule. Any number of processes may receive
// from one queue: a message that two of them get is one job, by its key.
type Intake struct {
	o                IntakeOptions
	calls            *caller
	m                *intakeMetrics
	faults           *faultLog
	queues           []*intakeQueue
	Endpoint, Region string
}

// intakeQueue is one queue. All but problems belongs to its loop.
type intakeQueue struct {
	IntakeQueue
	url string // "" while it isn't found
	// sick: jobs could not be taken in the last time; nothing is received before Ready.
	sick bool

	mu       sync.Mutex
	problems map[string]string // by what fails; guarded by mu
}

// OpenIntake reads the AWS configuration and logs in one line which queues it will
// receive from; it makes no call to SQS yet. Queues that are missing are found by
// Run, and don't stop it.
func OpenIntake(ctx context.Context, o IntakeOptions) (*Intake, error) {
	if o.Ready == nil || o.Log == nil {
		panic("queue: OpenIntake: Ready and Log are required")
	}
	if o.Wait == 0 {
		o.Wait = 20 * time.Second
	}
	if o.Visibility == 0 {
		o.Visibility = 60 * time.Second
	}
	o.Backoff.setDefaults()
	client, endpoint, err := o.client(ctx)
	if err != nil {
		return nil, err
	}
	m, err := newIntakeMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the intake's metrics: %w", err)
	}
	in := &Intake{o: o, calls: &caller{client, m.calls}, m: m, faults: newFaultLog(o.Log), Endpoint: endpoint, Region: client.Options().Region}
	var names []string
	for _, q := range o.Queues {
		in.queues = append(in.queues, &intakeQueue{IntakeQueue: q, problems: map[string]string{}})
		m.queue(q.Name)
		names = append(names, q.Queue)
	}
	o.Log.InfoContext(ctx, "sqs intake", "endpoint", endpoint, "region", in.Region, "queues", strings.Join(names, " "))
	return in, nil
}

// Run receives until ctx ends, gives back what was not taken in, and returns. It
// never cuts off an open poll: it returns up to Wait + 10 s after ctx has ended.
func (in *Intake) Run(ctx context.Context) {
	var loops sync.WaitGroup
	for _, q := range in.queues {
		loops.Go(func() { in.loop(ctx, q) })
	}
	loops.Wait()
}

// Close lets go of the connections. It is called after Run has returned.
func (in *Intake) Close() error {
	if c, ok := in.calls.Options().HTTPClient.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	return nil
}

// Problems says what is wrong now, by the queue's name, for readiness; queues
// without a problem are left out.
func (in *Intake) Problems() map[string]string {
	all := map[string]string{}
	for _, q := range in.queues {
		q.mu.Lock()
		for _, about := range []string{aboutQueue, aboutReceive, aboutTake} {
			if p := q.problems[about]; p != "" && all[q.Name] == "" {
				all[q.Name] = p
			}
		}
		q.mu.Unlock()
	}
	return all
}

// aboutTake is about making jobs of messages, beside aboutQueue and aboutReceive.
const aboutTake = "take in"

func (in *Intake) failed(ctx context.Context, q *intakeQueue, about, meaning string, err error) {
	q.mu.Lock()
	q.problems[about] = about + ": " + meaning
	q.mu.Unlock()
	in.m.up.WithLabelValues(q.Name).Set(0)
	in.faults.failed(ctx, about+" "+q.Name, "sqs intake fails", slog.String("queue", q.Name), slog.String("about", about), slog.String("meaning", meaning), slog.Any("err", err))
}

func (in *Intake) works(ctx context.Context, q *intakeQueue, abouts ...string) {
	q.mu.Lock()
	for _, about := range abouts {
		delete(q.problems, about)
	}
	well := len(q.problems) == 0
	q.mu.Unlock()
	if well {
		in.m.up.WithLabelValues(q.Name).Set(1)
	}
	for _, about := range abouts {
		in.faults.works(ctx, about+" "+q.Name, "sqs intake works again", slog.String("queue", q.Name), slog.String("about", about))
	}
}

// loop receives from one queue until ctx ends; a poll that is open then ends by itself.
func (in *Intake) loop(ctx context.Context, q *intakeQueue) {
	again := retry{Backoff: in.o.Backoff}
	early := retry{Backoff: Backoff{Base: gateEvery, Max: in.o.Wait}}
	for ctx.Err() == nil {
		if !in.mayReceive(ctx, q) {
			sleep(ctx, again.next())
			continue
		}
		start := time.Now()
		arrivals, handles, err := in.receive(ctx, q)
		if err != nil {
			f := sortSQS(err)
			in.failed(ctx, q, aboutReceive, f.intakeSays(), err)
			if f == faultMissing {
				q.url = ""
			}
			sleep(ctx, again.next())
			continue
		}
		in.works(ctx, q, aboutQueue, aboutReceive)
		again.reset()
		switch {
		case len(arrivals) > 0:
			early.reset()
			in.take(ctx, q, arrivals, handles)
		case time.Since(start) >= in.o.Wait/2:
			early.reset()
		default: // a server that doesn't wait must not be asked without a pause
			sleep(ctx, early.next())
		}
	}
}

// mayReceive finds the queue, if need be, and says whether what it would bring could
// be taken in: a message that is received for nothing comes nearer to the
// dead-letter queue.
func (in *Intake) mayReceive(ctx context.Context, q *intakeQueue) bool {
	if q.sick {
		call, cancel := context.WithTimeout(ctx, takeTimeout)
		defer cancel()
		if err := in.o.Ready(call); err != nil {
			if ctx.Err() == nil {
				in.failed(ctx, q, aboutTake, "the database takes no jobs", err)
			}
			return false
		}
		q.sick = false
		in.works(ctx, q, aboutTake)
	}
	if q.url != "" {
		return true
	}
	url, err := in.calls.find(ctx, q.Queue)
	if err != nil {
		in.failed(ctx, q, aboutQueue, sortSQS(err).intakeSays(), err)
		return false
	}
	q.url = url
	return true
}

// intakeSays is says for queues that are not lanegate's to make.
func (f sqsFault) intakeSays() string {
	if f == faultMissing {
		return "the queue does not exist in this region and account, or this identity may not see it"
	}
	return f.says()
}

func (in *Intake) receive(ctx context.Context, q *intakeQueue) ([]service.Arrival, []handle, error) {
	var out *sqs.ReceiveMessageOutput
	err := in.calls.do(ctx, "ReceiveMessage", in.o.Wait+receiveMargin, func(ctx context.Context) (_ bool, err error) {
		out, err = in.calls.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: aws.String(q.url), MaxNumberOfMessages: batchSize,
			WaitTimeSeconds: seconds(in.o.Wait), VisibilityTimeout: seconds(in.o.Visibility),
			MessageAttributeNames:       []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameMessageGroupId},
		})
		return false, err
	})
	if err != nil {
		return nil, nil, err
	}
	in.m.received.WithLabelValues(q.Name).Add(float64(len(out.Messages)))
	arrivals, handles := make([]service.Arrival, len(out.Messages)), make([]handle, len(out.Messages))
	for i, m := range out.Messages {
		arrivals[i], handles[i] = arrivalOf(m), handle{aws.ToString(m.ReceiptHandle), time.Now()}
	}
	return arrivals, handles, nil
}

func arrivalOf(m types.Message) service.Arrival {
	a := service.Arrival{Message: lanegate.Message{
		ID: aws.ToString(m.MessageId), Body: aws.ToString(m.Body), Group: m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)],
	}}
	if n, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]); err == nil {
		a.Receives = n
	}
	for name, v := range m.MessageAttributes {
		if a.Attributes == nil {
			a.Attributes = map[string]lanegate.MessageAttribute{}
		}
		a.Attributes[name] = lanegate.MessageAttribute{Type: aws.ToString(v.DataType), Text: aws.ToString(v.StringValue), Bytes: v.BinaryValue}
	}
	return a
}

// take makes jobs of what was received and deletes what is durable. While the
// database is away it tries again for as long as the messages are nobody else's.
// What was not taken in at a stop is given back at once.
func (in *Intake) take(ctx context.Context, q *intakeQueue, arrivals []service.Arrival, handles []handle) {
	until := handles[0].since.Add(in.o.Visibility * 5 / 6)
	again := retry{Backoff: Backoff{Base: gateEvery, Max: 5 * time.Second}}
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
		taken, err := q.Take(call, arrivals)
		cancel()
		if err == nil {
			in.works(ctx, q, aboutTake)
			in.settle(ctx, q, arrivals, handles, taken)
			return
		}
		q.sick = true
		in.failed(ctx, q, aboutTake, "the database takes no jobs", err)
		pause := again.next()
		if time.Now().Add(pause).After(until) {
			return // they come again by themselves
		}
		sleep(ctx, pause)
	}
	in.m.released.WithLabelValues(q.Name).Add(float64(len(handles)))
	if err := in.calls.setVisibility(ctx, q.url, handles, 0); err != nil {
		in.o.Log.WarnContext(ctx, "giving back sqs messages failed; they come again later", "queue", q.Name, "err", err)
	}
}

// settle deletes the messages whose jobs are committed and counts the others.
func (in *Intake) settle(ctx context.Context, q *intakeQueue, arrivals []service.Arrival, handles []handle, taken []service.Taken) {
	var done []handle
	for i, t := range taken {
		switch {
		case t.Err != nil:
			in.refused(ctx, q, arrivals[i], t.Err)
			continue
		case t.Replayed:
			in.m.replayed.WithLabelValues(q.Name).Inc()
		default:
			in.m.accepted.WithLabelValues(q.Name).Inc()
		}
		done = append(done, handles[i])
	}
	left, err := in.calls.deleteAll(ctx, q.url, done, func(n int) { in.m.deleted.WithLabelValues(q.Name).Add(float64(n)) })
	if left > 0 {
		in.m.undeleted.WithLabelValues(q.Name).Add(float64(left))
		in.faults.failed(ctx, "delete "+q.Name, "deleting sqs messages failed; they come again, and their jobs don't",
			slog.String("queue", q.Name), slog.Int("messages", left), slog.Any("err", err))
	} else if len(done) > 0 {
		in.faults.works(ctx, "delete "+q.Name, "deleting sqs messages works again", slog.String("queue", q.Name))
	}
}

// refused counts a message that stays. Its body is not logged: it is the sender's.
func (in *Intake) refused(ctx context.Context, q *intakeQueue, m service.Arrival, err error) {
	code := "internal"
	if e, ok := errors.AsType[*lanegate.Error](err); ok {
		code = e.Code
	}
	kind := "refused"
	if lanegate.KindOf(err) == lanegate.KindBadRequest {
		kind = "unreadable"
	}
	in.m.refused.WithLabelValues(q.Name, kind).Inc()
	in.faults.failed(ctx, "refused "+q.Name+" "+code, "a message can't become a job; it is left to the queue's dead-letter rule",
		slog.String("queue", q.Name), slog.String("message", m.ID), slog.Int("receives", m.Receives), slog.String("code", code), slog.String("why", reasonOf(err)))
}

// reasonOf is an error as the sender of a message would be told.
func reasonOf(err error) string {
	e, ok := errors.AsType[*lanegate.Error](err)
	if !ok {
		return err.Error()
	}
	var text strings.Builder
	text.WriteString(e.Message)
	for _, f := range e.Fields {
		text.WriteString(" " + f.Pointer + " " + f.Detail)
	}
	return text.String()
}

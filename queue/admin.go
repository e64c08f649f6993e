package queue

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate"
)

// Level says how bad a finding is, and who can mend it.
type Level int

// Levels, rising.
const (
	LevelOK       Level = iota
	LevelNote           // works, but better otherwise
	LevelWrong          // missing or wrong: Create makes or mends it, or the text says who does
	LevelRefused        // this identity may not, or is not accepted
	LevelNoAnswer       // SQS could not be asked
)

// Finding is one thing to say about a lane's queue.
type Finding struct {
	Level Level
	Text  string
}

// Report is what there is to say about one lane's queue.
type Report struct {
	Lane, Queue string
	Findings    []Finding
}

// Worst is the highest level among the findings; LevelOK without any.
func (r Report) Worst() (worst Level) {
	for _, f := range r.Findings {
		worst = max(worst, f.Level)
	}
	return worst
}

func (r *Report) add(l Level, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{l, fmt.Sprintf(format, args...)})
}

// failed adds an error of SQS.
func (r *Report) failed(what string, err error) {
	f := sortSQS(err)
	level := LevelNoAnswer
	switch f {
	case faultMissing, faultInvalid:
		level = LevelWrong
	case faultDenied, faultIdentity:
		level = LevelRefused
	}
	r.add(level, "%s: %s (%s)", what, f.says(), brief(err))
}

// brief is an error's last part, without the SDK's chain of operations.
func brief(err error) string {
	if api, ok := errors.AsType[interface {
		error
		ErrorCode() string
		ErrorMessage() string
	}](err); ok {
		return strings.TrimSuffix(shortCode(api.ErrorCode())+": "+api.ErrorMessage(), ": ")
	}
	text := err.Error()
	return text[strings.LastIndex(text, ", ")+1:]
}

// AdminOptions configure an Admin. The zero value is the SDK's own search.
type AdminOptions struct {
	SQSEndpoint
	Prefix string // as SQSOptions.Prefix
}

// Admin makes and checks the doorbell's queues, one per lane. A running gateway
// never makes any.
type Admin struct {
	calls            *caller
	prefix           string
	Endpoint, Region string // where calls go
}

// OpenAdmin reads the AWS configuration; it makes no call to SQS.
func OpenAdmin(ctx context.Context, o AdminOptions) (*Admin, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if err := CheckPrefix(o.Prefix); err != nil {
		return nil, err
	}
	client, endpoint, err := o.client(ctx)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(nil)
	if err != nil {
		return nil, err
	}
	return &Admin{calls: &caller{client, m.calls}, prefix: o.Prefix, Endpoint: endpoint, Region: client.Options().Region}, nil
}

// What the queues should be like. A bell has some hundred bytes.
const (
	deadSuffix        = "-dead"
	longestName       = 80
	leastRetention    = time.Hour // a queue that forgets earlier loses bells over a deploy
	wantRetention     = 4 * 24 * time.Hour
	wantDeadRetention = 14 * 24 * time.Hour // the most; standard queues count from the first enqueueing
	leastReceives     = 5                   // counts rise by restarts and lost answers, too
	wantReceives      = 10
	wantMessageSize   = 4096
)

// attributes of a queue by their names.
type attributes map[string]string

func (a attributes) seconds(name types.QueueAttributeName) time.Duration {
	n, err := strconv.Atoi(a[string(name)])
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// redrive is a queue's dead-letter rule.
type redrive struct {
	Target   string `json:"deadLetterTargetArn"`
	Receives any    `json:"maxReceiveCount"` // a number, or a text with one
}

func (r redrive) receives() int {
	n, err := strconv.Atoi(fmt.Sprint(r.Receives))
	if err != nil {
		return 0
	}
	return n
}

// redrive is nil when there is none.
func (a attributes) redrive() *redrive {
	var r redrive
	if json.Unmarshal([]byte(a[string(types.QueueAttributeNameRedrivePolicy)]), &r) != nil || r.Target == "" {
		return nil
	}
	return &r
}

// lookUp finds a queue and reads what it is like; url is "" when there is none.
func (a *Admin) lookUp(ctx context.Context, name string) (url string, attrs attributes, err error) {
	url = name
	if !lanegate.IsQueueURL(name) {
		err = a.calls.do(ctx, "GetQueueUrl", callTimeout, func(ctx context.Context) (bool, error) {
			out, err := a.calls.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(name)})
			if err == nil {
				url = aws.ToString(out.QueueUrl)
			}
			return false, err
		})
		if err != nil {
			return "", nil, fmt.Errorf("sqs:GetQueueUrl: %w", err)
		}
	}
	err = a.calls.do(ctx, "GetQueueAttributes", callTimeout, func(ctx context.Context) (bool, error) {
		out, err := a.calls.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
			QueueUrl: aws.String(url), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
		})
		if err == nil {
			attrs = out.Attributes
		}
		return false, err
	})
	if err != nil {
		return "", nil, fmt.Errorf("sqs:GetQueueAttributes: %w", err)
	}
	return url, attrs, nil
}

// Check says what is missing or wrong about the lanes' queues. With ring it sends
// one bell to each, which wakes a worker and changes nothing else, receives and
// deletes it, so that every permission the gateway needs is tried.
func (a *Admin) Check(ctx context.Context, lanes []lanegate.Lane, ring bool) []Report {
	shared := map[string][]string{}
	for _, l := range lanes {
		name := NameFor(l, a.prefix)
		shared[name] = append(shared[name], l.Name)
	}
	reports := make([]Report, 0, len(lanes))
	for _, l := range lanes {
		r := Report{Lane: l.Name, Queue: NameFor(l, a.prefix)}
		if others := shared[r.Queue]; len(others) > 1 {
			r.add(LevelNote, "lanes %s share it: each of them wakes the others' workers", strings.Join(others, " and "))
		}
		url, attrs, err := a.lookUp(ctx, r.Queue)
		if err != nil {
			r.failed("look it up", err)
		} else {
			a.checkAttributes(ctx, &r, attrs)
			if ring && r.Worst() < LevelRefused {
				a.ring(ctx, &r, url)
			}
		}
		reports = append(reports, r)
	}
	return reports
}

func (a *Admin) checkAttributes(ctx context.Context, r *Report, attrs attributes) {
	if attrs[string(types.QueueAttributeNameFifoQueue)] == "true" {
		r.add(LevelWrong, "it is a FIFO queue; a doorbell needs a standard one: name another queue in the lane's settings")
	}
	if d := attrs.seconds(types.QueueAttributeNameDelaySeconds); d > 0 {
		r.add(LevelWrong, "DelaySeconds = %d makes every job wait that long; it must be 0", d/time.Second)
	}
	retention := attrs.seconds(types.QueueAttributeNameMessageRetentionPeriod)
	if retention < leastRetention {
		r.add(LevelWrong, "MessageRetentionPeriod = %d s is too short; at least %d", retention/time.Second, leastRetention/time.Second)
	}
	dead := attrs.redrive()
	if dead == nil {
		r.add(LevelNote, "it has no dead-letter queue: a message that is no bell comes again until its retention is over (`lanegate queues create --dead-letter`)")
		return
	}
	if n := dead.receives(); n < leastReceives {
		r.add(LevelWrong, "maxReceiveCount = %d would move good bells to the dead-letter queue, as restarts count too; at least %d", n, leastReceives)
	}
	name := dead.Target[strings.LastIndex(dead.Target, ":")+1:]
	_, deadAttrs, err := a.lookUp(ctx, name)
	if err != nil {
		r.failed("its dead-letter queue "+name, err)
	} else if d := deadAttrs.seconds(types.QueueAttributeNameMessageRetentionPeriod); d <= retention {
		r.add(LevelWrong, "its dead-letter queue %s keeps messages for %d s, no longer than the queue itself (%d s), and their time counts from the first queue", name, d/time.Second, retention/time.Second)
	}
}

// ring sends a bell, finds it, changes its visibility and deletes it.
func (a *Admin) ring(ctx context.Context, r *Report, url string) {
	body, err := json.Marshal(bellBody{Version: 1, Lane: r.Lane, Job: "check-" + rand.Text()})
	if err != nil {
		r.add(LevelWrong, "%v", err)
		return
	}
	if err := a.sendOne(ctx, url, string(body)); err != nil {
		r.failed("sqs:SendMessage", err)
	}
	var mine string
	for range 3 {
		if mine, err = a.receiveOne(ctx, url, string(body)); err != nil || mine != "" {
			break
		}
	}
	if err != nil {
		r.failed("sqs:ReceiveMessage, sqs:ChangeMessageVisibility", err)
		return
	}
	if mine == "" {
		if r.Worst() < LevelWrong {
			r.add(LevelNote, "the test bell was not received here: a worker has it, or it comes later; deleting was not tried")
		}
		return
	}
	err = a.calls.do(ctx, "DeleteMessageBatch", callTimeout, func(ctx context.Context) (bool, error) {
		_, err := a.calls.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
			QueueUrl: aws.String(url), Entries: []types.DeleteMessageBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: aws.String(mine)}},
		})
		return false, err
	})
	if err != nil {
		r.failed("sqs:DeleteMessage", err)
	}
}

func (a *Admin) sendOne(ctx context.Context, url, body string) error {
	return a.calls.do(ctx, "SendMessageBatch", callTimeout, func(ctx context.Context) (bool, error) {
		out, err := a.calls.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: aws.String(url), Entries: []types.SendMessageBatchRequestEntry{{Id: aws.String("0"), MessageBody: aws.String(body), MessageGroupId: aws.String("check")}},
		})
		if err == nil && len(out.Failed) > 0 {
			err = fmt.Errorf("%s: %s", aws.ToString(out.Failed[0].Code), aws.ToString(out.Failed[0].Message))
		}
		return false, err
	})
}

// receiveOne looks for a message with that body among up to ten and gives the
// others back at once.
func (a *Admin) receiveOne(ctx context.Context, url, body string) (mine string, err error) {
	var out *sqs.ReceiveMessageOutput
	err = a.calls.do(ctx, "ReceiveMessage", receiveMargin, func(ctx context.Context) (_ bool, err error) {
		out, err = a.calls.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: aws.String(url), MaxNumberOfMessages: batchSize, WaitTimeSeconds: 1, VisibilityTimeout: 20,
		})
		return false, err
	})
	if err != nil || len(out.Messages) == 0 {
		return "", err
	}
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(url)}
	for i, m := range out.Messages {
		visible := int32(0)
		if aws.ToString(m.Body) == body {
			mine, visible = aws.ToString(m.ReceiptHandle), 20
		}
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: visible,
		})
	}
	return mine, a.calls.do(ctx, "ChangeMessageVisibilityBatch", callTimeout, func(ctx context.Context) (bool, error) {
		_, err := a.calls.ChangeMessageVisibilityBatch(ctx, in)
		return false, err
	})
}

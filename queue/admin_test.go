//go:build linux

package queue_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/sqstest"
)

func newAdmin(t *testing.T, b *bench) *queue.Admin {
	t.Helper()
	a, err := queue.OpenAdmin(t.Context(), queue.AdminOptions{SQSEndpoint: b.options().SQSEndpoint, Prefix: b.prefix})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// told is all findings as text.
func told(reports []queue.Report) string {
	var s strings.Builder
	for _, r := range reports {
		for _, f := range r.Findings {
			fmt.Fprintf(&s, "%s %d %s\n", r.Lane, f.Level, f.Text)
		}
	}
	return s.String()
}

func wantTold(t *testing.T, what string, reports []queue.Report, lines ...string) {
	t.Helper()
	got := told(reports)
	for _, l := range lines {
		if !strings.Contains(got, l) {
			t.Errorf("%s: lacks %q:\n%s", what, l, got)
		}
	}
	if n := strings.Count(got, "\n"); n != len(lines) {
		t.Errorf("%s: %d findings, want %d:\n%s", what, n, len(lines), got)
	}
}

func (b *bench) attributes(lane string) map[string]string {
	b.t.Helper()
	out, err := b.direct.GetQueueAttributes(b.t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(b.url(lane)), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out.Attributes
}

func TestAdminMakesQueues(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	a := newAdmin(t, b)
	lanes := []lanegate.Lane{{Name: "night"}, {Name: "long", Queue: b.prefix + "their-own"}, {Name: "twin", Queue: b.prefix + "their-own"}}
	wantTold(t, "check before", a.Check(t.Context(), lanes, true),
		"night 2 look it up: the queue does not exist", "long 2 look it up", "long 1 lanes long and twin share it", "twin 2 look it up", "twin 1 lanes long and twin share it")
	wantTold(t, "create", a.Create(t.Context(), lanes, true),
		"night 0 made dead-letter queue "+b.prefix+"night-dead", "night 0 made", "long 0 made dead-letter queue", "long 0 made")
	for name, want := range map[string]string{
		"VisibilityTimeout": "60", "ReceiveMessageWaitTimeSeconds": "20", "MessageRetentionPeriod": "345600", "MaximumMessageSize": "4096",
		"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:` + b.prefix + `night-dead","maxReceiveCount":"10"}`,
	} {
		if got := b.attributes("night")[name]; got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	if got := b.attributes("night-dead")["MessageRetentionPeriod"]; got != "1209600" {
		t.Errorf("the dead-letter queue keeps messages for %s s", got)
	}
	wantTold(t, "create again", a.Create(t.Context(), lanes, true), "night 0 there already", "long 0 there already")
	wantTold(t, "check after", a.Check(t.Context(), lanes[:1], true))
	if n := b.held("night"); n != 0 {
		t.Errorf("checking left %d messages", n)
	}
}

func TestAdminMendsQueues(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	a := newAdmin(t, b)
	b.create("dead", map[string]string{"MessageRetentionPeriod": "60"})
	b.create("night", map[string]string{
		"DelaySeconds": "5", "MessageRetentionPeriod": "60", "VisibilityTimeout": "7",
		"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:` + b.prefix + `dead","maxReceiveCount":2}`,
	})
	lanes := []lanegate.Lane{{Name: "night"}}
	wantTold(t, "check", a.Check(t.Context(), lanes, false),
		"2 DelaySeconds = 5 makes", "2 MessageRetentionPeriod = 60 s is too short", "2 maxReceiveCount = 2 would", "2 its dead-letter queue "+b.prefix+"dead keeps messages for 60 s")
	wantTold(t, "create", a.Create(t.Context(), lanes, true),
		"0 queue changed: DelaySeconds, MessageRetentionPeriod, RedrivePolicy", "0 dead-letter queue "+b.prefix+"dead changed: MessageRetentionPeriod")
	wantTold(t, "check again", a.Check(t.Context(), lanes, false))
	if got := b.attributes("night")["VisibilityTimeout"]; got != "7" {
		t.Errorf("VisibilityTimeout = %s; what does no harm must stay", got)
	}
}

func TestAdminSaysWhatItCantMend(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	a := newAdmin(t, b)
	b.create("x.fifo", map[string]string{"FifoQueue": "true"})
	lanes := []lanegate.Lane{
		{Name: "fifo", Queue: b.prefix + "x.fifo"}, {Name: "new-fifo", Queue: b.prefix + "y.fifo"}, {Name: "url", Queue: "https://sqs.us-east-1.amazonaws.com/1/none"},
		{Name: strings.Repeat("l", 63), Queue: b.prefix + strings.Repeat("l", 74)},
	}
	wantTold(t, "create", a.Create(t.Context(), lanes, true), "\nnew-fifo 2 it does not exist", "fifo 2 it is a FIFO queue", "url 2 it does not exist, and only", "2 no dead-letter queue can be named after it")
	wantTold(t, "check", a.Check(t.Context(), lanes[:1], false), "fifo 2 it is a FIFO queue", "fifo 1 it has no dead-letter queue")
}

// Each refusal is told with its action.
func TestAdminTellsRefusals(t *testing.T) {
	t.Parallel()
	server := sqstest.Shared(t)
	for action, want := range map[string]string{
		"GetQueueUrl": "look it up", "GetQueueAttributes": "look it up", "SendMessageBatch": "sqs:SendMessage:", "ReceiveMessage": "sqs:ReceiveMessage,",
		"ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility:", "DeleteMessageBatch": "sqs:DeleteMessage:",
	} {
		for _, query := range []bool{false, true} {
			b := newBench(t, server)
			b.create("serial-dead", nil)
			b.proxy.Inject(sqstest.Denied(action, query))
			reports := newAdmin(t, b).Check(t.Context(), b.lanes[:1], true)
			if got := told(reports); reports[0].Worst() != queue.LevelRefused || !strings.Contains(got, want) || !strings.Contains(got, "not authorized to perform: sqs:"+action) {
				t.Errorf("%s refused: %s", action, got)
			}
		}
	}
	b := newBench(t, server)
	b.lanes = []lanegate.Lane{{Name: "none"}}
	b.proxy.Inject(sqstest.Denied("CreateQueue", true))
	wantTold(t, "create", newAdmin(t, b).Create(t.Context(), b.lanes, false), "none 3 sqs:CreateQueue: this identity may not")
}

// The test bell takes nothing away from others.
func TestAdminLeavesOtherMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.put("serial", "theirs")
	wantTold(t, "check", newAdmin(t, b).Check(t.Context(), b.lanes[:1], true), "serial 1 it has no dead-letter queue")
	if body, _ := b.get("serial"); body != "theirs" || b.held("serial") != 1 {
		t.Errorf("left in the queue: %q of %d", body, b.held("serial"))
	}
}

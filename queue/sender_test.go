//go:build linux

package queue_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/sqstest"
)

func (b *bench) target(url string) *queue.Sender {
	b.t.Helper()
	s, err := queue.OpenSender(b.t.Context(), queue.SenderOptions{
		SQSEndpoint: queue.SQSEndpoint{Region: sqstest.Region, URL: url, AllowHTTP: true}, Registerer: b.reg,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// A message arrives with all it has, in a queue that is named or given by its URL.
func TestSenderSends(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	s := b.target(b.proxy.URL)
	m := lanegate.Message{Body: `{"a":  "é\n"}`, Group: "class", Dedup: "job-1", Attributes: map[string]lanegate.MessageAttribute{
		"text": {Type: "String", Text: "é"}, "number": {Type: "Number", Text: "3"}, "bytes": {Type: "Binary", Bytes: []byte{0, 255}},
	}}
	fifo := b.create("work.fifo", map[string]string{"FifoQueue": "true"})
	for _, name := range []string{b.prefix + "parallel", b.url("parallel"), b.prefix + "work.fifo", fifo} {
		if err := s.Send(t.Context(), name, m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.held("parallel") != 2 || b.held("work.fifo") != 1 { // the FIFO queue knows the double
		t.Errorf("%d and %d messages", b.held("parallel"), b.held("work.fifo"))
	}
	out, err := b.direct.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(fifo), MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	got := out.Messages[0]
	if *got.Body != m.Body || got.Attributes["MessageGroupId"] != "class" || *got.MessageAttributes["text"].StringValue != "é" ||
		*got.MessageAttributes["number"].StringValue != "3" || string(got.MessageAttributes["bytes"].BinaryValue) != "\x00\xff" {
		t.Errorf("received %+v", got)
	}
	if n := b.proxy.Count("GetQueueUrl"); n != 2 {
		t.Errorf("%d look-ups, want one for each name", n)
	}
	lintMetrics(t, b.reg)
}

// What became of a message that was not taken for certain, and that it is tried once.
func TestSenderFaults(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	s := b.target(b.proxy.URL)
	name := b.prefix + "parallel"
	if err := s.Send(t.Context(), name, lanegate.Message{Body: "x"}); err != nil {
		t.Fatal(err)
	}
	small := b.create("small", map[string]string{"MaximumMessageSize": "1024"})
	for _, tt := range []struct {
		what  string
		fault sqstest.Fault
		queue string
		body  string
		want  lanegate.SendFault
		text  string
		tries int
	}{
		{"C13: enqueued, and the answer gets lost", sqstest.Fault{Drop: true}, name, "x", lanegate.SendUnanswered, "may be in", 1},
		{"C13: enqueued, and the answer is an error", sqstest.Fault{Twice: true, Rewrite: func([]byte) []byte { return []byte("{") }}, name, "x", lanegate.SendUnanswered, "may be in", 1},
		{"a fault of the server", sqstest.Fault{Status: 503, Code: "ServiceUnavailable"}, name, "x", lanegate.SendUnanswered, "no clear answer", 1},
		{"a fault of the server without a body", sqstest.Fault{Status: 500, Code: "InternalFailure"}, name, "x", lanegate.SendUnanswered, "no clear answer", 1},
		{"throttled", sqstest.Throttled(""), name, "x", lanegate.SendThrottled, "slow down", 1},
		{"denied", sqstest.Denied("", true), name, "x", lanegate.SendNotNow, "sqs:SendMessage", 1},
		{"denied, in the other way", sqstest.Denied("", false), name, "x", lanegate.SendNotNow, "sqs:SendMessage", 1},
		{"wrong credentials", sqstest.Fault{Status: 403, Code: "ExpiredToken", Message: "old"}, name, "x", lanegate.SendNotNow, "credentials", 1},
		{"no such queue", sqstest.Fault{}, b.prefix + "nowhere", "x", lanegate.SendNotNow, "create it, or correct the queue's name", 0},
		{"no such URL", sqstest.Fault{}, b.url("parallel") + "-not", "x", lanegate.SendNotNow, "create it, or correct the queue's name", 1},
		{"too large for the queue", sqstest.Fault{}, small, strings.Repeat("x", 2000), lanegate.SendRefused, "SQS refuses", 1},
		{"too large for SQS", sqstest.Fault{}, name, strings.Repeat("x", 1<<20+1), lanegate.SendRefused, "1048577 bytes", 0},
		{"a character that SQS does not take", sqstest.Fault{}, name, "a\x00", lanegate.SendRefused, "U+0000", 0},
	} {
		t.Run(tt.what, func(t *testing.T) {
			tt.fault.Action = "SendMessage"
			b.proxy.Inject(tt.fault)
			before := b.proxy.Count("SendMessage")
			err := s.Send(t.Context(), tt.queue, lanegate.Message{Body: tt.body})
			b.proxy.Clear()
			fault, ok := errors.AsType[*lanegate.SendError](err)
			if !ok || fault.Fault != tt.want || fault.Away || !strings.Contains(fault.Text, tt.text) {
				t.Errorf("error %+v, want %d with %q", err, tt.want, tt.text)
			}
			if n := b.proxy.Count("SendMessage") - before; n != tt.tries {
				t.Errorf("%d calls, want %d", n, tt.tries)
			}
		})
	}
}

// Nobody there: nothing was sent, for certain.
func TestSenderWithoutServer(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	url := b.url("parallel")
	err := b.target(sqstest.FreeAddress(t)).Send(t.Context(), url, lanegate.Message{Body: "x"})
	fault, ok := errors.AsType[*lanegate.SendError](err)
	if !ok || fault.Fault != lanegate.SendNotNow || !fault.Away {
		t.Errorf("error %+v", err)
	}
}

// A queue that was made anew has another address to some servers: after a miss its
// name is looked up again.
func TestSenderLooksAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	s, name := b.target(b.proxy.URL), b.prefix+"parallel"
	m := lanegate.Message{Body: "x"}
	if err := s.Send(t.Context(), name, m); err != nil {
		t.Fatal(err)
	}
	b.delete("parallel")
	if err := s.Send(t.Context(), name, m); err == nil {
		t.Error("sent to a queue that is gone")
	}
	b.create("parallel", nil)
	if err := s.Send(t.Context(), name, m); err != nil || b.proxy.Count("GetQueueUrl") != 2 {
		t.Errorf("%v after %d look-ups", err, b.proxy.Count("GetQueueUrl"))
	}
}

package queue

import (
	"context"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate"
)

// SenderOptions configure a Sender.
type SenderOptions struct {
	SQSEndpoint
	// Registerer gets the metrics; nil: nobody.
	Registerer prometheus.Registerer
}

// Sender sends single messages to queues of other people. It is safe for
// concurrent use.
type Sender struct {
	calls            *caller
	Endpoint, Region string // where calls go

	mu   sync.Mutex
	urls map[string]string // by queue, as it is named; guarded by mu
}

// OpenSender reads the AWS configuration; it makes no call to SQS.
func OpenSender(ctx context.Context, o SenderOptions) (*Sender, error) {
	client, endpoint, err := o.client(ctx)
	if err != nil {
		return nil, err
	}
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lanegate_sqs_target_calls_total",
		Help: "Calls to SQS for runs of kind sqs, by action and outcome.",
	}, []string{"action", "outcome"})
	if o.Registerer != nil {
		if err := o.Registerer.Register(calls); err != nil {
			return nil, err
		}
	}
	return &Sender{calls: &caller{client, calls}, Endpoint: endpoint, Region: client.Options().Region, urls: map[string]string{}}, nil
}

// Send puts a message into a queue, given by its name or URL, with one try: the
// error, a *lanegate.SendError, says whether it may be there all the same. A
// message for a FIFO queue needs Group and Dedup, for others they are left out.
//
// The end of ctx cuts nothing off: the answer comes within 10 s.
func (s *Sender) Send(ctx context.Context, queue string, m lanegate.Message) error {
	if err := m.Check(); err != nil {
		return &lanegate.SendError{Fault: lanegate.SendRefused, Text: "the message can't be sent: " + err.Error(), Err: err}
	}
	url, err := s.address(ctx, queue)
	if err != nil {
		return sendError(queue, sortSQS(err), false, err)
	}
	in := &sqs.SendMessageInput{QueueUrl: aws.String(url), MessageBody: aws.String(m.Body), MessageAttributes: attributesOf(m)}
	if strings.HasSuffix(url, lanegate.FIFOSuffix) {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String(m.Group), aws.String(m.Dedup)
	}
	// Calls for credentials may come before; the last connection is the message's.
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { connected.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	err = s.calls.do(ctx, "SendMessage", callTimeout, func(ctx context.Context) (bool, error) {
		_, err := s.calls.SendMessage(ctx, in, oneTry)
		return false, err
	})
	if err == nil {
		return nil
	}
	fault := sortSQS(err)
	if fault == faultMissing {
		s.mu.Lock()
		delete(s.urls, queue)
		s.mu.Unlock()
	}
	return sendError(queue, fault, connected.Load(), err)
}

// oneTry keeps the SDK from repeating a call by itself: the answer to a repeat says
// nothing about the call before it, which may have been heard.
func oneTry(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }

// address is the queue's URL; a name's is asked for once.
func (s *Sender) address(ctx context.Context, queue string) (string, error) {
	if lanegate.IsQueueURL(queue) {
		return queue, nil
	}
	s.mu.Lock()
	url := s.urls[queue]
	s.mu.Unlock()
	if url != "" {
		return url, nil
	}
	url, err := s.calls.find(ctx, queue)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urls[queue] = url
	return url, nil
}

// sendError words why a message was not taken; heard says that it may have been
// received before the error came.
func sendError(queue string, fault sqsFault, heard bool, err error) *lanegate.SendError {
	name := "queue " + queue
	e := &lanegate.SendError{Fault: lanegate.SendNotNow, Err: err}
	switch fault {
	case faultMissing:
		e.Text = name + " does not exist in this region and account, or this identity may not see it: create it, or correct the queue's name"
	case faultDenied:
		e.Text = "this gateway's identity may not send to " + name + ": it needs sqs:SendMessage and sqs:GetQueueUrl there (and with a KMS key of your own kms:GenerateDataKey and kms:Decrypt)"
	case faultIdentity:
		e.Text = "AWS does not accept the gateway's credentials, or it has none"
	case faultThrottled:
		e.Fault, e.Text = lanegate.SendThrottled, "SQS asks to slow down with "+name
	case faultInvalid:
		e.Fault, e.Text = lanegate.SendRefused, "SQS refuses the message for "+name
	case faultAway:
		if heard {
			e.Fault, e.Text = lanegate.SendUnanswered, "SQS gave no clear answer; the message may be in "+name
		} else {
			e.Away, e.Text = true, "SQS can't be reached"
		}
	}
	e.Text += " (" + brief(err) + ")"
	return e
}

// attributesOf are the attributes as the SDK takes them.
func attributesOf(m lanegate.Message) map[string]types.MessageAttributeValue {
	if len(m.Attributes) == 0 {
		return nil
	}
	out := make(map[string]types.MessageAttributeValue, len(m.Attributes))
	for name, a := range m.Attributes {
		v := types.MessageAttributeValue{DataType: aws.String(a.Type)}
		if strings.HasPrefix(a.Type, "Binary") {
			v.BinaryValue = a.Bytes
		} else {
			v.StringValue = aws.String(a.Text)
		}
		out[name] = v
	}
	return out
}

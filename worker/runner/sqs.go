package runner

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/lanegate/lanegate"
)

// DefaultThrottledFor is how long a job stands aside whose queue asks to slow down.
const DefaultThrottledFor = time.Minute

// Sender puts messages into queues.
type Sender interface {
	// Send tries once. Its error is a *lanegate.SendError.
	Send(ctx context.Context, queue string, m lanegate.Message) error
}

// SQSOptions configure an SQS runner. Sender is required.
type SQSOptions struct {
	Sender Sender
	// PublicURL is where consumers reach the gateway, without a slash behind; "" when
	// nobody said.
	PublicURL string
	// SendFor is how long sending is tried while nobody can be reached;
	// DefaultConnectFor when zero.
	SendFor time.Duration
	Logger  *slog.Logger // slog.Default when nil
}

// SQS hands jobs to a consumer behind a queue, as HTTP does in mode async: the
// payload is the message's body, and its attributes have what the consumer needs
// to report by itself. It is safe for concurrent use.
type SQS struct{ opts SQSOptions }

// NewSQS returns a runner.
func NewSQS(o SQSOptions) *SQS {
	if o.Sender == nil {
		panic("runner: NewSQS: Sender is required")
	}
	if o.SendFor == 0 {
		o.SendFor = DefaultConnectFor
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &SQS{o}
}

// Run implements Runner for a run of kind sqs. A message that was sent, or may have
// been, leaves no outcome: if a consumer has it, it will say so; if not, the
// attempt's deadline passes. What certainly was not sent failed, for good where
// the same message would be refused again; a queue that asks to slow down defers.
//
// The message must be sent within the run's heartbeat, as the attempt is lost then.
func (q *SQS) Run(ctx context.Context, job Job, lease Lease) lanegate.Ending {
	began := time.Now()
	ctx, release := withLease(ctx, lease)
	defer release()
	limit := heartbeatOf(job.Run)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, timeLimit(limit))
	defer cancel()
	end := q.ending(ctx, job, q.send(ctx, job, lease))
	end.Duration = max(time.Since(began), 1)
	return end
}

// send repeats only what certainly did not arrive. The lease is looked at before each
// try: a process that was frozen has its timers run late.
func (q *SQS) send(ctx context.Context, job Job, lease Lease) error {
	giveUp := time.Now().Add(q.opts.SendFor)
	m := q.message(job)
	for pause := connectPause; ; pause = min(2*pause, connectMost) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if deadline, fenced := lease.Deadline(); fenced && deadline <= Boottime() {
			return ErrFenced
		}
		err := q.opts.Sender.Send(ctx, job.Run.Queue, m)
		var fault *lanegate.SendError
		if !errors.As(err, &fault) || !fault.Away && fault.Fault != lanegate.SendThrottled {
			return err
		}
		wait := rand.N(pause) + time.Millisecond // full jitter
		if time.Now().Add(wait).After(giveUp) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (q *SQS) ending(ctx context.Context, job Job, err error) lanegate.Ending {
	if err == nil {
		return lanegate.Ending{}
	}
	fault, ok := errors.AsType[*lanegate.SendError](err)
	if !ok {
		if limit, late := errors.AsType[timeLimit](err); late {
			return lanegate.Ending{Outcome: lanegate.TimedOut, Error: "timed out, nothing was sent: " + limit.Error()}
		}
		return stopped(reasonOf(err), "nothing was sent")
	}
	switch fault.Fault {
	case lanegate.SendUnanswered:
		q.opts.Logger.WarnContext(ctx, "no clear answer from a target's queue; its consumer has the run, or the attempt's deadline will pass",
			"job", job.ID, "class", job.Class, "attempt", job.Attempt, "queue", job.Run.Queue, "err", fault.Err)
		return lanegate.Ending{}
	case lanegate.SendThrottled:
		return lanegate.Ending{Outcome: lanegate.Deferred, DeferFor: DefaultThrottledFor, Error: "nothing was sent: " + fault.Text}
	case lanegate.SendRefused:
		return lanegate.Ending{Outcome: lanegate.Failed, Permanent: true, Error: "nothing was sent: " + fault.Text}
	}
	return lanegate.Ending{Outcome: lanegate.Failed, Error: "nothing was sent: " + fault.Text}
}

// message is the job as the consumer gets it. In a FIFO queue the runs of a class
// stay in order, and a doubled send of one attempt is one message.
func (q *SQS) message(job Job) lanegate.Message {
	number := strconv.Itoa(job.Attempt)
	m := lanegate.Message{
		Body: string(job.Payload), Group: job.Class, Dedup: job.ID + "-" + number,
		Attributes: map[string]lanegate.MessageAttribute{"Lanegate-Attempt": {Type: "Number", Text: number}},
	}
	for name, value := range map[string]string{
		"Lanegate-Job-Id": job.ID, "Lanegate-Class": job.Class, "Lanegate-Token": job.Token,
		"Lanegate-Heartbeat-Seconds": heartbeatSeconds(job.Run), "Lanegate-Logical-Date": job.LogicalDate,
		"Lanegate-Attempt-Url": attemptURL(q.opts.PublicURL, job),
	} {
		if value != "" {
			m.Attributes[name] = lanegate.MessageAttribute{Type: "String", Text: value}
		}
	}
	return m
}

// attemptURL is where the attempt's heartbeats and its completion go, "" when the
// gateway does not know how it is reached.
func attemptURL(public string, job Job) string {
	if public == "" {
		return ""
	}
	return public + "/jobs/" + job.ID + "/attempts/" + strconv.Itoa(job.Attempt)
}

// heartbeatSeconds is the run's heartbeat as targets get it.
func heartbeatSeconds(r lanegate.Run) string {
	return strconv.FormatFloat(heartbeatOf(r).Seconds(), 'f', -1, 64)
}

package queue

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate/service"
)

// gateEvery is how often a closed gate is looked at.
const gateEvery = 100 * time.Millisecond

// delivery are the bells of one answer, until a pass of admission answers them.
type delivery struct {
	answered chan service.Pass // room for the one answer there may be
}

// answer is called by whoever took the delivery out of the inbox, once.
func (d *delivery) answer(p service.Pass) { d.answered <- p }

// receiveLoop asks for a lane's messages as long as they can be answered, until
// ctx ends; a poll that is open then ends by itself.
func (s *SQS) receiveLoop(ctx context.Context, q *laneQueue) {
	again := retry{Backoff: s.o.Backoff}
	early := retry{Backoff: Backoff{Base: gateEvery, Max: s.o.Wait}}
	var done []handle
	defer func() { s.deleteAll(ctx, q, done) }()
	for s.mayReceive(ctx, q) {
		url, _ := q.address()
		if url == "" {
			continue
		}
		start := time.Now()
		messages, err := s.receive(ctx, url)
		if err != nil {
			if s.queueFailed(ctx, q, aboutReceive, err) != faultMissing {
				sleep(ctx, again.next())
			}
			continue
		}
		s.queueWorks(ctx, q, aboutReceive)
		again.reset()
		switch {
		case len(messages) > 0:
			q.hears()
			early.reset()
			done = append(done, s.take(ctx, q, url, messages)...)
		case time.Since(start) >= s.o.Wait/2:
			early.reset()
		default: // a server that doesn't wait must not be asked without a pause
			sleep(ctx, early.next())
		}
		if len(done) >= batchSize || len(messages) == 0 || len(done) > 0 && time.Since(done[0].since) > deletedWithin {
			done = s.deleteAll(ctx, q, done)
		}
	}
}

// mayReceive waits until a message could be answered; false when ctx ended first.
func (s *SQS) mayReceive(ctx context.Context, q *laneQueue) bool {
	for ctx.Err() == nil {
		if url, _ := q.address(); url != "" && s.well() && s.o.Gate(q.lane) {
			return true
		}
		sleep(ctx, gateEvery)
	}
	return false
}

func (s *SQS) receive(ctx context.Context, url string) ([]types.Message, error) {
	var out *sqs.ReceiveMessageOutput
	err := s.calls.do(ctx, "ReceiveMessage", s.o.Wait+receiveMargin, func(ctx context.Context) (_ bool, err error) {
		out, err = s.calls.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: aws.String(url), MaxNumberOfMessages: batchSize,
			WaitTimeSeconds: seconds(s.o.Wait), VisibilityTimeout: seconds(s.o.Visibility),
		})
		return false, err
	})
	if err != nil {
		return nil, err
	}
	return out.Messages, nil
}

// take rings for what was received and waits until a pass of admission has
// answered it. It returns what is to be deleted.
func (s *SQS) take(ctx context.Context, q *laneQueue, url string, messages []types.Message) []handle {
	since := time.Now()
	var bells []handle
	var unknown []handle
	for _, m := range messages {
		h := handle{aws.ToString(m.ReceiptHandle), since}
		if isBell(aws.ToString(m.Body)) {
			bells = append(bells, h)
			continue
		}
		unknown = append(unknown, h)
		s.faults.failed(ctx, "unknown "+q.lane, "a message in a doorbell's queue is no bell; it is left to the queue's dead-letter rule",
			slog.String("lane", q.lane), slog.String("queue", q.name), slog.String("message", aws.ToString(m.MessageId)))
	}
	if len(unknown) > 0 {
		s.m.unknown.WithLabelValues(q.lane).Add(float64(len(unknown)))
		s.setVisibility(ctx, q, url, unknown, s.o.UnknownVisibility)
	}
	if len(bells) == 0 {
		return nil
	}
	s.m.received.WithLabelValues(q.lane).Add(float64(len(bells)))
	switch s.await(ctx, q) {
	case service.PassCommitted:
		return bells
	case service.PassFull:
		s.giveBack(ctx, q, url, bells)
	case service.PassFailed: // they come again by themselves
	}
	return nil
}

// isBell says whether a body is a message of ours that this version understands.
func isBell(body string) bool {
	var b bellBody
	return json.Unmarshal([]byte(body), &b) == nil && b.Version == 1 && b.Lane != ""
}

// await rings and waits for the answer of a pass that began after it. Without one
// the answer is PassFull when this process stops, PassFailed when the messages
// are about to be somebody else's.
func (s *SQS) await(ctx context.Context, q *laneQueue) service.Pass {
	d := &delivery{answered: make(chan service.Pass, 1)}
	if ctx.Err() != nil {
		return service.PassFull
	}
	s.mu.Lock()
	s.inbox = append(s.inbox, d)
	s.mu.Unlock()
	s.Local.Ring(q.lane)
	timer := time.NewTimer(s.o.Visibility * 5 / 6)
	defer timer.Stop()
	select {
	case p := <-d.answered:
		return p
	case <-ctx.Done():
		s.withdraw(d)
		select { // answered after all
		case p := <-d.answered:
			return p
		default:
			return service.PassFull
		}
	case <-timer.C:
		s.withdraw(d)
		return service.PassFailed
	}
}

// withdraw takes a delivery out of the inbox, if no pass has it.
func (s *SQS) withdraw(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inbox = slices.DeleteFunc(s.inbox, func(e *delivery) bool { return e == d })
}

// giveBack makes messages visible at once.
func (s *SQS) giveBack(ctx context.Context, q *laneQueue, url string, messages []handle) {
	s.m.released.WithLabelValues(q.lane).Add(float64(len(messages)))
	s.setVisibility(ctx, q, url, messages, 0)
}

// setVisibility says when messages may be received again, from now. A failure
// changes only when that is.
func (s *SQS) setVisibility(ctx context.Context, q *laneQueue, url string, messages []handle, d time.Duration) {
	if err := s.calls.setVisibility(ctx, url, messages, d); err != nil {
		s.faults.failed(ctx, "visibility "+q.lane, "giving back sqs messages failed; they come again later", slog.String("lane", q.lane), slog.Any("err", err))
	} else {
		s.faults.works(ctx, "visibility "+q.lane, "giving back sqs messages works again", slog.String("lane", q.lane))
	}
}

// deleteAll deletes messages, ten at a time. What can't be deleted comes again,
// which costs a look at the database. It returns the empty rest.
func (s *SQS) deleteAll(ctx context.Context, q *laneQueue, done []handle) []handle {
	url, _ := q.address()
	if url == "" {
		return nil
	}
	left, err := s.calls.deleteAll(ctx, url, done, func(n int) { s.m.deleted.WithLabelValues(q.lane).Add(float64(n)) })
	if left > 0 {
		s.faults.failed(ctx, "delete "+q.lane, "deleting sqs messages failed; they come again", slog.String("lane", q.lane), slog.Int("messages", left), slog.Any("err", err))
	} else if len(done) > 0 {
		s.faults.works(ctx, "delete "+q.lane, "deleting sqs messages works again", slog.String("lane", q.lane))
	}
	return nil
}

package queue

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate/service"
)

// sweepLoop looks now and then for lanes in which nothing runs although jobs wait
// that were rung long ago, and rings them again, unless SQS still holds as many
// messages: a deep and healthy backlog would otherwise be rung for ever.
func (s *SQS) sweepLoop(ctx context.Context) {
	every := retry{Backoff: Backoff{Base: s.o.Sweep, Max: s.o.Sweep}} // its random part keeps replicas apart
	for sleep(ctx, every.next()) {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.faults.failed(ctx, "sweep", "looking for lost bells failed", slog.Any("err", err))
			continue
		}
		s.faults.works(ctx, "sweep", "looking for lost bells works again")
	}
}

func (s *SQS) sweep(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stale, err := s.o.Bells.StaleBells(call)
	if err != nil {
		return fmt.Errorf("list idle lanes: %w", err)
	}
	s.listen(ctx, stale)
	for _, l := range stale {
		q := s.queue(l.Lane)
		if q == nil {
			continue
		}
		url, _ := q.address()
		if url == "" {
			continue // its keeper rings when it is back
		}
		waiting, err := s.depth(ctx, url)
		if err != nil {
			return fmt.Errorf("ask for the depth of queue %s: %w", q.name, err)
		}
		if waiting >= l.Queued {
			continue
		}
		s.m.swept.WithLabelValues(l.Lane).Inc()
		s.ringLane(ctx, q)
	}
	return nil
}

// listen tells of lanes whose jobs wait and were rung while nothing comes from their
// queue. SQS answers so, without an error, where 120,000 messages are in flight.
func (s *SQS) listen(ctx context.Context, stale []service.StaleLane) {
	waiting := map[string]int{}
	for _, l := range stale {
		waiting[l.Lane] = l.Queued
	}
	for _, q := range s.allQueues() {
		n, silent := waiting[q.lane], q.unheard()
		if n == 0 || !s.serves(q.lane) {
			s.m.unheard.WithLabelValues(q.lane).Set(0)
			s.faults.works(ctx, "unheard "+q.lane, "no jobs wait unheard any more", slog.String("lane", q.lane))
			continue
		}
		s.m.unheard.WithLabelValues(q.lane).Set(silent.Seconds())
		if silent >= s.o.Unheard {
			s.faults.failed(ctx, "unheard "+q.lane, "jobs wait in an idle lane, and nothing comes from its queue",
				slog.String("lane", q.lane), slog.String("queue", q.name), slog.Int("waiting", n), slog.String("for", silent.Round(time.Second).String()))
		}
	}
}

// depth is how many messages wait in the queue to be received, about.
func (s *SQS) depth(ctx context.Context, url string) (waiting int, err error) {
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesDelayed}
	err = s.calls.do(ctx, "GetQueueAttributes", callTimeout, func(ctx context.Context) (bool, error) {
		out, err := s.calls.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: aws.String(url), AttributeNames: names})
		if err != nil {
			return false, err
		}
		for _, name := range names {
			n, err := strconv.Atoi(out.Attributes[string(name)])
			if err != nil {
				return false, fmt.Errorf("attribute %s: %w", name, err)
			}
			waiting += n
		}
		return false, nil
	})
	return waiting, err
}

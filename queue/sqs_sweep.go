package queue

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
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

package queue

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// deleteTries are made before a deletion is given up: the message comes again.
const deleteTries = 3

// handle is a received message that is to be deleted or given back.
type handle struct {
	receipt string
	since   time.Time
}

// setVisibility says when up to ten messages may be received again, from now.
func (c *caller) setVisibility(ctx context.Context, url string, messages []handle, d time.Duration) error {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(url)}
	for i, h := range messages {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(h.receipt), VisibilityTimeout: seconds(d),
		})
	}
	return c.do(ctx, "ChangeMessageVisibilityBatch", callTimeout, func(ctx context.Context) (bool, error) {
		out, err := c.ChangeMessageVisibilityBatch(ctx, in)
		return err == nil && len(out.Failed) > 0, err
	})
}

// deleteAll deletes messages, ten at a time, and repeats what fails until ctx ends.
// deleted is told how many went each time; left is how many were given up, and err
// why the last of them was, nil where SQS named them in an answer.
func (c *caller) deleteAll(ctx context.Context, url string, messages []handle, deleted func(n int)) (left int, err error) {
	for batch := range slices.Chunk(messages, batchSize) {
		again := retry{Backoff: Backoff{Base: gateEvery, Max: time.Second}}
		for try := 1; len(batch) > 0; try++ {
			rest, done, batchErr := c.deleteBatch(ctx, url, batch)
			deleted(done)
			if batch = rest; len(batch) == 0 {
				break
			}
			if try == deleteTries || ctx.Err() != nil {
				left, err = left+len(batch), batchErr
				break
			}
			sleep(ctx, again.next())
		}
	}
	return left, err
}

// deleteBatch deletes up to ten messages and returns those that were not. A handle
// that SQS does not accept any more is not among them: the message comes again.
func (c *caller) deleteBatch(ctx context.Context, url string, batch []handle) (left []handle, deleted int, err error) {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(url)}
	for i, h := range batch {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(h.receipt)})
	}
	var out *sqs.DeleteMessageBatchOutput
	err = c.do(ctx, "DeleteMessageBatch", callTimeout, func(ctx context.Context) (_ bool, err error) {
		out, err = c.DeleteMessageBatch(ctx, in)
		return err == nil && len(out.Failed) > 0, err
	})
	if err != nil {
		return batch, 0, err
	}
	for _, e := range out.Failed {
		if i, err := strconv.Atoi(aws.ToString(e.Id)); err == nil && i >= 0 && i < len(batch) && !e.SenderFault {
			left = append(left, batch[i])
		}
	}
	return left, len(out.Successful), nil
}

package queue

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// OpenOver is OpenSQS over a client of the test's own.
func OpenOver(ctx context.Context, o SQSOptions, client *sqs.Client) (*SQS, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	return openOver(ctx, o, client, "memory")
}

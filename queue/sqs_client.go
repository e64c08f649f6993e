package queue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate"
)

const (
	// callTimeout bounds one call that doesn't wait for messages, repeats inside the SDK included.
	callTimeout = 5 * time.Second
	// receiveMargin is what a receiving call may take beyond its wait.
	receiveMargin = 10 * time.Second
	// idleConns are kept to the endpoint: one per open poll and some for the rest.
	idleConns = 100
)

// SQSEndpoint says how to reach SQS. The zero value is the SDK's own search:
// environment, shared files, the container's or the instance's role.
type SQSEndpoint struct {
	Region string
	// URL instead of the region's endpoint, as AWS_ENDPOINT_URL_SQS.
	URL string
	// AllowHTTP takes an endpoint without TLS, for tests and demos on one machine:
	// requests to it can be read and changed on their way.
	AllowHTTP bool
}

// client makes a client; it makes no call. endpoint is where calls will go.
func (e SQSEndpoint) client(ctx context.Context) (c *sqs.Client, endpoint string, err error) {
	var opts []func(*config.LoadOptions) error
	if e.Region != "" {
		opts = append(opts, config.WithRegion(e.Region))
	}
	// The SDK has no time limit for an answer: every call has a context that has.
	// Its own log lines have another form than ours; what matters comes back as an error.
	opts = append(opts, config.WithLogger(logging.Nop{}), config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = idleConns
	})))
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, "", fmt.Errorf("read the AWS configuration: %w", err)
	}
	if cfg.Region == "" {
		return nil, "", errors.New("no AWS region: set sqs.region in the config file, AWS_REGION, or region in the shared AWS config file")
	}
	c = sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if e.URL != "" {
			o.BaseEndpoint = aws.String(e.URL)
		}
	})
	if endpoint, err = endpointOf(ctx, c); err != nil {
		return nil, "", fmt.Errorf("no SQS endpoint for region %s: %w", cfg.Region, err)
	}
	if strings.HasPrefix(strings.ToLower(endpoint), "http:") && !e.AllowHTTP {
		return nil, "", fmt.Errorf("the SQS endpoint %s has no TLS: use an https endpoint (unset AWS_ENDPOINT_URL_SQS and AWS_ENDPOINT_URL for Amazon's), or allow plain HTTP for a test server", endpoint)
	}
	return c, endpoint, nil
}

// endpointOf asks the SDK's rules where calls go: environment and shared files
// show only in the made client's options.
func endpointOf(ctx context.Context, c *sqs.Client) (string, error) {
	o := c.Options()
	ep, err := o.EndpointResolverV2.ResolveEndpoint(ctx, sqs.EndpointParameters{
		Region: aws.String(o.Region), Endpoint: o.BaseEndpoint,
		UseDualStack: aws.Bool(o.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled),
		UseFIPS:      aws.Bool(o.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled),
	})
	if err != nil {
		return "", err
	}
	return ep.URI.String(), nil
}

// caller makes calls under their time limits and counts them by action and outcome.
type caller struct {
	*sqs.Client
	calls *prometheus.CounterVec
}

// do makes one call. A stop doesn't cut it off: a poll that is cut off may
// swallow the next message, and a send's outcome would be unknown. fn says
// whether a batch succeeded in part only.
func (c *caller) do(ctx context.Context, action string, limit time.Duration, fn func(ctx context.Context) (partial bool, err error)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	partial, err := fn(ctx)
	outcome := string(sortSQS(err))
	if partial && err == nil {
		outcome = "partial"
	}
	c.calls.WithLabelValues(action, outcome).Inc()
	return err
}

// find asks SQS for the URL of a queue that is given by name or URL.
func (c *caller) find(ctx context.Context, queue string) (url string, err error) {
	if lanegate.IsQueueURL(queue) {
		return queue, c.do(ctx, "GetQueueAttributes", callTimeout, func(ctx context.Context) (bool, error) {
			_, err := c.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
				QueueUrl: aws.String(queue), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
			})
			return false, err
		})
	}
	err = c.do(ctx, "GetQueueUrl", callTimeout, func(ctx context.Context) (bool, error) {
		out, err := c.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(queue)})
		if err == nil {
			url = aws.ToString(out.QueueUrl) // as it is: another spelling is another queue to some servers
		}
		return false, err
	})
	return url, err
}

// sqsFault sorts what SQS can answer instead of a result. The values are labels.
type sqsFault string

const (
	faultNone      sqsFault = "ok"
	faultMissing   sqsFault = "missing"     // no such queue here, or not for us to see
	faultDenied    sqsFault = "denied"      // this identity may not
	faultIdentity  sqsFault = "credentials" // who we are was not accepted, or is not known
	faultThrottled sqsFault = "throttled"
	faultInvalid   sqsFault = "invalid" // a request or an attribute of ours is wrong
	faultAway      sqsFault = "away"    // no answer, a time-out, a fault of the server
)

var faultCodes = map[string]sqsFault{
	"NonExistentQueue": faultMissing, "QueueDoesNotExist": faultMissing,
	"AccessDenied": faultDenied, "AccessDeniedException": faultDenied, "KMS.AccessDeniedException": faultDenied, "KmsAccessDenied": faultDenied,
	"ExpiredToken": faultIdentity, "ExpiredTokenException": faultIdentity, "InvalidClientTokenId": faultIdentity, "InvalidAccessKeyId": faultIdentity,
	"UnrecognizedClientException": faultIdentity, "SignatureDoesNotMatch": faultIdentity, "InvalidSignatureException": faultIdentity,
	"MissingAuthenticationToken": faultIdentity, "MissingAuthenticationTokenException": faultIdentity, "IncompleteSignature": faultIdentity, "OptInRequired": faultIdentity,
	"RequestThrottled": faultThrottled, "ThrottlingException": faultThrottled, "Throttling": faultThrottled, "TooManyRequestsException": faultThrottled,
	"OverLimit": faultThrottled, "KMS.ThrottlingException": faultThrottled, "KmsThrottled": faultThrottled, "QueueDeletedRecently": faultThrottled,
	"InternalFailure": faultAway, "InternalError": faultAway, "ServiceUnavailable": faultAway, "RequestTimeout": faultAway,
}

// sortSQS sorts an error by its type and, as emulators and older paths send codes
// without a type of ours, by its code.
func sortSQS(err error) sqsFault {
	if err == nil {
		return faultNone
	}
	if _, ok := errors.AsType[*types.QueueDoesNotExist](err); ok {
		return faultMissing
	}
	if _, ok := errors.AsType[*types.RequestThrottled](err); ok {
		return faultThrottled
	}
	if _, ok := errors.AsType[*types.OverLimit](err); ok {
		return faultThrottled
	}
	if _, ok := errors.AsType[*types.KmsAccessDenied](err); ok {
		return faultDenied
	}
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		if strings.Contains(err.Error(), "get identity") || strings.Contains(err.Error(), "get credentials") {
			return faultIdentity // the SDK has no type for a failed search for credentials
		}
		return faultAway
	}
	if f, ok := faultCodes[shortCode(api.ErrorCode())]; ok {
		return f
	}
	if status := statusOf(err); status >= 500 {
		return faultAway
	} else if status == http.StatusTooManyRequests {
		return faultThrottled
	} else if status == http.StatusForbidden {
		return faultDenied
	}
	return faultInvalid
}

// shortCode is a code without the prefix that older protocols give it.
func shortCode(code string) string {
	return strings.TrimPrefix(code, "AWS.SimpleQueueService.")
}

func statusOf(err error) int {
	if res, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return res.HTTPStatusCode()
	}
	return 0
}

// says is what a fault means and what to do, for people.
func (f sqsFault) says() string {
	switch f {
	case faultMissing:
		return "the queue does not exist in this region and account, or this identity may not see it; `lanegate queues check` tells more, `lanegate queues create` makes it"
	case faultDenied:
		return "this identity may not do that; the IAM actions are listed in docs/sqs.md"
	case faultIdentity:
		return "AWS does not accept the credentials, or there are none"
	case faultThrottled:
		return "SQS asks to slow down"
	case faultInvalid:
		return "SQS refuses the request"
	}
	return "SQS gives no answer"
}

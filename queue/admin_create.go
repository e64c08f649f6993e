package queue

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate"
)

// Create makes the lanes' queues where they are missing, each with a dead-letter
// queue if deadLetter is set, and mends those attributes of present ones that
// Check calls wrong; other settings of theirs stay. Doing it again does nothing.
// Its findings say what was done (LevelOK) and what could not be.
func (a *Admin) Create(ctx context.Context, lanes []lanegate.Lane, deadLetter bool) []Report {
	done := map[string]bool{}
	var reports []Report
	for _, l := range lanes {
		r := Report{Lane: l.Name, Queue: NameFor(l, a.prefix)}
		if !done[r.Queue] {
			done[r.Queue] = true
			a.createOne(ctx, &r, deadLetter)
		}
		reports = append(reports, r)
	}
	return reports
}

func (a *Admin) createOne(ctx context.Context, r *Report, deadLetter bool) {
	url, attrs, err := a.lookUp(ctx, r.Queue)
	missing := sortSQS(err) == faultMissing
	if err != nil && !missing {
		r.failed("look it up", err)
		return
	}
	if missing && (lanegate.IsQueueURL(r.Queue) || strings.HasSuffix(r.Queue, ".fifo")) {
		r.add(LevelWrong, "it does not exist, and only a standard queue given by its name can be made here")
		return
	}
	if !missing && attrs[string(types.QueueAttributeNameFifoQueue)] == "true" {
		r.add(LevelWrong, "it is a FIFO queue; a doorbell needs a standard one: name another queue in the lane's settings")
		return
	}
	want := mend(attrs)
	if missing {
		want = map[string]string{
			"VisibilityTimeout": "60", "ReceiveMessageWaitTimeSeconds": "20",
			"MessageRetentionPeriod": secondsText(wantRetention), "MaximumMessageSize": strconv.Itoa(wantMessageSize),
		}
	}
	dead := attrs.redrive()
	switch {
	case dead != nil && dead.receives() < leastReceives:
		want["RedrivePolicy"] = policy(dead.Target)
	case dead == nil && deadLetter:
		arn := a.createDead(ctx, r)
		if arn == "" {
			return // it has said why
		}
		want["RedrivePolicy"] = policy(arn)
	}
	a.apply(ctx, r, url, want)
	if dead != nil {
		retention := attrs.seconds(types.QueueAttributeNameMessageRetentionPeriod)
		a.mendDead(ctx, r, dead.Target, max(retention, leastRetention))
	}
}

// mend is what must change about a present queue.
func mend(attrs attributes) map[string]string {
	want := map[string]string{}
	if attrs.seconds(types.QueueAttributeNameDelaySeconds) > 0 {
		want["DelaySeconds"] = "0"
	}
	if attrs.seconds(types.QueueAttributeNameMessageRetentionPeriod) < leastRetention {
		want["MessageRetentionPeriod"] = secondsText(wantRetention)
	}
	return want
}

func secondsText(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func policy(arn string) string {
	text, err := json.Marshal(redrive{arn, strconv.Itoa(wantReceives)})
	if err != nil {
		panic(err) // two texts
	}
	return string(text)
}

// apply makes the queue, or changes the one at url.
func (a *Admin) apply(ctx context.Context, r *Report, url string, want map[string]string) {
	if url == "" {
		err := a.calls.do(ctx, "CreateQueue", callTimeout, func(ctx context.Context) (bool, error) {
			_, err := a.calls.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(r.Queue), Attributes: want})
			return false, err
		})
		if err != nil {
			r.failed("sqs:CreateQueue", err)
			return
		}
		r.add(LevelOK, "made")
		return
	}
	if len(want) == 0 {
		r.add(LevelOK, "there already")
		return
	}
	a.set(ctx, r, "queue", url, want)
}

// set changes attributes of a queue that exists; which is how the findings call it.
func (a *Admin) set(ctx context.Context, r *Report, which, url string, want map[string]string) {
	err := a.calls.do(ctx, "SetQueueAttributes", callTimeout, func(ctx context.Context) (bool, error) {
		_, err := a.calls.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: aws.String(url), Attributes: want})
		return false, err
	})
	if err != nil {
		r.failed("sqs:SetQueueAttributes of the "+which, err)
		return
	}
	r.add(LevelOK, "%s changed: %s", which, strings.Join(slices.Sorted(maps.Keys(want)), ", "))
}

// createDead makes the lane's dead-letter queue, if there is none, and returns its
// ARN; "" with a finding when it can't be.
func (a *Admin) createDead(ctx context.Context, r *Report) (arn string) {
	name := r.Queue + deadSuffix
	if lanegate.IsQueueURL(r.Queue) || len(name) > longestName {
		r.add(LevelWrong, "no dead-letter queue can be named after it: make one and set the queue's RedrivePolicy yourself")
		return ""
	}
	_, attrs, err := a.lookUp(ctx, name)
	if sortSQS(err) == faultMissing {
		err = a.calls.do(ctx, "CreateQueue", callTimeout, func(ctx context.Context) (bool, error) {
			_, err := a.calls.CreateQueue(ctx, &sqs.CreateQueueInput{
				QueueName: aws.String(name), Attributes: map[string]string{"MessageRetentionPeriod": secondsText(wantDeadRetention)},
			})
			return false, err
		})
		if err != nil {
			r.failed("sqs:CreateQueue of "+name, err)
			return ""
		}
		r.add(LevelOK, "made dead-letter queue %s", name)
		_, attrs, err = a.lookUp(ctx, name)
	}
	if err != nil {
		r.failed("its dead-letter queue "+name, err)
		return ""
	}
	return attrs[string(types.QueueAttributeNameQueueArn)]
}

// mendDead makes a dead-letter queue keep its messages longer than their first
// queue, which keeps them for retention.
func (a *Admin) mendDead(ctx context.Context, r *Report, arn string, retention time.Duration) {
	name := arn[strings.LastIndex(arn, ":")+1:]
	url, attrs, err := a.lookUp(ctx, name)
	if err != nil {
		r.failed("its dead-letter queue "+name, err)
		return
	}
	if attrs.seconds(types.QueueAttributeNameMessageRetentionPeriod) > retention {
		return
	}
	a.set(ctx, r, "dead-letter queue "+name, url, map[string]string{"MessageRetentionPeriod": secondsText(wantDeadRetention)})
}

package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate/service"
)

const (
	// takeMost is how many bells one look takes from the database.
	takeMost = 100
	// keptFor is how long bells whose sending failed are tried again from memory:
	// shorter than nobody else gets them.
	keptFor = 25 * time.Second
	// lastSend bounds the sending of what was rung just before a stop.
	lastSend = 5 * time.Second
)

// bellBody is a message: lane L has work. The job is for people who look into a
// queue; the payload never travels.
type bellBody struct {
	Version int    `json:"v"`
	Lane    string `json:"lane"`
	Job     string `json:"job"`
}

// kept are bells that are to be sent again. They belong to the relay.
type kept struct {
	bells []service.Bell
	since time.Time
}

// relayLoop sends due bells: soon after a ring, when the next one is due, and
// every Poll. Between rings that follow each other within Space fewer than ten bells
// of a lane wait in the database until the oldest has waited for Space: so they fill
// batches however many relays take them. A lone one goes after Hold.
func (s *SQS) relayLoop(ctx context.Context) {
	again := retry{Backoff: s.o.Backoff}
	var back kept
	var last, due time.Time // of the last look that a ring caused or that found bells; of the next by the timer
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var rung bool
		young := s.o.Space
		select {
		case <-ctx.Done():
			s.lookLast(ctx, &back)
			return
		case <-s.relay:
			rung = true
			if time.Since(last) >= s.o.Space {
				young = 0
			}
			s.gather(ctx, last, due)
		case <-timer.C:
			if time.Since(last) >= s.o.Space {
				young = 0
			}
		}
		if ctx.Err() != nil {
			continue
		}
		s.rings.Store(0)
		began := time.Now()
		found, next, err := s.look(ctx, young, &back)
		if rung || found {
			last = began
		}
		wait := s.o.Poll
		switch {
		case err != nil:
			if !errors.Is(err, errNotFoundYet) { // its keeper says so, if it lasts
				s.faults.failed(ctx, "relay", "ringing failed; trying again", slog.Any("err", err))
			}
			if wait = again.next(); !sleep(ctx, wait) { // rings don't shorten it
				continue
			}
			wait = 0
		default:
			s.faults.works(ctx, "relay", "ringing works again")
			again.reset()
			if next >= 0 {
				wait = min(wait, next)
			}
		}
		timer.Reset(wait)
		due = time.Now().Add(wait)
	}
}

// lookLast sends what is due at a stop. Others would find these bells too, but later.
func (s *SQS) lookLast(ctx context.Context, back *kept) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSend)
	defer cancel()
	_, _, _ = s.look(ctx, 0, back)
}

// gather lets rings come together: ten fill a message batch, fewer wait until the
// last look is Space ago, or the next is due anyway, and Hold at least.
func (s *SQS) gather(ctx context.Context, last, due time.Time) {
	timer := time.NewTimer(max(s.o.Hold, min(time.Until(last.Add(s.o.Space)), time.Until(due))))
	defer timer.Stop()
	for s.rings.Load() < batchSize {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-s.relay:
		}
	}
}

// look sends what is due and says how long until the next bell is, negative when
// none is set. Fewer than ten of a lane that are all younger than young are left;
// found says whether there was any to send or to leave. What failed for a while is
// in back, and an error.
func (s *SQS) look(ctx context.Context, young time.Duration, back *kept) (found bool, next time.Duration, err error) {
	for {
		if time.Since(back.since) > keptFor {
			back.bells = nil // the database has them due again
		}
		due := service.DueBells{Bells: back.bells}
		fresh := len(due.Bells) == 0
		if fresh {
			call, cancel := context.WithTimeout(ctx, callTimeout)
			due, err = s.o.Bells.TakeBells(call, service.BellAsk{Max: takeMost, Batch: batchSize, Young: young})
			cancel()
			if err != nil {
				return found, -1, fmt.Errorf("take due bells: %w", err)
			}
			back.since = time.Now()
		}
		found = found || len(due.Bells)+due.Left > 0
		done, left, sendErr := s.send(ctx, due.Bells)
		back.bells = left
		if len(done) > 0 {
			call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
			err := s.o.Bells.ClearBells(call, done)
			cancel()
			if err != nil { // they ring twice
				sendErr = errors.Join(sendErr, fmt.Errorf("clear rung bells: %w", err))
			}
		}
		switch {
		case sendErr != nil:
			return found, -1, sendErr
		case ctx.Err() != nil:
			return found, -1, ctx.Err()
		case fresh && (due.Next != 0 || len(due.Bells) == 0):
			return found, due.Next, nil
		}
	}
}

// send sends bells, ten of a lane at a time. done need no sending any more; left
// are to be sent again.
func (s *SQS) send(ctx context.Context, bells []service.Bell) (done, left []service.Bell, err error) {
	byLane := map[string][]service.Bell{}
	for _, b := range bells {
		byLane[b.Lane] = append(byLane[b.Lane], b)
	}
	var errs []error
	for lane, bells := range byLane {
		q := s.queue(lane)
		for batch := range slices.Chunk(bells, batchSize) {
			ok, failed, err := s.sendBatch(ctx, q, batch)
			done, left = append(done, ok...), append(left, failed...)
			if err != nil {
				errs = append(errs, fmt.Errorf("lane %s: %w", lane, err))
			}
		}
	}
	return done, left, errors.Join(errs...)
}

var errNotFoundYet = errors.New("the lane's queue is not known yet")

// sendBatch sends up to ten bells of one lane. Bells for a queue that is missing
// or refuses them are dropped: there may be any number, and when the queue is
// back the lane is rung for all of them.
func (s *SQS) sendBatch(ctx context.Context, q *laneQueue, bells []service.Bell) (done, left []service.Bell, err error) {
	if q == nil {
		return bells, nil, nil // a lane of this moment; the next look at the lanes finds it, a sweep rings it
	}
	url, missing := q.address()
	switch {
	case missing || q.refusesSends():
		s.m.dropped.WithLabelValues(q.lane).Add(float64(len(bells)))
		return bells, nil, nil
	case url == "":
		return nil, bells, errNotFoundYet
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(url)}
	for i, b := range bells {
		body, err := json.Marshal(bellBody{Version: 1, Lane: b.Lane, Job: b.Job})
		if err != nil {
			return nil, bells, err
		}
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(body)), MessageGroupId: aws.String(b.Class),
		})
	}
	var out *sqs.SendMessageBatchOutput
	err = s.calls.do(ctx, "SendMessageBatch", callTimeout, func(ctx context.Context) (_ bool, err error) {
		out, err = s.calls.SendMessageBatch(ctx, in)
		return err == nil && len(out.Failed) > 0, err
	})
	if err != nil {
		switch f := s.queueFailed(ctx, q, aboutSend, err); f {
		case faultMissing, faultDenied:
			q.refuseSends(f, s.o.Backoff.Max)
			s.m.dropped.WithLabelValues(q.lane).Add(float64(len(bells)))
			return bells, nil, nil
		}
		return nil, bells, err
	}
	return s.sortSent(ctx, q, bells, out)
}

// sortSent goes through a batch's answer, entry by entry.
func (s *SQS) sortSent(ctx context.Context, q *laneQueue, bells []service.Bell, out *sqs.SendMessageBatchOutput) (done, left []service.Bell, err error) {
	open := map[int]bool{}
	for i := range bells {
		open[i] = true
	}
	for _, e := range out.Successful {
		if i, err := strconv.Atoi(aws.ToString(e.Id)); err == nil && open[i] {
			delete(open, i)
			done = append(done, bells[i])
		}
	}
	if len(done) > 0 {
		s.m.sent.WithLabelValues(q.lane).Add(float64(len(done)))
		s.queueWorks(ctx, q, aboutSend)
	}
	var errs []error
	for _, e := range out.Failed {
		i, err := strconv.Atoi(aws.ToString(e.Id))
		if err != nil || !open[i] || !e.SenderFault {
			errs = append(errs, fmt.Errorf("%s: %s", aws.ToString(e.Code), aws.ToString(e.Message)))
			continue // it stays open
		}
		// The same message would be refused again. The sweep rings anew, ever more seldom.
		delete(open, i)
		done = append(done, bells[i])
		s.m.refused.WithLabelValues(q.lane).Inc()
		s.faults.failed(ctx, "refused "+q.lane, "sqs refuses a bell", slog.String("lane", q.lane), slog.String("job", bells[i].Job),
			slog.String("code", aws.ToString(e.Code)), slog.String("err", aws.ToString(e.Message)))
	}
	for i := range bells {
		if open[i] {
			left = append(left, bells[i])
		}
	}
	if len(left) > 0 && len(errs) == 0 {
		errs = append(errs, errors.New("SQS did not answer for every message of a batch"))
	}
	return done, left, errors.Join(errs...)
}

// refuseSends stops sends for a while after SQS refused one; a missing queue's
// keeper knows better when they make sense again.
func (q *laneQueue) refuseSends(f sqsFault, d time.Duration) {
	if f == faultMissing {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.noSend = time.Now().Add(d)
}

func (q *laneQueue) refusesSends() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Now().Before(q.noSend)
}

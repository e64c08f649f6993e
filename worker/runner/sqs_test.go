package runner

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// fakeSender answers as it is told, the last answer for ever, and keeps what came.
type fakeSender struct {
	answers []error
	queues  []string
	sent    []lanegate.Message
}

func (s *fakeSender) Send(_ context.Context, queue string, m lanegate.Message) error {
	s.queues, s.sent = append(s.queues, queue), append(s.sent, m)
	err := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return err
}

func sqsJob() Job {
	return Job{
		ID: "job-1", Attempt: 3, Token: "the-token", Class: "heavy", Payload: []byte(`{"a": 1e400}`),
		Run: lanegate.Run{Kind: lanegate.RunSQS, Queue: "work.fifo", Heartbeat: lanegate.Duration(90 * time.Second)},
	}
}

func newSQSRunner(s *fakeSender, public string) *SQS {
	return NewSQS(SQSOptions{Sender: s, PublicURL: public, Logger: slog.New(slog.DiscardHandler)})
}

// The consumer gets the payload as it was sent and all it needs to report; in a FIFO
// queue a class's runs stay in order.
func TestSQSHandsTheRunOver(t *testing.T) {
	s := &fakeSender{answers: []error{nil}}
	job := sqsJob()
	job.LogicalDate = "2026-11-29"
	end := newSQSRunner(s, "https://gate.example.com").Run(t.Context(), job, Unfenced)
	if end.Outcome != "" {
		t.Errorf("ending %+v, want none yet", end)
	}
	text := func(v string) lanegate.MessageAttribute { return lanegate.MessageAttribute{Type: "String", Text: v} }
	want := []lanegate.Message{{
		Body: `{"a": 1e400}`, Group: "heavy", Dedup: "job-1-3",
		Attributes: map[string]lanegate.MessageAttribute{
			"Lanegate-Job-Id": text("job-1"), "Lanegate-Attempt": {Type: "Number", Text: "3"}, "Lanegate-Token": text("the-token"),
			"Lanegate-Class": text("heavy"), "Lanegate-Heartbeat-Seconds": text("90"), "Lanegate-Logical-Date": text("2026-11-29"),
			"Lanegate-Attempt-Url": text("https://gate.example.com/jobs/job-1/attempts/3"),
		},
	}}
	if diff := cmp.Diff(want, s.sent); diff != "" || s.queues[0] != "work.fifo" {
		t.Errorf("sent to %q:\n%s", s.queues, diff)
	}
	// What nobody said is left out.
	newSQSRunner(s, "").Run(t.Context(), sqsJob(), Unfenced)
	for _, name := range []string{"Lanegate-Attempt-Url", "Lanegate-Logical-Date"} {
		if _, ok := s.sent[1].Attributes[name]; ok {
			t.Errorf("%s is there without a value", name)
		}
	}
}

// What certainly was not sent has an outcome; what may have been has none.
func TestSQSEndings(t *testing.T) {
	fault := func(f lanegate.SendFault) error {
		return &lanegate.SendError{Fault: f, Text: "why", Err: errors.New("because")}
	}
	for _, tt := range []struct {
		name  string
		err   error
		want  lanegate.Ending
		tries int
	}{
		{"may be there", fault(lanegate.SendUnanswered), lanegate.Ending{}, 1},
		{"refused", fault(lanegate.SendRefused), lanegate.Ending{Outcome: lanegate.Failed, Permanent: true, Error: "nothing was sent: why"}, 1},
		{"no such queue", fault(lanegate.SendNotNow), lanegate.Ending{Outcome: lanegate.Failed, Error: "nothing was sent: why"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &fakeSender{answers: []error{tt.err}}
			end := newSQSRunner(s, "").Run(t.Context(), sqsJob(), Unfenced)
			end.Duration = 0
			if diff := cmp.Diff(tt.want, end); diff != "" || len(s.sent) != tt.tries {
				t.Errorf("%d tries:\n%s", len(s.sent), diff)
			}
		})
	}
}

// Nobody there, and a queue that asks to slow down, are tried again for a while.
func TestSQSTriesAgainWhatWasNotSent(t *testing.T) {
	away := &lanegate.SendError{Fault: lanegate.SendNotNow, Away: true, Text: "can't be reached"}
	slow := &lanegate.SendError{Fault: lanegate.SendThrottled, Text: "slow down"}
	for _, tt := range []struct {
		name    string
		answers []error
		want    lanegate.Ending
	}{
		{"back in time", []error{away, slow, away, nil}, lanegate.Ending{}},
		{"away for good", []error{away}, lanegate.Ending{Outcome: lanegate.Failed, Error: "nothing was sent: can't be reached"}},
		{"throttled for good", []error{slow}, lanegate.Ending{Outcome: lanegate.Deferred, DeferFor: DefaultThrottledFor, Error: "nothing was sent: slow down"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeSender{answers: tt.answers}
				end := newSQSRunner(s, "").Run(t.Context(), sqsJob(), Unfenced)
				if end.Duration > DefaultConnectFor {
					t.Errorf("it took %v", end.Duration)
				}
				end.Duration = 0
				if diff := cmp.Diff(tt.want, end); diff != "" || len(s.sent) < 3 {
					t.Errorf("%d tries:\n%s", len(s.sent), diff)
				}
			})
		})
	}
}

// A stop, a cancel or a lost lease before the message was sent leaves nothing behind.
func TestSQSStoppedBeforeItWasSent(t *testing.T) {
	over := NewLeaseClock()
	over.Renew(Boottime() - time.Second)
	for _, tt := range []struct {
		name  string
		cause error
		lease Lease
		want  lanegate.Outcome
	}{
		{"a stop", ErrDrained, Unfenced, lanegate.Interrupted},
		{"a cancel", ErrCancelled, Unfenced, lanegate.Cancelled},
		{"the lease is over", nil, over, lanegate.Interrupted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &fakeSender{answers: []error{nil}}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.cause != nil {
				cancel(tt.cause)
			}
			end := newSQSRunner(s, "").Run(ctx, sqsJob(), tt.lease)
			if end.Outcome != tt.want || end.Error == "" || len(s.sent) > 0 {
				t.Errorf("ending %+v after %d messages, want %s", end, len(s.sent), tt.want)
			}
		})
	}
}

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/lanegate/lanegate"
)

// HandOver takes queued jobs out of their lines to be sent, as messages, to a queue
// of somebody else. Whoever asks sends the messages, and then confirms each one, or
// gives it back:
//
//   - A job that was taken can't start, and stays queued: whoever asks may die at any
//     moment, and none is lost.
//   - What an earlier call took for the same queue, and nobody confirmed or gave back,
//     comes first: it may have been sent, and is sent again with the same key.
//   - A confirmed job is cancelled, with where it went as its reason.
type HandOver struct {
	// To is the queue, by name or URL.
	To string
	// Class and Lane choose jobs: of this class, of the classes in this lane. "": all.
	Class, Lane string
	// Limit is how many are taken at most, up to MaxHandOver.
	Limit int
	// Skip are jobs that are left where they are.
	Skip []string
}

// MaxHandOver bounds HandOver.Limit, MaxHandOverSkip the jobs that can be skipped.
const (
	MaxHandOver     = 100
	MaxHandOverSkip = 1000
)

// Departure is a job that was taken, with the message that stands for it: the one it
// came in with, or its submission, as an intake with as: submission reads it. Both
// carry KeyAttribute, so that doubles are one job wherever lanegate takes them in.
type Departure struct {
	Job     lanegate.Job
	Message lanegate.Message
}

// Remaining is a job that could not be taken, and why.
type Remaining struct {
	Job string
	Why string
}

// HandOverCount counts the jobs that a HandOver is about. Jobs that verification runs
// made up are left out.
type HandOverCount struct {
	// Queued jobs that can be taken; Taken those that were, for this queue, and are
	// neither confirmed nor given back.
	Queued, Taken int
	// Running jobs and those that only one agent may run (lanegate run) are left alone.
	Running, Pinned int
}

// errQueueIsIntake: what was sent there would come back at once.
var errQueueIsIntake = &lanegate.Error{Kind: lanegate.KindConflict, Code: "queue_is_intake", Message: "this gateway makes jobs of that queue's messages: what is sent there would come back at once. Take the queue out of intake first, and restart; nothing was taken."}

// HandOverChoice is HandOver as the store takes it.
type HandOverChoice struct {
	To      string
	Classes []string // never empty
	Limit   int
	Skip    []string
}

// HandedJob is a taken job with its bytes.
type HandedJob struct {
	JobDetail
	Origin *Origin // the message it came in with, nil for none
}

// HandOverStore keeps what is on its way out.
type HandOverStore interface {
	// TakeOut takes up to Limit jobs, those taken before first, then in the order of
	// their line, due ones before those that wait for their time.
	TakeOut(ctx context.Context, c HandOverChoice) ([]HandedJob, error)
	// ConfirmOut ends those of some jobs that were taken for the queue and are queued
	// still, as cancelled for the reason, and returns them.
	ConfirmOut(ctx context.Context, to string, jobs []string, reason string) ([]lanegate.Job, error)
	// TakeBack puts those of some jobs that were taken for the queue, all for nil, back
	// to their places and returns them.
	TakeBack(ctx context.Context, to string, jobs []string) ([]lanegate.Job, error)
	// CountOut counts the jobs of some classes.
	CountOut(ctx context.Context, to string, classes []string) (HandOverCount, error)
}

// HandOver takes jobs and makes their messages. Jobs that no message can carry are
// put back at once and named.
func (s *Service) HandOver(ctx context.Context, h HandOver) (out []Departure, remain []Remaining, err error) {
	classes, err := s.leaving(ctx, h)
	if err != nil || len(classes) == 0 {
		return nil, nil, err
	}
	jobs, err := s.store.TakeOut(ctx, HandOverChoice{To: h.To, Classes: classes, Limit: h.Limit, Skip: h.Skip})
	if err != nil {
		return nil, nil, err
	}
	var back []string
	for _, j := range jobs {
		m, err := messageOf(j)
		if err == nil {
			err = m.Check()
		}
		if err != nil {
			remain, back = append(remain, Remaining{j.ID, "its message can't be sent: " + err.Error()}), append(back, j.ID)
			continue
		}
		out = append(out, Departure{Job: j.Job, Message: m})
	}
	if len(back) > 0 {
		if _, err := s.HandBack(ctx, h.To, back); err != nil {
			return nil, nil, err
		}
	}
	return out, remain, nil
}

// CountHandOver counts what HandOver would be about, and takes nothing.
func (s *Service) CountHandOver(ctx context.Context, h HandOver) (HandOverCount, error) {
	classes, err := s.leaving(ctx, h)
	if err != nil || len(classes) == 0 {
		return HandOverCount{}, err
	}
	return s.store.CountOut(ctx, h.To, classes)
}

// ConfirmHandOver ends jobs whose messages are in the queue. Doing it again changes
// nothing; the number is how many of the jobs ended by it.
func (s *Service) ConfirmHandOver(ctx context.Context, to string, jobs []string, actor string) (int, error) {
	ended, err := s.store.ConfirmOut(ctx, to, jobs, "sent to "+to+" by "+actor)
	if err != nil {
		return 0, err
	}
	for _, j := range ended {
		s.hub.finished(j.ID)
		s.log.InfoContext(ctx, "job sent away", "job", j.ID, "class", j.Class, "queue", to, "actor", actor)
	}
	return len(ended), nil
}

// HandBack puts jobs back to their places, all that were taken for the queue for nil,
// and says how many there were.
func (s *Service) HandBack(ctx context.Context, to string, jobs []string) (int, error) {
	back, err := s.store.TakeBack(ctx, to, jobs)
	if err != nil || len(back) == 0 {
		return 0, err
	}
	var classes []string
	for _, j := range back {
		classes = append(classes, j.Class)
	}
	for _, lane := range s.lanesOf(ctx, classes) {
		s.ring(lane)
	}
	return len(back), nil
}

// leaving checks a HandOver and names its classes.
func (s *Service) leaving(ctx context.Context, h HandOver) (classes []string, err error) {
	var errs []lanegate.FieldError
	if h.To == "" {
		errs = append(errs, lanegate.FieldError{Pointer: "/to", Detail: "is required: the queue that the jobs go to"})
	} else if fault := lanegate.CheckQueue(h.To); fault != "" {
		errs = append(errs, lanegate.FieldError{Pointer: "/to", Detail: fault})
	}
	if h.Limit < 1 || h.Limit > MaxHandOver {
		errs = append(errs, lanegate.FieldError{Pointer: "/limit", Detail: fmt.Sprintf("must be a whole number from 1 to %d", MaxHandOver)})
	}
	if len(h.Skip) > MaxHandOverSkip {
		errs = append(errs, lanegate.FieldError{Pointer: "/skip", Detail: fmt.Sprintf("must name at most %d jobs", MaxHandOverSkip)})
	}
	if err := lanegate.Invalid(errs); err != nil {
		return nil, err
	}
	for _, q := range s.opts.Intakes {
		if q == h.To || lanegate.QueueName(q) == lanegate.QueueName(h.To) && !(lanegate.IsQueueURL(q) && lanegate.IsQueueURL(h.To)) {
			return nil, errQueueIsIntake
		}
	}
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return nil, err
	}
	if h.Class != "" {
		if _, err := cfg.findClass(h.Class); err != nil {
			return nil, err
		}
	}
	if h.Lane != "" {
		if _, err := cfg.findLane(h.Lane); err != nil {
			return nil, err
		}
	}
	for _, c := range cfg.Classes {
		if (h.Class == "" || c.ID == h.Class) && (h.Lane == "" || c.Lane == h.Lane) {
			classes = append(classes, c.ID)
		}
	}
	return classes, nil
}

// messageOf is the message that stands for a job. Its key names the job, not what
// the submitter called it: keys count within one client, and all of a queue's
// messages are one client's.
func messageOf(j HandedJob) (lanegate.Message, error) {
	key := "lanegate-job:" + j.ID
	m := lanegate.Message{Group: j.Class, Dedup: j.ID, Attributes: map[string]lanegate.MessageAttribute{}}
	if j.Origin != nil {
		m.Body = j.Origin.Message.Body
		if j.Origin.Message.Group != "" {
			m.Group = j.Origin.Message.Group
		}
		maps.Copy(m.Attributes, j.Origin.Message.Attributes)
	} else {
		body, err := submissionOf(j, key)
		if err != nil {
			return m, err
		}
		m.Body = body
	}
	m.Attributes[KeyAttribute] = lanegate.MessageAttribute{Type: "String", Text: key}
	return m, nil
}

// submissionOf is the job as a body of POST /jobs, its payload verbatim.
func submissionOf(j HandedJob, key string) (string, error) {
	head, err := json.Marshal(struct {
		Class       string `json:"class"`
		Key         string `json:"idempotency_key"`
		LogicalDate string `json:"logical_date,omitempty"`
		RunAt       any    `json:"run_at,omitempty"`
	}{j.Class, key, j.LogicalDate, runAt(j.Job)})
	if err != nil {
		return "", err
	}
	return string(slices.Concat(head[:len(head)-1], []byte(`,"payload":`), j.Payload, []byte("}"))), nil
}

func runAt(j lanegate.Job) any {
	if j.RunAt == nil {
		return nil
	}
	return j.RunAt
}

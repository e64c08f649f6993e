package service

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// Submission is one job as a scheduler asks for it.
type Submission struct {
	Class   string
	Payload []byte // JSON, verbatim; empty means null
	// Key makes repeats safe: within one client the same key gives the same job.
	Key         string
	RunAt       *time.Time
	LogicalDate string
	// RetryFailed: if this turns out to be a repeat and the job has failed, run it again.
	RetryFailed bool
	// Worker is the client's own agent that waits to run this job, and nobody else
	// may; "" for any worker. Submit only.
	Worker string
	// Origin is the message it came in with, nil when it came in none. It is kept
	// with the job, and is no part of what makes two submissions the same.
	Origin *Origin

	vetted []byte // the payload that TakePlain took
	depth  int    // and what it was judged by
}

// TakePlain makes the JSON value that text begins with the payload, when it is a
// PlainValue, and returns where it ends. Submit then doesn't judge the same bytes again;
// so nobody may write to them any more.
func (sub *Submission) TakePlain(text []byte, maxDepth int) (end int, ok bool) {
	if end, ok = PlainValue(text, maxDepth); ok {
		sub.Payload = text[:end:end]
		sub.vetted, sub.depth = sub.Payload, maxDepth
	}
	return end, ok
}

// vet judges the payload, unless it is the one that was taken by TakePlain.
func (sub *Submission) vet(maxDepth int) error {
	if n := len(sub.vetted); n > 0 && n == len(sub.Payload) && &sub.vetted[0] == &sub.Payload[0] && sub.depth <= maxDepth {
		return nil
	}
	return CheckJSON(sub.Payload, maxDepth, "/payload")
}

// maxRunAhead bounds run_at: later than this is a mistaken unit, not a plan.
const maxRunAhead = 366 * 24 * time.Hour

// Submit accepts one job for client; it is durable when Submit returns without
// error. The work is one shared commit: no lane, queue or run is waited for.
func (s *Service) Submit(ctx context.Context, client string, sub Submission) (Submitted, error) {
	job, err := s.newJob(client, sub)
	if err != nil {
		return Submitted{}, err
	}
	if sub.Worker != "" {
		if err := s.onTheSpot(ctx, client, sub); err != nil {
			return Submitted{}, err
		}
	}
	res, err := s.store.Submit(ctx, job)
	if errors.Is(err, lanegate.ErrUnknownClass) && s.target.Load() != nil {
		if err := s.createDefault(ctx, job.Class); err != nil {
			return Submitted{}, err
		}
		res, err = s.store.Submit(ctx, job)
	}
	if err == nil {
		err = res.Err
	}
	if err != nil {
		return Submitted{}, err
	}
	s.accepted(ctx, res)
	return res, nil
}

// SubmitBatch accepts up to MaxBatchItems jobs in one transaction. Items fail
// alone: each answer carries its own Err.
func (s *Service) SubmitBatch(ctx context.Context, client string, subs []Submission) ([]Submitted, error) {
	if len(subs) == 0 || len(subs) > MaxBatchItems {
		return nil, lanegate.Invalid([]lanegate.FieldError{{Pointer: "/jobs", Detail: fmt.Sprintf("must hold 1 to %d jobs", MaxBatchItems)}})
	}
	jobs, refused := make([]NewJob, 0, len(subs)), map[int]error{}
	for i := range subs {
		job, err := s.newJob(client, subs[i])
		if err == nil && job.Worker != "" {
			err = lanegate.Invalid([]lanegate.FieldError{{Pointer: "/worker", Detail: "can't be given in a batch; submit the job by itself"}})
		}
		if err != nil {
			refused[i] = err
			continue
		}
		jobs = append(jobs, job)
	}
	if s.target.Load() != nil {
		if err := s.createDefaults(ctx, jobs); err != nil {
			return nil, err
		}
	}
	var results []Submitted
	if len(jobs) > 0 {
		var err error
		if results, err = s.store.SubmitBatch(ctx, jobs); err != nil {
			return nil, err
		}
	}
	s.accepted(ctx, results...)
	return withRefused(results, refused), nil
}

// withRefused puts the refused items of a batch between the results of the others.
func withRefused(results []Submitted, refused map[int]error) []Submitted {
	if len(refused) == 0 {
		return results
	}
	out := make([]Submitted, len(results)+len(refused))
	for i := range out {
		if err, ok := refused[i]; ok {
			out[i].Err = err
			continue
		}
		out[i], results = results[0], results[1:]
	}
	return out
}

// newJob checks a submission's form and gives it its id and digest.
func (s *Service) newJob(client string, sub Submission) (NewJob, error) {
	var errs []lanegate.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, lanegate.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	switch {
	case sub.Class == "":
		bad("/class", "is required: the name of a job class, e.g. \"pos-sales\"")
	case !lanegate.ValidSlug(sub.Class):
		bad("/class", "must match [a-z0-9][a-z0-9._-]{0,62}")
	}
	if !validKey(sub.Key) {
		bad("/idempotency_key", "must be printable characters, at most 255 bytes in UTF-8")
	}
	if sub.LogicalDate != "" && !validLogicalDate(sub.LogicalDate) {
		bad("/logical_date", "must be a date (2026-11-29) or an RFC 3339 time (2026-11-29T00:00:00Z)")
	}
	if sub.RunAt != nil && (sub.RunAt.Year() < 1970 || time.Until(*sub.RunAt) > maxRunAhead) {
		bad("/run_at", "must not be before 1970 or more than 366 days ahead")
	}
	if err := lanegate.Invalid(errs); err != nil {
		return NewJob{}, err
	}
	if len(sub.Payload) == 0 {
		sub.Payload = []byte("null")
	}
	if n := len(sub.Payload); n > s.opts.MaxPayload {
		return NewJob{}, &lanegate.Error{
			Kind: lanegate.KindTooLarge, Code: "payload_too_large",
			Message: fmt.Sprintf("the payload has %d bytes, the limit is %d; put the data where the job can fetch them and send a reference. Nothing was enqueued.", n, s.opts.MaxPayload),
		}
	}
	if err := sub.vet(s.opts.MaxDepth); err != nil {
		return NewJob{}, err
	}
	job := NewJob{
		ID: NewID(), Class: sub.Class, Client: client, Key: sub.Key, Payload: sub.Payload,
		LogicalDate: sub.LogicalDate, RetryFailed: sub.RetryFailed, Worker: sub.Worker, Origin: sub.Origin,
	}
	if sub.RunAt != nil {
		at := lanegate.Micro(*sub.RunAt)
		job.RunAt = &at
	}
	job.Digest = submissionDigest(job)
	return job, nil
}

// submissionDigest covers what makes two submissions the same: class, payload
// bytes, run_at, logical date and worker, each with its length before it.
func submissionDigest(j NewJob) []byte {
	h := sha256.New()
	part := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	part([]byte(j.Class))
	part(j.Payload)
	if j.RunAt != nil {
		part([]byte(j.RunAt.Format(time.RFC3339Nano)))
	} else {
		part(nil)
	}
	part([]byte(j.LogicalDate))
	if j.Worker != "" { // as it was before there were such jobs
		part([]byte(j.Worker))
	}
	return h.Sum(nil)
}

func validKey(key string) bool {
	if len(key) > 255 || !utf8.ValidString(key) { // a header may carry any bytes
		return false
	}
	for _, r := range key {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// maxLogicalDate is longer than any RFC 3339 time with nanoseconds; Go's parser
// takes any number of further digits.
const maxLogicalDate = 40

func validLogicalDate(d string) bool {
	if len(d) > maxLogicalDate {
		return false
	}
	if _, err := time.Parse(time.DateOnly, d); err == nil {
		return true
	}
	_, err := time.Parse(time.RFC3339Nano, d)
	return err == nil
}

// accepted does what follows an acceptance; none of it can fail the request.
// Each lane that has new work is rung once, refused items are left out.
func (s *Service) accepted(ctx context.Context, all ...Submitted) {
	var kept [4]string // a job and most batches have so many lanes
	lanes := kept[:0]
	for i := range all {
		res := &all[i]
		if res.Err != nil {
			continue
		}
		if res.Coalesced != "" {
			s.hub.finished(res.Coalesced)
		}
		if !res.Replayed {
			s.metrics.submitted(res.Job.Class)
		}
		if (!res.Replayed || res.Revived) && res.Job.State == lanegate.StateQueued && !slices.Contains(lanes, res.Lane) {
			lanes = append(lanes, res.Lane)
		}
	}
	s.ringFor(ctx, lanes)
}

// laneOf names the lane to ring for a class; serial when the class can't be read,
// which costs latency only.
func (s *Service) laneOf(ctx context.Context, class string) string {
	return s.lanesOf(ctx, []string{class})[0]
}

// lanesOf names the lanes where jobs of the classes would run now, each once; one at
// least. It reads the configuration once, however many there are.
func (s *Service) lanesOf(ctx context.Context, classes []string) []string {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return []string{lanegate.LaneSerial}
	}
	var lanes []string
	for _, c := range cfg.Classes {
		if !slices.Contains(classes, c.ID) {
			continue
		}
		if route, _ := admission.RouteOf(c, cfg.Lanes); !slices.Contains(lanes, route.Lane) {
			lanes = append(lanes, route.Lane)
		}
	}
	if lanes == nil {
		return []string{lanegate.LaneSerial}
	}
	return lanes
}

func (s *Service) createDefaults(ctx context.Context, jobs []NewJob) error {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return err
	}
	known := make(map[string]bool, len(cfg.Classes))
	for _, c := range cfg.Classes {
		known[c.ID] = true
	}
	for _, j := range jobs {
		if known[j.Class] {
			continue
		}
		known[j.Class] = true
		if err := s.createDefault(ctx, j.Class); err != nil {
			return err
		}
	}
	return nil
}

package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

// The methods in this file are for whoever runs an attempt elsewhere and reports
// by its token: asynchronous targets and agents.

// Limits of what a completion leaves behind, in bytes. They are those of runs on
// the gateway: output keeps its head and its tail, a larger result is dropped.
const (
	maxOutputPart = 32 << 10
	maxResult     = 64 << 10
	maxErrorText  = 2 << 10
	maxSignalText = 32
)

// Heartbeat says that a detached attempt goes on. lanegate.ErrLateWrite names the
// outcome there is, or says that the token is another's.
func (s *Service) Heartbeat(ctx context.Context, f lanegate.Fence) (Heart, error) {
	heart, err := s.store.Heartbeat(ctx, f)
	if isLate(err) {
		return heart, s.explainLate(ctx, f)
	}
	return heart, err
}

// Complete records how an attempt that ran elsewhere ended. The very same
// completion may be repeated; any other one after the first is
// lanegate.ErrLateWrite, counted, and changes nothing. What is too large is cut as
// it is for runs on the gateway; resultKept says whether the result was kept.
func (s *Service) Complete(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (ended Ended, resultKept bool, err error) {
	e.Output = keepOutput(e.Output)
	e.Error, e.Signal = cutText(e.Error, maxErrorText), cutText(e.Signal, maxSignalText)
	e.Trouble, e.Measured = nil, nil // what is found by the gateway itself
	e.Result = bytes.TrimSpace(e.Result)
	if e.Outcome != lanegate.Succeeded || len(e.Result) == 0 || len(e.Result) > maxResult {
		e.Result = nil
	}
	ended, err = s.EndAttempt(ctx, f, e)
	if isLate(err) {
		err = s.explainLate(ctx, f)
	}
	return ended, e.Result != nil, err
}

// explainLate is ErrLateWrite with what is known of the attempt, for who has its token.
func (s *Service) explainLate(ctx context.Context, f lanegate.Fence) error {
	attempts, err := s.store.Attempts(ctx, f.Job)
	if errors.Is(err, lanegate.ErrJobNotFound) {
		return lanegate.ErrLateWrite.With("there is no job with this id (finished jobs are kept for the configured retention only); nothing was changed.")
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(attempts, func(a lanegate.Attempt) bool { return a.Number == f.Number })
	switch {
	case i < 0:
		return lanegate.ErrLateWrite.With("this job has no attempt %d; nothing was changed.", f.Number)
	case attempts[i].Token != f.Token:
		return lanegate.ErrLateWrite.With("this is not the token of attempt %d of this job; nothing was changed. Use the token that came with that very attempt.", f.Number)
	}
	outcome := string(attempts[i].Outcome)
	return lanegate.ErrLateWrite.Detail("outcome", outcome).
		With("attempt %d of this job already has the outcome %s; nothing was changed. End the run if it still goes on.", f.Number, outcome)
}

// keepOutput cuts a long text to its head and its tail, escapes control characters
// as runs on the gateway have them, and makes the counts agree with it.
func keepOutput(o lanegate.Output) lanegate.Output {
	seen := max(o.Bytes, int64(len(o.Head)+len(o.Tail)))
	if o.Bytes == 0 {
		o.Dropped = 0
	}
	head, tail := escapeControls(o.Head), escapeControls(o.Tail)
	if tail == "" && len(head) > 2*maxOutputPart {
		all := head
		head = cutText(all, maxOutputPart)
		tail = all[len(head):]
	}
	if tail != "" {
		cut := cutText(head, maxOutputPart)
		o.Dropped += int64(len(head) - len(cut))
		head = cut
		from := max(0, len(tail)-maxOutputPart)
		for from < len(tail) && !utf8.RuneStart(tail[from]) {
			from++
		}
		o.Dropped += int64(from)
		tail = tail[from:]
	}
	return lanegate.Output{Head: head, Tail: tail, Bytes: seen, Dropped: max(0, o.Dropped)}
}

// escapeControls shows control characters, NUL among them, as \x00; line breaks
// and tabs stay.
func escapeControls(s string) string {
	control := func(r rune) bool {
		return r < 0x20 && r != '\n' && r != '\r' && r != '\t' || r >= 0x7f && r < 0xa0
	}
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if !strings.ContainsFunc(s, control) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case control(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case control(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// cutText is the beginning of s of at most size bytes, in whole characters.
func cutText(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return s[:size]
}

// heartWatch knows for how long this process has been there to take heartbeats.
type heartWatch struct {
	mu    sync.Mutex
	since time.Time // guarded by mu; zero: not yet
	last  time.Time // guarded by mu
}

// looked notes a look at the database that went well, or did not, and says for how
// long all of them went well. maxGap is the longest pause between two looks in
// which this process may have slept.
func (h *heartWatch) looked(now time.Time, well bool, maxGap time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !well {
		h.since = time.Time{}
		return 0
	}
	if h.since.IsZero() || now.Sub(h.last) > maxGap {
		h.since = now
	}
	h.last = now
	return now.Sub(h.since)
}

// reapDetached ends the detached attempts whose deadline has passed. A target can't
// be blamed for silence while nobody could hear it, so they have one whole
// heartbeat from when this process, or its database, came back.
func (s *Service) reapDetached(ctx context.Context) error {
	watched := s.hearts.looked(time.Now(), true, s.opts.Lease)
	lost, err := s.store.ReapDetached(ctx, watched)
	if err != nil {
		s.hearts.looked(time.Now(), false, s.opts.Lease)
	}
	for _, e := range lost {
		s.log.WarnContext(ctx, "a target fell silent; its attempt is over", "job", e.Attempt.Job, "attempt", e.Attempt.Number, "outcome", e.Attempt.Outcome)
	}
	s.endedAll(ctx, lost)
	return err
}

package service

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/lanegate/lanegate"
)

// Bounds of what is computed in the background for people who look.
const (
	memoEntries = 16               // answers kept at once
	memoLimit   = 90 * time.Second // of one computation
	// memoErrorAge is how long a failure is the answer.
	memoErrorAge = 5 * time.Second
)

// memo keeps answers that are dear to compute for everybody who asks: each is
// computed once, in the background, one at a time for all, and is good for a while.
// Whoever asks waits for it as long as their context lasts.
type memo struct {
	background
	turn    chan struct{}         // holds a token while something is computed
	entries map[string]*memoEntry // guarded by mu
}

type memoEntry struct {
	done  chan struct{} // closed when the rest is there
	asked time.Time
	at    time.Time
	value any
	err   error
}

func newMemo() *memo {
	m := &memo{turn: make(chan struct{}, 1), entries: map[string]*memoEntry{}}
	m.open()
	return m
}

var (
	errInProgress = &lanegate.Error{
		Kind: lanegate.KindUnavailable, Code: "in_progress", RetryAfter: 5 * time.Second,
		Message: "this is still being computed from the run log; ask again.",
	}
	errManyQuestions = &lanegate.Error{
		Kind: lanegate.KindLimited, Code: "too_many_questions", RetryAfter: 30 * time.Second,
		Message: "too many different questions about the run log are being answered; ask again later, or ask what others ask.",
	}
)

// get returns the answer to a question, one that is no older than age, and when it
// was computed. When ctx ends first the error is errInProgress; the work goes on.
func (m *memo) get(ctx context.Context, key string, age time.Duration, compute func(ctx context.Context) (any, error)) (any, time.Time, error) {
	e, err := m.entry(key, age, compute)
	if err != nil {
		return nil, time.Time{}, err
	}
	select {
	case <-e.done:
		return e.value, e.at, e.err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, time.Time{}, errInProgress
		}
		return nil, time.Time{}, ctx.Err()
	}
}

func (m *memo) entry(key string, age time.Duration, compute func(ctx context.Context) (any, error)) (*memoEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if e, ok := m.entries[key]; ok && (!e.finished() || e.fresh(now, age)) {
		return e, nil
	}
	maps.DeleteFunc(m.entries, func(_ string, e *memoEntry) bool { return e.finished() && !e.fresh(now, age) })
	if len(m.entries) >= memoEntries && !m.dropOldest() {
		return nil, errManyQuestions
	}
	e := &memoEntry{done: make(chan struct{}), asked: now}
	if err := m.begin(func() { m.compute(e, compute) }); err != nil {
		return nil, err
	}
	m.entries[key] = e
	return e, nil
}

// dropOldest makes room by the oldest finished answer; false when there is none.
func (m *memo) dropOldest() bool {
	oldest := ""
	for key, e := range m.entries {
		if e.finished() && (oldest == "" || e.asked.Before(m.entries[oldest].asked)) {
			oldest = key
		}
	}
	delete(m.entries, oldest)
	return oldest != ""
}

func (m *memo) compute(e *memoEntry, compute func(ctx context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(m.ctx, memoLimit)
	defer cancel()
	select {
	case m.turn <- struct{}{}:
		// Both may be ready: nothing is begun at the end.
		if e.err = ctx.Err(); e.err == nil {
			e.value, e.err = compute(ctx)
		}
		<-m.turn
	case <-ctx.Done():
		e.err = ctx.Err()
	}
	if ctx.Err() != nil && e.err != nil {
		e.err = lanegate.ErrUnavailable.Because(e.err)
	}
	e.at = time.Now()
	close(e.done)
}

// fresh says whether a finished answer is still good; a failure is not for long.
func (e *memoEntry) fresh(now time.Time, age time.Duration) bool {
	if e.err != nil {
		age = min(age, memoErrorAge)
	}
	return now.Sub(e.at) < age
}

func (e *memoEntry) finished() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

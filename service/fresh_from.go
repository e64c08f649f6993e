package service

import (
	"context"
	"time"

	"github.com/lanegate/lanegate"
)

// FreshFrom says from what a class's fresh_within counts.
type FreshFrom string

// What a class's fresh_within can count from.
const (
	FromSuccess FreshFrom = "last_success"
	// FromSubmission: no run of it has ended yet, and its first job was submitted, or
	// due, then.
	FromSubmission FreshFrom = "first_submission"
	// FromRegistration: it never succeeded, and was registered or last changed then; no
	// job ever came, or the first has ended otherwise.
	FromRegistration FreshFrom = "registration"
)

// freshCount is the moment that a class's fresh_within counts from.
type freshCount struct {
	at   time.Time
	from FreshFrom
}

// by is when a success is due.
func (f freshCount) by(c lanegate.Class) time.Time { return f.at.Add(c.FreshWithin.Std()) }

// freshCounts says for each class with fresh_within what that counts from.
//
// A class is not late while its first job has waited for less than fresh_within,
// however long it had been there without a job: the silence before was reported as
// such, and ends with that job. Without a job, or when the first ended without a
// success, the last change of the class counts, which may be what gave it a
// fresh_within.
func freshCounts(ctx context.Context, store LogStore, classes []lanegate.Class) (map[string]freshCount, error) {
	success, err := store.LastSuccess(ctx)
	if err != nil {
		return nil, err
	}
	return freshCountsFrom(ctx, store, classes, success)
}

// freshCountsFrom is freshCounts for whoever knows the last successes.
func freshCountsFrom(ctx context.Context, store LogStore, classes []lanegate.Class, success map[string]time.Time) (map[string]freshCount, error) {
	out := map[string]freshCount{}
	var never []string
	for _, c := range classes {
		if c.FreshWithin <= 0 {
			continue
		}
		if at, ok := success[c.ID]; ok {
			out[c.ID] = freshCount{at, FromSuccess}
			continue
		}
		since := c.CreatedAt
		if c.UpdatedAt.After(since) {
			since = c.UpdatedAt
		}
		out[c.ID] = freshCount{since, FromRegistration}
		never = append(never, c.ID)
	}
	if len(never) == 0 {
		return out, nil
	}
	first, err := store.FirstWaits(ctx, never)
	if err != nil {
		return nil, err
	}
	for class, at := range first {
		out[class] = freshCount{at, FromSubmission}
	}
	return out, nil
}

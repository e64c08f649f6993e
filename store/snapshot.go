package store

import (
	"cmp"
	"context"
	"slices"

	"github.com/lanegate/lanegate/admission"
)

// Snapshot implements service.Store. A job whose time has come counts as due,
// though no admission has noted it yet, as without workers none does.
func (s *Store) Snapshot(ctx context.Context) (admission.Input, error) {
	var in admission.Input
	err := s.inRead(ctx, "read a snapshot", func(t *tx) (err error) {
		if in, err = t.snapshot(); err != nil {
			return err
		}
		in.Due = withReady(in.Due, t.standing.ready, trialHeads([]*admission.Trial{in.Trial}))
		return nil
	})
	return in, err
}

// withReady puts jobs into the starts of their classes' lines, which keep one job,
// or as many as the trial needs.
func withReady(heads []admission.Due, ready []headRow, need map[string]int) []admission.Due {
	if len(ready) == 0 {
		return heads
	}
	for _, r := range ready {
		heads = append(heads, r.due())
	}
	slices.SortFunc(heads, func(a, b admission.Due) int {
		switch {
		case a.Class != b.Class:
			return cmp.Compare(a.Class, b.Class)
		case admission.Before(a, b):
			return -1
		}
		return 1
	})
	n, class := 0, ""
	return slices.DeleteFunc(heads, func(d admission.Due) bool {
		if d.Class != class {
			n, class = 0, d.Class
		}
		n++
		return n > max(1, need[class])
	})
}

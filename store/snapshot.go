package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/lanegate/lanegate/admission"
)

const sqlListReadyHeads = `
SELECT id, class, first_at, place_at, place_id
  FROM jobs {{use jobs_ready_idx}}
 WHERE state = 'queued' AND NOT due AND ready_at <= $1
 ORDER BY ready_at, place_at, place_id
 LIMIT $2`

// Snapshot implements service.Store. A job whose time has come counts as due,
// though no admission has noted it yet, as without workers none does.
func (s *Store) Snapshot(ctx context.Context) (admission.Input, error) {
	var in admission.Input
	err := s.inRead(ctx, "read a snapshot", func(t *tx) (err error) {
		if in, err = t.input(1); err != nil {
			return err
		}
		var ready []headRow
		if err := t.all(&ready, sqlListReadyHeads, at(t.at), maxPromoted); err != nil {
			return fmt.Errorf("list what became due: %w", err)
		}
		in.Due = withReady(in.Due, ready)
		return nil
	})
	return in, err
}

// withReady replaces heads by jobs of their class that stand before them.
func withReady(heads []admission.Due, ready []headRow) []admission.Due {
	for _, r := range ready {
		d := r.due()
		i := slices.IndexFunc(heads, func(h admission.Due) bool { return h.Class == d.Class })
		switch {
		case i < 0:
			heads = append(heads, d)
		case admission.Before(d, heads[i]):
			heads[i] = d
		}
	}
	return heads
}

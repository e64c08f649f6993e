package store

import "context"

// lookKey is where a context says which look it belongs to, a *tx.
type lookKey struct{}

// Look implements service.Store.
func (s *Store) Look(ctx context.Context, fn func(ctx context.Context) error) error {
	if s.looking(ctx) != nil {
		return fn(ctx)
	}
	var failed error // fn's, as it was
	err := s.inRead(ctx, "look", func(t *tx) error {
		failed = fn(context.WithValue(ctx, lookKey{}, t))
		return failed
	})
	if failed != nil {
		return failed
	}
	return err
}

// looking is the look of this store that a context belongs to, nil for none.
func (s *Store) looking(ctx context.Context) *tx {
	if t, ok := ctx.Value(lookKey{}).(*tx); ok && t.s == s {
		return t
	}
	return nil
}

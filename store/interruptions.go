package store

import (
	"context"
	"slices"
)

// interruptionsAsked is how many jobs one statement asks for, well below what either
// engine takes as parameters.
const interruptionsAsked = 500

// Interruptions implements service.Store.
func (s *Store) Interruptions(ctx context.Context, jobs []string) (map[string]int, error) {
	most := map[string]int{}
	err := s.inRead(ctx, "read interruptions", func(t *tx) error {
		for some := range slices.Chunk(jobs, interruptionsAsked) {
			var p params
			var rows []struct {
				Class string `db:"class"`
				N     int    `db:"n"`
			}
			q := `
SELECT class, max(interruptions) AS n
  FROM jobs
 WHERE id IN ` + list(&p, some) + ` AND interruptions > 0
 GROUP BY class`
			if err := t.all(&rows, q, p...); err != nil {
				return err
			}
			for _, r := range rows {
				most[r.Class] = max(most[r.Class], r.N)
			}
		}
		return nil
	})
	return most, err
}

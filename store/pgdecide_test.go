//go:build linux

package store

import (
	"testing"

	"github.com/lanegate/lanegate/service"
)

// A job that is gone when it is to start leaves its slot to another one, and no more:
// what the same admission has started already counts.
func TestPostgresSecondDecisionCountsTheFirst(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 1, 2)
	mustRegister(t, s, "w")
	ids := make([]string, 4)
	for i := range ids {
		ids[i] = newID(t)
		if _, err := s.Submit(t.Context(), service.NewJob{ID: ids[i], Class: "wide-00", Client: "c", Payload: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	gone := hold(t, s, "UPDATE jobs SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1", ids[1])
	type answer struct {
		service.Admitted
		err error
	}
	admitted := make(chan answer, 1)
	go func() {
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 10})
		admitted <- answer{res, err}
	}()
	waitsForLock(t, s)
	if err := gone.Commit(); err != nil {
		t.Fatal(err)
	}
	res := <-admitted
	if res.err != nil || len(res.Grants) != 2 || res.Grants[0].Job.ID != ids[0] || res.Grants[1].Job.ID != ids[2] {
		t.Errorf("%d starts in a lane of 2, %v; want the first and the third job", len(res.Grants), res.err)
	}
}

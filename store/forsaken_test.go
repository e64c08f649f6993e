//go:build linux

package store

import (
	"testing"

	"github.com/lanegate/lanegate/service"
)

// Jobs of several workers that are gone are locked in the order of their ids, as
// everybody locks them, and not by worker: what is behind a job that somebody has
// locked is free meanwhile.
func TestPostgresForsakenJobsAreLockedByID(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addClasses(t, s, 1)
	ids := []string{newID(t), newID(t)}
	for i, worker := range []string{"worker-b", "worker-a"} {
		if _, err := s.Submit(t.Context(), service.NewJob{ID: ids[i], Class: "class-000", Client: "c", Payload: []byte("1"), Worker: worker}); err != nil {
			t.Fatal(err)
		}
	}
	holder := hold(t, s, "SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", ids[0])
	type reaped struct {
		ended []service.Ended
		err   error
	}
	done := make(chan reaped, 1)
	go func() {
		ended, err := s.ReapOrphans(t.Context())
		done <- reaped{ended, err}
	}()
	waitsForLock(t, s)
	if _, err := holder.Exec("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE NOWAIT", ids[1]); err != nil {
		t.Errorf("the job behind: %v", err)
	}
	if err := holder.Rollback(); err != nil {
		t.Error(err)
	}
	if r := <-done; r.err != nil || len(r.ended) != 2 || r.ended[0].Job.ID != ids[0] || r.ended[1].Job.ID != ids[1] {
		t.Errorf("reaped %+v, %v", r.ended, r.err)
	}
}

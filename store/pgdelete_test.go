//go:build linux

package store

import (
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// What belongs to a job goes with it, whoever deletes it and however many at once,
// though no reference says so; what belongs to others stays.
func TestPostgresChildrenGoWithTheirJob(t *testing.T) {
	t.Parallel()
	s := newPG(t, Options{})
	addWide(t, s, 1, 10)
	var ids []string
	for range 4 {
		id := newID(t)
		if _, err := s.Submit(t.Context(), service.NewJob{ID: id, Class: "wide-00", Client: "c", Payload: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := s.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 10})
	if err != nil || len(res.Grants) != len(ids) {
		t.Fatalf("%d grants, %v", len(res.Grants), err)
	}
	for _, g := range res.Grants {
		end := lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 1, Result: []byte(`1`), Output: lanegate.Output{Head: "x", Bytes: 1}}
		if _, err := s.EndAttempt(t.Context(), g.Attempt.Fence(), end); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		gone []string
		left int
	}{{nil, 4}, {ids[:3], 1}, {ids[3:], 0}} {
		gone := map[string]bool{}
		for _, id := range step.gone {
			gone[id] = true
		}
		if _, err := s.write.Exec("DELETE FROM jobs WHERE id = ANY($1)", textArray(gone)); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"attempts", "attempt_outputs", "job_payloads", "job_results"} {
			var n int
			if err := s.write.Get(&n, "SELECT count(*) FROM "+table); err != nil || n != step.left {
				t.Errorf("%d rows in %s without %d jobs, want %d; %v", n, table, len(step.gone), step.left, err)
			}
		}
	}
}

package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/lanegate/lanegate/service"
)

// Replays among new submissions are found out before anything is inserted: their
// group is not made a second time, one by one.
func TestReplaysDoNotBreakUpTheirGroup(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // written by this goroutine only: the group is committed here
	s := newPG(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	addClasses(t, s, 1)
	job := func(n int) service.NewJob {
		return service.NewJob{ID: fmt.Sprintf("job-%d", n), Class: "class-000", Client: "c", Key: fmt.Sprintf("key-%d", n%5), Payload: []byte("1"), Digest: []byte("d")}
	}
	old := submitItem(job(0), job(1))
	oneGroup(t, s.group, []*item{old})
	items := []*item{submitItem(job(2), job(5)), submitItem(job(3)), submitItem(job(6), job(4))}
	oneGroup(t, s.group, items)
	for i, want := range map[*submission]string{
		&items[0].submits[0]: "job-2", &items[0].submits[1]: "job-0", &items[1].submits[0]: "job-3", &items[2].submits[0]: "job-1", &items[2].submits[1]: "job-4",
	} {
		if i.res.Err != nil || i.res.Job.ID != want || i.res.Replayed != (want != i.ID) {
			t.Errorf("%s: %+v, want %s", i.ID, i.res, want)
		}
	}
	if log.Len() > 0 {
		t.Errorf("the log says: %s", log.String())
	}
}

package e2e

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	outageJobs     = 500
	outageAttempts = 3
	outageBackoff  = 10 * time.Second
)

// outage is a target that holds every first request until all jobs have come, then
// fails them in the same moment, and everything that follows at once.
type outage struct {
	mu    sync.Mutex
	calls int           // guarded by mu
	all   chan struct{} // closed with the last first request
}

func (o *outage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the answer is the same
	o.mu.Lock()
	o.calls++
	n := o.calls
	o.mu.Unlock()
	if n == outageJobs {
		close(o.all)
	}
	if n <= outageJobs {
		select {
		case <-o.all:
		case <-r.Context().Done():
		}
	}
	w.WriteHeader(http.StatusInternalServerError)
}

func (o *outage) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls
}

// C67: 500 jobs that fail in the same moment don't come back in the same moment:
// at most a fifth of them within any second, none later than the cap, and no more
// often than they are permitted to.
func TestRetriesAfterAnOutageAreSpread(t *testing.T) {
	t.Parallel()
	target := &outage{all: make(chan struct{})}
	server := httptest.NewServer(target)
	defer server.Close()
	w := newWorld(t)
	w.config(fmt.Sprintf(`
slots: %d
lanes:
  parallel: {width: %d, allow_overcommit: true}
classes:
  call: {run: {kind: http, url: %q}, units: {}, max_attempts: %d, backoff: {base: %s, max: %s}}
`, outageJobs, outageJobs, server.URL, outageAttempts, outageBackoff, outageBackoff))
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(outageJobs, "call")
	w.start()
	ids := w.submitMany("call", outageJobs)
	for _, id := range ids {
		j := w.final(id, 3*time.Minute)
		if j.State != "failed" || j.Attempts != outageAttempts {
			t.Errorf("job %s: %s after %d attempts, want failed after %d", id, j.State, j.Attempts, outageAttempts)
		}
	}
	if n := target.count(); n != outageJobs*outageAttempts {
		t.Errorf("%d requests for %d jobs of %d attempts each", n, outageJobs, outageAttempts)
	}
	// When a job is due again is decided with the failure and kept with the attempt;
	// when it then starts also depends on the machine.
	returns := make([][]time.Time, outageAttempts)
	for _, id := range ids {
		list := w.attempts(id)
		for i := 1; i < min(len(list), outageAttempts); i++ {
			a, before := list[i], list[i-1]
			if wait := a.ReadyAt.Sub(*before.EndedAt); wait < 0 || wait > outageBackoff {
				t.Errorf("job %s: attempt %d was due %v after the failure, want at most %v", id, a.Number, wait, outageBackoff)
			}
			if a.StartedAt.Before(a.ReadyAt) {
				t.Errorf("job %s: attempt %d started before it was due", id, a.Number)
			}
			returns[i] = append(returns[i], a.ReadyAt)
		}
	}
	for i := 1; i < outageAttempts; i++ {
		if most := mostWithin(returns[i], time.Second); most > outageJobs/5 {
			t.Errorf("%d of %d jobs come back with attempt %d within one second, want at most a fifth", most, outageJobs, i+1)
		}
	}
}

// mostWithin is the largest number of times within any span.
func mostWithin(times []time.Time, span time.Duration) int {
	slices.SortFunc(times, func(a, b time.Time) int { return cmp.Compare(a.UnixNano(), b.UnixNano()) })
	most, first := 0, 0
	for last := range times {
		for times[last].Sub(times[first]) >= span {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// submitMany posts n jobs of a class in one batch.
func (w *world) submitMany(class string, n int) (ids []string) {
	w.t.Helper()
	items := slices.Repeat([]string{fmt.Sprintf(`{"class": %q}`, class)}, n)
	var batch struct {
		Items []struct {
			Status int `json:"status"`
			Job    job `json:"job"`
		} `json:"items"`
	}
	w.must("POST", "/jobs/batch", `{"jobs": [`+strings.Join(items, ", ")+`]}`, &batch)
	for i, item := range batch.Items {
		if item.Status != http.StatusCreated {
			w.t.Fatalf("job %d of the batch: %d", i, item.Status)
		}
		ids = append(ids, item.Job.ID)
	}
	if len(ids) != n {
		w.t.Fatalf("%d of %d jobs in the answer", len(ids), n)
	}
	return ids
}

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// C04: two hundred runs that end just when a beat is due. Whether the beat comes
// before or after the outcome, nothing fails, nothing is logged as an error, and
// each job ran once.
func TestRunsThatEndAtTheBeat(t *testing.T) {
	t.Parallel()
	const beat, wide, jobs = 200 * time.Millisecond, 20, 200
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(beat*9/10 + rand.N(beat/5)):
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(target.Close)
	w := newWorld(t)
	w.config(fmt.Sprintf("classes:\n  call: {run: {kind: http, url: %q}, units: {}}\n", target.URL))
	args := []string{"--beat", beat.String(), "--slots", fmt.Sprint(wide)}
	if err := w.start(args...).term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(wide, "call")
	g := w.start(args...)
	w.must("PUT", "/lanes/parallel?accept=width", fmt.Sprintf(`{"width": %d, "allow_overcommit": true}`, wide), nil)
	began := time.Now()
	for _, id := range w.submitMany("call", jobs) {
		if j := w.final(id, 30*time.Second); j.State != "succeeded" || j.Attempts != 1 || j.Route.Lane != "parallel" {
			t.Errorf("job %s is %s after %d attempts: %s, route %v", id, j.State, j.Attempts, j.Reason, j.Route)
		}
	}
	t.Logf("%d runs of about a beat of %v in %v", jobs, beat, time.Since(began))
	if err := g.term(20 * time.Second); err != nil {
		t.Errorf("the end: %v", err)
	}
	if w.log.contains(`"level":"ERROR"`) {
		t.Error("an error was logged")
	}
}

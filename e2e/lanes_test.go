package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
)

const lanesConfig = `
resources:
  db: {capacity: 15, pool: true}
commands:
  quick: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "1"}}
  heavy: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "30"}}
classes:
  quick-a: {run: {kind: exec, command: quick}, units: {db: 5}}
  quick-b: {run: {kind: exec, command: quick}, units: {db: 5}}
  heavy: {run: {kind: exec, command: heavy}, units: {db: 5}}
`

// promote puts classes into the parallel lane past the gate, on a stopped gateway.
func (w *world) promote(maxInFlight int, classes ...string) {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), store.Options{Path: w.path("lanegate.db"), LockWait: 5 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	err = s.Change(context.Background(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		for _, c := range cfg.Classes {
			if !slices.Contains(classes, c.ID) {
				continue
			}
			c.Lane, c.MaxInFlight = lanegate.LaneParallel, maxInFlight
			if err := tx.SaveClass(c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestLanesRunSideBySide: two parallel runs and one serial run start together,
// the next job takes a freed slot at once, and a 30 s heavy job in serial delays
// no parallel one (C39).
func TestLanesRunSideBySide(t *testing.T) {
	w := newWorld(t)
	w.config(lanesConfig)
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(2, "quick-a", "quick-b")
	w.start()

	var lane struct {
		Width      int `json:"width"`
		Arithmetic struct {
			Sentence string `json:"sentence"`
		} `json:"arithmetic"`
	}
	w.must("GET", "/lanes/parallel", "", &lane)
	if lane.Width != 2 {
		t.Fatalf("width = %d (%s), want (15 − 5) / 5 = 2", lane.Width, lane.Arithmetic.Sentence)
	}

	heavy := w.submit("heavy", "")
	var quick []job
	for i := range 8 {
		quick = append(quick, w.submit([]string{"quick-a", "quick-b"}[i%2], ""))
	}
	for _, j := range quick {
		if got := w.final(j.ID, 60*time.Second); got.State != "succeeded" || got.Route.Lane != "parallel" {
			t.Errorf("job %s: %s in %v: %s", j.ID, got.State, got.Route, got.Reason)
		}
	}
	if got := w.job(heavy.ID); got.State != "running" {
		t.Fatalf("heavy is %s: the quick jobs must be done while it runs", got.State)
	}
	w.must("POST", "/jobs/"+heavy.ID+"/cancel", "", nil)
	w.final(heavy.ID, 20*time.Second)

	events := w.events()
	if most := mostAtOnce(events, "quick-a", "quick-b"); most != 2 {
		t.Errorf("most quick jobs at once = %d, want 2", most)
	}
	if most := mostAtOnce(events, "quick-a", "quick-b", "heavy"); most != 3 {
		t.Errorf("most jobs at once = %d, want 2 parallel and 1 serial", most)
	}
	// Eight runs of a second, two at a time: four seconds if each freed slot is
	// taken at once. A lost turn would cost a poll of 30 s.
	var first, last time.Time
	for _, e := range events {
		if e.class == "heavy" {
			continue
		}
		if e.kind == "start" && (first.IsZero() || e.at.Before(first)) {
			first = e.at
		}
		if e.kind == "end" && e.at.After(last) {
			last = e.at
		}
	}
	if span := last.Sub(first); span > 15*time.Second {
		t.Errorf("eight quick jobs took %v: freed slots were not taken at once", span)
	}
}

// mostAtOnce counts how many runs of the classes overlapped, by their own record.
func mostAtOnce(events []event, classes ...string) int {
	now, most := 0, 0
	slices.SortStableFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	for _, e := range events {
		if !slices.Contains(classes, e.class) {
			continue
		}
		switch e.kind {
		case "start":
			now++
			most = max(most, now)
		case "end":
			now--
		}
	}
	return most
}

// C41, C45: an overloaded parallel lane starves nobody in serial, and a class
// that outlasts its schedule waits in line instead of running beside itself.
func TestLoadInOneLaneStarvesNobody(t *testing.T) {
	w := newWorld(t)
	w.config(`
resources:
  db: {capacity: 15, pool: true}
commands:
  flood: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.2"}}
  rare: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.2"}}
classes:
  flood: {run: {kind: exec, command: flood}, units: {db: 5}}
  rare: {run: {kind: exec, command: rare}, units: {db: 5}}
`)
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(2, "flood")
	w.start()
	for range 40 {
		w.submit("flood", "")
	}
	var rare []job
	for range 3 {
		rare = append(rare, w.submit("rare", ""))
	}
	for _, j := range rare {
		if got := w.final(j.ID, 30*time.Second); got.State != "succeeded" {
			t.Errorf("rare job %s: %s", j.ID, got.State)
		}
	}
	var page struct {
		Items []job `json:"items"`
	}
	w.must("GET", "/jobs?state=queued&class=flood&limit=100", "", &page)
	if len(page.Items) == 0 {
		t.Error("the flood was over before the rare jobs: the test proved nothing")
	}
	w.checkEvents(nil, 0)
}

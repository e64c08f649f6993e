package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
)

// ran is a run of the gateway, and when the replay starts it.
type ran struct {
	lanegate.RunRecord
	replayed time.Time
}

// history reads the run log and the configuration of a stopped gateway.
func (w *world) history() (records []lanegate.RunRecord, cfg service.Config) {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), store.Options{Path: w.path("lanegate.db"), LockWait: 5 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	if cfg, err = s.Config(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	err = s.RunLog(w.t.Context(), "", time.Unix(0, 0), time.Now().Add(time.Hour), func(r lanegate.RunRecord) error {
		records = append(records, r)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return records, cfg
}

// TestReplayAgreesWithTheGateway: the same small history, once through the real
// gateway and once through the replay, starts the same jobs in the same lanes in
// the same order, at about the same times: there is one planner.
func TestReplayAgreesWithTheGateway(t *testing.T) {
	w := newWorld(t)
	w.config(`
resources:
  db: {capacity: 15, pool: true}
  session: {capacity: 2}
commands:
  long: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "1.5"}}
  longer: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "2.5"}}
  short: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.3"}}
classes:
  heavy: {run: {kind: exec, command: long}, units: {db: 5}}
  tidy: {run: {kind: exec, command: short}, units: {db: 1}}
  pos: {run: {kind: exec, command: longer}, units: {db: 5}}
  vendor: {run: {kind: exec, command: short}, units: {db: 5, session: 1}}
`)
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(2, "pos", "vendor")
	g := w.start()
	ids := []string{w.submit("pos", "").ID, w.submit("tidy", "").ID}
	w.final(ids[1], time.Minute) // so that the first two of pos don't end at one moment
	for _, class := range []string{"heavy", "pos", "pos", "vendor", "tidy", "vendor", "pos", "heavy", "vendor", "tidy"} {
		ids = append(ids, w.submit(class, "").ID)
	}
	for _, id := range ids {
		if j := w.final(id, time.Minute); j.State != "succeeded" {
			t.Fatalf("job %s of %s ended as %s: %s", id, j.Class, j.State, j.Reason)
		}
	}
	if err := g.term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	records, cfg := w.history()
	if len(records) != len(ids) {
		t.Fatalf("%d runs in the log, want %d", len(records), len(ids))
	}
	runs := w.replayed(records, cfg)

	lane := map[string]string{}
	for _, c := range cfg.Classes {
		lane[c.ID] = c.Lane
	}
	for _, r := range runs {
		if r.Lane != lane[r.Class] {
			t.Errorf("%s ran in lane %s, its class is in %s", r.Class, r.Lane, lane[r.Class])
		}
		if off := r.StartedAt.Sub(r.replayed).Abs(); off > 10*time.Second {
			t.Errorf("%s %s started at %v, in the replay at %v", r.Class, r.Job, r.StartedAt, r.replayed)
		}
		// The replay starts a job the moment it can; only clocks make the gateway earlier.
		if r.Lane == lanegate.LaneSerial && r.replayed.Sub(r.StartedAt) > 200*time.Millisecond {
			t.Errorf("%s %s started at %v, before the replay could at %v", r.Class, r.Job, r.StartedAt, r.replayed)
		}
	}
	// In serial the order is one; in parallel it is one for each class, while who of
	// two classes is first can hang on milliseconds.
	for what, in := range map[string]func(ran) bool{
		"serial": func(r ran) bool { return r.Lane == lanegate.LaneSerial },
		"pos":    func(r ran) bool { return r.Class == "pos" },
		"vendor": func(r ran) bool { return r.Class == "vendor" },
	} {
		real := order(runs, in, func(r ran) time.Time { return r.StartedAt })
		replayed := order(runs, in, func(r ran) time.Time { return r.replayed })
		if len(real) < 3 || !slices.Equal(real, replayed) {
			t.Errorf("%s started %v, in the replay %v", what, real, replayed)
		}
	}
	// pos fills parallel; then it is vendor's turn, though a third pos came before it.
	if real, replayed := fair(runs, func(r ran) time.Time { return r.StartedAt }), fair(runs, func(r ran) time.Time { return r.replayed }); real != replayed {
		t.Errorf("a vendor goes before the third pos: %v, in the replay %v", real, replayed)
	}
	if real, replayed := busiest(runs, func(r ran) time.Time { return r.StartedAt }), busiest(runs, func(r ran) time.Time { return r.replayed }); real > 2 || replayed != 2 {
		t.Errorf("at most %d ran at once in parallel, in the replay %d; the width is 2", real, replayed)
	}
}

// replayed replays what the gateway ran under its own lanes.
func (w *world) replayed(records []lanegate.RunRecord, cfg service.Config) []ran {
	w.t.Helper()
	slices.SortFunc(records, func(a, b lanegate.RunRecord) int { return a.ReadyAt.Compare(*b.ReadyAt) })
	log := &runlog.Log{}
	if err := log.Add(records...); err != nil {
		w.t.Fatal(err)
	}
	starts, err := runlog.Replay(w.t.Context(), log, cfg.Lanes, cfg.Classes, cfg.Resources)
	if err != nil {
		w.t.Fatal(err)
	}
	var runs []ran
	for i, r := range records {
		runs = append(runs, ran{r, time.UnixMicro(starts[i])})
	}
	return runs
}

// order is the jobs of some runs by a time.
func order(runs []ran, in func(ran) bool, at func(ran) time.Time) []string {
	runs = slices.DeleteFunc(slices.Clone(runs), func(r ran) bool { return !in(r) })
	slices.SortStableFunc(runs, func(a, b ran) int { return at(a).Compare(at(b)) })
	var jobs []string
	for _, r := range runs {
		jobs = append(jobs, r.Job)
	}
	return jobs
}

// fair says whether the first vendor started before the third pos.
func fair(runs []ran, at func(ran) time.Time) bool {
	started := map[string][]time.Time{}
	for _, r := range runs {
		started[r.Class] = append(started[r.Class], at(r))
	}
	for _, times := range started {
		slices.SortFunc(times, time.Time.Compare)
	}
	return started["vendor"][0].Before(started["pos"][2])
}

// busiest is the most runs at once in parallel; a run that ends within 10 µs of
// another's start is over by then, for replays count in whole microseconds.
func busiest(runs []ran, at func(ran) time.Time) int {
	most := 0
	for _, r := range runs {
		n := 0
		for _, other := range runs {
			if other.Lane == lanegate.LaneParallel && !at(other).After(at(r)) && at(other).Add(other.Duration-10*time.Microsecond).After(at(r)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

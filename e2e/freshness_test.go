package e2e

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// lateness is what the tests read of GET /freshness.
type lateness struct {
	Now   time.Time `json:"now"`
	Items []struct {
		Class    string    `json:"class"`
		Status   string    `json:"status"`
		Sentence string    `json:"sentence"`
		DueBy    time.Time `json:"due_by"`
		Queued   []string  `json:"queued"`
		Finish   *struct {
			P50 time.Time `json:"p50"`
		} `json:"expected_finish"`
		InTheWay []struct {
			Class   string   `json:"class"`
			Running []string `json:"running"`
		} `json:"in_the_way"`
		Help []struct {
			Action  string `json:"action"`
			Command string `json:"command"`
		} `json:"help"`
	} `json:"items"`
}

// rewriteDurations makes the history of a stopped gateway one of longer runs.
func (w *world) rewriteDurations(class string, took time.Duration) {
	w.t.Helper()
	db, err := sql.Open("sqlite", w.path("lanegate.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("UPDATE run_log SET duration = ? WHERE class = ?", int64(took), class); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) metric(line string) bool {
	w.t.Helper()
	status, text, err := w.do("GET", "/metrics", "")
	return err == nil && status == 200 && strings.Contains(string(text), line+"\n")
}

// TestMissIsAnnouncedInTime: heavy starts, pos queues behind it and will miss its
// fresh_within. That is said while there is still time, by name of heavy, where
// people look (GET /freshness), in the log and in the metric; and it is over when
// pos has run.
func TestMissIsAnnouncedInTime(t *testing.T) {
	w := newWorld(t)
	w.config(`
commands:
  heavy: {argv: [sh, -c, 'exec sleep "$(cat $DIR/heavy)"']}
  pos: {argv: [sh, -c, 'exit 0']}
classes:
  heavy: {run: {kind: exec, command: heavy}, units: {}}
  pos: {run: {kind: exec, command: pos}, units: {}, fresh_within: 1m}
`)
	w.write("heavy", "0.01")
	g := w.start()
	for range 5 {
		for _, class := range []string{"heavy", "pos"} {
			if j := w.final(w.submit(class, "").ID, 20*time.Second); j.State != "succeeded" {
				t.Fatalf("%s ended as %s: %s", class, j.State, j.Reason)
			}
		}
	}
	if err := g.term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.rewriteDurations("heavy", 5*time.Minute)
	w.write("heavy", "300")
	w.start()

	heavy := w.submit("heavy", "")
	w.eventually(20*time.Second, "heavy runs", func() bool { return w.job(heavy.ID).State == "running" })
	pos := w.submit("pos", "")
	var late lateness
	w.eventually(50*time.Second, "the miss is announced", func() bool {
		w.must("GET", "/freshness", "", &late)
		return len(late.Items) == 1 && late.Items[0].Status != "at_risk"
	})
	got := late.Items[0]
	if got.Class != "pos" || got.Status != "expected_late" || !late.Now.Before(got.DueBy) {
		t.Errorf("at %v: %s of %s, due by %v: want it expected, before it is due", late.Now, got.Status, got.Class, got.DueBy)
	}
	if got.Finish == nil || !got.Finish.P50.After(got.DueBy) || !slices.Equal(got.Queued, []string{pos.ID}) {
		t.Errorf("expected finish %v, queued %v", got.Finish, got.Queued)
	}
	if len(got.InTheWay) != 1 || got.InTheWay[0].Class != "heavy" || !slices.Equal(got.InTheWay[0].Running, []string{heavy.ID}) || !strings.Contains(got.Sentence, "in the way: heavy") {
		t.Errorf("in the way: %+v; %s", got.InTheWay, got.Sentence)
	}
	if len(got.Help) == 0 || got.Help[0].Action != "verify" || got.Help[0].Command != "lanegate verify pos --alongside heavy --copies 1" {
		t.Errorf("help: %+v", got.Help)
	}
	w.eventually(20*time.Second, "the log says so", func() bool { return w.log.contains("class is expected to be late") })
	if text := w.log.tail(1 << 20); strings.Count(text, "class is expected to be late") != 1 || !strings.Contains(text[strings.Index(text, "class is expected to be late"):], "heavy") {
		t.Error("the log does not name heavy, once")
	}
	w.eventually(20*time.Second, "the metric says so", func() bool { return w.metric(`lanegate_class_expected_late{class="pos"} 1`) })
	if w.metric(`lanegate_class_stale{class="pos"} 1`) {
		t.Error("pos is stale already: the alarm was not in time")
	}
	w.checkExpected(pos.ID)

	w.must("POST", "/jobs/"+heavy.ID+"/cancel", "", nil)
	w.final(pos.ID, 30*time.Second)
	w.eventually(30*time.Second, "the metric goes down", func() bool { return w.metric(`lanegate_class_expected_late{class="pos"} 0`) })
}

// checkExpected: the queued job and its lane say when.
func (w *world) checkExpected(id string) {
	w.t.Helper()
	type when struct {
		P50, P90 time.Time
	}
	var j struct {
		ExpectedStart *when  `json:"expected_start"`
		Reason        string `json:"expected_start_reason"`
	}
	w.must("GET", "/jobs/"+id, "", &j)
	if j.ExpectedStart == nil || j.ExpectedStart.P50.Before(time.Now().Add(time.Minute)) || j.ExpectedStart.P90.Before(j.ExpectedStart.P50) {
		w.t.Errorf("expected start %v (%s), want more than a minute from now", j.ExpectedStart, j.Reason)
	}
	var lane struct {
		EmptyAt *when  `json:"empty_at"`
		Reason  string `json:"empty_reason"`
	}
	w.must("GET", "/lanes/serial", "", &lane)
	if lane.EmptyAt == nil || lane.EmptyAt.P50.Before(time.Now().Add(time.Minute)) {
		w.t.Errorf("serial is empty at %v (%s)", lane.EmptyAt, lane.Reason)
	}
}

// TestImportedLogIsAdvisedOn: lanegate import loads an older log beside the
// gateway's own, once, and GET /advice reads both.
func TestImportedLogIsAdvisedOn(t *testing.T) {
	w := newWorld(t)
	w.config("")
	w.start()
	var log strings.Builder
	log.WriteString("class,submitted,started,finished,status\n")
	night := time.Now().UTC().Add(-6 * 24 * time.Hour).Truncate(time.Hour)
	for day := range 5 {
		at := night.Add(time.Duration(day) * 24 * time.Hour)
		stamp := func(minutes int) string { return at.Add(time.Duration(minutes) * time.Minute).Format(time.RFC3339) }
		fmt.Fprintf(&log, "heavy,%s,%s,%s,success\n", stamp(0), stamp(0), stamp(900))
		for i := range 6 {
			fmt.Fprintf(&log, "pos-%d,%s,%s,%s,success\n", i, stamp(1), stamp(900+3*i), stamp(903+3*i))
		}
	}
	log.WriteString("heavy,2001-01-01T00:00:00Z,2001-01-01T00:00:00Z,2001-01-01T01:00:00Z,success\n")
	w.write("runs.csv", log.String())
	if out := w.cli(0, "import", "runs.csv"); !strings.Contains(out, "36 rows, 35 used: 35 added, 0 there already") || !strings.Contains(out, "runs.csv, line 37: it ended before") {
		t.Errorf("import: %s", out)
	}
	if out := w.cli(0, "import", "runs.csv"); !strings.Contains(out, "35 used: 0 added, 35 there already") {
		t.Errorf("the second import: %s", out)
	}
	// A file of which no row could be used is no success.
	w.write("old.csv", "class,submitted,started,finished,status\nheavy,2001-01-01T00:00:00Z,2001-01-01T00:00:00Z,2001-01-01T01:00:00Z,success\n")
	if out := w.cli(1, "import", "old.csv"); !strings.Contains(out, "1 rows, 0 used") || !strings.Contains(out, "old.csv, line 2: it ended before") {
		t.Errorf("an import of nothing: %s", out)
	}
	var report struct {
		Verdict struct {
			Kind    string   `json:"kind"`
			Classes []string `json:"classes"`
			CLI     string   `json:"verify_cli"`
		} `json:"verdict"`
		Span struct {
			Runs int `json:"runs"`
		} `json:"span"`
	}
	w.must("GET", "/advice?window=7d", "", &report)
	if report.Verdict.Kind != "isolate" || !slices.Equal(report.Verdict.Classes, []string{"heavy"}) || report.Span.Runs != 35 || !strings.HasPrefix(report.Verdict.CLI, "lanegate verify heavy") {
		t.Errorf("advice: %+v", report)
	}
	if _, text, err := w.do("GET", "/advice?window=7d&format=html", ""); err != nil || !strings.HasPrefix(string(text), "<!doctype html>") && !strings.HasPrefix(string(text), "<!DOCTYPE html>") {
		t.Errorf("the page begins %.60s, %v", text, err)
	}
	var jobs struct {
		Items []job `json:"items"`
	}
	if w.must("GET", "/jobs", "", &jobs); len(jobs.Items) != 0 {
		t.Errorf("an import made %d jobs", len(jobs.Items))
	}
}

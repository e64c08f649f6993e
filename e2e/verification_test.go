package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate/store/pgtest"
)

// hiddenScripts are jobs that can't bear a second copy of themselves, each in its
// own way.
var hiddenScripts = map[string]string{
	// Two copies read the same number and both write it plus one.
	"counter.sh": `#!/bin/sh
echo run >>"$DIR/counter.runs"
n=$(cat "$DIR/counter" 2>/dev/null || echo 0)
sleep 1
echo $((n + 1)) >"$DIR/counter"
`,
	"counter-check.sh": `#!/bin/sh
runs=$(wc -l <"$DIR/counter.runs")
n=$(cat "$DIR/counter")
echo "$n of $runs runs are in the counter"
[ "$n" -eq "$runs" ]
`,
	// A second login makes the first one's token invalid.
	"session.sh": `#!/bin/sh
echo "$LANEGATE_JOB_ID" >"$DIR/session"
sleep 1
if [ "$(cat "$DIR/session")" != "$LANEGATE_JOB_ID" ]; then
	echo "ERROR: invalid session: logged in elsewhere" >&2
	exit 1
fi
`,
	// Two tables locked in the order that the payload names.
	"lock.sh": `#!/bin/sh
case "$(cat)" in
*ab*) first=a second=b ;;
*) first=b second=a ;;
esac
"$PSQL" -XqAt -v ON_ERROR_STOP=1 -d "$DB" <<SQL
BEGIN;
LOCK TABLE $first;
SELECT pg_sleep(1);
LOCK TABLE $second;
COMMIT;
SQL
`,
}

// mustPass repeats an experiment that is only a preparation while the machine is
// too busy to let its runs overlap.
func (w *world) mustPass(spec string) {
	w.t.Helper()
	for range 5 {
		v := w.verdict(w.verify(spec).ID, 5*time.Minute)
		if v.Verdict == "passed" {
			return
		}
		if v.Verdict != "inconclusive" {
			w.t.Fatalf("verdict %s: %v", v.Verdict, v.Reasons)
		}
		w.t.Logf("once more: %s", v.Sentence)
	}
	w.t.Fatal("five experiments in a row proved nothing")
}

// ready waits until a worker is live: a plan that nobody could carry out is refused.
func (w *world) ready() {
	w.t.Helper()
	w.eventually(20*time.Second, "a worker is live", func() bool {
		var lane struct {
			Available bool `json:"available"`
		}
		w.must("GET", "/lanes/parallel", "", &lane)
		return lane.Available
	})
}

func newHiddenWorld(t *testing.T) *world {
	t.Helper()
	pg := pgtest.New(t)
	for _, statement := range []string{"CREATE TABLE a (x int)", "CREATE TABLE b (x int)"} {
		if err := pg.Exec(t.Context(), "test", statement); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	for name, text := range hiddenScripts {
		w.write(name, text)
	}
	env := fmt.Sprintf("{DIR: %q, PSQL: %q, DB: %q}", w.dir, pg.Program(t, "psql"), pg.URL("test"))
	w.config(fmt.Sprintf(`
commands:
  counter: {argv: [sh, $DIR/counter.sh], env: %[1]s}
  counter-check: {argv: [sh, $DIR/counter-check.sh], env: %[1]s}
  session: {argv: [sh, $DIR/session.sh], env: %[1]s}
  lock: {argv: [sh, $DIR/lock.sh], env: %[1]s}
classes:
  counter: {run: {kind: exec, command: counter}, units: {}, repeatable: true}
  session: {run: {kind: exec, command: session}, units: {}, repeatable: true}
  lock: {run: {kind: exec, command: lock}, units: {}, repeatable: true}
`, env))
	return w
}

// TestHiddenSharing: what two copies share without saying so is found, each time
// by evidence of its own kind.
func TestHiddenSharing(t *testing.T) {
	w := newHiddenWorld(t)
	w.start()
	w.ready()
	tests := []struct {
		class, payloads, check, code, phrase string
	}{
		{"counter", "", `, "check": {"kind": "exec", "command": "counter-check"}`, "check_failed", ""},
		{"session", "", "", "phrase", "invalid session"},
		{"lock", `, "payloads": ["ab", "ba"]`, "", "phrase", "deadlock detected"},
	}
	for _, test := range tests {
		v := w.verify(fmt.Sprintf(`{"source": "payloads", "rounds": 1, "members": [{"class": %q, "copies": 2%s}]%s}`, test.class, test.payloads, test.check))
		v = w.verdict(v.ID, time.Minute)
		if v.Verdict != "failed" || !slices.Contains(v.codes(), test.code) {
			t.Errorf("%s: verdict %s, reasons %v, want failed by %s\n%s", test.class, v.Verdict, v.Reasons, test.code, v.Sentence)
		}
		if test.phrase != "" && !evidenceHas(v, test.phrase) {
			t.Errorf("%s: no line with %q in the evidence", test.class, test.phrase)
		}
		status, text, err := w.do("PATCH", "/job-classes/"+test.class+"/promote", fmt.Sprintf(`{"verification_run": %q}`, v.ID))
		if err != nil || status != http.StatusConflict || !strings.Contains(string(text), "verification_not_passed") {
			t.Errorf("%s: promote answered %d %s %v", test.class, status, text, err)
		}
	}
}

func evidenceHas(v verification, phrase string) bool {
	for _, r := range v.Evidence.Rounds {
		for _, run := range r.Runs {
			for _, m := range run.Phrases {
				if strings.Contains(m.Line, phrase) {
					return true
				}
			}
		}
	}
	return false
}

// TestHiddenSharingForced: with the gate forced open, the same class really loses
// data, so what its verification said was true.
func TestHiddenSharingForced(t *testing.T) {
	w := newHiddenWorld(t)
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(2, "counter")
	w.start()
	w.must("PUT", "/lanes/parallel", `{"width": 2, "allow_overcommit": true, "order": "fair"}`, nil)
	for _, j := range []job{w.submit("counter", ""), w.submit("counter", "")} {
		if got := w.final(j.ID, time.Minute); got.State != "succeeded" {
			t.Fatalf("%s: %s", got.State, got.Reason)
		}
	}
	text, err := os.ReadFile(w.path("counter"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n != 1 {
		t.Errorf("counter %q after two runs beside each other: the lost update is what the verification is about", text)
	}
}

const phasesConfig = `
resources:
  db: {capacity: 15, pool: true}
commands:
  quick: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.6"}}
  check: {argv: [sh, -c, "echo check >>$DIR/checks; sleep 1"]}
classes:
  one: {run: {kind: exec, command: quick}, units: {db: 5}, repeatable: true}
  two: {run: {kind: exec, command: quick}, units: {db: 5}, repeatable: true}
  other: {run: {kind: exec, command: quick}, units: {db: 5}}
`

// phases of a verification run in which the gateway is killed, or stopped and started again.
var phases = map[string]func(w *world, v verification) bool{
	"planned":      func(_ *world, v verification) bool { return v.State == "planned" },
	"held":         func(_ *world, v verification) bool { return v.HeldAt != nil },
	"first round":  func(w *world, v verification) bool { return v.State == "running" && w.atWork() > 0 },
	"second round": func(_ *world, v verification) bool { return v.Round >= 1 },
	"check":        func(w *world, _ verification) bool { return w.exists("checks") },
	"done":         func(_ *world, v verification) bool { return v.State == "done" },
}

func (w *world) atWork() int {
	w.t.Helper()
	var page struct {
		Items []job `json:"items"`
	}
	w.must("GET", "/jobs?state=running&verification=true", "", &page)
	return len(page.Items)
}

func (w *world) exists(name string) bool {
	_, err := os.Stat(w.path(name))
	return err == nil
}

// TestVerificationSurvivesKills: whatever the moment, the source and the end, a run that
// lost its owner ends inconclusive, holds nothing, and the line goes on.
func TestVerificationSurvivesKills(t *testing.T) {
	ends := map[string]func(t *testing.T, g *gateway){
		"kill -9": func(_ *testing.T, g *gateway) { g.kill() },
		"restart": func(t *testing.T, g *gateway) {
			if err := g.term(30 * time.Second); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, source := range []string{"payloads", "queue"} {
		for name, reached := range phases {
			for how, end := range ends {
				t.Run(source+"/"+name+"/"+how, func(t *testing.T) {
					t.Parallel()
					endInPhase(t, source, name, reached, end)
				})
			}
		}
	}
}

func endInPhase(t *testing.T, source, name string, reached func(*world, verification) bool, end func(*testing.T, *gateway)) {
	w := newWorld(t)
	w.config(phasesConfig)
	g := w.start()
	w.ready()
	if source == "queue" { // the baseline, from ordinary runs
		for _, class := range []string{"one", "two"} {
			for range 5 {
				w.submit(class, "")
			}
		}
		w.eventually(time.Minute, "the baseline's runs are over", func() bool { return w.count("queued")+w.count("running") == 0 })
		for range 4 {
			w.submit("one", "")
			w.submit("two", "")
		}
	}
	v := w.verify(fmt.Sprintf(`{"source": %q, "rounds": 1, "criteria": {"min_overlap": 0.02}, "members": [{"class": "one", "copies": 2}, {"class": "two", "copies": 2}], "check": {"kind": "exec", "command": "check"}, "max_hold": "5m"}`, source))
	w.eventually(time.Minute, "the run is "+name, func() bool {
		if reached(w, v) {
			return true
		}
		v = w.verification(v.ID)
		return reached(w, v)
	})
	end(t, g)
	w.start()
	v = w.verdict(v.ID, time.Minute)
	switch {
	case name == "planned" && v.Verdict == "passed": // it may not have begun, and does so now
	case name == "done" && v.Verdict == "passed":
	case v.Verdict == "inconclusive" && (slices.Contains(v.codes(), "owner_lost") || slices.Contains(v.codes(), "stopped")):
	default:
		t.Errorf("verdict %s %v", v.Verdict, v.Reasons)
	}
	// Nothing is held: an ordinary job runs, and so does what the experiment used.
	if got := w.final(w.submit("other", "").ID, time.Minute); got.State != "succeeded" {
		t.Errorf("other: %s %s", got.State, got.Reason)
	}
	w.eventually(time.Minute, "all jobs are over", func() bool { return w.count("queued")+w.count("running") == 0 })
	var lane struct {
		InFlight int `json:"in_flight"`
	}
	if w.must("GET", "/lanes/serial", "", &lane); lane.InFlight != 0 {
		t.Errorf("serial has %d in flight when all is over", lane.InFlight)
	}
	if n := w.count("failed"); n != 0 {
		t.Errorf("%d jobs failed", n)
	}
}

func (w *world) count(state string) int {
	w.t.Helper()
	var page struct {
		Items []job `json:"items"`
	}
	w.must("GET", "/jobs?limit=500&state="+state, "", &page)
	return len(page.Items)
}

// TestLongClassGetsItsOwnLane: a class whose runs are far longer than the hold is
// proven beside the others by a window, moves to a lane of its own, and unpromoted
// classes no longer wait for it.
func TestLongClassGetsItsOwnLane(t *testing.T) {
	w := newWorld(t)
	w.config(`
resources:
  db: {capacity: 15, pool: true}
lanes:
  long: {width: 1}
commands:
  quick: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "1"}}
  heavy: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "40"}}
classes:
  heavy: {run: {kind: exec, command: heavy}, units: {db: 5}, repeatable: true}
  quick: {run: {kind: exec, command: quick}, units: {db: 5}, repeatable: true}
`)
	w.start()
	w.ready()
	began := time.Now()
	v := w.verify(`{"source": "payloads", "rounds": 1, "max_hold": "30s", "criteria": {"window": "1s"},
		"members": [{"class": "heavy", "copies": 1}, {"class": "quick", "copies": 1}]}`)
	v = w.verdict(v.ID, 35*time.Second)
	if v.Verdict != "passed" {
		t.Fatalf("verdict %s: %s %v", v.Verdict, v.Sentence, v.Reasons)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the verdict took %v: it must not wait for the end of heavy", took)
	}
	if n := w.atWork(); n == 0 {
		t.Error("heavy's run did not go on after the verdict")
	}
	w.must("PATCH", "/job-classes/heavy/promote", fmt.Sprintf(`{"verification_run": %q, "lane": "long"}`, v.ID), nil)
	heavy := w.submit("heavy", "")
	w.eventually(70*time.Second, "heavy runs in its lane", func() bool { return w.job(heavy.ID).State == "running" })
	if got := w.final(w.submit("quick", "").ID, 20*time.Second); got.State != "succeeded" || got.Route.Lane != "serial" {
		t.Errorf("quick: %s in %v", got.State, got.Route)
	}
	if got := w.job(heavy.ID); got.State != "running" || got.Route.Lane != "long" {
		t.Errorf("heavy: %s in %v: quick must not have waited for it", got.State, got.Route)
	}
	w.must("POST", "/jobs/"+heavy.ID+"/cancel", "", nil)
}

// TestDemotedClassBlocksOnlyItself: two long parallel runs go on after a demotion;
// the class waits for them, nobody else does.
func TestDemotedClassBlocksOnlyItself(t *testing.T) {
	w := newWorld(t)
	w.config(`
resources:
  db: {capacity: 20, pool: true}
commands:
  long: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "8"}}
  quick: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.2"}}
  outage: {argv: [sh, -c, "echo vendor: connection refused >&2; exit 1"]}
classes:
  long: {run: {kind: exec, command: long}, units: {db: 5}}
  fast: {run: {kind: exec, command: quick}, units: {db: 5}}
  plain: {run: {kind: exec, command: quick}, units: {db: 5}}
  vendor: {run: {kind: exec, command: outage}, units: {db: 1}}
`)
	if err := w.start().term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.promote(2, "long", "fast", "vendor")
	w.start()
	runs := []job{w.submit("long", ""), w.submit("long", "")}
	for _, j := range runs {
		w.eventually(20*time.Second, "both long runs are under way", func() bool { return w.job(j.ID).State == "running" })
	}
	w.cli(0, "demote", "long", "--reason", "found to share a file")
	behind := w.submit("long", "")
	for _, class := range []string{"fast", "plain", "fast", "plain"} {
		if got := w.final(w.submit(class, "").ID, 20*time.Second); got.State != "succeeded" {
			t.Errorf("%s: %s %s", class, got.State, got.Reason)
		}
	}
	for _, j := range runs {
		if got := w.job(j.ID); got.State != "running" {
			t.Fatalf("a long run is %s: the others waited for it", got.State)
		}
	}
	if got := w.job(behind.ID); got.State != "queued" || len(got.WaitingOn) == 0 || got.WaitingOn[0].Reason != "class_limit" {
		t.Errorf("the demoted class's next job: %s %+v, want it to wait for its own two runs", got.State, got.WaitingOn)
	}
	if got := w.final(behind.ID, time.Minute); got.State != "succeeded" || got.Route.Lane != "serial" {
		t.Errorf("then it runs in serial: %s %v", got.State, got.Route)
	}
	// A night of failures says nothing about concurrency.
	for range 10 {
		w.final(w.submit("vendor", "").ID, 20*time.Second)
	}
	var class struct {
		Lane     string `json:"lane"`
		Standing struct {
			Warnings []string `json:"warnings"`
		} `json:"standing"`
	}
	w.must("GET", "/job-classes/vendor", "", &class)
	if class.Lane != "parallel" || len(class.Standing.Warnings) == 0 {
		t.Errorf("vendor after ten failures: lane %s, warnings %q, want it warned about and not demoted", class.Lane, class.Standing.Warnings)
	}
	// A new serial class with large units lowers no width without a yes.
	status, text, err := w.do("PUT", "/job-classes/large", `{"run": {"kind": "exec", "command": "quick"}, "units": {"db": 15}}`)
	if err != nil || status != http.StatusConflict || !strings.Contains(string(text), "width_lowered") {
		t.Errorf("a large serial class: %d %s %v", status, text, err)
	}
	w.must("PUT", "/job-classes/large?accept=width", `{"run": {"kind": "exec", "command": "quick"}, "units": {"db": 15}}`, nil)
}

// TestAbortedAndDrainedVerification: a person's abort and a stop of the gateway
// both end a run and give serial back.
func TestAbortedAndDrainedVerification(t *testing.T) {
	w := newWorld(t)
	w.config(strings.ReplaceAll(phasesConfig, `TAKES: "0.6"`, `TAKES: "20"`))
	g := w.start()
	w.ready()
	body := `{"source": "payloads", "rounds": 1, "members": [{"class": "one", "copies": 2}], "max_hold": "5m"}`
	v := w.verify(body)
	w.eventually(20*time.Second, "it runs", func() bool { return w.atWork() > 0 })
	w.must("POST", "/verification-runs/"+v.ID+"/abort", "", nil)
	if v = w.verification(v.ID); v.State != "aborted" || v.Verdict != "" {
		t.Errorf("after the abort: %s %s", v.State, v.Verdict)
	}
	w.eventually(20*time.Second, "the made-up run is stopped", func() bool { return w.atWork() == 0 })
	if status, text, err := w.do("POST", "/verification-runs/"+v.ID+"/abort", ""); err != nil || status != http.StatusConflict {
		t.Errorf("a second abort: %d %s %v", status, text, err)
	}

	v = w.verify(body)
	w.eventually(20*time.Second, "it runs", func() bool { return w.atWork() > 0 })
	g.signal(syscall.SIGTERM)
	<-g.done
	w.start()
	if v = w.verdict(v.ID, 20*time.Second); v.Verdict != "inconclusive" {
		t.Errorf("after the stop: %s %s %v", v.State, v.Verdict, v.Reasons)
	}
	if got := w.atWork(); got != 0 {
		t.Errorf("%d runs are left", got)
	}
}

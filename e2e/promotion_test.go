package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/store/pgtest"
)

// poolScript is a job with a pool of five connections, as its units declare.
const poolScript = `#!/bin/sh
note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"; }
note start
pids=
for i in 1 2 3 4 5; do
	"$PSQL" -XqAt -d "$DB" -c "select pg_sleep($TAKES)" >/dev/null &
	pids="$pids $!"
done
rc=0
for p in $pids; do wait "$p" || rc=1; done
note end
exit $rc
`

// heavyScript holds its five connections for eight seconds and then until it is released.
const heavyScript = `#!/bin/sh
note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"; }
note start
pids=
for i in 1 2 3 4 5; do
	"$PSQL" -XqAt -d "$DB" -c "select pg_sleep(600)" >/dev/null 2>&1 &
	pids="$pids $!"
done
sleep 8
rc=0
for p in $pids; do kill -0 "$p" || rc=1; done # one that was refused has ended
while [ ! -e "$RELEASE" ]; do sleep 0.1; done
kill $pids
wait
note end
exit $rc
`

// verification is what the tests read of a verification run.
type verification struct {
	ID       string                        `json:"id"`
	State    string                        `json:"state"`
	Verdict  string                        `json:"verdict"`
	Sentence string                        `json:"sentence"`
	Round    int                           `json:"round"`
	Plan     []lanegate.Round              `json:"plan"`
	HeldAt   *time.Time                    `json:"held_at"`
	Reasons  []lanegate.VerificationReason `json:"reasons"`
	Evidence lanegate.Evidence             `json:"evidence"`
}

// codes lists the codes of the reasons.
func (v verification) codes() []string {
	var codes []string
	for _, r := range v.Reasons {
		codes = append(codes, r.Code)
	}
	return codes
}

func (w *world) verify(body string) verification {
	w.t.Helper()
	var v verification
	w.must("POST", "/verification-runs", body, &v)
	return v
}

func (w *world) verification(id string) verification {
	w.t.Helper()
	var v verification
	w.must("GET", "/verification-runs/"+id, "", &v)
	return v
}

// verdict waits until the run is over.
func (w *world) verdict(id string, limit time.Duration) verification {
	w.t.Helper()
	var v verification
	w.eventually(limit, "verification run "+id+" is over", func() bool {
		v = w.verification(id)
		return v.State == "done" || v.State == "aborted"
	})
	return v
}

// cli runs the binary as an operator would and returns what it printed.
func (w *world) cli(want int, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(binary, append(args, "--url", w.url(""))...)
	cmd.Dir = w.dir
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	_ = cmd.Run() // the exit code is looked at
	if code := cmd.ProcessState.ExitCode(); code != want {
		w.t.Fatalf("lanegate %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, out.String(), stderr.String())
	}
	return out.String()
}

var quickClasses = []string{"customers", "inventory", "logistics", "pos-sales", "prices", "staff", "weather"}

// storyConfig has seven quick classes and a heavy one; each takes five of the
// database's fifteen connections.
func storyConfig(w *world, pg *pgtest.Server) string {
	var classes strings.Builder
	for _, c := range quickClasses {
		fmt.Fprintf(&classes, "  %s: {run: {kind: exec, command: quick}, units: {db: 5}, repeatable: true}\n", c)
	}
	env := fmt.Sprintf("{EVENTS: %q, PSQL: %q, DB: %q, TAKES: '1', RELEASE: %q}", w.path("events"), pg.Program(w.t, "psql"), jobsURL(pg), w.path("release"))
	return fmt.Sprintf(`
resources:
  db: {capacity: 15, pool: true, probe: %[1]q}
commands:
  quick: {argv: [sh, $DIR/pool.sh], env: %[2]s}
  heavy: {argv: [sh, $DIR/heavy.sh], env: %[2]s}
classes:
%[3]s  heavy: {run: {kind: exec, command: heavy}, units: {db: 5}}
`, pg.URL("test"), env, classes.String())
}

// jobsURL is the database as an ordinary role, which may not use the reserved connections.
func jobsURL(pg *pgtest.Server) string {
	return strings.Replace(pg.URL("test"), "postgres@", "jobs@", 1)
}

// newTightServer has room for three runs of five connections and not for four:
// 21 − 3 reserved − 1 for the probe = 17. The two to spare are for connections
// whose client has ended while the server still clears up.
func newTightServer(t *testing.T) *pgtest.Server {
	t.Helper()
	pg := pgtest.New(t, "max_connections=21", "superuser_reserved_connections=3", "client_connection_check_interval=50ms")
	if err := pg.Exec(t.Context(), "test", "CREATE ROLE jobs LOGIN"); err != nil {
		t.Fatal(err)
	}
	return pg
}

// batch posts heavy first and then every quick class, and waits for the quick ones.
// It returns how long each quick class waited for its start.
func (w *world) batch() (heavy job, waits map[string]time.Duration) {
	w.t.Helper()
	heavy = w.submit("heavy", "")
	w.eventually(20*time.Second, "heavy runs", func() bool { return w.job(heavy.ID).State == "running" })
	posted := map[string]time.Time{}
	jobs := map[string]job{}
	for _, c := range quickClasses {
		posted[c] = time.Now()
		jobs[c] = w.submit(c, "")
	}
	waits = map[string]time.Duration{}
	for _, c := range quickClasses {
		j := w.final(jobs[c].ID, 2*time.Minute)
		if j.State != "succeeded" {
			_, text, _ := w.do("GET", "/jobs/"+j.ID+"/output", "")
			w.t.Fatalf("%s: %s: %s\n%s", c, j.State, j.Reason, text)
		}
		waits[c] = j.StartedAt.Sub(posted[c])
	}
	return heavy, waits
}

// TestPromotionStory is what lanegate is for: jobs behind a heavy one, a recorded
// experiment, one command, and nobody waits for it any more.
func TestPromotionStory(t *testing.T) {
	pg := newTightServer(t)
	w := newWorld(t)
	w.write("pool.sh", poolScript)
	w.write("heavy.sh", heavyScript)
	w.config(storyConfig(w, pg))
	w.start()
	w.ready()
	fourAreTooMany(t, w, pg)

	w.write("release", "")
	heavy, before := w.batch()
	if got := w.final(heavy.ID, time.Minute); got.State != "succeeded" {
		_, text, _ := w.do("GET", "/jobs/"+heavy.ID+"/output", "")
		t.Fatalf("heavy: %s %s\n%s", got.State, got.Reason, text)
	}
	for c, wait := range before {
		if wait < 4*time.Second {
			t.Errorf("%s waited %v only: in one line it must wait for heavy, which takes 8 s", c, wait)
		}
	}

	args := append([]string{"verify"}, quickClasses...)
	args = append(args, "--source", "payloads", "--rounds", "1", "--max-hold", "10m", "--wait", "--json")
	var v verification
	if err := json.Unmarshal([]byte(w.cli(0, args...)), &v); err != nil {
		t.Fatal(err)
	}
	storyEvidence(t, v)

	printed := w.cli(0, append(append([]string{"promote"}, quickClasses...), "--run", v.ID, "--reason", "story")...)
	if !strings.Contains(printed, "pos-sales: lane parallel, at most 2 at once") {
		t.Errorf("promote printed:\n%s", printed)
	}
	var lane struct {
		Width      int `json:"width"`
		Arithmetic struct {
			Sentence string `json:"sentence"`
		} `json:"arithmetic"`
	}
	w.must("GET", "/lanes/parallel", "", &lane)
	if lane.Width != 2 || !strings.HasPrefix(lane.Arithmetic.Sentence, "(15 − 5 − 0) / 5 = 2") {
		t.Fatalf("width %d: %s", lane.Width, lane.Arithmetic.Sentence)
	}

	seen := len(w.events())
	if err := os.Remove(w.path("release")); err != nil {
		t.Fatal(err)
	}
	heavy, after := w.batch() // the quick jobs end although heavy can't
	if got := w.job(heavy.ID); got.State != "running" {
		t.Errorf("heavy is %s", got.State)
	}
	w.write("release", "")
	if got := w.final(heavy.ID, time.Minute); got.State != "succeeded" {
		t.Errorf("heavy: %s %s", got.State, got.Reason)
	}
	events := w.events()[seen:]
	if most := mostAtOnce(events, quickClasses...); most != 2 {
		t.Errorf("most quick jobs at once = %d, want 2", most)
	}
	if most := mostAtOnce(events, append(slices.Clone(quickClasses), "heavy")...); most != 3 {
		t.Errorf("most jobs at once = %d, want 2 parallel and 1 serial", most)
	}
	t.Logf("what the batch waited:\n%s", waitTable(before, after))
	if out := w.log.tail(1 << 20); strings.Contains(out, "too many") {
		t.Error("a connection was refused")
	}
	var refused struct {
		Items []job `json:"items"`
	}
	w.must("GET", "/jobs?state=failed", "", &refused)
	if len(refused.Items) > 0 {
		t.Errorf("%d jobs failed", len(refused.Items))
	}
}

// fourAreTooMany shows that the server is as tight as the story says.
func fourAreTooMany(t *testing.T, w *world, pg *pgtest.Server) {
	t.Helper()
	failed := make(chan error, 4)
	for range 4 {
		go func() {
			cmd := exec.Command("sh", w.path("pool.sh"))
			cmd.Env = append(os.Environ(), "EVENTS=/dev/null", "TAKES=2", "PSQL="+pg.Program(w.t, "psql"), "DB="+jobsURL(pg))
			failed <- cmd.Run()
		}()
	}
	n := 0
	for range 4 {
		if <-failed != nil {
			n++
		}
	}
	if n == 0 {
		t.Fatal("four runs at once had all their connections: this server proves nothing")
	}
}

// storyEvidence judges what the verification run recorded.
func storyEvidence(t *testing.T, v verification) {
	t.Helper()
	if v.Verdict != "passed" {
		t.Fatalf("verdict %s: %s\n%+v", v.Verdict, v.Sentence, v.Reasons)
	}
	pairs := map[string]bool{}
	for _, p := range v.Evidence.Pairs {
		if p.Overlap <= 0 || !p.Proven {
			t.Errorf("%s beside %s: overlap %.2f s, proven %v", p.A, p.B, p.Overlap, p.Proven)
		}
		pairs[p.A+" "+p.B] = true
	}
	if want := len(quickClasses) * (len(quickClasses) + 1) / 2; len(pairs) != want {
		t.Errorf("%d pairs, want each class beside each and beside itself: %d", len(pairs), want)
	}
	measured := 0
	for _, r := range v.Evidence.Rounds {
		units := 0
		for _, run := range r.Runs {
			units += run.Declared["db"]
			if n, ok := run.Measured["db"]; ok {
				measured++
				if n > 5 {
					t.Errorf("%s used %d connections, it opens 5", run.Class, n)
				}
			}
		}
		if units > 15 {
			t.Errorf("round %d takes %d of 15 connections", r.Round, units)
		}
		if len(r.Picture) < len(r.Runs) {
			t.Errorf("round %d: no picture of its %d runs: %q", r.Round, len(r.Runs), r.Picture)
		}
	}
	if measured == 0 {
		t.Error("the probe measured nothing")
	}
	if len(v.Evidence.NotChecked) == 0 {
		t.Error("the list of what was not checked is empty")
	}
}

// waitTable is the table in the README.
func waitTable(before, after map[string]time.Duration) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "class\tone line\tlanes\t")
	for _, c := range quickClasses {
		fmt.Fprintf(tw, "%s\t%.1f s\t%.1f s\t\n", c, before[c].Seconds(), after[c].Seconds())
	}
	tw.Flush()
	return b.String()
}

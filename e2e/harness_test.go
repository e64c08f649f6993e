package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// binary is the lanegate under test, built once by TestMain.
var binary string

// raced says that it was built with the race detector (LANEGATE_E2E_RACE=1, make
// race-chaos): a data race in a gateway then fails the test.
var raced = os.Getenv("LANEGATE_E2E_RACE") == "1"

func TestMain(m *testing.M) {
	sqstest.Isolate() // the gateways' environment is this process's
	dir, err := os.MkdirTemp("", "lanegate-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "lanegate")
	args, cgo := []string{"build", "-o", binary}, "CGO_ENABLED=0"
	if raced {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	build := exec.Command("go", append(args, "../cmd/lanegate")...)
	build.Env = append(os.Environ(), cgo)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// world is a directory with a database, a config file and the jobs' event file.
type world struct {
	t    *testing.T
	dir  string
	conf string // name of the config file
	addr string
	log  *syncBuffer
	bin  string   // "" for binary
	env  []string // more of a gateway's environment
	// tokens are the gateway's tokens by their role; nil: it asks for none. The test's
	// own requests have admin's.
	tokens map[string]string
}

// probeScript is the job of most tests. It records its start and end, has a
// grandchild that does the same, and takes the lock named by $LOCK, if any,
// which all its processes inherit: whoever finds it taken ran beside another.
// FIRST, if set, is how long a first attempt takes; with DEAF none of its
// processes ends at TERM. With HOLD it goes on until the test makes the file $HOLD.JOB.
const probeScript = `#!/bin/sh
[ -z "$DEAF" ] || trap '' TERM
[ -z "$FIRST" ] || [ "$LANEGATE_ATTEMPT" != 1 ] || TAKES=$FIRST
note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"; }
if [ -n "$LOCK" ]; then
	exec 9>>"$LOCK"
	flock -n 9 || note overlap
fi
note start
# The grandchild leaves the process group and the session, and keeps the lock.
setsid sh -c 'note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"; }
	note gstart; sleep "${TAKES:-0.05}"; note gend' &
sleep "${TAKES:-0.05}"
[ -z "$HOLD" ] || until [ -e "$HOLD.$LANEGATE_JOB_ID" ]; do sleep 0.05; done
wait
note end
echo '{"ok": true}'
`

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), conf: "lanegate.yaml", log: &syncBuffer{}}
	w.addr = freeAddress(t)
	w.write("probe.sh", probeScript)
	t.Cleanup(func() {
		reports, _ := filepath.Glob(w.path("race.*")) // the pattern is well formed
		for _, report := range reports {
			text, err := os.ReadFile(report)
			t.Errorf("data race in a gateway: %s %v", text, err)
		}
		if t.Failed() {
			t.Logf("gateway's log (end):\n%s", w.log.tail(8000))
		}
	})
	return w
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// config writes lanegate.yaml: short times, then the given rest.
func (w *world) config(rest string) {
	w.write(w.conf, fmt.Sprintf(`
listen: %s
database: %s
kill_grace: 1s
beat: 500ms
lease: 8s
drain: 2s
`, w.addr, w.path("lanegate.db"))+strings.ReplaceAll(rest, "$DIR", w.dir))
}

// gateway is one running process.
type gateway struct {
	w    *world
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // its end, readable after done
}

// launch starts the binary without waiting for anything.
func (w *world) launch(args ...string) *gateway {
	w.t.Helper()
	g := &gateway{w: w, done: make(chan struct{})}
	g.cmd = exec.Command(cmp.Or(w.bin, binary), append([]string{"serve", "--config", w.path(w.conf)}, args...)...)
	g.cmd.Dir = w.dir
	g.cmd.Env = append(os.Environ(), w.env...)
	if raced {
		g.cmd.Env = append(g.cmd.Env, "GORACE=log_path="+w.path("race"))
	}
	g.cmd.Stdout, g.cmd.Stderr = w.log, w.log
	if err := g.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		g.err = g.cmd.Wait()
		close(g.done)
	}()
	w.t.Cleanup(func() { g.signal(syscall.SIGCONT); g.kill() })
	return g
}

// start launches the binary and waits until it accepts requests.
func (w *world) start(args ...string) *gateway {
	w.t.Helper()
	g := w.launch(args...)
	g.accepts()
	return g
}

// accepts waits until the process answers requests.
func (g *gateway) accepts() {
	w := g.w
	w.t.Helper()
	w.eventually(20*time.Second, "the gateway accepts requests", func() bool {
		select {
		case <-g.done:
			w.t.Fatalf("the gateway ended at start: %v\n%s", g.err, w.log.tail(4000))
		default:
		}
		resp, err := client.Get(w.url("/livez"))
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (g *gateway) signal(s os.Signal) { _ = g.cmd.Process.Signal(s) } // it may have ended already

// kill ends the process without warning and waits until it is gone.
func (g *gateway) kill() {
	g.signal(syscall.SIGKILL)
	<-g.done
}

// term asks the process to stop and waits for it.
func (g *gateway) term(limit time.Duration) error {
	g.signal(syscall.SIGTERM)
	select {
	case <-g.done:
		return g.err
	case <-time.After(limit):
		return fmt.Errorf("still there %v after SIGTERM", limit)
	}
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (w *world) url(path string) string { return "http://" + w.addr + path }

// do sends a request and returns status and body; an error means that no answer came.
func (w *world) do(method, path, body string) (int, []byte, error) {
	req, err := http.NewRequest(method, w.url(path), strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if w.tokens != nil {
		req.Header.Set("Authorization", "Bearer "+w.tokens["admin"])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// job is what the tests read of a job's JSON.
type job struct {
	ID        string          `json:"id"`
	Class     string          `json:"class"`
	State     string          `json:"state"`
	Reason    string          `json:"reason"`
	Attempts  int             `json:"attempts"`
	Result    json.RawMessage `json:"result"`
	Payload   json.RawMessage `json:"payload"`
	BlockedBy string          `json:"blocked_by"`
	StartedAt *time.Time      `json:"started_at"`
	Route     *struct {
		Lane   string `json:"lane"`
		Reason string `json:"reason"`
		Wanted string `json:"wanted"`
	} `json:"route"`
	WaitingOn []struct {
		Reason string   `json:"reason"`
		Jobs   []string `json:"jobs"`
	} `json:"waiting_on"`
}

type attempt struct {
	Number    int            `json:"number"`
	Outcome   string         `json:"outcome"`
	Lane      string         `json:"lane"`
	Units     map[string]int `json:"units"`
	ReadyAt   time.Time      `json:"ready_at"`
	StartedAt time.Time      `json:"started_at"`
	EndedAt   *time.Time     `json:"ended_at"`
}

// must does a request that has to succeed and decodes its answer into v.
func (w *world) must(method, path, body string, v any) {
	w.t.Helper()
	status, text, err := w.do(method, path, body)
	if err != nil || status >= 300 {
		w.t.Fatalf("%s %s: %d %s %v", method, path, status, text, err)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(text, v); err != nil {
		w.t.Fatalf("%s %s: %v in %s", method, path, err, text)
	}
}

func (w *world) submit(class, extra string) job {
	w.t.Helper()
	var j job
	w.must("POST", "/jobs", fmt.Sprintf(`{"class": %q%s}`, class, extra), &j)
	return j
}

func (w *world) job(id string) job {
	w.t.Helper()
	var j job
	w.must("GET", "/jobs/"+id, "", &j)
	return j
}

func (w *world) attempts(id string) []attempt {
	w.t.Helper()
	var page struct {
		Items []attempt `json:"items"`
	}
	w.must("GET", "/jobs/"+id+"/attempts", "", &page)
	return page.Items
}

// final waits until the job has ended.
func (w *world) final(id string, limit time.Duration) job {
	w.t.Helper()
	var j job
	w.eventually(limit, "job "+id+" ends", func() bool {
		j = w.job(id)
		switch j.State {
		case "queued", "running":
			return false
		}
		return true
	})
	return j
}

// eventually polls until ok. limit is what it takes at most on a machine with
// nothing else to do; this one runs other tests, too, and may be slow.
func (w *world) eventually(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	w.within(5*limit, what, ok)
}

// within polls until ok, or fails when the limit, which is part of what is
// promised, is over.
func (w *world) within(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within %v: %s", limit, what)
		}
		<-tick.C
	}
}

// event is one line of the jobs' own record.
type event struct {
	kind, class, job, attempt string
	at                        time.Time
}

func (w *world) events() []event {
	w.t.Helper()
	text, err := os.ReadFile(w.path("events"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var out []event
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 5 || !strings.HasSuffix(line, "\n") {
			w.t.Fatalf("torn line in the event file: %q", line)
		}
		var ns int64
		if _, err := fmt.Sscan(f[4], &ns); err != nil {
			w.t.Fatalf("%q: %v", line, err)
		}
		out = append(out, event{f[0], f[1], f[2], f[3], time.Unix(0, ns)})
	}
	return out
}

// syncBuffer collects output of several processes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) tail(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.b.Bytes()
	return string(b[max(0, len(b)-n):])
}

// forget drops what was collected.
func (s *syncBuffer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Reset()
}

func (s *syncBuffer) contains(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Contains(s.b.Bytes(), []byte(text))
}

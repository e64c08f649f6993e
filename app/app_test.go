package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/store/pgtest"
	"github.com/lanegate/lanegate/worker/runner"
)

func TestMain(m *testing.M) {
	sqstest.Isolate()
	os.Exit(pgtest.Run(m))
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// gateway is a running App over HTTP.
type gateway struct {
	t        *testing.T
	app      *app.App
	log, out *syncBuffer
	stop     context.CancelFunc
	done     chan error // holds Run's answer
}

const baseConfig = `
listen: 127.0.0.1:0
database: gate.db
kill_grace: 1s
beat: 200ms
lease: 8s
drain: 5s
start_wait: 10s
`

const echoConfig = baseConfig + `
commands:
  echo: {argv: [sh, -c, "cat"]}
  wait: {argv: [sh, -c, "touch started; while [ ! -e go ]; do sleep 0.05; done; echo '{\"went\": true}'"]}
classes:
  echo: {run: {kind: exec, command: echo}}
  wait: {run: {kind: exec, command: wait}}
`

// load reads a config from the working directory's lanegate.yaml.
func load(t *testing.T, flags map[string]string) app.Config {
	t.Helper()
	c, err := app.Load(app.Sources{File: "lanegate.yaml", Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newGateway starts an App on the config in the working directory and stops it at the end.
func newGateway(t *testing.T, flags map[string]string) *gateway {
	t.Helper()
	g := &gateway{t: t, log: &syncBuffer{}, out: &syncBuffer{}, done: make(chan error, 1)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", g.log)
		}
	})
	var err error
	g.app, err = app.New(t.Context(), load(t, flags), app.Options{
		Version: "test", Out: g.out, Log: slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	g.stop = stop
	go func() { g.done <- g.app.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		g.app.StopNow()
		g.wait()
	})
	return g
}

// wait returns Run's answer, again and again.
func (g *gateway) wait() error {
	select {
	case err := <-g.done:
		g.done <- err
		return err
	case <-time.After(30 * time.Second):
		g.t.Error("Run does not return")
		return errors.New("Run does not return")
	}
}

func (g *gateway) do(method, path, body string) (int, []byte) {
	g.t.Helper()
	req, err := http.NewRequest(method, "http://"+g.app.Addr()+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp.StatusCode, text
}

type jobJSON struct {
	ID       string          `json:"id"`
	State    lanegate.State  `json:"state"`
	Attempts int             `json:"attempts"`
	Result   json.RawMessage `json:"result"`
}

func (g *gateway) job(method, path, body string, want int) jobJSON {
	g.t.Helper()
	status, text := g.do(method, path, body)
	var j jobJSON
	if err := json.Unmarshal(text, &j); err != nil || status != want {
		g.t.Fatalf("%s %s: %d, want %d: %s", method, path, status, want, text)
	}
	return j
}

func (g *gateway) submit(class, payload string) jobJSON {
	g.t.Helper()
	return g.job("POST", "/jobs", fmt.Sprintf(`{"class":%q,"payload":%s}`, class, payload), http.StatusCreated)
}

func (g *gateway) ended(id string) jobJSON {
	g.t.Helper()
	return g.job("GET", "/jobs/"+id+"/wait?timeout=20s", "", http.StatusOK)
}

// eventually polls a condition with a deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func exists(name string) bool { _, err := os.Stat(name); return err == nil }

func TestAppRunsJobs(t *testing.T) {
	writeConfig(t, echoConfig)
	g := newGateway(t, nil)
	payload := `{"n": 3889108265204450030, "e": 1e400}`
	j := g.ended(g.submit("echo", payload).ID)
	if j.State != lanegate.StateSucceeded || string(j.Result) != payload {
		t.Errorf("job = %+v, result %s; want %s", j, j.Result, payload)
	}
	if _, text := g.do("GET", "/jobs/"+j.ID+"/output", ""); string(text) != payload {
		t.Errorf("the command got %s; want the very bytes of the payload", text)
	}
	if status, text := g.do("GET", "/healthz", ""); status != http.StatusOK {
		t.Errorf("healthz: %d %s", status, text)
	}
	status, text := g.do("GET", "/metrics", "")
	for _, name := range []string{"lanegate_jobs_submitted_total", "lanegate_lane_width", "lanegate_store_connections_in_use", "go_goroutines"} {
		if status != http.StatusOK || !bytes.Contains(text, []byte(name)) {
			t.Errorf("metrics (%d) lack %s", status, name)
		}
	}
	g.stop()
	if err := g.wait(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if entries, err := os.ReadDir("gate.db.work"); err != nil || len(entries) > 0 {
		t.Errorf("payload files left: %v, %v", entries, err)
	}
}

// The start-up lines say where, what and who.
func TestAppBanner(t *testing.T) {
	writeConfig(t, echoConfig+"resources: {db: {capacity: 15, pool: true}}\nlanes: {long: {width: 1}}\n")
	g := newGateway(t, nil)
	eventually(t, "banner", func() bool { return strings.Contains(g.out.String(), "echo") })
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"http://" + g.app.Addr() + "/docs", filepath.Join(wd, "gate.db"), filepath.Join(wd, "lanegate.yaml"),
		"no tokens", "parallel", "long", "exec echo",
	} {
		if !strings.Contains(g.out.String(), want) {
			t.Errorf("the start-up lines lack %q:\n%s", want, g.out)
		}
	}
}

func TestAppStop(t *testing.T) {
	t.Run("a job that ends within the drain time succeeds", func(t *testing.T) {
		writeConfig(t, echoConfig)
		g := newGateway(t, nil)
		j := g.submit("wait", "null")
		eventually(t, "the job runs", func() bool { return exists("started") })
		g.stop()
		eventually(t, "the stop began", func() bool { return strings.Contains(g.log.String(), "waiting for running jobs") })
		if err := os.WriteFile("go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.wait(); err != nil {
			t.Fatal(err)
		}
		if got := jobIn(t, j.ID); got.State != lanegate.StateSucceeded {
			t.Errorf("job = %s", got.State)
		}
	})
	t.Run("the API answers until the drain is over", func(t *testing.T) {
		writeConfig(t, echoConfig)
		g := newGateway(t, map[string]string{"drain": "wait"})
		j := g.submit("wait", "null")
		eventually(t, "the job runs", func() bool { return exists("started") })
		g.stop()
		eventually(t, "the stop began", func() bool { status, _ := g.do("GET", "/readyz", ""); return status == http.StatusServiceUnavailable })
		if status, text := g.do("POST", "/jobs", `{"class":"echo"}`); status != http.StatusServiceUnavailable || !bytes.Contains(text, []byte(`"code":"draining"`)) {
			t.Errorf("a new job during the drain: %d %s", status, text)
		}
		if got := g.job("GET", "/jobs/"+j.ID, "", http.StatusOK); got.State != lanegate.StateRunning {
			t.Errorf("job = %s", got.State)
		}
		g.job("POST", "/jobs/"+j.ID+"/cancel", "", http.StatusOK)
		if err := g.wait(); err != nil { // what it waited for has ended
			t.Fatal(err)
		}
		if got := jobIn(t, j.ID); got.State != lanegate.StateCancelled {
			t.Errorf("job = %s", got.State)
		}
		if _, err := http.Get("http://" + g.app.Addr() + "/livez"); err == nil {
			t.Error("the stopped gateway still answers")
		}
	})
	t.Run("with nothing running it takes no time", func(t *testing.T) {
		writeConfig(t, echoConfig)
		g := newGateway(t, map[string]string{"drain": "wait"})
		g.ended(g.submit("echo", "1").ID)
		began := time.Now()
		g.stop()
		if err := g.wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("an idle gateway took %v to stop", took)
		}
	})
	t.Run("a job that outlives it goes back and runs again", func(t *testing.T) {
		writeConfig(t, echoConfig)
		g := newGateway(t, map[string]string{"drain": "0s"})
		j := g.submit("wait", "null")
		eventually(t, "the job runs", func() bool { return exists("started") })
		g.stop()
		if err := g.wait(); err != nil {
			t.Fatal(err)
		}
		if got := jobIn(t, j.ID); got.State != lanegate.StateQueued || got.Failures != 0 || got.Interruptions != 1 {
			t.Errorf("job = %+v, want queued with an interruption that costs nothing", got)
		}
		if err := os.WriteFile("go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		g = newGateway(t, nil)
		if got := g.ended(j.ID); got.State != lanegate.StateSucceeded || got.Attempts != 2 {
			t.Errorf("job = %+v", got)
		}
	})
	t.Run("a second signal ends a drain without limit", func(t *testing.T) {
		writeConfig(t, echoConfig)
		g := newGateway(t, map[string]string{"drain": "wait"})
		j := g.submit("wait", "null")
		eventually(t, "the job runs", func() bool { return exists("started") })
		g.stop()
		eventually(t, "the stop began", func() bool { return strings.Contains(g.log.String(), "waiting for running jobs") })
		g.app.StopNow()
		if err := g.wait(); err != nil {
			t.Fatal(err)
		}
		if got := jobIn(t, j.ID); got.State != lanegate.StateQueued {
			t.Errorf("job = %s", got.State)
		}
	})
}

// jobIn reads a job from the database of a stopped gateway.
func jobIn(t *testing.T, id string) lanegate.Job {
	t.Helper()
	s := openStore(t)
	defer s.Close()
	j, err := s.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return j.Job
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Path: "gate.db", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// One process per database: the second refuses, naming the first.
func TestAppLock(t *testing.T) {
	writeConfig(t, echoConfig)
	g := newGateway(t, nil)
	_, err := app.New(t.Context(), load(t, map[string]string{"start-wait": "0s"}), app.Options{Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Fatalf("err = %v, want the holder's pid", err)
	}
	g.stop()
	if err := g.wait(); err != nil {
		t.Fatal(err)
	}
	newGateway(t, nil) // the lock is free again
}

// The tokens of the file are the ones that the API takes, by their digests.
func TestAppTokens(t *testing.T) {
	token, digest := app.NewToken()
	writeConfig(t, echoConfig+"metrics_public: true\ntokens: [{name: cron, role: submit, sha256: "+digest+", classes: [echo]}]\n")
	g := newGateway(t, nil)
	post := func(token, class string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, "http://"+g.app.Addr()+"/jobs", strings.NewReader(`{"class":"`+class+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	other, _ := app.NewToken()
	got := []int{post(token, "echo"), post(token, "wait"), post(other, "echo")}
	if want := []int{http.StatusCreated, http.StatusForbidden, http.StatusUnauthorized}; !slices.Equal(got, want) {
		t.Errorf("own class, other class, unknown token: %v, want %v", got, want)
	}
	if status, _ := g.do("GET", "/metrics", ""); status != http.StatusOK {
		t.Errorf("public metrics: %d", status)
	}
	if status, _ := g.do("GET", "/lanes", ""); status != http.StatusUnauthorized {
		t.Errorf("lanes without a token: %d", status)
	}
	if strings.Contains(g.log.String(), token) || strings.Contains(g.log.String(), digest) {
		t.Error("the log shows a token or its digest")
	}
}

func TestAppPortInUse(t *testing.T) {
	writeConfig(t, echoConfig)
	g := newGateway(t, nil)
	_, err := app.New(t.Context(), load(t, map[string]string{"listen": g.app.Addr(), "database": "other.db"}), app.Options{Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--listen: listen on "+g.app.Addr()) {
		t.Fatalf("err = %v, want the address and where it came from", err)
	}
}

// What a dead process left running is found lost at once; what still holds the
// runs lock is waited for, and jobs are accepted meanwhile.
func TestAppTakesOver(t *testing.T) {
	writeConfig(t, echoConfig)
	dead := attemptOfDeadProcess(t)
	lock, err := os.OpenFile("gate.db.runs", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, nil)
	second := g.submit("echo", "2")
	if status, text := g.do("GET", "/readyz", ""); status != http.StatusOK || !bytes.Contains(text, []byte("earlier process")) {
		t.Errorf("readyz: %d %s; want ready, as jobs are accepted", status, text)
	}
	if j := g.job("GET", "/jobs/"+dead, "", http.StatusOK); j.State != lanegate.StateRunning {
		t.Errorf("the old attempt is %s while its run may still live", j.State)
	}
	if j := g.job("GET", "/jobs/"+second.ID, "", http.StatusOK); j.State != lanegate.StateQueued {
		t.Errorf("a job is %s beside a dying run", j.State)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if j := g.ended(dead); j.State != lanegate.StateSucceeded || j.Attempts != 2 {
		t.Errorf("the lost job = %+v, want success by a second attempt", j)
	}
	if j := g.ended(second.ID); j.State != lanegate.StateSucceeded {
		t.Errorf("the other job = %+v", j)
	}
	// The first scrape of this process: it shows the loss, and what the alarm needs
	// to tell it from one that is long over, the age of the process.
	_, text := g.do("GET", "/metrics", "")
	for _, want := range []string{
		`lanegate_attempts_finished_total{class="echo",lane="serial",outcome="lost"} 1`,
		`lanegate_attempts_finished_total{class="wait",lane="serial",outcome="lost"} 0`, "process_start_time_seconds ",
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// attemptOfDeadProcess leaves an attempt in flight behind, as a killed process does.
func attemptOfDeadProcess(t *testing.T) (job string) {
	t.Helper()
	ctx := t.Context()
	s := openStore(t)
	defer s.Close()
	cfg := load(t, nil)
	commands, err := runner.NewCatalogue(cfg.Commands)
	if err != nil {
		t.Fatal(err)
	}
	svc := service.New(service.Options{Store: s, Doorbell: silentBell{}, Commands: commands, Log: slog.New(slog.DiscardHandler)})
	if _, err := svc.SyncFile(ctx, cfg.FileConfig()); err != nil {
		t.Fatal(err)
	}
	sub, err := svc.Submit(ctx, "local", service.Submission{Class: "echo", Payload: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	w := service.WorkerInfo{ID: "0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d", Host: "h", PID: 1, Slots: 1, Commands: commands.Digests()}
	if err := svc.RegisterWorker(ctx, w); err != nil {
		t.Fatal(err)
	}
	res, err := svc.Admit(ctx, service.Ask{Worker: w.ID, Free: 1, SerialFree: true})
	if err != nil || len(res.Grants) != 1 {
		t.Fatalf("admit: %+v, %v", res, err)
	}
	return sub.Job.ID
}

type silentBell struct{}

func (silentBell) Ring(string)            {}
func (silentBell) Rings() <-chan struct{} { return nil }

func TestMigrate(t *testing.T) {
	writeConfig(t, echoConfig)
	cfg := load(t, nil)
	for range 2 { // the second finds nothing to do
		if err := app.Migrate(t.Context(), cfg, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	if !exists("gate.db") {
		t.Error("no database")
	}
}

package main

import (
	"bytes"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate/app"
)

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

const serveConfig = `
listen: 127.0.0.1:0
database: gate.db
log: {level: debug, format: text}
commands:
  hello: {argv: [sh, -c, "echo '{\"hello\": 1}'"]}
  fails: {argv: [sh, -c, "echo out of luck >&2; exit 7"]}
classes:
  hello: {run: {kind: exec, command: hello}}
  fails: {run: {kind: exec, command: fails}}
`

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The whole of it with real signals: serve, submit, HUP with a good and a bad file, TERM.
func TestServe(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "gate.yaml", serveConfig)
	var out, log syncBuffer
	done := make(chan int, 1)
	go func() {
		done <- run(t.Context(), []string{"serve", "--config", "gate.yaml"}, terminal{strings.NewReader(""), &out, &log, func(string) (string, bool) { return "", false }})
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stdout:\n%s\nlog:\n%s", &out, &log)
		}
	})
	address := regexp.MustCompile(`listens on  (http://\S+)`)
	eventually(t, "the start-up lines", func() bool { return address.MatchString(out.String()) })
	base := address.FindStringSubmatch(out.String())[1]
	t.Setenv("LANEGATE_URL", base)

	runLine(t, "", nil, "submit", "hello", "--wait").want(t, 0, `{"hello": 1}`, "")
	runLine(t, "", nil, "submit", "fails", "--wait").want(t, 1, "", "out of luck")
	runLine(t, "", nil, "submit", "nobody-knows-it").want(t, 2, "", "unknown_class")
	runLine(t, "", nil, "health", "--url", base).want(t, 0, `"status":"ok"`, "")

	signalSelf(t, syscall.SIGHUP, func() { writeFile(t, "gate.yaml", strings.Replace(serveConfig, "exit 7", "exit 0", 1)) })
	eventually(t, "the reload", func() bool { return strings.Contains(log.String(), "configuration reloaded") })
	runLine(t, "", nil, "submit", "fails", "--wait").want(t, 0, "", "")

	signalSelf(t, syscall.SIGHUP, func() { writeFile(t, "gate.yaml", serveConfig+"nonsense: 1\nmore: 2\n") })
	eventually(t, "the refused reload", func() bool { return strings.Contains(log.String(), "everything is as before") })
	for _, want := range []string{"source=gate.yaml:11", "source=gate.yaml:12"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	runLine(t, "", nil, "submit", "fails", "--wait").want(t, 0, "", "")

	signalSelf(t, syscall.SIGTERM, nil)
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d after TERM", code)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("serve does not end after TERM")
	}
	if _, err := http.Get(base + "/livez"); err == nil {
		t.Error("it still answers")
	}
}

func signalSelf(t *testing.T, s syscall.Signal, before func()) {
	t.Helper()
	if before != nil {
		before()
	}
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
}

// TERM while the start waits for the database ends it at once, without an error.
func TestServeStoppedWhileItWaits(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "gate.yaml", serveConfig)
	lock, err := os.OpenFile("gate.db.lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var out, log syncBuffer
	done := make(chan int, 1)
	go func() {
		done <- run(t.Context(), []string{"serve", "--config", "gate.yaml", "--start-wait", "1h"}, terminal{strings.NewReader(""), &out, &log, func(string) (string, bool) { return "", false }})
	}()
	eventually(t, "it waits", func() bool { return strings.Contains(log.String(), "opening the database") })
	signalSelf(t, syscall.SIGTERM, nil)
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, &log)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("serve does not end")
	}
}

// The third stop signal ends the process whatever it is doing.
func TestSignalHandler(t *testing.T) {
	var log syncBuffer
	stops, code := 0, -1
	h := &signalHandler{t: terminal{err: &log}, stop: func() { stops++ }, exit: func(c int) { code = c }}
	for range 3 {
		h.stopped(nil)
	}
	if stops != 1 || code != exitError || !strings.Contains(log.String(), "third signal") {
		t.Errorf("stopped %d times, exit code %d, said %q", stops, code, &log)
	}
	h.reload(t.Context(), nil) // a HUP during the start is no reason to fail
}

func TestMigrateCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	runLine(t, "", nil, "migrate", "--database", "new.db").want(t, 0, "new.db are up to date", "")
	runLine(t, "", nil, "migrate", "--database", "missing/new.db").want(t, 1, "", "missing/new.db")
}

// Every setting is a flag of serve, and none is a variable of kong's own.
func TestEverySettingIsAFlag(t *testing.T) {
	help := runLine(t, "", nil, "serve", "--help").out
	for _, s := range app.Settings() {
		if !strings.Contains(help, "--"+s.Flag()) || !strings.Contains(strings.Join(strings.Fields(help), " "), "$"+s.Env()) {
			t.Errorf("the help lacks --%s or $%s", s.Flag(), s.Env())
		}
	}
}

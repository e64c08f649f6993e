//go:build linux

package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/store/pgtest"
)

// postgres is the URL of a database of the test's own, with a password that must
// not be seen anywhere.
func postgres(t *testing.T) string {
	t.Helper()
	server, name := pgtest.Database(t, func(ctx context.Context, url string) error {
		s, err := store.Open(ctx, store.Options{Path: url})
		if err != nil {
			return err
		}
		return s.Close()
	})
	return strings.Replace(server.URL(name), "postgres@", "postgres:s3cret@", 1)
}

// on makes flags for a gateway on that database.
func on(dsn string, more ...string) map[string]string {
	flags := map[string]string{"database": dsn}
	for i := 0; i < len(more); i += 2 {
		flags[more[i]] = more[i+1]
	}
	return flags
}

// part is a part of /healthz.
func (g *gateway) part(name string) (status int, ok bool, detail string) {
	g.t.Helper()
	status, text := g.do("GET", "/healthz", "")
	var health struct {
		Parts []struct {
			Name   string `json:"name"`
			OK     bool   `json:"ok"`
			Detail string `json:"detail"`
		} `json:"parts"`
	}
	if err := json.Unmarshal(text, &health); err != nil {
		g.t.Fatalf("healthz: %v in %s", err, text)
	}
	for _, p := range health.Parts {
		if p.Name == name {
			return status, p.OK, p.Detail
		}
	}
	g.t.Fatalf("healthz has no part %s: %s", name, text)
	return 0, false, ""
}

// The second process on a database takes nothing from the first, hears of new
// work at once, and neither shows the password.
func TestAppOnPostgres(t *testing.T) {
	dsn := postgres(t)
	writeConfig(t, echoConfig)
	front := newGateway(t, on(dsn, "no-workers", "true"))
	if status, ok, detail := front.part("worker"); status != http.StatusOK || !ok || !strings.Contains(detail, "no_workers") {
		t.Errorf("worker without workers: %d, %v, %q", status, ok, detail)
	}
	early := front.submit("echo", "1")
	first := newGateway(t, on(dsn))
	if j := first.ended(early.ID); j.State != lanegate.StateSucceeded {
		t.Errorf("a job from before there was a worker: %+v", j)
	}
	running := front.submit("wait", "null")
	eventually(t, "the job runs: the bell is heard by the other process", func() bool { return exists("started") })
	second := newGateway(t, on(dsn))
	eventually(t, "the second process works", func() bool { return strings.Contains(second.log.String(), "earlier") || second.healthy() })
	if err := os.WriteFile("go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if j := front.ended(running.ID); j.State != lanegate.StateSucceeded || j.Attempts != 1 {
		t.Errorf("a run of another live process: %+v, want its first attempt to succeed", j)
	}
	for name, g := range map[string]*gateway{"front": front, "first": first, "second": second} {
		g.stop()
		if err := g.wait(); err != nil {
			t.Errorf("%s: Run = %v", name, err)
		}
		if all := g.log.String() + g.out.String(); strings.Contains(all, "s3cret") || !strings.Contains(all, "postgres://postgres@") {
			t.Errorf("%s shows a password, or not the database:\n%s", name, all)
		}
	}
}

func (g *gateway) healthy() bool {
	_, ok, detail := g.part("worker")
	return ok && detail == ""
}

// Class sets don't flip back and forth. A process that starts with a file that
// was replaced since changes nothing and says so; a reload applies it.
func TestAppSupersededFile(t *testing.T) {
	dsn := postgres(t)
	writeConfig(t, echoConfig)
	old := newGateway(t, on(dsn))
	writeConfig(t, strings.Replace(echoConfig, `"cat"`, `"cat; true"`, 1)+"  fresh: {run: {kind: exec, command: echo}}\n")
	next := newGateway(t, on(dsn))
	old.stop()
	if err := old.wait(); err != nil {
		t.Fatal(err)
	}
	writeConfig(t, echoConfig) // the older file again, as after a crash in a rolling deploy
	again := newGateway(t, on(dsn))
	if _, ok, detail := again.part("config"); !ok || !strings.Contains(detail, "SIGHUP") {
		t.Errorf("config: %v, %q", ok, detail)
	}
	if _, _, detail := next.part("config"); detail != "" {
		t.Errorf("config of the newer process: %q", detail)
	}
	digests := func() string {
		_, text := again.do("GET", "/job-classes", "")
		var list struct {
			Items []struct {
				ID          string `json:"id"`
				Fingerprint string `json:"fingerprint"`
			} `json:"items"`
		}
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return fmt.Sprint(list.Items)
	}
	before := digests()
	if !strings.Contains(before, "fresh") {
		t.Errorf("the newer file's class is gone: %s", before)
	}
	// The older process lacks the newer command: it is not given the job.
	if j := again.ended(again.submit("echo", "1").ID); j.State != lanegate.StateSucceeded {
		t.Errorf("echo: %+v", j)
	}
	if text := again.log.String(); strings.Contains(text, "job started") {
		t.Errorf("a worker with another definition of the command ran the job:\n%s", text)
	}
	if err := again.app.Reload(t.Context(), load(t, on(dsn))); err != nil {
		t.Fatal(err)
	}
	if _, _, detail := again.part("config"); detail != "" || digests() == before {
		t.Errorf("after a reload: %q, classes %s", detail, digests())
	}
	if j := again.ended(again.submit("echo", "2").ID); j.State != lanegate.StateSucceeded {
		t.Errorf("echo after the reload: %+v", j)
	}
}

// A process whose file declares no set leaves that of the others alone.
func TestAppFileWithoutASet(t *testing.T) {
	dsn := postgres(t)
	writeConfig(t, echoConfig)
	first := newGateway(t, on(dsn))
	writeConfig(t, baseConfig)
	front := newGateway(t, on(dsn, "no-workers", "true"))
	if _, _, detail := front.part("config"); detail != "" {
		t.Errorf("config: %q", detail)
	}
	if _, text := first.do("GET", "/job-classes/echo", ""); !bytes.Contains(text, []byte(`"managed_by":"file"`)) {
		t.Errorf("the class was taken out of the file: %s", text)
	}
	if err := front.app.Reload(t.Context(), load(t, on(dsn, "no-workers", "true"))); err != nil {
		t.Fatal(err)
	}
	if _, text := first.do("GET", "/job-classes/echo", ""); !bytes.Contains(text, []byte(`"managed_by":"api"`)) {
		t.Errorf("a reload asks for the file as it is: %s", text)
	}
}

// C37: a process whose file was replaced still brings what only it has.
func TestAppCommandsOfSeveralFiles(t *testing.T) {
	dsn := postgres(t)
	const a = baseConfig + "commands: {a: {argv: [cat]}}\nclasses: {a: {run: {kind: exec, command: a}}}\n"
	const b = baseConfig + "commands: {b: {argv: [cat]}}\nclasses: {a: {run: {kind: exec, command: a}}, b: {run: {kind: exec, command: b}}}\n"
	start := func(text string) *gateway {
		writeConfig(t, text)
		return newGateway(t, on(dsn))
	}
	// b's file comes first, when nobody knows command a; then a's twice, of which the
	// second start is one of a file that b's has replaced.
	first := start(b)
	id := first.submit("a", `"x"`).ID
	start(a).stop()
	again := start(b)
	again.stop()
	start(a)
	if j := first.ended(id); j.State != lanegate.StateSucceeded || string(j.Result) != `"x"` {
		t.Errorf("the job of the command that only one process has: %+v", j)
	}
	if j := first.ended(first.submit("b", "1").ID); j.State != lanegate.StateSucceeded {
		t.Errorf("b: %+v", j)
	}
}

// Over SQS: the lanes of the file are in the start-up line, a queue that is
// missing costs no readiness, and a stop gives back the open poll's messages.
func TestAppRingsOverSQS(t *testing.T) {
	server := sqstest.New(t)
	dsn := postgres(t)
	writeConfig(t, echoConfig+"lanes: {long: {width: 1, queue: theirs}}\n")
	flags := func(more ...string) map[string]string {
		return on(dsn, append(more, "doorbell", "sqs", "sqs-endpoint", server.URL, "sqs-allow-http", "true", "sqs-prefix", "app-", "sqs-wait", "1s")...)
	}
	worker := newGateway(t, flags())
	front := newGateway(t, flags("no-workers", "true"))
	for _, want := range []string{"endpoint=" + server.URL, "region=" + sqstest.Region, "serial=app-serial", "parallel=app-parallel", "long=theirs"} {
		if !strings.Contains(worker.log.String(), want) {
			t.Errorf("no start-up line names %s:\n%s", want, worker.log)
		}
	}
	eventually(t, "health says which queues are missing", func() bool {
		status, ok, detail := worker.part("doorbell")
		return status == http.StatusOK && ok && strings.Contains(detail, "lane long: queue: the queue does not exist")
	})
	if j := worker.ended(worker.submit("echo", "1").ID); j.State != lanegate.StateSucceeded {
		t.Errorf("without any queue: %+v", j)
	}
	if _, text := front.do("GET", "/metrics", ""); !bytes.Contains(text, []byte(`lanegate_doorbell_queue_up{lane="serial"} 0`)) {
		t.Error("the metrics don't show the missing queue")
	}
	for name, g := range map[string]*gateway{"worker": worker, "front": front} {
		g.stop()
		if err := g.wait(); err != nil {
			t.Errorf("%s: Run = %v", name, err)
		}
	}
	if _, err := app.New(t.Context(), load(t, on(dsn, "doorbell", "sqs", "sqs-endpoint", server.URL)), app.Options{}); err == nil || !strings.Contains(err.Error(), "no TLS") {
		t.Errorf("plain HTTP without a word: %v", err)
	}
}

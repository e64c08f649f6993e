package app_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/app"
)

func TestAppReload(t *testing.T) {
	writeConfig(t, echoConfig)
	g := newGateway(t, nil)
	if j := g.ended(g.submit("echo", "1").ID); string(j.Result) != "1" {
		t.Fatalf("result = %s", j.Result)
	}
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile("lanegate.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	changed := strings.Replace(echoConfig, `"cat"`, `"echo 2"`, 1) + "  extra: {run: {kind: exec, command: echo}, timeout: 1h}\ndefault_target: {run: {kind: exec, command: echo}}\n"
	rewrite(strings.Replace(changed, "drain: 5s", "drain: 6s", 1))
	if err := g.app.Reload(t.Context(), load(t, nil)); err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"echo", "extra", "never-registered"} {
		if j := g.ended(g.submit(class, "1").ID); string(j.Result) != "2" {
			t.Errorf("class %s after the reload: %+v, result %s; want the new command's 2", class, j, j.Result)
		}
	}
	if !strings.Contains(g.log.String(), "need a restart") || !strings.Contains(g.log.String(), "settings=drain") {
		t.Error("the log does not say that drain needs a restart")
	}

	// A set that the service refuses leaves everything as it is.
	rewrite(strings.Replace(echoConfig, `"cat"`, `"echo 3"`, 1) + "  later: {run: {kind: sqs, queue: q}, phrases: [\"(\"]}\n")
	err := g.app.Reload(t.Context(), load(t, nil))
	ce, ok := errors.AsType[*app.ConfigError](err)
	if !ok || len(ce.Faults) != 1 || !strings.HasPrefix(ce.Faults[0].String(), "lanegate.yaml:") {
		t.Fatalf("err = %v, want one fault with its line", err)
	}
	g.app.ReloadFailed(err)
	if !strings.Contains(g.log.String(), "everything is as before") {
		t.Error("the log does not say that nothing changed")
	}
	for _, class := range []string{"echo", "extra"} {
		if j := g.ended(g.submit(class, "1").ID); string(j.Result) != "2" {
			t.Errorf("class %s after a refused reload: result %s, want the 2 of before", class, j.Result)
		}
	}
}

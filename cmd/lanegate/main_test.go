package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/queue/sqstest"
)

func TestMain(m *testing.M) {
	sqstest.Isolate()
	os.Exit(m.Run())
}

// outcome is what a command line did.
type outcome struct {
	code     int
	out, err string
}

// lanegate runs a command line in this process.
func runLine(t *testing.T, stdin string, env map[string]string, args ...string) outcome {
	t.Helper()
	return runLineCtx(t.Context(), stdin, env, args...)
}

func runLineCtx(ctx context.Context, stdin string, env map[string]string, args ...string) outcome {
	var out, errs bytes.Buffer
	code := run(ctx, args, terminal{
		in: strings.NewReader(stdin), out: &out, err: &errs,
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	return outcome{code, out.String(), errs.String()}
}

func (o outcome) want(t *testing.T, code int, out, errs string) {
	t.Helper()
	if o.code != code || !strings.Contains(o.out, out) || !strings.Contains(o.err, errs) {
		t.Errorf("exit code %d, want %d; stdout must contain %q, stderr %q\nstdout: %s\nstderr: %s", o.code, code, out, errs, o.out, o.err)
	}
}

func TestUsage(t *testing.T) {
	runLine(t, "", nil, "--help").want(t, 0, "try-command", "")
	runLine(t, "", nil, "submit", "--help").want(t, 0, "Exit codes:", "")
	runLine(t, "", nil, "serve", "--help").want(t, 0, "$LANEGATE_KILL_GRACE", "")
	runLine(t, "", nil, "--no-such-flag").want(t, 2, "", `Try "lanegate --help"`)
	runLine(t, "", nil, "submit").want(t, 2, "", `Try "lanegate submit --help"`)
	runLine(t, "", nil, "version").want(t, 0, "lanegate ", "")
}

// The guard is dispatched by main; as an argument it is no command for people.
func TestGuardIsHidden(t *testing.T) {
	if o := runLine(t, "", nil, "--help"); strings.Contains(o.out, "guard") {
		t.Errorf("the help names guard:\n%s", o.out)
	}
}

// A bare lanegate serves; every wrong value is reported, and the exit code is that of usage.
func TestServeReportsEveryFault(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("bad.yaml", []byte("beat: x\nnope: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LANEGATE_SLOTS", "y")
	env := map[string]string{"LANEGATE_SLOTS": "y"}
	o := runLine(t, "", env, "--config", "bad.yaml", "--lease", "z")
	for _, want := range []string{"bad.yaml:1: beat", "bad.yaml:2: nope", "LANEGATE_SLOTS:", "--lease:", "4 faults"} {
		o.want(t, 2, "", want)
	}
	runLine(t, "", nil, "serve", "--config", "none.yaml").want(t, 1, "", "none.yaml does not exist")
	runLine(t, "", nil, "serve", "--listen", "0.0.0.0:0").want(t, 2, "", "--insecure-no-auth")
}

func TestToken(t *testing.T) {
	o := runLine(t, "", nil, "token", "new", "--name", "cron", "--class", "pos-sales")
	o.want(t, 0, "{name: cron, role: submit, sha256: ", "")
	o.want(t, 0, ", classes: [pos-sales]}", "")
	var token string
	for line := range strings.SplitSeq(o.out, "\n") {
		if strings.HasPrefix(line, "lg_") {
			token = line
		}
	}
	if len(token) != len("lg_")+43 {
		t.Fatalf("token %q: want 32 bytes in base64url behind the prefix", token)
	}
	h := runLine(t, token+"\n", nil, "token", "hash")
	if h.code != 0 || len(strings.TrimSpace(h.out)) != 64 || !strings.Contains(o.out, strings.TrimSpace(h.out)) {
		t.Errorf("token hash printed %q, which the entry does not have:\n%s", h.out, o.out)
	}
	runLine(t, "", nil, "token", "hash").want(t, 2, "", "no token on standard input")
	runLine(t, "", nil, "token", "new", "--name", "Bad Name").want(t, 2, "", "is not a name")
	runLine(t, "", nil, "token", "new", "--name", "x", "--role", "root").want(t, 2, "", "role")
}

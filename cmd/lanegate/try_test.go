package main

import (
	"os"
	"strings"
	"testing"
)

func TestTryCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "secret.env", "FROM_FILE=s3cret\n")
	writeFile(t, "gate.yaml", `
kill_grace: 1s
commands:
  cat: {argv: [sh, -c, "cat; echo; cat \"$LANEGATE_PAYLOAD_FILE\"; echo; echo $LANEGATE_CLASS $LANEGATE_LOGICAL_DATE $OWN $FROM_FILE >&2"], env: {OWN: s3cret}, env_file: secret.env}
  env: {argv: [env], env_pass: [PASSED]}
  json: {argv: [sh, -c, "cat"]}
  fails: {argv: [sh, -c, "exit 3"]}
  later: {argv: [sh, -c, "exit 75"]}
  slow: {argv: [sleep, "60"]}
  missing: {argv: [no-such-program-anywhere]}
`)
	t.Setenv("PASSED", "yes")
	t.Setenv("NOT_PASSED", "no")
	payload := `{"n": 3889108265204450030}`
	try := func(args ...string) outcome {
		return runLine(t, "", nil, append([]string{"try-command", "--config", "gate.yaml"}, args...)...)
	}
	o := try("cat", "--payload", payload, "--logical-date", "2026-11-28")
	o.want(t, 0, payload+"\n"+payload, "succeeded after")
	o.want(t, 0, "", "cat 2026-11-28 s3cret s3cret")
	for _, want := range []string{"program      /", "directory    ", "user         ", "env file     ", `arguments    "sh" "-c"`, "FROM_FILE", "LANEGATE_JOB_ID"} {
		o.want(t, 0, "", want)
	}
	if dry := try("cat", "--dry-run"); dry.code != 0 || dry.out != "" || strings.Contains(dry.err, "s3cret") || strings.Contains(dry.err, "succeeded") {
		t.Errorf("a dry run ran, or showed a value: %+v", dry)
	}
	if env := try("env"); !strings.Contains(env.out, "PASSED=yes\n") || strings.Contains(env.out, "NOT_PASSED") {
		t.Errorf("environment:\n%s", env.out)
	}
	try("json", "--payload", payload).want(t, 0, payload, "becomes the job's result")
	try("fails").want(t, 1, "", "failed after")
	try("later").want(t, 75, "", "deferred after")
	try("slow", "--timeout", "100ms").want(t, 1, "", "timed_out after")
	try("missing").want(t, 2, "", "was not found in PATH")
	try("nobody").want(t, 2, "", `no command "nobody"`)
	try("cat", "--payload", "{").want(t, 2, "", "not a JSON value")
	runLine(t, "", nil, "try-command", "cat").want(t, 2, "", "--config")
	if entries, err := os.ReadDir("."); err != nil || len(entries) != 2 {
		t.Errorf("it left something behind: %v, %v", entries, err)
	}
}

package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

func TestExecOutcomes(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         lanegate.Outcome
		code         int // -1: none
		signal       string
		sentence     string
	}{
		{"exit 0 succeeds", "exit 0", lanegate.Succeeded, 0, "", ""},
		{"exit 3 fails", "exit 3", lanegate.Failed, 3, "", "exited with 3"},
		{"exit 75 defers", "exit 75", lanegate.Deferred, 75, "", "exited with 75"},
		{"a signal is named", "kill -KILL $$", lanegate.Failed, -1, "SIGKILL", "SIGKILL"},
		{"so is a crash", "kill -SEGV $$", lanegate.Failed, -1, "SIGSEGV", "SIGSEGV"},
		{"TERM from elsewhere is a failure", "kill -TERM $$", lanegate.Failed, -1, "SIGTERM", "did not send"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			end := runShell(t, tt.script)
			wantOutcome(t, end, tt.want)
			if (tt.code < 0) != (end.ExitCode == nil) || (tt.code >= 0 && *end.ExitCode != tt.code) {
				t.Errorf("exit code %v, want %d", end.ExitCode, tt.code)
			}
			if end.Signal != tt.signal {
				t.Errorf("signal %q, want %q", end.Signal, tt.signal)
			}
			if !strings.Contains(end.Error, tt.sentence) || (tt.sentence == "") != (end.Error == "") {
				t.Errorf("error %q, want it to contain %q", end.Error, tt.sentence)
			}
			if end.Permanent {
				t.Error("an exit code is no permanent failure")
			}
		})
	}
}

func TestExecUnstartable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		name     string
		command  Command
		sentence string
	}{
		{"not in PATH", Command{Argv: []string{"no-such-program-here"}}, "was not found in PATH"},
		{"no such file", Command{Argv: []string{dir + "/none"}}, "no such file"},
		{"not executable", Command{Argv: []string{write("plain", "#!/bin/sh\n", 0o644)}}, "file's mode"},
		{"no interpreter", Command{Argv: []string{write("bad", "#!/no/such/interpreter\n", 0o755)}}, "the interpreter in its first line"},
		{"no first line", Command{Argv: []string{write("text", "echo hi\n", 0o755)}}, "#!/bin/sh"},
		{"no such directory", Command{Argv: []string{"true"}, Dir: dir + "/none"}, "directory " + dir + "/none"},
		{"a directory", Command{Argv: []string{dir}}, "is a directory"},
		{"too long", Command{Argv: []string{"true", strings.Repeat("x", 1<<20)}}, "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newExec(t, tt.command, nil)
			end := e.Run(t.Context(), newJob(), Unfenced)
			wantOutcome(t, end, lanegate.Failed)
			if !end.Permanent || !strings.Contains(end.Error, tt.sentence) {
				t.Errorf("permanent %v, error %q; want true and %q", end.Permanent, end.Error, tt.sentence)
			}
			wantUnlocked(t, e.opts.RunsLock)
			wantEmpty(t, e.opts.WorkDir)
		})
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Errorf("%s was left in the work directory", entry.Name())
	}
}

func TestExecCommandGoneFromCatalogue(t *testing.T) {
	e := newExec(t, shell("exit 0"), nil)
	if err := e.opts.Catalogue.Replace(nil); err != nil {
		t.Fatal(err)
	}
	end := e.Run(t.Context(), newJob(), Unfenced)
	wantOutcome(t, end, lanegate.Interrupted)
	if !strings.Contains(end.Error, `no command "test"`) {
		t.Errorf("error %q", end.Error)
	}
}

func TestExecHostTroubleIsNoFailure(t *testing.T) {
	e := newExec(t, shell("exit 0"), func(o *ExecOptions) { o.GuardPath = []string{"/no/such/guard", "guard"} })
	end := e.Run(t.Context(), newJob(), Unfenced)
	wantOutcome(t, end, lanegate.Deferred)
	if end.DeferFor <= 0 {
		t.Error("asked to be repeated at once")
	}
}

func TestExecGuardThatEndsBeforeItStarts(t *testing.T) {
	e := newExec(t, shell("exit 0"), func(o *ExecOptions) { o.GuardPath = []string{"/bin/false"} })
	end := e.Run(t.Context(), newJob(), Unfenced)
	wantOutcome(t, end, lanegate.Deferred)
	if !strings.Contains(end.Error, "before it started the command") {
		t.Errorf("error %q", end.Error)
	}
}

func TestExecEnvironmentIsOnlyWhatIsNamed(t *testing.T) {
	t.Setenv("LANEGATE_TEST_SECRET", "leaked")
	t.Setenv("PASSED", "from the gateway")
	t.Setenv("LANG", "C")
	t.Setenv("HOME", "/nowhere")
	t.Setenv("TZ", "UTC")
	dir := t.TempDir()
	file := filepath.Join(dir, "vars")
	if err := os.WriteFile(file, []byte("# comment\n\nFROM_FILE=file\nBOTH=file\nQUOTED=\"a b\"\nRAW=\xe9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newExec(t, Command{
		Argv: []string{"env"}, EnvFile: file, EnvPass: []string{"PASSED", "NOT_SET_HERE"},
		Env: map[string]string{"SET": "x=y", "BOTH": "env"},
	}, nil)
	job := newJob()
	var raw syncBuffer
	e.opts.Stdout = &raw
	wantOutcome(t, e.Run(t.Context(), job, Unfenced), lanegate.Succeeded)

	got := map[string]string{}
	for line := range strings.Lines(raw.String()) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	payloadFile := got["LANEGATE_PAYLOAD_FILE"]
	if !strings.HasPrefix(payloadFile, e.opts.WorkDir+"/") {
		t.Errorf("payload file %q is not in %s", payloadFile, e.opts.WorkDir)
	}
	want := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": "/nowhere", "LANG": "C", "TZ": "UTC",
		"PASSED": "from the gateway", "FROM_FILE": "file", "BOTH": "env", "SET": "x=y", "QUOTED": "a b", "RAW": "\xe9",
		"LANEGATE_JOB_ID": job.ID, "LANEGATE_ATTEMPT": "3", "LANEGATE_CLASS": "pos-sales",
		"LANEGATE_LOGICAL_DATE": "2026-11-30", "LANEGATE_VERIFICATION": "", "LANEGATE_PAYLOAD_FILE": payloadFile,
		"PGAPPNAME": "lg/" + job.ID,
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s=%q, want %q", name, got[name], value)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s was passed without being named", name)
		}
	}
}

func TestExecEnvFileFaultsFailTheRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vars")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("A=1\n")
	e := newExec(t, Command{Argv: []string{"true"}, EnvFile: file}, nil)
	write("A=1\nexport TOKEN=hunter2\n")
	end := e.Run(t.Context(), newJob(), Unfenced)
	wantOutcome(t, end, lanegate.Failed)
	if !strings.Contains(end.Error, file+", line 2") || strings.Contains(end.Error, "hunter2") {
		t.Errorf("error %q: want file and line, without the text", end.Error)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	end = e.Run(t.Context(), newJob(), Unfenced)
	wantOutcome(t, end, lanegate.Failed)
	if !strings.Contains(end.Error, "no such file") || end.Permanent {
		t.Errorf("permanent %v, error %q", end.Permanent, end.Error)
	}
}

func TestExecPayloadIsVerbatim(t *testing.T) {
	payload := []byte("{\"b\":1e400, \"a\":\"\\u0000\u2028\",\n \"big\":0.1000000000000000055}")
	e := newExec(t, shell(`cat; printf '|'; cat "$LANEGATE_PAYLOAD_FILE"; stat -c '|%a' "$LANEGATE_PAYLOAD_FILE"; stat -c '%a' "$(dirname "$LANEGATE_PAYLOAD_FILE")"`), nil)
	job := newJob()
	job.Payload = payload
	var out syncBuffer
	e.opts.Stdout = &out
	wantOutcome(t, e.Run(t.Context(), job, Unfenced), lanegate.Succeeded)
	if want := string(payload) + "|" + string(payload) + "|600\n700\n"; out.String() != want {
		t.Errorf("got %q\nwant %q", out.String(), want)
	}
	wantEmpty(t, e.opts.WorkDir)
}

// A job that never reads its stdin must not be held up, nor hold us up.
func TestExecPayloadNeedNotBeRead(t *testing.T) {
	e := newExec(t, shell("exit 0"), nil)
	job := newJob()
	job.Payload = []byte(`"` + strings.Repeat("x", 4<<20) + `"`)
	wantOutcome(t, e.Run(t.Context(), job, Unfenced), lanegate.Succeeded)
}

func TestExecDirectories(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "job.sh"), []byte("#!/bin/sh\npwd\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, tt := range []struct {
		name    string
		command Command
		want    string
	}{
		{"the gateway's own by default", Command{Argv: []string{"pwd"}}, dir},
		{"dir counts from there", Command{Argv: []string{"pwd"}, Dir: "sub"}, dir + "/sub"},
		{"a program with a slash counts from dir", Command{Argv: []string{"./job.sh"}, Dir: "sub"}, dir + "/sub"},
		{"and without dir from the gateway's", Command{Argv: []string{"sub/job.sh"}}, dir},
	} {
		t.Run(tt.name, func(t *testing.T) {
			end := newExec(t, tt.command, nil).Run(t.Context(), newJob(), Unfenced)
			wantOutcome(t, end, lanegate.Succeeded)
			if got := strings.TrimSpace(end.Output.Head); got != tt.want {
				t.Errorf("ran in %q, want %q", got, tt.want)
			}
		})
	}
}

func TestExecResult(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"one JSON value", `printf ' {"rows": 3889108265204450030, "x":1e400}\n\n'`, `{"rows": 3889108265204450030, "x":1e400}`},
		{"stderr is not in it", `echo noise >&2; echo '[1]'`, `[1]`},
		{"a scalar", `echo 12`, `12`},
		{"two values are none", `echo 1; echo 2`, ""},
		{"text is none", `echo done`, ""},
		{"nothing is none", `:`, ""},
		{"bad UTF-8 is none", `printf '"\351"'`, ""},
		{"too large is none", `printf '"'; head -c 65535 /dev/zero | tr '\0' x; printf '"'`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			end := runShell(t, tt.script)
			wantOutcome(t, end, lanegate.Succeeded)
			if string(end.Result) != tt.want || (tt.want == "") != (end.Result == nil) {
				t.Errorf("result %.80q, want %q", end.Result, tt.want)
			}
		})
	}
}

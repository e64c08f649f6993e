package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

func TestCommandValidate(t *testing.T) {
	for _, tt := range []struct {
		name    string
		command Command
		pointer string // "" when nothing is wrong
	}{
		{"plain", Command{Argv: []string{"sh", ""}, Env: map[string]string{"spring.url": "x", "TZ": ""}, EnvPass: []string{"HOME"}}, ""},
		{"no argv", Command{}, "/argv"},
		{"empty program", Command{Argv: []string{""}}, "/argv"},
		{"NUL in argv", Command{Argv: []string{"a", "b\x00"}}, "/argv/1"},
		{"bad name", Command{Argv: []string{"a"}, Env: map[string]string{"A B": ""}}, "/env"},
		{"name with =", Command{Argv: []string{"a"}, EnvPass: []string{"A", "B=c"}}, "/env_pass/1"},
		{"our names", Command{Argv: []string{"a"}, Env: map[string]string{"LANEGATE_JOB_ID": "x"}}, "/env"},
		{"our PGAPPNAME", Command{Argv: []string{"a"}, Env: map[string]string{"PGAPPNAME": "x"}}, "/env"},
		{"NUL in a value", Command{Argv: []string{"a"}, Env: map[string]string{"A": "\x00"}}, "/env/A"},
		{"NUL in dir", Command{Argv: []string{"a"}, Dir: "\x00"}, "/dir"},
		{"NUL in env_file", Command{Argv: []string{"a"}, EnvFile: "\x00"}, "/env_file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faults := tt.command.Validate()
			if tt.pointer == "" {
				if len(faults) > 0 {
					t.Errorf("faults %v", faults)
				}
				return
			}
			if len(faults) != 1 || faults[0].Pointer != tt.pointer || faults[0].Detail == "" {
				t.Errorf("faults %v, want one at %s", faults, tt.pointer)
			}
		})
	}
}

func TestCommandDigest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vars")
	writeFile := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writeFile("A=1\n")
	base := Command{Argv: []string{"sh", "x.sh"}, Env: map[string]string{"B": "1", "C": "2"}, EnvPass: []string{"D"}, EnvFile: file, Dir: "jobs"}
	digest := func(change func(*Command)) string {
		t.Helper()
		c := base.clone()
		change(&c)
		d, err := c.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := digest(func(*Command) {})
	if len(first) != 16 {
		t.Errorf("digest %q", first)
	}
	for name, change := range map[string]func(*Command){
		"values":                  func(c *Command) { c.Env["B"] = "secret" },
		"values in the file":      func(*Command) { writeFile("# rotated\nA=2\n") },
		"spelling of dir":         func(c *Command) { c.Dir = "./jobs/" },
		"where a name comes from": func(c *Command) { delete(c.Env, "B"); c.EnvPass = []string{"D", "B"} },
		"a name from two sources": func(c *Command) { c.EnvPass = []string{"D", "C", "A"} },
		"the file's place, its names equal": func(c *Command) {
			c.EnvFile = filepath.Dir(file) + "/../" + filepath.Base(filepath.Dir(file)) + "/vars"
		},
	} {
		if got := digest(change); got != first {
			t.Errorf("%s changed the digest", name)
		}
	}
	writeFile("A=1\n")
	seen := map[string]string{first: "base"}
	for name, change := range map[string]func(*Command){
		"argv":        func(c *Command) { c.Argv = []string{"sh", "y.sh"} },
		"argv's cuts": func(c *Command) { c.Argv = []string{"sh x.sh"} },
		"dir":         func(c *Command) { c.Dir = "other" },
		"no dir":      func(c *Command) { c.Dir = "" },
		"a new name":  func(c *Command) { c.Env["E"] = "" },
		"one less":    func(c *Command) { c.EnvPass = nil },
	} {
		got := digest(change)
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[got] = name
	}
	writeFile("A=1\nNEW=2\n")
	if got := digest(func(*Command) {}); seen[got] != "" {
		t.Error("a new name in the file left the digest as it was")
	}
}

func TestReadEnvFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vars")
	read := func(text string) (map[string]string, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readEnvFile(path)
	}
	got, err := read("\xef\xbb\xbfA=1\r\n  # note\n\n  B = spaced \nC=\"q'q\"\nD='\nE=a=b#c\nA=2\nF=")
	if err == nil || !strings.Contains(err.Error(), "line 4") {
		t.Errorf("a name with a space gave %v, %v", got, err)
	}
	got, err = read("\xef\xbb\xbfA=1\r\n  # note\n\n\tB= spaced \nC=\"q'q\"\nD='\nE=a=b#c\nA=2\nF=")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"A": "2", "B": " spaced ", "C": "q'q", "D": "'", "E": "a=b#c", "F": ""}
	if mustJSON(t, got) != mustJSON(t, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, text := range map[string]string{"no =": "SECRET\n", "export": "export SECRET=1\n", "no name": "=SECRET\n", "NUL": "A=SECRET\x00\n", "too large": strings.Repeat("SECRET=\n", 1<<18)} {
		if _, err := read(text); err == nil || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := readEnvFile(filepath.Dir(path)); err == nil || !strings.Contains(err.Error(), "can't be read") {
		t.Errorf("a directory gave %v", err)
	}
}

func TestCatalogue(t *testing.T) {
	var c Catalogue
	if _, ok := c.Get("a"); ok || len(c.Digests()) != 0 {
		t.Error("the zero catalogue is not empty")
	}
	if _, ok := c.Digest("a"); ok {
		t.Error("the zero catalogue has a digest")
	}
	argv := []string{"true"}
	if err := c.Replace(map[string]Command{"a": {Argv: argv}}); err != nil {
		t.Fatal(err)
	}
	argv[0] = "false"
	if got, ok := c.Get("a"); !ok || got.Argv[0] != "true" {
		t.Errorf("got %v, %v: the catalogue shares the caller's memory", got, ok)
	}
	digest, ok := c.Digest("a")
	if !ok || c.Digests()["a"] != digest {
		t.Error("no digest")
	}

	err := c.Replace(map[string]Command{"b": {}, "Bad Name": {Argv: []string{"x"}}, "c": {Argv: []string{"x"}, EnvFile: "/no/such/file"}})
	fault, ok := errors.AsType[*lanegate.Error](err)
	if !ok || fault.Kind != lanegate.KindInvalid {
		t.Fatalf("error %v", err)
	}
	var pointers []string
	for _, f := range fault.Fields {
		pointers = append(pointers, f.Pointer)
	}
	if got := strings.Join(pointers, " "); got != "/commands/Bad Name /commands/b/argv /commands/c/env_file" {
		t.Errorf("faults at %s", got)
	}
	if _, ok := c.Get("a"); !ok {
		t.Error("a faulty set replaced the good one")
	}
}

func TestLookProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "tool": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for _, tt := range []struct{ name, program, path, want, sentence string }{
		{"in PATH", "tool", "/none:" + dir, dir + "/tool", ""},
		{"relative parts of PATH do not count", "tool", ".::bin", "", "not found in PATH"},
		{"found, but not executable", "plain", dir, "", "is not executable"},
		{"relative with a slash", "./tool", "", dir + "/tool", ""},
		{"absolute", dir + "/tool", "", dir + "/tool", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := lookProgram(tt.program, dir, tt.path)
			if got != tt.want || (err == nil) != (tt.sentence == "") || (err != nil && !strings.Contains(err.Error(), tt.sentence)) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

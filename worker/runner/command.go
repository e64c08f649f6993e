package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
)

// Command is one entry of the operator's catalogue: what a class's run names.
type Command struct {
	// Argv is the program and its arguments; no shell is involved unless it is the
	// program. A program without a slash is looked up in the run's PATH, one with a
	// slash counts from Dir.
	Argv []string `json:"argv" yaml:"argv"`
	// Env sets variables; it wins over EnvFile, which wins over EnvPass.
	Env map[string]string `json:"env,omitempty" yaml:"env,omitempty"`
	// EnvFile names a file of KEY=VALUE lines, read at the start of each run.
	EnvFile string `json:"env_file,omitempty" yaml:"env_file,omitempty"`
	// EnvPass names variables to hand on from the gateway's own environment.
	EnvPass []string `json:"env_pass,omitempty" yaml:"env_pass,omitempty"`
	// Dir is the working directory, by default the gateway's own. Dir and EnvFile
	// count from the gateway's working directory.
	Dir string `json:"dir,omitempty" yaml:"dir,omitempty"`
}

// Validate returns the command's faults of form; pointers start at the command.
// It reads no files.
func (c Command) Validate() []lanegate.FieldError {
	var errs []lanegate.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, lanegate.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		bad("/argv", "must name a program, as a list: [sh, script.sh]")
	}
	for i, arg := range c.Argv {
		if strings.ContainsRune(arg, 0) {
			bad(fmt.Sprintf("/argv/%d", i), "must not contain a NUL character")
		}
	}
	for _, name := range sortedKeys(c.Env) {
		if fault := envFault(name); fault != "" {
			bad("/env", "%q %s", name, fault)
		}
		if strings.ContainsRune(c.Env[name], 0) {
			bad("/env/"+name, "must not contain a NUL character")
		}
	}
	for i, name := range c.EnvPass {
		if fault := envFault(name); fault != "" {
			bad(fmt.Sprintf("/env_pass/%d", i), "%q %s", name, fault)
		}
	}
	if strings.ContainsRune(c.Dir, 0) {
		bad("/dir", "must not contain a NUL character")
	}
	if strings.ContainsRune(c.EnvFile, 0) {
		bad("/env_file", "must not contain a NUL character")
	}
	return errs
}

// envFault says what is wrong with the name of a variable, "" when nothing is.
func envFault(name string) string {
	switch {
	case !validEnvName(name):
		return "is not a variable name"
	case strings.HasPrefix(name, "LANEGATE_") || name == "PGAPPNAME":
		return "is set by lanegate for each run and can't be chosen"
	}
	return ""
}

// validEnvName takes what the kernel and common tools take: dots and dashes occur
// in the wild, white space and "=" can't.
func validEnvName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "= \t\r\n\x00")
}

// Digest identifies the definition: argv, dir, and the names of the variables
// that it sets or passes (those in the env file included, so the file is read).
// Values of variables, which may be secrets and change daily, and the four
// variables that every run gets do not count. The directory counts as declared,
// not resolved: a deployment into a new directory is not a new command.
func (c Command) Digest() (string, error) {
	names := slices.Concat(sortedKeys(c.Env), c.EnvPass)
	if c.EnvFile != "" {
		vars, err := readEnvFile(absolute(c.EnvFile))
		if err != nil {
			return "", err
		}
		names = append(names, sortedKeys(vars)...)
	}
	slices.Sort(names)
	dir := c.Dir
	if dir != "" {
		dir = filepath.Clean(dir)
	}
	text, err := json.Marshal(struct {
		Argv []string
		Dir  string
		Env  []string
	}{c.Argv, dir, slices.Compact(names)})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// absolute resolves path against the gateway's working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path // the working directory is gone; the use of path will say so
}

const maxEnvFile = 1 << 20

// readEnvFile reads KEY=VALUE lines. Blank lines and lines that start with # are
// skipped; one pair of quotes, single or double, around a whole value is taken
// off; nothing is expanded. A later line wins over an earlier one. Errors name the
// file and the line, never its text, which may be a secret.
func readEnvFile(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, envFileError(path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, envFileError(path, err)
	}
	if len(text) > maxEnvFile {
		return nil, fmt.Errorf("env_file %s is larger than 1 MiB", path)
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	vars := map[string]string{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		name = strings.TrimLeft(name, " \t")
		if !found || !validEnvName(name) || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("env_file %s, line %d: write KEY=VALUE, without \"export\" and without spaces around the name", path, number)
		}
		vars[name] = unquote(value)
	}
	return vars, nil
}

func envFileError(path string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("env_file %s can't be read: %w", path, err)
}

func unquote(value string) string {
	if n := len(value); n >= 2 && value[0] == value[n-1] && (value[0] == '"' || value[0] == '\'') {
		return value[1 : n-1]
	}
	return value
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

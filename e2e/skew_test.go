package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// skewEnv moves the wall clock of a process of skewedBinary, in seconds.
const skewEnv = "CHAOS_CLOCK_SKEW"

var skewed struct {
	once sync.Once
	path string
	err  error
}

// skewedBinary is the lanegate under test with another wall clock: the same source,
// built with a standard library whose time.Now adds what skewEnv says. A process's
// wall clock can't be moved from outside: a static binary loads no library before
// its own, and a time namespace leaves CLOCK_REALTIME alone.
func skewedBinary(t *testing.T) string {
	t.Helper()
	skewed.once.Do(func() { skewed.path, skewed.err = buildSkewed(filepath.Dir(binary)) })
	if skewed.err != nil {
		t.Fatal(skewed.err)
	}
	return skewed.path
}

func buildSkewed(dir string) (path string, err error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	lib := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	text, err := os.ReadFile(filepath.Join(lib, "time.go"))
	if err != nil {
		return "", err
	}
	const reading = "\tsec, nsec, mono := runtimeNow()\n"
	moved := strings.Replace(string(text), reading, reading+"\tsec += chaosSkew\n", 1)
	if moved == string(text) {
		return "", fmt.Errorf("time.Now of this Go does not read its clock as %q: buildSkewed must be taught how", reading)
	}
	replace := map[string]string{}
	for name, text := range map[string]string{"time.go": moved, "chaos_skew.go": `package time

import "syscall"

// chaosSkew is added to the wall clock, in seconds.
var chaosSkew = func() int64 {
	text, _ := syscall.Getenv("` + skewEnv + `")
	n, err := atoi(text)
	if err != nil {
		return 0
	}
	return int64(n)
}()
`} {
		replace[filepath.Join(lib, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "lanegate-skewed")
	args, cgo := []string{"build", "-overlay", list, "-o", path}, "CGO_ENABLED=0"
	if raced {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	build := exec.Command("go", append(args, "../cmd/lanegate")...)
	build.Env = append(os.Environ(), cgo)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
}

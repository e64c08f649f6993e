package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// skewedBinary is the lanegate under test with another wall clock: the same source
// with two files laid over it (testdata/skew), by which the runtime reads its clocks
// through a function that moves CLOCK_REALTIME by skewEnv and no other. From outside
// it can't be done: a static binary loads no library before its own, and a time
// namespace leaves CLOCK_REALTIME alone. On other processors than amd64 it is the
// plain binary, and the clocks agree: who uses it has to say so.
func skewedBinary(t *testing.T) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		return binary
	}
	skewed.once.Do(func() { skewed.path, skewed.err = buildSkewed(filepath.Dir(binary)) })
	if skewed.err != nil {
		t.Fatal(skewed.err)
	}
	return skewed.path
}

func buildSkewed(dir string) (path string, err error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, name := range []string{"skew.go", "skew_amd64.s"} {
		replace[filepath.Join(here, "..", "cmd", "lanegate", "chaos_"+name)] = filepath.Join(here, "testdata", "skew", name)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "lanegate-skewed")
	args, cgo := []string{"build", "-overlay", overlay, "-ldflags=-checklinkname=0", "-o", path}, "CGO_ENABLED=0"
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

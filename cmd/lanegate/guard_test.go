package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A guard is started for each run: what it initialises before it comes to its own
// business costs every one of them. Heavy packages must come after it, which for a
// guard means never (see the comment of package guard). The test binary links all that
// the command does.
func TestGuardInitialisesLittle(t *testing.T) {
	guard := initialised(t, "guard")
	// Packages whose names sort before the guard's and that need nothing which the guard
	// does not need as well can't be kept out. There are some twenty.
	const few = 30
	if len(guard) > few {
		t.Errorf("a guard initialises %d packages, want at most %d: %v", len(guard), few, guard)
	}
	whole := initialised(t, "-test.run=^$")
	for _, heavy := range []string{
		"crypto/tls", "database/sql", "encoding/json", "github.com/aws/aws-sdk-go-v2/service", "github.com/aws/smithy-go",
		"github.com/go-json-experiment", "github.com/goccy/go-yaml", "github.com/google/uuid", "github.com/lanegate/lanegate",
		"github.com/prometheus", "golang.org/x/sys/unix", "google.golang.org/protobuf", "log/slog", "modernc.org/libc",
		"modernc.org/sqlite", "net", "reflect", "unicode",
	} {
		if found := under(heavy, guard); found != "" {
			t.Errorf("a guard initialises %s", found)
		}
		// What the trace never names would be missed in vain.
		if under(heavy, whole) == "" {
			t.Errorf("the whole program does not initialise %s", heavy)
		}
	}
}

// under finds a package or one below it.
func under(path string, names []string) string {
	for _, name := range names {
		if name == path || strings.HasPrefix(name, path+"/") {
			return name
		}
	}
	return ""
}

// initialised lists the packages that this program initialises when it is started with
// an argument, in their order.
func initialised(t *testing.T, arg string) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, arg)
	cmd.Env = append(cmd.Environ(), "GODEBUG=inittrace=1")
	var trace strings.Builder
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
	}
	var names []string
	for line := range strings.Lines(trace.String()) {
		if rest, ok := strings.CutPrefix(line, "init "); ok {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Fatalf("no trace of %s: %s", arg, trace.String())
	}
	return names
}

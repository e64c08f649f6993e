//go:build linux

// Package proctest has what tests of real processes share.
package proctest

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// Grace is long enough for a shell to die of TERM on a busy machine.
	Grace = 300 * time.Millisecond
	// Patience bounds every wait of the tests; it is no expected time.
	Patience = 30 * time.Second
)

// Eventually polls until ok or fails the test.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for: %s", Patience, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Alive says whether a process exists and is no zombie.
func Alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

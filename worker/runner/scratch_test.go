package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate/worker/guard"
)

func TestCleanStale(t *testing.T) {
	base := filepath.Join(t.TempDir(), "work")
	if err := CleanStale(base); err != nil {
		t.Errorf("a missing directory: %v", err)
	}
	inUse, err := newScratch(base, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	defer inUse.remove()
	crashed, err := newScratch(base, []byte("2"))
	if err != nil {
		t.Fatal(err)
	}
	crashed.release() // as the kernel does for a dead process
	mkdir := func(name string, age time.Duration, files ...string) {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	mkdir("other", 48*time.Hour, guard.PayloadName)
	mkdir(scratchPrefix+"mine", 48*time.Hour, "thesis.txt") // by chance the same beginning
	mkdir(scratchPrefix+"empty", 0)
	mkdir(scratchUnsettled+"young", 0, guard.PayloadName)
	mkdir(scratchUnsettled+"old", 2*time.Hour, guard.PayloadName)
	if err := CleanStale(base); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{filepath.Base(inUse.dir), "other", scratchPrefix + "mine", scratchUnsettled + "young"}
	slices.Sort(want)
	slices.Sort(left)
	if !slices.Equal(left, want) {
		t.Errorf("left %q\nwant %q", left, want)
	}
	if _, err := os.Stat(inUse.file); err != nil {
		t.Error("a payload in use was removed")
	}
}

func TestLockRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs")
	a, err := lockRuns(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := lockRuns(t.Context(), path) // shared
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if unlocked(t, path) {
		t.Error("free while one still holds it")
	}
	b.Close()
	wantUnlocked(t, path)

	owner, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	if err := unix.Flock(int(owner.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrDrained)
	if _, err := lockRuns(ctx, path); !errors.Is(err, ErrDrained) {
		t.Errorf("waiting for a lock held exclusively ended with %v", err)
	}
	got := make(chan error, 1)
	go func() {
		f, err := lockRuns(t.Context(), path)
		if err == nil {
			f.Close()
		}
		got <- err
	}()
	if err := unix.Flock(int(owner.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

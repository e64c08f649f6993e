//go:build unix

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockPoll is how often a held lock is tried again. flock can't wait with a
// context, and a blocked flock would hold a thread.
const lockPoll = 25 * time.Millisecond

// errLockHeld: another process holds the lock and the wait is over.
var errLockHeld = errors.New("the lock is held")

// fileLock is an exclusive flock. The kernel drops it when the process ends,
// however it ends. The file itself stays: deleting a lock file lets two
// processes lock two different files of the same name.
type fileLock struct{ f *os.File }

// lockFile takes the exclusive lock on path, trying until ctx ends; then the
// error is errLockHeld. Other errors mean that the file can't be used.
func lockFile(ctx context.Context, path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return &fileLock{f}, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(errLockHeld, f.Close())
		case <-ticker.C:
		}
	}
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// write replaces the file's content, for people and for the refusal's text.
func (l *fileLock) write(s string) error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt([]byte(s), 0)
	return err
}

// release drops the lock by closing its descriptor.
func (l *fileLock) release() error { return l.f.Close() }

// lockHolder reads the pid that the holder of the lock wrote, 0 when none can be read.
func lockHolder(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}

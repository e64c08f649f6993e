package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate/worker/guard"
)

const (
	scratchPrefix    = "lanegate-run-"
	scratchUnsettled = ".lanegate-new-" // made, but its payload not yet locked
	// unsettledFor is far longer than settling takes.
	unsettledFor = time.Hour
)

// scratch is the private directory of one run with its payload file.
//
// The payload file's open description carries a shared flock and becomes the
// run's stdin, so the lock lives as long as a process of the run has it: that is
// how CleanStale knows a dead gateway's directory from one in use.
type scratch struct {
	dir   string
	file  string   // path of the payload
	stdin *os.File // at offset 0; closed by release or remove
}

// privateDir makes the directory for scratch directories and refuses one that
// others own or can write to: they could read payloads or plant files.
func privateDir(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
		info, err = os.Stat(path)
	}
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s must be a directory that belongs to the gateway's user and that nobody else can write to", path)
	}
	return nil
}

// newScratch writes payload below base, readable for this user only.
func newScratch(base string, payload []byte) (_ *scratch, err error) {
	if err := privateDir(base); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, scratchUnsettled)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, guard.PayloadName), payload, 0o600); err != nil {
		return nil, err
	}
	stdin, err := os.Open(filepath.Join(dir, guard.PayloadName))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(stdin.Fd()), unix.LOCK_SH); err != nil {
		stdin.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	settled := filepath.Join(base, scratchPrefix+strings.TrimPrefix(filepath.Base(dir), scratchUnsettled))
	if err := os.Rename(dir, settled); err != nil {
		stdin.Close()
		return nil, err
	}
	return &scratch{dir: settled, file: filepath.Join(settled, guard.PayloadName), stdin: stdin}, nil
}

// release closes this process's copy of stdin.
func (s *scratch) release() { s.stdin.Close() }

// remove deletes the directory; the guard has usually done so already.
func (s *scratch) remove() error {
	s.release()
	return os.RemoveAll(s.dir)
}

// CleanStale removes what runs of a crashed gateway left in the work directory:
// payload files that no process uses any more. Directories in use, also by
// another gateway, stay. A missing directory is no error.
func CleanStale(workDir string) error {
	entries, err := os.ReadDir(workDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clean the work directory: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		dir := filepath.Join(workDir, entry.Name())
		if !entry.IsDir() || !stale(dir, entry) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			faults = append(faults, fmt.Errorf("clean the work directory: %w", err))
		}
	}
	return errors.Join(faults...)
}

func stale(dir string, entry fs.DirEntry) bool {
	switch {
	case strings.HasPrefix(entry.Name(), scratchUnsettled):
		info, err := entry.Info()
		return err == nil && time.Since(info.ModTime()) > unsettledFor
	case strings.HasPrefix(entry.Name(), scratchPrefix):
		file, err := os.Open(filepath.Join(dir, guard.PayloadName))
		if errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(dir) // removed by half, then it is empty; or it is none of ours
			return false
		}
		if err != nil {
			return false
		}
		defer file.Close()
		return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}
	return false
}

// lockRuns opens the runs lock anew and takes it shared, waiting while somebody
// holds it exclusively. The lock belongs to the open file: it lives until the
// last process that inherited it is gone.
func lockRuns(ctx context.Context, path string) (*os.File, error) {
	const pause = 20 * time.Millisecond
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch err {
		case nil:
			return file, nil
		case unix.EINTR, unix.EWOULDBLOCK:
		default:
			file.Close()
			return nil, os.NewSyscallError("flock", err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

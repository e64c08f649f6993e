package runner

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// collector reads a run's stdout and stderr until their end.
type collector struct {
	log    *capture // both, in the order of arrival
	result *resultBuffer
	pipes  []*os.File
	wg     sync.WaitGroup
}

const (
	// quietSize is enough for runs that print little, which most do.
	quietSize = 4 << 10
	// readSize is the capacity of a pipe: a full one is emptied in one read.
	readSize = 64 << 10
)

// drainWait is how long the pipes are still read after the run has ended. The end
// of the pipes comes at once then, unless a process outside the run holds one.
const drainWait = 2 * time.Second

// collect starts reading; the caller calls finish once the run has ended.
func (e *Exec) collect(stdout, stderr *os.File) *collector {
	c := &collector{log: newCapture(e.opts.Head, e.opts.Tail), result: &resultBuffer{}, pipes: []*os.File{stdout, stderr}}
	c.wg.Go(func() { c.read(stdout, c.result, e.opts.Stdout) })
	c.wg.Go(func() { c.read(stderr, nil, e.opts.Stderr) })
	return c
}

// read passes on everything; faults of the copy for people don't stop it, since
// the command must never be blocked or broken by us.
func (c *collector) read(pipe *os.File, result *resultBuffer, live io.Writer) {
	defer pipe.Close()
	buf := make([]byte, quietSize)
	held := 0 // bytes at the start of buf: a character whose rest is still to come
	late := false
	for {
		n, err := pipe.Read(buf[held:])
		fresh := buf[held : held+n]
		if result != nil {
			_, _ = result.Write(fresh)
		}
		if live != nil {
			_, _ = live.Write(fresh)
		}
		all := buf[:held+n]
		// The other pipe's bytes must not come between those of one character.
		keep := len(all) - unfinished(all)
		if err != nil {
			keep = len(all)
		}
		_, _ = c.log.Write(all[:keep])
		rest := all[keep:]
		if len(all) == len(buf) && len(buf) < readSize {
			buf = make([]byte, readSize)
		}
		held = copy(buf, rest)
		if errors.Is(err, os.ErrDeadlineExceeded) && !late {
			// This process may have slept through drainWait: what lies in the pipe
			// is still wanted.
			late = pipe.SetReadDeadline(time.Now().Add(drainWait/20)) == nil
			if late {
				continue
			}
		}
		if err != nil {
			return
		}
	}
}

// finish returns when everything is read, after drainWait at the latest.
func (c *collector) finish() {
	for _, pipe := range c.pipes {
		if err := pipe.SetReadDeadline(time.Now().Add(drainWait)); err != nil && !errors.Is(err, os.ErrClosed) {
			pipe.Close() // never wait without a bound
		}
	}
	c.wg.Wait()
}

type pipe struct{ r, w *os.File }

// openPipes opens n pipes or none.
func openPipes(n int) ([]pipe, error) {
	var pipes []pipe
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			for _, p := range pipes {
				closeAll([]*os.File{p.r, p.w})
			}
			return nil, err
		}
		pipes = append(pipes, pipe{r, w})
	}
	return pipes, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

package app

import (
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// NewLogger returns the log that c asks for: text or JSON lines on w. With
// format auto it is text on a terminal, JSON elsewhere.
func NewLogger(c Config, w io.Writer) *slog.Logger {
	return slog.New(newHandler(c, w, isTerminal(w)))
}

// NewLoggers returns the log that c asks for, and one of the same form for the lines
// about requests, which are many: these are written together, at most accessDelay
// after they were made, before any other line, and by flush, which whoever ends the
// process calls. When the process is killed, the last of them are lost.
func NewLoggers(c Config, w io.Writer) (log, access *slog.Logger, flush func()) {
	lines := &lineWriter{to: w}
	terminal := isTerminal(w)
	log = slog.New(newHandler(c, lines, terminal))
	access = slog.New(newHandler(c, laterWriter{lines}, terminal))
	return log, access, lines.flush
}

func newHandler(c Config, w io.Writer, terminal bool) slog.Handler {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	o := &slog.HandlerOptions{Level: levels[c.Log.Level]}
	if c.Log.Format == "text" || (c.Log.Format != "json" && terminal) {
		return slog.NewTextHandler(w, o)
	}
	return slog.NewJSONHandler(w, o)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Lines about requests wait this long for others, up to so many bytes: what a pipe
// takes in one piece, whoever else writes to it (PIPE_BUF, pipe(7)).
const (
	accessDelay = 10 * time.Millisecond
	accessBytes = 4 << 10
)

// lineWriter writes whole lines in the order in which they come, some of them later.
type lineWriter struct {
	to   io.Writer
	mu   sync.Mutex
	held []byte // what is still to be written, guarded by mu
}

// Write implements io.Writer: what was held back goes first.
func (l *lineWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release()
	return l.to.Write(line)
}

func (l *lineWriter) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release()
}

// release writes what was held back; mu is held. A log that can't be written has
// nobody to tell.
func (l *lineWriter) release() {
	if len(l.held) > 0 {
		_, _ = l.to.Write(l.held)
		l.held = l.held[:0]
	}
}

// laterWriter is a lineWriter whose lines may wait.
type laterWriter struct{ l *lineWriter }

// Write implements io.Writer.
func (w laterWriter) Write(line []byte) (int, error) {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held)+len(line) > accessBytes {
		l.release()
	}
	if len(l.held) == 0 {
		time.AfterFunc(accessDelay, l.flush)
	}
	l.held = append(l.held, line...)
	return len(line), nil
}

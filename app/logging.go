package app

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// NewLogger returns the log that c asks for: text or JSON lines on w. With
// format auto it is text on a terminal, JSON elsewhere.
func NewLogger(c Config, w io.Writer) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	o := &slog.HandlerOptions{Level: levels[c.Log.Level]}
	if c.Log.Format == "text" || (c.Log.Format != "json" && isTerminal(w)) {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

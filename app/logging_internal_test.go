package app

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// writes counts what is written, and in how many pieces.
type writes struct {
	mu     sync.Mutex
	text   bytes.Buffer // guarded by mu
	pieces int          // guarded by mu
}

func (w *writes) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pieces++
	return w.text.Write(b)
}

func (w *writes) said() (text string, bytes, pieces int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for line := range strings.Lines(w.text.String()) {
		_, msg, _ := strings.Cut(strings.TrimSpace(line), "msg=")
		out = append(out, msg)
	}
	return strings.Join(out, " "), w.text.Len(), w.pieces
}

func TestLinesAboutRequestsAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		c := Config{}
		c.Log.Format = "text"
		log, access, flush := NewLoggers(c, w)
		want := func(when, said string, pieces int) {
			t.Helper()
			synctest.Wait()
			if text, _, n := w.said(); text != said || n != pieces {
				t.Errorf("%s the log has %q in %d pieces, want %q in %d", when, text, n, said, pieces)
			}
		}
		access.Info("a")
		access.Info("b")
		want("at once", "", 0)
		time.Sleep(accessDelay)
		want("after the delay", "a b", 1)
		access.Info("c")
		log.Warn("d")
		access.Info("e")
		want("after another line", "a b c d", 3)
		flush()
		want("after a flush", "a b c d e", 4)
		time.Sleep(2 * accessDelay)
		want("after another delay", "a b c d e", 4)
		access.Debug("f")
		flush()
		want("below the level", "a b c d e", 4)
	})
}

func TestLinesAboutRequestsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		_, access, _ := NewLoggers(Config{}, w)
		rest := slog.String("rest", strings.Repeat("x", accessBytes/8))
		for range 8 {
			access.LogAttrs(t.Context(), slog.LevelInfo, "request", rest)
		}
		if _, n, pieces := w.said(); pieces != 1 || n > accessBytes || n < accessBytes/2 {
			t.Errorf("after more than %d bytes %d are written, in %d pieces", accessBytes, n, pieces)
		}
		time.Sleep(2 * accessDelay) // ends the timer
	})
}

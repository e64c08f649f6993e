//go:build linux

package e2e

import (
	"io"
	"os"
	"strconv"
	"strings"
)

// expand fills in the world's directory.
func expand(w *world, text string) string { return strings.ReplaceAll(text, "$DIR", w.dir) }

// withCommand is the world's present config with one more command.
func withCommand(w *world, name, definition string) string {
	w.t.Helper()
	text, err := os.ReadFile(w.path(w.conf))
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Replace(string(text), "\ncommands:\n", "\ncommands:\n  "+name+": "+expand(w, definition)+"\n", 1)
}

func jsonBody(text string) io.Reader { return strings.NewReader(text) }

// metricOf is the sum of a metric's series whose labels hold all the given texts.
func metricOf(w *world, name string, labels ...string) (sum float64) {
	w.t.Helper()
	_, text, err := w.do("GET", "/metrics", "")
	if err != nil {
		w.t.Fatal(err)
	}
lines:
	for line := range strings.Lines(string(text)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(series, l) {
				continue lines
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			w.t.Fatalf("%q: %v", line, err)
		}
		sum += v
	}
	return sum
}

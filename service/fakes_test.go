package service_test

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

// fakeClock stands until it is moved.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fakeBell remembers which lanes were rung.
type fakeBell struct {
	mu    sync.Mutex
	lanes []string
	rings chan struct{}
}

func newBell() *fakeBell { return &fakeBell{rings: make(chan struct{}, 1)} }

func (b *fakeBell) Ring(lane string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lanes = append(b.lanes, lane)
	select {
	case b.rings <- struct{}{}:
	default:
	}
}

func (b *fakeBell) Rings() <-chan struct{} { return b.rings }

// heard returns what was rung since the last call, in order.
func (b *fakeBell) heard() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lanes := b.lanes
	b.lanes = nil
	return lanes
}

// fakeCommands is a catalogue: name → digest.
type fakeCommands struct {
	mu      sync.Mutex
	digests map[string]string
}

func (c *fakeCommands) Digest(name string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.digests[name]
	return d, ok
}

func (c *fakeCommands) Digests() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.digests)
}

func (c *fakeCommands) set(name, digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.digests[name] = digest
}

func (c *fakeCommands) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.digests, name)
}

// fakeLogs keeps messages of warnings and errors.
type fakeLogs struct {
	mu    sync.Mutex
	lines []string
}

func (l *fakeLogs) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l *fakeLogs) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Message)
	return nil
}

func (l *fakeLogs) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *fakeLogs) WithGroup(string) slog.Handler      { return l }

// count says how many messages contain text.
func (l *fakeLogs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

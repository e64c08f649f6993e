package service

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slowLines counts for as long as it is told, and says how often it was asked.
type slowLines struct {
	LogStore
	takes  atomic.Int64 // nanoseconds
	asked  atomic.Int64
	broken atomic.Bool
}

var errCount = errors.New("no answer")

func (s *slowLines) Lines(ctx context.Context) ([]ClassLine, error) {
	n := int(s.asked.Add(1))
	select {
	case <-time.After(time.Duration(s.takes.Load())):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.broken.Load() {
		return nil, errCount
	}
	return []ClassLine{{Class: "c", Due: n}}, nil
}

// newLines is a cache over a store whose counts take so long.
func newLines(t *testing.T, takes time.Duration) (*linesCache, *slowLines) {
	t.Helper()
	s := &slowLines{}
	s.takes.Store(int64(takes))
	c := newLinesCache(s)
	t.Cleanup(c.close)
	return c, s
}

// mustLook returns which count is shown, and how long the viewer waited.
func mustLook(t *testing.T, c *linesCache) (count int, waited time.Duration) {
	t.Helper()
	began := time.Now()
	lines, err := c.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lines[0].Due, time.Since(began)
}

func TestLinesThatAreQuicklyCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newLines(t, time.Millisecond)
		for i, want := range []int{1, 1, 2, 3} { // looks each 1.5 s: never older than two seconds
			if got, waited := mustLook(t, c); got != want || waited > time.Millisecond {
				t.Errorf("look %d: count %d after %v, want count %d", i, got, waited, want)
			}
			<-time.After(1500 * time.Millisecond)
			if i == 2 {
				<-time.After(time.Second)
			}
		}
		<-time.After(time.Hour)
		if n := s.asked.Load(); n != 3 {
			t.Errorf("%d counts, want 3: none while nobody looks", n)
		}
	})
}

// A long backlog: the count takes long, and nobody waits for it but the first ever.
func TestLinesThatAreSlowlyCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 400 * time.Millisecond
		c, s := newLines(t, takes)
		if got, waited := mustLook(t, c); got != 1 || waited != takes {
			t.Errorf("first look: count %d after %v, want 1 after %v", got, waited, takes)
		}
		began, before := time.Now(), s.asked.Load()
		for range 20 { // a scrape each 30 s
			<-time.After(30 * time.Second)
			if _, waited := mustLook(t, c); waited > linesPatience {
				t.Errorf("a viewer waited %v", waited)
			}
			c.mu.Lock()
			age := time.Since(c.at)
			c.mu.Unlock()
			if age > linesCost*takes+2*takes {
				t.Errorf("counts are %v old", age)
			}
		}
		counted := time.Duration(s.asked.Load()-before) * takes
		if share := float64(counted) / float64(time.Since(began)); share > 1./linesCost {
			t.Errorf("counting took %.2f of the time", share)
		}
		<-time.After(linesWatched + linesCost*takes + takes)
		before = s.asked.Load()
		<-time.After(time.Hour)
		if n := s.asked.Load(); n != before {
			t.Errorf("%d counts while nobody looks", n-before)
		}
		if _, waited := mustLook(t, c); waited != takes {
			t.Errorf("after an hour a viewer waited %v, want %v: it would see an hour-old count", waited, takes)
		}
	})
}

func TestLinesAreCountedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newLines(t, time.Second)
		for range 100 {
			go func() { _, _ = c.get(t.Context()) }()
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.get(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the viewer's context", err)
		}
		<-time.After(time.Second)
		if n := s.asked.Load(); n != 1 {
			t.Errorf("%d counts for a hundred viewers, want one", n)
		}
	})
}

func TestLinesThatCannotBeCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newLines(t, time.Millisecond)
		s.broken.Store(true)
		if _, err := c.get(t.Context()); !errors.Is(err, errCount) {
			t.Errorf("error %v, want the store's", err)
		}
		s.broken.Store(false)
		if got, _ := mustLook(t, c); got != 2 {
			t.Errorf("count %d, want a second one", got)
		}
		s.takes.Store(int64(time.Hour)) // hangs
		<-time.After(10 * time.Second)
		if got, waited := mustLook(t, c); got != 2 || waited != linesPatience {
			t.Errorf("count %d after %v, want the last one after %v", got, waited, linesPatience)
		}
		<-time.After(linesOldest)
		if _, err := c.get(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the count's own limit: what there is, is too old", err)
		}
		c.close()
		if _, err := c.get(t.Context()); err == nil {
			t.Error("counts after the end")
		}
	})
}

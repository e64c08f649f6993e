package pgprobe

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate/store/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// source is a server whose answer a test chooses.
type source struct {
	asked atomic.Int64
	reply atomic.Pointer[func(names []string) (map[string]int, error)]
}

func (s *source) set(reply func(names []string) (map[string]int, error)) { s.reply.Store(&reply) }

func (s *source) sample(_ context.Context, names []string) (map[string]int, error) {
	s.asked.Add(1)
	return (*s.reply.Load())(names)
}

func newFake(t *testing.T, log *slog.Logger) (*Probe, *source) {
	t.Helper()
	src := &source{}
	src.set(func([]string) (map[string]int, error) { return nil, nil })
	p := newProbe(Options{Resource: "db", Every: time.Second, Log: log}, src.sample)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, src
}

func TestProbe(t *testing.T) {
	t.Run("asks only while something is watched", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, src := newFake(t, nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := src.asked.Load(); n != 0 {
				t.Fatalf("%d samples before anything was watched", n)
			}
			stop := p.Watch("j1")
			time.Sleep(10*time.Second + time.Millisecond)
			synctest.Wait()
			if n := src.asked.Load(); n < 10 || n > 12 {
				t.Fatalf("%d samples in ten seconds, want one a second", n)
			}
			if got := stop(); got != 0 {
				t.Errorf("peak %d of a job that was never seen", got)
			}
			synctest.Wait()
			before := src.asked.Load()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := src.asked.Load(); n != before {
				t.Errorf("%d samples after the last watch had ended", n-before)
			}
		})
	})
	t.Run("keeps the peak of each job apart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, src := newFake(t, nil)
			one, two := p.Watch("j1"), p.Watch("j2")
			for _, n := range []int{2, 5, 3} {
				src.set(func([]string) (map[string]int, error) {
					return map[string]int{"lg/j1": n, "lg/j2": 1, "lg/stranger": 9}, nil
				})
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			if a, b := one(), two(); a != 5 || b != 1 {
				t.Errorf("peaks %d and %d, want 5 and 1", a, b)
			}
		})
	})
	t.Run("says once that it can't count, and once that it can again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			p, src := newFake(t, slog.New(slog.NewTextHandler(&log, nil)))
			src.set(func([]string) (map[string]int, error) { return nil, errors.New("away") })
			stop := p.Watch("j1")
			time.Sleep(20 * time.Second)
			src.set(func([]string) (map[string]int, error) { return map[string]int{"lg/j1": 4}, nil })
			time.Sleep(5 * time.Second)
			if got := stop(); got != 4 {
				t.Errorf("peak %d, want 4: what was seen after the outage counts", got)
			}
			synctest.Wait()
			if n := strings.Count(log.String(), "level=WARN"); n != 1 {
				t.Errorf("%d warnings, want 1:\n%s", n, log.String())
			}
			if n := strings.Count(log.String(), "level=INFO"); n != 1 {
				t.Errorf("%d times well again, want 1:\n%s", n, log.String())
			}
		})
	})
	t.Run("starts again after it stood still", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, src := newFake(t, nil)
			p.Watch("j1")()
			synctest.Wait()
			src.set(func([]string) (map[string]int, error) { return map[string]int{"lg/j2": 7}, nil })
			stop := p.Watch("j2")
			synctest.Wait()
			if got := stop(); got != 7 {
				t.Errorf("peak %d, want 7", got)
			}
		})
	})
}

func TestCheckRefusesWhatIsNoServer(t *testing.T) {
	for _, bad := range []string{"", "db", "mysql://h/db", "postgres://", "postgres:///db", "://"} {
		if err := Check(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	for _, good := range []string{"postgres://u@h/db", "postgresql://h:5433/db?sslmode=disable", "postgres:///db?host=/run/postgresql"} {
		if err := Check(good); err != nil {
			t.Errorf("%q was refused: %v", good, err)
		}
	}
	if _, err := Open(Options{URL: "postgres://u:secret@h/db?sslmode=nonsense"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v: want one without the password", err)
	}
}

// TestProbeCountsRealConnections opens connections as a job would.
func TestProbeCountsRealConnections(t *testing.T) {
	server, name := pgtest.Database(t, func(context.Context, string) error { return nil })
	const job = "0190b2a0-0000-7000-8000-000000000001"
	p, err := Open(Options{Resource: "db", URL: server.URL(name), Every: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	peak := p.Watch(job)
	silent := p.Watch("somebody-else")
	hold(t, server.URL(name), AppName(job), 5)
	eventually(t, "five connections are seen", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.watched[AppName(job)].peak == 5
	})
	if got := peak(); got != 5 {
		t.Errorf("peak %d, want 5", got)
	}
	if got := silent(); got != 0 {
		t.Errorf("peak %d of a job without connections", got)
	}
}

// hold keeps n connections open until the test ends.
func hold(t *testing.T, rawURL, appName string, n int) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("application_name", appName)
	u.RawQuery = q.Encode()
	db, err := sql.Open("postgres", u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for range n {
		if _, err := db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		case <-tick.C:
		}
	}
}

//go:build linux

package queue_test

import (
	"bytes"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/queuetest"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

func TestMain(m *testing.M) {
	sqstest.Isolate()
	os.Exit(pgtest.Run(m))
}

// logBook is a log that a test reads.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBook) lines() int { return bytes.Count([]byte(l.String()), []byte("\n")) }

func (l *logBook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// eventually polls cond until it holds or 20 seconds are over.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("%s: did not happen within 20s", what)
		case <-tick.C:
		}
	}
}

func TestLocalContract(t *testing.T) {
	queuetest.Run(t, func(*testing.T) *queuetest.Setup {
		l := queue.NewLocal()
		return &queuetest.Setup{Ring: l.Ring, Listeners: []service.Doorbell{l}}
	})
}

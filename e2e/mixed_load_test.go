//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/lanegate/lanegate/e2e/history"
)

// mixedLoad posts jobs, each with a key, until one gateway has taken it, and runs
// `lanegate run`, one after the other.
type mixedLoad struct {
	m     *mixed
	stop  chan struct{}
	ended sync.WaitGroup
	end   func()

	mu       sync.Mutex
	accepted []history.Accepted
	here     *process // the present lanegate run
}

// mixedClasses are posted in the long run as often as they stand here.
var mixedClasses = []string{"s1", "p1", "p2", "s1", "p1", "far", "p1", "long", "p2", "s2"}

// mixedClient gives up on a gateway that does not answer, as clients do.
var mixedClient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 5 * time.Second}}

// mixedLine is how many jobs of a class may wait before no more are posted.
const mixedLine = 4

func newMixedLoad(m *mixed) *mixedLoad {
	l := &mixedLoad{m: m, stop: make(chan struct{})}
	l.end = sync.OnceFunc(func() {
		close(l.stop)
		l.ended.Wait()
	})
	m.t.Cleanup(l.end)
	for c := range 2 {
		l.ended.Go(func() { l.post(c) })
	}
	l.ended.Go(l.runHere)
	return l
}

// pause returns false when the load shall end.
func (l *mixedLoad) pause(d time.Duration) bool {
	select {
	case <-l.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// posting is one job as a client sends it.
type posting struct {
	key, body string
	runAt     time.Time // zero: at once
}

func (l *mixedLoad) post(client int) {
	var posted []posting
	for n := 0; l.pause(time.Duration(50+rand.IntN(200)) * time.Millisecond); n++ {
		class := mixedClasses[(n*7+client)%len(mixedClasses)]
		var open int
		if l.m.db.QueryRow("SELECT count(*) FROM jobs WHERE state = 'queued' AND class = $1", class).Scan(&open) == nil && open > mixedLine {
			continue
		}
		p := posting{key: fmt.Sprintf("%d-%d-%d", client, time.Now().UnixNano(), n)}
		p.body = fmt.Sprintf(`{"class": %q, "idempotency_key": %q}`, class, p.key)
		if rand.IntN(4) == 0 { // by this machine's clock, which is the database's
			p.runAt = time.Now().Add(time.Duration(200+rand.IntN(4000)) * time.Millisecond).Truncate(time.Millisecond)
			p.body = fmt.Sprintf(`{"class": %q, "idempotency_key": %q, "run_at": %q}`, class, p.key, p.runAt.UTC().Format(time.RFC3339Nano))
		}
		if len(posted) > 0 && n%10 == 9 { // as if its answer had been lost
			p = posted[rand.IntN(len(posted))]
		}
		posted = append(posted, p)
		for l.submit(p) {
			if !l.pause(50 * time.Millisecond) {
				return
			}
		}
	}
}

// submit posts to one gateway; it says whether it is to be tried again.
func (l *mixedLoad) submit(p posting) (again bool) {
	addr := l.m.gateway(rand.IntN(mixedGateways)).w.addr
	resp, err := mixedClient.Post("http://"+addr+"/jobs", "application/json", jsonBody(p.body))
	if err != nil {
		return true
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return true
	}
	var j job
	switch resp.StatusCode {
	case http.StatusCreated, http.StatusOK:
		if err := json.Unmarshal(text, &j); err != nil || j.ID == "" {
			l.m.t.Errorf("POST /jobs: %d %s", resp.StatusCode, text)
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.accepted = append(l.accepted, history.Accepted{Key: p.key, Job: j.ID, RunAt: p.runAt})
		return false
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if resp.Header.Get("Retry-After") == "" {
			l.m.t.Errorf("POST /jobs: %d without Retry-After: %s", resp.StatusCode, text)
		}
		return true
	}
	l.m.t.Errorf("POST /jobs %s: %d %s", p.body, resp.StatusCode, text)
	return false
}

// runHere puts `lanegate run` in front of a command, again and again.
func (l *mixedLoad) runHere() {
	for l.pause(time.Duration(500+rand.IntN(1500)) * time.Millisecond) {
		p := l.m.spawn("run", "--class", "spot", "--url", "http://"+l.m.front.addr, "--beat", "200ms", "--kill-grace", "300ms",
			"--", "env", "EVENTS="+l.m.path("events"), "RUNS="+l.m.path("runs"), "TAKES=0.05", "TICKS=2", "sh", l.m.path("mixed.sh"))
		l.mu.Lock()
		l.here = p
		l.mu.Unlock()
		select {
		case <-p.done:
		case <-l.stop:
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			<-p.done
		}
	}
}

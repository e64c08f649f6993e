//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/e2e/history"
)

const (
	fleetClasses = 20
	fleetSerial  = 4 // of them in serial
	fleetKill    = 2 * time.Second
	// fleetOpen is how many jobs may be open before the posting pauses.
	fleetOpen = 400
)

// fleetJob is a run that only says when it was there.
const fleetJob = `#!/bin/sh
note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"; }
note start
note end
`

// bigFleet is three replicas and twenty classes, and one load that is posted twice:
// once while nothing happens, once while replicas are killed.
type bigFleet struct {
	*watched
	rng   *rand.Rand
	jobs  int
	every time.Duration // one job

	told     sync.Mutex
	accepted []history.Accepted   // guarded by told
	asked    map[string]time.Time // by job: when its client first asked for it; guarded by told
}

// TestChaosFleet: three replicas, twenty classes, 10,000 jobs (300 in make test),
// and a replica killed every two seconds. Every job ends, every bound holds, and
// what the kills add to the waits is measured against the same load without them.
func TestChaosFleet(t *testing.T) {
	jobs := 300
	if heavy(t) {
		jobs = 10000
	}
	f := newBigFleet(t, jobs)
	calm := f.run("calm", false)
	killed := f.run("killed", true)
	t.Logf("%d jobs each; wait from the client's first request to the first start, and time until the success:", f.jobs)
	t.Logf("%-22s %12s %12s %12s %12s %12s", "", "wait p50", "wait p99", "wait max", "done p50", "done p99")
	for _, r := range []struct {
		name string
		l    latencies
	}{{"without kills", calm}, {"a replica every 2 s", killed}} {
		t.Logf("%-22s %12v %12v %12v %12v %12v", r.name, at(r.l.wait, 50), at(r.l.wait, 99), at(r.l.wait, 100), at(r.l.done, 50), at(r.l.done, 99))
	}
	t.Logf("added: p50 %v (× %.2f), p99 %v (× %.2f)", at(killed.wait, 50)-at(calm.wait, 50), float64(at(killed.wait, 50))/float64(at(calm.wait, 50)),
		at(killed.wait, 99)-at(calm.wait, 99), float64(at(killed.wait, 99))/float64(at(calm.wait, 99)))
	if f.total["kills"] < 3 || f.total["attempts lost"] == 0 && f.jobs > 1000 {
		t.Errorf("%d kills, %d attempts lost: too few to show anything", f.total["kills"], f.total["attempts lost"])
	}
}

func newBigFleet(t *testing.T, jobs int) *bigFleet {
	t.Helper()
	f := &bigFleet{watched: newWatched(t), rng: chaosRand(t), jobs: jobs, every: 50 * time.Millisecond}
	f.write("fleet.sh", fleetJob)
	var classes strings.Builder
	var parallel []string
	for i := range fleetClasses {
		fmt.Fprintf(&classes, "  c%02d: {run: {kind: exec, command: quick}, units: {db: %d}}\n", i, 1+i%3)
		if i >= fleetSerial {
			parallel = append(parallel, fmt.Sprintf("c%02d", i))
		}
	}
	f.fleetConfigured("log: {level: warn}\nresources:\n  db: {capacity: 40, pool: true}\ncommands:\n  quick: {argv: [sh, $DIR/fleet.sh], env: {EVENTS: $DIR/events}}\nclasses:\n" + classes.String())
	f.join(f.launchNode(), f.launchNode(), f.launchNode()) // one of them migrates
	f.must("PUT", "/lanes/parallel?accept=width", `{"width": 12, "allow_overcommit": true, "order": "fair"}`, nil)
	f.promote(lanegate.LaneParallel, 4, parallel...)
	f.watchDatabase()
	return f
}

// latencies are sorted.
type latencies struct{ wait, done []time.Duration }

// at is the p-th percentile.
func at(sorted []time.Duration, p int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Round(time.Millisecond)
}

// run posts all jobs and returns once all of them are final and judged.
func (f *bigFleet) run(name string, kills bool) latencies {
	f.t.Helper()
	f.beginEpoch()
	f.accepted, f.asked = nil, map[string]time.Time{}
	began := time.Now()
	var posting sync.WaitGroup
	for c := range 3 {
		posting.Go(func() { f.post(name, c) })
	}
	posted := make(chan struct{})
	go func() {
		posting.Wait()
		close(posted)
	}()
	tick := time.NewTicker(fleetKill)
	defer tick.Stop()
	for !ended(posted) {
		select {
		case <-posted:
		case <-tick.C:
			if kills {
				f.kill()
			}
		}
	}
	f.eventually(3*time.Minute, "every job is final", func() bool { return f.open() == 0 })
	f.t.Logf("%s: %d jobs in %v", name, f.jobs, time.Since(began).Round(time.Second))
	h := f.collect(f.accepted)
	h.PastTheGate = true
	f.judge(name, h)
	return f.latencies()
}

// open counts what is not final, -1 when that can't be told.
func (f *bigFleet) open() (n int) {
	if f.db.QueryRow("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')").Scan(&n) != nil {
		return -1
	}
	return n
}

// post is one of three clients. Of a hundred jobs four are for serial.
func (f *bigFleet) post(name string, client int) {
	for n := client; n < f.jobs; n += 3 {
		for n%50 < 3 && f.open() > fleetOpen {
			<-time.After(100 * time.Millisecond)
		}
		class := fleetSerial + n%(fleetClasses-fleetSerial)
		if n%25 == 0 {
			class = n / 25 % fleetSerial
		}
		key := fmt.Sprintf("%s-%d", name, n)
		body := fmt.Sprintf(`{"class": "c%02d", "idempotency_key": %q}`, class, key)
		first := time.Now()
		for try := 0; !f.submit(key, body, n+try, first); try++ {
			<-time.After(20 * time.Millisecond)
		}
		<-time.After(time.Until(first.Add(3 * f.every)))
	}
}

// submit says whether a replica has taken the job.
func (f *bigFleet) submit(key, body string, turn int, first time.Time) bool {
	nodes := f.members()
	resp, err := mixedClient.Post(nodes[turn%len(nodes)].w.url("/jobs"), "application/json", jsonBody(body))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var j job
	if err != nil || resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK || json.Unmarshal(text, &j) != nil {
		return false
	}
	f.told.Lock()
	defer f.told.Unlock()
	f.accepted = append(f.accepted, history.Accepted{Key: key, Job: j.ID})
	f.asked[j.ID] = first
	return true
}

// kill kills a replica and starts another in its place, to which clients are sent
// at once.
func (f *bigFleet) kill() {
	f.t.Helper()
	n := f.rng.IntN(len(f.members()))
	f.members()[n].kill()
	f.total["kills"]++
	next := f.launchNode()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[n] = next
}

func (f *bigFleet) latencies() (l latencies) {
	f.t.Helper()
	rows, err := f.db.Query("SELECT j.id, a.started_at, j.finished_at FROM jobs AS j JOIN attempts AS a ON a.job_id = j.id AND a.number = 1 WHERE j.state = 'succeeded'")
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var started, finished time.Time
		if err := rows.Scan(&id, &started, &finished); err != nil {
			f.t.Fatal(err)
		}
		if first, ok := f.asked[id]; ok {
			l.wait, l.done = append(l.wait, started.Sub(first)), append(l.done, finished.Sub(first))
		}
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(err)
	}
	if len(l.wait) < f.jobs {
		f.t.Fatalf("%d of %d jobs succeeded", len(l.wait), f.jobs)
	}
	slices.Sort(l.wait)
	slices.Sort(l.done)
	return l
}

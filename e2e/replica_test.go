//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// Three replicas under load, one after the other killed without warning: every
// accepted job ends, serial never has two at once, the other lane no more than its
// width, and each attempt has one outcome. Their pools are as small as may be (C71).
func TestReplicasKill9(t *testing.T) {
	f := newFleet(t, "--database-connections", "6")
	f.fleetConfigured(fleetConfig)
	f.join(f.launchNode(), f.launchNode(), f.launchNode()) // one of them migrates
	f.promote(lanegate.LaneParallel, 2, "wide")
	rng := chaosRand(t)
	load := f.load("one", "wide", "one")
	for range 4 {
		<-time.After(time.Duration(500+rng.IntN(1500)) * time.Millisecond)
		g := f.members()[rng.IntN(3)]
		f.leave(g)
		g.kill()
		f.node()
	}
	load.settle()
}

// A replica that is killed in the middle of a run: the job starts elsewhere a lease and
// a reaper's look after its last beat (C01, C03).
func TestReplicaDiesWithItsRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(fleetConfig)
	f.node()
	f.node()
	id := f.inFlight("slow")
	g := f.holder()
	f.leave(g)
	g.kill()
	l := leased{db: f.postgres(), lease: 6 * time.Second, look: 200 * time.Millisecond, slow: newStalls(t)}
	if j := f.final(id, 60*time.Second); j.State != "succeeded" || j.Attempts != 2 {
		t.Errorf("%s after %d attempts, want success by the second", j.State, j.Attempts)
	}
	l.freed(f.world, id, id, 2)
	if list := f.attempts(id); list[0].Outcome != "lost" {
		t.Errorf("attempt 1 = %s, want lost", list[0].Outcome)
	}
	f.checkEvents([]string{id}, 2)
}

// A replica frozen beyond its lease: its guard ends the run before anybody else
// starts the job, and what it writes when it wakes changes nothing and is counted.
func TestReplicaFrozenBeyondItsLease(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(fleetConfig)
	f.node()
	f.node()
	id := f.inFlight("slow")
	g := f.holder()
	f.leave(g)
	g.signal(syscall.SIGSTOP)
	if j := f.final(id, 60*time.Second); j.State != "succeeded" || j.Attempts != 2 {
		t.Errorf("%s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	g.signal(syscall.SIGCONT)
	f.eventually(20*time.Second, "the late write is counted", func() bool { return metricOf(g.w, "lanegate_late_writes_total") >= 1 })
	if list := f.attempts(id); len(list) != 2 || list[0].Outcome != "lost" || list[1].Outcome != "succeeded" {
		t.Errorf("attempts after the late write: %+v", list)
	}
	f.eventually(20*time.Second, "the woken replica works again", func() bool { return g.w.status("GET", "/readyz", "") == http.StatusOK })
	f.checkEvents([]string{id}, 2)
}

// PostgreSQL restarted under load, and then closed to writes as after a failover:
// clients are told to come again, and everything works again without a restart
// (C32, C69). A run that ends meanwhile keeps its outcome.
func TestReplicasOutliveTheirDatabase(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(fleetConfig + `  through: {run: {kind: exec, command: through}}
`)
	f.write(f.conf, withCommand(f.world, "through", `{argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "2"}}`))
	f.node()
	f.node()
	through := f.inFlight("through")
	load := f.load("one")
	load.accepted(through)
	if err := f.pg.Stop(); err != nil {
		t.Fatal(err)
	}
	f.refusesJobs()
	f.eventually(20*time.Second, "the run ends while the database is away", func() bool { return f.noted("end", through, 1) })
	if err := f.pg.Start(); err != nil {
		t.Fatal(err)
	}
	f.takesJobs()
	if j := f.final(through, 30*time.Second); j.State != "succeeded" || j.Attempts != 1 {
		t.Errorf("the run that ended meanwhile: %s after %d attempts", j.State, j.Attempts)
	}
	f.readOnly("on")
	f.refusesJobs()
	f.readOnly("off")
	f.takesJobs()
	load.settle()
}

// readOnly makes every new transaction of the server read-only, or not.
func (f *fleet) readOnly(v string) {
	f.t.Helper()
	for _, q := range []string{"ALTER SYSTEM SET default_transaction_read_only = " + v, "SELECT pg_reload_conf()"} {
		// In a session that was told before, which a server closed to writes still serves.
		if err := f.pg.Exec(context.Background(), "postgres", q); err != nil {
			f.t.Fatal(err)
		}
	}
}

// refusesJobs waits until every member says 503 with Retry-After, readiness too.
func (f *fleet) refusesJobs() {
	f.t.Helper()
	for _, g := range f.members() {
		f.eventually(20*time.Second, "jobs are refused and readiness says no", func() bool {
			if g.w.status("GET", "/readyz", "") != http.StatusServiceUnavailable {
				return false
			}
			resp, err := client.Post(g.w.url("/jobs"), "application/json", jsonBody(`{"class": "one"}`))
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
		})
		if g.w.status("GET", "/livez", "") != http.StatusOK {
			f.t.Error("liveness follows the database")
		}
	}
}

// takesJobs waits until every member takes jobs again, within 30 seconds.
func (f *fleet) takesJobs() {
	f.t.Helper()
	for _, g := range f.members() {
		f.within(30*time.Second, "jobs are taken again", func() bool {
			return g.w.status("POST", "/jobs", `{"class": "one"}`) == http.StatusCreated && g.w.status("GET", "/readyz", "") == http.StatusOK
		})
	}
}

// A process with another lease would judge the others wrongly: it does not start.
func TestReplicaWithAnotherLease(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(fleetConfig)
	f.node()
	other := f.launchNode("--lease", "20s")
	select {
	case <-other.done:
	case <-time.After(20 * time.Second):
		t.Fatal("it runs beside the others")
	}
	if other.err == nil || !f.log.contains("the lease is 20s here and 6s for the processes on this database") {
		t.Errorf("it ended with %v", other.err)
	}
}

// C14: two schedulers that post the same key to two replicas in the same moment
// get one job, each time.
func TestReplicasShareKeys(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(fleetConfig)
	nodes := []*gateway{f.node("--no-workers"), f.node("--no-workers")}
	for n := range 500 {
		body := fmt.Sprintf(`{"class": "one", "idempotency_key": "same-%d"}`, n)
		var got [2]job
		var status [2]int
		var posts sync.WaitGroup
		for i, g := range nodes {
			posts.Go(func() {
				var text []byte
				var err error
				if status[i], text, err = g.w.do("POST", "/jobs", body); err == nil {
					_ = json.Unmarshal(text, &got[i]) // an id that is missing is found below
				}
			})
		}
		posts.Wait()
		if got[0].ID == "" || got[0].ID != got[1].ID || status[0]+status[1] != http.StatusCreated+http.StatusOK {
			t.Fatalf("key %d: jobs %q and %q, %v", n, got[0].ID, got[1].ID, status)
		}
	}
}

// A verification run is carried out by the one replica that has all its members'
// commands, whoever was asked for it; the other one does not touch it (C37).
func TestReplicasVerification(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(verifiedConfig("here", "there"))
	asked := f.node()
	f.conf = "other.yaml"
	f.fleetConfigured(verifiedConfig("there", "here"))
	has := f.node()
	f.ready()
	var v verification
	asked.w.must("POST", "/verification-runs", `{"source": "payloads", "rounds": 1, "members": [{"class": "there", "copies": 2}]}`, &v)
	if v = f.verdict(v.ID, time.Minute); v.Verdict != "passed" {
		t.Fatalf("verdict %s: %s %+v", v.Verdict, v.Sentence, v.Reasons)
	}
	if n := len(childrenOf(asked.cmd.Process.Pid)); n > 0 {
		t.Errorf("%d runs at the replica without the command", n)
	}
	if status, text, err := asked.w.do("POST", "/verification-runs", `{"source": "payloads", "rounds": 1, "members": [{"class": "here"}, {"class": "there"}]}`); err != nil || status != http.StatusConflict {
		t.Errorf("a run that no single replica can carry out: %d %s %v", status, text, err)
	}
	j := has.w.submit("here", "")
	if j = f.final(j.ID, 20*time.Second); j.State != "succeeded" {
		t.Errorf("a job of the other replica's command: %s", j.State)
	}
}

// verifiedConfig declares two classes and the command of the first.
func verifiedConfig(own, other string) string {
	class := "  %[1]s: {run: {kind: exec, command: %[1]s}, units: {}, repeatable: true}\n"
	return "drain: 300ms\ncommands:\n  " + own + ": {argv: [sh, -c, 'sleep 0.5']}\nclasses:\n" + fmt.Sprintf(class, own) + fmt.Sprintf(class, other)
}

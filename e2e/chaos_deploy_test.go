//go:build linux

package e2e

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// deploys is one replica after the other under load: a new process serves, then the
// old one stops.
type deploys struct {
	*fleet
	rng  *rand.Rand
	load *fleetLoad
	cut  []string // jobs whose first run a deploy cut off
	kept []string // jobs whose run a deploy waited for
}

// TestChaosRollingDeploys: deploys without a break, each with a run under way, which
// the old process cuts off (a short drain time) and waits for (--drain wait) in
// turns. Nothing is lost and nothing overlaps; what is cut off goes back to its
// place, what is waited for ends once, while the next process serves.
func TestChaosRollingDeploys(t *testing.T) {
	n := 5
	if heavy(t) {
		n = chaosRounds(t)
	}
	d := &deploys{fleet: newFleet(t), rng: chaosRand(t)}
	d.fleetConfigured(fleetConfig + "  steady: {run: {kind: exec, command: steady}, units: {db: 1}}\n")
	d.write(d.conf, withCommand(d.world, "steady", `{argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, HOLD: $DIR/go}}`))
	waits := d.rng.IntN(2) == 0
	d.node(drainOf(waits)...)
	d.promote(lanegate.LaneParallel, 2, "wide")
	d.load = d.fleet.load("one", "wide", "one")
	for range n {
		d.deploy(waits, !waits)
		waits = !waits
		<-time.After(time.Duration(100+d.rng.IntN(900)) * time.Millisecond)
	}
	d.load.settle()
	for _, id := range d.cut {
		d.wantOutcomes(id, "interrupted", "succeeded")
	}
	for _, id := range d.kept {
		d.wantOutcomes(id, "succeeded")
	}
	t.Logf("%d deploys, %d runs cut off and %d waited for", n, len(d.cut), len(d.kept))
}

func drainOf(waits bool) []string {
	if waits {
		return []string{"--drain", "wait"}
	}
	return []string{"--drain", "300ms"}
}

// deploy replaces the only replica, which waits for its runs or does not, by one that
// will or will not.
func (d *deploys) deploy(waits, next bool) {
	d.t.Helper()
	old := d.members()[0]
	class := "slow"
	if waits {
		class = "steady"
	}
	id := d.inFlight(class)
	d.load.accepted(id)
	d.node(drainOf(next)...)
	d.leave(old)
	old.signal(syscall.SIGTERM)
	wide := d.submit("wide", "").ID // the new one serves while the old one drains
	d.load.accepted(wide)
	if j := d.final(wide, 20*time.Second); j.State != "succeeded" {
		d.t.Errorf("a job beside the drain: %s: %s", j.State, j.Reason)
	}
	if waits {
		if ended(old.done) || !d.noted("start", id, 1) || d.job(id).State != "running" {
			d.t.Fatalf("the old process did not wait for its run")
		}
		d.write("go."+id, "")
	}
	select {
	case <-old.done:
	case <-time.After(time.Minute):
		d.t.Fatalf("the old process (%v) is still there a minute after SIGTERM", drainOf(waits))
	}
	if old.err != nil {
		d.t.Fatalf("the old process (%v) ended with %v", drainOf(waits), old.err)
	}
	if waits {
		d.kept = append(d.kept, id)
	} else {
		d.cut = append(d.cut, id)
	}
}

func (d *deploys) wantOutcomes(id string, want ...string) {
	d.t.Helper()
	var got []string
	for _, a := range d.attempts(id) {
		got = append(got, a.Outcome)
	}
	if !slices.Equal(got, want) {
		d.t.Errorf("the attempts of job %s ended as %v, want %v", id, got, want)
	}
}

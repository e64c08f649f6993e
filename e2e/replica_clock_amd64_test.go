//go:build linux

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// C52: two replicas whose wall clocks are twenty minutes apart. Jobs with a run_at
// start neither before it nor long after it by the database's clock, whichever
// replica took them; nobody is found dead; a run's duration is what it took.
func TestReplicasWithWrongClocks(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.fleetConfigured(fleetConfig + "  nap: {run: {kind: exec, command: nap}, units: {db: 1}}\n")
	f.write(f.conf, withCommand(f.world, "nap", `{argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.2"}}`))
	f.bin = skewedBinary(t)
	for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		f.env = []string{fmt.Sprintf("%s=%d", skewEnv, int(off.Seconds()))}
		g := f.node()
		resp, err := client.Get(g.w.url("/livez"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if at, err := time.Parse(time.RFC1123, resp.Header.Get("Date")); err != nil || (time.Until(at)-off).Abs() > time.Minute {
			t.Fatalf("the replica's clock says %v (%v), it was to be %v off", at, err, off)
		}
	}
	slow := newStalls(t)
	due := map[string]time.Time{}
	for n := range 6 { // by this machine's clock, which is the database's
		at := time.Now().Add(1500 * time.Millisecond).Truncate(time.Millisecond)
		f.addr = f.members()[n%2].w.addr
		due[f.submit("nap", fmt.Sprintf(`, "run_at": %q`, at.UTC().Format(time.RFC3339Nano))).ID] = at
	}
	for id, at := range due {
		f.endedBy(id, "succeeded")
		a := f.attempts(id)[0]
		if late := a.StartedAt.Sub(at); late < 0 || late > 10*time.Second+slow.total() {
			t.Errorf("job %s was to start at %v and started %v after that", id, at, late)
		}
		if took := a.EndedAt.Sub(a.StartedAt); took < 200*time.Millisecond || took > time.Minute {
			t.Errorf("the run of job %s, of 0.2 s, took %v by the database's clock", id, took)
		}
	}
	// The lease is over for whoever would judge beats by a clock of its own.
	<-time.After(time.Until(latest(due).Add(7 * time.Second)))
	f.ran(f.submit("one", "").ID, 20*time.Second)
	if f.log.contains("declared dead") {
		t.Error("a replica was found dead")
	}
	f.checkEvents(nil, 0)
}

func latest(times map[string]time.Time) (last time.Time) {
	for _, at := range times {
		if at.After(last) {
			last = at
		}
	}
	return last
}

//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// A job that takes twenty times the lease (four times in make test) and twenty
// times the time for which a queue hides a message runs once: neither is a limit
// for a run, nor are the 12 hours for which a message can stay hidden: SQS refuses
// every call that would extend it.
func TestChaosJobOfManyLeases(t *testing.T) {
	lease, leases := 6*time.Second, 4
	if heavy(t) {
		leases = 20
	}
	takes := time.Duration(leases) * lease
	visibility := time.Second
	if takes < 20*visibility {
		t.Fatalf("the job takes %v, the queue hides a message for %v", takes, visibility)
	}
	server := sqstest.New(t)
	proxy := sqstest.NewProxy(t, server)
	for _, action := range []string{"ChangeMessageVisibility", "ChangeMessageVisibilityBatch"} {
		proxy.Inject(sqstest.TwelveHours(action))
	}
	f := newFleet(t, "--sqs-visibility", visibility.String())
	f.fleetConfigured(strings.Replace(sqsConfig(f, server), server.URL, proxy.URL, 1))
	f.write(f.conf, withCommand(f.world, "long", fmt.Sprintf(`{argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "%g"}}`, takes.Seconds()))+
		"  long: {run: {kind: exec, command: long}, units: {}}\n")
	f.queues("create")
	f.node()
	f.node()
	began := time.Now()
	id := f.submit("long", "").ID
	if j := f.final(id, takes+30*time.Second); j.State != "succeeded" || j.Attempts != 1 {
		t.Errorf("%s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	if took := time.Since(began); took < takes {
		t.Errorf("it took %v, it was to take %v", took, takes)
	}
	for _, kind := range []string{"start", "gstart", "end", "gend"} {
		if n := f.recorded(id, kind); n != 1 {
			t.Errorf("its record has %d lines %q", n, kind)
		}
	}
}

// PostgreSQL away for five leases (two in make test; C30): no job is lost. A run
// that ends before its own fence keeps its outcome, which is written once the
// database is back. Another is stopped by its fence before the lease is over, though
// nobody could take it over; it is recorded as interrupted and started again once.
func TestChaosDatabaseAwayForLeases(t *testing.T) {
	leases := 2
	if heavy(t) {
		leases = 5
	}
	f := newFleet(t)
	f.fleetConfigured(fleetConfig + "  through: {run: {kind: exec, command: through}, units: {db: 1}}\n")
	f.write(f.conf, withCommand(f.world, "through", `{argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "2"}}`))
	f.node()
	f.node()
	f.promote("parallel", 1, "through")
	id := f.inFlight("slow")
	waits := f.submitMany("one", 3) // behind it
	through := f.inFlight("through")
	began := time.Now()
	if err := f.pg.Stop(); err != nil {
		t.Fatal(err)
	}
	f.eventually(5*time.Second, "the short run ends while the database is away", func() bool { return f.noted("end", through, 1) })
	f.within(time.Until(began.Add(6500*time.Millisecond)), "the run has ended before the lease is over", func() bool {
		return !slices.ContainsFunc(f.members(), func(g *gateway) bool { return len(childrenOf(g.cmd.Process.Pid)) > 0 })
	})
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("the run was ended after %v, with a lease of 6 s", took)
	}
	<-time.After(time.Until(began.Add(time.Duration(leases) * 6 * time.Second)))
	if err := f.pg.Start(); err != nil {
		t.Fatal(err)
	}
	for _, w := range waits {
		if j := f.final(w, 40*time.Second); j.State != "succeeded" {
			t.Errorf("a job that waited: %s after %d attempts: %s", j.State, j.Attempts, j.Reason)
		}
	}
	f.endedBy(id, "interrupted", "succeeded")
	f.endedBy(through, "succeeded")
	f.checkEvents(append(waits, id, through), len(waits)+3)
}

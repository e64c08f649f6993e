//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// mixed is all of lanegate at once: three gateways, each with a way of its own to
// one PostgreSQL database, an SQS server behind a proxy, agents on ways of their
// own, and a load. It stays over many rounds.
type mixed struct {
	*watched
	server *sqstest.Server
	sqs    *sqstest.Proxy
	front  *wire // to any gateway, as a load balancer

	mu      sync.Mutex
	slots   []*slot // guarded by mu: which process a slot has
	agents  []*agentSlot
	leaving []*gateway // they drain; only the test's goroutine

	load *mixedLoad
}

// slot is a place for one gateway.
type slot struct {
	n    int
	wire *wire    // to the database
	g    *gateway // the present process; guarded by mixed.mu
	down bool     // there shall be none; only the test's goroutine
}

type agentSlot struct {
	n    int
	wire *wire // to the front
	p    *process
	down bool
}

// cut is a time in which a process could not reach the database.
type cut struct {
	pid      int
	from, to time.Time
}

const (
	mixedLease    = 6 * time.Second
	mixedGateways = 3
	mixedAgents   = 2
)

// mixedScript records its start, its end and in between that it lives. It holds a
// lock that all its processes inherit, and looks for others that do the same.
const mixedScript = `#!/bin/sh
note() { echo "$1 $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)$2" >>"$EVENTS"; }
note start
[ -z "$DEAF" ] || trap '' TERM
me=$LANEGATE_JOB_ID.$LANEGATE_ATTEMPT
exec 9>>"$RUNS/.$me"
flock 9
mv "$RUNS/.$me" "$RUNS/$me"
for f in "$RUNS"/*; do
	[ "$f" != "$RUNS/$me" ] || continue
	flock -s -n "$f" true || note beside " ${f##*/}"
done
ticks=${TICKS:-0}
[ -z "$FIRST" ] || [ "$LANEGATE_ATTEMPT" != 1 ] || [ -n "$LANEGATE_VERIFICATION" ] || ticks=$FIRST
setsid sleep "$TAKES" & # it leaves the process group and keeps the lock
while [ "$ticks" -gt 0 ]; do
	sleep 0.2
	note alive
	ticks=$((ticks - 1))
done
wait
[ -z "$LANEGATE_VERIFICATION" ] || sleep 0.8
note end
rm -f "$RUNS/$me"
echo '{"ok": true}'
`

const mixedConfig = `
doorbell: sqs
sqs: {prefix: mix-, endpoint: "%s", allow_http: true, wait: 1s, visibility: 2s}
database_connections: 8
log: {level: warn}
commands:
  short: {argv: [sh, $DIR/mixed.sh], env: {EVENTS: $DIR/events, RUNS: $DIR/runs, TAKES: "0.03"}}
  long: {argv: [sh, $DIR/mixed.sh], env: {EVENTS: $DIR/events, RUNS: $DIR/runs, TAKES: "0.1", FIRST: "45"}}
  deaf: {argv: [sh, $DIR/mixed.sh], env: {EVENTS: $DIR/events, RUNS: $DIR/runs, TAKES: "0.1", FIRST: "5", DEAF: "1"}}
`

// mixedDeclared are the classes. They and the resource are declared over the API,
// which then may change them.
var mixedDeclared = map[string]string{
	"s1":   `{"run": {"kind": "exec", "command": "short"}, "units": {"db": 1}}`,
	"s2":   `{"run": {"kind": "exec", "command": "deaf"}, "units": {"db": 2}}`,
	"p1":   `{"run": {"kind": "exec", "command": "short"}, "units": {"db": 1}, "repeatable": true}`,
	"p2":   `{"run": {"kind": "exec", "command": "deaf"}, "units": {"db": 2}, "repeatable": true}`,
	"long": `{"run": {"kind": "exec", "command": "long"}, "units": {"db": 1}, "repeatable": true}`,
	"far":  `{"run": {"kind": "agent", "command": "far"}, "units": {"db": 1}}`,
	"spot": `{"run": {"kind": "agent", "command": "spot"}, "units": {"db": 1}}`,
}

// parallelClasses are proven with two copies each.
var parallelClasses = []string{"p1", "p2", "long"}

// newMixed starts everything, proves and promotes the parallel classes.
func newMixed(t *testing.T) *mixed {
	t.Helper()
	skewedBinary(t) // now, as it takes its time
	m := &mixed{watched: newWatched(t), server: sqstest.New(t)}
	m.sqs = sqstest.NewProxy(t, m.server)
	if err := os.Mkdir(m.path("runs"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.write("mixed.sh", mixedScript)
	m.fleetConfigured(fmt.Sprintf(mixedConfig, m.sqs.URL))
	m.write("agent.yaml", expand(m.world, `
kill_grace: 300ms
beat: 200ms
drain: 300ms
commands:
  far: {argv: [sh, $DIR/mixed.sh], env: {EVENTS: $DIR/events, RUNS: $DIR/runs, TAKES: "0.1", FIRST: "3"}}
`))
	m.queues("create")
	m.front = newWire(t, m.dialAny)
	m.addr = m.front.addr
	for n := range mixedGateways {
		m.slots = append(m.slots, &slot{n: n, wire: newWire(t, func() (net.Conn, error) { return net.Dial("unix", m.pg.Socket()) })})
		m.launchSlot(n, launchOf{})
		if n == 0 {
			m.slots[0].g.accepts() // it migrates
		}
	}
	m.allReady()
	m.must("PUT", "/resources/db", `{"capacity": 8, "pool": true}`, nil)
	for id, class := range mixedDeclared {
		m.must("PUT", "/job-classes/"+id, class, nil)
	}
	m.prove()
	for n := range mixedAgents {
		m.agents = append(m.agents, &agentSlot{n: n, wire: newWire(t, func() (net.Conn, error) { return net.Dial("tcp", m.front.addr) })})
		m.launchAgent(n)
	}
	m.watchDatabase()
	m.beginEpoch()
	m.load = newMixedLoad(m)
	return m
}

// trialOf asks for an experiment with two copies of each class.
func trialOf(classes ...string) string {
	var members []string
	for _, c := range classes {
		members = append(members, fmt.Sprintf(`{"class": %q, "copies": 2}`, c))
	}
	return `{"source": "payloads", "rounds": 1, "max_hold": "30s", "criteria": {"min_overlap": 0.01, "max_slowdown": 50}, "members": [` + strings.Join(members, ",") + `]}`
}

// proveAgain mends what an experiment among the faults may have refuted: a run that
// was frozen or killed in it was no good run.
func (m *mixed) proveAgain() {
	m.t.Helper()
	for _, c := range parallelClasses {
		path := "/job-classes/" + c + "/promote?accept=width"
		if status, text := m.try("PATCH", path, `{"max_in_flight": 2}`); status != http.StatusOK {
			m.t.Logf("class %s is proven again: %s", c, text)
			m.total["proven again"]++
			m.mustPass(trialOf(c))
			m.must("PATCH", path, `{"max_in_flight": 2}`, nil)
		}
	}
}

// prove runs a verification and promotes by it.
func (m *mixed) prove() {
	m.t.Helper()
	m.mustPass(trialOf(parallelClasses...))
	m.must("PUT", "/lanes/parallel?accept=width", `{"width": 4, "allow_overcommit": true, "order": "fair"}`, nil)
	for _, c := range parallelClasses {
		m.must("PATCH", "/job-classes/"+c+"/promote?accept=width", `{"max_in_flight": 2}`, nil)
	}
	if err := os.Remove(m.path("events")); err != nil {
		m.t.Fatal(err)
	}
}

// launchOf is how a process is started.
type launchOf struct {
	skew  time.Duration // of its wall clock
	drain string        // "" for the config's
}

// launchSlot starts a gateway without waiting for it.
func (m *mixed) launchSlot(n int, how launchOf) {
	m.t.Helper()
	s := m.slots[n]
	w := *m.world
	w.addr, w.bin, w.env = freeAddress(m.t), "", nil
	if how.skew != 0 {
		w.bin, w.env = skewedBinary(m.t), []string{skewEnv + "=" + strconv.Itoa(int(how.skew.Seconds()))}
	}
	drain := how.drain
	if drain == "" {
		drain = "300ms"
	}
	g := w.launch(slices.Concat(fleetTimes, []string{
		"--listen", w.addr, "--drain", drain,
		"--database", fmt.Sprintf("postgres://postgres@%s/test?sslmode=disable&application_name=gw%d", s.wire.addr, n),
	})...)
	m.mu.Lock()
	defer m.mu.Unlock()
	s.g, s.down = g, false
}

// gateway is the present process of a slot.
func (m *mixed) gateway(n int) *gateway {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slots[n].g
}

func (m *mixed) launchAgent(n int) {
	m.t.Helper()
	a := m.agents[n]
	a.p = m.spawn("agent", "--url", "http://"+a.wire.addr, "--config", m.path("agent.yaml"), "--lanes", "serial,parallel")
	a.down = false
}

// dialAny reaches one of the gateways, those that don't answer included.
func (m *mixed) dialAny() (net.Conn, error) {
	var err error
	for _, n := range rand.Perm(len(m.slots)) {
		var c net.Conn
		if c, err = net.Dial("tcp", m.gateway(n).w.addr); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// keepUp starts again what has ended although nobody meant it to.
func (m *mixed) keepUp() {
	m.t.Helper()
	for _, s := range m.slots {
		if g := m.gateway(s.n); !s.down && ended(g.done) {
			m.total["started again"]++
			m.launchSlot(s.n, launchOf{})
		}
	}
	for _, a := range m.agents {
		if !a.down && ended(a.p.done) {
			m.total["agent started again"]++
			m.launchAgent(a.n)
		}
	}
	m.leaving = slices.DeleteFunc(m.leaving, func(g *gateway) bool { return ended(g.done) })
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// allReady waits until every gateway is.
func (m *mixed) allReady() {
	m.t.Helper()
	m.eventually(2*time.Minute, "all gateways are ready", func() bool {
		m.keepUp()
		for _, s := range m.slots {
			if status, _, err := m.gateway(s.n).w.do("GET", "/readyz", ""); err != nil || status != http.StatusOK {
				return false
			}
		}
		return true
	})
}

// settle lets everything come to rest, and judges what happened since the last time.
func (m *mixed) settle(label string) {
	m.t.Helper()
	m.load.end()
	m.allReady()
	m.calm()
	m.eventually(5*time.Minute, "every job is final and no verification run is open", func() bool {
		m.keepUp()
		var open int
		err := m.db.QueryRow("SELECT (SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')) + (SELECT count(*) FROM verification_runs WHERE ended_at IS NULL)").Scan(&open)
		return err == nil && open == 0 && len(m.leaving) == 0
	})
	h := m.collect(m.load.accepted)
	m.nothingRuns()
	m.judge(label, h)
	m.proveAgain()
	m.beginEpoch()
}

// calm takes back what changes may have left so that something could wait for ever.
func (m *mixed) calm() {
	m.t.Helper()
	for c := range mixedDeclared {
		m.must("POST", "/job-classes/"+c+"/resume", "", nil)
	}
	m.must("PUT", "/resources/db?accept=width", `{"capacity": 8, "pool": true}`, nil)
	m.must("PUT", "/lanes/parallel?accept=width", `{"width": 4, "allow_overcommit": true, "order": "fair"}`, nil)
	for _, c := range parallelClasses { // in serial it would take them long
		m.try("PATCH", "/job-classes/"+c+"/promote?accept=width", `{"max_in_flight": 2}`)
	}
}

// nothingRuns: no process of any run is left, as nothing is in flight.
func (m *mixed) nothingRuns() {
	m.t.Helper()
	files, err := filepath.Glob(m.path("runs/*"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			m.t.Fatal(err)
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			m.t.Errorf("a process of run %s is alive although nothing is in flight", filepath.Base(name))
		}
		if err := errors.Join(file.Close(), os.Remove(name)); err != nil {
			m.t.Fatal(err)
		}
	}
}

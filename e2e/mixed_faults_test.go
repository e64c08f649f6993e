//go:build linux

package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// fault is one kind of bad thing. do begins it; what it returns ends it, nil when
// it is over at once.
type fault struct {
	name string
	// takes is what no other fault may hold meanwhile: "gateway" and "agent" stand
	// for the one that is hit.
	takes string
	// longest is how long it may last; half of them last a third of that at most.
	longest time.Duration
	do      func(m *mixed, r round) (heal func())
}

// round is one draw of the schedule. It depends on the seed only.
type round struct {
	fault  fault
	victim int // which gateway or agent
	lasts  time.Duration
	pause  time.Duration // before the next round
	launch launchOf      // how a process that it starts is started
	number int           // for whatever else there is to choose
}

const beyondLease = mixedLease + 3*time.Second

// faults are all kinds; each has the same chance.
var faults = []fault{
	{"gateway killed", "gateway", 1500 * time.Millisecond, (*mixed).killGateway},
	{"gateway frozen", "gateway", beyondLease, (*mixed).freezeGateway},
	{"gateway frozen inside admission", "gateway", beyondLease, (*mixed).freezeAdmission},
	{"guards killed", "gateway", 0, (*mixed).killGuards},
	{"guard frozen", "gateway", 1500 * time.Millisecond, (*mixed).freezeGuard},
	{"gateway deployed", "gateway", 0, (*mixed).deploy},
	{"gateway with a wrong clock", "gateway", 0, (*mixed).deploySkewed},
	{"gateway's connections broken", "gateway", 0, func(m *mixed, r round) func() { m.slots[r.victim].wire.sever(); return nil }},
	{"gateway refused by the database", "gateway", 3 * time.Second, func(m *mixed, r round) func() { return m.cutOff(m.slots[r.victim].wire.cut, r) }},
	{"gateway cut off from the database", "gateway", beyondLease, func(m *mixed, r round) func() { return m.cutOff(m.slots[r.victim].wire.hush, r) }},
	{"agent killed", "agent", 1500 * time.Millisecond, (*mixed).killAgent},
	{"agent frozen", "agent", beyondLease, (*mixed).freezeAgent},
	{"agent cut off", "agent", beyondLease, (*mixed).cutOffAgent},
	{"lanegate run killed", "", 0, (*mixed).killHere},
	{"database stopped", "database", 2 * time.Second, func(m *mixed, _ round) func() { return m.databaseAway(m.pg.Stop) }},
	{"database crashed", "database", 2 * time.Second, func(m *mixed, _ round) func() { return m.databaseAway(m.pg.Crash) }},
	{"database read-only", "database", 2 * time.Second, func(m *mixed, _ round) func() { m.readOnly("on"); return func() { m.readOnly("off") } }},
	{"all sessions terminated", "database", 0, (*mixed).terminate},
	{"SQS lost", "sqs", 3 * time.Second, (*mixed).loseSQS},
	{"SQS emptied", "sqs", 0, (*mixed).emptySQS},
	{"queue deleted", "sqs", 3 * time.Second, (*mixed).deleteQueue},
	{"SQS slow", "sqs", 4 * time.Second, func(m *mixed, r round) func() { return m.inject(sqstest.Fault{Delay: r.lasts / 4}) }},
	{"SQS throttling", "sqs", 4 * time.Second, func(m *mixed, r round) func() { return m.inject(sqstest.Throttled("")) }},
	{"SQS answers dropped", "sqs", 4 * time.Second, func(m *mixed, r round) func() { return m.inject(sqstest.Fault{Drop: true}) }},
	{"SQS messages doubled", "sqs", 4 * time.Second, func(m *mixed, r round) func() {
		return m.inject(sqstest.Fault{Action: "SendMessageBatch", Twice: true})
	}},
	{"class demoted", "", 0, func(m *mixed, r round) func() {
		m.try("PATCH", "/job-classes/"+parallelClasses[r.number%len(parallelClasses)]+"/demote", `{"reason": "chaos"}`)
		return nil
	}},
	{"class promoted", "", 0, func(m *mixed, r round) func() {
		m.try("PATCH", "/job-classes/"+parallelClasses[r.number%len(parallelClasses)]+"/promote?accept=width", fmt.Sprintf(`{"max_in_flight": %d}`, 1+r.number/7%2))
		return nil
	}},
	{"class verified", "", 0, func(m *mixed, r round) func() {
		m.try("POST", "/verification-runs", trialOf(parallelClasses[r.number%2])) // the long one would take too long
		return nil
	}},
	{"limits changed", "", 0, func(m *mixed, r round) func() {
		m.try("PUT", "/lanes/parallel?accept=width", fmt.Sprintf(`{"width": %d, "allow_overcommit": true, "order": "fair"}`, 1+r.number%4))
		m.try("PUT", "/resources/db?accept=width", fmt.Sprintf(`{"capacity": %d, "pool": true}`, 4+r.number/5%5))
		return nil
	}},
	{"class paused", "class", 2 * time.Second, func(m *mixed, r round) func() {
		path := "/job-classes/" + mixedClasses[r.number%len(mixedClasses)]
		m.try("POST", path+"/pause", "")
		return func() { m.try("POST", path+"/resume", "") }
	}},
	{"job brought forward", "", 0, func(m *mixed, r round) func() { return m.toSome("queued", "run-next", r) }},
	{"job cancelled", "", 0, func(m *mixed, r round) func() { return m.toSome("running", "cancel", r) }},
}

// draw makes one round of a kind.
func draw(rng *rand.Rand, f fault) round {
	r := round{
		fault: f, victim: rng.IntN(mixedGateways), number: rng.IntN(1 << 20),
		pause: time.Duration(200+rng.IntN(2000)) * time.Millisecond,
	}
	if f.takes == "agent" {
		r.victim = rng.IntN(mixedAgents)
	}
	longest := f.longest
	if rng.IntN(2) == 0 {
		longest /= 3
	}
	if longest > 0 {
		r.lasts = time.Duration(rng.Int64N(int64(longest)))
	}
	r.launch = launchOf{skew: time.Duration(rng.IntN(3)-1) * 10 * time.Minute}
	if rng.IntN(3) == 0 {
		r.launch.drain = "wait"
	}
	return r
}

func (r round) String() string {
	return fmt.Sprintf("%s (%d) for %v, then %v", r.fault.name, r.victim, r.lasts.Round(time.Millisecond), r.pause)
}

// try asks for a change that may be refused, or reach nobody.
func (m *mixed) try(method, path, body string) (status int, text []byte) {
	m.t.Helper()
	req, err := http.NewRequest(method, m.url(path), strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := mixedClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	if resp.StatusCode < 300 {
		m.total["changes made"]++
	}
	return resp.StatusCode, text
}

func (m *mixed) killGateway(r round) func() {
	m.slots[r.victim].down = true
	m.gateway(r.victim).kill()
	return func() { m.launchSlot(r.victim, r.launch) }
}

func (m *mixed) freezeGateway(r round) func() {
	g := m.gateway(r.victim)
	g.signal(syscall.SIGSTOP)
	return func() { g.signal(syscall.SIGCONT) }
}

// sqlHolder finds the session that has the admission row and goes on once it may
// read the workers.
const sqlHolder = `
SELECT a.application_name
  FROM pg_stat_activity AS a
  JOIN pg_locks AS row ON row.pid = a.pid AND row.granted AND row.relation = 'admission'::regclass AND row.mode = 'RowShareLock'
  JOIN pg_locks AS next ON next.pid = a.pid AND NOT next.granted AND next.relation = 'workers'::regclass
 LIMIT 1`

// freezeAdmission stops a gateway while it holds the admission row. The others wait
// for that row until the database ends the frozen one's session.
func (m *mixed) freezeAdmission(r round) func() {
	g, name := m.gateway(r.victim), fmt.Sprintf("gw%d", r.victim)
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if m.insideAdmission(g, name) {
			m.total["stood still inside admission"]++
			return func() { g.signal(syscall.SIGCONT) }
		}
	}
	return nil
}

// insideAdmission lets the workers' table be read by nobody until some gateway waits
// for it inside an admission. If that is the one that name says, it is frozen first.
func (m *mixed) insideAdmission(freeze *gateway, name string) (frozen bool) {
	m.t.Helper()
	tx, err := m.db.Begin()
	if err != nil {
		return false // the database is away
	}
	defer func() { _ = tx.Rollback() }() // the database may have gone away
	if _, err := tx.Exec("SET LOCAL lock_timeout = '1s'; LOCK TABLE workers IN ACCESS EXCLUSIVE MODE"); err != nil {
		return false
	}
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); {
		var holder string
		switch err := tx.QueryRow(sqlHolder).Scan(&holder); {
		case errors.Is(err, sql.ErrNoRows):
			<-time.After(time.Millisecond)
		case err != nil || holder != name:
			return false
		default:
			freeze.signal(syscall.SIGSTOP)
			return true
		}
	}
	return false
}

// descendants are all processes below one.
func descendants(pid int) (all []int) {
	for _, child := range childrenOf(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// guards are those of a gateway, once it has any; none if that takes too long.
func (g *gateway) guards() (pids []int) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if pids = childrenOf(g.cmd.Process.Pid); len(pids) > 0 {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	return pids
}

// killGuards kills all guards of a gateway, which ends what they leave.
func (m *mixed) killGuards(r round) func() {
	g := m.gateway(r.victim)
	guards := g.guards()
	left := descendants(g.cmd.Process.Pid)
	for _, pid := range guards {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			m.total["guards that were killed"]++
		}
	}
	m.eventually(10*time.Second, "the gateway has ended what its killed guards left", func() bool {
		return ended(g.done) || !slices.ContainsFunc(left, alive)
	})
	return nil
}

// freezeGuard stops a guard for less than its gateway's lease: who freezes a guard
// and lets its gateway die has taken the fence away.
func (m *mixed) freezeGuard(r round) func() {
	guards := m.gateway(r.victim).guards()
	if len(guards) == 0 {
		return nil
	}
	pid := guards[r.number%len(guards)]
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return nil
	}
	m.total["guards that were frozen"]++
	return func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // it may have ended
}

// deploySkewed replaces a gateway by one whose clock is ten minutes off.
func (m *mixed) deploySkewed(r round) func() {
	if r.launch.skew = 10 * time.Minute; r.number%2 == 0 {
		r.launch.skew = -r.launch.skew
	}
	if skewedBinary(m.t) == binary {
		m.total["clocks not moved on this processor"]++
		m.deploy(r)
		return nil
	}
	m.deploy(r)
	g := m.gateway(r.victim)
	resp, err := mixedClient.Get(g.w.url("/livez"))
	if err != nil {
		return nil // it has no database to start with
	}
	resp.Body.Close()
	says, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		m.t.Fatal(err)
	}
	if off := time.Until(says) - r.launch.skew; off.Abs() > time.Minute {
		m.t.Errorf("the gateway's clock says %v, it was to be %v off", says, r.launch.skew)
	}
	m.total["clocks moved"]++
	return nil
}

// deploy replaces a gateway: the new process serves, then the old one stops.
func (m *mixed) deploy(r round) func() {
	old := m.gateway(r.victim)
	m.launchSlot(r.victim, r.launch)
	next := m.gateway(r.victim)
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline) && !ended(next.done); {
		if status, _, err := next.w.do("GET", "/livez", ""); err == nil && status == http.StatusOK {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	old.signal(syscall.SIGTERM)
	m.leaving = append(m.leaving, old)
	return nil
}

// cutOff takes the database away from a gateway.
func (m *mixed) cutOff(how func(), r round) func() {
	pid, from := m.gateway(r.victim).cmd.Process.Pid, time.Now()
	how()
	return func() {
		m.cuts = append(m.cuts, cut{pid, from, time.Now()})
		m.slots[r.victim].wire.heal()
	}
}

func (m *mixed) killAgent(r round) func() {
	a := m.agents[r.victim]
	a.down = true
	_ = a.p.cmd.Process.Kill() // it may have ended
	<-a.p.done
	return func() { m.launchAgent(r.victim) }
}

func (m *mixed) freezeAgent(r round) func() {
	p := m.agents[r.victim].p.cmd.Process
	_ = p.Signal(syscall.SIGSTOP) // it may have ended
	return func() { _ = p.Signal(syscall.SIGCONT) }
}

func (m *mixed) cutOffAgent(r round) func() {
	a := m.agents[r.victim]
	pid, from := a.p.cmd.Process.Pid, time.Now()
	a.wire.hush()
	return func() {
		m.cuts = append(m.cuts, cut{pid, from, time.Now()})
		a.wire.heal()
	}
}

func (m *mixed) killHere(round) func() {
	m.load.mu.Lock()
	defer m.load.mu.Unlock()
	if p := m.load.here; p != nil && p.cmd.Process.Kill() == nil {
		m.total["lanegate runs that were killed"]++
	}
	return nil
}

func (m *mixed) databaseAway(how func() error) func() {
	if err := how(); err != nil {
		m.t.Fatal(err)
	}
	return func() {
		if err := m.pg.Start(); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *mixed) terminate(round) func() {
	if err := m.pg.Exec(context.Background(), "test", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'gw%'"); err != nil {
		m.t.Fatal(err)
	}
	return nil
}

func (m *mixed) inject(f sqstest.Fault) func() {
	m.sqs.Inject(f)
	return m.sqs.Clear
}

func (m *mixed) loseSQS(round) func() {
	if err := m.server.Stop(); err != nil {
		m.t.Fatal(err)
	}
	return func() {
		if err := m.server.Start(); err != nil {
			m.t.Fatal(err)
		}
		m.queues("create")
	}
}

// mixedQueues are the queues of the lanes.
var mixedQueues = []string{"mix-serial", "mix-parallel"}

// callSQS asks the server itself, past the proxy.
func (m *mixed) callSQS(action, body string) (answer string) {
	m.t.Helper()
	req, err := http.NewRequest("POST", m.server.URL, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20261130/"+sqstest.Region+"/sqs/aws4_request, SignedHeaders=host, Signature=none")
	resp, err := client.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		m.t.Fatalf("%s %s: %d %s %v", action, body, resp.StatusCode, text, err)
	}
	return string(text)
}

// onQueue does something that needs no more than the queue's URL.
func (m *mixed) onQueue(action, name string) {
	m.t.Helper()
	m.callSQS(action, m.callSQS("GetQueueUrl", fmt.Sprintf(`{"QueueName": %q}`, name)))
}

func (m *mixed) emptySQS(round) func() {
	for _, q := range mixedQueues {
		m.onQueue("PurgeQueue", q)
	}
	return nil
}

func (m *mixed) deleteQueue(r round) func() {
	m.onQueue("DeleteQueue", mixedQueues[r.number%len(mixedQueues)])
	return func() { m.queues("create") }
}

// toSome does something to one job of those in a state.
func (m *mixed) toSome(state, verb string, r round) func() {
	var id string
	err := m.db.QueryRow("SELECT id FROM jobs WHERE state = $1 ORDER BY md5(id || $2) LIMIT 1", state, fmt.Sprint(r.number)).Scan(&id)
	if err == nil {
		m.try("POST", "/jobs/"+id+"/"+verb, "")
	}
	return nil
}

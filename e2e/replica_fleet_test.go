//go:build linux

package e2e

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/store/pgtest"
)

// fleet is several gateways on one PostgreSQL database. Its own methods ask the
// newest replica that it knows to be up.
type fleet struct {
	*world
	pg   *pgtest.Server
	args []string // flags of all of them

	mu    sync.Mutex
	nodes []*gateway // those that requests may be sent to; guarded by mu
}

// fleetTimes are the shortest there may be: a dead replica is found after a lease.
var fleetTimes = []string{"--lease", "6s", "--beat", "200ms", "--kill-grace", "300ms"}

func newFleet(t *testing.T, args ...string) *fleet {
	t.Helper()
	return newFleetOn(t, pgtest.New(t), args...)
}

func newFleetOn(t *testing.T, pg *pgtest.Server, args ...string) *fleet {
	t.Helper()
	f := &fleet{world: newWorld(t), pg: pg}
	f.write("slots.sh", slotsScript)
	f.args = slices.Concat(fleetTimes, []string{"--database", f.pg.URL("test")}, args)
	return f
}

// slotsScript takes one of $SLOTS locks, which all its processes inherit: whoever
// finds none free ran beside more others than there may be. Then it is the probe.
const slotsScript = `#!/bin/sh
i=0
while [ $i -lt "$SLOTS" ]; do
	exec 8>>"$EVENTS.slot.$LANEGATE_CLASS.$i"
	flock -n 8 && break
	i=$((i + 1))
done
[ $i -lt "$SLOTS" ] || echo "overlap $LANEGATE_CLASS $LANEGATE_JOB_ID $LANEGATE_ATTEMPT $(date +%s%N)" >>"$EVENTS"
exec sh "$PROBE"
`

// postgres is the test's own way to the database.
func (f *fleet) postgres() *sql.DB {
	f.t.Helper()
	db, err := sql.Open("postgres", f.pg.URL("test"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = db.Close() })
	return db
}

// launchNode starts a replica without waiting for it.
func (f *fleet) launchNode(args ...string) *gateway {
	f.t.Helper()
	w := *f.world
	w.addr = freeAddress(f.t)
	return w.launch(slices.Concat(f.args, []string{"--listen", w.addr}, args)...)
}

// node starts a replica and waits until it accepts requests.
func (f *fleet) node(args ...string) *gateway {
	f.t.Helper()
	g := f.launchNode(args...)
	f.join(g)
	return g
}

// join waits until replicas accept requests and sends them some.
func (f *fleet) join(nodes ...*gateway) {
	f.t.Helper()
	for _, g := range nodes {
		g.accepts()
		f.mu.Lock()
		f.nodes = append(f.nodes, g)
		f.mu.Unlock()
		f.addr = g.w.addr
	}
}

// leave takes a replica off the clients.
func (f *fleet) leave(g *gateway) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = slices.DeleteFunc(f.nodes, func(n *gateway) bool { return n == g })
	f.addr = f.nodes[len(f.nodes)-1].w.addr
}

func (f *fleet) members() []*gateway {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.nodes)
}

// promote moves classes out of serial past the gate.
func (f *fleet) promote(lane string, maxInFlight int, classes ...string) {
	f.t.Helper()
	s, err := store.Open(f.t.Context(), store.Options{Path: f.pg.URL("test")})
	if err != nil {
		f.t.Fatal(err)
	}
	defer s.Close()
	err = s.Change(f.t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		left := slices.Clone(classes)
		for _, c := range cfg.Classes {
			if !slices.Contains(classes, c.ID) {
				continue
			}
			left = slices.DeleteFunc(left, func(id string) bool { return id == c.ID })
			c.Lane, c.MaxInFlight = lane, maxInFlight
			if err := tx.SaveClass(c); err != nil {
				return err
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("classes %v are not there yet: promote them once a node has made them", left)
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// fleetLoad posts jobs to the members in turn, each with a key, until it is ended;
// what one does not take is posted again to the next, as clients do.
type fleetLoad struct {
	f       *fleet
	classes []string
	stop    chan struct{}
	ended   sync.WaitGroup
	end     func()

	mu  sync.Mutex
	ids []string
}

func (f *fleet) load(classes ...string) *fleetLoad {
	l := &fleetLoad{f: f, classes: classes, stop: make(chan struct{})}
	l.end = sync.OnceFunc(func() {
		close(l.stop)
		l.ended.Wait()
	})
	f.t.Cleanup(l.end)
	l.ended.Go(l.run)
	return l
}

func (l *fleetLoad) run() {
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-time.After(150 * time.Millisecond):
		}
		body := fmt.Sprintf(`{"class": %q, "idempotency_key": "k%d"}`, l.classes[n%len(l.classes)], n)
		for try := range 2 {
			nodes := l.f.members()
			status, text, err := nodes[(n+try)%len(nodes)].w.do("POST", "/jobs", body)
			var j job
			if err == nil && (status == http.StatusCreated || status == http.StatusOK) && json.Unmarshal(text, &j) == nil {
				l.accepted(j.ID)
				break
			}
		}
	}
}

func (l *fleetLoad) accepted(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, id)
}

// settle ends the load and judges the whole history.
func (l *fleetLoad) settle() {
	l.f.t.Helper()
	l.end()
	l.f.checkAllDone(l.ids)
}

const fleetConfig = `
drain: 300ms
resources:
  db: {capacity: 3, pool: true}
commands:
  one: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.02"}}
  slow: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, LOCK: $DIR/serial.lock, TAKES: "0.02", FIRST: "600"}}
  wide: {argv: [sh, $DIR/slots.sh], env: {EVENTS: $DIR/events, PROBE: $DIR/probe.sh, SLOTS: "2", TAKES: "0.1"}}
classes:
  one: {run: {kind: exec, command: one}, units: {db: 1}}
  slow: {run: {kind: exec, command: slow}, units: {db: 1}}
  wide: {run: {kind: exec, command: wide}, units: {db: 1}}
`

// fleetConfigured writes the config file; database, times and address are flags.
func (f *fleet) fleetConfigured(text string) {
	f.t.Helper()
	f.write(f.conf, expand(f.world, text))
}

// inFlight submits a job, past those that wait, and returns once it runs.
func (f *fleet) inFlight(class string) (id string) {
	f.t.Helper()
	id = f.submit(class, "").ID
	f.status("POST", "/jobs/"+id+"/run-next", "") // 409: it runs already
	f.running(id, 1)
	return id
}

// holder finds the replica that runs something.
func (f *fleet) holder() *gateway {
	f.t.Helper()
	var g *gateway
	f.eventually(20*time.Second, "a replica runs something", func() bool {
		for _, n := range f.members() {
			if len(childrenOf(n.cmd.Process.Pid)) > 0 {
				g = n
			}
		}
		return g != nil
	})
	return g
}

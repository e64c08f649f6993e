// Package storetest is the contract of service.Store: every implementation runs
// it, so that what holds on one database holds on all.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Run runs the contract. open returns an empty, migrated store of the test's own
// and closes it when the test ends.
func Run(t *testing.T, open func(t *testing.T) service.Store) {
	suites := []struct {
		name  string
		cases []testCase
	}{
		{"Submit", submitCases},
		{"Overlap", overlapCases},
		{"Admit", admitCases},
		{"Outcome", outcomeCases},
		{"Workers", workerCases},
		{"Detached", detachedCases},
		{"Agents", agentCases},
		{"HandOver", handOverCases},
		{"Jobs", jobCases},
		{"Lists", listCases},
		{"Look", lookCases},
		{"Config", configCases},
		{"Logs", logCases},
		{"Prune", pruneCases},
		{"Imports", importCases},
		{"Verification", verificationCases},
		{"Trial", trialCases},
		{"Owner", ownerCases},
		{"Finding", findingCases},
		{"Standing", standingCases},
	}
	for _, suite := range suites {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel() // each case has a store of its own, and mostly waits for it
			for _, c := range suite.cases {
				t.Run(c.name, func(t *testing.T) { c.run(&env{T: t, s: open(t)}) })
			}
		})
	}
}

type testCase struct {
	name string
	run  func(e *env)
}

// env is a test with its store; its helpers stop the test when they fail.
type env struct {
	*testing.T
	s service.Store
}

func (e *env) ctx() context.Context { return e.Context() }

// must stops the test on an error.
func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// wantErr checks that err is the named error.
func (e *env) wantErr(err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("error = %v, want %v", err, want)
	}
}

func equal[T comparable](e *env, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Errorf("%s = %v, want %v", what, got, want)
	}
}

// eventually polls a condition that another clock or goroutine brings about.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			e.Fatalf("%s: did not happen within 10s", what)
		case <-tick.C:
		}
	}
}

// soon is far enough away for what a test does before it. Tests that wait for it
// run beside each other.
func (e *env) soon() time.Time {
	e.Parallel()
	return time.Now().Add(1500 * time.Millisecond)
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// digest is what the commands of the tests' classes and workers are known by.
const digest = "digest-of-true"

// class saves a class that runs the command "true" in serial, changed by edits.
func (e *env) class(id string, edits ...func(c *lanegate.Class)) lanegate.Class {
	e.Helper()
	c := lanegate.Class{ID: id, Lane: lanegate.LaneSerial, MaxInFlight: 1, CommandDigest: digest}
	c.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "true"}
	for _, edit := range edits {
		edit(&c)
	}
	c.ClassSpec = c.WithDefaults()
	c.Fingerprint = lanegate.Fingerprint(c.ClassSpec, c.CommandDigest)
	e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.SaveClass(c) }))
	return c
}

func overlap(o lanegate.Overlap) func(*lanegate.Class) {
	return func(c *lanegate.Class) { c.Overlap = o }
}

func attempts(n int, base time.Duration) func(*lanegate.Class) {
	return func(c *lanegate.Class) {
		c.MaxAttempts = n
		c.Backoff = &lanegate.Backoff{Base: lanegate.Duration(base), Max: lanegate.Duration(base)}
	}
}

func parallel(n int) func(*lanegate.Class) {
	return func(c *lanegate.Class) { c.Lane, c.MaxInFlight = lanegate.LaneParallel, n }
}

func units(u lanegate.Units) func(*lanegate.Class) {
	return func(c *lanegate.Class) { c.Units = u }
}

// width sets the parallel lane's width.
func (e *env) width(n int) {
	e.Helper()
	e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		for _, l := range cfg.Lanes {
			if l.Name == lanegate.LaneParallel {
				l.WidthSetting, l.AllowOvercommit = n, true
				return tx.SaveLane(l)
			}
		}
		return errors.New("there is no parallel lane")
	}))
}

func (e *env) resource(name string, capacity int) {
	e.Helper()
	e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
		return tx.SaveResource(lanegate.Resource{Name: name, Capacity: capacity})
	}))
}

// newJob is a submission of class, changed by edits; its digest covers its payload.
func newJob(class string, edits ...func(n *service.NewJob)) service.NewJob {
	n := service.NewJob{ID: newID(), Class: class, Client: "cron", Payload: []byte(`{}`)}
	for _, edit := range edits {
		edit(&n)
	}
	sum := sha256.Sum256(append([]byte(n.Class+n.LogicalDate), n.Payload...))
	n.Digest = sum[:]
	return n
}

func key(k string) func(*service.NewJob) { return func(n *service.NewJob) { n.Key = k } }
func payload(p string) func(*service.NewJob) {
	return func(n *service.NewJob) { n.Payload = []byte(p) }
}
func day(d string) func(*service.NewJob) { return func(n *service.NewJob) { n.LogicalDate = d } }
func runAt(t time.Time) func(*service.NewJob) {
	return func(n *service.NewJob) { n.RunAt = &t }
}

func (e *env) submit(class string, edits ...func(n *service.NewJob)) service.Submitted {
	e.Helper()
	res, err := e.s.Submit(e.ctx(), newJob(class, edits...))
	e.must(err)
	e.must(res.Err)
	return res
}

// queue submits n plain jobs one after the other and returns their ids.
func (e *env) queue(class string, n int) []string {
	e.Helper()
	var ids []string
	for range n {
		ids = append(ids, e.submit(class).Job.ID)
	}
	return ids
}

// batch submits n jobs in one transaction, with one time, and returns their ids.
func (e *env) batch(class string, n int) []string {
	e.Helper()
	jobs := make([]service.NewJob, n)
	ids := make([]string, n)
	for i := range jobs {
		jobs[i] = newJob(class)
		ids[i] = jobs[i].ID
	}
	res, err := e.s.SubmitBatch(e.ctx(), jobs)
	e.must(err)
	for _, r := range res {
		e.must(r.Err)
	}
	return ids
}

// worker registers a worker under a new identity and returns that.
func (e *env) worker(edits ...func(w *service.WorkerInfo)) string {
	e.Helper()
	w := service.WorkerInfo{ID: newID(), Host: "host-1", PID: 42, Slots: 8, Commands: map[string]string{"true": digest}}
	for _, edit := range edits {
		edit(&w)
	}
	e.must(e.s.RegisterWorker(e.ctx(), w))
	return w.ID
}

// admit asks for everything a worker with free slots can get.
func (e *env) admit(worker string) service.Admitted {
	e.Helper()
	res, err := e.s.Admit(e.ctx(), service.Ask{Worker: worker, Free: 8, SerialFree: true})
	e.must(err)
	return res
}

// start asks and expects exactly the named jobs, in any order of classes.
func (e *env) start(worker string, want ...string) []service.Grant {
	e.Helper()
	res := e.admit(worker)
	if got := granted(res); fmt.Sprint(got) != fmt.Sprint(want) && !(len(got) == 0 && len(want) == 0) {
		e.Fatalf("granted %v, want %v", got, want)
	}
	return res.Grants
}

func granted(res service.Admitted) []string {
	var ids []string
	for _, g := range res.Grants {
		ids = append(ids, g.Job.ID)
	}
	return ids
}

func (e *env) end(g service.Grant, o lanegate.Outcome) service.Ended {
	e.Helper()
	return e.endAs(g, lanegate.Ending{Outcome: o, Duration: 3 * time.Second, Error: "because"})
}

func (e *env) endAs(g service.Grant, ending lanegate.Ending) service.Ended {
	e.Helper()
	ended, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), ending)
	e.must(err)
	return ended
}

// pruneAll takes all finished jobs and the whole run log.
func (e *env) pruneAll() {
	e.Helper()
	_, err := e.s.PruneJobs(e.ctx(), time.Now().Add(time.Hour), 1000)
	e.must(err)
	_, err = e.s.PruneRunLog(e.ctx(), time.Now().Add(time.Hour), 1000)
	e.must(err)
}

func (e *env) job(id string) service.JobDetail {
	e.Helper()
	d, err := e.s.Job(e.ctx(), id)
	e.must(err)
	return d
}

// wantState checks a job's state as it is read back.
func (e *env) wantState(id string, want lanegate.State) service.JobDetail {
	e.Helper()
	d := e.job(id)
	if d.State != want {
		e.Fatalf("job %s is %s (%q), want %s", id, d.State, d.Reason, want)
	}
	return d
}

// runLog reads the whole run log.
func (e *env) runLog(class string) []lanegate.RunRecord {
	e.Helper()
	var all []lanegate.RunRecord
	e.must(e.s.RunLog(e.ctx(), class, time.Unix(0, 0), time.Now().Add(time.Hour), func(r lanegate.RunRecord) error {
		all = append(all, r)
		return nil
	}))
	return all
}

// inFlight is what admission would count now.
func (e *env) inFlight() int {
	e.Helper()
	in, err := e.s.Snapshot(e.ctx())
	e.must(err)
	return len(in.InFlight)
}

// same compares values that may hold maps and slices.
func (e *env) same(what string, want, got any) {
	e.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		e.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

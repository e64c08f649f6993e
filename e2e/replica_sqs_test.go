//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// sqsConfig is a fleet whose doorbell is a server of the test's own.
func sqsConfig(f *fleet, server *sqstest.Server) string {
	return fmt.Sprintf(`database: %q
doorbell: sqs
sqs: {prefix: e2e-, endpoint: %q, allow_http: true, wait: 1s}
lanes:
  night: {width: 1, when_unavailable: wait}
drain: 300ms
commands:
  any: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.02"}}
classes:
  one: {run: {kind: exec, command: any}, units: {}}
  wide: {run: {kind: exec, command: any}, units: {}}
  owl: {run: {kind: exec, command: any}, units: {}}
`, f.pg.URL("test"), server.URL)
}

// queues runs `lanegate queues` as an operator would.
func (f *fleet) queues(args ...string) {
	f.t.Helper()
	cmd := exec.Command(binary, append([]string{"queues"}, append(args, "--config", f.path(f.conf))...)...)
	cmd.Env, cmd.Dir = os.Environ(), f.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("lanegate queues %v: %v\n%s", args, err, out)
	}
}

// lane is what the tests read of a lane.
type lane struct {
	Available bool `json:"available"`
}

func (f *fleet) lane(name string) (l lane) {
	f.t.Helper()
	f.must("GET", "/lanes/"+name, "", &l)
	return l
}

// ran waits for the job's end and says in which lane it ran, and why.
func (f *fleet) ran(id string, limit time.Duration) (lane, reason string) {
	f.t.Helper()
	j := f.final(id, limit)
	if j.State != "succeeded" || j.Route == nil {
		f.t.Fatalf("job %s: %s %s, route %v", id, j.State, j.Reason, j.Route)
	}
	return j.Route.Lane, j.Route.Reason
}

func (f *fleet) wantRan(when, id, wantLane, wantReason string) {
	f.t.Helper()
	if lane, reason := f.ran(id, 40*time.Second); lane != wantLane || reason != wantReason {
		f.t.Errorf("%s: the job ran in %s (%q), want %s (%q)", when, lane, reason, wantLane, wantReason)
	}
}

// Routing is deployed first, the queues later, the workers last, and all of it is
// taken back: jobs run all the while, in serial or, where the lane says so, later,
// and nothing is restarted for it. A queue that is lost while workers are there costs
// latency only.
func TestDeployOrder(t *testing.T) {
	t.Parallel()
	server := sqstest.New(t)
	f := newFleet(t)
	f.fleetConfigured(sqsConfig(f, server))
	serial := f.node("--lanes", "serial")
	f.promote("parallel", 2, "wide")
	f.promote("night", 1, "owl")

	f.wantRan("without a queue", f.submit("wide", "").ID, "serial", "lane_unavailable")
	fallbacks := metricOf(serial.w, "lanegate_route_fallback_total", `lane="parallel"`, `reason="lane_unavailable"`)
	if fallbacks != 1 {
		t.Errorf("%v fallbacks are counted, want 1", fallbacks)
	}
	owl := f.submit("owl", "").ID

	f.queues("create", "--dead-letter")
	f.eventually(40*time.Second, "the queue is found", func() bool {
		return metricOf(serial.w, "lanegate_doorbell_queue_up", `lane="serial"`) == 1
	})
	f.wantRan("with a queue and no worker", f.submit("wide", "").ID, "serial", "lane_unavailable")
	if f.lane("parallel").Available {
		t.Error("the lane is available although nobody serves it")
	}
	if j := f.job(owl); j.State != "queued" || j.Attempts != 0 {
		t.Errorf("a job of a lane that is to be waited for: %s after %d attempts", j.State, j.Attempts)
	}

	parallel := f.node("--lanes", "parallel,night")
	f.eventually(40*time.Second, "the lane is available", func() bool { return f.lane("parallel").Available })
	f.wantRan("with a worker", f.submit("wide", "").ID, "parallel", "")
	f.wantRan("what waited", owl, "night", "")
	f.wantRan("a class that was never promoted", f.submit("one", "").ID, "serial", "")

	sqsGone(t, server, "e2e-parallel")
	f.eventually(time.Minute, "the loss is noticed", func() bool {
		return metricOf(parallel.w, "lanegate_doorbell_queue_up", `lane="parallel"`) == 0
	})
	f.wantRan("with a worker and the queue lost", f.submit("wide", "").ID, "parallel", "")

	f.leave(parallel)
	if err := parallel.term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	waits := f.submit("wide", "").ID
	if !f.lane("parallel").Available {
		t.Error("the lane is gone within a deploy's time")
	}
	// A minute goes by.
	if err := f.pg.Exec(t.Context(), "test", "UPDATE lanes SET last_served_at = last_served_at - interval '61 seconds'"); err != nil {
		t.Fatal(err)
	}
	f.wantRan("after the workers are gone", f.submit("wide", "").ID, "serial", "lane_unavailable")
	f.wantRan("what waited for them", waits, "serial", "lane_unavailable")

	f.must("PATCH", "/job-classes/wide/demote", `{"reason": "the way back"}`, nil)
	for _, q := range []string{"e2e-serial", "e2e-night"} {
		sqsGone(t, server, q)
	}
	f.wantRan("without workers, queues and promotion", f.submit("wide", "").ID, "serial", "")
	if n := metricOf(serial.w, "lanegate_route_fallback_total", `lane="parallel"`); n != fallbacks+3 {
		t.Errorf("%v fallbacks are counted, want %v: one without a queue, one without a worker, two after the workers", n, fallbacks+3)
	}
}

// sqsGone deletes a queue, as somebody might.
func sqsGone(t *testing.T, server *sqstest.Server, name string) {
	t.Helper()
	c := sqsClient(server)
	url, err := c.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(name)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: url.QueueUrl}); err != nil {
		t.Fatal(err)
	}
}

// SQS forgets everything, queues included, while 1,000 jobs are queued: all of them
// run, each once, and once there are queues again a bell is heard across processes as
// before.
func TestReplicasSQSLost(t *testing.T) {
	t.Parallel()
	server := sqstest.New(t)
	f := newFleet(t)
	var mu sync.Mutex
	runs := map[string]int{} // by job
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		runs[r.Header.Get("Lanegate-Job-Id")]++
	}))
	t.Cleanup(target.Close)
	f.fleetConfigured(strings.Replace(sqsConfig(f, server), "wide: {run: {kind: exec, command: any}", fmt.Sprintf("wide: {run: {kind: http, url: %q}", target.URL), 1))
	f.queues("create")
	front := f.node("--no-workers")
	f.promote("parallel", 4, "wide")
	const waiting = 1000
	ids := f.submitMany("wide", waiting)
	f.eventually(30*time.Second, "all bells are sent", func() bool {
		return metricOf(front.w, "lanegate_doorbell_messages_sent_total") >= waiting
	})
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	f.node()
	f.addr = front.w.addr
	for _, id := range ids {
		f.ran(id, time.Minute)
	}
	f.queues("create")
	f.eventually(time.Minute, "all find their queues again", func() bool {
		for _, g := range f.members() {
			if metricOf(g.w, "lanegate_doorbell_queue_up", `lane="serial"`) != 1 {
				return false
			}
		}
		return true
	})
	began := time.Now()
	f.ran(f.submit("one", "").ID, time.Minute)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a job took %v to start elsewhere: its bell was not heard", took)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		if runs[id] != 1 {
			t.Errorf("job %s ran %d times", id, runs[id])
		}
	}
}

// The database is away for longer than a bell may be received in vain: no bell is
// taken out of its queue for nothing, so none goes to the dead letters, and all runs
// once the database is back.
func TestSQSBellsOutliveTheDatabase(t *testing.T) {
	t.Parallel()
	server := sqstest.New(t)
	f := newFleet(t)
	f.fleetConfigured(strings.Replace(sqsConfig(f, server), "wait: 1s", "wait: 1s, visibility: 1s", 1))
	f.queues("create", "--dead-letter")
	front := f.node("--no-workers")
	ids := f.submitMany("one", 30)
	f.eventually(30*time.Second, "all bells are sent", func() bool {
		return metricOf(front.w, "lanegate_doorbell_messages_sent_total") >= 30
	})
	f.node("--lanes", "serial")
	f.eventually(30*time.Second, "jobs are under way", func() bool { return f.job(ids[1]).State == "succeeded" })
	if err := f.pg.Stop(); err != nil {
		t.Fatal(err)
	}
	<-time.After(12 * time.Second) // twelve times the visibility, more than twice maxReceiveCount
	if err := f.pg.Start(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		f.ran(id, time.Minute)
	}
	dead := sqsClient(server)
	url, err := dead.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("e2e-serial-dead")})
	if err != nil {
		t.Fatal(err)
	}
	out, err := dead.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: url.QueueUrl, WaitTimeSeconds: 1})
	if err != nil || len(out.Messages) > 0 {
		t.Errorf("the dead-letter queue has %d messages, %v", len(out.Messages), err)
	}
}

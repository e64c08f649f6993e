//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // the driver

	"github.com/lanegate/lanegate/queue/sqstest"
)

// maxIdleTransactions a second of the four gateways of the test together. They make
// about 4; one that looked every 150 ms would alone make 6 more.
const maxIdleTransactions = 7

// transactions is how many the database has ended so far.
func (f *fleet) transactions() (n int) {
	f.t.Helper()
	db, err := sqlx.Open("postgres", f.pg.URL("test"))
	if err != nil {
		f.t.Fatal(err)
	}
	err = db.GetContext(f.t.Context(), &n, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'test'")
	if err := errors.Join(err, db.Close()); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// counted is a fleet whose SQS is counted, and an HTTP target that answers at once.
func counted(t *testing.T, wait time.Duration) (*fleet, *sqstest.Proxy) {
	t.Helper()
	server := sqstest.New(t)
	proxy := sqstest.NewProxy(t, server)
	f := newFleet(t)
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(target.Close)
	config := strings.Replace(sqsConfig(f, server), server.URL, proxy.URL, 1)
	config = strings.Replace(config, "wide: {run: {kind: exec, command: any}", fmt.Sprintf("wide: {run: {kind: http, url: %q}", target.URL), 1)
	f.fleetConfigured(strings.Replace(config, "wait: 1s", "wait: "+wait.String(), 1))
	f.queues("create")
	return f, proxy
}

// Whole gateways, three that take jobs and one that runs them: in a steady flow with
// full batches a job costs at most 0.35 calls of SQS. When they idle they make one
// receive call per lane and wait, no other call, and do not poll the database.
// Package queue counts the calls of slower flows, in a time of its own.
func TestSQSFiguresOfWholeGateways(t *testing.T) {
	t.Parallel()
	const wait = 4 * time.Second
	f, proxy := counted(t, wait)
	usual := []string{"--lease", "60s", "--beat", "10s"} // other tests beat faster
	fronts := []*gateway{f.node(append(usual, "--no-workers")...)}
	f.promote("parallel", 2, "wide")
	for range 2 {
		fronts = append(fronts, f.node(append(usual, "--no-workers")...))
	}
	worker := f.node(append(usual, "--lanes", "parallel")...)
	f.addr = fronts[0].w.addr
	f.eventually(40*time.Second, "the queue is heard, and found by all", func() bool {
		for _, g := range fronts {
			if metricOf(g.w, "lanegate_doorbell_queue_up", `lane="parallel"`) != 1 {
				return false
			}
		}
		return proxy.Count("ReceiveMessage") > 0 && f.lane("parallel").Available
	})

	actions := []string{"SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"}
	calls := func() (sum int) {
		for _, action := range actions {
			sum += proxy.Count(action)
		}
		return sum
	}
	const jobs, pace = 150, 40 * time.Millisecond // a machine half as fast has ten a second all the same
	before := calls()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var last string
	for i := range jobs {
		last = fronts[i%len(fronts)].w.submit("wide", "").ID
		<-tick.C
	}
	if lane, reason := f.ran(last, 2*time.Minute); lane != "parallel" || reason != "" {
		t.Errorf("the last of the flow ran in %s (%q)", lane, reason)
	}
	f.eventually(30*time.Second, "all bells that were sent are answered", func() bool {
		sent := metricOf(worker.w, "lanegate_doorbell_messages_sent_total")
		for _, g := range fronts {
			sent += metricOf(g.w, "lanegate_doorbell_messages_sent_total")
		}
		return sent > 0 && metricOf(worker.w, "lanegate_doorbell_messages_deleted_total") >= sent
	})
	perJob := float64(calls()-before) / jobs
	t.Logf("%.3f calls of SQS per job over %d accepting gateways", perJob, len(fronts))
	if perJob > 0.35 {
		t.Errorf("%.3f calls of SQS per job, want at most 0.35", perJob)
	}
	idleFigures(t, f, proxy, wait, 1+len(fronts))
}

// idleFigures counts what gateways do when nothing comes, one of which receives
// from one lane: in windows of a fixed length, once each.
func idleFigures(t *testing.T, f *fleet, proxy *sqstest.Proxy, wait time.Duration, gateways int) {
	t.Helper()
	actions := []string{"ReceiveMessage", "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}
	before := map[string]int{}
	for _, action := range actions {
		before[action] = proxy.Count(action)
	}
	<-time.After(3 * wait)
	for _, action := range actions {
		n, least, most := proxy.Count(action)-before[action], 0, 0
		if action == "ReceiveMessage" {
			least, most = 1, 4
		}
		t.Logf("idle for %v: %d calls of %s", 3*wait, n, action)
		if n < least || n > most {
			t.Errorf("%d calls of %s in %v without jobs, want %d to %d", n, action, 3*wait, least, most)
		}
	}
	// The server counts what a session did some time later, when it is asked again.
	<-time.After(20 * time.Second)
	const window = 10 * time.Second
	asked, began := f.transactions(), time.Now()
	<-time.After(window)
	perSecond := float64(f.transactions()-asked) / time.Since(began).Seconds()
	t.Logf("idle: %.1f transactions a second of %d gateways", perSecond, gateways)
	if perSecond > maxIdleTransactions {
		t.Errorf("%.1f transactions a second of %d idle gateways, want at most %d", perSecond, gateways, maxIdleTransactions)
	}
}

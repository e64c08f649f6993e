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

// Whole gateways, one that takes jobs and one that runs them: in a steady flow with
// full batches a job costs at most 0.35 calls of SQS, and an idle pair makes one
// receive call per lane and wait, no other call, and does not poll the database.
func TestSQSFiguresOfWholeGateways(t *testing.T) {
	t.Parallel()
	server := sqstest.New(t)
	proxy := sqstest.NewProxy(t, server)
	f := newFleet(t)
	const wait = 4 * time.Second
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(target.Close)
	config := strings.Replace(sqsConfig(f, server), server.URL, proxy.URL, 1)
	config = strings.Replace(config, "wide: {run: {kind: exec, command: any}", fmt.Sprintf("wide: {run: {kind: http, url: %q}", target.URL), 1)
	f.fleetConfigured(strings.Replace(config, "wait: 1s", "wait: "+wait.String(), 1))
	f.queues("create")
	usual := []string{"--lease", "60s", "--beat", "10s"} // other tests beat faster
	front := f.node(append(usual, "--no-workers")...)
	f.promote("parallel", 2, "wide")
	worker := f.node(append(usual, "--lanes", "parallel")...)
	f.addr = front.w.addr
	f.eventually(40*time.Second, "the queue is heard", func() bool { return proxy.Count("ReceiveMessage") > 0 && f.lane("parallel").Available })

	actions := []string{"SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"}
	calls := func() (sum int) {
		for _, action := range actions {
			sum += proxy.Count(action)
		}
		return sum
	}
	const jobs, pace = 100, 100 * time.Millisecond // for a lane of one
	before := calls()
	var last []string
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for range jobs / 20 {
		last = append(last, f.submitMany("wide", 20)...)
		<-tick.C
	}
	if lane, reason := f.ran(last[len(last)-1], 2*time.Minute); lane != "parallel" || reason != "" {
		t.Errorf("the last of the flow ran in %s (%q)", lane, reason)
	}
	f.eventually(30*time.Second, "all bells that were sent are answered", func() bool {
		sent := metricOf(front.w, "lanegate_doorbell_messages_sent_total") + metricOf(worker.w, "lanegate_doorbell_messages_sent_total")
		return sent > 0 && metricOf(worker.w, "lanegate_doorbell_messages_deleted_total") >= sent
	})
	perJob := float64(calls()-before) / jobs
	t.Logf("%.3f calls of SQS per job", perJob)
	if perJob > 0.35 {
		t.Errorf("%.3f calls of SQS per job, want at most 0.35", perJob)
	}

	polled, sent, began := proxy.Count("ReceiveMessage"), proxy.Count("SendMessageBatch"), time.Now()
	f.eventually(time.Minute, "three polls have come and gone", func() bool { return proxy.Count("ReceiveMessage") >= polled+3 })
	took := time.Since(began)
	if n := proxy.Count("SendMessageBatch") - sent; n > 0 {
		t.Errorf("an idle pair sent %d batches", n)
	}
	if most := int(took/wait) + 1 + 2; proxy.Count("ReceiveMessage")-polled > most {
		t.Errorf("%d receive calls in %v, want at most one per %v", proxy.Count("ReceiveMessage")-polled, took, wait)
	}

	// The server counts a session's transactions some time after they ended.
	f.eventually(time.Minute, "an idle pair leaves the database alone", func() bool {
		asked, began := f.transactions(), time.Now()
		<-time.After(wait)
		perSecond := float64(f.transactions()-asked) / time.Since(began).Seconds()
		t.Logf("idle: %.1f transactions a second", perSecond)
		return perSecond < 10
	})
}

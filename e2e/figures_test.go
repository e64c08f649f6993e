//go:build linux

package e2e

import (
	"errors"
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
	config := strings.Replace(sqsConfig(f, server), server.URL, proxy.URL, 1)
	f.fleetConfigured(strings.Replace(config, "wait: 1s", "wait: "+wait.String(), 1))
	f.promote("parallel", 2, "wide")
	f.queues("create")
	front := f.node("--no-workers")
	f.node("--lanes", "parallel")
	f.addr = front.w.addr
	f.eventually(40*time.Second, "the queue is heard", func() bool { return proxy.Count("ReceiveMessage") > 0 && f.lane("parallel").Available })

	actions := []string{"SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"}
	calls := func() (sum int) {
		for _, action := range actions {
			sum += proxy.Count(action)
		}
		return sum
	}
	const jobs, pace = 200, 100 * time.Millisecond // ten and more a second, by far more than two slots can run
	before := calls()
	var last []string
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for range jobs / 20 {
		last = append(last, f.submitMany("wide", 20)...)
		<-tick.C
	}
	f.wantRan("at the end of the flow", last[len(last)-1], "parallel", "")
	f.eventually(30*time.Second, "all bells are answered", func() bool {
		return metricOf(front.w, "lanegate_doorbell_messages_sent_total") >= jobs && proxy.Count("DeleteMessageBatch") > 0
	})
	perJob := float64(calls()-before) / jobs
	t.Logf("%.3f calls of SQS per job", perJob)
	if perJob > 0.35 {
		t.Errorf("%.3f calls of SQS per job, want at most 0.35", perJob)
	}

	polled, sent, asked, began := proxy.Count("ReceiveMessage"), proxy.Count("SendMessageBatch"), f.transactions(), time.Now()
	f.eventually(time.Minute, "three polls have come and gone", func() bool { return proxy.Count("ReceiveMessage") >= polled+3 })
	took := time.Since(began)
	if n := proxy.Count("SendMessageBatch") - sent; n > 0 {
		t.Errorf("an idle pair sent %d batches", n)
	}
	if most := int(took/wait) + 1 + 2; proxy.Count("ReceiveMessage")-polled > most {
		t.Errorf("%d receive calls in %v, want at most one per %v", proxy.Count("ReceiveMessage")-polled, took, wait)
	}
	perSecond := float64(f.transactions()-asked) / took.Seconds()
	t.Logf("idle: %.1f transactions a second", perSecond)
}

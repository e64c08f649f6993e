//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// belled is a fleet and its SQS behind a proxy; the config's words are replaced in pairs.
func belled(t *testing.T, replace ...string) (*fleet, *sqsWorld) {
	t.Helper()
	server := sqstest.New(t)
	proxy := sqstest.NewProxy(t, server)
	f := newFleet(t)
	f.fleetConfigured(strings.NewReplacer(append(replace, server.URL, proxy.URL)...).Replace(sqsConfig(f, server)))
	return f, &sqsWorld{world: f.world, proxy: proxy, sqs: sqsClient(server)}
}

// SQS.md section 4: every bell comes twice, one of them five times more, and each
// job is one run.
func TestSQSDoubledBells(t *testing.T) {
	t.Parallel()
	f, w := belled(t)
	f.queues("create")
	front := f.node("--no-workers")
	w.proxy.Inject(sqstest.Fault{Action: "SendMessageBatch", Twice: true})
	url := w.queue("e2e-serial", nil)
	ids := f.submitMany("one", 5)
	f.eventually(20*time.Second, "each bell is in the queue twice", func() bool { return w.held(url) == 10 })
	for range 5 {
		w.send(url, fmt.Sprintf(`{"v":1,"lane":"serial","job":%q}`, ids[0]), nil)
	}
	worker := f.node("--lanes", "serial")
	f.addr = front.w.addr
	for _, id := range ids {
		if j := f.final(id, 30*time.Second); j.State != "succeeded" || j.Attempts != 1 {
			t.Errorf("job %s: %s after %d attempts", id, j.State, j.Attempts)
		}
	}
	f.eventually(30*time.Second, "all copies are received and deleted", func() bool {
		return metricOf(worker.w, "lanegate_doorbell_messages_deleted_total") >= 15 && w.held(url) == 0
	})
	f.checkEvents(ids, len(ids))
}

// SQS.md section 4: a gateway that idles gets SIGTERM with a poll open. It lets the
// poll end, so the next message is received for the first time by whoever asks next.
func TestSQSTermWhileIdle(t *testing.T) {
	t.Parallel()
	const wait = 4 * time.Second
	f, w := belled(t, "wait: 1s", "wait: "+wait.String())
	f.queues("create")
	url := w.queue("e2e-serial", nil)
	g := f.node("--lanes", "serial")
	polls := func() int { return w.proxy.Count("ReceiveMessage") }
	f.eventually(20*time.Second, "it polls", func() bool { return polls() > 0 })
	before := polls()
	f.eventually(2*wait, "the next poll has begun", func() bool { return polls() > before })
	if err := g.term(time.Minute); err != nil {
		t.Fatal(err)
	}
	w.send(url, `{"v":1,"lane":"serial","job":"x"}`, nil)
	m := w.consume(url)
	if count := m.Attributes["ApproximateReceiveCount"]; count != "1" {
		t.Errorf("receive count %s after SIGTERM, want 1", count)
	}
}

// C09: a bell whose deletions fail reaches the dead-letter queue while its job's run
// ends well, and a poison message beside it does, too. Neither changes a job, holds up
// others or is run from there.
func TestSQSBellInTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	f, w := belled(t, "wait: 1s", "wait: 1s, visibility: 1s")
	dead := w.queue("e2e-serial-dead", nil)
	url := w.queue("e2e-serial", map[string]string{
		"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:` + sqstest.Region + `:000000000000:e2e-serial-dead","maxReceiveCount":"1"}`,
	})
	w.proxy.Inject(sqstest.Fault{Action: "DeleteMessageBatch", Status: http.StatusServiceUnavailable, Code: "ServiceUnavailable"})
	const poison = `{"lane": "serial"`
	w.send(url, poison, nil)
	front := f.node("--no-workers")
	f.addr = front.w.addr
	first := f.submit("one", "").ID
	f.eventually(20*time.Second, "the bell is in the queue", func() bool { return w.held(url) == 2 }) // no worker spares it
	worker := f.node("--lanes", "serial")
	f.addr = front.w.addr
	found := map[string]bool{}
	f.eventually(60*time.Second, "the bell and the poison are in the dead-letter queue", func() bool {
		if m := w.receive(dead); m != nil {
			found[*m.Body] = true
		}
		return found[poison] && found[fmt.Sprintf(`{"v":1,"lane":"serial","job":%q}`, first)]
	})
	if len(found) != 2 {
		t.Errorf("in the dead-letter queue: %v", found)
	}
	if n := metricOf(worker.w, "lanegate_doorbell_messages_unknown_total"); n != 1 {
		t.Errorf("the poison was counted %v times, want once for each receive: 1", n)
	}
	w.proxy.Clear()
	second := f.submit("one", "").ID
	f.eventually(30*time.Second, "the next bell is deleted", func() bool {
		return metricOf(worker.w, "lanegate_doorbell_messages_deleted_total") == 1 && w.held(url) == 0
	})
	for _, id := range []string{first, second} {
		if j := f.final(id, 20*time.Second); j.State != "succeeded" || j.Attempts != 1 {
			t.Errorf("job %s: %s after %d attempts", id, j.State, j.Attempts)
		}
	}
	f.checkEvents([]string{first, second}, 2)
}

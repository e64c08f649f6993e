//go:build linux

package e2e

import (
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

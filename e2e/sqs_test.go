//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/lanegate/lanegate/queue/sqstest"
)

// sqsWorld is a world with an SQS server behind a proxy.
type sqsWorld struct {
	*world
	proxy *sqstest.Proxy
	sqs   *sqs.Client // past the proxy
}

func newSQSWorld(t *testing.T) *sqsWorld {
	t.Helper()
	server := sqstest.New(t)
	return &sqsWorld{
		world: newWorld(t), proxy: sqstest.NewProxy(t, server),
		sqs: sqsClient(server),
	}
}

func sqsClient(server *sqstest.Server) *sqs.Client {
	return sqs.New(sqs.Options{Region: sqstest.Region, BaseEndpoint: aws.String(server.URL), Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
}

// config is world's, with short times for SQS.
func (w *sqsWorld) config(rest string) {
	w.world.config(fmt.Sprintf("sqs: {endpoint: %q, allow_http: true, wait: 1s, visibility: 3s}\npublic_url: http://%s/\n", w.proxy.URL, w.addr) + rest)
}

// queue makes a queue and returns its URL.
func (w *sqsWorld) queue(name string, attributes map[string]string) string {
	w.t.Helper()
	out, err := w.sqs.CreateQueue(w.t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(name), Attributes: attributes})
	if err != nil {
		w.t.Fatal(err)
	}
	return *out.QueueUrl
}

func (w *sqsWorld) send(url, body string, attributes map[string]string) {
	w.t.Helper()
	in := &sqs.SendMessageInput{QueueUrl: aws.String(url), MessageBody: aws.String(body), MessageAttributes: map[string]types.MessageAttributeValue{}}
	for name, value := range attributes {
		in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
	}
	if _, err := w.sqs.SendMessage(w.t.Context(), in); err != nil {
		w.t.Fatal(err)
	}
}

// receive takes one message out of a queue for good; nil when none comes within a second.
func (w *sqsWorld) receive(url string) *types.Message {
	w.t.Helper()
	out, err := w.sqs.ReceiveMessage(w.t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(url), WaitTimeSeconds: 1, MaxNumberOfMessages: 1, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(out.Messages) == 0 {
		return nil
	}
	if _, err := w.sqs.DeleteMessage(w.t.Context(), &sqs.DeleteMessageInput{QueueUrl: aws.String(url), ReceiptHandle: out.Messages[0].ReceiptHandle}); err != nil {
		w.t.Fatal(err)
	}
	return &out.Messages[0]
}

// consume waits for the next message of a queue.
func (w *sqsWorld) consume(url string) (m *types.Message) {
	w.t.Helper()
	w.eventually(20*time.Second, "a message comes", func() bool {
		m = w.receive(url)
		return m != nil
	})
	return m
}

// held is how many messages a queue has, in flight or not.
func (w *sqsWorld) held(url string) (n int) {
	w.t.Helper()
	out, err := w.sqs.GetQueueAttributes(w.t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: aws.String(url), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range []string{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"} {
		v, err := strconv.Atoi(out.Attributes[name])
		if err != nil {
			w.t.Fatal(err)
		}
		n += v
	}
	return n
}

func attribute(m *types.Message, name string) string {
	return aws.ToString(m.MessageAttributes[name].StringValue)
}

// report calls an attempt's path as its consumer would.
func (w *sqsWorld) report(m *types.Message, what, body string) (status int, answer map[string]any) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, attribute(m, "Lanegate-Attempt-Url")+"/"+what, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+attribute(m, "Lanegate-Token"))
	resp, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil {
		w.t.Fatalf("%s: %s %v", what, text, err)
	}
	return resp.StatusCode, answer
}

// A run of kind sqs belongs to its consumer: it outlives the gateway's death,
// completes once, hears of a cancel, and has serial for itself meanwhile.
func TestSQSTarget(t *testing.T) {
	t.Parallel()
	w := newSQSWorld(t)
	url := w.queue("work", nil)
	w.config("classes:\n  heavy: {run: {kind: sqs, queue: work, heartbeat: 5s}}\n")
	g := w.start()
	first := w.submit("heavy", `, "payload": {"n":  1e400}, "logical_date": "2026-11-29"`)
	second := w.submit("heavy", "")
	m := w.consume(url)
	if *m.Body != `{"n":  1e400}` || attribute(m, "Lanegate-Job-Id") != first.ID || attribute(m, "Lanegate-Logical-Date") != "2026-11-29" {
		t.Errorf("message %s with %v", *m.Body, m.MessageAttributes)
	}
	g.kill()
	w.start()
	if status, answer := w.report(m, "heartbeat", ""); status != http.StatusOK || answer["cancel_requested"] != false {
		t.Errorf("heartbeat: %d %v", status, answer)
	}
	if again := w.receive(url); again != nil {
		t.Errorf("beside a run in serial another was sent: %s", attribute(again, "Lanegate-Job-Id"))
	}
	if status, answer := w.report(m, "complete", `{"outcome": "succeeded", "result": {"rows": 7}}`); status != http.StatusOK {
		t.Errorf("complete: %d %v", status, answer)
	}
	if got := w.final(first.ID, 5*time.Second); got.State != "succeeded" || string(got.Result) != `{"rows": 7}` || got.Attempts != 1 {
		t.Errorf("the first job: %+v", got)
	}
	if status, answer := w.report(m, "complete", `{"outcome": "failed"}`); status != http.StatusConflict || answer["code"] != "attempt_lost" {
		t.Errorf("another completion: %d %v", status, answer)
	}
	m = w.consume(url)
	w.must("POST", "/jobs/"+second.ID+"/cancel", "", nil)
	if status, answer := w.report(m, "heartbeat", ""); status != http.StatusOK || answer["cancel_requested"] != true {
		t.Errorf("heartbeat after a cancel: %d %v", status, answer)
	}
	w.report(m, "complete", `{"outcome": "cancelled"}`)
	if got := w.final(second.ID, 5*time.Second); got.State != "cancelled" {
		t.Errorf("the cancelled job: %+v", got)
	}
}

// What certainly was not sent fails with what to do; a send whose answer got lost
// (C13) is the consumer's all the same, and one run.
func TestSQSTargetFaults(t *testing.T) {
	t.Parallel()
	w := newSQSWorld(t)
	url := w.queue("work", nil)
	w.queue("small", map[string]string{"MaximumMessageSize": "1024"})
	w.config(`classes:
  lost: {run: {kind: sqs, queue: work, heartbeat: 5s}}
  nowhere: {run: {kind: sqs, queue: nowhere}}
  small: {run: {kind: sqs, queue: small}, max_attempts: 3}
`)
	w.start()
	w.proxy.Inject(sqstest.Fault{Action: "SendMessage", Twice: true, Drop: true, Times: 1})
	j := w.submit("lost", "")
	m := w.consume(url)
	if status, _ := w.report(m, "heartbeat", ""); status != http.StatusOK {
		t.Errorf("heartbeat: %d", status)
	}
	w.report(m, "complete", `{"outcome": "succeeded"}`)
	if got := w.final(j.ID, 5*time.Second); got.State != "succeeded" || got.Attempts != 1 {
		t.Errorf("a send without an answer: %+v", got)
	}
	// The copy tells its consumer that there is nothing to do.
	if status, answer := w.report(w.consume(url), "heartbeat", ""); status != http.StatusConflict || answer["code"] != "attempt_lost" {
		t.Errorf("heartbeat for a copy: %d %v", status, answer)
	}
	for class, want := range map[string]struct {
		payload, reason string
	}{
		"nowhere": {"1", "create it, or correct the queue's name"},
		"small":   {`"` + strings.Repeat("x", 2000) + `"`, "SQS refuses the message"},
		"lost":    {`"` + "\uffff" + `"`, "U+FFFF, which SQS takes in no message"},
	} {
		got := w.final(w.submit(class, `, "payload": `+want.payload).ID, 10*time.Second)
		if got.State != "failed" || got.Attempts != 1 || !strings.Contains(got.Reason, want.reason) {
			t.Errorf("%s: %s after %d attempts: %s", class, got.State, got.Attempts, got.Reason)
		}
	}
}

// Where SQS can't be reached its classes wait, and say for what.
func TestSQSTargetNeedsSQS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config("sqs: {endpoint: \"http://127.0.0.1:1\"}\nclasses:\n  heavy: {run: {kind: sqs, queue: work}}\n")
	w.start()
	id := w.submit("heavy", "").ID
	w.eventually(20*time.Second, "the job says that nobody can reach SQS, once the worker has made itself known", func() bool {
		j := w.job(id)
		return j.State == "queued" && len(j.WaitingOn) == 1 && j.WaitingOn[0].Reason == "no_worker:sqs"
	})
	if !w.log.contains("has no TLS") {
		t.Error("the log does not say why")
	}
}

// jobsOf lists a class's jobs, the oldest first.
func (w *sqsWorld) jobsOf(class string) []job {
	w.t.Helper()
	var page struct {
		Items []job `json:"items"`
	}
	w.must("GET", "/jobs?limit=200&class="+class, "", &page)
	for i, j := 0, len(page.Items)-1; i < j; i, j = i+1, j-1 {
		page.Items[i], page.Items[j] = page.Items[j], page.Items[i]
	}
	return page.Items
}

// Messages become jobs, each one once: while the gateway is killed again and again,
// deletions fail and messages come twice. What can't become a job ends in the
// queue's own dead-letter queue.
func TestSQSIntake(t *testing.T) {
	t.Parallel()
	w := newSQSWorld(t)
	w.queue("dead", nil)
	redrive := map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:` + sqstest.Region + `:000000000000:dead","maxReceiveCount":"2"}`, "VisibilityTimeout": "1"}
	orders, mixed := w.queue("orders", nil), w.queue("mixed", redrive)
	w.config(`commands:
  any: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.001"}}
classes:
  order: {run: {kind: exec, command: any}, repeatable: true}
  other: {run: {kind: exec, command: any}}
intake:
  - {queue: orders, class: order, key: "field:/no"}
  - {queue: mixed, as: submission, classes: [other]}
`)
	w.proxy.Inject(sqstest.Fault{Action: "DeleteMessageBatch", Times: 4, Status: 503, Code: "ServiceUnavailable"})
	const n = 30
	for i := range n {
		w.send(orders, fmt.Sprintf(`{"no": %d}`, i), nil)
	}
	for range 3 {
		g := w.start()
		w.eventually(20*time.Second, "some are taken in", func() bool {
			return metricOf(w.world, "lanegate_intake_messages_received_total", `queue="orders"`) > 0
		})
		g.kill()
	}
	w.send(orders, `{"no": 0}`, nil) // the sender's own repeat
	w.send(mixed, `{"class": "other", "payload": [1,  2], "idempotency_key": "k"}`, nil)
	w.send(mixed, `{"class": "other", "payload": [1,  2]}`, map[string]string{"Lanegate-Idempotency-Key": "k"})
	w.send(mixed, `{"class": "order"}`, nil) // not its class
	w.send(mixed, `hello`, nil)
	w.start()
	w.eventually(40*time.Second, "all are taken in", func() bool { return w.held(orders) == 0 && w.held(mixed) == 0 })
	seen := map[string]int{}
	for _, j := range w.jobsOf("order") {
		got := w.final(j.ID, 40*time.Second)
		seen[string(got.Payload)]++
		if got.State != "succeeded" {
			t.Errorf("job %s is %s", j.ID, got.State)
		}
	}
	for i := range n {
		if body := fmt.Sprintf(`{"no": %d}`, i); seen[body] != 1 {
			t.Errorf("%s became %d jobs", body, seen[body])
		}
	}
	if list := w.jobsOf("other"); len(list) != 1 || string(w.job(list[0].ID).Payload) != "[1,  2]" {
		t.Errorf("submissions became %+v", list)
	}
	if n := metricOf(w.world, "lanegate_intake_messages_refused_total", `queue="mixed"`); n != 4 {
		t.Errorf("%v messages are counted as refused, want two of them twice", n)
	}
	var client struct {
		Client string `json:"client"`
	}
	w.must("GET", "/jobs/"+w.jobsOf("other")[0].ID, "", &client)
	if client.Client != "intake:mixed" {
		t.Errorf("submitted by %q", client.Client)
	}
}

// drain runs lanegate drain as a person would and returns what it printed.
func (w *sqsWorld) drain(args ...string) (string, error) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), binary, append([]string{"drain", "--url", w.url(""), "--endpoint", w.proxy.URL, "--allow-http", "--retry-for", "3s"}, args...)...)
	cmd.Env, cmd.Dir = os.Environ(), w.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The way out is as easy as the way in: queued jobs go back as the messages they
// came in with, also when the drain is killed after it has sent some, and come in
// again as one job each.
func TestSQSDrain(t *testing.T) {
	t.Parallel()
	w := newSQSWorld(t)
	in, out := w.queue("in", nil), w.queue("out", nil)
	config := `commands:
  any: {argv: [sh, $DIR/probe.sh], env: {EVENTS: $DIR/events, TAKES: "0.001"}}
  slow: {argv: [sleep, "600"]}
classes:
  order: {run: {kind: exec, command: any}, paused: true}
  report: {run: {kind: exec, command: any}, paused: true}
  slow: {run: {kind: exec, command: slow}}
`
	w.config(config + "intake:\n  - {queue: in, class: order}\n")
	g := w.start()
	w.send(in, `{"no":  1}`, map[string]string{"team": "pos"})
	w.eventually(20*time.Second, "it is a job", func() bool { return len(w.jobsOf("order")) == 1 })
	report := w.submit("report", `, "payload": {"n":  1e400}, "logical_date": "2026-11-29", "idempotency_key": "nightly"`)
	slow := w.submit("slow", "")
	w.eventually(10*time.Second, "a job runs", func() bool { return w.job(slow.ID).State == "running" })

	if text, err := w.drain("--to-sqs", in); err == nil || !strings.Contains(text, "Take the queue out of intake") {
		t.Errorf("a drain into an intake: %v\n%s", err, text)
	}
	if text, err := w.drain("--to-sqs", out, "--dry-run"); err != nil || !strings.Contains(text, "2 jobs would be sent") {
		t.Errorf("a dry run: %v\n%s", err, text)
	}
	// Both were sent, and the answers got lost: killed there, nothing is confirmed.
	w.proxy.Inject(sqstest.Fault{Action: "SendMessage", Drop: true})
	if text, err := w.drain("--to-sqs", out); err == nil || !strings.Contains(text, "2 taken and not confirmed") {
		t.Errorf("a drain without answers: %v\n%s", err, text)
	}
	w.proxy.Clear()
	if j := w.job(report.ID); j.State != "queued" || len(j.WaitingOn) != 1 || j.WaitingOn[0].Reason != "handed_over" {
		t.Errorf("a job that was taken: %+v", j)
	}
	g.kill()
	g = w.start()
	text, err := w.drain("--to-sqs", out)
	if err != nil || !strings.Contains(text, "2 jobs sent") || !strings.Contains(text, "1 running, left alone") {
		t.Errorf("the drain: %v\n%s", err, text)
	}
	if j := w.job(report.ID); j.State != "cancelled" || !strings.HasPrefix(j.Reason, "sent to "+out) {
		t.Errorf("a job that was sent: %+v", j)
	}
	if n := w.held(out); n < 4 {
		t.Errorf("%d messages, want both of the first drain and both of the second", n)
	}

	// Both messages, doubled, come in again as one job each.
	w.must("POST", "/jobs/"+slow.ID+"/cancel", "", nil)
	w.final(slow.ID, 10*time.Second)
	if err := g.term(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	orders := w.queue("orders", nil) // where the bodies are payloads
	var messages []*types.Message
	for m := w.receive(out); m != nil; m = w.receive(out) {
		messages = append(messages, m)
	}
	for _, m := range messages {
		to, key := out, attribute(m, "Lanegate-Idempotency-Key")
		if *m.Body == `{"no":  1}` {
			to = orders
			if attribute(m, "team") != "pos" {
				t.Errorf("its attributes are gone: %v", m.MessageAttributes)
			}
		}
		w.send(to, *m.Body, map[string]string{"Lanegate-Idempotency-Key": key})
	}
	w.conf = "second.yaml"
	w.config(strings.ReplaceAll(config, ", paused: true", "") + "intake:\n  - {queue: out, as: submission}\n  - {queue: orders, class: order}\n")
	w.start()
	w.eventually(20*time.Second, "all are taken in", func() bool { return w.held(out) == 0 && w.held(orders) == 0 })
	for class, payload := range map[string]string{"order": `{"no":  1}`, "report": `{"n":  1e400}`} {
		list := w.jobsOf(class)
		if len(list) != 2 {
			t.Fatalf("%s: %d jobs, want the one that left and the one that came back", class, len(list))
		}
		if got := w.final(list[1].ID, 20*time.Second); got.State != "succeeded" || string(got.Payload) != payload {
			t.Errorf("%s that came back: %+v", class, got)
		}
	}
}

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/lanegate/lanegate/queue/sqstest"
)

func TestQueues(t *testing.T) {
	proxy := sqstest.NewProxy(t, sqstest.Shared(t))
	t.Chdir(t.TempDir())
	if err := os.WriteFile("lanegate.yaml", []byte("database: x.db\nlanes: {long: {width: 1, queue: theirs}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	queues := func(args ...string) outcome {
		t.Helper()
		args = append([]string{"queues"}, args...)
		return runLine(t, "", nil, append(args, "--config", "lanegate.yaml", "--region", sqstest.Region, "--endpoint", proxy.URL, "--allow-http", "--lane", "night")...)
	}
	all := func(o outcome, code int, each string) {
		t.Helper()
		for _, line := range []string{"serial: lanegate-serial: ", "parallel: lanegate-parallel: ", "long: theirs: ", "night: lanegate-night: "} {
			o.want(t, code, line+each, "")
		}
	}
	o := queues("check")
	all(o, 1, "WRONG: look it up: the queue does not exist in this region and account")
	o.want(t, 1, "endpoint "+proxy.URL+", region us-east-1\n", "")
	all(queues("create", "--dead-letter"), 0, "made\n")
	all(queues("check"), 0, "ok\n")
	all(queues("create", "--dead-letter"), 0, "there already\n")

	proxy.Inject(sqstest.Denied("SendMessageBatch", true))
	all(queues("check", "--read-only"), 0, "ok\n")
	all(queues("check"), 3, "REFUSED: sqs:SendMessage: this identity may not do that")
	proxy.Clear()
	proxy.Inject(sqstest.Fault{Status: 503, Code: "ServiceUnavailable"})
	all(queues("check"), 4, "NO ANSWER: look it up: SQS gives no answer")

	queues("check", "--lane", "a b").want(t, 2, "", "is not a lane's name")
	queues("check", "--prefix", "a.b").want(t, 2, "", "queue prefix")
	if err := os.WriteFile("x.db", []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy.Clear()
	queues("check").want(t, 0, "ok", "lanes that were made over the API are left out")
	runLine(t, "", nil, "queues", "check", "--region", "x", "--endpoint", proxy.URL).want(t, 2, "", "has no TLS")
	runLine(t, "", nil, "queues", "create", "--help").want(t, 0, "Exit codes:", "")
}

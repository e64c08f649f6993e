//go:build linux

package queue_test

import (
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/queuetest"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
)

func TestSQSContract(t *testing.T) {
	t.Parallel()
	server := sqstest.Shared(t)
	queuetest.Run(t, func(t *testing.T) *queuetest.Setup {
		b := newBench(t, server)
		a := b.sender()
		o := b.options()
		b1, stop := b.open(o)
		b2, _ := b.open(o)
		for _, lane := range []string{"serial", "parallel"} {
			b.bells.submit(lane)
		}
		for _, l := range []*queue.SQS{b1, b2} {
			eventually(t, "both receive", func() bool { return len(l.Problems()) == 0 && b.proxy.Count("ReceiveMessage") >= 4 })
		}
		return &queuetest.Setup{
			// One job per lane that never starts: a ring asks for it again.
			Ring:      func(lane string) { _ = b.bells.RingLane(t.Context(), lane); a.Ring(lane) },
			Listeners: []service.Doorbell{b1, b2}, Lines: b.log.lines, Patience: 20 * time.Second,
			Close: func(*testing.T) { stop() },
			Cut:   func(*testing.T) { b.proxy.Inject(sqstest.Fault{Status: 503, Code: "ServiceUnavailable"}) },
			Hang:  func(*testing.T) { b.proxy.Inject(sqstest.Fault{Hang: true}) },
			Mend:  func(*testing.T) { b.proxy.Clear() },
		}
	})
}

// SQS.md 3.4: a message goes when the pass that it caused has committed, stays
// when it failed, and nothing more is received meanwhile.
func TestSQSDeletesAfterAdmission(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Registerer = b.reg
	s, _ := b.open(o)
	var failing atomic.Bool
	var passes atomic.Int64
	b.proxy.Inject(sqstest.Fault{Action: "ReceiveMessage", Rewrite: func(body []byte) []byte {
		if strings.Contains(string(body), "ReceiptHandle") {
			failing.Store(true) // the database goes away as the message comes
		}
		return body
	}})
	b.worker(s, func() service.Pass {
		passes.Add(1)
		if failing.Load() {
			return service.PassFailed
		}
		return service.PassCommitted
	})
	b.put("parallel", `{"v":1,"lane":"parallel","job":"x"}`)
	eventually(t, "received", func() bool {
		return metric(t, b.reg, "lanegate_doorbell_messages_received_total", nil) >= 1
	})
	some := passes.Load() + 60
	eventually(t, "some failed passes", func() bool { return passes.Load() > some })
	// Polls that were open when the first pass failed end within Wait; no new one begins.
	before := b.proxy.Count("ReceiveMessage")
	until := passes.Load() + 100
	eventually(t, "an outage of 100 passes", func() bool { return passes.Load() > until })
	if n := b.proxy.Count("ReceiveMessage") - before; n > 0 {
		t.Errorf("%d receive calls while the database was away", n)
	}
	if b.held("parallel") != 1 {
		t.Error("the message was deleted although no pass had committed")
	}
	failing.Store(false)
	eventually(t, "deleted", func() bool { return b.held("parallel") == 0 })
	for name, want := range map[string]float64{"received": 1, "deleted": 1, "released": 0, "unknown": 0} {
		if got := metric(t, b.reg, "lanegate_doorbell_messages_"+name+"_total", map[string]string{"lane": "parallel"}); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	lintMetrics(t, b.reg)
}

// A bell that this worker has no room for goes to the next one at once.
func TestSQSGivesBackWhatItCannotAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Visibility = 30 * time.Second // what is given back does not wait for it
	var closed atomic.Bool
	o.Gate = func(string) bool { return !closed.Load() }
	s, _ := b.open(o)
	b.worker(s, func() service.Pass {
		closed.Store(true)
		return service.PassFull
	})
	eventually(t, "the gate is closed", closed.Load)
	b.put("serial", `{"v":1,"lane":"serial","job":"x"}`)
	if _, count := b.get("serial"); count > 2 {
		t.Errorf("received %d times; a closed gate asks for nothing", count)
	}
}

// The same bell seven times: each copy is answered by a pass and deleted. That it is
// one run is admission's part: TestSQSDoubledBells of package e2e.
func TestSQSDoubledBells(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Registerer = b.reg
	b.rested(o)
	b.proxy.Inject(sqstest.Fault{Action: "SendMessageBatch", Twice: true})
	job := b.bells.submit("parallel")
	b.sender().Ring("parallel")
	eventually(t, "the bell is heard", func() bool { return b.bells.ran(job) })
	for range 5 {
		b.put("parallel", `{"v":1,"lane":"parallel","job":"`+job+`"}`)
	}
	for _, what := range []string{"received", "deleted"} {
		eventually(t, "all are "+what, func() bool {
			return metric(t, b.reg, "lanegate_doorbell_messages_"+what+"_total", nil) == 7
		})
	}
	if n := b.held("parallel"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// SQS.md section 4: a send that was accepted and whose answer is lost rings all the same.
func TestSQSSendWithoutAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.rested(b.options())
	b.proxy.Inject(sqstest.Fault{Action: "SendMessageBatch", Drop: true, Times: 1})
	job := b.bells.submit("parallel")
	b.sender().Ring("parallel")
	eventually(t, "the job runs", func() bool { return b.bells.ran(job) })
	eventually(t, "no bell is left, in the database or in the queue", func() bool { return b.bells.due() == 0 && b.held("parallel") == 0 })
}

// entryFault makes the server never see an entry of the first batch, and the
// answer say that it failed.
func entryFault(id string, senderFault bool, seen func(ids []string)) sqstest.Fault {
	var calls atomic.Int64
	edit := func(body []byte, change func(m map[string]any)) []byte {
		var m map[string]any
		if err := json.Unmarshal(body, &m); err != nil {
			panic(err)
		}
		change(m)
		out, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		return out
	}
	return sqstest.Fault{
		Action: "SendMessageBatch",
		RewriteRequest: func(body []byte) []byte {
			return edit(body, func(m map[string]any) {
				var ids []string
				var kept []any
				first := calls.Add(1) == 1
				for _, e := range m["Entries"].([]any) {
					entry := e.(map[string]any)
					ids = append(ids, entry["MessageBody"].(string))
					if !first || entry["Id"] != id {
						kept = append(kept, e)
					}
				}
				m["Entries"] = kept
				seen(ids)
			})
		},
		Rewrite: func(body []byte) []byte {
			if calls.Load() != 1 {
				return body
			}
			return edit(body, func(m map[string]any) {
				m["Failed"] = []any{map[string]any{"Id": id, "SenderFault": senderFault, "Code": "InternalError", "Message": "no"}}
			})
		},
	}
}

// SQS.md section 4: of a batch with one failed entry only that one is sent again;
// one that is our fault is not sent again as it is.
func TestSQSBatchWithAFailedEntry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		senderFault bool
		calls       int
		held        int
		refused     float64
	}{{"the server's fault", false, 2, 3, 0}, {"our fault", true, 1, 2, 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sqstest.Shared(t))
			var mu sync.Mutex
			var calls [][]string
			b.proxy.Inject(entryFault("1", c.senderFault, func(ids []string) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, ids)
			}))
			for range 3 {
				b.bells.submit("parallel")
			}
			o := b.options()
			o.SendOnly, o.Registerer = true, b.reg
			s, _ := b.open(o)
			s.Ring("parallel")
			eventually(t, "all bells are cleared", func() bool { return b.bells.due() == 0 })
			mu.Lock()
			defer mu.Unlock()
			if len(calls) != c.calls || len(calls[0]) != 3 || c.calls == 2 && (len(calls[1]) != 1 || calls[1][0] != calls[0][1]) {
				t.Errorf("sent %q", calls)
			}
			if n := b.held("parallel"); n != c.held {
				t.Errorf("%d messages in the queue, want %d", n, c.held)
			}
			if got := metric(t, b.reg, "lanegate_doorbell_messages_refused_total", nil); got != c.refused {
				t.Errorf("refused = %v, want %v", got, c.refused)
			}
		})
	}
}

// SQS.md section 4: what is no bell ends in the dead-letter queue, by the
// queue's own rule, and holds up nothing.
func TestSQSLeavesUnknownMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.createWithDead("long", 3)
	o := b.options()
	o.Registerer = b.reg
	// SQS refuses to extend one of them: that harms nothing.
	b.proxy.Inject(sqstest.Fault{Action: "ChangeMessageVisibilityBatch", Status: 400, Code: sqstest.TwelveHours("").Code, Message: sqstest.TwelveHours("").Message, Times: 1})
	o.Visibility = 2 * time.Second
	b.rested(o)
	garbage := `{"v":2,"lane":"long"}`
	b.put("long", garbage)
	job := b.bells.submit("long")
	b.sender().Ring("long")
	eventually(t, "the bell beside it is answered", func() bool { return b.bells.ran(job) })
	if body, _ := b.get("dead"); body != garbage {
		t.Errorf("in the dead-letter queue: %s", body)
	}
	if got := metric(t, b.reg, "lanegate_doorbell_messages_unknown_total", map[string]string{"lane": "long"}); got != 3 {
		t.Errorf("unknown = %v, want 3 receives of one message", got)
	}
	eventually(t, "the queue is empty", func() bool { return b.held("long") == 0 })
}

// C07: with a visibility of a few seconds, or of one, no message dies before it is
// answered: every job runs, and no bell ends in the dead-letter queue.
func TestSQSShortVisibility(t *testing.T) {
	t.Parallel()
	for _, visibility := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second} {
		t.Run(visibility.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sqstest.Shared(t))
			b.createWithDead("short", 3)
			o := b.options()
			o.Visibility = visibility
			b.rested(o)
			sender := b.sender()
			var jobs []string
			for range 10 {
				jobs = append(jobs, b.bells.submit("short"))
				sender.Ring("short")
			}
			eventually(t, "the jobs run", func() bool { return b.bells.ran(jobs...) })
			eventually(t, "the queue is empty", func() bool { return b.held("short") == 0 })
			if n := b.held("dead"); n != 0 {
				t.Errorf("%d bells in the dead-letter queue", n)
			}
		})
	}
}

// SQS.md 3.7: a stop lets the open poll end; the next worker gets the next message
// with receive count 1.
func TestSQSStopWhileIdle(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	s, stop := b.open(b.options())
	b.worker(s, nil)
	eventually(t, "a poll is open", func() bool { return b.proxy.Count("ReceiveMessage") >= 2 })
	stop()
	b.put("parallel", `{"v":1,"lane":"parallel","job":"x"}`)
	if _, count := b.get("parallel"); count != 1 {
		t.Errorf("receive count %d after a stop, want 1", count)
	}
}

// What arrives in the poll that is open at the stop is given back at once.
func TestSQSStopGivesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Visibility = 60 * time.Second
	_, stop := b.open(o) // nobody answers its rings
	b.put("parallel", `{"v":1,"lane":"parallel","job":"x"}`)
	eventually(t, "in its hands", func() bool { return b.proxy.Count("ReceiveMessage") >= 3 && b.log.lines() > 0 })
	stop()
	if _, count := b.get("parallel"); count > 2 {
		t.Errorf("receive count %d, want at most 2", count)
	}
}

// A stop begins with receiving: what an open poll still brings goes back at once,
// while the bells of runs that end during the drain are sent as ever.
func TestSQSStopReceiving(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Visibility = 30 * time.Second
	s, stop := b.open(o)
	eventually(t, "it polls", func() bool { return b.proxy.Count("ReceiveMessage") > 0 })
	s.StopReceiving()
	s.StopReceiving()
	<-time.After(2 * o.Wait) // polls that were open have ended
	open := b.proxy.Count("ReceiveMessage")
	<-time.After(2 * o.Wait)
	if n := b.proxy.Count("ReceiveMessage"); n > open {
		t.Errorf("%d polls began after receiving had been stopped", n-open)
	}
	b.bells.submit("parallel")
	s.Ring("parallel")
	eventually(t, "the bell is sent during the drain", func() bool { return b.held("parallel") == 1 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the rest of the stop took %v: no poll was open any more", took)
	}
}

// The start-up line names endpoint, region and every lane's queue.
func TestSQSSaysWhereItRings(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.lanes = append(b.lanes, lanegate.Lane{Name: "a.b"}, lanegate.Lane{Name: "long", Queue: "https://sqs.eu-west-1.amazonaws.com/1/theirs"})
	b.sender()
	line, _, _ := strings.Cut(b.log.String(), "\n")
	for _, want := range []string{"endpoint=" + b.proxy.URL, "region=us-east-1", "serial=" + b.prefix + "serial", "a.b=" + b.prefix + "a_b", "long=https://sqs.eu-west-1.amazonaws.com/1/theirs"} {
		if !strings.Contains(line, want) {
			t.Errorf("the line lacks %q:\n%s", want, line)
		}
	}
}

func TestSQSRefusesBadOptions(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	b := &bench{bells: newFakeBells()}
	for want, edit := range map[string]func(o *queue.SQSOptions){
		"no TLS":             func(o *queue.SQSOptions) { o.Region, o.URL = "x", "http://127.0.0.1:1" },
		"no AWS region":      func(*queue.SQSOptions) {},
		"queue prefix":       func(o *queue.SQSOptions) { o.Region, o.Prefix = "x", "a.b" },
		"wait for SQS":       func(o *queue.SQSOptions) { o.Region, o.Wait = "x", 21*time.Second },
		"visibility of SQS":  func(o *queue.SQSOptions) { o.Region, o.Visibility = "x", time.Millisecond },
		"at most 17 letters": func(o *queue.SQSOptions) { o.Region, o.Prefix = "x", strings.Repeat("a", 18) },
	} {
		o := queue.SQSOptions{Bells: b.bells, Lanes: nil, Log: b.log.logger()}
		o.Lanes = newBenchless().Lanes
		edit(&o)
		if _, err := queue.OpenSQS(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want one that says %q", err, want)
		}
	}
}

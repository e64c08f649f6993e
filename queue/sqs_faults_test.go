//go:build linux

package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/queue/sqstest"
	"github.com/lanegate/lanegate/service"
)

// SQS.md 3.8: a queue that was never there stops nobody, is looked for slowly,
// never made, and noted once it exists.
func TestSQSMissingQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.lanes = append(b.lanes, lanegate.Lane{Name: "late"})
	o := b.options()
	o.Registerer = b.reg
	s, _ := b.open(o)
	b.worker(s, nil)
	api := b.sender()
	up := func(lane string) float64 {
		return metric(t, b.reg, "lanegate_doorbell_queue_up", map[string]string{"lane": lane})
	}
	eventually(t, "the lane is reported", func() bool { return strings.Contains(s.Problems()["late"], "does not exist") })
	eventually(t, "the others work", func() bool { return len(s.Problems()) == 1 && up("serial") == 1 && up("late") == 0 })
	eventually(t, "the sender looked, too", func() bool { return strings.Contains(api.Problems()["late"], "does not exist") })
	job := b.bells.submit("late")
	api.Ring("late")
	eventually(t, "its bells don't pile up", func() bool { return b.bells.due() == 0 })
	if b.bells.ran(job) {
		t.Error("the job ran although nothing can have rung for it")
	}
	if seen, _ := b.bells.counts("late"); seen != 0 {
		t.Error("a missing queue was noted as seen")
	}
	if seen, _ := b.bells.counts("serial"); seen != 2 {
		t.Errorf("the queue of serial was noted %d times, want once by each process", seen)
	}
	if out := b.log.String(); strings.Count(out, "queue="+b.prefix+"late") != 2 { // one line of each
		t.Errorf("log:\n%s", out)
	}
	b.create("late", nil)
	eventually(t, "noted and rung again", func() bool {
		seen, rung := b.bells.counts("late")
		return seen == 2 && rung >= 2 && len(s.Problems()) == 0 && len(api.Problems()) == 0 && up("late") == 1
	})
	eventually(t, "the job runs", func() bool { return b.bells.ran(job) })
}

// SQS.md section 4: a queue is deleted and made again.
func TestSQSQueueDeletedAndMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Registerer = b.reg
	s := b.rested(o)
	api := b.sender()
	first := b.bells.submit("parallel")
	api.Ring("parallel")
	eventually(t, "all is well", func() bool { return b.bells.ran(first) && b.held("parallel") == 0 })

	b.delete("parallel")
	eventually(t, "both notice", func() bool {
		api.Ring("parallel")
		b.bells.submit("parallel")
		return s.Problems()["parallel"] != "" && api.Problems()["parallel"] != ""
	})
	calls, lines := b.proxy.Count("GetQueueUrl"), b.log.lines()
	pause(2 * time.Second)
	// Two processes look at most every 200 ms, half of the longest backoff.
	if n := b.proxy.Count("GetQueueUrl") - calls; n < 2 || n > 22 {
		t.Errorf("%d looks for the queue in 2s", n)
	}
	if n := b.log.lines() - lines; n > 0 {
		t.Errorf("%d more lines in 2s:\n%s", n, b.log.String())
	}
	b.create("parallel", nil)
	eventually(t, "both are back", func() bool { return len(s.Problems()) == 0 && len(api.Problems()) == 0 })
	if _, rung := b.bells.counts("parallel"); rung < 2 {
		t.Errorf("the lane was rung %d times, want by each", rung)
	}
	last := b.bells.submit("parallel")
	api.Ring("parallel")
	eventually(t, "it goes on", func() bool { return b.bells.ran(last) && b.held("parallel") == 0 })
}

// pause lets real servers and loops go on for a while: what must not happen can't be awaited.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// Refusals in both of their forms, throttling and faults of the server: few
// calls, few lines, a problem that says what it is, and an end by itself.
func TestSQSFaults(t *testing.T) {
	t.Parallel()
	server := sqstest.Shared(t)
	for name, c := range map[string]struct {
		fault   func(action string) sqstest.Fault
		outcome string
		says    string
		dropped bool // bells for it are not kept
	}{
		"denied":               {func(a string) sqstest.Fault { return sqstest.Denied(a, false) }, "denied", "may not", true},
		"denied, older code":   {func(a string) sqstest.Fault { return sqstest.Denied(a, true) }, "denied", "may not", true},
		"throttled":            {sqstest.Throttled, "throttled", "slow down", false},
		"over the limit":       {func(a string) sqstest.Fault { return sqstest.Fault{Action: a, Status: 400, Code: "OverLimit"} }, "throttled", "slow down", false},
		"expired credentials":  {func(a string) sqstest.Fault { return sqstest.Fault{Action: a, Status: 403, Code: "ExpiredToken"} }, "credentials", "credentials", false},
		"an invalid parameter": {sqstest.TwelveHours, "invalid", "refuses", false},
		"the same, prefixed": {func(a string) sqstest.Fault {
			return sqstest.Fault{Action: a, Status: 403, Code: "AWS.SimpleQueueService.AccessDenied"}
		}, "denied", "may not", true},
		"a fault of the server": {func(a string) sqstest.Fault { return sqstest.Fault{Action: a, Status: 500, Code: "InternalError"} }, "away", "no answer", false},
		"lost answers":          {func(a string) sqstest.Fault { return sqstest.Fault{Action: a, Drop: true} }, "away", "no answer", false},
	} {
		actions := []string{"ReceiveMessage"}
		if c.outcome == "denied" || name == "throttled" || name == "lost answers" {
			actions = append(actions, "SendMessageBatch")
		}
		for _, action := range actions {
			t.Run(name+" at "+action, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, server)
				o := b.options()
				o.Registerer = b.reg
				s, _ := b.open(o)
				eventually(t, "all is well", func() bool {
					return metric(t, b.reg, "lanegate_doorbell_queue_up", nil) == 2
				})
				before, lines := b.proxy.Count(action), b.log.lines()
				b.proxy.Inject(c.fault(action))
				b.bells.submit("parallel")
				s.Ring("parallel")
				eventually(t, "the problem is told", func() bool { return strings.Contains(s.Problems()["parallel"], c.says) })
				if metric(t, b.reg, "lanegate_doorbell_calls_total", map[string]string{"action": action, "outcome": c.outcome}) == 0 {
					t.Errorf("no call of %s counted as %s", action, c.outcome)
				}
				pause(time.Second)
				if n := b.proxy.Count(action) - before; n > 60 { // of two lanes, with the SDK's own repeats
					t.Errorf("%d calls in a second", n)
				}
				if n := b.log.lines() - lines; n > 4 {
					t.Errorf("%d lines in a second:\n%s", n, b.log.String())
				}
				b.proxy.Clear()
				if c.dropped && action == "SendMessageBatch" {
					if b.bells.due() != 0 {
						t.Error("bells pile up for a queue that refuses them")
					}
					b.bells.submit("parallel") // what is refused is not tried again at once
					eventually(t, "sends are tried again", func() bool {
						_ = b.bells.RingLane(t.Context(), "parallel")
						s.Ring("parallel")
						return b.held("parallel") > 0
					})
				}
				b.worker(s, nil)
				eventually(t, "it is over", func() bool {
					return len(s.Problems()) == 0 && b.bells.due() == 0 && b.held("parallel") == 0
				})
			})
		}
	}
}

// A server that never lets a poll wait is not asked in a hot loop.
func TestSQSAnswersThatDontWait(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.lanes = b.lanes[:1]
	b.proxy.Inject(sqstest.Fault{Action: "ReceiveMessage", RewriteRequest: func(body []byte) []byte {
		return []byte(strings.Replace(string(body), `"WaitTimeSeconds":1`, `"WaitTimeSeconds":0`, 1))
	}})
	b.open(b.options())
	pause(2 * time.Second)
	if n := b.proxy.Count("ReceiveMessage"); n < 2 || n > 12 {
		t.Errorf("%d receive calls in 2s", n)
	}
}

// An idle process makes one receive call per lane and wait, and no other.
func TestSQSIdle(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	s, _ := b.open(b.options())
	b.worker(s, nil)
	eventually(t, "it polls", func() bool { return b.proxy.Count("ReceiveMessage") >= 2 })
	pause(3 * time.Second)
	if n := b.proxy.Count("ReceiveMessage"); n > 2*4 {
		t.Errorf("%d receive calls of two lanes in 3s with a wait of 1s", n)
	}
	for _, action := range []string{"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch", "GetQueueAttributes"} {
		if n := b.proxy.Count(action); n > 0 {
			t.Errorf("%d calls of %s", n, action)
		}
	}
}

// Issue "Production", 4: with full batches at most 0.35 calls per job.
func TestSQSCallsPerJob(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.lanes = b.lanes[1:]
	o := b.options()
	o.Space = time.Second
	api := func(o queue.SQSOptions) *queue.SQS { o.SendOnly = true; a, _ := b.open(o); return a }(o)
	o.Registerer, o.Visibility = b.reg, time.Minute
	s, _ := b.open(o)
	b.idleWorker(s) // what starts at once needs no message
	eventually(t, "all is ready", func() bool { return len(api.Problems()) == 0 && b.proxy.Count("ReceiveMessage") >= 1 })
	const jobs = 300
	idle := b.proxy.Count("ReceiveMessage")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range jobs {
		b.bells.submit("parallel")
		api.Ring("parallel")
		<-tick.C
	}
	eventually(t, "all are answered", func() bool {
		return b.bells.due() == 0 && metric(t, b.reg, "lanegate_doorbell_messages_deleted_total", nil) == jobs
	})
	calls := map[string]int{}
	sum := 0
	for _, action := range []string{"SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"} {
		calls[action] = b.proxy.Count(action)
		sum += calls[action]
	}
	sum -= idle
	t.Logf("%d jobs: %v, %.3f calls per job", jobs, calls, float64(sum)/jobs)
	if float64(sum)/jobs > 0.35 {
		t.Errorf("%v calls for %d jobs", calls, jobs)
	}
}

// SQS.md 3.6: an idle lane whose bells got lost is rung again, unless SQS still
// has as many messages as jobs wait.
func TestSQSSweep(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	o := b.options()
	o.Sweep, o.SendOnly, o.Registerer = 50*time.Millisecond, true, b.reg
	b.bells.stale = []service.StaleLane{{Lane: "parallel", Queued: 2}, {Lane: "gone", Queued: 1}}
	b.open(o)
	eventually(t, "rung again", func() bool {
		return metric(t, b.reg, "lanegate_doorbell_rung_again_total", map[string]string{"lane": "parallel"}) >= 2
	})
	b.put("parallel", "1")
	b.put("parallel", "2")
	eventually(t, "a queue as deep as the line is seen", func() bool {
		_, before := b.bells.counts("parallel")
		asked := b.proxy.Count("GetQueueAttributes")
		eventually(t, "three more sweeps", func() bool { return b.proxy.Count("GetQueueAttributes") >= asked+3 })
		_, after := b.bells.counts("parallel")
		return before == after
	})
}

// C76: SQS answers empty, without an error, although jobs wait and were rung.
func TestSQSNothingReceived(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.proxy.Inject(sqstest.Fault{Action: "ReceiveMessage", Rewrite: func([]byte) []byte { return []byte("{}") }})
	o := b.options()
	o.Sweep, o.Unheard, o.Registerer = 50*time.Millisecond, 100*time.Millisecond, b.reg
	b.bells.stale = []service.StaleLane{{Lane: "parallel", Queued: 2}}
	b.open(o)
	unheard := func(lane string) float64 {
		return metric(t, b.reg, "lanegate_doorbell_unheard_seconds", map[string]string{"lane": lane})
	}
	eventually(t, "it is told", func() bool {
		return unheard("parallel") > 0.1 && strings.Contains(b.log.String(), "nothing comes from its queue")
	})
	if unheard("serial") != 0 || strings.Count(b.log.String(), "nothing comes from its queue") != 1 {
		t.Errorf("serial %v; log:\n%s", unheard("serial"), b.log.String())
	}
}

// C09, C12: a bell whose deletion fails, for a job that is done, is deleted the next
// time; one that has reached a dead-letter queue is nobody's job.
func TestSQSBellsOfFinishedJobs(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqstest.Shared(t))
	b.createWithDead("long", 5)
	job := b.bells.submit("long")
	bell := `{"v":1,"lane":"long","job":"` + job + `"}`
	b.put("dead", bell)
	b.put("long", bell)
	b.proxy.Inject(sqstest.Fault{Action: "DeleteMessageBatch", Status: 400, Code: "InternalFailure", Times: 3})
	o := b.options()
	o.Visibility, o.Registerer = 2*time.Second, b.reg
	s, _ := b.open(o)
	b.worker(s, nil)
	eventually(t, "deleted the next time", func() bool { return b.held("long") == 0 })
	if n := metric(t, b.reg, "lanegate_doorbell_calls_total", map[string]string{"action": "DeleteMessageBatch", "outcome": "away"}); n != 3 {
		t.Errorf("%v failed deletions are counted, want 3", n)
	}
	if n := b.held("dead"); n != 1 {
		t.Errorf("%d messages in the dead-letter queue; want the one that was there", n)
	}
}

// SQS.md section 4: SQS loses everything while 1,000 jobs wait: once its queues are
// there again what waits is rung again, nothing else is needed.
func TestSQSLosesEverything(t *testing.T) {
	t.Parallel()
	server := sqstest.New(t)
	b := newBench(t, server)
	o := b.options()
	var busy atomic.Bool
	o.Gate = func(string) bool { return !busy.Load() }
	b.rested(o)
	busy.Store(true)
	polls := func() int { return b.proxy.Count("ReceiveMessage") }
	eventually(t, "nothing is received any more", func() bool {
		before := polls()
		pause(2 * o.Wait)
		return polls() == before
	})
	api := b.sender()
	var jobs []string
	const waiting = 1000
	for range waiting {
		jobs = append(jobs, b.bells.submit("parallel"))
	}
	api.Ring("parallel")
	eventually(t, "all are sent", func() bool { return b.bells.due() == 0 && b.held("parallel") == waiting })
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	busy.Store(false) // it finds its queues gone
	eventually(t, "the loss is told", func() bool { return strings.Contains(b.log.String(), "does not exist") })
	if b.bells.ran(jobs[0]) {
		t.Error("a job ran although SQS has nothing")
	}
	for _, l := range b.lanes {
		b.create(l.Name, nil)
	}
	eventually(t, "all run", func() bool { return b.bells.ran(jobs...) })
}

// Opening needs the lanes, for the line that names their queues.
func TestSQSNeedsItsLanes(t *testing.T) {
	o := queue.SQSOptions{SQSEndpoint: queue.SQSEndpoint{Region: "x"}, Bells: newFakeBells(), Log: (&logBook{}).logger()}
	o.Lanes = func(context.Context) ([]lanegate.Lane, error) { return nil, errors.New("no database") }
	if _, err := queue.OpenSQS(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("error = %v", err)
	}
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "required") {
			t.Errorf("panic = %v", p)
		}
	}()
	_, _ = queue.OpenSQS(t.Context(), queue.SQSOptions{})
}

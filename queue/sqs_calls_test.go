//go:build linux

package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
)

// memSQS is one queue in memory: it answers at once, and lets a receive wait as long
// as it asks. So calls can be counted in the time of a synctest bubble.
type memSQS struct {
	mu       sync.Mutex
	counts   map[string]int      // by action; guarded by mu
	messages []map[string]string // guarded by mu
	sent     time.Time           // of the last message; guarded by mu
	wake     chan struct{}       // holds one token: there are messages
}

func newMemSQS() *memSQS { return &memSQS{counts: map[string]int{}, wake: make(chan struct{}, 1)} }

func (m *memSQS) client() *sqs.Client {
	return sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://memory"), HTTPClient: m,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""), DisableMessageChecksumValidation: true,
	})
}

// Do implements the SDK's HTTP client.
func (m *memSQS) Do(r *http.Request) (*http.Response, error) {
	var in struct {
		WaitTimeSeconds int
		Entries         []struct{ ID, MessageBody string }
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	m.mu.Lock()
	m.counts[action]++
	m.mu.Unlock()
	out := map[string]any{"QueueUrl": "http://memory/1/q"}
	switch action {
	case "SendMessageBatch", "DeleteMessageBatch":
		var done []map[string]string
		for _, e := range in.Entries {
			done = append(done, map[string]string{"Id": e.ID, "MessageId": e.ID})
			if action == "SendMessageBatch" {
				m.put(e.MessageBody)
			}
		}
		out["Successful"] = done
	case "ReceiveMessage":
		out["Messages"] = m.receive(time.Duration(in.WaitTimeSeconds) * time.Second)
	}
	body, err := json.Marshal(out)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}, err
}

func (m *memSQS) put(body string) {
	m.mu.Lock()
	m.messages = append(m.messages, map[string]string{"Body": body, "ReceiptHandle": "r", "MessageId": "m"})
	m.sent = time.Now()
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *memSQS) receive(wait time.Duration) (messages []map[string]string) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		m.mu.Lock()
		messages = m.messages[:min(10, len(m.messages))]
		m.messages = m.messages[len(messages):]
		m.mu.Unlock()
		if len(messages) > 0 {
			return messages
		}
		select {
		case <-timer.C:
			return nil
		case <-m.wake:
		}
	}
}

// count is how many calls of the actions came; none: of those that a job costs.
func (m *memSQS) count(actions ...string) (n int) {
	if len(actions) == 0 {
		actions = []string{"SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range actions {
		n += m.counts[a]
	}
	return n
}

// timed is a number of accepting gateways and a receiving one in a bubble, with the
// times that they have by default.
type timed struct {
	sqs     *memSQS
	bells   *fakeBells
	senders []*queue.SQS
}

func newTimed(t *testing.T, senders int) *timed {
	t.Helper()
	w := &timed{sqs: newMemSQS(), bells: newFakeBells()}
	var log logBook
	o := queue.SQSOptions{
		Bells: w.bells, Log: log.logger(),
		Lanes: func(context.Context) ([]lanegate.Lane, error) { return []lanegate.Lane{{Name: "parallel"}}, nil },
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	open := func(o queue.SQSOptions) *queue.SQS {
		s, err := queue.OpenOver(ctx, o, w.sqs.client())
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { s.Run(ctx) })
		return s
	}
	receiver := open(o)
	all.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-receiver.Rings():
				receiver.Asking()(service.PassCommitted)
			}
		}
	})
	o.SendOnly = true
	for range senders {
		w.senders = append(w.senders, open(o))
	}
	t.Cleanup(func() { cancel(); all.Wait() })
	time.Sleep(time.Minute) // by the bubble's clock: their start is over
	return w
}

// Issue "Production", 4: from ten jobs a second on a job costs at most 0.35 calls of
// SQS, however many gateways take the jobs in, and a bell waits little longer than Space.
func TestSQSCallsPerJobByRate(t *testing.T) {
	t.Parallel()
	for _, senders := range []int{1, 3} {
		for _, perSecond := range []int{10, 11, 12, 15, 19, 33, 100} {
			t.Run(fmt.Sprintf("%d a second at %d gateways", perSecond, senders), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newTimed(t, senders)
					before, jobs := w.sqs.count(), 60*perSecond
					var oldest time.Duration
					for i := range jobs {
						w.bells.submit("parallel")
						w.senders[i%senders].Ring("parallel")
						time.Sleep(time.Second / time.Duration(perSecond))
						oldest = max(oldest, w.bells.oldest())
					}
					perJob := float64(w.sqs.count()-before) / float64(jobs)
					t.Logf("%.3f calls a job: %d sends, %d receives, %d deletes; the oldest bell waited %v", perJob,
						w.sqs.count("SendMessageBatch"), w.sqs.count("ReceiveMessage"), w.sqs.count("DeleteMessageBatch"), oldest)
					if perJob > 0.35 {
						t.Errorf("%.3f calls a job, want at most 0.35", perJob)
					}
					if oldest > 1100*time.Millisecond {
						t.Errorf("a bell waited %v", oldest)
					}
				})
			})
		}
	}
}

// Jobs that come at random, 12 a second on average, each at a gateway of its own choice.
func TestSQSCallsPerJobAtRandom(t *testing.T) {
	t.Parallel()
	for _, senders := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d gateways", senders), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, random := newTimed(t, senders), rand.New(rand.NewPCG(1, 2))
				const jobs = 1000
				before := w.sqs.count()
				for range jobs {
					w.bells.submit("parallel")
					w.senders[random.IntN(senders)].Ring("parallel")
					time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second/12)))
				}
				perJob := float64(w.sqs.count()-before) / jobs
				t.Logf("%.3f calls a job", perJob)
				if perJob > 0.35 {
					t.Errorf("%.3f calls a job, want at most 0.35", perJob)
				}
			})
		})
	}
}

// A lone bell does not wait for others, at whichever gateway; one that follows soon waits for
// a second at most; what is due without a ring is sent when it is due.
func TestSQSLoneBell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTimed(t, 3)
		heard := func(what string, at int, most time.Duration) {
			t.Helper()
			began := time.Now()
			w.bells.submit("parallel")
			w.senders[at].Ring("parallel")
			time.Sleep(5 * time.Second)
			if took := w.sqs.lastSent().Sub(began); took < 0 || took > most {
				t.Errorf("%s was sent after %v, want %v at most", what, took, most)
			}
		}
		heard("a lone bell", 0, 50*time.Millisecond)
		heard("a lone bell elsewhere", 1, 50*time.Millisecond)
		w.bells.submit("parallel")
		w.senders[0].Ring("parallel")
		time.Sleep(200 * time.Millisecond)
		heard("one that follows soon", 0, 1050*time.Millisecond)
	})
}

func (m *memSQS) lastSent() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent
}

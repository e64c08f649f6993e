package sqstest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what happens to calls. Its zero value does nothing to all of them.
type Fault struct {
	Action string // e.g. "SendMessageBatch"; "" every one
	Times  int    // how many calls; 0: until it is removed

	// Status and Code answer instead of the server, with Message. QueryCode is the
	// code of the older protocol, which real SQS sends along in a header.
	Status         int
	Code           string
	Message        string
	QueryCode      string
	Delay          time.Duration             // before anything else
	Hang           bool                      // no answer until the fault is removed or the client leaves
	Drop           bool                      // the server gets the call, the client no answer
	Twice          bool                      // the server gets the call twice
	Rewrite        func(body []byte) []byte  // of the server's answer
	RewriteRequest func(body []byte) []byte  // of what the server gets
	When           func(request []byte) bool // which calls; nil: all
}

// TwelveHours is what SQS answers when a message would stay invisible for longer
// than 12 hours in all.
func TwelveHours(action string) Fault {
	return Fault{Action: action, Status: http.StatusBadRequest, Code: "InvalidParameterValue",
		Message: "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"}
}

// Throttled is what SQS answers when it asks to slow down.
func Throttled(action string) Fault {
	return Fault{Action: action, Status: http.StatusBadRequest, Code: "RequestThrottled", QueryCode: "RequestThrottled", Message: "slow down"}
}

// Denied is a refusal for lack of permission, with or without the older code.
func Denied(action string, query bool) Fault {
	f := Fault{Action: action, Status: http.StatusForbidden, Code: "AccessDeniedException", Message: "not authorized to perform: sqs:" + action}
	if query {
		f.QueryCode = "AccessDenied"
	}
	return f
}

// Proxy passes calls on to a server, but for those that a fault hits.
type Proxy struct {
	URL string

	to     string
	client *http.Client
	mu     sync.Mutex
	faults []*injected    // guarded by mu
	counts map[string]int // calls by action, faults included; guarded by mu
}

type injected struct {
	Fault
	left    int
	removed chan struct{}
}

// NewProxy starts a proxy in front of a server; it ends with the test.
func NewProxy(tb testing.TB, server *Server) *Proxy {
	tb.Helper()
	p := &Proxy{to: server.URL, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}, counts: map[string]int{}}
	front := httptest.NewServer(p)
	p.URL = front.URL
	tb.Cleanup(func() {
		p.Clear()
		front.CloseClientConnections()
		front.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// Inject adds a fault; of several the first that fits hits a call.
func (p *Proxy) Inject(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, &injected{f, f.Times, make(chan struct{})})
}

// Clear removes all faults.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		close(f.removed)
	}
	p.faults = nil
}

// Count is how many calls of an action came in.
func (p *Proxy) Count(action string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[action]
}

// fault counts a call and finds what happens to it.
func (p *Proxy) fault(action string, request []byte) *injected {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[action]++
	for i, f := range p.faults {
		if f.Action != "" && f.Action != action || f.When != nil && !f.When(request) {
			continue
		}
		if f.Times > 0 {
			if f.left--; f.left == 0 {
				p.faults = slices.Delete(p.faults, i, i+1)
			}
		}
		return f
	}
	return &injected{}
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	f := p.fault(action, body)
	if f.Hang {
		select {
		case <-r.Context().Done():
		case <-f.removed:
		}
		panic(http.ErrAbortHandler)
	}
	if f.Delay > 0 {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(f.Delay):
		}
	}
	if f.Status != 0 {
		f.refuse(w)
		return
	}
	if f.RewriteRequest != nil {
		body = f.RewriteRequest(body)
	}
	times := 1
	if f.Twice {
		times = 2
	}
	var a answer
	for range times {
		if a, err = p.pass(r, body); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if f.Drop {
		panic(http.ErrAbortHandler)
	}
	if f.Rewrite != nil {
		a.body = f.Rewrite(a.body)
	}
	for name, values := range a.header {
		if name != "Content-Length" && name != "Connection" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a client that has gone is none of our business
}

func (f *injected) refuse(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if f.QueryCode != "" {
		w.Header().Set("X-Amzn-Query-Error", f.QueryCode+";Sender")
	}
	w.WriteHeader(f.Status)
	fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#%s","message":%q}`, f.Code, f.Message)
}

// answer is the server's.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// pass sends the call on. A client that leaves doesn't take the server's call
// with it, as a real network would not.
func (p *Proxy) pass(r *http.Request, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, p.to+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, name := range []string{"Content-Type", "X-Amz-Target", "X-Amzn-Query-Mode", "Authorization", "X-Amz-Date"} {
		if v := r.Header.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	res, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, got}, err
}

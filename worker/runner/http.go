package runner

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate"
)

const (
	// DefaultHTTPTimeout is the time limit of a request whose class declares none:
	// a synchronous request is for minutes, not hours.
	DefaultHTTPTimeout = time.Hour
	// DefaultConnectFor is how long a connection is tried again before the run fails.
	DefaultConnectFor = 20 * time.Second
	// DefaultDrain is how much of a response is read at most.
	DefaultDrain = 16 << 20
)

const (
	dialTimeout  = 10 * time.Second
	connectPause = 100 * time.Millisecond // doubled each time, with full jitter
	connectMost  = 5 * time.Second
	// keepAlive is well below the 350 s after which common NATs forget a quiet connection.
	keepAlive = 30 * time.Second
)

// HTTPOptions configure an HTTP runner.
type HTTPOptions struct {
	Timeout    time.Duration // DefaultHTTPTimeout when zero
	ConnectFor time.Duration // DefaultConnectFor when zero
	Drain      int64         // bytes; DefaultDrain when zero
	Head, Tail int           // bytes of the response kept as output; DefaultKeep when zero
	// UserAgent is sent with each request; "lanegate" when "".
	UserAgent string
	// PublicURL is where asynchronous targets reach the gateway, without a slash
	// behind; "" when nobody said.
	PublicURL string
	Logger    *slog.Logger // slog.Default when nil
}

// HTTP runs jobs by POSTing their payload to a URL and waiting for the answer. It
// is safe for concurrent use.
type HTTP struct {
	opts      HTTPOptions
	transport *http.Transport
}

// NewHTTP returns a runner; it opens no connection yet.
func NewHTTP(o HTTPOptions) *HTTP {
	if o.Timeout == 0 {
		o.Timeout = DefaultHTTPTimeout
	}
	if o.ConnectFor == 0 {
		o.ConnectFor = DefaultConnectFor
	}
	if o.Drain == 0 {
		o.Drain = DefaultDrain
	}
	if o.Head == 0 {
		o.Head = DefaultKeep
	}
	if o.Tail == 0 {
		o.Tail = DefaultKeep
	}
	if o.UserAgent == "" {
		o.UserAgent = "lanegate"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	dialer := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 4},
	}
	return &HTTP{opts: o, transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: dialTimeout,
		// One connection per run: an idle one that the target has closed meanwhile
		// would make net/http send a request twice or us call one lost.
		DisableKeepAlives: true,
		// The body is judged and kept as it was sent.
		DisableCompression:     true,
		MaxResponseHeaderBytes: 1 << 20,
		// HTTP/1 only: an HTTP/2 transport repeats refused requests by itself.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}
}

// timeLimit is the cause of a context whose time limit, itself, is over.
type timeLimit time.Duration

func (l timeLimit) Error() string {
	return "no answer within " + lanegate.FormatDuration(time.Duration(l))
}

// Run implements Runner for a run of kind http, in mode sync.
//
// 2xx is succeeded; 429 and 503 with a usable Retry-After are deferred; other 4xx
// than 408, 425 and 429 failed for good; everything else failed, redirects
// included, which are never followed. A connection that can't be established is
// tried again for a while and then failed. Once a connection stood, the request
// may have arrived: without a complete answer the run is lost, or timed_out when
// its time limit is over.
//
// A stop ends the request, not the target's work, which nobody here can end: the
// ending says so.
//
// The job's id is sent as Idempotency-Key, the same with every attempt, so that a
// target can recognise a repeat; Lanegate-Attempt tells attempts apart.
//
// In mode async the target also gets the attempt's token, and 202 means that it
// has taken the run over: there is no outcome yet. The same holds when the request
// may have arrived and no whole answer came, for whatever reason, a stop included:
// if the target has it, it will say so; if not, the attempt's deadline passes. Any
// other answer is judged as in mode sync. The answer must come within the run's
// heartbeat, as the attempt is lost then.
func (h *HTTP) Run(ctx context.Context, job Job, lease Lease) lanegate.Ending {
	began := time.Now()
	ctx, release := withLease(ctx, lease)
	defer release()
	limit := job.Timeout
	if limit == 0 {
		limit = h.opts.Timeout
	}
	if job.Run.Detached() {
		limit = heartbeatOf(job.Run)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, timeLimit(limit))
	defer cancel()
	end := h.run(ctx, job)
	end.Duration = max(time.Since(began), 1)
	return end
}

// heartbeatOf is the run's heartbeat with its default.
func heartbeatOf(r lanegate.Run) time.Duration {
	if r.Heartbeat > 0 {
		return r.Heartbeat.Std()
	}
	return lanegate.DefaultHeartbeat.Std()
}

func (h *HTTP) run(ctx context.Context, job Job) lanegate.Ending {
	resp, sent, err := h.connectAndPost(ctx, job)
	if err != nil {
		if sent && job.Run.Detached() {
			h.opts.Logger.WarnContext(ctx, "no whole answer from an asynchronous target; it has the run, or the attempt's deadline will pass",
				"job", job.ID, "class", job.Class, "attempt", job.Attempt, "err", err)
			return lanegate.Ending{}
		}
		return h.unanswered(ctx, sent, err)
	}
	defer resp.Body.Close()
	if job.Run.Detached() && resp.StatusCode == http.StatusAccepted {
		return lanegate.Ending{Status: resp.StatusCode}
	}
	log, result := newCapture(h.opts.Head, h.opts.Tail), &resultBuffer{}
	read, err := io.CopyBuffer(io.MultiWriter(log, result), io.LimitReader(resp.Body, h.opts.Drain), make([]byte, readSize))
	end := judge(resp.StatusCode, resp.Header, time.Now())
	if err != nil && end.Outcome == lanegate.Succeeded {
		// The target said 200 and broke off: whether it has done its work is open.
		end = h.unanswered(ctx, true, err)
	}
	end.Status = resp.StatusCode
	end.Output = log.output()
	if err == nil && read < h.opts.Drain {
		end.Result = result.result()
	}
	return end
}

// unanswered is the ending of a request without a complete answer.
func (h *HTTP) unanswered(ctx context.Context, sent bool, err error) lanegate.Ending {
	cause := context.Cause(ctx)
	limit, timedOut := errors.AsType[timeLimit](cause)
	switch {
	case timedOut && sent:
		return lanegate.Ending{Outcome: lanegate.TimedOut, Error: "timed out, outcome unknown: " + limit.Error() + "; the request was sent and the target may still be working on it"}
	case timedOut:
		return lanegate.Ending{Outcome: lanegate.TimedOut, Error: "timed out, nothing was sent: no connection could be established within the time limit"}
	case cause != nil && sent:
		return stopped(reasonOf(cause), "the request was sent and the target may still be working on it")
	case cause != nil:
		return stopped(reasonOf(cause), "nothing was sent")
	case sent:
		return lanegate.Ending{Outcome: lanegate.Lost, Error: "the request was sent, but the answer did not arrive whole (" + err.Error() + "): the outcome is unknown"}
	}
	if fault, ok := errors.AsType[*requestFault](err); ok {
		return lanegate.Ending{Outcome: lanegate.Failed, Permanent: true, Error: fault.Error()}
	}
	return lanegate.Ending{Outcome: lanegate.Failed, Error: "no connection could be established, nothing was sent: " + err.Error()}
}

// connectAndPost sends the request once. Connections that can't be established
// are tried again for ConnectFor; sent says whether one was.
func (h *HTTP) connectAndPost(ctx context.Context, job Job) (resp *http.Response, sent bool, err error) {
	giveUp := time.Now().Add(h.opts.ConnectFor)
	for pause := connectPause; ; pause = min(2*pause, connectMost) {
		resp, sent, err = h.post(ctx, job)
		if err == nil || sent || ctx.Err() != nil || pointless(err) {
			return resp, sent, err
		}
		wait := rand.N(pause) + time.Millisecond // full jitter
		if time.Now().Add(wait).After(giveUp) {
			return resp, sent, err
		}
		select {
		case <-ctx.Done():
			return nil, false, err
		case <-time.After(wait):
		}
	}
}

// pointless says whether trying to connect again at once can't help.
func pointless(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	_, ok := errors.AsType[*requestFault](err)
	return ok
}

// requestFault is a request that can't even be written down.
type requestFault struct{ err error }

func (f *requestFault) Error() string { return "the request can't be built: " + f.err.Error() }
func (f *requestFault) Unwrap() error { return f.err }

// post makes one attempt. It uses the transport itself, below net/http's client:
// no redirect, cookie or repeat happens behind our back (the body can't be read
// twice: GetBody is nil). sent is true as soon as a connection is there.
func (h *HTTP) post(ctx context.Context, job Job) (_ *http.Response, sent bool, _ error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	body := io.NopCloser(bytes.NewReader(job.Payload))
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, job.Run.URL, body)
	if err != nil {
		return nil, false, &requestFault{err}
	}
	req.ContentLength = int64(len(job.Payload))
	if len(job.Payload) == 0 {
		req.Body = http.NoBody
	}
	h.setHeaders(req.Header, job)
	resp, err := h.transport.RoundTrip(req)
	return resp, connected.Load(), err
}

// setHeaders writes ours last: a class can't pretend to be another job.
func (h *HTTP) setHeaders(header http.Header, job Job) {
	header.Set("Content-Type", "application/json")
	header.Set("User-Agent", h.opts.UserAgent)
	for name, value := range job.Run.Headers {
		header.Set(name, value)
	}
	header.Set("Idempotency-Key", job.ID)
	header.Set("Lanegate-Job-Id", job.ID)
	header.Set("Lanegate-Attempt", strconv.Itoa(job.Attempt))
	header.Set("Lanegate-Class", job.Class)
	token, heartbeat, url := "", "", ""
	if job.Run.Detached() {
		token, heartbeat, url = job.Token, heartbeatSeconds(job.Run), attemptURL(h.opts.PublicURL, job)
	}
	for name, value := range map[string]string{
		"Lanegate-Logical-Date": job.LogicalDate, "Lanegate-Verification": job.Verification,
		"Lanegate-Token": token, "Lanegate-Heartbeat-Seconds": heartbeat, "Lanegate-Attempt-Url": url,
	} {
		header.Del(name)
		if value != "" {
			header.Set(name, printable(value))
		}
	}
}

// printable keeps a free text from breaking the request.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

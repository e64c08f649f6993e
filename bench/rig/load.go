package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Load is what a closed loop of clients saw.
type Load struct {
	Requests int // that were answered with a status below 300
	Took     time.Duration
	// Refused counts the answers with another status; Refusal is one of them.
	Refused int
	Refusal string
	times   []time.Duration // of the requests, ascending
}

// PerSecond is the rate of requests that were granted.
func (l Load) PerSecond() float64 { return float64(l.Requests) / l.Took.Seconds() }

// Quantile is the time within which that part of the requests was answered, in ms.
func (l Load) Quantile(q float64) float64 {
	if len(l.times) == 0 {
		return 0
	}
	i := min(len(l.times)-1, int(q*float64(len(l.times))))
	return float64(l.times[i].Nanoseconds()) / 1e6
}

// Client is one kept connection to an HTTP server. It does what a measurement
// needs and no more, so that the machine's time goes to the server: it writes
// requests that were made before and reads the status and the length of answers.
type Client struct {
	conn net.Conn
	r    *bufio.Reader
	body []byte
}

// Dial connects to host:port.
func Dial(addr string) (*Client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, r: bufio.NewReaderSize(conn, 16<<10)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// answerWait bounds the wait for one answer.
const answerWait = 60 * time.Second

// Do sends a request and returns the answer's status and body; the body is valid
// until the next call.
func (c *Client) Do(request []byte) (status int, body []byte, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return 0, nil, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return 0, nil, err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 12 {
		return 0, nil, fmt.Errorf("not an HTTP answer: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, fmt.Errorf("not an HTTP answer: %q", line)
	}
	length, err := c.headers()
	if err != nil {
		return 0, nil, err
	}
	c.body = c.body[:0]
	if length == chunked {
		return status, c.body, c.chunks()
	}
	return status, c.body, c.read(length)
}

const chunked = -1

var (
	headerLength   = []byte("content-length:")
	headerTransfer = []byte("transfer-encoding:")
)

// headers reads to the end of the headers and returns the body's length.
func (c *Client) headers() (length int, err error) {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		switch {
		case len(line) <= 2:
			return length, nil
		case hasPrefixFold(line, headerLength):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(headerLength):]))); err != nil {
				return 0, err
			}
		case hasPrefixFold(line, headerTransfer):
			length = chunked
		}
	}
}

func hasPrefixFold(line, prefix []byte) bool {
	return len(line) >= len(prefix) && bytes.EqualFold(line[:len(prefix)], prefix)
}

func (c *Client) read(n int) error {
	at := len(c.body)
	c.body = slices.Grow(c.body, n)[:at+n]
	_, err := io.ReadFull(c.r, c.body[at:])
	return err
}

func (c *Client) chunks() error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if err := c.read(int(n)); err != nil {
			return err
		}
		if _, err := c.r.Discard(2); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

// Target is where requests go.
type Target struct {
	Addr  string // host:port
	Token string // sent as a bearer token unless ""
}

// Post makes the text of a POST.
func (t Target) Post(path string, body []byte) []byte { return t.request("POST", path, body) }

// Get makes the text of a GET.
func (t Target) Get(path string) []byte { return t.request("GET", path, nil) }

func (t Target) request(method, path string, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, t.Addr)
	if t.Token != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", t.Token)
	}
	if method == "POST" {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

// Once sends one request on a connection of its own; an answer of 300 or more is an error.
func (t Target) Once(request []byte) ([]byte, error) {
	c, err := Dial(t.Addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	status, body, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	if status >= 300 {
		return nil, fmt.Errorf("%s: answer %d: %.300s", firstLine(request), status, body)
	}
	return body, nil
}

func firstLine(request []byte) string {
	line, _, _ := bytes.Cut(request, []byte("\r\n"))
	return string(line)
}

// Drive keeps conns connections busy for span, each sending its next request when
// the last was answered; next makes the requests of one connection. Refusals are
// counted; without a single granted request the answer is an error.
func (t Target) Drive(ctx context.Context, conns int, span time.Duration, next func(conn int) func() []byte) (Load, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, span, errSpanOver)
	defer cancel()
	var mu sync.Mutex
	var out Load
	var failed error
	var wg sync.WaitGroup
	began := time.Now()
	for i := range conns {
		wg.Go(func() {
			one, err := t.loop(ctx, next(i))
			mu.Lock()
			defer mu.Unlock()
			out.times = append(out.times, one.times...)
			if out.Refused += one.Refused; one.Refused > 0 {
				out.Refusal = one.Refusal
			}
			if err != nil {
				failed = err
				cancel()
			}
		})
	}
	wg.Wait()
	out.Took = time.Since(began)
	if failed == nil && !errors.Is(context.Cause(ctx), errSpanOver) {
		failed = context.Cause(ctx)
	}
	out.Requests = len(out.times)
	slices.Sort(out.times)
	if failed == nil && out.Requests == 0 {
		failed = fmt.Errorf("no request was granted within %v; %s", span, out.Refusal)
	}
	return out, failed
}

var errSpanOver = errors.New("the measurement's time is over")

func (t Target) loop(ctx context.Context, next func() []byte) (out Load, err error) {
	c, err := Dial(t.Addr)
	if err != nil {
		return out, err
	}
	defer func() { _ = c.Close() }()
	out.times = make([]time.Duration, 0, 1<<12)
	for ctx.Err() == nil {
		request := next()
		began := time.Now()
		status, body, err := c.Do(request)
		switch {
		case err != nil:
			return out, err
		case status >= 300:
			out.Refused, out.Refusal = out.Refused+1, fmt.Sprintf("%s: answer %d: %.300s", firstLine(request), status, body)
		default:
			out.times = append(out.times, time.Since(began))
		}
	}
	return out, nil
}

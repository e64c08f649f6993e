package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate"
)

// maxBodies bounds the bytes of all bodies in memory; two of the largest batches
// always fit.
const maxBodies = 256 << 20

// What a client only announces costs little: firstRead is how much memory a body gets
// at most before any of it has arrived, and growth how many times as much it gets
// whenever that is full.
const (
	firstRead = 4 << 10
	growth    = 4
)

// budget bounds the bytes of all request bodies in memory.
type budget struct {
	max  int64
	used atomic.Int64
}

// take reserves n bytes; false, and nothing reserved, when they are not left.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.max {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// readAll reads a body of at most limit bytes, with memory in step with what has
// arrived. A body that comes too slowly is 408: unlike 400 that is repeated.
func (a *API) readAll(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	held := &callOf(r.Context()).held
	var body []byte
	for {
		if len(body) == cap(body) {
			size := min(max(firstRead, growth*int64(cap(body))), limit+1) // one more shows that there is more
			if whole := r.ContentLength + 1; whole > int64(cap(body)) {
				size = min(size, whole)
			}
			if !a.bodies.take(size) {
				a.metrics.shed.Inc()
				return nil, lanegate.ErrOverloaded.With("the bodies of all requests take as much memory as they may; nothing was enqueued. Try again.")
			}
			*held += size
			body = append(make([]byte, 0, size), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			return nil, tooLarge(limit)
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it was for the body
			return body, nil
		case err != nil:
			return nil, readError(err)
		}
	}
}

// Bounds of linger: twice the largest batch, and what that takes on a local network.
const (
	lingerBytes = 32 << 20
	lingerTime  = 2 * time.Second
)

// linger takes in and forgets the rest of a refused body. Many clients (Python's
// http.client, and what is built on it) look at the answer only once they have
// sent everything; closing the connection before would reset it under them, and
// they would report a network fault and try again instead of showing the refusal.
// A client that waits for 100-continue has sent nothing yet, and need not.
func (a *API) linger(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody || r.Header.Get("Expect") != "" {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(min(lingerTime, a.o.BodyTimeout)))
	n, err := io.CopyN(io.Discard, r.Body, lingerBytes)
	if n == lingerBytes || (err != nil && !errors.Is(err, io.EOF)) {
		w.Header().Set("Connection", "close")
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// Codes of bodies that did not arrive.
const (
	codeSlow   = "body_too_slow"
	codeCutOff = "body_cut_off"
)

func readError(err error) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return &statusError{&lanegate.Error{
			Kind: lanegate.KindBadRequest, Code: codeSlow, Err: err,
			Message: "the body did not arrive in time; nothing was enqueued. Send it again.",
		}, http.StatusRequestTimeout}
	}
	return &lanegate.Error{
		Kind: lanegate.KindBadRequest, Code: codeCutOff,
		Message: "the body ended early; nothing was enqueued. Send it again.", Err: err,
	}
}

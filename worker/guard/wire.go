package guard

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// Descriptors of a guard beside 0, 1 and 2, which become the command's own.
const (
	ControlFD = 3 // orders from the gateway; its end is the gateway's death
	ReportFD  = 4 // reports to the gateway
	LockFD    = 5 // the runs lock, only when the spec says so
)

// PayloadName is the one file that a scratch directory usually holds.
const PayloadName = "payload.json"

// Reason names why a run is ended.
type Reason string

// Reasons of orders, and those that a guard finds itself.
const (
	ReasonNone      Reason = ""
	ReasonCancelled Reason = "cancelled"
	ReasonStopped   Reason = "stopped" // drained, or any other cause
	ReasonFenced    Reason = "fenced"  // told so, or the deadline came near
	ReasonTimedOut  Reason = "timed_out"
	ReasonOrphaned  Reason = "orphaned" // the gateway died
)

// Spec is the first order: what to run.
type Spec struct {
	Path    string // absolute
	Argv    []string
	Env     []string
	Dir     string        // absolute
	Grace   time.Duration // between TERM and KILL
	Timeout time.Duration // zero for no limit
	// Deadline on CLOCK_BOOTTIME, zero when there is none.
	Deadline time.Duration
	// Locked says that LockFD is open and is to be handed on to the command.
	Locked bool
	// Scratch is a directory to remove when the run has ended; "" for none.
	Scratch string
}

// Order is one message to a guard; exactly one field is set.
type Order struct {
	Spec     *Spec
	Deadline time.Duration // renewal
	Stop     Reason
}

// Event names what a guard reports, in this order: starting, then started or
// unstartable; or refused instead of these two; then ending (TERM is sent),
// exited (the command itself ended), stuck (any number), ended.
type Event string

// Events.
const (
	EventRefused     Event = "refused"     // nothing was started: Reason
	EventStarting    Event = "starting"    // from here on something may run
	EventUnstartable Event = "unstartable" // nothing runs: Errno
	EventStarted     Event = "started"     // PID
	EventEnding      Event = "ending"      // Reason
	EventExited      Event = "exited"      // Code or Signal, Reason, Elapsed
	EventStuck       Event = "stuck"       // PIDs that KILL has not ended yet
	EventEnded       Event = "ended"       // no process is left
)

// Report is one message from a guard.
type Report struct {
	Event  Event
	PID    int
	PIDs   []int
	Reason Reason // why the guard ended the run, "" when the command ended by itself
	Code   int
	Signal syscall.Signal
	Errno  syscall.Errno
	// Elapsed is the command's own running time, monotonic.
	Elapsed time.Duration
}

// A message is a frame: its kind, the length of its body, and the body, whose fields
// follow each other without names; numbers are of 8 bytes, the lowest first. Both ends
// are the same binary, so there is no other version to agree with. JSON would cost a
// guard the start of packages that it has no other use for (see the package comment).
const (
	kindSpec     = 'S'
	kindDeadline = 'D'
	kindStop     = 'X'
	kindReport   = 'R'

	numberSize = 8
	headerSize = 1 + numberSize
)

var errNonsense = errors.New("unreadable message")

// Frame is the order as it is written to a guard.
func (o Order) Frame() []byte {
	var w body
	switch {
	case o.Spec != nil:
		s := o.Spec
		w.kind(kindSpec)
		w.text(s.Path)
		w.texts(s.Argv)
		w.texts(s.Env)
		w.text(s.Dir)
		w.number(int64(s.Grace))
		w.number(int64(s.Timeout))
		w.number(int64(s.Deadline))
		w.flag(s.Locked)
		w.text(s.Scratch)
	case o.Stop != ReasonNone:
		w.kind(kindStop)
		w.text(string(o.Stop))
	default:
		w.kind(kindDeadline)
		w.number(int64(o.Deadline))
	}
	return w.frame()
}

func parseOrder(kind byte, text []byte) (Order, error) {
	r := fields{rest: text}
	var o Order
	switch kind {
	case kindSpec:
		o.Spec = &Spec{
			Path: r.text(), Argv: r.texts(), Env: r.texts(), Dir: r.text(),
			Grace: r.duration(), Timeout: r.duration(), Deadline: r.duration(),
			Locked: r.flag(), Scratch: r.text(),
		}
	case kindStop:
		o.Stop = Reason(r.text())
	case kindDeadline:
		o.Deadline = r.duration()
	default:
		return Order{}, errNonsense
	}
	return o, r.end()
}

// Frame is the report as a guard writes it: far below PIPE_BUF bytes, so it is in the
// pipe as a whole or not at all.
func (r Report) Frame() []byte {
	var w body
	w.kind(kindReport)
	w.text(string(r.Event))
	w.number(int64(r.PID))
	w.number(int64(len(r.PIDs)))
	for _, pid := range r.PIDs {
		w.number(int64(pid))
	}
	w.text(string(r.Reason))
	w.number(int64(r.Code))
	w.number(int64(r.Signal))
	w.number(int64(r.Errno))
	w.number(int64(r.Elapsed))
	return w.frame()
}

func parseReport(kind byte, text []byte) (Report, error) {
	if kind != kindReport {
		return Report{}, errNonsense
	}
	r := fields{rest: text}
	rep := Report{Event: Event(r.text()), PID: int(r.number())}
	for range r.count(numberSize) {
		rep.PIDs = append(rep.PIDs, int(r.number()))
	}
	rep.Reason, rep.Code = Reason(r.text()), int(r.number())
	rep.Signal, rep.Errno = syscall.Signal(r.number()), syscall.Errno(r.number())
	rep.Elapsed = r.duration()
	return rep, r.end()
}

// Reports reads what a guard reports.
type Reports struct {
	from io.Reader
	in   inbox
}

// NewReports reads from the other end of a guard's ReportFD.
func NewReports(from io.Reader) *Reports { return &Reports{from: from} }

// Next waits for a report. Its error is the reader's, io.EOF once the guard is gone,
// or says that what came is no report.
func (r *Reports) Next() (Report, error) {
	for {
		if kind, text, ok := r.in.take(); ok {
			return parseReport(kind, text)
		}
		n, err := r.from.Read(r.in.room())
		r.in.got(n)
		if n == 0 && err != nil {
			return Report{}, err
		}
	}
}

// inbox gathers bytes until a frame is whole.
type inbox struct{ bytes []byte }

// take removes the first frame; its text is good until the next call of room.
func (b *inbox) take() (kind byte, text []byte, ok bool) {
	if len(b.bytes) < headerSize {
		return 0, nil, false
	}
	size := getNumber(b.bytes[1:])
	if uint64(len(b.bytes)-headerSize) < size {
		return 0, nil, false
	}
	kind, text = b.bytes[0], b.bytes[headerSize:headerSize+size]
	b.bytes = b.bytes[headerSize+size:]
	return kind, text, true
}

// room is where to read more into, never empty. It grows with what has come, not with
// what a header claims.
func (b *inbox) room() []byte {
	const least = 512
	if cap(b.bytes)-len(b.bytes) < least {
		grown := make([]byte, len(b.bytes), 2*len(b.bytes)+2*least)
		copy(grown, b.bytes)
		b.bytes = grown
	}
	return b.bytes[len(b.bytes):cap(b.bytes)]
}

// got says how many bytes were read into room.
func (b *inbox) got(n int) { b.bytes = b.bytes[:len(b.bytes)+n] }

// body writes the fields of a message.
type body struct{ out []byte }

// kind begins the message; frame ends it.
func (w *body) kind(k byte) {
	w.out = make([]byte, headerSize, 256)
	w.out[0] = k
}

func (w *body) number(n int64) {
	w.out = append(w.out, 0, 0, 0, 0, 0, 0, 0, 0)
	putNumber(w.out[len(w.out)-numberSize:], uint64(n))
}

func (w *body) flag(b bool) {
	n := int64(0)
	if b {
		n = 1
	}
	w.number(n)
}

func (w *body) text(s string) {
	w.number(int64(len(s)))
	w.out = append(w.out, s...)
}

func (w *body) texts(list []string) {
	w.number(int64(len(list)))
	for _, s := range list {
		w.text(s)
	}
}

func (w *body) frame() []byte {
	putNumber(w.out[1:], uint64(len(w.out)-headerSize))
	return w.out
}

func putNumber(to []byte, n uint64) {
	for i := range numberSize {
		to[i] = byte(n >> (8 * i))
	}
}

func getNumber(from []byte) uint64 {
	n := uint64(0)
	for i := range numberSize {
		n |= uint64(from[i]) << (8 * i)
	}
	return n
}

// fields reads the fields of a message; after a fault everything reads as zero.
type fields struct {
	rest  []byte
	fault bool
}

func (r *fields) number() int64 {
	if len(r.rest) < numberSize {
		r.rest, r.fault = nil, true
		return 0
	}
	n := getNumber(r.rest)
	r.rest = r.rest[numberSize:]
	return int64(n)
}

func (r *fields) duration() time.Duration { return time.Duration(r.number()) }
func (r *fields) flag() bool              { return r.number() != 0 }

// count is the number of parts that follow, each of which takes at least the given
// number of bytes.
func (r *fields) count(least int) int {
	n := r.number()
	if n < 0 || n > int64(len(r.rest)/least) {
		r.rest, r.fault = nil, true
		return 0
	}
	return int(n)
}

func (r *fields) text() string {
	n := r.count(1)
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *fields) texts() []string {
	list := make([]string, r.count(numberSize))
	for i := range list {
		list[i] = r.text()
	}
	return list
}

// end reports a fault, or that something is left over.
func (r *fields) end() error {
	if r.fault || len(r.rest) > 0 {
		return errNonsense
	}
	return nil
}

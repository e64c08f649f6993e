package e2e

import (
	"net"
	"sync"
	"testing"
)

// wire is a TCP connection's way that can be cut: it listens on loopback and passes
// bytes on to whatever dial reaches.
type wire struct {
	addr     string
	dial     func() (net.Conn, error)
	listener net.Listener

	mu     sync.Mutex
	opened *sync.Cond        // the way is open again, or closed for good
	state  wireState         // guarded by mu
	ends   map[net.Conn]bool // both ends of every connection; guarded by mu
}

type wireState int

const (
	wireOpen   wireState = iota
	wireHushed           // nothing arrives any more, and nobody is told
	wireCut              // connections break, new ones are refused
	wireClosed           // for good
)

// newWire makes a way to what dial reaches; it ends with the test.
func newWire(t *testing.T, dial func() (net.Conn, error)) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: listener.Addr().String(), dial: dial, listener: listener, ends: map[net.Conn]bool{}}
	w.opened = sync.NewCond(&w.mu)
	go w.accept()
	t.Cleanup(func() {
		w.set(wireClosed)
		_ = listener.Close()
	})
	return w
}

func (w *wire) accept() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return // closed
		}
		go w.carry(c)
	}
}

// hush lets nothing pass, as a network that is split; cut breaks connections; heal
// lets all pass again: what was under way while hushed arrives late.
func (w *wire) hush() { w.set(wireHushed) }
func (w *wire) cut()  { w.set(wireCut) }
func (w *wire) heal() { w.set(wireOpen) }

// sever breaks the present connections and lets new ones pass.
func (w *wire) sever() {
	w.cut()
	w.heal()
}

func (w *wire) set(s wireState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == wireClosed {
		return
	}
	w.state = s
	if s == wireCut || s == wireClosed {
		for c := range w.ends {
			_ = c.Close()
		}
		clear(w.ends)
	}
	w.opened.Broadcast()
}

// pass waits until bytes may go on, and says whether they may at all.
func (w *wire) pass(ends ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.state == wireHushed {
		w.opened.Wait()
	}
	if w.state != wireOpen {
		return false
	}
	for _, c := range ends {
		w.ends[c] = true
	}
	return true
}

func (w *wire) carry(c net.Conn) {
	defer func() { _ = c.Close() }()
	if !w.pass(c) {
		return
	}
	to, err := w.dial()
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	if !w.pass(c, to) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { w.pump(to, c) })
	both.Go(func() { w.pump(c, to) })
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, c)
	delete(w.ends, to)
}

// pump copies until one end is gone, and takes the other with it.
func (w *wire) pump(to, from net.Conn) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !w.pass() {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			w.pass() // its end does not arrive either
			return
		}
	}
}

// Package queuetest is the contract of service.Doorbell: every doorbell runs it.
package queuetest

import (
	"testing"
	"time"

	"github.com/lanegate/lanegate/service"
)

// Setup is a doorbell with everything around it, made for one test.
type Setup struct {
	// Ring makes work in a lane known to the bell of one process, as a submission does.
	Ring func(lane string)
	// Listeners are the bells of one or more processes that wait for rings; the
	// ringing one is among them where a process rings for itself only.
	Listeners []service.Doorbell
	// Close ends the first listener, as its process's stop would, and returns when
	// it has ended. nil: there is only one process.
	Close func(t *testing.T)
	// Cut makes what carries the rings fail, Hang makes it not answer; Mend takes
	// either back. nil: nothing carries them.
	Cut, Hang, Mend func(t *testing.T)
	// Lines is how many lines have been logged so far.
	Lines func() int
	// Patience bounds the wait for a ring. Default 10s.
	Patience time.Duration
}

const (
	// many rings are more than any buffer in their way could hold.
	many = 10_000
	// fewLines is what an outage may log, whatever happens meanwhile.
	fewLines = 20
)

// Run runs the contract. open makes a setup that ends with the test.
func Run(t *testing.T, open func(t *testing.T) *Setup) {
	cases := []struct {
		name string
		run  func(t *testing.T, s *Setup)
	}{
		{"a ring reaches a waiting listener", func(t *testing.T, s *Setup) {
			s.rung(t, "at the first ring", 0, "serial")
			s.rung(t, "at the second", 0, "serial")
			s.rung(t, "in another lane", 0, "parallel")
		}},
		{"doubled and lost tokens harm nobody", func(t *testing.T, s *Setup) {
			s.Ring("serial")
			s.Ring("serial")
			s.rung(t, "after doubled rings", 0, "serial")
			s.Ring("serial") // maybe nobody takes its token
			s.rung(t, "after a token that was left", 0, "serial")
		}},
		{"many rings coalesce and none blocks", manyRings},
		{"closing one listener leaves the others", closing},
		{"an outage ends by itself", func(t *testing.T, s *Setup) { outage(t, s, s.Cut) }},
		{"a transport that hangs blocks nobody", func(t *testing.T, s *Setup) { outage(t, s, s.Hang) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			if s.Patience == 0 {
				s.Patience = 10 * time.Second
			}
			c.run(t, s)
		})
	}
}

// take takes a token, as a worker does: it tells a bell that wants to know that
// admission has looked.
func take(bell service.Doorbell, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-bell.Rings():
	case <-timer.C:
		return false
	}
	if a, ok := bell.(service.AckDoorbell); ok {
		a.Asking()(service.PassCommitted)
	}
	return true
}

// rung checks that a ring is heard by the listeners from the i-th on.
func (s *Setup) rung(t *testing.T, when string, i int, lane string) {
	t.Helper()
	for _, l := range s.Listeners[i:] {
		s.drain(l)
	}
	s.Ring(lane)
	s.heard(t, when, i)
}

// heard checks that one of the listeners from the i-th on gets a token: a message
// of a queue goes to one of them.
func (s *Setup) heard(t *testing.T, when string, i int) {
	t.Helper()
	deadline := time.Now().Add(s.Patience)
	for time.Now().Before(deadline) {
		for _, l := range s.Listeners[i:] {
			if take(l, 5*time.Millisecond) {
				return
			}
		}
	}
	t.Fatalf("%s: no ring within %v", when, s.Patience)
}

// drain takes what is left from before, until it has been quiet for a moment.
func (s *Setup) drain(l service.Doorbell) (tokens int) {
	for take(l, 50*time.Millisecond) {
		tokens++
	}
	return tokens
}

func manyRings(t *testing.T, s *Setup) {
	s.ringMany(t, "with nobody listening")
	s.heard(t, "after many rings", 0)
	// Bells that carry messages may bring a few tokens more, never one for each ring.
	tokens := 1
	for _, l := range s.Listeners {
		tokens += s.drain(l)
	}
	if tokens > many/10 {
		t.Errorf("%d rings were %d tokens", many, tokens)
	}
}

// ringMany rings so often that one ring that waits for the transport would show.
func (s *Setup) ringMany(t *testing.T, when string) {
	t.Helper()
	start := time.Now()
	for range many {
		s.Ring("serial")
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%s: %d rings took %v", when, many, took)
	}
}

func closing(t *testing.T, s *Setup) {
	if s.Close == nil {
		if len(s.Listeners) != 1 {
			t.Fatal("several listeners and no way to close one")
		}
		return // one process: nobody is left to hear anything
	}
	s.rung(t, "with all", 0, "serial")
	s.Close(t)
	s.rung(t, "after one was closed", 1, "serial")
}

func outage(t *testing.T, s *Setup, begin func(t *testing.T)) {
	if begin == nil {
		if s.Mend != nil {
			t.Fatal("a transport without a way to fail")
		}
		return // nothing between the ringing and the listening that could fail
	}
	s.rung(t, "before", 0, "serial")
	for _, l := range s.Listeners {
		s.drain(l)
	}
	before := s.Lines()
	begin(t)
	s.ringMany(t, "during the outage")
	s.Mend(t)
	s.heard(t, "what was rung during the outage", 0)
	s.rung(t, "after the outage", 0, "parallel")
	if lines := s.Lines() - before; lines > fewLines {
		t.Errorf("the outage logged %d lines", lines)
	}
}

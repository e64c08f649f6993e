package guard

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
)

func orders() []Order {
	return []Order{
		{Spec: &Spec{
			Path: "/bin/sh", Argv: []string{"sh", "", "a\xff\x00b"}, Env: []string{"A=1", "B=\n"}, Dir: "/", Grace: time.Second,
			Timeout: time.Hour, Deadline: 1<<63 - 1, Locked: true, Scratch: "/tmp/x",
		}},
		{Spec: &Spec{Argv: []string{}, Env: []string{}}},
		{Stop: ReasonCancelled},
		{Deadline: 1},
	}
}

func TestOrdersArriveAsSent(t *testing.T) {
	for _, want := range orders() {
		in := inbox{}
		frame := want.Frame()
		for i, b := range frame { // byte by byte
			if _, _, ok := in.take(); ok {
				t.Fatalf("an order of %d bytes is whole after %d", len(frame), i)
			}
			in.room()[0] = b
			in.got(1)
		}
		kind, text, ok := in.take()
		if !ok {
			t.Fatal("the order is not whole")
		}
		if got, err := parseOrder(kind, text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("sent %+v, got %+v, %v", want, got, err)
		}
	}
}

func TestReportsArriveAsSent(t *testing.T) {
	want := []Report{
		{Event: EventStarted, PID: 4_000_000},
		{Event: EventStuck, PIDs: []int{1, 2, 3}},
		{Event: EventExited, Signal: syscall.SIGKILL, Reason: ReasonTimedOut, Elapsed: 35 * time.Hour},
		{Event: EventExited, Code: 255},
		{Event: EventUnstartable, Errno: syscall.ENOEXEC},
		{Event: EventEnded},
	}
	var stream []byte
	for _, r := range want {
		stream = append(stream, r.Frame()...)
	}
	for name, from := range map[string]io.Reader{
		"at once": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
	} {
		reports := NewReports(from)
		for _, want := range want {
			if got, err := reports.Next(); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: sent %+v, got %+v, %v", name, want, got, err)
			}
		}
		if r, err := reports.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end %+v, %v", name, r, err)
		}
	}
	if _, err := NewReports(bytes.NewReader(Order{Deadline: 1}.Frame())).Next(); !errors.Is(err, errNonsense) {
		t.Errorf("an order read as a report: %v", err)
	}
}

// Whatever bytes come, reading them ends, takes no more memory than they do, and what
// is readable reads the same when it is written again.
func FuzzOrder(f *testing.F) {
	for _, o := range orders() {
		f.Add(o.Frame())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		in := inbox{bytes: text}
		kind, body, ok := in.take()
		if !ok {
			return
		}
		order, err := parseOrder(kind, body)
		if err != nil {
			return
		}
		in = inbox{bytes: order.Frame()}
		kind, body, _ = in.take()
		if again, err := parseOrder(kind, body); err != nil || !reflect.DeepEqual(order, again) {
			t.Errorf("read %+v, then %+v, %v", order, again, err)
		}
	})
}

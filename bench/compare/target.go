package main

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
)

// target is where the gateway's HTTP jobs go: a handler that does nothing but
// count, and take down when jobs that carry their time began.
type target struct {
	url    string
	ran    atomic.Int64
	starts peer.Starts
	server *http.Server
}

func newTarget() (*target, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &target{url: "http://" + l.Addr().String() + "/run"}
	t.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.ran.Add(1)
		t.starts.ServeHTTP(w, r)
	})}
	go func() { _ = t.server.Serve(l) }() // ends with close
	return t, nil
}

func (t *target) close() { _ = t.server.Close() }

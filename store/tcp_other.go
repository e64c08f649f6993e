//go:build !linux

package store

import (
	"syscall"
	"time"
)

// tcpUserTimeout: this system has no such limit; keep-alives and the limits of
// reads and writes must do.
func tcpUserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }

// unread: this system is not asked, so nobody may count on an idle connection.
func unread(syscall.RawConn) bool { return true }

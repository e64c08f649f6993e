//go:build linux

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lanegate/lanegate/service"
)

// BenchmarkAcceptAlone has one caller. Besides the time it tells what processor time
// an accepted job takes here and in the server: that says more on a busy machine.
func BenchmarkAcceptAlone(b *testing.B) {
	for name, open := range engines {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			addClasses(b, s, 40)
			perOp := costs(b, s)
			for b.Loop() {
				id := newID(b)
				_, err := s.Submit(b.Context(), service.NewJob{
					ID: id, Class: "class-007", Client: "bench", Key: id, Digest: []byte(id), Payload: []byte(`{"day":"2026-11-29"}`),
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			perOp()
		})
	}
}

// costs begins to count processor time; report tells what an operation took of it since.
func costs(b *testing.B, s *Store) (report func()) {
	b.Helper()
	mine, theirs := ownCPU(b), serverCPU(b, s)
	return func() {
		b.Helper()
		perOp := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N) }
		b.ReportMetric(perOp(ownCPU(b)-mine), "cpu-µs/op")
		b.ReportMetric(perOp(serverCPU(b, s)-theirs), "server-µs/op")
	}
}

// ownCPU is the processor time of this process.
func ownCPU(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverCPU is the processor time of the server's processes that live, in steps of
// 10 ms; zero for SQLite.
func serverCPU(tb testing.TB, s *Store) (sum time.Duration) {
	tb.Helper()
	if !s.d.bulk {
		return 0
	}
	var backend int
	if err := s.read.Get(&backend, "SELECT pg_backend_pid()"); err != nil {
		tb.Fatal(err)
	}
	// Behind the name, proc(5): field 4 is the parent, 14 and 15 are ticks of 10 ms.
	fields := func(pid string) []string {
		text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil {
			return nil // it has ended
		}
		return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	}
	mine := fields(fmt.Sprint(backend))
	if mine == nil {
		tb.Fatalf("there is no process %d on this machine", backend)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		tb.Fatal(err)
	}
	for _, dir := range all {
		f := fields(filepath.Base(dir))
		if len(f) < 13 || f[1] != mine[1] {
			continue
		}
		for _, ticks := range f[11:13] {
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum
}

package runner

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/guard"
)

// BenchmarkGuarded against BenchmarkPlain is what the guard costs a run; the goal
// is at most 15 ms. LANEGATE_BENCH_GUARD names the program that is the guard, for
// instance the real binary, which is larger than this one.
func BenchmarkGuarded(b *testing.B) {
	e := newExec(b, Command{Argv: []string{"true"}}, func(o *ExecOptions) {
		if program := os.Getenv("LANEGATE_BENCH_GUARD"); program != "" {
			o.GuardPath = []string{program, guard.Command}
		}
	})
	defer reportCPU(b)()
	for b.Loop() {
		if end := e.Run(context.Background(), newJob(), Unfenced); end.Outcome != lanegate.Succeeded {
			b.Fatal(end.Error)
		}
	}
}

func BenchmarkPlain(b *testing.B) {
	defer reportCPU(b)()
	for b.Loop() {
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// reportCPU adds what the children took of the processors until the function that it
// returns is called.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var usage unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &usage); err != nil {
			b.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	before := used()
	return func() {
		b.ReportMetric(float64((used()-before).Microseconds())/1000/float64(b.N), "children-cpu-ms/op")
	}
}

// A guard lives as long as its run; many of them must not cost much memory.
func TestGuardIsSmall(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector's own memory is not measured")
		return
	}
	e := newScript(t, `echo $$ > $PIDS; exec sleep 600`)
	ctx, cancel := context.WithCancelCause(t.Context())
	r := e.start(t, ctx, Unfenced, nil)
	pid := guardOf(t, readPIDs(t, r.pids, 1)[0])
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	kib := map[string]int{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); len(fields) == 2 && fields[1] == "kB" {
			kib[name], _ = strconv.Atoi(fields[0])
		}
	}
	t.Logf("resident %d KiB, of that its own %d KiB, the rest the program's file", kib["VmRSS"], kib["RssAnon"])
	// Pages of the program's file are shared by all guards and the gateway.
	if kib["RssAnon"] == 0 || kib["RssAnon"] > 2<<10 {
		t.Errorf("a guard holds %d KiB of its own, want at most 2 MiB", kib["RssAnon"])
	}
	cancel(ErrCancelled)
	wantOutcome(t, r.wait(t), lanegate.Cancelled)
}

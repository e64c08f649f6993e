package runner

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

// BenchmarkGuarded against BenchmarkPlain is what the guard costs a run; the goal
// is at most 15 ms.
func BenchmarkGuarded(b *testing.B) {
	e := newExec(b, Command{Argv: []string{"true"}}, nil)
	for b.Loop() {
		if end := e.Run(context.Background(), newJob(), Unfenced); end.Outcome != lanegate.Succeeded {
			b.Fatal(end.Error)
		}
	}
}

func BenchmarkPlain(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
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
	if kib["RssAnon"] == 0 || kib["RssAnon"] > 6<<10 {
		t.Errorf("a guard holds %d KiB of its own, want at most 6 MiB", kib["RssAnon"])
	}
	cancel(ErrCancelled)
	wantOutcome(t, r.wait(t), lanegate.Cancelled)
}

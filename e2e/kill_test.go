package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestChaosKill9 kills the gateway at random moments under load. Every accepted
// job ends, serial never has two at once (C27), attempts add up, the next process
// accepts at once (invariants 1, 3, 6), and within two seconds of the end of the
// last process of the old runs it finds their attempts lost, never earlier.
func TestChaosKill9(t *testing.T) {
	c := newChaos(t)
	reaped := 0
	for i := range c.rounds {
		if i%3 == 2 {
			c.inFlight("deaf") // its processes outlive the gateway by the kill grace
		}
		c.pause(200, 1200)
		c.g.kill()
		reaped += c.restart()
	}
	c.settle()
	if reaped == 0 {
		t.Error("no attempt was in flight at any kill: the test proved nothing about reaping")
	}
}

// restart starts the next process after a kill and judges how it takes over. It
// returns how many attempts were in flight at the kill.
func (c *chaos) restart() int {
	t := c.t
	t.Helper()
	crashed := c.crashCopy()
	began := time.Now()
	stalls := watchStalls()
	c.g = c.launch(c.args...)
	old := c.watchOldRuns(c.g)
	open := c.openAttempts(crashed)
	c.g.accepts()
	accepted := time.Now()
	if took := accepted.Sub(began); took > 5*time.Second {
		t.Errorf("the restarted gateway accepted after %v", took)
	}
	found := c.foundLost(open)
	<-old.done
	stalled := stalls.total()
	if old.err != nil {
		t.Fatal(old.err)
	}
	if len(open) == 0 {
		return 0
	}
	if found.Before(old.lastSeen) {
		t.Errorf("%v were declared lost while a process of their runs still lived", open)
	}
	// A process that does not accept yet reaps nothing: how soon it accepts is
	// judged above. All times are of this process's monotonic clock. The only slack
	// is the time by which this process, which mostly sleeps, was woken late: that
	// is what the machine took from everybody.
	from := old.gone
	if accepted.After(from) {
		from = accepted
	}
	took := found.Sub(from)
	t.Logf("%d in flight; %v after the kill the old runs were gone, after %v the next process accepted, and found them lost %v later (machine late by %v)",
		len(open), old.gone.Sub(began), accepted.Sub(began), took, stalled)
	if took > 2*time.Second+stalled {
		t.Errorf("found lost %v after the last old process had ended and the new one accepted, want within 2 s and %v of stalls", took, stalled)
	}
	return len(open)
}

// foundLost waits until the attempts (job id → number) are lost, and returns a
// time by which they were.
func (c *chaos) foundLost(open map[string]int) (found time.Time) {
	c.t.Helper()
	c.eventually(30*time.Second, fmt.Sprintf("%v are found lost", open), func() bool {
		for job, number := range open {
			switch a := c.attempts(job)[number-1]; a.Outcome {
			case "":
				return false
			case "lost":
			default:
				c.t.Errorf("attempt %d of job %s, in flight at the kill, ended as %s", number, job, a.Outcome)
			}
		}
		found = time.Now()
		return true
	})
	return found
}

// TestChaosFreeze stops and continues the gateway under load. Some freezes are
// longer than the lease: nobody can take over a SQLite file, but the gateway's
// own tick renews no deadline then, and the guard ends the run by itself.
func TestChaosFreeze(t *testing.T) {
	c := newChaos(t, "--lease", "5500ms", "--beat", "100ms", "--kill-grace", "100ms")
	for i := range c.rounds {
		if i%5 == 2 {
			c.freezeBeyondLease()
			continue
		}
		c.pause(200, 700)
		c.g.signal(syscall.SIGSTOP)
		c.pause(50, 1050)
		c.g.signal(syscall.SIGCONT)
	}
	c.settle()
}

func (c *chaos) freezeBeyondLease() {
	t := c.t
	t.Helper()
	slow := c.inFlight("slow")
	guards := childrenOf(c.g.cmd.Process.Pid)
	began := time.Now()
	c.g.signal(syscall.SIGSTOP)
	<-time.After(3 * time.Second)
	if took := time.Since(began); took < 5*time.Second && !slices.ContainsFunc(guards, alive) {
		t.Errorf("the guard ended its run %v into the freeze, long before the lease is over", took)
	}
	<-time.After(time.Until(began.Add(time.Duration(6000+c.rng.IntN(1000)) * time.Millisecond)))
	// The lease of 5.5 s has been over for half a second at least.
	c.within(5*time.Second, "the guard has ended the run without the gateway", func() bool { return !slices.ContainsFunc(guards, alive) })
	c.g.signal(syscall.SIGCONT)
	if j := c.final(slow, 60*time.Second); j.State != "succeeded" || j.Attempts != 2 {
		t.Errorf("job %s, frozen beyond the lease: %s after %d attempts", slow, j.State, j.Attempts)
	}
	if list := c.attempts(slow); list[0].Outcome != "interrupted" {
		t.Errorf("attempt 1 of job %s ended as %s, want interrupted by its guard", slow, list[0].Outcome)
	}
}

// TestChaosKillGuards kills guards under load: the run is lost, nothing of it
// survives beside its successor, and the job runs again.
func TestChaosKillGuards(t *testing.T) {
	c := newChaos(t)
	killed := 0
	for deadline := time.Now().Add(60 * time.Second); killed < c.rounds && time.Now().Before(deadline); {
		c.pause(20, 170)
		for _, pid := range childrenOf(c.g.cmd.Process.Pid) {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	c.settle()
	if killed == 0 {
		t.Fatal("no guard was found to kill")
	}
}

//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// epochRounds is how many rounds go by until everything comes to rest and is judged.
const epochRounds = 40

// active is a fault that lasts.
type active struct {
	round
	until time.Time
	heal  func()
}

// holds says whether two faults need the same thing.
func (a active) holds(r round) bool {
	if a.fault.takes == "" || a.fault.takes != r.fault.takes {
		return false
	}
	return a.victim == r.victim || a.fault.takes != "gateway" && a.fault.takes != "agent"
}

// schedule begins faults and ends them when their time is over.
type schedule struct {
	m  *mixed
	on []active
}

// heal ends the faults that are meant.
func (s *schedule) heal(meant func(active) bool) {
	s.on = slices.DeleteFunc(s.on, func(a active) bool {
		if meant(a) {
			a.heal()
			return true
		}
		return false
	})
}

func (s *schedule) all(active) bool    { return true }
func (s *schedule) over(a active) bool { return !time.Now().Before(a.until) }

// do carries out one round.
func (s *schedule) do(r round) {
	s.heal(s.over)
	s.heal(func(a active) bool { return a.holds(r) })
	s.m.keepUp()
	s.m.total[r.fault.name]++
	if heal := r.fault.do(s.m, r); heal != nil {
		s.on = append(s.on, active{r, time.Now().Add(r.lasts), heal})
	}
	s.wait(r.pause)
}

// wait lets time pass, and ends what is over meanwhile.
func (s *schedule) wait(d time.Duration) {
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		next := deadline
		for _, a := range s.on {
			if a.until.Before(next) {
				next = a.until
			}
		}
		<-time.After(max(0, time.Until(next)))
		s.heal(s.over)
	}
}

// needsRuns are the faults that hit nothing in a gateway that has no work just then, and
// what is counted of them when they do.
var needsRuns = map[string]string{
	"guards killed": "guards that were killed", "guard frozen": "guards that were frozen",
	"gateway frozen inside admission": "stood still inside admission",
}

// TestChaosScenarios does each bad thing by itself. In make chaos all comes to rest
// and is judged after each; in make test once, at the end.
func TestChaosScenarios(t *testing.T) {
	long := heavy(t)
	rng := chaosRand(t)
	m := newMixed(t)
	s := &schedule{m: m}
	for _, f := range faults {
		r := draw(rng, f)
		switch {
		case long:
			r.lasts = f.longest
		case strings.Contains(f.name, "cut off"):
			r.lasts = mixedLease + 1500*time.Millisecond // what the lease has to do with it needs no less
		default:
			r.lasts = min(r.lasts, time.Second)
		}
		r.pause = r.lasts + 200*time.Millisecond
		if long {
			r.pause = max(r.pause, 2*time.Second) // some last no time at all, and each is judged by jobs of its own
		}
		for range mixedGateways {
			t.Logf("%s %v", time.Now().Format(time.TimeOnly), r)
			s.do(r)
			s.heal(s.all)
			if needs := needsRuns[f.name]; needs == "" || m.total[needs] > 0 {
				break
			}
			_, lanes := m.try("GET", "/lanes", "")
			t.Logf("gateway %d did not run anything; lanes: %s", r.victim, lanes)
			r.victim = (r.victim + 1) % mixedGateways
		}
		if long {
			m.settle(f.name)
			m.load = newMixedLoad(m)
		}
	}
	if !long {
		m.settle("all scenarios")
	}
	t.Logf("%s %v", time.Now().Format(time.TimeOnly), m.total)
	for _, what := range []string{"changes made", "guards that were killed", "stood still inside admission", "clocks moved"} {
		if m.total[what] == 0 {
			t.Errorf("%s: never", what)
		}
	}
}

// TestChaosMixed does all kinds of bad things at once to gateways, their database,
// their queues, their clocks and their agents, in an order that the seed decides,
// while jobs flow and classes are promoted and demoted. Every few rounds all comes
// to rest and the whole history since is judged: see package history.
func TestChaosMixed(t *testing.T) {
	heavy(t)
	rounds := chaosRounds(t)
	rng := chaosRand(t)
	m := newMixed(t)
	s := &schedule{m: m}
	for n := range rounds {
		r := draw(rng, faults[rng.IntN(len(faults))])
		t.Logf("%s round %d: %v", time.Now().Format(time.TimeOnly), n+1, r)
		s.do(r)
		if n%epochRounds == epochRounds-1 || n == rounds-1 {
			s.heal(s.all)
			m.settle(fmt.Sprintf("rounds up to %d", n+1))
			t.Logf("%s up to round %d all is well: %v", time.Now().Format(time.TimeOnly), n+1, m.total)
			if n < rounds-1 {
				m.load = newMixedLoad(m)
			}
		}
	}
	if rounds < 100 {
		return // too few to be sure that every kind of end was met
	}
	for _, outcome := range []string{"succeeded", "lost", "interrupted"} {
		if m.total["attempts "+outcome] == 0 {
			t.Errorf("no attempt was %s in %d rounds", outcome, rounds)
		}
	}
}

package runlog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// wholeTruth is a replay that shows the planner everything at every event: all
// classes, every due job, every attempt. It is slow and plain, and shares no code
// with the one under test but the planner.
func wholeTruth(t *testing.T, runs []Run, p *plan) []int64 {
	t.Helper()
	starts := make([]int64, len(runs))
	state := make([]byte, len(runs)) // 0 to come or due, 1 in flight, 2 ended
	blocked := map[string]time.Time{}
	var running []admission.Running
	for now, ok := int64(0), true; ok; now, ok = nextMoment(runs, starts, state, blocked, now) {
		for i := range runs {
			if state[i] == 1 && starts[i]+runs[i].Took <= now {
				state[i] = 2
			}
		}
		running = slices.DeleteFunc(running, func(r admission.Running) bool { return state[number(r.Job)] == 2 })
		in := admission.Input{
			Now: time.UnixMicro(now), Lanes: p.lanes, Classes: p.classes, Resources: p.resources, InFlight: running, BlockedSince: blocked,
			Workers: []admission.Worker{{ID: "replay", Free: slots, SerialFree: !slices.ContainsFunc(running, func(r admission.Running) bool { return r.Lane == lanegate.LaneSerial })}},
			Asking:  "replay",
		}
		for i, r := range runs {
			if state[i] == 0 && r.Ready <= now {
				id := fmt.Sprintf("%06d", i)
				in.Due = append(in.Due, admission.Due{Job: id, Class: p.classes[r.Class].ID, PlaceAt: time.UnixMicro(r.Ready), PlaceID: id})
			}
		}
		d := admission.Plan(in)
		blocked = d.Blocked
		for _, g := range d.Grants {
			i := number(g.Job)
			state[i], starts[i] = 1, now
			running = append(running, admission.Running{Job: g.Job, Class: g.Class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker})
		}
	}
	if slices.ContainsFunc(state, func(s byte) bool { return s != 2 }) {
		t.Fatal("a job never ended")
	}
	return starts
}

func number(id string) (i int) {
	_, _ = fmt.Sscanf(id, "%d", &i)
	return i
}

func nextMoment(runs []Run, starts []int64, state []byte, blocked map[string]time.Time, now int64) (int64, bool) {
	next := int64(never)
	for i, r := range runs {
		if r.Ready > now {
			next = min(next, r.Ready)
		}
		if state[i] == 1 {
			next = min(next, starts[i]+r.Took)
		}
	}
	for _, since := range blocked {
		if at := since.Add(admission.DefaultStarveAfter).UnixMicro(); at > now {
			next = min(next, at)
		}
	}
	return next, next != never
}

// randomPlan is a plan of up to six classes in up to three lanes.
func randomPlan(rng *rand.Rand) *plan {
	p := &plan{lanes: []lanegate.Lane{
		newLane(lanegate.LaneParallel, rng.IntN(4), lanegate.OrderFair),
		newLane(laneLong, 1+rng.IntN(3), lanegate.OrderFIFO),
	}}
	for i := range rng.IntN(3) {
		p.resources = append(p.resources, lanegate.Resource{Name: fmt.Sprintf("r%d", i), Capacity: 4 + rng.IntN(6), Pool: rng.IntN(2) == 0})
	}
	for i := range 1 + rng.IntN(6) {
		c := lanegate.Class{
			ID: fmt.Sprintf("c%d", i), MaxInFlight: 1 + rng.IntN(2),
			Lane: []string{lanegate.LaneSerial, lanegate.LaneSerial, lanegate.LaneParallel, laneLong}[rng.IntN(4)],
		}
		c.Run.Kind = lanegate.RunHTTP
		if len(p.resources) > 0 && rng.IntN(3) > 0 {
			r := p.resources[rng.IntN(len(p.resources))]
			c.Units = lanegate.Units{r.Name: rng.IntN(r.Capacity + 1)}
		}
		p.classes = append(p.classes, c)
	}
	return p
}

// crowdedPlan is a plan of many classes in a serial line that is not simple, few of
// which differ in what they need, beside two in parallel that keep the units away.
func crowdedPlan(rng *rand.Rand) *plan {
	p := &plan{
		lanes:     []lanegate.Lane{newLane(lanegate.LaneParallel, 2, lanegate.OrderFair)},
		resources: []lanegate.Resource{{Name: "db", Capacity: 10}},
	}
	for i := range 4 + rng.IntN(10) {
		c := lanegate.Class{ID: fmt.Sprintf("c%02d", i), MaxInFlight: 1 + rng.IntN(2), Lane: lanegate.LaneSerial}
		c.Run.Kind = lanegate.RunHTTP
		c.Units = lanegate.Units{"db": []int{1, 6, 9}[rng.IntN(3)]}
		if i < 2 {
			c.Lane, c.Units = lanegate.LaneParallel, lanegate.Units{"db": 3 + rng.IntN(3)}
		}
		p.classes = append(p.classes, c)
	}
	return p
}

func randomRuns(rng *rand.Rand, classes int) []Run {
	var runs []Run
	for range 60 {
		ready := rng.Int64N(90) * 60e6
		runs = append(runs, Run{Ready: ready, Start: ready, Took: rng.Int64N(12) * 60e6, Class: int32(rng.IntN(classes)), HasReady: true})
	}
	slices.SortFunc(runs, func(a, b Run) int { return int(a.Ready - b.Ready) })
	return runs
}

// possible leaves out plans in which a class could never run.
func possible(p *plan) bool {
	for i := range p.classes {
		c := &p.classes[i]
		for name, units := range c.Using(p.resources) {
			r := p.resources[slices.IndexFunc(p.resources, func(r lanegate.Resource) bool { return r.Name == name })]
			reserve := admission.Reserve(r, p.classes)
			if c.Lane == lanegate.LaneSerial {
				reserve = 0
			}
			if units > r.Capacity-reserve {
				return false
			}
		}
	}
	return true
}

func TestReplayShowsThePlannerEnough(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	resources, parallel, serial := 0, 0, 0
	for round := range 450 {
		p := randomPlan(rng)
		if round%3 == 2 {
			p = crowdedPlan(rng)
		}
		runs := randomRuns(rng, len(p.classes))
		if !possible(p) {
			continue
		}
		out, err := simulate(t.Context(), runs, p)
		if err != nil {
			t.Fatal(err)
		}
		want := wholeTruth(t, runs, p)
		if diff := cmp.Diff(want, out.starts); diff != "" {
			t.Fatalf("round %d, %+v\nstarts differ (−all shown, +replay):\n%s", round, p, diff)
		}
		if len(p.resources) > 0 {
			resources++
		}
		for _, l := range newReplay(runs, p).lanes {
			switch {
			case l.simple:
			case l.name == lanegate.LaneSerial:
				serial++
			default:
				parallel++
			}
		}
	}
	if resources < 50 || parallel < 50 || serial < 50 {
		t.Errorf("only %d plans with resources, %d lanes that are not simple, %d of them serial", resources, parallel+serial, serial)
	}
}

func TestBlameLeavesNoSecondOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		runs := randomRuns(rng, 4)
		log := &Log{Classes: []string{"a", "b", "c", "d"}, Runs: runs}
		a := &analysis{log: log}
		out, err := simulate(t.Context(), runs, a.oneLine())
		if err != nil {
			t.Fatal(err)
		}
		m := blame(runs, out.starts, nameClasses(log.Classes, log.group()))
		total := 0.0
		for i, r := range runs {
			total += float64(out.starts[i] - r.Ready)
		}
		if m.total != total {
			t.Fatalf("charged %v of %v µs", m.total, total)
		}
	}
}

func TestBlameOfASmallLine(t *testing.T) {
	// a runs 0–10, b is due at 2 and runs 10–15, c is due at 4 and runs 15–16:
	// b waits 8 for a; c waits 6 for a and 5 for b.
	const m = 60_000_000
	runs := []Run{{Ready: 0, Took: 10 * m}, {Ready: 2 * m, Took: 5 * m, Class: 1}, {Ready: 4 * m, Took: m, Class: 2}}
	log := &Log{Classes: []string{"a", "b", "c"}, Runs: runs}
	got := blame(runs, []int64{0, 10 * m, 15 * m}, nameClasses(log.Classes, log.group()))
	want := [][]float64{{0, 8 * m, 6 * m}, {0, 0, 5 * m}, nil}
	if got.hours[2] = nil; !cmp.Equal(got.hours, want) {
		t.Errorf("blame = %v, want %v", got.hours, want)
	}
	if got.total != 19*m || got.cross != 19*m {
		t.Errorf("total %v, cross %v", got.total, got.cross)
	}
}

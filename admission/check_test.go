package admission

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// failer is what *testing.T, *rapid.T and *testing.F's T have in common.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var (
	_ failer = (*testing.T)(nil)
	_ failer = (*testing.B)(nil)
)

// checkDecision checks everything that must hold of any decision, and that the
// oracle decides the same.
func checkDecision(t failer, in Input, d Decision) {
	t.Helper()
	checkLimits(t, in, d)
	checkUnits(t, in, d)
	checkOrder(t, in, d)
	checkPlacement(t, in, d)
	checkWaits(t, in, d)
	checkTrial(t, in, d)
	if diff := diffOracle(in, d); diff != "" {
		t.Errorf("oracle and Plan differ (-oracle +Plan):\n%s\ninput: %+v", diff, in)
	}
}

// after is what is in flight once the grants have started.
func after(in Input, d Decision) []Running {
	runs := slices.Clone(in.InFlight)
	for _, g := range d.starts() {
		runs = append(runs, Running{
			Job: g.Job, Class: g.Class, Lane: g.Route.Lane, Units: g.Units, Worker: g.Worker, Verification: g.Verification,
		})
	}
	return runs
}

func count(runs []Running, which func(Running) bool) int {
	n := 0
	for _, r := range runs {
		if which(r) {
			n++
		}
	}
	return n
}

func findClass(in Input, id string) lanegate.Class {
	i := slices.IndexFunc(in.Classes, func(c lanegate.Class) bool { return c.ID == id })
	return in.Classes[i]
}

// checkLimits: whatever a start touches stays within the limit in force.
func checkLimits(t failer, in Input, d Decision) {
	t.Helper()
	widths := Widths(in.Lanes, in.Classes, in.Resources)
	runs := after(in, d)
	for _, g := range d.Grants {
		lane := count(runs, func(r Running) bool { return r.Lane == g.Route.Lane && r.Verification == "" })
		if g.Route.Lane == lanegate.LaneSerial && holdAfter(in, d) != "" {
			lane++
		}
		if width := widths[g.Route.Lane].InForce; lane > width {
			t.Errorf("start of %s: %d in flight in lane %s of width %d", g.Job, lane, g.Route.Lane, width)
		}
		class := count(runs, func(r Running) bool { return r.Class == g.Class && !in.Trial.owns(&r) })
		if limit := max(1, findClass(in, g.Class).MaxInFlight); class > limit {
			t.Errorf("start of %s: %d in flight of class %s with limit %d", g.Job, class, g.Class, limit)
		}
	}
}

// checkUnits: capacities hold, serial's reserve stays serial's, and nobody takes
// what is kept.
func checkUnits(t failer, in Input, d Decision) {
	t.Helper()
	runs := after(in, d)
	for _, res := range append(slices.Clone(in.Resources), lanegate.Resource{Name: "undeclared"}) {
		total, outside := 0, 0
		for _, r := range runs {
			total += r.Units[res.Name]
			if r.Lane != lanegate.LaneSerial || r.Verification != "" {
				outside += r.Units[res.Name]
			}
		}
		reserve := Reserve(res, in.Classes)
		for _, g := range d.Grants {
			if g.Units[res.Name] == 0 {
				continue
			}
			if total > res.Capacity {
				t.Errorf("start of %s: %d of %s in use, capacity %d", g.Job, total, res.Name, res.Capacity)
			}
			if g.Route.Lane == lanegate.LaneSerial {
				continue
			}
			if outside > res.Capacity-reserve {
				t.Errorf("start of %s: %d of %s in use outside serial, capacity %d, reserve %d",
					g.Job, outside, res.Name, res.Capacity, reserve)
			}
			if k, ok := d.WaitOf(classOf(in, d.Kept)); ok && k.Route.Lane != lanegate.LaneSerial {
				kept := findClass(in, k.Class).Using(in.Resources)[res.Name]
				if kept > 0 && g.Job != d.Kept && outside+kept > res.Capacity-reserve && startedAfterKept(in, d, g) {
					t.Errorf("start of %s takes %s from what is kept for %s", g.Job, res.Name, d.Kept)
				}
			}
		}
	}
}

// startedAfterKept says whether g is one of the ordinary starts: jobs starved
// even longer than the kept one go before it.
func startedAfterKept(in Input, d Decision, g Grant) bool {
	_, starved := in.BlockedSince[g.Job]
	return !starved
}

func classOf(in Input, job string) string {
	for _, d := range in.Due {
		if d.Job == job {
			return d.Class
		}
	}
	return ""
}

// checkOrder: of each class, the jobs with the smallest places start, in order.
func checkOrder(t failer, in Input, d Decision) {
	t.Helper()
	granted := map[string][]string{}
	for _, g := range d.starts() {
		if g.Job != "" {
			granted[g.Class] = append(granted[g.Class], g.Job)
		}
	}
	for class, jobs := range granted {
		var line []string
		for _, due := range in.Due {
			if due.Class == class {
				line = append(line, due.Job)
			}
		}
		if len(jobs) > len(line) || !slices.Equal(jobs, line[:len(jobs)]) {
			t.Errorf("class %s started %v of line %v", class, jobs, line)
		}
	}
}

// checkPlacement: a start is in the lane its class earned, or in serial, on a
// worker that asked for it, serves the lane, has the command and a free slot.
func checkPlacement(t failer, in Input, d Decision) {
	t.Helper()
	for _, g := range d.Grants {
		c := findClass(in, g.Class)
		if g.Verification != "" {
			t.Errorf("%s of %s is among the ordinary grants", g.Job, g.Verification)
		}
		if g.Route.Lane != lanegate.LaneSerial && g.Route.Lane != c.Lane {
			t.Errorf("%s of lane %q started in %q", g.Job, c.Lane, g.Route.Lane)
		}
		if route, wait := RouteOf(c, in.Lanes); route != g.Route || wait {
			t.Errorf("%s started by route %+v, but RouteOf says %+v, wait %v", g.Job, g.Route, route, wait)
		}
		if c.Paused || slices.ContainsFunc(in.Lanes, func(l lanegate.Lane) bool { return l.Name == g.Route.Lane && l.Paused }) {
			t.Errorf("%s started although paused", g.Job)
		}
		if in.Asking != "" && g.Worker != in.Asking {
			t.Errorf("%s granted to %s, asking was %s", g.Job, g.Worker, in.Asking)
		}
		i := slices.IndexFunc(in.Workers, func(w Worker) bool { return w.ID == g.Worker })
		if i < 0 {
			t.Errorf("%s granted to a worker that is not live: %s", g.Job, g.Worker)
			continue
		}
		if w := in.Workers[i]; !servesLane(w, g.Route.Lane) || !hasCommand(w, c) {
			t.Errorf("%s granted to %s, which can't run it", g.Job, g.Worker)
		}
	}
	for _, w := range in.Workers {
		serial, others := 0, 0
		for _, g := range d.Grants {
			switch {
			case g.Worker != w.ID:
			case g.Route.Lane == lanegate.LaneSerial:
				serial++
			default:
				others++
			}
		}
		if serial > 1 || (serial == 1 && !w.SerialFree) || others > max(0, w.Free) {
			t.Errorf("worker %s got %d serial and %d other runs, free: %v, %d", w.ID, serial, others, w.SerialFree, w.Free)
		}
	}
}

// checkWaits: with Asking "", every class that keeps a due job waiting says for
// what, and the jobs named are running or granted, or the one that is kept for.
func checkWaits(t failer, in Input, d Decision) {
	t.Helper()
	running := map[string]bool{}
	for _, r := range after(in, d) {
		running[r.Job] = true
	}
	for _, w := range d.Waits {
		if len(w.Reasons) == 0 {
			t.Errorf("%s waits without a reason", w.Job)
		}
		for _, r := range w.Reasons {
			if r.Code == ResourceFull && len(r.Jobs) == 0 && !madeUp(d) {
				t.Errorf("%s waits for %s, which nobody uses", w.Job, r)
			}
			for _, job := range r.Jobs {
				if job == "" || !running[job] && (r.Code != KeptFor || job != d.Kept) {
					t.Errorf("%s waits for %s, said to be held by %s, which does not run", w.Job, r, job)
				}
			}
		}
	}
	if in.Asking != "" {
		return
	}
	granted := map[string]bool{}
	for _, g := range d.starts() {
		granted[g.Job] = true
	}
	explained := map[string]string{}
	for _, w := range d.Waits {
		explained[w.Class] = w.Job
	}
	for _, due := range in.Due {
		if !slices.ContainsFunc(in.Classes, func(c lanegate.Class) bool { return c.ID == due.Class }) {
			continue
		}
		if _, ok := explained[due.Class]; !ok && !granted[due.Job] {
			t.Errorf("%s waits, and nothing says why", due.Job)
		}
		if explained[due.Class] == due.Job && granted[due.Job] {
			t.Errorf("%s is granted and waits", due.Job)
		}
	}
}

// checkUntouched: Plan left its input as it was. clone was made before.
func checkUntouched(t failer, clone, in Input) {
	t.Helper()
	if diff := cmp.Diff(clone, in); diff != "" {
		t.Errorf("Plan changed its input:\n%s", diff)
	}
}

// cloneInput copies everything a planner could write to.
func cloneInput(in Input) Input {
	c := in
	c.Lanes = slices.Clone(in.Lanes)
	c.Classes = slices.Clone(in.Classes)
	for i := range c.Classes {
		c.Classes[i].Units = maps.Clone(c.Classes[i].Units)
	}
	c.Resources = slices.Clone(in.Resources)
	c.InFlight = slices.Clone(in.InFlight)
	for i := range c.InFlight {
		c.InFlight[i].Units = maps.Clone(c.InFlight[i].Units)
	}
	c.Due = slices.Clone(in.Due)
	c.BlockedSince = maps.Clone(in.BlockedSince)
	if in.Trial != nil {
		trial := *in.Trial
		trial.Members, trial.Round = slices.Clone(trial.Members), slices.Clone(trial.Round)
		c.Trial = &trial
	}
	c.Workers = slices.Clone(in.Workers)
	for i := range c.Workers {
		c.Workers[i].Lanes = slices.Clone(c.Workers[i].Lanes)
		c.Workers[i].Commands = maps.Clone(c.Workers[i].Commands)
	}
	return c
}

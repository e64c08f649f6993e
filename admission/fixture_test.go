package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// noon is the database's clock in every fixture.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at is so many minutes after noon, or before it.
func at(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }

// newClass is a class that needs no command.
func newClass(id, lane string, units lanegate.Units) lanegate.Class {
	return lanegate.Class{
		ID:          id,
		Lane:        lane,
		MaxInFlight: 1,
		ClassSpec:   lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunHTTP}, Units: units},
	}
}

// newExec is a class that runs a command of its own name, with the digest "v1".
func newExec(id, lane string, units lanegate.Units) lanegate.Class {
	c := newClass(id, lane, units)
	c.Run = lanegate.Run{Kind: lanegate.RunExec, Command: id}
	c.CommandDigest = "v1"
	return c
}

func limited(c lanegate.Class, maxInFlight int) lanegate.Class {
	c.MaxInFlight = maxInFlight
	return c
}

func pausedClass(c lanegate.Class) lanegate.Class {
	c.Paused = true
	return c
}

// newLane is an available lane; width 0 is auto.
func newLane(name string, width int, order lanegate.Order) lanegate.Lane {
	return lanegate.Lane{
		Name:            name,
		WidthSetting:    width,
		Order:           order,
		WhenUnavailable: lanegate.FallbackSerial,
		Available:       true,
	}
}

func db(units int) lanegate.Units { return lanegate.Units{"db": units} }

// none declares that a run uses nothing.
var none = lanegate.Units{}

// due is job "<class>-<minute>", whose place is that minute after noon minus a day.
func due(class string, minutes ...int) []Due {
	var ds []Due
	for _, m := range minutes {
		id := fmt.Sprintf("%s-%d", class, m)
		ds = append(ds, Due{Job: id, Class: class, PlaceAt: at(m - 24*60), PlaceID: id})
	}
	return ds
}

// run is an attempt in flight on worker w1.
func run(job, class, lane string, units lanegate.Units) Running {
	return Running{Job: job, Class: class, Lane: lane, Units: units, Worker: "w1"}
}

func verifying(r Running, verification string) Running {
	r.Verification = verification
	return r
}

// newInput has both built-in lanes (parallel: auto, fair), 15 connections of db
// and one idle worker that serves everything.
func newInput(classes []lanegate.Class, dues ...[]Due) Input {
	return Input{
		Now: noon,
		Lanes: []lanegate.Lane{
			newLane(lanegate.LaneSerial, 1, lanegate.OrderFIFO),
			newLane(lanegate.LaneParallel, lanegate.WidthAuto, lanegate.OrderFair),
		},
		Classes:   classes,
		Resources: []lanegate.Resource{{Name: "db", Capacity: 15, Pool: true}},
		Due:       slices.Concat(dues...),
		Workers:   []Worker{{ID: "w1", Free: 100, SerialFree: true}},
	}
}

// lane returns a lane of in for changing.
func (in *Input) lane(name string) *lanegate.Lane {
	for i := range in.Lanes {
		if in.Lanes[i].Name == name {
			return &in.Lanes[i]
		}
	}
	panic("no lane " + name)
}

// starts shows grants as "job>lane", with "@worker" for others than w1.
func starts(d Decision) []string {
	var out []string
	for _, g := range d.Grants {
		s := g.Job + ">" + g.Route.Lane
		if g.Worker != "w1" {
			s += "@" + g.Worker
		}
		out = append(out, s)
	}
	return out
}

// waits shows waits as "job: reason[jobs] reason[jobs]".
func waits(d Decision) []string {
	var out []string
	for _, w := range d.Waits {
		var s strings.Builder
		s.WriteString(w.Job + ":")
		for _, r := range w.Reasons {
			s.WriteString(" " + r.String())
			if len(r.Jobs) > 0 {
				s.WriteString("[" + strings.Join(r.Jobs, " ") + "]")
			}
		}
		out = append(out, s.String())
	}
	return out
}

// wantPlan compares a decision, shown as text, and the plain second planner's.
func wantPlan(t *testing.T, in Input, wantStarts, wantWaits []string) Decision {
	t.Helper()
	d := Plan(in)
	if diff := cmp.Diff(wantStarts, starts(d)); diff != "" {
		t.Errorf("starts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantWaits, waits(d)); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	checkDecision(t, in, d)
	return d
}

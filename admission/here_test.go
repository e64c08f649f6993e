package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

// newAgentClass runs a command of its own name, with the digest "v1", on agents.
func newAgentClass(id, lane string) lanegate.Class {
	c := newExec(id, lane, none)
	c.Run.Kind = lanegate.RunAgent
	return c
}

// agent is an idle agent with these commands at digest "v1".
func agent(id string, commands ...string) Worker {
	w := Worker{ID: id, Free: 4, SerialFree: true, Agent: true, Commands: map[string]string{}}
	for _, c := range commands {
		w.Commands[c] = "v1"
	}
	return w
}

// onWorker makes jobs run on one worker only.
func onWorker(worker string, ds []Due) []Due {
	for i := range ds {
		ds[i].Worker = worker
	}
	return ds
}

func wantText(t *testing.T, in Input, wantStarts, wantWaits []string) {
	t.Helper()
	d := Plan(in)
	if diff := cmp.Diff(wantStarts, starts(d)); diff != "" {
		t.Errorf("asking %q: starts (-want +got):\n%s", in.Asking, diff)
	}
	if diff := cmp.Diff(wantWaits, waits(d)); diff != "" {
		t.Errorf("asking %q: waits (-want +got):\n%s", in.Asking, diff)
	}
}

func TestAgentsRunTheirKindAndNoOther(t *testing.T) {
	classes := []lanegate.Class{newExec("near", "serial", none), newAgentClass("far", "parallel"), newClass("web", "parallel", none)}
	in := newInput(classes, due("near", 1), due("far", 2), due("web", 3))
	gateway := Worker{ID: "w1", Free: 4, SerialFree: true, Commands: map[string]string{"near": "v1", "far": "v1"}}
	in.lane("parallel").WidthSetting = 5

	in.Workers = []Worker{gateway}
	wantText(t, in, []string{"near-1>serial", "web-3>parallel"}, []string{"far-2: no_worker:far"})
	in.Workers = []Worker{agent("a", "near", "far")}
	wantText(t, in, []string{"far-2>parallel@a"}, []string{"near-1: no_worker:near", "web-3: no_worker:parallel"})
	in.Workers = []Worker{gateway, agent("a", "near", "far")}
	in.Asking = "a"
	wantText(t, in, []string{"far-2>parallel@a"}, nil)
	stale := agent("a")
	stale.Commands["far"] = "v0"
	in.Workers = []Worker{stale}
	wantText(t, in, nil, []string{"far-2: no_worker:far", "near-1: no_worker:near", "web-3: no_worker:parallel"})
}

func TestAgentsCarryOutNoVerification(t *testing.T) {
	classes := []lanegate.Class{newClass("web", "serial", none)}
	in := newInput(classes, due("web", 1))
	in.Workers = []Worker{agent("a")}
	in.Trial = &Trial{ID: "v", PlaceAt: at(-60), Members: []string{"web"}, FromQueue: true, Round: []string{"web"}}
	in.Asking = "a"
	if d := Plan(in); d.Trial.Take || len(d.Trial.Gang) > 0 {
		t.Errorf("an agent took the trial: %+v", d.Trial)
	}
}

func TestJobsOnTheSpotRunOnTheirWorkerInTheirOrder(t *testing.T) {
	class := limited(newAgentClass("far", "serial"), 3)
	first, second := agent("a", OnTheSpot("far")), agent("b", OnTheSpot("far"))
	second.Commands[OnTheSpot("far")] = "v2" // another command line: in serial that is nobody's business
	in := newInput([]lanegate.Class{class}, onWorker("a", due("far", 1)), onWorker("b", due("far", 2)))
	in.Workers = []Worker{first, second, agent("c", "far")}

	in.Asking = "c" // could run the class, but neither job is for it
	wantText(t, in, nil, nil)
	in.Asking = "b" // behind the first, whose worker has not asked yet
	wantText(t, in, nil, nil)
	in.Asking = "a"
	wantText(t, in, []string{"far-1>serial@a"}, []string{"far-2: lane_full[far-1]"})

	in.Workers = []Worker{second} // the first caller is gone, its job not yet
	in.Asking = ""
	wantText(t, in, nil, []string{"far-1: no_worker:far"})

	// Outside serial, too, nobody overtakes, and only what was proven runs.
	in.Classes[0].Lane = "parallel"
	in.lane("parallel").WidthSetting = 3
	in.Workers = []Worker{first, second}
	in.Asking = "b"
	wantText(t, in, nil, nil)
	in.Asking = "a"
	wantText(t, in, []string{"far-1>parallel@a"}, []string{"far-2: no_worker:far"})
	in.Workers[1].Commands[OnTheSpot("far")] = "v1"
	in.Asking = ""
	wantText(t, in, []string{"far-1>parallel@a", "far-2>parallel@b"}, nil)
}

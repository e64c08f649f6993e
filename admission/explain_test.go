package admission

import (
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

func TestInvariantWaitExplainsItself(t *testing.T) {
	everything := newExec("a", "parallel", lanegate.Units{"big": 9, "db": 5})
	everything.Paused = true
	runPlanCases(t, []planCase{
		{
			name:  "a paused class",
			in:    newInput(classes(pausedClass(newClass("a", "serial", none))), due("a", 1)),
			waits: []string{"a-1: paused:class"},
		},
		{
			name:  "a paused lane, serial as any other",
			in:    newInput(classes(newClass("a", "serial", none), newClass("b", "parallel", none)), due("a", 1), due("b", 1)),
			edit:  func(in *Input) { in.lane("serial").Paused = true; in.lane("parallel").Paused = true },
			waits: []string{"a-1: paused:lane", "b-1: paused:lane"},
		},
		{
			name:  "no worker at all",
			in:    newInput(classes(newClass("a", "serial", none), newExec("b", "parallel", none)), due("a", 1), due("b", 1)),
			edit:  func(in *Input) { in.Workers = nil },
			waits: []string{"a-1: no_worker:serial", "b-1: no_worker:parallel no_worker:b"},
		},
		{
			name:   "no worker serves serial",
			in:     newInput(classes(newClass("a", "serial", none), newClass("b", "parallel", none)), due("a", 1), due("b", 2)),
			edit:   func(in *Input) { in.Workers[0].Lanes = []string{"parallel"} },
			starts: []string{"b-2>parallel"},
			waits:  []string{"a-1: no_worker:serial"},
		},
		{
			name: "a message is sent only by who can reach SQS",
			in:   newInput(classes(newClass("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.Classes[0].Run = lanegate.Run{Kind: lanegate.RunSQS, Queue: "q"}
			},
			waits: []string{"a-1: no_worker:sqs"},
		},
		{
			name: "a message is sent by whoever can reach SQS",
			in:   newInput(classes(newClass("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.Classes[0].Run = lanegate.Run{Kind: lanegate.RunSQS, Queue: "q"}
				in.Workers[0].Commands = map[string]string{SQSTargets: ""}
			},
			starts: []string{"a-1>serial"},
		},
		{
			name:  "a command with another definition is another command",
			in:    newInput(classes(newExec("a", "serial", none)), due("a", 1)),
			edit:  func(in *Input) { in.Workers[0].Commands = map[string]string{"a": "v2"} },
			waits: []string{"a-1: no_worker:a"},
		},
		{
			name: "a command whose definition nobody has seen runs nowhere, not even where it is missing",
			in:   newInput(classes(newExec("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.Classes[0].CommandDigest = ""
				in.Workers = append(in.Workers, Worker{ID: "w2", SerialFree: true, Commands: map[string]string{"a": "v1"}})
			},
			waits: []string{"a-1: no_worker:a"},
		},
		{
			name: "the command is there, but only on a worker that does not serve the lane",
			in:   newInput(classes(newExec("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.Workers = append(in.Workers, Worker{ID: "w2", Free: 1, SerialFree: true, Lanes: []string{"parallel"}, Commands: map[string]string{"a": "v1"}})
			},
			waits: []string{"a-1: no_worker:a"},
		},
		{
			name: "nobody serves the lane, though the command is there",
			in:   newInput(classes(newExec("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.Workers = []Worker{{ID: "w2", Free: 1, SerialFree: true, Lanes: []string{}, Commands: map[string]string{"a": "v1"}}}
			},
			waits: []string{"a-1: no_worker:serial"},
		},
		{
			name: "all local slots taken",
			in:   newInput(classes(newClass("a", "parallel", none), newClass("s", "serial", none)), due("a", 1), due("s", 2)),
			edit: func(in *Input) {
				in.Workers[0] = Worker{ID: "w1", Free: 0, SerialFree: true}
				in.InFlight = []Running{run("x", "o", "long", none)}
			},
			starts: []string{"s-2>serial"},
			waits:  []string{"a-1: worker_full[x]"},
		},
		{
			name: "everything that holds, at once",
			in:   newInput(classes(everything, newClass("s", "serial", db(5))), due("a", 1)),
			edit: func(in *Input) {
				l := in.lane("parallel")
				l.WhenUnavailable, l.Available, l.Paused = lanegate.FallbackWait, false, true
				in.InFlight = []Running{
					run("y", "a", "parallel", db(5)),
					run("x", "o", "long", db(5)),
				}
			},
			waits: []string{"a-1: paused:class paused:lane lane_unavailable no_worker:a over_capacity:big " +
				"lane_full[y] class_limit[y] resource:db[x y]"},
		},
		{
			name: "jobs of classes nobody knows are left out",
			in:   newInput(nil, due("ghost", 1)),
		},
	})
}

func TestDecisionExplainsAnyJob(t *testing.T) {
	in := newInput(classes(newClass("a", "serial", none), newClass("b", "serial", none)), due("a", 1), due("b", 2))
	d := Plan(in)
	for _, tt := range []struct {
		name, class, job string
		want             []Reason
	}{
		{"a job that starts waits for nothing", "a", "a-1", nil},
		{"one behind it waits for it", "a", "a-9", []Reason{{Code: EarlierOf, Jobs: []string{"a-1"}}}},
		{"a head waits for its reasons", "b", "b-2", []Reason{{Code: LaneFull, Jobs: []string{"a-1"}}}},
		{"one behind it waits for the head", "b", "b-9", []Reason{{Code: EarlierOf, Jobs: []string{"b-2"}}}},
		{"a class without due jobs", "c", "c-1", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := d.ReasonsOf(tt.class, tt.job)
			if len(got) != len(tt.want) || (len(got) > 0 && (got[0].String() != tt.want[0].String() || got[0].Jobs[0] != tt.want[0].Jobs[0])) {
				t.Errorf("ReasonsOf = %v, want %v", got, tt.want)
			}
		})
	}
	if w, ok := d.WaitOf("b"); !ok || w.Job != "b-2" {
		t.Errorf("WaitOf(b) = %v, %v", w, ok)
	}
	if _, ok := d.WaitOf("a"); ok {
		t.Error("WaitOf(a) found a wait of a class that waits for nothing")
	}
}

func TestPlanFillsWorkers(t *testing.T) {
	two := func(in *Input) {
		in.Workers = []Worker{
			{ID: "w1", Free: 1, SerialFree: true, Commands: map[string]string{"a": "v1", "b": "v1"}},
			{ID: "w2", Free: 1, SerialFree: true, Commands: map[string]string{"a": "v1", "b": "v1"}},
		}
		in.lane("parallel").WidthSetting = 9
	}
	ask := func(id string) func(in *Input) { return func(in *Input) { two(in); in.Asking = id } }
	threeJobs := func() Input {
		return newInput(classes(newExec("a", "parallel", none), newExec("b", "parallel", none), newExec("s", "serial", none)),
			due("a", 1), due("b", 2), due("s", 3))
	}
	runPlanCases(t, []planCase{
		{
			name:   "the asking worker gets as much as it has slots for",
			in:     threeJobs(),
			edit:   ask("w2"),
			starts: []string{"a-1>parallel@w2"},
			waits:  []string{"s-3: no_worker:s"},
		},
		{
			name:   "a worker that is not live gets nothing",
			in:     threeJobs(),
			edit:   ask("gone"),
			starts: nil,
			waits:  []string{"s-3: no_worker:s"},
		},
		{
			name:   "explanations plan for all workers together",
			in:     threeJobs(),
			edit:   two,
			starts: []string{"a-1>parallel", "b-2>parallel@w2"},
			waits:  []string{"s-3: no_worker:s"},
		},
		{
			name: "serial has a local slot of its own",
			in:   threeJobs(),
			edit: func(in *Input) {
				in.Workers = []Worker{{ID: "w1", Free: 0, SerialFree: true, Commands: map[string]string{"s": "v1", "a": "v1"}}}
				in.Asking = "w1"
			},
			starts: []string{"s-3>serial"},
			waits:  []string{"a-1: worker_full", "b-2: no_worker:b"},
		},
		{
			name: "a head only the other worker can run, which has a free slot, is left to it, with slot and units",
			in: newInput(classes(newExec("a", "long", db(10)), newExec("b", "long", none), newExec("p", "parallel", db(10))),
				due("a", 1), due("b", 2), due("p", 3)),
			edit: func(in *Input) {
				in.Lanes = append(in.Lanes, newLane("long", 1, lanegate.OrderFIFO))
				in.Workers = []Worker{
					{ID: "w1", Free: 9, Commands: map[string]string{"b": "v1", "p": "v1"}},
					{ID: "w2", Free: 1, Commands: map[string]string{"a": "v1"}},
				}
				in.Asking = "w1"
			},
			starts: nil,
			waits:  nil, // nothing but w2's start, which is not running yet
		},
		{
			name: "once the other worker is full, the slot is not left idle",
			in:   newInput(classes(newExec("a", "long", none), newExec("b", "long", none)), due("a", 1), due("b", 2)),
			edit: func(in *Input) {
				in.Lanes = append(in.Lanes, newLane("long", 1, lanegate.OrderFIFO))
				in.Workers = []Worker{
					{ID: "w1", Free: 9, Commands: map[string]string{"b": "v1"}},
					{ID: "w2", Free: 0, Commands: map[string]string{"a": "v1"}},
				}
				in.Asking = "w1"
			},
			starts: []string{"b-2>long"},
			waits:  []string{"a-1: lane_full[b-2] worker_full"},
		},
	})
}

func TestPlanIsDeterministicAndPure(t *testing.T) {
	in := newInput(classes(limited(newClass("a", "parallel", db(1)), 3), newClass("b", "serial", db(15))), due("a", 1, 2, 3), due("b", 0))
	in.InFlight = []Running{run("x", "o", "parallel", db(1))}
	in.BlockedSince = map[string]time.Time{"b-0": at(-1)}
	clone := cloneInput(in)
	first := Plan(in)
	checkUntouched(t, clone, in)
	for i := range first.Grants {
		first.Grants[i].Units["db"] = 99
	}
	for i := range first.Waits {
		for j := range first.Waits[i].Reasons {
			for k := range first.Waits[i].Reasons[j].Jobs {
				first.Waits[i].Reasons[j].Jobs[k] = "scribbled over"
			}
		}
	}
	checkUntouched(t, clone, in)
	for range 20 {
		checkDecision(t, in, Plan(in))
	}
}

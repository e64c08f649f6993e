package admission

import (
	"testing"

	"github.com/lanegate/lanegate"
)

type planCase struct {
	name   string
	in     Input
	edit   func(in *Input)
	starts []string
	waits  []string
}

func runPlanCases(t *testing.T, cases []planCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			if tt.edit != nil {
				tt.edit(&tt.in)
			}
			wantPlan(t, tt.in, tt.starts, tt.waits)
		})
	}
}

func classes(cs ...lanegate.Class) []lanegate.Class { return cs }

func TestInvariantNewIsSerial(t *testing.T) {
	runPlanCases(t, []planCase{
		{
			name:   "a class without a lane runs in serial",
			in:     newInput(classes(newClass("a", "", none)), due("a", 1)),
			starts: []string{"a-1>serial"},
		},
		{
			name:   "a class whose lane does not exist runs in serial",
			in:     newInput(classes(newClass("a", "gone", none)), due("a", 1)),
			starts: []string{"a-1>serial"},
		},
		{
			name: "serial takes one at a time by place, whatever its row says",
			in:   newInput(classes(limited(newClass("a", "serial", none), 5), newClass("b", "serial", none)), due("a", 2, 3), due("b", 1)),
			edit: func(in *Input) {
				*in.lane("serial") = lanegate.Lane{Name: "serial", WidthSetting: 9, Order: lanegate.OrderFair}
			},
			starts: []string{"b-1>serial"},
			waits:  []string{"a-2: lane_full[b-1]"},
		},
		{
			name:   "serial needs no row",
			in:     newInput(classes(newClass("a", "serial", none)), due("a", 1, 2)),
			edit:   func(in *Input) { in.Lanes = nil },
			starts: []string{"a-1>serial"},
			waits:  []string{"a-2: lane_full[a-1] class_limit[a-1]"},
		},
	})
}

func TestPlanRoutesByAvailability(t *testing.T) {
	newCase := func() Input {
		in := newInput(classes(newClass("p", "parallel", db(5)), newClass("s", "serial", db(5))), due("p", 1), due("s", 2))
		in.lane("parallel").Available = false
		return in
	}
	runPlanCases(t, []planCase{
		{
			name:   "an unavailable lane's classes run in serial",
			in:     newCase(),
			starts: []string{"p-1>serial"},
			waits:  []string{"s-2: lane_full[p-1]"},
		},
		{
			name:   "or wait, when the lane says so",
			in:     newCase(),
			edit:   func(in *Input) { in.lane("parallel").WhenUnavailable = lanegate.FallbackWait },
			starts: []string{"s-2>serial"},
			waits:  []string{"p-1: lane_unavailable"},
		},
		{
			name:   "a pause outlives the lane's workers",
			in:     newCase(),
			edit:   func(in *Input) { in.lane("parallel").Paused = true },
			starts: []string{"s-2>serial"},
			waits:  []string{"p-1: paused:lane lane_unavailable"},
		},
	})
	in := newCase()
	got := Plan(in).Grants[0].Route
	want := lanegate.Route{Lane: "serial", Reason: "lane_unavailable", Wanted: "parallel"}
	if got != want {
		t.Errorf("route = %+v, want %+v", got, want)
	}
}

func TestInvariantInFlightIsBounded(t *testing.T) {
	runPlanCases(t, []planCase{
		{
			name: "a lane starts no more than its width",
			in:   newInput(classes(limited(newClass("a", "long", none), 9)), due("a", 1, 2, 3)),
			edit: func(in *Input) {
				in.Lanes = append(in.Lanes, newLane("long", 3, lanegate.OrderFIFO))
				in.InFlight = []Running{run("x", "old", "long", none)}
			},
			starts: []string{"a-1>long", "a-2>long"},
			waits:  []string{"a-3: lane_full[a-1 a-2 x]"},
		},
		{
			name: "attempts count in the lane where they started",
			in:   newInput(classes(newClass("a", "serial", none), newClass("b", "serial", none)), due("b", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{run("x", "a", "parallel", none)} // a was demoted meanwhile
			},
			starts: []string{"b-1>serial"},
		},
		{
			name: "and in their class wherever they started",
			in:   newInput(classes(newClass("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{run("x", "a", "parallel", none)}
			},
			waits: []string{"a-1: class_limit[x]"},
		},
		{
			name:   "a class starts no more than max_in_flight, in any lane",
			in:     newInput(classes(limited(newClass("a", "long", none), 2)), due("a", 1, 2, 3)),
			edit:   func(in *Input) { in.Lanes = append(in.Lanes, newLane("long", 9, lanegate.OrderFIFO)) },
			starts: []string{"a-1>long", "a-2>long"},
			waits:  []string{"a-3: class_limit[a-1 a-2]"},
		},
		{
			name:   "max_in_flight that was never stored is 1",
			in:     newInput(classes(limited(newClass("a", "long", none), 0)), due("a", 1, 2)),
			edit:   func(in *Input) { in.Lanes = append(in.Lanes, newLane("long", 9, lanegate.OrderFIFO)) },
			starts: []string{"a-1>long"},
			waits:  []string{"a-2: class_limit[a-1]"},
		},
		{
			name: "a width lowered under running jobs starts nothing and ends nothing",
			in:   newInput(classes(newClass("a", "long", none)), due("a", 1)),
			edit: func(in *Input) {
				in.Lanes = append(in.Lanes, newLane("long", 1, lanegate.OrderFIFO))
				in.InFlight = []Running{run("x", "o", "long", none), run("y", "o", "long", none)}
			},
			waits: []string{"a-1: lane_full[x y]"},
		},
		{
			name: "an attempt in a lane that is gone holds its units",
			in:   newInput(classes(newClass("a", "serial", db(11))), due("a", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{run("x", "o", "gone", db(5))}
			},
			waits: []string{"a-1: resource:db[x]"},
		},
	})
}

func TestPlanCountsVerification(t *testing.T) {
	runPlanCases(t, []planCase{
		{
			name: "a verification attempt holds units and no slot of its lane",
			in:   newInput(classes(newClass("a", "parallel", db(5)), newClass("s", "serial", db(5))), due("a", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{
					verifying(run("x", "o", "parallel", none), "v1"),
					verifying(run("y", "o", "parallel", none), "v1"),
				}
			},
			starts: []string{"a-1>parallel"},
		},
		{
			name: "its units count outside serial whatever its lane, so serial's reserve stays whole",
			in:   newInput(classes(newClass("a", "parallel", db(5)), newClass("s", "serial", db(5))), due("a", 1), due("s", 2)),
			edit: func(in *Input) {
				in.InFlight = []Running{
					verifying(run("x", "o", "serial", db(5)), "v1"),
					run("y", "o", "parallel", db(5)),
				}
			},
			starts: []string{"s-2>serial"},
			waits:  []string{"a-1: resource:db[s-2 x y]"},
		},
		{
			name: "runs that went on after their verification run count in their class",
			in:   newInput(classes(limited(newClass("a", "parallel", none), 2)), due("a", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{
					verifying(run("x", "a", "parallel", none), "v1"),
					verifying(run("y", "a", "parallel", none), "v1"),
				}
			},
			waits: []string{"a-1: class_limit[x y]"},
		},
		{
			name: "a class at its limit anyway waits for its jobs",
			in:   newInput(classes(newClass("a", "serial", none)), due("a", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{
					run("w", "a", "parallel", none),
					verifying(run("x", "a", "parallel", none), "v1"),
				}
			},
			waits: []string{"a-1: class_limit[w x]"},
		},
		{
			name: "a hold takes serial's slot and nobody else's",
			in:   newInput(classes(newClass("s", "serial", db(1)), newClass("p", "parallel", db(1))), due("s", 1), due("p", 2)),
			edit: func(in *Input) {
				in.Hold = "v1"
				in.InFlight = []Running{verifying(run("x", "o", "parallel", none), "v1")}
			},
			starts: []string{"p-2>parallel"},
			waits:  []string{"s-1: verification:v1[x]"},
		},
		{
			name: "a hold beside an attempt that still runs in serial: both are named",
			in:   newInput(classes(newClass("s", "serial", none)), due("s", 1)),
			edit: func(in *Input) {
				in.Hold = "v1"
				in.InFlight = []Running{run("x", "o", "serial", none)}
			},
			waits: []string{"s-1: verification:v1 lane_full[x]"},
		},
	})
}

func TestPlanSharesResources(t *testing.T) {
	serialAndParallel := classes(
		newClass("p", "parallel", db(5)), newClass("q", "parallel", db(5)), newClass("r", "parallel", db(5)),
		newClass("s", "serial", db(5)))
	runPlanCases(t, []planCase{
		{
			name: "a parallel flood leaves serial its reserve",
			in:   newInput(serialAndParallel, due("p", 1), due("q", 2), due("r", 3), due("s", 4)),
			edit: func(in *Input) { in.lane("parallel").WidthSetting = 9 },
			starts: []string{
				"p-1>parallel", "q-2>parallel", "s-4>serial",
			},
			waits: []string{"r-3: resource:db[p-1 q-2 s-4]"},
		},
		{
			name: "what serial uses and its reserve are not both subtracted",
			in:   newInput(serialAndParallel, due("p", 1), due("q", 2)),
			edit: func(in *Input) {
				in.InFlight = []Running{run("x", "s", "serial", db(5))}
			},
			starts: []string{"p-1>parallel", "q-2>parallel"},
		},
		{
			name: "a serial run above the reserve counts in full",
			in:   newInput(serialAndParallel, due("p", 1), due("q", 2)),
			edit: func(in *Input) {
				in.InFlight = []Running{run("x", "s", "serial", db(8))}
			},
			starts: []string{"p-1>parallel"},
			waits:  []string{"q-2: resource:db[p-1 x]"},
		},
		{
			name: "undeclared units are 1 of each pool resource and nothing of others",
			in:   newInput(classes(newClass("a", "parallel", nil), newClass("b", "parallel", nil)), due("a", 1), due("b", 2)),
			edit: func(in *Input) {
				in.Resources = []lanegate.Resource{{Name: "db", Capacity: 1, Pool: true}, {Name: "license"}}
			},
			starts: []string{"a-1>parallel"},
			waits:  []string{"b-2: lane_full[a-1] resource:db[a-1]"},
		},
		{
			name: "zero units need nothing, not even of a resource that is gone",
			in:   newInput(classes(newClass("a", "serial", lanegate.Units{"gone": 0, "db": 0})), due("a", 1)),
			edit: func(in *Input) {
				in.InFlight = []Running{run("x", "o", "parallel", db(99))}
			},
			starts: []string{"a-1>serial"},
		},
		{
			name:  "a resource that does not exist has nothing to give",
			in:    newInput(classes(newClass("a", "serial", lanegate.Units{"gone": 1, "db": 1})), due("a", 1)),
			waits: []string{"a-1: over_capacity:gone"},
		},
		{
			name:   "a blocked head does not block other classes, but its own",
			in:     newInput(classes(newClass("a", "serial", db(15)), newClass("b", "serial", db(1)), newClass("p", "parallel", none)), due("a", 1, 2), due("b", 3)),
			edit:   func(in *Input) { in.InFlight = []Running{run("x", "p", "parallel", db(1))} },
			starts: []string{"b-3>serial"},
			waits:  []string{"a-1: lane_full[b-3] resource:db[b-3 x]"},
		},
		{
			name: "units that never fit: of the capacity in serial, of the capacity less the reserve outside",
			in: newInput(classes(newClass("a", "serial", db(16)), newClass("p", "parallel", lanegate.Units{"db": 1, "vendor": 3}),
				newClass("s", "serial", lanegate.Units{"vendor": 2})), due("a", 1), due("p", 2), due("s", 3)),
			edit: func(in *Input) {
				in.Resources = append(in.Resources, lanegate.Resource{Name: "vendor", Capacity: 2})
			},
			starts: []string{"s-3>serial"},
			waits:  []string{"a-1: over_capacity:db lane_full[s-3]", "p-2: over_capacity:vendor"},
		},
		{
			name: "a lowered capacity is not undone by more starts",
			in:   newInput(classes(newClass("a", "serial", db(1))), due("a", 1)),
			edit: func(in *Input) {
				in.Resources[0].Capacity = 3
				in.InFlight = []Running{run("x", "o", "parallel", db(5))}
			},
			waits: []string{"a-1: resource:db[x]"},
		},
	})
}

func TestInvariantOrderWithinClass(t *testing.T) {
	a := limited(newClass("a", "parallel", none), 9)
	b := limited(newClass("b", "parallel", none), 9)
	wide := func(order lanegate.Order, width int) func(in *Input) {
		return func(in *Input) { *in.lane("parallel") = newLane("parallel", width, order) }
	}
	runPlanCases(t, []planCase{
		{
			name:   "fifo: by place over the lane's classes",
			in:     newInput(classes(a, b), due("a", 1, 2, 5), due("b", 3, 4)),
			edit:   wide(lanegate.OrderFIFO, 4),
			starts: []string{"a-1>parallel", "a-2>parallel", "b-3>parallel", "b-4>parallel"},
			waits:  []string{"a-5: lane_full[a-1 a-2 b-3 b-4]"},
		},
		{
			name:   "fair: the class with the fewest in flight, this pass's starts included, then by place",
			in:     newInput(classes(a, b), due("a", 1, 2, 5), due("b", 3, 4)),
			edit:   wide(lanegate.OrderFair, 3),
			starts: []string{"a-1>parallel", "b-3>parallel", "a-2>parallel"},
			waits:  []string{"a-5: lane_full[a-1 a-2 b-3]", "b-4: lane_full[a-1 a-2 b-3]"},
		},
		{
			name: "fair: attempts in other lanes and of verification count as the class's",
			in:   newInput(classes(a, b), due("a", 1), due("b", 2)),
			edit: func(in *Input) {
				wide(lanegate.OrderFair, 1)(in)
				in.InFlight = []Running{verifying(run("x", "a", "serial", none), "v")}
			},
			starts: []string{"b-2>parallel"},
			waits:  []string{"a-1: lane_full[b-2]"},
		},
		{
			name: "run-next goes before all places, the earlier wish first",
			in:   newInput(classes(a, b), due("a", 2), due("b", 1)),
			edit: func(in *Input) {
				wide(lanegate.OrderFIFO, 1)(in)
				in.Due[0].FirstAt = at(-5)
			},
			starts: []string{"a-2>parallel"},
			waits:  []string{"b-1: lane_full[a-2]"},
		},
		{
			name: "lanes take turns by place for what they share",
			in:   newInput(classes(newClass("a", "long", db(10)), newClass("b", "parallel", db(10))), due("a", 2), due("b", 1)),
			edit: func(in *Input) { in.Lanes = append(in.Lanes, newLane("long", 1, lanegate.OrderFIFO)) },
			starts: []string{
				"b-1>parallel",
			},
			waits: []string{"a-2: resource:db[b-1]"},
		},
	})
}

func TestBefore(t *testing.T) {
	first := func(d Due, minute int) Due { d.FirstAt = at(minute); return d }
	one, two := due("a", 1)[0], due("a", 2)[0]
	twin := one
	twin.PlaceID = "b"
	for _, tt := range []struct {
		name string
		a, b Due
	}{
		{"earlier place", one, two},
		{"same time, smaller id", one, twin},
		{"run-next before any place", first(two, 0), one},
		{"earlier wish before later", first(two, 0), first(one, 1)},
		{"same wish, earlier place", first(one, 0), first(two, 0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !Before(tt.a, tt.b) || Before(tt.b, tt.a) || Before(tt.a, tt.a) {
				t.Errorf("Before(a, b) = %v, Before(b, a) = %v, Before(a, a) = %v",
					Before(tt.a, tt.b), Before(tt.b, tt.a), Before(tt.a, tt.a))
			}
		})
	}
}

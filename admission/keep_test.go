package admission

import (
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

func TestPlanRemembersBlockedHeads(t *testing.T) {
	big := newClass("big", "parallel", db(15))
	small := newClass("small", "parallel", db(1))
	newCase := func() Input {
		in := newInput(classes(big, small), due("big", 1))
		in.lane("parallel").WidthSetting = 2
		in.InFlight = []Running{run("x", "o", "long", db(1))}
		return in
	}
	for _, tt := range []struct {
		name string
		edit func(in *Input)
		want map[string]time.Time
	}{
		{"from the pass in which its units were missing", func(*Input) {}, map[string]time.Time{"big-1": noon}},
		{"since the first such pass", func(in *Input) { in.BlockedSince = map[string]time.Time{"big-1": at(-3)} },
			map[string]time.Time{"big-1": at(-3)}},
		{"never later than now", func(in *Input) { in.BlockedSince = map[string]time.Time{"big-1": at(3)} },
			map[string]time.Time{"big-1": noon}},
		{"not while only its lane is full", func(in *Input) {
			in.InFlight = []Running{run("x", "o", "parallel", db(1)), run("y", "o", "parallel", db(1))}
		}, map[string]time.Time{}},
		{"but a full lane does not make it forgotten", func(in *Input) {
			in.BlockedSince = map[string]time.Time{"big-1": at(-3)}
			in.InFlight = []Running{run("x", "o", "parallel", db(1)), run("y", "o", "parallel", db(1))}
		}, map[string]time.Time{"big-1": at(-3)}},
		{"nor do a pause and a lost worker", func(in *Input) {
			in.BlockedSince = map[string]time.Time{"big-1": at(-3)}
			in.Classes[0].Paused = true
			in.Workers = nil
		}, map[string]time.Time{"big-1": at(-3)}},
		{"not one that can never fit", func(in *Input) { in.Resources[0].Capacity = 14 }, map[string]time.Time{}},
		{"not one at its class's limit", func(in *Input) { in.InFlight[0].Class = "big" }, map[string]time.Time{}},
		{"not one that starts", func(in *Input) {
			in.BlockedSince = map[string]time.Time{"big-1": at(-3)}
			in.InFlight = nil
		}, map[string]time.Time{}},
		{"not one that is gone or no longer its class's head", func(in *Input) {
			in.BlockedSince = map[string]time.Time{"big-1": at(-3), "big-7": at(-5)}
			in.Due = due("big", 0, 1)
		}, map[string]time.Time{"big-0": noon}},
		{"one for which every worker was full", func(in *Input) {
			in.InFlight = nil
			in.Workers[0].Free = 0
		}, map[string]time.Time{"big-1": noon}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := newCase()
			tt.edit(&in)
			d := Plan(in)
			if len(d.Blocked) != len(tt.want) {
				t.Errorf("remembered %v, want %v", d.Blocked, tt.want)
			}
			for job, since := range tt.want {
				if !d.Blocked[job].Equal(since) {
					t.Errorf("remembered %v, want %v", d.Blocked, tt.want)
				}
			}
			checkDecision(t, in, d)
		})
	}
}

func TestPlanKeepsResources(t *testing.T) {
	since := func(minutes int, jobs ...string) func(in *Input) {
		return func(in *Input) {
			in.BlockedSince = map[string]time.Time{}
			for _, j := range jobs {
				in.BlockedSince[j] = at(minutes)
			}
		}
	}
	// db 15: x uses 5 outside serial; big wants 12; small ones 1 each.
	newCase := func(bigLane string, more ...lanegate.Class) Input {
		in := newInput(append(classes(newClass("big", bigLane, db(12)), limited(newClass("small", "parallel", db(3)), 9)), more...),
			due("big", 2), due("small", 3, 4))
		in.lane("parallel").WidthSetting = 9
		in.InFlight = []Running{run("x", "o", "long", db(5))}
		return in
	}
	for _, tt := range []struct {
		name   string
		in     Input
		edits  []func(in *Input)
		kept   string
		starts []string
		waits  []string
	}{
		{
			name:   "nothing, before the head was blocked for starve_after",
			in:     newCase("parallel"),
			edits:  []func(*Input){since(-9, "big-2")},
			starts: []string{"small-3>parallel", "small-4>parallel"},
			waits:  []string{"big-2: resource:db[small-3 small-4 x]"},
		},
		{
			name:  "its units afterwards",
			in:    newCase("parallel"),
			edits: []func(*Input){since(-10, "big-2")},
			kept:  "big-2",
			waits: []string{"big-2: resource:db[x]", "small-3: kept_for:big-2[big-2]"},
		},
		{
			name:   "after another time, when that is asked for",
			in:     newCase("parallel"),
			edits:  []func(*Input){since(-10, "big-2"), func(in *Input) { in.StarveAfter = 11 * time.Minute }},
			starts: []string{"small-3>parallel", "small-4>parallel"},
			waits:  []string{"big-2: resource:db[small-3 small-4 x]"},
		},
		{
			name: "but not what is left beyond them, and not other resources",
			in:   newCase("parallel", newClass("mini", "parallel", db(2)), newClass("other", "parallel", lanegate.Units{"disk": 1})),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Resources[0].Capacity = 18
				in.Resources = append(in.Resources, lanegate.Resource{Name: "disk", Capacity: 1})
				in.InFlight[0].Units = lanegate.Units{"db": 4}
				in.InFlight = append(in.InFlight, run("y", "o", "serial", db(4)))
				in.Classes[0].Units = db(11)
				in.Due = append(in.Due, due("mini", 5)...)
				in.Due = append(in.Due, due("other", 6)...)
				in.InFlight[0].Units = db(4)
				in.Resources[0].Capacity = 21
				in.InFlight[1].Units = db(7)
			}},
			kept:   "big-2",
			starts: []string{"other-6>parallel"},
			waits: []string{
				"big-2: resource:db[x y]", "mini-5: kept_for:big-2[big-2]", "small-3: kept_for:big-2[big-2]",
			},
		},
		{
			name:  "and starts first as soon as they are there",
			in:    newCase("parallel"),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) { in.InFlight = nil }},
			starts: []string{
				"big-2>parallel", "small-3>parallel",
			},
			waits: []string{"small-4: resource:db[big-2 small-3]"},
		},
		{
			name: "but starts not before its lane has a slot, which is the next one",
			in:   newCase("long", newClass("slot", "long", none)),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Lanes = append(in.Lanes, newLane("long", 1, lanegate.OrderFIFO))
				in.Due = append(in.Due, due("slot", 1)...)
				in.InFlight = []Running{run("x", "o", "long", none)}
			}},
			kept:   "big-2",
			starts: []string{"small-3>parallel"},
			waits:  []string{"big-2: lane_full[x]", "slot-1: lane_full[x]", "small-4: kept_for:big-2[big-2]"},
		},
		{
			name: "of one head only, the one with the smallest place over all lanes",
			in:   newCase("parallel", newClass("huge", "long", db(15))),
			edits: []func(*Input){since(-60, "big-2", "huge-1"), func(in *Input) {
				in.Lanes = append(in.Lanes, newLane("long", 2, lanegate.OrderFIFO))
				in.Due = append(in.Due, due("huge", 1)...)
			}},
			kept:  "huge-1",
			waits: []string{"big-2: resource:db[x] kept_for:huge-1[huge-1]", "huge-1: resource:db[x]", "small-3: kept_for:huge-1[huge-1]"},
		},
		{
			name: "not of one that is paused, at its limit, over capacity, or without worker or lane",
			in: newCase("parallel", pausedClass(newClass("paused", "parallel", db(15))), newClass("limit", "parallel", db(15)),
				newClass("over", "parallel", db(16)), newExec("alien", "parallel", db(15)), newClass("lost", "long", db(15))),
			edits: []func(*Input){since(-60, "big-2", "paused-1", "limit-1", "over-1", "alien-1", "lost-1"), func(in *Input) {
				for _, c := range in.Classes[2:] {
					in.Due = append(in.Due, due(c.ID, 1)...)
				}
				in.InFlight[0].Class = "limit"
				in.Lanes = append(in.Lanes, lanegate.Lane{Name: "long", WhenUnavailable: lanegate.FallbackWait, WidthSetting: 1})
			}},
			kept: "big-2",
			waits: []string{
				"alien-1: no_worker:alien resource:db[x] kept_for:big-2[big-2]",
				"big-2: resource:db[x]",
				"limit-1: class_limit[x] resource:db[x] kept_for:big-2[big-2]",
				"lost-1: lane_unavailable lane_full[x] resource:db[x] kept_for:big-2[big-2]",
				"over-1: over_capacity:db kept_for:big-2[big-2]",
				"paused-1: paused:class resource:db[x] kept_for:big-2[big-2]",
				"small-3: kept_for:big-2[big-2]",
			},
		},
		{
			name: "of a serial head: within the reserve once, not on top of it and of what serial uses",
			in:   newCase("serial", newClass("tiny", "serial", db(3))),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Resources[0].Capacity = 20 // the reserve is 12
				in.InFlight = []Running{run("y", "o", "serial", db(10))}
			}},
			kept:   "big-2",
			starts: []string{"small-3>parallel", "small-4>parallel"},
			waits:  []string{"big-2: lane_full[y] resource:db[small-3 small-4 y]"},
		},
		{
			name: "of a serial head against other serial ones, which else go on",
			in:   newCase("serial", newClass("tiny", "serial", db(1)), newClass("free", "serial", none)),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Due = append(in.Due, due("tiny", 5)...)
				in.Due = append(in.Due, due("free", 6)...)
			}},
			kept:   "big-2",
			starts: []string{"free-6>serial"},
			waits: []string{
				"big-2: lane_full[free-6] resource:db[x]", "small-3: resource:db[x] kept_for:big-2[big-2]",
				"tiny-5: lane_full[free-6] kept_for:big-2[big-2]",
			},
		},
		{
			name: "of a serial head even while its worker is full outside serial",
			in:   newCase("serial"),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Workers[0].Free = 0
				in.Workers = append(in.Workers, Worker{ID: "w2", Free: 5, Lanes: []string{"parallel"}})
				in.InFlight[0].Units = db(1)
				in.Resources[0].Capacity = 14
				in.InFlight = append(in.InFlight, verifying(run("y", "o", "serial", db(2)), "v"))
			}},
			kept:  "big-2",
			waits: []string{"big-2: resource:db[x y]", "small-3: resource:db[x y] kept_for:big-2[big-2]"},
		},
		{
			name: "outside serial never from serial's reserve",
			in:   newCase("parallel", newClass("tiny", "serial", db(3))),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Due = append(in.Due, due("tiny", 5)...)
			}},
			kept:   "big-2",
			starts: []string{"tiny-5>serial"},
			waits:  []string{"big-2: resource:db[tiny-5 x]", "small-3: kept_for:big-2[big-2]"},
		},
		{
			name: "outside serial, but from serial jobs above the reserve",
			in:   newCase("parallel", newClass("fat", "serial", db(4))),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Due = append(in.Due, due("fat", 5)...) // the reserve is 15 − 12 = 3
			}},
			kept:  "big-2",
			waits: []string{"big-2: resource:db[x]", "fat-5: kept_for:big-2[big-2]", "small-3: kept_for:big-2[big-2]"},
		},
		{
			name: "and a slot of one worker that can run it",
			in:   newCase("parallel", newClass("free", "parallel", none)),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Due = append(in.Due, due("free", 6)...)
				in.Workers[0].Free = 1
			}},
			kept:  "big-2",
			waits: []string{"big-2: resource:db[x]", "free-6: kept_for:big-2[big-2]", "small-3: kept_for:big-2[big-2]"},
		},
		{
			name: "but no units while its workers are full",
			in:   newCase("parallel"),
			edits: []func(*Input){since(-10, "big-2"), func(in *Input) {
				in.Classes[0] = newExec("big", "parallel", db(12))
				in.Workers[0].Free = 0
				in.Workers[0].Commands = map[string]string{"big": "v1"}
				in.Workers = append(in.Workers, Worker{ID: "w2", Free: 5})
			}},
			starts: []string{"small-3>parallel@w2", "small-4>parallel@w2"},
			waits:  []string{"big-2: resource:db[small-3 small-4 x] worker_full[x]"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, edit := range tt.edits {
				edit(&tt.in)
			}
			d := wantPlan(t, tt.in, tt.starts, tt.waits)
			if d.Kept != tt.kept {
				t.Errorf("kept for %q, want %q", d.Kept, tt.kept)
			}
		})
	}
}

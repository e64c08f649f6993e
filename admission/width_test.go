package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
)

var db15 = []lanegate.Resource{{Name: "db", Capacity: 15, Pool: true}}

func TestReserve(t *testing.T) {
	for _, tt := range []struct {
		name    string
		classes []lanegate.Class
		want    int
	}{
		{"no classes", nil, 0},
		{"the largest serial class", classes(newClass("a", "serial", db(5)), newClass("b", "", db(3))), 5},
		{"paused serial classes need nothing", classes(pausedClass(newClass("a", "serial", db(5))), newClass("b", "serial", db(2))), 2},
		{"never so much that a promoted class has no room", classes(newClass("a", "serial", db(12)), newClass("b", "parallel", db(8))), 7},
		{"paused promoted classes keep their room", classes(newClass("a", "serial", db(12)), pausedClass(newClass("b", "long", db(8)))), 7},
		{"a promoted class above the capacity leaves nothing", classes(newClass("a", "serial", db(5)), newClass("b", "parallel", db(20))), 0},
		{"a serial class above the capacity takes all of it", classes(newClass("a", "serial", db(40))), 15},
		{"undeclared is 1 of a pool", classes(newClass("a", "serial", nil)), 1},
		{"declared nothing is nothing", classes(newClass("a", "serial", none)), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Reserve(db15[0], tt.classes); got != tt.want {
				t.Errorf("Reserve = %d, want %d", got, tt.want)
			}
		})
	}
	if got := Reserve(lanegate.Resource{Name: "license", Capacity: 3}, classes(newClass("a", "serial", nil))); got != 0 {
		t.Errorf("Reserve of what is no pool for an undeclared class = %d, want 0", got)
	}
}

func TestWidths(t *testing.T) {
	parallel := newLane("parallel", lanegate.WidthAuto, lanegate.OrderFair)
	serialFive := newClass("s", "serial", db(5))
	for _, tt := range []struct {
		name      string
		lanes     []lanegate.Lane
		classes   []lanegate.Class
		resources []lanegate.Resource
		want      Width
	}{
		{
			name:    "the example of the design",
			classes: classes(serialFive, newClass("a", "parallel", db(5)), newClass("b", "parallel", db(2))),
			want: Width{
				InForce: 2, Auto: 2, Sums: []Sum{{"db", 15, 5, 0, 5, 2}},
				Sentence: "(15 − 5 − 0) / 5 = 2 by db: capacity 15, 5 kept for serial, 5 per run",
			},
		},
		{
			name:    "rounded down, beside another lane",
			lanes:   []lanegate.Lane{newLane("long", 2, lanegate.OrderFIFO)},
			classes: classes(newClass("l", "long", db(2)), newClass("a", "parallel", db(4)), serialFive),
			want: Width{
				InForce: 1, Auto: 1, Sums: []Sum{{"db", 15, 5, 4, 4, 1}},
				Sentence: "(15 − 5 − 4) / 4 = 1 rounded down by db: capacity 15, 5 kept for serial, 4 for other lanes, 4 per run",
			},
		},
		{
			name:      "the smallest over the resources in use counts",
			classes:   classes(newClass("a", "parallel", lanegate.Units{"db": 1, "vendor": 1})),
			resources: []lanegate.Resource{db15[0], {Name: "vendor", Capacity: 3}},
			want: Width{
				InForce: 3, Auto: 3, Sums: []Sum{{"db", 15, 0, 0, 1, 15}, {"vendor", 3, 0, 0, 1, 3}},
				Sentence: "(3 − 0 − 0) / 1 = 3 by vendor: capacity 3, 0 kept for serial, 1 per run",
			},
		},
		{
			name:    "a paused serial class reserves nothing",
			classes: classes(pausedClass(serialFive), newClass("a", "parallel", db(5))),
			want: Width{
				InForce: 3, Auto: 3, Sums: []Sum{{"db", 15, 0, 0, 5, 3}},
				Sentence: "(15 − 0 − 0) / 5 = 3 by db: capacity 15, 0 kept for serial, 5 per run",
			},
		},
		{
			name: "no classes",
			want: Width{InForce: 1, Auto: 1, Sentence: "1: no class belongs to this lane yet"},
		},
		{
			name:    "classes that use nothing",
			classes: classes(newClass("a", "parallel", none)),
			want:    Width{InForce: 1, Auto: 1, Sentence: "1: the classes of this lane use no resource, so there is nothing to divide"},
		},
		{
			name:    "never less than 1, and says so",
			lanes:   []lanegate.Lane{newLane("long", 3, lanegate.OrderFIFO)},
			classes: classes(newClass("l", "long", db(5)), newClass("a", "parallel", db(5)), serialFive),
			want: Width{
				InForce: 1, Auto: 1, Sums: []Sum{{"db", 15, 5, 15, 5, -1}},
				Sentence: "(15 − 5 − 15) / 5 = -1 by db: capacity 15, 5 kept for serial, 15 for other lanes, 5 per run; " +
					"that is less than 1, so the width is 1 and a start still waits until its units are free",
			},
		},
		{
			name:    "classes that declare nothing",
			classes: classes(newClass("s", "serial", nil), newClass("t", "serial", nil), newClass("a", "parallel", db(7))),
			want: Width{
				InForce: 2, Auto: 2, Sums: []Sum{{"db", 15, 1, 0, 7, 2}}, Undeclared: 2,
				Sentence: "(15 − 1 − 0) / 7 = 2 by db: capacity 15, 1 kept for serial, 7 per run; " +
					"2 of 3 classes declare no units and count as 1 of each pool resource",
			},
		},
		{
			name:    "one class that declares nothing",
			classes: classes(newClass("s", "serial", nil), newClass("a", "parallel", db(7))),
			want: Width{
				InForce: 2, Auto: 2, Sums: []Sum{{"db", 15, 1, 0, 7, 2}}, Undeclared: 1,
				Sentence: "(15 − 1 − 0) / 7 = 2 by db: capacity 15, 1 kept for serial, 7 per run; " +
					"1 of 2 classes declares no units and counts as 1 of each pool resource",
			},
		},
		{
			name:    "a resource that is not declared",
			classes: classes(newClass("a", "parallel", lanegate.Units{"gone": 2})),
			want: Width{
				InForce: 1, Auto: 1, Sums: []Sum{{"gone", 0, 0, 0, 2, 0}},
				Sentence: "(0 − 0 − 0) / 2 = 0 by gone: capacity 0, 0 kept for serial, 2 per run; " +
					"that is less than 1, so the width is 1 and a start still waits until its units are free",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resources := tt.resources
			if resources == nil {
				resources = db15
			}
			tt.want.Lane = "parallel"
			got := Widths(append(tt.lanes, parallel), tt.classes, resources)
			if diff := cmp.Diff(tt.want, got["parallel"]); diff != "" {
				t.Errorf("parallel (-want +got):\n%s", diff)
			}
			serial := Width{Lane: "serial", InForce: 1, Setting: 1, Auto: 1, Undeclared: tt.want.Undeclared,
				Sentence: "1: serial runs one job at a time, always"}
			if diff := cmp.Diff(serial, got["serial"]); diff != "" {
				t.Errorf("serial (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWidthsOfExplicitLanes(t *testing.T) {
	resources := []lanegate.Resource{{Name: "db", Capacity: 25, Pool: true}}
	cs := classes(newClass("s", "serial", db(5)), newClass("a", "parallel", db(5)), newClass("l", "long", db(5)))
	for _, tt := range []struct {
		name           string
		long           int
		parallel, auto int
		overcommitted  bool
		sentence       string
	}{
		{"within the sum", 1, 3, 1, false, "; set to 1"},
		{"more leaves less to the auto lane", 2, 2, 2, false, "; set to 2"},
		{"all but the auto lane's least", 3, 1, 3, false, "; set to 3"},
		{"above the sum", 4, 1, 3, true, "; set to 4, which is more: a start still waits until its units are free"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ws := Widths([]lanegate.Lane{
				newLane("parallel", lanegate.WidthAuto, lanegate.OrderFair),
				newLane("long", tt.long, lanegate.OrderFIFO),
			}, cs, resources)
			long := ws["long"]
			if ws["parallel"].InForce != tt.parallel || long.Auto != tt.auto || long.InForce != tt.long ||
				long.Setting != tt.long || long.Overcommitted != tt.overcommitted || !strings.HasSuffix(long.Sentence, tt.sentence) {
				t.Errorf("parallel %d, long %+v", ws["parallel"].InForce, long)
			}
		})
	}
	t.Run("set for a lane without classes", func(t *testing.T) {
		w := Widths([]lanegate.Lane{newLane("long", 4, lanegate.OrderFIFO)}, nil, nil)["long"]
		if w.InForce != 4 || w.Auto != 1 || !w.Overcommitted {
			t.Errorf("long = %+v", w)
		}
	})
}

func TestWidthsOfSeveralAutoLanes(t *testing.T) {
	resources := []lanegate.Resource{{Name: "db", Capacity: 20, Pool: true}}
	cs := classes(newClass("p", "parallel", db(2)), newClass("a", "alpha", db(3)), newClass("b", "beta", db(3)))
	lanes := []lanegate.Lane{
		newLane("beta", lanegate.WidthAuto, lanegate.OrderFIFO),
		newLane("alpha", lanegate.WidthAuto, lanegate.OrderFIFO),
		newLane("parallel", lanegate.WidthAuto, lanegate.OrderFair),
	}
	want := map[string]int{
		"parallel": 7, // (20 − 3 − 3) / 2
		"alpha":    1, // (20 − 14 − 3) / 3
		"beta":     1, // (20 − 14 − 3) / 3
		"serial":   1,
	}
	for range 2 {
		got := map[string]int{}
		for name, w := range Widths(lanes, cs, resources) {
			got[name] = w.InForce
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("widths (-want +got):\n%s", diff)
		}
		lanes[0], lanes[2] = lanes[2], lanes[0] // the order of the rows does not matter
	}
}

// While no lane is clamped to 1 or set above the sum, all lanes can be full of
// their largest runs with serial's reserve untouched.
func TestWidthsFitTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapidPicker{t})
		for range 5 {
			w.editClass()
		}
		ws := Widths(w.lanes, w.classes, w.resources)
		for _, r := range w.resources {
			total, clamped := 0, false
			for name, width := range ws {
				for _, s := range width.Sums {
					if s.Resource == r.Name {
						if reserve := Reserve(r, w.classes); s.Reserve != reserve {
							t.Errorf("sum %+v, but Reserve says %d", s, reserve)
						}
						total += width.InForce * s.Units
						clamped = clamped || s.Result < 1 || width.Overcommitted
					}
				}
				if width.InForce < 1 || (name == "serial" && width.InForce != 1) {
					t.Errorf("%s has width %d", name, width.InForce)
				}
			}
			if reserve := Reserve(r, w.classes); !clamped && total > r.Capacity-reserve {
				t.Errorf("%s: all lanes full take %d, capacity %d, reserve %d: %+v", r.Name, total, r.Capacity, reserve, ws)
			}
		}
	})
}

func TestLowered(t *testing.T) {
	width := func(name string, n int) Width { return Width{Lane: name, InForce: n} }
	before := map[string]Width{"a": width("a", 3), "b": width("b", 2), "c": width("c", 2), "gone": width("gone", 5), "z": width("z", 2)}
	after := map[string]Width{"a": width("a", 1), "b": width("b", 2), "c": width("c", 4), "new": width("new", 1), "z": width("z", 1)}
	want := []Change{{"a", 3, 1}, {"z", 2, 1}}
	if diff := cmp.Diff(want, Lowered(before, after)); diff != "" {
		t.Errorf("Lowered (-want +got):\n%s", diff)
	}
	if got := Lowered(after, after); got != nil {
		t.Errorf("Lowered without a change = %v", got)
	}
}

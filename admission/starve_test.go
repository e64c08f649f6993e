package admission

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
)

// crowd is a world in which some classes never run out of jobs, and every run
// ends after the time that its class takes.
type crowd struct {
	*world
	takes map[string][]int // minutes per class, in turn
	ends  map[string]time.Time
	begun map[string]time.Time // job → when it started
	turns map[string]int
	more  int // of each stream's jobs wait than two at least
}

func newCrowd(lanes []lanegate.Lane, resources []lanegate.Resource, workers ...simWorker) *crowd {
	if workers == nil {
		workers = []simWorker{{id: "w1", slots: 99}}
	}
	return &crowd{
		world: &world{
			picker:    &bytePicker{},
			now:       noon,
			lanes:     append(lanes, newLane("serial", 1, lanegate.OrderFIFO)),
			resources: resources,
			workers:   workers,
			blocked:   map[string]time.Time{},
		},
		takes: map[string][]int{},
		ends:  map[string]time.Time{},
		begun: map[string]time.Time{},
		turns: map[string]int{},
	}
}

// stream adds a class that always has jobs waiting. Its runs take so many
// minutes each, in turn.
func (c *crowd) stream(class lanegate.Class, minutes ...int) {
	c.classes = append(c.classes, class)
	c.takes[class.ID] = minutes
}

// crush makes the world one that starves its first class, if the planner lets
// it: that class needs all of db, and the others always use some.
func (c *crowd) crush() {
	c.resources[0].Capacity = 8
	for i := range c.lanes {
		c.lanes[i].WidthSetting = 4
	}
	for i := range c.classes {
		class := &c.classes[i]
		class.Units = db(8)
		if i > 0 {
			class.Lane, class.MaxInFlight, class.Units = "parallel", 3, db(1+c.pick(2))
		}
	}
}

// minute lets the clock advance, ends what is over, refills the streams and lets
// the workers ask, each until it gets nothing more.
func (c *crowd) minute(t failer) {
	t.Helper()
	c.now = c.now.Add(time.Minute)
	c.running = slices.DeleteFunc(slices.Clone(c.running), func(r Running) bool { return !c.ends[r.Job].After(c.now) })
	c.coordinate()
	waiting := map[string]int{}
	for _, j := range c.queued {
		waiting[j.Class]++
	}
	for _, class := range c.classes {
		if c.takes[class.ID] != nil && waiting[class.ID] < 2+c.more {
			c.submit(class.ID)
		}
	}
	for _, s := range c.workers {
		in := c.input(s.id)
		d := Plan(in)
		if len(d.Grants) > 0 {
			checkLimits(t, in, d)
			checkUnits(t, in, d)
			checkPlacement(t, in, d)
		}
		checkTrial(t, in, d)
		c.apply(s.id, d)
		for _, r := range c.running {
			c.time(r)
		}
	}
}

// time sets the end of a run that has just begun.
func (c *crowd) time(r Running) {
	if _, ok := c.begun[r.Job]; ok {
		return
	}
	c.begun[r.Job] = c.now
	takes := c.takes[r.Class]
	if takes == nil {
		takes = []int{30}
	}
	c.ends[r.Job] = c.now.Add(time.Duration(takes[c.turns[r.Class]%len(takes)]) * time.Minute)
	c.turns[r.Class]++
}

// Each of these jobs waits for ever in a plain line: in the same crowd it does
// not start within days when nothing is kept for it. With a reservation it does
// within the time it takes to be remembered, plus the runs it must wait out.
func TestInvariantNothingStarves(t *testing.T) {
	db20 := []lanegate.Resource{{Name: "db", Capacity: 20}}
	for _, tt := range []struct {
		name   string
		crowd  func() *crowd
		within int // minutes
	}{
		{
			name: "large units behind a stream of small ones",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("parallel", 9, lanegate.OrderFIFO)}, db20)
				c.stream(limited(newClass("small", "parallel", db(5)), 9), 7, 9, 11, 13)
				c.classes = append(c.classes, newClass("target", "parallel", db(15)))
				return c
			},
			within: 10 + 13 + 2,
		},
		{
			name: "large units in a fair lane with many classes of small ones",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("parallel", 6, lanegate.OrderFair)}, db20)
				for i, id := range []string{"a", "b", "d", "e", "f", "g", "h", "i"} {
					c.stream(newClass(id, "parallel", db(3)), 5+i, 12-i, 7)
				}
				c.classes = append(c.classes, newClass("target", "parallel", db(20)))
				return c
			},
			within: 20 + 10 + 12 + 2, // up to 20 until the older small ones have had their turns
		},
		{
			name: "a job whose lane's slots others take while its units gather",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("parallel", 9, lanegate.OrderFIFO), newLane("long", 2, lanegate.OrderFIFO)}, db20)
				c.stream(limited(newClass("small", "parallel", db(5)), 9), 7, 9, 11, 13)
				c.stream(limited(newClass("slot", "long", none), 9), 20, 23)
				c.classes = append(c.classes, newClass("target", "long", db(15)))
				return c
			},
			within: 23 + 10 + 23 + 2,
		},
		{
			name: "a serial job above the reserve behind a parallel stream",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("parallel", 9, lanegate.OrderFair)}, db20)
				c.stream(limited(newClass("small", "parallel", db(5)), 9), 7, 9, 11, 13)
				c.classes = append(c.classes, newClass("wide", "parallel", db(18)), newClass("target", "serial", db(19)))
				return c
			},
			within: 10 + 13 + 2,
		},
		{
			name: "a parallel job behind a stream of serial ones above the reserve",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("parallel", 3, lanegate.OrderFair)}, db20)
				c.stream(newClass("big", "serial", db(12)), 7, 9)
				c.stream(limited(newClass("small", "parallel", db(1)), 3), 11, 13, 17, 7)
				c.classes = append(c.classes, newClass("target", "parallel", db(15)))
				return c
			},
			within: 10 + 17 + 2,
		},
		{
			name: "a job that needs much of two resources, each under a stream",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("parallel", 20, lanegate.OrderFIFO)},
					[]lanegate.Resource{{Name: "db", Capacity: 4}, {Name: "vendor", Capacity: 4}})
				c.stream(limited(newClass("d", "parallel", db(1)), 9), 7, 9, 11, 13)
				c.stream(limited(newClass("v", "parallel", lanegate.Units{"vendor": 1}), 9), 6, 8, 10, 12)
				c.classes = append(c.classes, newClass("rival", "parallel", lanegate.Units{"db": 4, "vendor": 4}))
				c.submit("rival")
				c.classes = append(c.classes, newClass("target", "parallel", lanegate.Units{"db": 4, "vendor": 4}))
				return c
			},
			within: 10 + 13 + 30 + 2, // the rival, a minute older, goes first and takes half an hour
		},
		{
			name: "a job that one worker can run, which is never free when the lane is",
			crowd: func() *crowd {
				c := newCrowd([]lanegate.Lane{newLane("long", 1, lanegate.OrderFIFO), newLane("parallel", 5, lanegate.OrderFIFO)}, nil,
					simWorker{id: "w1", slots: 9, lanes: []string{"long"}},
					simWorker{id: "w2", slots: 1, commands: map[string]string{"target": "v1", "other": "v1"}})
				other := newExec("other", "parallel", none)
				c.stream(other, 3, 4, 4, 4, 4)
				c.stream(newClass("x", "long", none), 5, 4, 4, 4, 4)
				// By fours, half a cycle apart, for a day.
				c.takes["x"] = append([]int{5}, slices.Repeat([]int{4}, 2000)...)
				c.takes["other"] = append([]int{3}, slices.Repeat([]int{4}, 2000)...)
				c.classes = append(c.classes, newExec("target", "long", none))
				return c
			},
			within: 5 + 10 + 4 + 4 + 2,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.crowd()
			took, ok := c.wait(t, 6*60)
			if !ok || took > tt.within {
				t.Errorf("the target started: %v, after %d minutes; want at most %d", ok, took, tt.within)
			}
			c = tt.crowd()
			c.starveAfter = 1000 * time.Hour
			if took, ok := c.wait(t, 24*60); ok {
				t.Errorf("it needs no reservation: the target started after %d minutes without one", took)
			}
		})
	}
}

// wait lets the crowd gather for a quarter of an hour, submits the target and
// says after how many minutes it starts, within limit.
func (c *crowd) wait(t failer, limit int) (minutes int, started bool) {
	t.Helper()
	for range 15 {
		c.minute(t)
	}
	c.submit("target")
	job := c.queued[len(c.queued)-1].Job
	for i := range limit {
		if _, ok := c.begun[job]; ok {
			return i, true
		}
		c.minute(t)
	}
	return limit, false
}

// In any crowd in which all classes always have jobs waiting, each class that
// can run at all starts one now and then.
func TestInvariantNothingStarvesInAnyCrowd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newAnyCrowd(rapidPicker{t})
		c.flow(t, 2*c.bound())
	})
}

// newAnyCrowd is a crowd in which all classes always have jobs waiting, for at
// most 10 minutes each, and nothing stands in their way for good.
func newAnyCrowd(p picker) *crowd {
	c := &crowd{world: newWorld(p), takes: map[string][]int{}, ends: map[string]time.Time{},
		begun: map[string]time.Time{}, turns: map[string]int{}}
	if c.pick(2) == 0 {
		c.crush()
	}
	c.heal()
	for _, class := range c.classes {
		var takes []int
		for range 1 + c.pick(4) {
			takes = append(takes, 1+c.pick(10))
		}
		c.takes[class.ID] = takes
	}
	return c
}

// bound is how long a class may start nothing. To be remembered takes 10
// minutes, then at most 10 each for a worker's slot, for units and for the lane's
// slot; then it runs 10. All others may go first.
func (c *crowd) bound() time.Duration { return time.Duration(len(c.classes)) * 50 * time.Minute }

// flow checks for a while that each class starts something now and then.
func (c *crowd) flow(t failer, while time.Duration) {
	t.Helper()
	last := map[string]time.Time{}
	from := c.now
	for i := range while / time.Minute {
		c.minute(t)
		for _, r := range c.running {
			last[r.Class] = c.now
		}
		if i%10 != 0 {
			continue
		}
		for _, wait := range Plan(c.input("")).Waits {
			since, ok := last[wait.Class]
			if !ok {
				since = from
			}
			if c.now.Sub(since) > c.bound() && wait.Reasons[0].Code != OverCapacity {
				t.Fatalf("class %s has started nothing for %v: %v", wait.Class, c.now.Sub(since), waits(Plan(c.input(""))))
			}
		}
	}
}

package admission

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lanegate/lanegate"
)

// Each of these trials would wait for ever if others could take what it lacks.
func TestInvariantTrialsStart(t *testing.T) {
	db20 := []lanegate.Resource{{Name: "db", Capacity: 20}}
	members := func(c *crowd, lane string, units int) {
		c.classes = append(c.classes, newClass("a", lane, db(units)), newClass("b", lane, db(units)))
		c.trial = &simTrial{
			Trial:  Trial{ID: "v1", PlaceAt: c.now, Members: []string{"a", "b"}, WantsHold: true},
			rounds: [][]string{{"a", "a"}, {"a", "b"}, {"b", "b"}},
		}
		for _, id := range []string{"a", "b"} {
			c.takes[id] = []int{5}
		}
	}
	flood := func() *crowd {
		c := newCrowd([]lanegate.Lane{newLane("parallel", 9, lanegate.OrderFIFO)}, db20)
		c.stream(limited(newClass("small", "parallel", db(4)), 9), 7, 9, 11, 13)
		return c
	}
	for _, tt := range []struct {
		name   string
		crowd  func() *crowd
		within int // minutes for three rounds
	}{
		{"serial members behind a parallel flood", func() *crowd {
			c := flood()
			members(c, "serial", 9)
			return c
		}, 3 * (13 + 5 + 1)},
		{"parallel members behind a parallel flood of their own lane and serial's line", func() *crowd {
			c := flood()
			c.stream(newClass("line", "serial", db(2)), 6, 8)
			members(c, "parallel", 8)
			return c
		}, 4*8 + 3*(13+5+1)},
		{"without a hold, behind both", func() *crowd {
			c := flood()
			c.stream(newClass("line", "serial", db(2)), 6, 8)
			members(c, "parallel", 8)
			c.trial.WantsHold = false
			return c
		}, 3 * (13 + 5 + 1)},
		{"without a hold, behind serial runs above the reserve", func() *crowd {
			c := newCrowd([]lanegate.Lane{newLane("parallel", 9, lanegate.OrderFIFO)}, db20)
			c.stream(newClass("line", "serial", db(12)), 6, 8)
			c.classes = append(c.classes, newClass("wide", "parallel", db(20)))
			members(c, "parallel", 8)
			c.trial.WantsHold = false
			return c
		}, 3 * (8 + 5 + 1)},
		{"from the queue, whose jobs are many", func() *crowd {
			c := flood()
			members(c, "parallel", 9)
			c.trial.FromQueue = true
			return c
		}, 3 * (13 + 5 + 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.crowd()
			c.more = 1
			trial := c.trial
			c.trial = nil
			for range 15 {
				c.minute(t)
			}
			trial.PlaceAt = c.now
			c.trial = trial
			took := 0
			for ; c.trial != nil && took <= tt.within; took++ {
				c.minute(t)
			}
			if c.trial != nil {
				t.Fatalf("not over after %d minutes: round %d, waits for %v", took, trial.round, Plan(c.input("")).Trial.Reasons)
			}
			c.flow(t, c.bound()+20*time.Minute)
		})
	}
}

// In any crowd a trial that can be carried out comes to its end, one that can't
// stops nobody, and afterwards everybody goes on.
func TestInvariantTrialsStartInAnyCrowd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newAnyCrowd(rapidPicker{t})
		c.more = 1 // a round takes three of a class
		for range c.pick(20) {
			c.minute(t)
		}
		c.newTrial()
		// The jobs before it in serial, which may all be starved first, then for each
		// round its members' ordinary runs, its units, and its own runs.
		patience := 4*c.bound() + time.Duration(len(c.trial.rounds))*30*time.Minute
		can := true
		for from := c.now; c.trial != nil && can; {
			if c.now.Sub(from) > patience {
				t.Fatalf("the trial is in round %d of %v after %v and waits for %v",
					c.trial.round, c.trial.rounds, patience, Plan(c.input("")).Trial.Reasons)
			}
			c.minute(t)
			if c.trial != nil {
				in := c.input("")
				can = carriedOut(in, Plan(in))
			}
		}
		if c.trial != nil && c.trial.Owner != "" {
			c.endTrial() // a later round can't be: its hold ends by time
		}
		c.flow(t, c.bound()+20*time.Minute)
	})
}

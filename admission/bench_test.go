package admission

import (
	"fmt"
	"testing"

	"github.com/lanegate/lanegate"
)

func BenchmarkPlan(b *testing.B) {
	for _, size := range []struct{ classes, lanes, resources, perClass int }{
		{3, 2, 1, 2},
		{200, 20, 50, 1},
		{200, 20, 50, 50}, // longer lines cost their reading only
	} {
		b.Run(fmt.Sprintf("classes=%d/lanes=%d/resources=%d/due=%d", size.classes, size.lanes, size.resources, size.perClass), func(b *testing.B) {
			in := benchInput(size.classes, size.lanes, size.resources, size.perClass)
			checkDecision(b, in, Plan(in))
			b.ReportAllocs()
			for b.Loop() {
				Plan(in)
			}
		})
	}
}

// benchInput is a busy night: every lane nearly full, every class with jobs due.
func benchInput(classes, lanes, resources, perClass int) Input {
	in := newInput(nil)
	in.Resources = nil
	for i := range resources {
		in.Resources = append(in.Resources, lanegate.Resource{Name: fmt.Sprintf("r%02d", i), Capacity: 40, Pool: i == 0})
	}
	for i := 2; i < lanes; i++ {
		in.Lanes = append(in.Lanes, newLane(fmt.Sprintf("l%02d", i), 4, lanegate.OrderFair))
	}
	commands := map[string]string{}
	for i := range classes {
		c := newExec(fmt.Sprintf("c%03d", i), in.Lanes[i%len(in.Lanes)].Name, lanegate.Units{
			fmt.Sprintf("r%02d", i%resources): 5, fmt.Sprintf("r%02d", (i*7)%resources): 3,
		})
		c.MaxInFlight = 3
		commands[c.ID] = "v1"
		in.Classes = append(in.Classes, c)
		if i%3 == 0 && c.Lane != lanegate.LaneSerial {
			in.InFlight = append(in.InFlight, run(fmt.Sprintf("run%d", i), c.ID, c.Lane, c.Units))
		}
		for m := range perClass {
			in.Due = append(in.Due, due(c.ID, m*classes+i)...)
		}
	}
	in.Workers = []Worker{
		{ID: "w1", Free: 40, SerialFree: true, Commands: commands},
		{ID: "w2", Free: 40, SerialFree: true, Commands: commands},
	}
	return in
}

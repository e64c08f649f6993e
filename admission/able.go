package admission

import (
	"slices"

	"github.com/lanegate/lanegate"
)

// CanRun says whether one of the workers could run jobs of c while lanes stand as
// they do: it serves the lane in which they would start, and has the command, or
// waits there with one of its own for its own job. How many slots are free does not
// count.
func CanRun(c lanegate.Class, lanes []lanegate.Lane, workers []Worker) bool {
	route, _ := RouteOf(c, lanes)
	return slices.ContainsFunc(workers, func(w Worker) bool {
		k := worker{Worker: &w}
		return k.serves(route.Lane) && (k.has(&c) || k.waitsFor(&c, route.Lane == lanegate.LaneSerial))
	})
}

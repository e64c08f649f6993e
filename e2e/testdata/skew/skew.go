// Laid over cmd/lanegate by the chaos tests only: see e2e/skew_test.go.
package main

import (
	"os"
	"strconv"
	_ "unsafe" // linkname
)

// realClock is the function that the runtime reads its clocks by.
//
//go:linkname realClock runtime.vdsoClockgettimeSym
var realClock uintptr

// skew is added to the wall clock, in seconds.
var skew int64

func skewedClock() uintptr

func init() {
	n, err := strconv.ParseInt(os.Getenv("CHAOS_CLOCK_SKEW"), 10, 64)
	if err != nil || n == 0 {
		return
	}
	skew, realClock = n, skewedClock()
}

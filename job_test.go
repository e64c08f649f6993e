package lanegate

import (
	"slices"
	"testing"
)

// All pairs of states and events: exactly the moves of DESIGN's diagram are legal.
func TestMoves(t *testing.T) {
	want := map[State]map[Event]State{
		"":           {EventSubmit: StateQueued, EventSkip: StateSkipped},
		StateQueued:  {EventAdmit: StateRunning, EventCancel: StateCancelled, EventCoalesce: StateSkipped},
		StateRunning: {EventSucceed: StateSucceeded, EventFail: StateFailed, EventRetry: StateQueued, EventDefer: StateQueued, EventInterrupt: StateQueued, EventCancel: StateCancelled},
		StateFailed:  {EventRevive: StateQueued},
	}
	events := []Event{EventSubmit, EventSkip, EventCoalesce, EventAdmit, EventSucceed, EventFail, EventRetry, EventDefer, EventInterrupt, EventCancel, EventRevive}
	for _, from := range append([]State{""}, States...) {
		for _, e := range events {
			got, ok := NextState(from, e)
			to, legal := want[from][e]
			if ok != legal || (ok && got != to) {
				t.Errorf("NextState(%q, %q) = %q, %v; want %q, %v", from, e, got, ok, to, legal)
			}
			if !ok && got != from {
				t.Errorf("an illegal move changed %q to %q", from, got)
			}
		}
	}
}

func TestStateFinal(t *testing.T) {
	for _, s := range States {
		if want := !slices.Contains([]State{StateQueued, StateRunning}, s); s.Final() != want {
			t.Errorf("%s.Final() = %v, want %v", s, s.Final(), want)
		}
	}
}

package admission

import (
	"testing"

	"github.com/lanegate/lanegate"
)

// TestPlanTrialThatCannotBe: the line goes on as if it were not there.
func TestPlanTrialThatCannotBe(t *testing.T) {
	goesOn := []string{"a-20>serial", "b-21>parallel"}
	pausedB := []string{"b-21: paused:class"}
	runTrialCases(t, []trialCase{
		{
			name:   "a class is paused",
			edit:   func(in *Input) { in.Classes[1].Paused = true },
			starts: goesOn[:1], waits: pausedB,
			trial: "paused:class:b",
		},
		{
			name:   "also after it was taken",
			edit:   edits(noHold, taken, func(in *Input) { in.Classes[1].Paused = true }),
			starts: goesOn[:1], waits: pausedB,
			trial: "paused:class:b",
		},
		{
			name:   "a lane is paused",
			edit:   func(in *Input) { in.lane("parallel").Paused = true },
			starts: goesOn[:1], waits: []string{"b-21: paused:lane"},
			trial: "paused:lane:parallel",
		},
		{
			name: "serial is paused, and it wants its slot",
			edit: func(in *Input) {
				in.lane("serial").Paused = true
				in.Trial.Members, in.Trial.Round = []string{"b"}, []string{"b"}
			},
			starts: goesOn[1:], waits: []string{"a-20: paused:lane"},
			trial: "paused:lane:serial",
		},
		{
			name: "a lane is not available",
			edit: func(in *Input) {
				l := in.lane("parallel")
				l.Available, l.WhenUnavailable = false, lanegate.FallbackWait
			},
			starts: goesOn[:1], waits: []string{"b-21: lane_unavailable"},
			trial: "lane_unavailable:parallel",
		},
		{
			name:   "a class is gone",
			edit:   func(in *Input) { in.Trial.Members = append(in.Trial.Members, "ghost") },
			starts: goesOn,
			trial:  "unknown_class:ghost",
		},
		{
			name:   "the round is above the capacity",
			edit:   func(in *Input) { in.Trial.Round = []string{"a", "a", "a", "b", "b", "b"} },
			starts: goesOn,
			trial:  "over_capacity:db",
		},
		{
			name:   "or above what serial's reserve leaves, without a hold",
			edit:   edits(noHold, func(in *Input) { in.Trial.Round = []string{"a", "a", "a", "b", "b"} }),
			starts: goesOn,
			trial:  "over_capacity:db",
		},
		{
			name:   "nobody has a command",
			edit:   func(in *Input) { in.Workers[0].Commands = map[string]string{"a": "v2", "b": "v1"} },
			starts: goesOn[1:], waits: []string{"a-20: no_worker:a"},
			trial: "no_worker:a",
		},
		{
			name: "nobody has both",
			edit: func(in *Input) {
				in.Workers[0].Commands = map[string]string{"a": "v1"}
				in.Workers = append(in.Workers, Worker{ID: "w2", Free: 9, SerialFree: true, Commands: map[string]string{"b": "v1"}})
			},
			starts: []string{"a-20>serial", "b-21>parallel@w2"},
			trial:  "no_worker:a+b",
		},
		{
			name:   "its owner lost a command",
			edit:   edits(noHold, taken, askedBy(""), func(in *Input) { in.Workers[0].Commands = map[string]string{"a": "v1"} }),
			starts: []string{"a-20>serial", "b-21>parallel@w2"},
			trial:  "no_worker:b",
		},
		{
			name:   "its owner is not live",
			edit:   edits(noHold, taken, func(in *Input) { in.Trial.Owner = "gone" }),
			starts: goesOn,
			trial:  "no_worker:gone",
		},
		{
			name:   "its owner is not live any more since the round started",
			edit:   edits(noHold, taken, func(in *Input) { in.Trial.Owner, in.Trial.Round = "gone", nil }),
			starts: goesOn,
		},
		{
			name: "nobody is there at all",
			edit: func(in *Input) {
				in.Workers = nil
				in.Due = due("p", 1)
				in.Trial.Members, in.Trial.Round = []string{"p"}, []string{"p"}
			},
			waits: []string{"p-1: no_worker:parallel"},
			trial: "no_worker",
		},
	})
}

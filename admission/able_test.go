package admission

import (
	"testing"

	"github.com/lanegate/lanegate"
)

func TestCanRun(t *testing.T) {
	lanes := func(available bool) []lanegate.Lane {
		return []lanegate.Lane{{Name: lanegate.LaneSerial, Available: true}, {Name: lanegate.LaneParallel, Available: available}}
	}
	has := map[string]string{"cmd": "d1"}
	exec := lanegate.Class{ID: "c", Lane: lanegate.LaneSerial, CommandDigest: "d1"}
	exec.Run = lanegate.Run{Kind: lanegate.RunExec, Command: "cmd"}
	promoted, changed, http, agent := exec, exec, exec, exec
	promoted.Lane = lanegate.LaneParallel
	changed.CommandDigest = "d2"
	http.Run = lanegate.Run{Kind: lanegate.RunHTTP}
	agent.Run.Kind = lanegate.RunAgent
	for _, tt := range []struct {
		name     string
		class    lanegate.Class
		parallel bool // available
		worker   Worker
		want     bool
	}{
		{"its command", exec, true, Worker{Commands: has}, true},
		{"another definition of its command", changed, true, Worker{Commands: has}, false},
		{"no command", exec, true, Worker{}, false},
		{"not its lane", exec, true, Worker{Commands: has, Lanes: []string{lanegate.LaneParallel}}, false},
		{"its lane", promoted, true, Worker{Commands: has, Lanes: []string{lanegate.LaneParallel}}, true},
		{"not the lane it is in as its own is not available", promoted, false, Worker{Commands: has, Lanes: []string{lanegate.LaneParallel}}, false},
		{"a request", http, true, Worker{}, true},
		{"an agent for a gateway's class", exec, true, Worker{Commands: has, Agent: true}, false},
		{"a gateway for an agent's class", agent, true, Worker{Commands: has}, false},
		{"an agent", agent, true, Worker{Commands: has, Agent: true}, true},
		{"one that waits for its own", agent, true, Worker{Commands: map[string]string{OnTheSpot("c"): "other"}, Agent: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := CanRun(tt.class, lanes(tt.parallel), []Worker{{Lanes: []string{}}, tt.worker}); got != tt.want {
				t.Errorf("CanRun = %v, want %v", got, tt.want)
			}
		})
	}
	if CanRun(http, lanes(true), nil) {
		t.Error("nobody can run something")
	}
}

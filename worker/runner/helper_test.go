package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// gatewaySpec tells a helper process, which plays a gateway, what to run.
type gatewaySpec struct {
	Script   string
	Dir      string        // work directory and runs lock
	Exe      string        // the guard's program
	Lease    time.Duration // renewed every Beat while the process is not stopped
	Beat     time.Duration
	Grace    time.Duration
	Unfenced bool
}

// gatewayMain runs one job and prints its ending as JSON.
func gatewayMain(text string) int {
	var spec gatewaySpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	orphans, err := BecomeSubreaper()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	catalogue, err := NewCatalogue(map[string]Command{"test": shell(spec.Script)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	e, err := NewExec(ExecOptions{
		Catalogue: catalogue, Orphans: orphans, GuardPath: []string{spec.Exe, "guard"}, Grace: spec.Grace,
		RunsLock: spec.Dir + "/runs", WorkDir: spec.Dir + "/work",
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	lease := Unfenced
	if !spec.Unfenced {
		clock := NewLeaseClock()
		clock.Renew(Boottime() + spec.Lease)
		go func() {
			for range time.Tick(spec.Beat) {
				clock.Renew(Boottime() + spec.Lease)
			}
		}()
		lease = clock
	}
	end := e.Run(context.Background(), newJob(), lease)
	if err := json.NewEncoder(os.Stdout).Encode(end); err != nil {
		return 1
	}
	return 0
}

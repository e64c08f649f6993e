package runner

import (
	"syscall"
	"time"
)

// File descriptors of a guard beside 0, 1 and 2, which become the command's own.
const (
	guardControlFD = 3 // orders from the gateway, JSON texts; its end is the gateway's death
	guardReportFD  = 4 // reports to the gateway, one JSON text per line
	guardLockFD    = 5 // the runs lock, only when the spec says so
)

// guardSpec is the first order: what to run. Texts that need not be valid UTF-8
// travel as bytes, which JSON carries as base64.
type guardSpec struct {
	Path    []byte        `json:"path"` // absolute
	Argv    [][]byte      `json:"argv"`
	Env     [][]byte      `json:"env"`
	Dir     []byte        `json:"dir"`
	Grace   time.Duration `json:"grace"`
	Timeout time.Duration `json:"timeout,omitempty"`
	// Deadline on CLOCK_BOOTTIME, zero when there is none.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Locked says that guardLockFD is open and is to be handed on to the command.
	Locked bool `json:"locked,omitempty"`
	// Scratch is a directory to remove when the run has ended.
	Scratch []byte `json:"scratch,omitempty"`
}

// guardOrder is one message to the guard; exactly one field is set.
type guardOrder struct {
	Spec     *guardSpec    `json:"spec,omitempty"`
	Deadline time.Duration `json:"deadline,omitempty"` // renewal
	Stop     stopReason    `json:"stop,omitempty"`
}

// guardEvent names what a guard reports, in this order: starting, then started
// or unstartable; or refused instead of all of them; then ending (TERM is sent),
// exited (the command itself ended), stuck (any number), ended.
type guardEvent string

const (
	eventRefused     guardEvent = "refused"     // nothing was started: Reason
	eventStarting    guardEvent = "starting"    // from here on something may run
	eventUnstartable guardEvent = "unstartable" // nothing runs: Errno
	eventStarted     guardEvent = "started"     // PID
	eventEnding      guardEvent = "ending"      // Reason
	eventExited      guardEvent = "exited"      // Code or Signal, Reason, Elapsed
	eventStuck       guardEvent = "stuck"       // PIDs that KILL has not ended yet
	eventEnded       guardEvent = "ended"       // no process is left
)

// guardReport is one message from the guard.
type guardReport struct {
	Event guardEvent `json:"event"`
	PID   int        `json:"pid,omitempty"`
	PIDs  []int      `json:"pids,omitempty"`
	// Reason is why the guard ended the run, "" when the command ended by itself.
	Reason stopReason     `json:"reason,omitempty"`
	Code   int            `json:"code,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"`
	Errno  syscall.Errno  `json:"errno,omitempty"`
	// Elapsed is the command's own running time, monotonic.
	Elapsed time.Duration `json:"elapsed,omitempty"`
}

func texts(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

func words(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

package app

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate/worker"
	"github.com/lanegate/lanegate/worker/runner"
)

// AgentOptions configure an Agent. URL, Log, Commands and Exec are required.
type AgentOptions struct {
	URL       string // of the gateway
	Token     string // of role agent or run; "" for a gateway without tokens
	UserAgent string
	Log       *slog.Logger
	Lanes     []string // nil: all
	Slots     int
	Commands  func() map[string]string // digests by name
	Exec      runner.Runner
	Beat      time.Duration
	KillGrace time.Duration
	Drain     time.Duration
	// OnRegister is called with each new identity, OnRefuse when registering is of
	// no use; nil for neither.
	OnRegister func(worker string)
	OnRefuse   func(err error)
}

// Agent is a worker for a gateway elsewhere.
type Agent struct {
	worker *worker.Worker
	remote *worker.Remote
}

// NewAgent returns an Agent; it calls nobody before Run.
func NewAgent(o AgentOptions) *Agent {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // it is for people only
	}
	remote := worker.NewRemote(worker.RemoteOptions{
		URL: o.URL, Token: o.Token, UserAgent: o.UserAgent, Beat: o.Beat, KillGrace: o.KillGrace,
		OnRegister: o.OnRegister, OnRefuse: o.OnRefuse,
	})
	return &Agent{remote: remote, worker: worker.New(worker.Options{
		Backend: remote, Log: o.Log, NewID: func() string { return uuid.Must(uuid.NewV7()).String() },
		Host: host, PID: os.Getpid(), Lanes: o.Lanes, Slots: o.Slots, Commands: o.Commands,
		Exec: o.Exec, HTTP: o.Exec, // an agent gets no requests to send
		Beat: o.Beat, KillGrace: o.KillGrace, Drain: o.Drain,
	})}
}

// Run works until ctx ends, drains and leaves; see worker.Worker.Run.
func (a *Agent) Run(ctx context.Context) error {
	listening, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { a.remote.Listen(listening) })
	defer wg.Wait()
	defer stop()
	return a.worker.Run(ctx)
}

// StopNow ends a drain at once; outcomes that can't be written are given up.
func (a *Agent) StopNow() { a.worker.StopNow() }

// Reload tells the gateway that the commands have changed.
func (a *Agent) Reload(ctx context.Context) error { return a.worker.Reload(ctx) }

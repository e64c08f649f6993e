package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/worker/runner"
)

// exitNothingRan is run's code for everything but the command's own end, as that
// of timeout(1) and others that run a command.
const exitNothingRan = 125

type runCmd struct {
	Class       string        `required:"" placeholder:"CLASS" help:"Job class, of kind agent."`
	Payload     string        `placeholder:"JSON|@FILE|-" help:"Payload that the command gets on standard input and in $$LANEGATE_PAYLOAD_FILE; null when left out."`
	Key         string        `placeholder:"KEY" help:"Idempotency key: the same key never makes a second job."`
	LogicalDate string        `placeholder:"DATE" help:"The day or instant the job is about, e.g. 2026-11-28."`
	Beat        time.Duration `default:"10s" placeholder:"10s" help:"How often to tell the gateway that this process lives."`
	KillGrace   time.Duration `default:"10s" placeholder:"10s" help:"Time between TERM and KILL when the command is stopped."`
	Argv        []string      `arg:"" passthrough:"" help:"The command, behind --."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (runCmd) Help() string {
	return `Submits a job, waits for its turn, runs the command right here, with this environment and in this directory, and exits with its code. It is one word in front of a cron line:

    lanegate run --class heavy -- python heavy.py

The class must be of kind agent: {"run": {"kind": "agent", "command": "heavy"}}; a class that is not registered is created if default_target is of kind agent. The token needs the role run (submit and agent in one). What the class's history knows of the command is a digest of its arguments: keep what changes daily out of them, in the payload.

TERM and INT end the wait, or are passed on to the command as TERM, with KILL after --kill-grace. While the gateway does not answer, the command goes on until the lease is nearly over; then it is stopped, as somebody else may have the turn. When this process dies, the command dies with it, and the line is free once the gateways have seen no beat of it for a whole lease.

Exit codes: the command's own; 128 + n when signal n ended it; 125 when nothing ran or its end could not be told (refused, skipped, cancelled, no gateway); 2 for wrong usage.`
}

// Run submits, waits, runs.
func (c runCmd) Run(ctx context.Context, t terminal) error {
	if len(c.Argv) > 0 && c.Argv[0] == "--" {
		c.Argv = c.Argv[1:]
	}
	if len(c.Argv) == 0 {
		return usagef("a command is needed, behind --: lanegate run --class %s -- python heavy.py", c.Class)
	}
	cl, err := c.clientFlags.client(t)
	if err != nil {
		return err
	}
	r, cleanup, err := c.prepare(t, cl)
	if err != nil {
		return err
	}
	defer cleanup()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		for {
			select {
			case s := <-signals:
				stop(signalled{s.(syscall.Signal)})
			case <-ctx.Done():
				return
			}
		}
	}()
	return r.run(ctx)
}

// signalled is the cause of an end that somebody asked this process for.
type signalled struct{ signal syscall.Signal }

func (s signalled) Error() string { return "stopped by " + s.signal.String() }

// hereRun is one command that waits for its turn.
type hereRun struct {
	cmd        runCmd
	t          terminal
	client     *client
	agent      *app.Agent
	registered chan string // takes the first identity
	refused    chan error  // takes why there is no use in going on
	last       *lastEnding
}

// prepare builds the worker of this process.
func (c runCmd) prepare(t terminal, cl *client) (*hereRun, func(), error) {
	argvDigest, err := runner.Command{Argv: c.Argv}.Digest()
	if err != nil {
		return nil, nil, err
	}
	catalogue, err := runner.NewCatalogue(map[string]runner.Command{onTheSpot: {Argv: c.Argv, EnvPass: ownEnv(os.Environ())}})
	if err != nil {
		return nil, nil, usagef("the command can't be run: %w", err)
	}
	var cfg app.Config
	cfg.Log.Level, cfg.Log.Format = "warn", "text"
	log := app.NewLogger(cfg, t.err)
	exec, cleanup, err := agentExec(runner.ExecOptions{Catalogue: catalogue, Grace: c.KillGrace, Stdout: t.out, Stderr: t.err, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	r := &hereRun{cmd: c, t: t, client: cl, registered: make(chan string, 1), refused: make(chan error, 1), last: &lastEnding{exec: exec}}
	r.agent = app.NewAgent(app.AgentOptions{
		URL: cl.base, Token: cl.token, UserAgent: "lanegate/" + versionText(), Log: log, Slots: 1, Exec: r.last,
		Commands: func() map[string]string { return map[string]string{admission.OnTheSpot(c.Class): argvDigest} },
		Beat:     c.Beat, KillGrace: c.KillGrace, Drain: time.Nanosecond, // a stop is passed on at once
		OnRegister: func(id string) {
			select {
			case r.registered <- id:
			default: // a later identity: the job of the first is lost
			}
		},
		OnRefuse: func(err error) {
			select {
			case r.refused <- err:
			default: // it was told before
			}
		},
	})
	return r, cleanup, nil
}

// onTheSpot is the name of the one command in this process's catalogue.
const onTheSpot = "here"

// ownEnv names the variables to hand on: all but those that lanegate sets itself,
// its own settings and token among them.
func ownEnv(environ []string) []string {
	var names []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if name != "" && !strings.ContainsAny(name, " \t\r\n") && !strings.HasPrefix(name, "LANEGATE_") && name != "PGAPPNAME" {
			names = append(names, name)
		}
	}
	return names
}

// lastEnding runs attempts with the one command and remembers how the last ended.
type lastEnding struct {
	exec runner.Runner
	mu   sync.Mutex
	end  *lanegate.Ending // guarded by mu
}

// Run implements runner.Runner.
func (l *lastEnding) Run(ctx context.Context, job runner.Job, lease runner.Lease) lanegate.Ending {
	job.Run.Command = onTheSpot
	end := l.exec.Run(ctx, job, lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = &end
	return end
}

func (l *lastEnding) get() *lanegate.Ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// run returns when the job has ended and this process has left the gateway.
func (r *hereRun) run(ctx context.Context) error {
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := r.agent.Run(working); err != nil {
			r.t.notef("lanegate: %v; the gateway finds it out within its lease\n", err)
		}
	})
	j, err := r.follow(ctx)
	stopWork()
	// An outcome that can't be written is not waited for longer than --retry-for.
	giveUp := time.AfterFunc(r.cmd.RetryFor, r.agent.StopNow)
	parts.Wait()
	giveUp.Stop()
	return r.exit(ctx, j, err)
}

// follow submits the job and waits until it has ended, or ctx has.
func (r *hereRun) follow(ctx context.Context) (job, error) {
	var j job
	patience := time.NewTimer(r.cmd.RetryFor)
	defer patience.Stop()
	var id string
	select {
	case id = <-r.registered:
	case err := <-r.refused:
		return j, err
	case <-ctx.Done():
		return j, context.Cause(ctx)
	case <-patience.C:
		return j, fmt.Errorf("no place at %s within %s", r.client.base, r.cmd.RetryFor)
	}
	body, err := r.body(id)
	if err != nil {
		return j, err
	}
	a, err := r.client.call(ctx, http.MethodPost, "/jobs", body, 30*time.Second)
	if err != nil {
		return j, err
	}
	if j, err = jobOf(a); err != nil {
		return j, err
	}
	for !j.State.Final() {
		path := "/jobs/" + url.PathEscape(j.ID) + "/wait?timeout=30s"
		if a, err = r.client.call(ctx, http.MethodGet, path, nil, 45*time.Second); err != nil {
			return j, err
		}
		if j, err = jobOf(a); err != nil {
			return j, err
		}
	}
	return j, nil
}

func (r *hereRun) body(worker string) ([]byte, error) {
	fields := map[string]any{"class": r.cmd.Class, "worker": worker, "idempotency_key": r.cmd.Key}
	if r.cmd.Key == "" {
		fields["idempotency_key"] = "run-" + worker
	}
	if r.cmd.LogicalDate != "" {
		fields["logical_date"] = r.cmd.LogicalDate
	}
	head, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	payload, err := readPayload(r.t, r.cmd.Payload)
	if err != nil || payload == nil {
		return head, err
	}
	return fmt.Appendf(head[:len(head)-1], ",\"payload\":%s}", payload), nil
}

// exit turns the end into this process's own: the command's code wherever it ran.
func (r *hereRun) exit(ctx context.Context, j job, err error) error {
	stopped, wasStopped := context.Cause(ctx).(signalled) //nolint:errorlint // it is ours, never wrapped
	end := r.last.get()
	switch {
	case end != nil && end.ExitCode != nil:
		if end.Outcome != lanegate.Succeeded && end.Outcome != lanegate.Failed {
			r.t.notef("lanegate: job %s: %s: %s\n", j.ID, end.Outcome, end.Error)
		}
		return &codedError{code: *end.ExitCode}
	case end != nil && end.Signal != "":
		r.t.notef("lanegate: job %s: %s: %s\n", j.ID, end.Outcome, end.Error)
		return &codedError{code: signalCode(end.Signal)}
	case wasStopped:
		return &codedError{code: 128 + int(stopped.signal)}
	case end != nil:
		return &codedError{exitNothingRan, fmt.Errorf("job %s: %s: %s", j.ID, end.Outcome, end.Error)}
	case err != nil:
		return &codedError{exitNothingRan, err}
	case j.State == lanegate.StateSkipped:
		return &codedError{exitNothingRan, fmt.Errorf("job %s was skipped: job %s stood in its way", j.ID, j.BlockedBy)}
	}
	return &codedError{exitNothingRan, fmt.Errorf("job %s is %s and did not run here: %s", j.ID, j.State, j.Reason)}
}

// signalCode is a shell's code for the end by a signal of that name.
func signalCode(name string) int {
	if n := runner.SignalNumber(name); n != 0 {
		return 128 + int(n)
	}
	return exitNothingRan
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/worker/runner"
)

// Exit codes of try-command beside 0 and 2.
const (
	exitDeferred    = 75  // as the command's own
	exitInterrupted = 130 // Ctrl-C
)

type tryCmd struct {
	Name        string        `arg:"" help:"Command, as it is named under commands in the config file."`
	Payload     string        `placeholder:"JSON|@FILE|-" help:"Payload that the command gets; null when left out."`
	LogicalDate string        `placeholder:"DATE" help:"LANEGATE_LOGICAL_DATE of the run."`
	Timeout     time.Duration `placeholder:"2h" help:"Time limit; none when left out."`
	DryRun      bool          `help:"Only show what would run."`
	configFile
}

// Help implements kong.HelpProvider.
func (tryCmd) Help() string {
	return `Runs the command as the gateway would: under a guard, with its payload, directory and environment, and nothing else of yours. No gateway and no database takes part, so no lane or limit applies. The command's output goes to standard output and standard error as it comes; what is said about it goes to standard error.

Exit codes: 0 succeeded, 1 failed, 2 wrong usage or configuration, 75 deferred, 130 interrupted.

Examples:

    lanegate try-command pos-sales --config lanegate.yaml --payload '{"date": "2026-11-28"}'
    lanegate try-command pos-sales --config lanegate.yaml --dry-run`
}

// Run runs the command in the foreground.
func (c tryCmd) Run(ctx context.Context, t terminal) error {
	cfg, err := app.Load(c.sources(t, settingFlags{}))
	if err != nil {
		return err
	}
	if cfg.File == "" {
		return usagef("--config (or LANEGATE_CONFIG) is needed: commands are declared in the config file")
	}
	payload, err := readPayload(t, c.Payload)
	if err != nil {
		return err
	}
	if payload == nil {
		payload = []byte("null")
	}
	exec, cleanup, err := c.exec(t, cfg)
	if err != nil {
		return err
	}
	defer cleanup()
	job := runner.Job{
		ID: uuid.Must(uuid.NewV7()).String(), Attempt: 1, Token: "try", Class: c.Name, LogicalDate: c.LogicalDate,
		Payload: payload, Run: lanegate.Run{Kind: lanegate.RunExec, Command: c.Name}, Timeout: c.Timeout,
	}
	d, err := exec.Describe(job)
	if err != nil {
		return &codedError{exitUsage, err}
	}
	describe(t, d)
	if c.DryRun {
		return nil
	}
	t.notef("\n")
	return c.run(ctx, t, exec, job)
}

// exec is a runner whose output comes here, with payload files in a directory of its own.
func (c tryCmd) exec(t terminal, cfg app.Config) (_ *runner.Exec, cleanup func(), err error) {
	orphans, err := runner.BecomeSubreaper()
	if err != nil {
		return nil, nil, err
	}
	catalogue, err := runner.NewCatalogue(cfg.Commands)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "lanegate-try-")
	if err != nil {
		return nil, nil, fmt.Errorf("a directory for the payload (set TMPDIR to one that can be written): %w", err)
	}
	exec, err := runner.NewExec(runner.ExecOptions{
		Catalogue: catalogue, Orphans: orphans, Grace: cfg.KillGrace, WorkDir: dir,
		Stdout: t.out, Stderr: t.err, Logger: app.NewLogger(cfg, t.err),
	})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return exec, func() { _ = os.RemoveAll(dir) }, nil
}

func describe(t terminal, d runner.Description) {
	quoted := make([]string, len(d.Argv))
	for i, arg := range d.Argv {
		quoted[i] = fmt.Sprintf("%q", arg)
	}
	t.notef("command      %s (digest %s)\n", d.Command, d.Digest)
	t.notef("program      %s\n", d.Path)
	t.notef("arguments    %s\n", strings.Join(quoted, " "))
	t.notef("directory    %s\n", d.Dir)
	t.notef("user         %s\n", d.User)
	if d.EnvFile != "" {
		t.notef("env file     %s\n", d.EnvFile)
	}
	t.notef("environment  %s (values not shown)\n", strings.Join(d.EnvNames, " "))
}

func (c tryCmd) run(ctx context.Context, t terminal, exec *runner.Exec, job runner.Job) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case <-signals:
			stop(runner.ErrDrained)
		case <-ctx.Done():
		}
	}()
	end := exec.Run(ctx, job, runner.Unfenced)
	t.notef("\n%s after %s", end.Outcome, end.Duration.Round(time.Millisecond))
	if end.Error != "" {
		t.notef(": %s", end.Error)
	}
	t.notef("\n")
	if end.Result != nil {
		t.notef("its output is one JSON value, which becomes the job's result\n")
	}
	codes := map[lanegate.Outcome]int{lanegate.Succeeded: exitOK, lanegate.Deferred: exitDeferred, lanegate.Interrupted: exitInterrupted, lanegate.Cancelled: exitInterrupted}
	code, ok := codes[end.Outcome]
	if !ok {
		code = exitError
	}
	return &codedError{code: code}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/worker/runner"
)

type agentCmd struct {
	configFile
	Lanes     []string `placeholder:"LANE,…" help:"Lanes to serve. Without it all that there are; but only a lane that is named is made available by an agent."`
	URL       string   `default:"http://127.0.0.1:8080" placeholder:"URL" env:"LANEGATE_URL" help:"The gateway. Default: ${default}."`
	TokenFile string   `placeholder:"FILE" env:"LANEGATE_TOKEN_FILE" help:"File with a token of role agent; or put the token itself into $$LANEGATE_TOKEN."`
	kong.Plugins
	flags settingFlags
}

func (c *agentCmd) define() {
	c.flags, c.Plugins = newSettingFlags("slots", "beat", "kill_grace", "drain", "log.level", "log.format")
}

// Help implements kong.HelpProvider.
func (agentCmd) Help() string {
	return `Runs the commands of its config file for classes of kind agent: {"run": {"kind": "agent", "command": NAME}}. It needs no database, only the gateway's URL and a token. Of the config file it reads commands, slots, beat, kill_grace, drain and log.

When the gateway does not answer, runs go on until the gateway's lease is nearly over, and their outcomes are kept. Signals: TERM or INT stops (running jobs get --drain, then go back to their place); a second one stops the runs at once. HUP reads the commands again.

Example:

    lanegate agent --url https://lanegate.example --token-file agent.token --lanes parallel,serial --config commands.yaml`
}

// Run works until a signal ends it.
func (c *agentCmd) Run(ctx context.Context, t terminal) error {
	sources := c.sources(t, c.flags)
	cfg, err := app.Load(sources)
	if err != nil {
		return err
	}
	if cfg.File == "" {
		return usagef("--config (or LANEGATE_CONFIG) is needed: commands are declared in the config file")
	}
	cl, err := clientFlags{URL: c.URL, TokenFile: c.TokenFile}.client(t)
	if err != nil {
		return err
	}
	for _, lane := range c.Lanes {
		if !lanegate.ValidSlug(lane) {
			return usagef("--lanes: %q is not a lane's name", lane)
		}
	}
	catalogue, err := runner.NewCatalogue(cfg.Commands)
	if err != nil {
		return err
	}
	log := app.NewLogger(cfg, t.err)
	exec, cleanup, err := agentExec(runner.ExecOptions{Catalogue: catalogue, Grace: cfg.KillGrace, Logger: log})
	if err != nil {
		return err
	}
	defer cleanup()
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	agent := app.NewAgent(app.AgentOptions{
		URL: cl.base, Token: cl.token, UserAgent: "lanegate/" + versionText(), Log: log, Lanes: c.Lanes, Slots: cfg.Slots,
		Commands: catalogue.Digests, Exec: exec, Beat: cfg.Beat, KillGrace: cfg.KillGrace, Drain: cfg.Drain,
		OnRefuse: func(err error) { refuse(&codedError{exitUsage, err}) },
	})
	t.notef("lanegate: agent of %s, process %d\n", cl.base, os.Getpid())
	return c.work(ctx, t, agent, func(ctx context.Context) error {
		next, err := app.Load(sources)
		if err != nil {
			return err
		}
		if err := catalogue.Replace(next.Commands); err != nil {
			return err
		}
		return agent.Reload(ctx)
	})
}

// work runs the worker until a signal ends it.
func (c *agentCmd) work(ctx context.Context, t terminal, agent *app.Agent, reload func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	for {
		select {
		case err := <-done:
			if refused, ok := errors.AsType[*codedError](context.Cause(ctx)); ok {
				return refused
			}
			return err
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				if err := reload(ctx); err != nil {
					t.notef("lanegate: reading the commands again failed, the agent goes on with what it has: %v\n", err)
				}
			case ctx.Err() == nil:
				stop()
			default:
				t.notef("lanegate: second signal: stopping the runs at once\n")
				agent.StopNow()
			}
		}
	}
}

// agentExec is a runner with payload files in a directory of its own.
func agentExec(o runner.ExecOptions) (_ *runner.Exec, cleanup func(), err error) {
	if o.Orphans, err = runner.BecomeSubreaper(); err != nil {
		return nil, nil, err
	}
	if o.WorkDir, err = os.MkdirTemp("", "lanegate-agent-"); err != nil {
		return nil, nil, fmt.Errorf("a directory for payloads (set TMPDIR to one that can be written): %w", err)
	}
	exec, err := runner.NewExec(o)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(o.WorkDir))
	}
	return exec, func() { _ = os.RemoveAll(o.WorkDir) }, nil
}

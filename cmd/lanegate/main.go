// Command lanegate is the gateway and its tools: serve (the default), submit, agent, run,
// verify, verifications, promote, demote, classes, lanes, jobs, phrases, advise, import, drain,
// try-command, health, queues, token, migrate and version. See lanegate --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	_ "time/tzdata" // a container image may have no zones

	"github.com/alecthomas/kong"

	"github.com/lanegate/lanegate/app"
	_ "github.com/lanegate/lanegate/worker/guard" // with the argument "guard" this process never gets to main
)

// Exit codes that all subcommands share; submit has more of its own.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // a flag, a value or the configuration is wrong: repeating it is of no use
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], terminal{os.Stdin, os.Stdout, os.Stderr, os.LookupEnv}))
}

// terminal is what a subcommand sees of the world.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) (string, bool)
}

func (t terminal) printf(format string, args ...any) { fmt.Fprintf(t.out, format, args...) }
func (t terminal) notef(format string, args ...any)  { fmt.Fprintf(t.err, format, args...) }

// getenv is an environment variable's value, "" when it isn't set.
func (t terminal) getenv(name string) string {
	v, _ := t.env(name)
	return v
}

// codedError ends the process with a code of its own. A nil err prints nothing.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// cli is the command line. Each subcommand is in a file of its own.
type cli struct {
	Serve         serveCmd         `cmd:"" default:"withargs" help:"Run the gateway (what a bare lanegate does)."`
	Submit        submitCmd        `cmd:"" help:"Post a job, and with --wait exit as it ended."`
	Agent         agentCmd         `cmd:"" help:"Run jobs on this host for a gateway elsewhere."`
	RunHere       runCmd           `cmd:"" name:"run" help:"Wait for one's turn, then run a command right here: flock with lanes."`
	Try           tryCmd           `cmd:"" name:"try-command" help:"Run a command of the config file in the foreground, as the gateway would."`
	Verify        verifyCmd        `cmd:"" help:"Run classes at the same time on purpose, and record whether they bear it."`
	Verifications verificationsCmd `cmd:"" help:"List verification runs, or show one with its evidence."`
	Promote       promoteCmd       `cmd:"" help:"Move proven classes out of serial."`
	Demote        demoteCmd        `cmd:"" help:"Move a class back to serial."`
	Classes       classesCmd       `cmd:"" help:"List job classes, or show one and why it is where it is."`
	Lanes         lanesCmd         `cmd:"" help:"List lanes: what runs, what waits, and where the width comes from."`
	Jobs          jobsCmd          `cmd:"" help:"List jobs, newest first, and what the waiting ones wait for."`
	Phrases       phrasesCmd       `cmd:"" help:"Try phrases of trouble over what a class printed before."`
	Advise        adviseCmd        `cmd:"" help:"Read run logs and say whether lanes would help, and whom."`
	Import        importCmd        `cmd:"" help:"Load older run logs into a gateway's, for its advice."`
	Drain         drainCmd         `cmd:"" help:"Send queued jobs to an SQS queue, as the messages they came in with."`
	Health        healthCmd        `cmd:"" help:"Ask a running gateway how it is; exit 0 when well, 1 when not (for HEALTHCHECK)."`
	Token         tokenCmd         `cmd:"" help:"Make tokens for clients."`
	Queues        queuesCmd        `cmd:"" help:"Make or check the SQS queues of the lanes."`
	Migrate       migrateCmd       `cmd:"" help:"Bring the database's tables up to date and end."`
	Version       versionCmd       `cmd:"" help:"Print the version."`
}

const description = `HTTP job gateway: schedulers post jobs, lanegate decides when each may start.

Start it, post a job, look at it:

  lanegate serve --config examples/retail/lanegate.yaml
  lanegate submit pos-sales --payload '{"date": "2026-11-28"}' --wait
  curl -s http://127.0.0.1:8080/jobs

Flags win over LANEGATE_* variables, which win over the config file.
Exit codes: 0 well, 1 failed, 2 wrong usage or configuration; submit, verify and promote have more, see their --help.`

// exited carries the code of a --help out of the parser.
type exited int

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, t terminal) (code int) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exited:
			code = int(p)
		default:
			panic(p)
		}
	}()
	c := cli{}
	c.Serve.define()
	c.Agent.define()
	c.Migrate.define()
	c.Queues.define()
	c.Health.define()
	parser, err := kong.New(&c,
		kong.Name("lanegate"), kong.Description(description),
		kong.Writers(t.out, t.err), kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 110, NoAppDescFormat: true}),
		kong.ValueFormatter(withEnv), kong.Vars{"roles": strings.Join(app.Roles(), ",")}, kong.Bind(t), kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		panic(err) // the struct above is wrong
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		t.notef("lanegate: %v\n", err)
		if perr, ok := errors.AsType[*kong.ParseError](err); ok && perr.Context != nil {
			t.notef("Try \"%s --help\".\n", strings.TrimSpace("lanegate "+commandOf(perr.Context)))
		}
		return exitUsage
	}
	if err := parsed.Run(); err != nil {
		return t.fail(err)
	}
	return exitOK
}

// commandOf is the subcommand that was asked for, without its arguments.
func commandOf(ctx *kong.Context) string {
	var names []string
	for _, p := range ctx.Path {
		if p.Command != nil {
			names = append(names, p.Command.Name)
		}
	}
	return strings.Join(names, " ")
}

// fail prints err and returns its exit code.
func (t terminal) fail(err error) int {
	code := exitError
	if coded, ok := errors.AsType[*codedError](err); ok {
		if code = coded.code; coded.err == nil {
			return code
		}
	}
	if _, ok := errors.AsType[*app.ConfigError](err); ok {
		code = exitUsage
	}
	t.notef("lanegate: %v\n", err)
	return code
}

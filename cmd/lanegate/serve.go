package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/lanegate/lanegate/app"
)

// gcPercent is GOGC of a gateway, unless its environment says otherwise. What lives
// is small, a few MiB whatever the backlog; at 100 a loaded gateway spent a seventh of
// its time collecting what had hardly been made.
const gcPercent = 200

type serveCmd struct {
	configFile
	kong.Plugins
	flags settingFlags
}

func (c *serveCmd) define() { c.flags, c.Plugins = newSettingFlags() }

// Help implements kong.HelpProvider.
func (serveCmd) Help() string {
	return `Signals: TERM or INT stops (no job is accepted or started any more, running jobs get --drain, then go back to their place; everything else is answered meanwhile); a second one stops the runs at once; a third ends the process, and the runs' guards end them. HUP reads the config file again: commands, classes, lanes and resources; a file with faults changes nothing.

Standard output has the start-up lines, standard error the log.

Examples:

    lanegate serve --config /etc/lanegate.yaml
    lanegate serve --listen 0.0.0.0:8080 --drain wait --config /etc/lanegate.yaml
    LANEGATE_DATABASE=/data/lanegate.db lanegate`
}

// Run serves until a signal ends it.
func (c *serveCmd) Run(ctx context.Context, t terminal) error {
	sources := c.sources(t, c.flags)
	cfg, err := app.Load(sources)
	if err != nil {
		return err
	}
	for _, name := range app.UnknownEnv(os.Environ()) {
		t.notef("lanegate: warning: %s is set, but there is no such setting\n", name)
	}
	if _, set := t.env("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// From here on signals are ours: also one that comes during the start.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	log, access, flush := app.NewLoggers(cfg, t.err)
	defer flush()
	h := &signalHandler{t: t, stop: stop, sources: sources, exit: func(code int) { flush(); os.Exit(code) }}
	started := make(chan *app.App, 1)
	ended := make(chan struct{})
	defer close(ended)
	go h.run(ctx, signals, started, ended)

	a, err := app.New(ctx, cfg, app.Options{Version: versionText(), Log: log, Access: access, Out: t.out})
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // stopped while it waited for the database: nothing was started
		}
		return err
	}
	started <- a
	return a.Run(ctx)
}

// signalHandler turns signals into what they mean for the gateway.
type signalHandler struct {
	t       terminal
	stop    context.CancelFunc
	sources app.Sources
	exit    func(code int)
	stops   int
}

// run handles signals until ended closes. The gateway arrives on started once
// there is one.
func (h *signalHandler) run(ctx context.Context, signals <-chan os.Signal, started <-chan *app.App, ended <-chan struct{}) {
	var a *app.App
	for {
		select {
		case <-ended:
			return
		case a = <-started:
			if h.stops > 1 {
				a.StopNow()
			}
		case s := <-signals:
			if s == syscall.SIGHUP {
				h.reload(ctx, a)
				continue
			}
			h.stopped(a)
		}
	}
}

func (h *signalHandler) stopped(a *app.App) {
	switch h.stops++; h.stops {
	case 1:
		h.stop()
	case 2:
		h.t.notef("lanegate: second signal: stopping the runs at once\n")
		if a != nil {
			a.StopNow()
		}
	default:
		h.t.notef("lanegate: third signal: ending; the runs' guards end them\n")
		h.exit(exitError)
	}
}

// reload reads the configuration again; whatever is wrong with it is told, and
// the gateway goes on with what it has.
func (h *signalHandler) reload(ctx context.Context, a *app.App) {
	if a == nil {
		return // the start is under way, with a file that was just read
	}
	cfg, err := app.Load(h.sources)
	if err == nil {
		err = a.Reload(ctx, cfg)
	}
	if err != nil {
		a.ReloadFailed(err)
	}
}

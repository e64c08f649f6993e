package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/lanegate/lanegate/worker"
	"github.com/lanegate/lanegate/worker/runner"
)

// Run serves until ctx ends, then stops in order: readiness says no, long polls
// are answered, no job is accepted or started any more; running jobs get the
// drain time while the API goes on answering everything else; the rest is stopped
// and goes back to its place, the worker leaves; the doorbell tells others and
// ends, requests end, the database closes. It returns nil after a stop that was asked for.
func (a *App) Run(ctx context.Context) error {
	// A stop that has come already is a stop, not a failure to start.
	if err := a.banner(context.WithoutCancel(ctx), a.opts.Out); err != nil {
		return errors.Join(fmt.Errorf("read what the database holds: %w", err), a.closers.close())
	}
	c := a.config()
	a.log.InfoContext(ctx, "started", "version", a.opts.Version, "listen", a.Addr(), "database", c.ShownDatabase(), "config", c.File,
		"tokens", len(c.Tokens), "classes", len(c.Classes))
	for _, warning := range c.Warnings {
		a.log.WarnContext(ctx, "configuration", "warning", warning)
	}
	stopLoops := runLoops(context.WithoutCancel(ctx), a.log, a.loops())

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := a.server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
			cancel(fmt.Errorf("serve HTTP on %s: %w", a.Addr(), err))
		}
	})
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	ringing, stopRinging := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRinging()
	parts.Go(func() { a.ring(ringing) })
	parts.Go(func() { a.takeIn(ctx) })
	parts.Go(func() {
		<-ctx.Done()
		a.beginStop(context.WithoutCancel(ctx))
		stopWork()
	})
	parts.Go(func() {
		a.work(working)
		<-working.Done()
		a.ringLast(context.WithoutCancel(ctx))
		stopRinging()
		a.stopServing(context.WithoutCancel(ctx))
	})
	parts.Wait()

	stopLoops()
	err := a.closers.close()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	a.log.InfoContext(ctx, "stopped", "clean", err == nil)
	return err
}

// beginStop tells clients that this process is stopping: readiness says no, long
// polls are answered, and new jobs are refused.
func (a *App) beginStop(ctx context.Context) {
	a.log.InfoContext(ctx, "stopping", "running", a.worker.Running(), "drain", worker.DrainText(a.config().Drain))
	close(a.stopping)
	if a.bell.sqs != nil {
		a.bell.sqs.StopReceiving()
	}
}

// isStopping says whether a stop has begun.
func (a *App) isStopping() bool {
	select {
	case <-a.stopping:
		return true
	default:
		return false
	}
}

// stopServing takes the gateway off its clients. It comes after the drain, so
// that people can see and cancel what the stop waits for.
func (a *App) stopServing(ctx context.Context) {
	close(a.leaving)
	ctx, cancel := context.WithTimeout(ctx, httpDrain)
	defer cancel()
	go func() {
		select {
		case <-a.hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := a.server.Shutdown(ctx); err != nil {
		a.log.WarnContext(ctx, "requests were cut off by the stop", "err", err)
		_ = a.server.Close() // whatever it says, the connections are gone
	}
}

// work waits for the last runs of an earlier process, declares them lost and
// then runs jobs until ctx ends.
func (a *App) work(ctx context.Context) {
	if !a.takeOver(ctx) {
		return // stopped before any job was started
	}
	a.health.working.Store(true)
	var verifying sync.WaitGroup
	verifying.Go(func() {
		if err := a.svc.RunVerifications(ctx, a.worker.Identity, a.worker); err != nil {
			a.log.ErrorContext(ctx, "verification runs are no longer looked after", "err", err)
		}
	})
	defer verifying.Wait()
	if a.config().NoWorkers {
		a.worker.Watch(ctx)
		return
	}
	if err := a.worker.Run(ctx); err != nil {
		a.log.ErrorContext(ctx, "the worker ended badly; the next start finds what it left", "err", err)
	}
}

// takeOver makes the attempts of earlier processes lost, once none of their runs
// is left; it reports false when ctx ended first.
//
// On SQLite this is the only process, so every worker row is of an earlier one.
// The runs lock, held by each of their guards and runs, tells when the last is
// gone; no run of ours can start while it is held here. On PostgreSQL nothing is
// known of other processes at a start: they are declared dead by observation only.
func (a *App) takeOver(ctx context.Context) bool {
	if a.config().Postgres() {
		a.cleanStale(ctx)
		return true
	}
	began := time.Now()
	slow := time.AfterFunc(2*time.Second, func() {
		a.log.WarnContext(ctx, "waiting for the runs of an earlier process to end; jobs are accepted meanwhile", "lock", a.store.RunsLockPath())
	})
	defer slow.Stop()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := a.reapEarlier(ctx)
		if err == nil {
			a.log.DebugContext(ctx, "earlier runs are over", "took", time.Since(began).Round(time.Millisecond).String())
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		a.log.ErrorContext(ctx, "taking over from earlier processes failed; trying again", "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

func (a *App) reapEarlier(ctx context.Context) error {
	release, err := a.store.AwaitRuns(ctx)
	if err != nil {
		return err
	}
	defer release()
	a.cleanStale(ctx)
	workers, err := a.svc.LiveWorkers(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if w.Agent != "" {
			continue // it is no process of this host's; its beats tell
		}
		if err := a.svc.ReapWorker(ctx, w.ID, w.Beat); err != nil {
			return err
		}
	}
	return a.svc.ReapOrphans(ctx)
}

// cleanStale removes the payload files of runs that have ended.
func (a *App) cleanStale(ctx context.Context) {
	if err := runner.CleanStale(a.runners.workDir); err != nil {
		a.log.WarnContext(ctx, "payload files of earlier runs were not removed", "err", err)
	}
}

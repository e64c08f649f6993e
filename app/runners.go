package app

import (
	"context"
	"fmt"

	"github.com/lanegate/lanegate/worker/runner"
)

// runners are the ways in which this process runs attempts.
type runners struct {
	catalogue *runner.Catalogue
	exec      *runner.Exec
	http      *runner.HTTP
	sqs       *runner.SQS // nil where SQS can't be reached
	workDir   string
}

// buildRunners makes this process the heir of its runs' orphans, before any run.
func (a *App) buildRunners(ctx context.Context, cfg Config) error {
	orphans, err := runner.BecomeSubreaper()
	if err != nil {
		return err
	}
	catalogue, err := runner.NewCatalogue(cfg.Commands)
	if err != nil {
		return cfg.explain(err)
	}
	exec, err := runner.NewExec(runner.ExecOptions{
		Catalogue: catalogue, Orphans: orphans, Grace: cfg.KillGrace,
		RunsLock: a.store.RunsLockPath(), WorkDir: cfg.WorkDir, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("work_dir (from %s): %w", cfg.from("work_dir"), err)
	}
	http := runner.NewHTTP(runner.HTTPOptions{UserAgent: "lanegate/" + a.opts.Version, PublicURL: cfg.PublicURL, Logger: a.log})
	a.runners = runners{catalogue: catalogue, exec: exec, http: http, workDir: cfg.WorkDir}
	a.buildSQSTargets(ctx, cfg)
	return nil
}

package app

import (
	"fmt"

	"github.com/lanegate/lanegate/worker/runner"
)

// runners are the ways in which this process runs attempts.
type runners struct {
	catalogue *runner.Catalogue
	exec      *runner.Exec
	http      *runner.HTTP
	workDir   string
}

// buildRunners makes this process the heir of its runs' orphans, before any run.
func (a *App) buildRunners(cfg Config) error {
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
	a.runners = runners{catalogue: catalogue, exec: exec, http: runner.NewHTTP(runner.HTTPOptions{UserAgent: "lanegate/" + a.opts.Version, Logger: a.log}), workDir: cfg.WorkDir}
	return nil
}

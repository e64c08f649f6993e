package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// cell is one line of what is measured.
type cell struct {
	name string
	run  func(ctx context.Context, e *env) *rig.Cell
}

// cells in the order of their measurement.
var cells = []cell{
	{"post-postgres", postPostgres},
	{"post-one", postOne},
	{"post-sqlite", postSQLite},
	{"batch", batch},
	{"saturated", saturated},
	{"backlog", backlog},
	{"snapshot", snapshot},
	{"idle", idle},
	{"counters", counters},
	{"statements", statements},
	{"reads", reads},
	{"short-jobs", shortJobs},
	{"profiles", profiles},
	{"plans", plans},
	{"guard", guard},
	{"plan", plan},
	{"advise", adviseCell},
}

// contestant is who takes part in a cell.
type contestant struct {
	name    string
	open    func(ctx context.Context) (*runner, error)
	measure func(ctx context.Context, r *runner) ([]rig.Figure, error)
}

// contest opens all contestants, measures them in turns, rounds times, each on a
// machine as quiet as it gets, and closes them. A failure ends the cell and is
// noted in it.
func (e *env) contest(ctx context.Context, c *rig.Cell, rounds int, all []contestant) *rig.Cell {
	if e.rounds > 0 {
		rounds = e.rounds
	}
	running := make([]*runner, len(all))
	for i, who := range all {
		r, err := who.open(ctx)
		if err != nil {
			return c.Fail(fmt.Errorf("start %s: %w", who.name, err))
		}
		defer r.close(ctx)
		running[i] = r
	}
	for round := range rounds {
		for i := range all {
			i := (i + round) % len(all) // nobody is always first
			if err := e.settle(ctx, c); err != nil {
				return c.Fail(err)
			}
			figures, err := all[i].measure(ctx, running[i])
			if err != nil {
				return c.Fail(fmt.Errorf("%s: %w", all[i].name, err))
			}
			c.Add(all[i].name, figures...)
			log.Printf("%s %d/%d %s: %v", c.Name, round+1, rounds, all[i].name, figures)
		}
	}
	c.Order(names(all))
	return c
}

func names(all []contestant) []string {
	list := make([]string, len(all))
	for i, c := range all {
		list[i] = c.name
	}
	return list
}

// settle brings the disk to rest and waits for a quiet machine.
func (e *env) settle(ctx context.Context, c *rig.Cell) error {
	if err := e.pg.Checkpoint(ctx); err != nil {
		return err
	}
	idle, err := rig.Quiet(ctx, 0.8, pick(e, 500*time.Millisecond, 200*time.Millisecond), e.quiet)
	c.Idle = min(c.Idle, idle)
	return err
}

// real is the gateway's binary; the others are peers by kind.
func (e *env) real(o gatewayOptions) func(ctx context.Context) (*runner, error) {
	return func(ctx context.Context) (*runner, error) { return e.gateway(ctx, o) }
}

func (e *env) other(kind string, cfg peer.Config) func(ctx context.Context) (*runner, error) {
	return func(ctx context.Context) (*runner, error) { return e.peer(ctx, kind, cfg) }
}

// Names of figures that goals are about.
const (
	perSecond = "jobs/s"
	p50       = "p50 ms"
	p99       = "p99 ms"
)

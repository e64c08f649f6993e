package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// profiles writes CPU and allocation profiles of lanegate's packages, accepting and
// running over a backlog: accept-cpu.pprof, run-cpu.pprof, allocs.pprof. Read them by
// `go tool pprof -top`.
func profiles(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("profiles", "profiles (files in the output folder)")
	r, err := e.peer(ctx, "lanegate", peer.Config{})
	if err != nil {
		return c.Fail(err)
	}
	defer r.close(ctx)
	span := pick(e, 10*time.Second, 4*time.Second)
	err = e.profile(r, "accept-cpu", span, func() error {
		l, err := r.Drive(ctx, 64, span+time.Second, r.submissions("c"))
		c.Add("accepting, under the profiler", rig.Figure{Name: perSecond, Value: l.PerSecond()})
		return err
	})
	if err != nil {
		return c.Fail(err)
	}
	n := pick(e, 1_000_000, 50_000)
	if err := r.fill(ctx, n); err != nil {
		return c.Fail(err)
	}
	err = e.profile(r, "run-cpu", span, func() error {
		ran, err := r.drain(ctx, peer.Width, n, span+time.Second)
		c.Add("running, under the profiler", rig.Figure{Name: perSecond, Value: ran.perSecond})
		return err
	})
	if err != nil {
		return c.Fail(err)
	}
	allocs, err := r.Once(r.Get("/debug/pprof/allocs"))
	if err != nil {
		return c.Fail(err)
	}
	if err := os.WriteFile(filepath.Join(e.out, "allocs.pprof"), allocs, 0o644); err != nil {
		return c.Fail(err)
	}
	return c
}

// profile takes a CPU profile of a peer while do runs.
func (e *env) profile(r *runner, name string, span time.Duration, do func() error) error {
	taken := make(chan error, 1)
	go func() {
		text, err := r.Once(r.Get(fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(span.Seconds()))))
		if err == nil {
			err = os.WriteFile(filepath.Join(e.out, name+".pprof"), text, 0o644)
		}
		taken <- err
	}()
	err := do()
	if perr := <-taken; err == nil {
		err = perr
	}
	return err
}

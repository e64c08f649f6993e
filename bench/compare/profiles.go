package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// profiles writes CPU and allocation profiles of lanegate's packages, accepting and
// running, and the plans of the statements that carry them, over a backlog:
// accept-cpu.pprof, run-cpu.pprof, allocs.pprof, plans.txt. Read the former by
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
	if err := r.plans(ctx, filepath.Join(e.out, "plans.txt")); err != nil {
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

// plans explains what the hottest paths read, as PostgreSQL carries it out.
func (r *runner) plans(ctx context.Context, file string) error {
	classes := make([]string, peer.Classes)
	for i := range classes {
		classes[i] = fmt.Sprintf("%q", "c"+twoDigits(i))
	}
	var b strings.Builder
	for _, q := range []struct{ name, text string }{
		{"heads of all classes", `
SELECT j.id FROM json_array_elements_text(CAST('[` + strings.Join(classes, ",") + `]' AS json)) AS want (class)
 CROSS JOIN LATERAL (SELECT h.id FROM jobs AS h WHERE h.state = 'queued' AND h.due AND h.class = want.class
                      ORDER BY h.first_at, h.place_at, h.place_id LIMIT 50) AS j`},
		{"what is in flight", `SELECT job_id, class, lane, units, worker FROM attempts WHERE outcome IS NULL ORDER BY job_id`},
		{"when the next becomes due", `SELECT min(ready_at) FROM jobs WHERE state = 'queued' AND NOT due`},
		{"queued by class, as lanes show it", `SELECT class, count(*) FROM jobs WHERE state = 'queued' GROUP BY class`},
		{"jobs ahead of the newest, as a page of jobs shows it", `
SELECT count(*) FROM jobs WHERE state = 'queued' AND due AND class IN (` + strings.ReplaceAll(strings.Join(classes, ","), `"`, `'`) + `)
   AND (first_at, place_at, place_id) < ('9999-12-31 00:00:00+00', now(), 'g')`},
	} {
		fmt.Fprintf(&b, "%s:\n", q.name)
		if err := r.lines(ctx, &b, "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) "+q.text); err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		b.WriteByte('\n')
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// plans writes to plans.txt how PostgreSQL carries out what lanegate really sends, in
// its own sessions, over a backlog: a server of its own logs each statement as EXPLAIN
// (ANALYZE, BUFFERS) would show it.
func plans(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("plans", "plans of what lanegate executes (plans.txt in the output folder)")
	server, err := rig.StartPostgres(ctx, rig.Explaining...)
	if err != nil {
		return c.Fail(fmt.Errorf("%w; is auto_explain installed? It is in apt's postgresql, elsewhere in postgresql-contrib", err))
	}
	apart := *e
	apart.pg = server
	defer func() { _ = server.Close() }()
	r, err := apart.peer(ctx, "lanegate", peer.Config{})
	if err != nil {
		return c.Fail(err)
	}
	defer r.close(ctx)
	n := pick(e, 1_000_000, 50_000)
	if err := r.fill(ctx, n); err != nil {
		return c.Fail(err)
	}
	run := func(width int) func() error {
		return func() error {
			_, err := r.drain(ctx, width, n, time.Second)
			return err
		}
	}
	var b strings.Builder
	for _, part := range []struct {
		title string
		do    func() error
	}{
		{"accepting, 64 connections", func() error {
			_, err := r.Drive(ctx, 64, time.Second, r.submissions("c"))
			return err
		}},
		{fmt.Sprintf("admission and outcomes, %d slots", peer.Width), run(peer.Width)},
		{"admission and outcomes, 2 slots", run(2)},
	} {
		found, err := server.Explain(ctx, part.do)
		if err != nil {
			return c.Fail(fmt.Errorf("%s: %w", part.title, err))
		}
		executed := gather(found, rig.DatabaseName(r.dsn))
		if len(executed) == 0 {
			return c.Fail(fmt.Errorf("%s: the server's log has no plan of lanegate's", part.title))
		}
		fmt.Fprintf(&b, "%s, %s queued\n\n", part.title, thousands(n))
		for _, x := range executed {
			fmt.Fprintf(&b, "%s\n%d times; the one with the median time, %.3f ms:\n%s\n\n", x.name, len(x.plans), ms(x.middle().Took), x.middle().Text)
		}
		c.Add(part.title, rig.Figure{Name: "statements executed", Value: float64(len(found))}, rig.Figure{Name: "different ones", Value: float64(len(executed))})
	}
	if err := os.WriteFile(filepath.Join(e.out, "plans.txt"), []byte(b.String()), 0o644); err != nil {
		return c.Fail(err)
	}
	return c
}

// executed is one statement that was executed once or more.
type executed struct {
	name  string
	plans []rig.Plan
}

// middle is the execution whose time is the median.
func (x executed) middle() rig.Plan {
	sorted := slices.SortedFunc(slices.Values(x.plans), func(a, b rig.Plan) int { return cmp.Compare(a.Took, b.Took) })
	return sorted[len(sorted)/2]
}

// gather sorts a database's plans by statement, the one that took most in all first.
func gather(plans []rig.Plan, database string) (all []executed) {
	for _, p := range plans {
		if p.Application != "lanegate" || p.Database != database {
			continue // what counts for the measurement
		}
		name := nameOf(p)
		i := slices.IndexFunc(all, func(x executed) bool { return x.name == name })
		if i < 0 {
			i, all = len(all), append(all, executed{name: name})
		}
		all[i].plans = append(all[i].plans, p)
	}
	sum := func(x executed) (took time.Duration) {
		for _, p := range x.plans {
			took += p.Took
		}
		return took
	}
	slices.SortStableFunc(all, func(a, b executed) int { return cmp.Compare(sum(b), sum(a)) })
	return all
}

// nameOf is a statement's text, or the name under which it was prepared. Those are
// prepared together, so the server tells all their texts for each: a plan tells by
// what it touches whose it is.
func nameOf(p rig.Plan) string {
	if !strings.HasPrefix(p.Query, "PREPARE lanegate_") {
		return strings.Join(strings.Fields(p.Query), " ")
	}
	for _, prepared := range []struct{ touches, name string }{
		{"Update on attempts", "lanegate_start"}, {"Insert on attempts", "lanegate_start"}, {"json_each", "lanegate_lines"}, {"CTE me", "lanegate_stands"}, {"LockRows", "lanegate_lock"},
	} {
		if strings.Contains(p.Text, prepared.touches) {
			return "EXECUTE " + prepared.name
		}
	}
	return "EXECUTE of " + p.Query
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

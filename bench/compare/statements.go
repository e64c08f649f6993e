package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// statements counts what goes over the wire to PostgreSQL for one job: each
// statement is a round trip, and on a busy machine a wait for two processes to get
// their turns. It is on a server of its own, as counting costs a little. The
// statements that took most go into statements.md.
func statements(ctx context.Context, e *env) *rig.Cell {
	const accepted, ran = "statements per accepted", "statements per run"
	c := rig.NewCell("statements", "statements a job, 64 connections")
	server, err := rig.StartPostgres(ctx, "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.max=10000")
	if err != nil {
		return c.Fail(fmt.Errorf("%w; is pg_stat_statements installed? It is in apt's postgresql, elsewhere in postgresql-contrib", err))
	}
	apart := *e
	apart.pg = server
	defer func() { _ = server.Close() }()
	var notes strings.Builder
	m := func(who string) func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		return func(ctx context.Context, r *runner) ([]rig.Figure, error) {
			if err := r.exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements", "SELECT pg_stat_statements_reset()"); err != nil {
				return nil, err
			}
			l, err := r.Drive(ctx, 64, pick(e, 5*time.Second, 2*time.Second), r.submissions("c"))
			if err != nil {
				return nil, err
			}
			in, err := r.statements(ctx, &notes, who+", accepting")
			if err != nil {
				return nil, err
			}
			before, err := r.done(ctx)
			if err != nil {
				return nil, err
			}
			if err := r.exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
				return nil, err
			}
			if _, err := r.drain(ctx, peer.Width, l.Requests, pick(e, 8*time.Second, 3*time.Second)); err != nil {
				return nil, err
			}
			out, err := r.statements(ctx, &notes, who+", running")
			if err != nil {
				return nil, err
			}
			after, err := r.done(ctx)
			return []rig.Figure{{Name: accepted, Value: in / float64(l.Requests)}, {Name: ran, Value: out / float64(max(1, after-before))}}, err
		}
	}
	apart.contest(ctx, c, 1, []contestant{
		{lanegateInside, apart.other("lanegate", peer.Config{}), m(lanegateInside)},
		{"lanegate", apart.paused, m("lanegate")},
		{"River/pgx tuned", apart.other("river-pgx", peer.Config{Tuned: true}), m("River/pgx tuned")},
	})
	if err := os.WriteFile(filepath.Join(e.out, "statements.md"), []byte(notes.String()), 0o644); err != nil {
		return c.Fail(err)
	}
	return c
}

// statements counts those of the contestant's database since the last reset, and
// notes the ones that took most.
func (r *runner) statements(ctx context.Context, notes *strings.Builder, title string) (calls float64, err error) {
	db, err := sql.Open("postgres", r.dsn)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	const of = " FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query NOT LIKE '%pg_stat_statements%'"
	if err := db.QueryRowContext(ctx, "SELECT coalesce(sum(calls), 0)"+of).Scan(&calls); err != nil {
		return 0, err
	}
	rows, err := db.QueryContext(ctx, "SELECT calls, total_exec_time, mean_exec_time, shared_blks_hit + shared_blks_read, regexp_replace(left(query, 140), '\\s+', ' ', 'g')"+of+" ORDER BY total_exec_time DESC LIMIT 12")
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	fmt.Fprintf(notes, "\n### %s\n\n| calls | total ms | mean ms | pages | statement |\n|---|---|---|---|---|\n", title)
	for rows.Next() {
		var n, pages int64
		var total, mean float64
		var text string
		if err := rows.Scan(&n, &total, &mean, &pages, &text); err != nil {
			return 0, err
		}
		fmt.Fprintf(notes, "| %d | %.1f | %.3f | %d | `%s` |\n", n, total, mean, pages, strings.ReplaceAll(text, "|", "\\|"))
	}
	return calls, rows.Err()
}

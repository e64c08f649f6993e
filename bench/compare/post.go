package main

import (
	"bytes"
	"context"
	"log"
	"strconv"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// posting measures POST /jobs over some connections.
func posting(e *env, conns int) func(ctx context.Context, r *runner) ([]rig.Figure, error) {
	return func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		if _, err := r.Drive(ctx, conns, pick(e, time.Second, 300*time.Millisecond), r.submissions("p")); err != nil {
			return nil, err
		}
		used, err := r.cpu()
		if err != nil {
			return nil, err
		}
		l, err := r.Drive(ctx, conns, pick(e, 4*time.Second, 1500*time.Millisecond), r.submissions("p"))
		if err != nil {
			return nil, err
		}
		spent, err := used()
		return append(loadFigures(l, 1), spent.figures(l.Requests)...), err
	}
}

// spent is processor time: of a contestant, and of its PostgreSQL.
type spent struct{ own, database time.Duration }

// figures are what one job took.
func (s spent) figures(jobs int) []rig.Figure {
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(1, jobs)) }
	return []rig.Figure{{Name: "CPU µs", Value: each(s.own)}, {Name: "PostgreSQL's CPU µs", Value: each(s.database)}}
}

// cpu begins to count; used tells what was spent since.
func (r *runner) cpu() (used func() (spent, error), err error) {
	now := func() (s spent, err error) {
		if s.own, err = rig.CPU(r.proc.PID()); err == nil {
			s.database, err = rig.CPU(r.env.pg.PID())
		}
		return s, err
	}
	before, err := now()
	return func() (spent, error) {
		after, err := now()
		return spent{after.own - before.own, after.database - before.database}, err
	}, err
}

// loadFigures are what a load tells about jobs that go in as many a request.
func loadFigures(l rig.Load, jobs int) []rig.Figure {
	f := []rig.Figure{{Name: perSecond, Value: l.PerSecond() * float64(jobs)}, {Name: p50, Value: l.Quantile(0.5)}, {Name: p99, Value: l.Quantile(0.99)}}
	if l.Refused > 0 {
		log.Printf("%d requests were refused, e.g. %s", l.Refused, l.Refusal)
		f = append(f, rig.Figure{Name: "refused", Value: float64(l.Refused)})
	}
	return f
}

func postPostgres(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("post-postgres", "POST /jobs, 64 connections, PostgreSQL",
		rig.Goal{Text: "≥ 0.4 × no-op", Figure: perSecond, Who: "lanegate", Than: "no-op handler", Bound: 0.4},
		rig.Goal{Text: "≥ 5 × River/pgx", Figure: perSecond, Who: "lanegate", Than: "River/pgx", Bound: 5},
		rig.Goal{Text: "≥ 1.3 × Asynq", Figure: perSecond, Who: "lanegate", Than: "Asynq", Bound: 1.3},
		rig.Goal{Text: "p99 ≤ 0.25 × River/pgx", Figure: p99, Who: "lanegate", Than: "River/pgx", Bound: 0.25, Less: true},
		rig.Goal{Text: "p99 ≤ 1.2 × no-op", Figure: p99, Who: "lanegate", Than: "no-op handler", Bound: 1.2, Less: true},
	)
	m := posting(e, 64)
	return e.contest(ctx, c, pick(e, 3, 1), []contestant{
		{"lanegate", e.real(gatewayOptions{}), m},
		{"no-op handler", e.other("noop", peer.Config{}), m},
		{"group commit, bare", e.other("group", peer.Config{}), m},
		{"INSERT each, bare", e.other("insert", peer.Config{}), m},
		{"River/pgx", e.other("river-pgx", peer.Config{}), m},
		{"River/pq", e.other("river-pq", peer.Config{}), m},
		{"Asynq", e.other("asynq", peer.Config{}), m},
		{"goqite", e.other("goqite-pg", peer.Config{}), m},
	})
}

func postSQLite(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("post-sqlite", "POST /jobs, 64 connections, SQLite, synchronous=FULL",
		rig.Goal{Text: "≥ 0.4 × no-op", Figure: perSecond, Who: "lanegate", Than: "no-op handler", Bound: 0.4},
		rig.Goal{Text: "≥ 5 × goqite", Figure: perSecond, Who: "lanegate", Than: "goqite", Bound: 5},
	)
	m := posting(e, 64)
	return e.contest(ctx, c, pick(e, 3, 1), []contestant{
		{"lanegate", e.real(gatewayOptions{sqlite: true}), m},
		{"no-op handler", e.other("noop", peer.Config{}), m},
		{"INSERT each, bare", e.other("insert-sqlite", peer.Config{}), m},
		{"goqite", e.other("goqite-sqlite", peer.Config{}), m},
	})
}

func postOne(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("post-one", "POST /jobs, one connection",
		rig.Goal{Text: "p50 ≤ 1.3 × the bare insert, PostgreSQL", Figure: p50, Who: "lanegate", Than: "INSERT each, bare", Bound: 1.3, Less: true},
		rig.Goal{Text: "p50 ≤ 1.3 × the bare insert, SQLite", Figure: p50, Who: "lanegate, SQLite", Than: "INSERT each, bare, SQLite", Bound: 1.3, Less: true},
	)
	m := posting(e, 1)
	return e.contest(ctx, c, pick(e, 3, 1), []contestant{
		{"lanegate", e.real(gatewayOptions{}), m},
		{"INSERT each, bare", e.other("insert", peer.Config{}), m},
		{"River/pgx", e.other("river-pgx", peer.Config{}), m},
		{"lanegate, SQLite", e.real(gatewayOptions{sqlite: true}), m},
		{"INSERT each, bare, SQLite", e.other("insert-sqlite", peer.Config{}), m},
		{"no-op handler", e.other("noop", peer.Config{}), m},
	})
}

// batchSize is the most that lanegate takes in one request.
const batchSize = 1000

func batch(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("batch", "POST /jobs/batch, 1,000 a request, 4 connections",
		rig.Goal{Text: "≥ 1.3 × River InsertManyFast", Figure: perSecond, Who: "lanegate", Than: "River/pgx", Bound: 1.3},
	)
	m := func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		l, err := r.Drive(ctx, 4, pick(e, 4*time.Second, 2*time.Second), r.batches)
		if err != nil {
			return nil, err
		}
		return loadFigures(l, batchSize), nil
	}
	return e.contest(ctx, c, pick(e, 3, 1), []contestant{
		{"lanegate", e.real(gatewayOptions{}), m},
		{"River/pgx", e.other("river-pgx", peer.Config{}), m},
		{"River/pq", e.other("river-pq", peer.Config{}), m},
		{"unnest, bare", e.other("insert", peer.Config{}), m},
		{"lanegate, SQLite", e.real(gatewayOptions{sqlite: true}), m},
	})
}

// batches makes the batch requests of one connection.
func (r *runner) batches(conn int) func() []byte {
	n := 0
	return func() []byte {
		n++
		var b bytes.Buffer
		b.WriteString(`{"jobs":[`)
		stamp := strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(conn) + "-"
		for i := range batchSize {
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(body("p"+twoDigits(i%peer.Classes), stamp+strconv.Itoa(i)))
		}
		b.WriteString(`]}`)
		return r.Post("/jobs/batch", b.Bytes())
	}
}

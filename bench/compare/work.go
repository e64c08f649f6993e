package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// begin lets jobs run, width at once: the gateway by resuming the lane (its slots
// are as many), a peer by starting its workers.
func (r *runner) begin(width int) error {
	if r.target != nil {
		return r.post("/lanes/" + peer.Lane + "/resume")
	}
	return r.post(fmt.Sprintf("/bench/work?width=%d", width))
}

// end lets nothing more start and waits until what ran is recorded.
func (r *runner) end(ctx context.Context) error {
	if r.target == nil {
		return r.post("/bench/stop")
	}
	if err := r.post("/lanes/" + peer.Lane + "/pause"); err != nil {
		return err
	}
	return within(ctx, 20*time.Second, func() (bool, error) {
		var lane struct {
			InFlight int `json:"in_flight"`
		}
		err := r.get("/lanes/"+peer.Lane, &lane)
		return lane.InFlight == 0, err
	})
}

var errTooSlow = errors.New("it took too long")

// within polls until the condition holds.
func within(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	end := time.Now().Add(limit)
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: more than %v", errTooSlow, limit)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ran is how many jobs have run so far, recorded or not; it costs next to nothing.
func (r *runner) ran() (n int64, err error) {
	if r.target != nil {
		return r.target.ran.Load(), nil
	}
	err = r.get("/bench/ran", &n)
	return n, err
}

// done counts the durable outcomes.
func (r *runner) done(ctx context.Context) (n int, err error) {
	if r.target == nil {
		err = r.get("/bench/done", &n)
		return n, err
	}
	err = r.query(ctx, &n, "SELECT count(*) FROM run_log WHERE outcome = 'succeeded'")
	return n, err
}

// query reads one value from the contestant's PostgreSQL database.
func (r *runner) query(ctx context.Context, into any, q string, args ...any) error {
	db, err := sql.Open("postgres", r.dsn)
	if err != nil {
		return err
	}
	return errors.Join(db.QueryRowContext(ctx, q, args...).Scan(into), db.Close())
}

// exec runs statements in the contestant's PostgreSQL database.
func (r *runner) exec(ctx context.Context, statements ...string) error {
	db, err := sql.Open("postgres", r.dsn)
	if err != nil {
		return err
	}
	for _, q := range statements {
		if _, err = db.ExecContext(ctx, q); err != nil {
			err = fmt.Errorf("%s: %w", q, err)
			break
		}
	}
	return errors.Join(err, db.Close())
}

// drained is what drain saw: durable outcomes, from the first start to the last
// record, and the processor time that these jobs took.
type drained struct {
	jobs      int
	perSecond float64
	spent     spent
}

// drain lets queued jobs run for span, or until n have.
func (r *runner) drain(ctx context.Context, width, n int, span time.Duration) (d drained, err error) {
	before, err := r.done(ctx)
	if err != nil {
		return d, err
	}
	ranBefore, err := r.ran()
	if err != nil {
		return d, err
	}
	used, err := r.cpu()
	if err != nil {
		return d, err
	}
	began := time.Now()
	if err := r.begin(width); err != nil {
		return d, err
	}
	for time.Since(began) < span {
		time.Sleep(20 * time.Millisecond)
		ran, err := r.ran()
		if err != nil {
			return d, err
		}
		if ran-ranBefore >= int64(n) {
			break
		}
	}
	if err := r.end(ctx); err != nil {
		return d, err
	}
	took := time.Since(began)
	if d.spent, err = used(); err != nil {
		return d, err
	}
	after, err := r.done(ctx)
	d.jobs = after - before
	d.perSecond = float64(d.jobs) / took.Seconds()
	return d, err
}

// paused is the gateway with its lane paused, so that a backlog can be made.
func (e *env) paused(ctx context.Context) (*runner, error) {
	r, err := e.gateway(ctx, gatewayOptions{})
	if err != nil {
		return nil, err
	}
	return r, r.post("/lanes/" + peer.Lane + "/pause")
}

// fill brings the number of queued jobs, spread over the classes, up to n.
func (r *runner) fill(ctx context.Context, n int) error {
	count, insert := "SELECT count(*) FROM river_job WHERE state = 'available'", []string{fillRiver, "VACUUM ANALYZE river_job"}
	var table sql.NullString
	if err := r.query(ctx, &table, "SELECT to_regclass('jobs')"); err != nil {
		return err
	}
	if table.Valid {
		count, insert = "SELECT count(*) FROM jobs WHERE state = 'queued' AND class < 'd'", []string{fillLanegate, "VACUUM ANALYZE jobs", "VACUUM ANALYZE job_payloads"}
	}
	var have int
	if err := r.query(ctx, &have, count); err != nil {
		return err
	}
	if have >= n {
		return nil
	}
	insert[0] = fmt.Sprintf(insert[0], n-have)
	return r.exec(ctx, insert...)
}

// What a submission would write, n times in one statement. Ids ascend; places are
// in the past and in the order of the ids.
const (
	fillLanegate = `
WITH n AS (SELECT i, lpad(to_hex(CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)), 12, '0') || lpad(to_hex(i), 20, '0') AS hex
             FROM generate_series(1, %d) AS i),
     j AS (INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id)
           SELECT id, class, 'bench', 'queued', at, at, true, at, id
             FROM (SELECT overlay(overlay(overlay(overlay(hex PLACING '-' FROM 9 FOR 0) PLACING '-7' FROM 14 FOR 1) PLACING '-8' FROM 19 FOR 1) PLACING '-' FROM 24 FOR 0) AS id,
                          'c' || lpad(CAST(i %% 20 AS text), 2, '0') AS class, statement_timestamp() - interval '1 minute' AS at
                     FROM n) AS made
           RETURNING id)
INSERT INTO job_payloads (job_id, payload) SELECT id, '{"day":"2026-11-29"}' FROM j`
	fillRiver = `
INSERT INTO river_job (args, kind, max_attempts, queue, state)
SELECT '{"class":"c00","payload":{"day":"2026-11-29"}}', 'bench', 25, 'default', 'available' FROM generate_series(1, %d)`
)

// finishLanegate makes n finished jobs as the gateway leaves them.
const finishLanegate = `
WITH n AS (SELECT i, '00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0') AS id, 'c' || lpad(CAST(i %% 20 AS text), 2, '0') AS class,
                  statement_timestamp() - interval '1 day' AS at
             FROM generate_series(1, %d) AS i),
     j AS (INSERT INTO jobs (id, class, client, state, submitted_at, ready_at, due, place_at, place_id, attempts, started_at, finished_at, route_lane)
           SELECT id, class, 'bench', 'succeeded', at, at, true, at, id, 1, at, at, 'wide' FROM n RETURNING id),
     p AS (INSERT INTO job_payloads (job_id, payload) SELECT id, '{"day":"2026-11-29"}' FROM n),
     a AS (INSERT INTO attempts (job_id, number, token, class, lane, units, fingerprint, worker, ready_at, started_at, ended_at, outcome, duration)
           SELECT id, 1, 't', class, 'wide', '{"db":1}', 'f', 'w', at, at, at, 'succeeded', 1000000 FROM n)
INSERT INTO run_log (job_id, attempt, class, lane, fingerprint, units, submitted_at, ready_at, started_at, ended_at, duration, outcome, source)
SELECT id, 1, class, 'wide', 'f', '{"db":1}', at, at, at, at, 1000000, 'succeeded', 'own' FROM n`

// saturated: submissions come in over 64 connections while workers run them.
func saturated(ctx context.Context, e *env) *rig.Cell {
	c := rig.NewCell("saturated", "POST + admit + no-op run + durable outcome, saturated",
		rig.Goal{Text: "completed ≥ 4 × River", Figure: completed, Who: lanegateInside, Than: "River/pgx tuned", Bound: 4},
		rig.Goal{Text: "completed ≥ 0.95 × accepted", Figure: completed, Who: lanegateInside, Than: lanegateInside, Other: "accepted/s", Bound: 0.95},
		rig.Goal{Text: "completed ≥ 4 × River, through the binary and an HTTP target", Figure: completed, Who: "lanegate", Than: "River/pgx tuned", Bound: 4},
	)
	m := func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		if err := r.begin(peer.Width); err != nil {
			return nil, err
		}
		before, err := r.done(ctx)
		if err != nil {
			return nil, err
		}
		l, err := r.Drive(ctx, 64, pick(e, 8*time.Second, 2*time.Second), r.submissions("c"))
		if err != nil {
			return nil, err
		}
		after, err := r.done(ctx)
		if err != nil {
			return nil, err
		}
		// What is left over is not this round's; the next one shall not begin with it.
		var last int64 = -1
		err = within(ctx, pick(e, 15*time.Second, 5*time.Second), func() (bool, error) {
			time.Sleep(200 * time.Millisecond)
			now, err := r.ran()
			still := now == last
			last = now
			return still, err
		})
		if err != nil && !errors.Is(err, errTooSlow) {
			return nil, err
		}
		if err := r.end(ctx); err != nil {
			return nil, err
		}
		return []rig.Figure{
			{Name: "accepted/s", Value: l.PerSecond()}, {Name: completed, Value: float64(after-before) / l.Took.Seconds()},
			{Name: "POST p99 ms", Value: l.Quantile(0.99)},
		}, nil
	}
	return e.contest(ctx, c, pick(e, 2, 1), []contestant{
		{"lanegate", e.paused, m},
		{lanegateInside, e.other("lanegate", peer.Config{}), m},
		{"River/pgx tuned", e.other("river-pgx", peer.Config{Tuned: true}), m},
		{"Asynq", e.other("asynq", peer.Config{}), m},
	})
}

// lanegateInside is package peer's lanegate: the product's packages with a runner
// that does nothing, in one process.
const (
	lanegateInside = "lanegate, no-op runner in process"
	completed      = "completed/s"
)

// backlog: jobs that wait already are run, with nothing coming in.
func backlog(ctx context.Context, e *env) *rig.Cell {
	depths := pick(e, []int{20_000, 100_000, 1_000_000}, []int{10_000, 50_000})
	finished := pick(e, 1_000_000, 50_000)
	if e.large {
		depths, finished = append(depths, 5_000_000), 10_000_000
	}
	inside := func(n int) string { return fmt.Sprintf("%s, %s queued", lanegateInside, thousands(n)) }
	c := rig.NewCell("backlog", "admit + complete from a backlog, width 100, class limits and resources in force",
		rig.Goal{Text: "≥ 1.5 × River tuned", Figure: completed, Who: inside(depths[0]), Than: riverAt(depths[0]), Bound: 1.5})
	for _, n := range depths[1:] {
		c.Goals = append(c.Goals, rig.Goal{Text: fmt.Sprintf("with %s queued ≥ 0.9 × with %s", thousands(n), thousands(depths[0])), Figure: completed, Who: inside(n), Than: inside(depths[0]), Bound: 0.9})
	}
	beside := fmt.Sprintf("%s and %s finished beside", inside(depths[0]), thousands(finished))
	c.Goals = append(c.Goals, rig.Goal{Text: fmt.Sprintf("with %s finished beside ≥ 0.9 × without", thousands(finished)), Figure: completed, Who: beside, Than: inside(depths[0]), Bound: 0.9})

	m := func(n int) func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		return func(ctx context.Context, r *runner) ([]rig.Figure, error) {
			if err := r.fill(ctx, n); err != nil {
				return nil, err
			}
			if err := e.settle(ctx, c); err != nil {
				return nil, err
			}
			ran, err := r.drain(ctx, peer.Width, n, pick(e, 6*time.Second, 2*time.Second))
			return append([]rig.Figure{{Name: completed, Value: ran.perSecond}}, ran.spent.figures(ran.jobs)...), err
		}
	}
	all := []contestant{{fmt.Sprintf("lanegate, %s queued", thousands(depths[0])), e.paused, m(depths[0])}}
	for _, n := range depths {
		all = append(all, contestant{inside(n), e.other("lanegate", peer.Config{}), m(n)},
			contestant{riverAt(n), e.other("river-pgx", peer.Config{Tuned: true}), m(n)})
	}
	all = append(all, contestant{beside, func(ctx context.Context) (*runner, error) {
		r, err := e.peer(ctx, "lanegate", peer.Config{})
		if err == nil {
			err = r.exec(ctx, fmt.Sprintf(finishLanegate, finished), "VACUUM ANALYZE")
		}
		return r, err
	}, m(depths[0])})
	return e.contest(ctx, c, pick(e, 2, 1), all)
}

func riverAt(n int) string { return fmt.Sprintf("River/pgx tuned, %s queued", thousands(n)) }

// thousands writes a count as people say it.
func thousands(n int) string {
	if n >= 1_000_000 && n%1_000_000 == 0 {
		return fmt.Sprintf("%d M", n/1_000_000)
	}
	return fmt.Sprintf("%d k", n/1000)
}

// snapshot: the same while another session holds a snapshot, so that nothing that
// dies can be vacuumed away.
func snapshot(ctx context.Context, e *env) *rig.Cell {
	const first, last = "first window/s", "last window/s"
	c := rig.NewCell("snapshot", "the backlog while another transaction holds a snapshot",
		rig.Goal{Text: "last window ≥ 0.8 × the first", Figure: last, Who: lanegateInside + ", snapshot held", Than: lanegateInside + ", snapshot held", Other: first, Bound: 0.8},
		rig.Goal{Text: "last window ≥ 0.7 × the run without", Figure: last, Who: lanegateInside + ", snapshot held", Than: lanegateInside, Bound: 0.7},
	)
	depth, span, window := pick(e, 600_000, 40_000), pick(e, 45*time.Second, 8*time.Second), pick(e, 5*time.Second, 2*time.Second)
	m := func(held bool) func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		return func(ctx context.Context, r *runner) (_ []rig.Figure, err error) {
			if err := r.fill(ctx, depth); err != nil {
				return nil, err
			}
			if held {
				release, err := r.hold(ctx)
				if err != nil {
					return nil, err
				}
				defer release()
			}
			if err := r.begin(peer.Width); err != nil {
				return nil, err
			}
			var rates []float64
			before, err := r.ran()
			if err != nil {
				return nil, err
			}
			for began := time.Now(); time.Since(began) < span; {
				from := time.Now()
				time.Sleep(window)
				now, err := r.ran()
				if err != nil {
					return nil, err
				}
				rates = append(rates, float64(now-before)/time.Since(from).Seconds())
				before = now
			}
			return []rig.Figure{{Name: first, Value: rates[0]}, {Name: last, Value: rates[len(rates)-1]}}, r.end(ctx)
		}
	}
	lane, river := e.other("lanegate", peer.Config{}), e.other("river-pgx", peer.Config{Tuned: true})
	return e.contest(ctx, c, 1, []contestant{
		{lanegateInside, lane, m(false)},
		{lanegateInside + ", snapshot held", lane, m(true)},
		{"River/pgx tuned", river, m(false)},
		{"River/pgx tuned, snapshot held", river, m(true)},
	})
}

// hold takes a snapshot of the contestant's database until release is called.
func (r *runner) hold(ctx context.Context) (release func(), err error) {
	db, err := sql.Open("postgres", r.dsn)
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	var one int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM pg_class").Scan(&one); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return func() { _ = errors.Join(tx.Rollback(), db.Close()) }, nil
}

// counters: what one job costs the log and the disk.
func counters(ctx context.Context, e *env) *rig.Cell {
	const accepted, ran, fsyncs, fsyncsRun = "WAL bytes per accepted", "WAL bytes per run", "fsyncs per 1,000 accepted", "fsyncs per 1,000 run"
	c := rig.NewCell("counters", "WAL and fsyncs a job, 64 connections",
		rig.Goal{Text: "accepted: ≤ 0.6 × River's bytes", Figure: accepted, Who: lanegateInside, Than: "River/pgx tuned", Bound: 0.6, Less: true},
		rig.Goal{Text: "run: ≤ 0.6 × River's bytes", Figure: ran, Who: lanegateInside, Than: "River/pgx tuned", Bound: 0.6, Less: true},
		rig.Goal{Text: "≤ 50 fsyncs per 1,000 accepted", Figure: fsyncs, Who: lanegateInside, Bound: 50, Less: true},
	)
	m := func(ctx context.Context, r *runner) ([]rig.Figure, error) {
		if _, err := r.Drive(ctx, 64, 500*time.Millisecond, r.submissions("c")); err != nil {
			return nil, err
		}
		var jobs int
		in, err := e.counted(ctx, func() error {
			l, err := r.Drive(ctx, 64, pick(e, 5*time.Second, 2*time.Second), r.submissions("c"))
			jobs = l.Requests
			return err
		})
		if err != nil {
			return nil, err
		}
		before, err := r.done(ctx)
		if err != nil {
			return nil, err
		}
		out, err := e.counted(ctx, func() error {
			_, err := r.drain(ctx, peer.Width, jobs, pick(e, 10*time.Second, 3*time.Second))
			return err
		})
		if err != nil {
			return nil, err
		}
		after, err := r.done(ctx)
		if err != nil {
			return nil, err
		}
		n, k := float64(jobs), max(1, float64(after-before))
		return []rig.Figure{
			{Name: accepted, Value: in.WALBytes / n}, {Name: ran, Value: out.WALBytes / k},
			{Name: fsyncs, Value: in.Fsyncs / n * 1000}, {Name: fsyncsRun, Value: out.Fsyncs / k * 1000},
		}, nil
	}
	return e.contest(ctx, c, 1, []contestant{
		{"lanegate", e.paused, m},
		{lanegateInside, e.other("lanegate", peer.Config{}), m},
		{"River/pgx tuned", e.other("river-pgx", peer.Config{Tuned: true}), m},
		{"group commit, bare", e.other("group", peer.Config{}), func(ctx context.Context, r *runner) ([]rig.Figure, error) {
			var l rig.Load
			in, err := e.counted(ctx, func() (err error) {
				l, err = r.Drive(ctx, 64, pick(e, 5*time.Second, 2*time.Second), r.submissions("c"))
				return err
			})
			return []rig.Figure{{Name: accepted, Value: in.WALBytes / float64(l.Requests)}, {Name: fsyncs, Value: in.Fsyncs / float64(l.Requests) * 1000}}, err
		}},
	})
}

// counted runs fn between two readings of the server's counters.
func (e *env) counted(ctx context.Context, fn func() error) (rig.Counters, error) {
	// Idle sessions report what they did after ten seconds, busy ones after one.
	rest := pick(e, 10500*time.Millisecond, 1200*time.Millisecond)
	time.Sleep(rest)
	before, err := e.pg.Counters(ctx)
	if err != nil {
		return before, err
	}
	if err := fn(); err != nil {
		return before, err
	}
	time.Sleep(rest)
	after, err := e.pg.Counters(ctx)
	return after.Sub(before), err
}

// escape is for words in a query.
func escape(s string) string { return url.QueryEscape(s) }

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

// sample is what a soak saw in one stretch.
type sample struct {
	At         float64 // minutes since the start
	Rate       float64 // accepted per second
	P50, P99   float64 // of POST /jobs, ms
	RSS        float64 // MiB
	Tables     float64 // MiB of tables and indexes
	Waiting    float64 // queued jobs
	WALPerJob  float64 // bytes per accepted job, runs included
	Deadweight float64 // dead rows of jobs and attempts, thousands
}

// soak runs the gateway at half of the rate that it can keep up with, submissions
// and runs together, and watches what must not grow: latency, memory, WAL a job,
// and the tables beyond what the finished jobs themselves take.
func (e *env) soak(ctx context.Context, span time.Duration) error {
	r, err := e.gateway(ctx, gatewayOptions{})
	if err != nil {
		return err
	}
	defer r.close(ctx)
	peak, err := r.sustained(ctx, pick(e, 20*time.Second, 5*time.Second))
	if err != nil {
		return err
	}
	rate := peak / 2
	log.Printf("soak: it keeps up with %.0f jobs/s; now %.0f/s for %v", peak, rate, span)
	samples, err := r.watch(ctx, rate, span, max(5*time.Second, span/60))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(e.out, "soak.svg"), []byte(curves(samples)), 0o644); err != nil {
		return err
	}
	return judgeSoak(samples)
}

// sustained finds the rate at which jobs are completed while more come in than can be.
func (r *runner) sustained(ctx context.Context, span time.Duration) (float64, error) {
	before, err := r.done(ctx)
	if err != nil {
		return 0, err
	}
	l, err := r.Drive(ctx, 64, span, r.submissions("c"))
	if err != nil {
		return 0, err
	}
	after, err := r.done(ctx)
	if err != nil {
		return 0, err
	}
	completed := float64(after-before) / l.Took.Seconds()
	// The rest runs before the soak begins.
	var queued int
	return completed, within(ctx, 10*time.Minute, func() (bool, error) {
		err := r.query(ctx, &queued, "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')")
		return queued == 0, err
	})
}

// watch submits at a fixed rate over 16 connections and takes a sample each stretch.
func (r *runner) watch(ctx context.Context, rate float64, span, stretch time.Duration) ([]sample, error) {
	const conns = 16
	began := time.Now()
	var samples []sample
	counters, err := r.env.pg.Counters(ctx)
	if err != nil {
		return nil, err
	}
	for time.Since(began) < span {
		var mu sync.Mutex
		due := time.Now()
		turn := func() time.Time { // the next submission's time, over all connections
			mu.Lock()
			defer mu.Unlock()
			due = due.Add(time.Duration(float64(time.Second) / rate))
			return due
		}
		next := r.submissions("c")
		l, err := r.Drive(ctx, conns, stretch, func(conn int) func() []byte {
			request := next(conn)
			return func() []byte {
				time.Sleep(time.Until(turn()))
				return request()
			}
		})
		if err != nil {
			return samples, err
		}
		now, err := r.env.pg.Counters(ctx)
		if err != nil {
			return samples, err
		}
		s := sample{At: time.Since(began).Minutes(), Rate: l.PerSecond(), P50: l.Quantile(0.5), P99: l.Quantile(0.99)}
		s.WALPerJob = now.Sub(counters).WALBytes / float64(max(1, l.Requests))
		counters = now
		if err := r.sizes(ctx, &s); err != nil {
			return samples, err
		}
		log.Printf("soak: %+v", s)
		samples = append(samples, s)
	}
	return samples, nil
}

func (r *runner) sizes(ctx context.Context, s *sample) error {
	rss, err := rig.RSS(r.proc.PID())
	s.RSS = rss / (1 << 20)
	var bytes float64
	return errors.Join(err,
		r.query(ctx, &bytes, "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'"),
		r.query(ctx, &s.Waiting, "SELECT count(*) FROM jobs WHERE state = 'queued'"),
		r.query(ctx, &s.Deadweight, "SELECT sum(n_dead_tup) / 1000.0 FROM pg_stat_user_tables WHERE relname IN ('jobs', 'attempts')"),
		func() error { s.Tables = bytes / (1 << 20); return nil }())
}

// judgeSoak compares the last third with the middle one: what grows says so here.
func judgeSoak(samples []sample) error {
	if len(samples) < 6 {
		return fmt.Errorf("a soak of %d samples says nothing; let it run longer", len(samples))
	}
	third := len(samples) / 3
	middle, last := samples[third:2*third], samples[len(samples)-third:]
	of := func(part []sample, get func(sample) float64) float64 {
		values := make([]float64, len(part))
		for i, s := range part {
			values[i] = get(s)
		}
		return rig.SpreadOf(values).Median
	}
	var errs []error
	for _, f := range []struct {
		name  string
		get   func(sample) float64
		most  float64 // times the middle third
		floor float64 // below it nothing counts
	}{
		{"p99 ms", func(s sample) float64 { return s.P99 }, 1.3, 5},
		{"RSS MiB", func(s sample) float64 { return s.RSS }, 1.1, 48},
		{"WAL bytes a job", func(s sample) float64 { return s.WALPerJob }, 1.15, 0},
		{"queued jobs", func(s sample) float64 { return s.Waiting }, 1.5, float64(peer.Width)},
	} {
		a, b := of(middle, f.get), of(last, f.get)
		log.Printf("soak: %s: %.1f in the middle, %.1f at the end", f.name, a, b)
		if b > a*f.most && b > f.floor {
			errs = append(errs, fmt.Errorf("%s grew from %.1f to %.1f", f.name, a, b))
		}
	}
	return errors.Join(errs...)
}

// curves draws the samples, each figure in a strip of its own.
func curves(samples []sample) string {
	figures := []struct {
		name string
		get  func(sample) float64
	}{
		{"accepted/s", func(s sample) float64 { return s.Rate }},
		{"POST p50 ms", func(s sample) float64 { return s.P50 }},
		{"POST p99 ms", func(s sample) float64 { return s.P99 }},
		{"RSS MiB", func(s sample) float64 { return s.RSS }},
		{"tables and indexes MiB", func(s sample) float64 { return s.Tables }},
		{"queued jobs", func(s sample) float64 { return s.Waiting }},
		{"WAL bytes a job", func(s sample) float64 { return s.WALPerJob }},
		{"dead rows, thousands", func(s sample) float64 { return s.Deadweight }},
	}
	const width, height, left, gap = 760.0, 70.0, 170.0, 24.0
	var b strings.Builder
	total := gap + float64(len(figures))*(height+gap)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n", left+width+20, total+10)
	if len(samples) == 0 {
		return b.String() + "</svg>\n"
	}
	end := samples[len(samples)-1].At
	for i, f := range figures {
		top := gap + float64(i)*(height+gap)
		most := 0.0
		for _, s := range samples {
			most = max(most, f.get(s))
		}
		scale := most
		if scale == 0 {
			scale = 1
		}
		fmt.Fprintf(&b, `<text x="4" y="%.0f">%s</text><text x="4" y="%.0f" fill="#666">most %.4g</text>`, top+20, f.name, top+38, most)
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" fill="none" stroke="#ccc"/><polyline fill="none" stroke="#1f6feb" stroke-width="1.5" points="`, left, top, width, height)
		for _, s := range samples {
			fmt.Fprintf(&b, "%.1f,%.1f ", left+s.At/end*width, top+height-f.get(s)/scale*(height-4))
		}
		b.WriteString(`"/>` + "\n")
	}
	fmt.Fprintf(&b, `<text x="%.0f" y="%.0f">0</text><text x="%.0f" y="%.0f" text-anchor="end">%.1f minutes</text></svg>`+"\n", left, total+2, left+width, total+2, end)
	return b.String()
}

package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

const (
	// bellHeld is how long a taken bell is nobody else's: longer than a relay tries to send it.
	bellHeld = 30 * time.Second
	// A job that still waits is rung again after sweepFirst, then twice that, up to sweepMost.
	sweepFirst = 2 * time.Minute
	sweepMost  = time.Hour
)

const (
	sqlListDueBells = `
SELECT id, class, ring_at
  FROM jobs {{use jobs_ring_idx}}
 WHERE state = 'queued' AND ring_at IS NOT NULL AND ring_at <= $1
 ORDER BY ring_at, id
 LIMIT $2
{{skip}}`
	sqlNextBell = `
SELECT min(ring_at)
  FROM jobs {{use jobs_ring_idx}}
 WHERE state = 'queued' AND ring_at IS NOT NULL`
	sqlNextBellAfter = sqlNextBell + ` AND ring_at > $1`
	sqlSeeLaneQueue  = `
UPDATE lanes SET queue_seen_at = $1
 WHERE name = $2 AND queue_seen_at IS NULL`
	sqlCountLine = `
SELECT count(*)
  FROM (SELECT 1 FROM jobs {{use jobs_line_idx}} WHERE state = 'queued' AND due AND class IN `
)

var _ service.BellStore = (*Store)(nil)

// ringAt is when the bell of a job is due that is written as r says; NULL for none.
func (t *tx) ringAt(r jobRow) dbTime {
	if !t.s.opts.Bells || r.State != lanegate.StateQueued {
		return dbTime{}
	}
	return r.ReadyAt
}

// TakeBells implements service.BellStore. Bells that another replica has in its
// hands are left out.
func (s *Store) TakeBells(ctx context.Context, ask service.BellAsk) (service.DueBells, error) {
	var due service.DueBells
	err := s.inTx(ctx, "take bells", func(t *tx) error {
		listed, err := t.dueBells(ask.Max)
		if err != nil {
			return err
		}
		take, stay, in := ask.Ripe(listed, t.at)
		due = service.DueBells{Left: len(stay), Next: -1}
		if len(take) > 0 {
			if due.Bells, err = t.hold(take); err != nil {
				return err
			}
		}
		if len(listed) == ask.Max && len(take) > 0 {
			due.Next = 0
			return nil
		}
		var next dbTime
		if len(stay) == 0 {
			_, err = t.get(&next, sqlNextBell)
		} else {
			due.Next = in
			_, err = t.get(&next, sqlNextBellAfter, at(t.at))
		}
		if err != nil || next.t.IsZero() {
			return err
		}
		if until := max(next.t.Sub(t.at), 0); due.Next < 0 || until < due.Next {
			due.Next = until
		}
		return nil
	})
	return due, err
}

// dueBells locks and lists up to limit due bells, the oldest first.
func (t *tx) dueBells(limit int) ([]service.DueBell, error) {
	var rows []struct {
		Job   string `db:"id"`
		Class string `db:"class"`
		Since dbTime `db:"ring_at"`
	}
	if err := t.all(&rows, sqlListDueBells, at(t.at), limit); err != nil || len(rows) == 0 {
		return nil, err
	}
	laneOf, err := t.routes()
	if err != nil {
		return nil, err
	}
	due := make([]service.DueBell, len(rows))
	for i, r := range rows {
		due[i] = service.DueBell{Job: r.Job, Class: r.Class, Lane: laneOf(r.Class), Since: r.Since.t}
	}
	return due, nil
}

// hold makes bells nobody else's for a while.
func (t *tx) hold(take []service.DueBell) (bells []service.Bell, err error) {
	until := at(t.at.Add(bellHeld))
	ids := make([]string, len(take))
	for i, d := range take {
		ids[i] = d.Job
		bells = append(bells, service.Bell{Job: d.Job, Class: d.Class, Lane: d.Lane, Until: until.t})
	}
	var p params
	q := "UPDATE jobs SET ring_at = " + p.add(until) + " WHERE id IN " + list(&p, ids)
	_, err = t.exec(q, p...)
	return bells, err
}

// routes says to which lane a class is routed now; an unknown one to serial.
func (t *tx) routes() (func(class string) string, error) {
	cfg, err := t.configNow()
	if err != nil {
		return nil, err
	}
	lanes := make(map[string]string, len(cfg.Classes))
	for _, c := range cfg.Classes {
		route, _ := admission.RouteOf(c, cfg.Lanes)
		lanes[c.ID] = route.Lane
	}
	return func(class string) string {
		if lane, ok := lanes[class]; ok {
			return lane
		}
		return lanegate.LaneSerial
	}, nil
}

// ClearBells implements service.BellStore.
func (s *Store) ClearBells(ctx context.Context, bells []service.Bell) error {
	taken := map[time.Time][]string{}
	for _, b := range bells {
		taken[b.Until] = append(taken[b.Until], b.Job)
	}
	if len(taken) == 0 {
		return nil
	}
	return s.inTx(ctx, "clear bells", func(t *tx) error {
		for _, until := range slices.SortedFunc(maps.Keys(taken), time.Time.Compare) {
			err := t.lockedJobs(taken[until], "state = 'queued' AND ring_at = ", at(until), func(p *params) string {
				return "ring_at = NULL, rings = rings + 1, rung_at = " + p.add(at(t.at))
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// lockedJobs changes those of the jobs whose condition holds, once they are
// locked in the order of their ids. cond ends where its one value is appended.
func (t *tx) lockedJobs(ids []string, cond string, value any, set func(p *params) string) error {
	var p params
	q := "SELECT id FROM jobs WHERE id IN " + list(&p, ids) + " AND " + cond + p.add(value) + " ORDER BY id {{lock}}"
	var locked []string
	if err := t.all(&locked, q, p...); err != nil || len(locked) == 0 {
		return err
	}
	p = nil
	q = "UPDATE jobs SET " + set(&p) + " WHERE id IN " + list(&p, locked)
	_, err := t.exec(q, p...)
	return err
}

// StaleBells implements service.BellStore. Paused lanes and classes are left out.
func (s *Store) StaleBells(ctx context.Context) ([]service.StaleLane, error) {
	var stale []service.StaleLane
	err := s.inRead(ctx, "look for stale bells", func(t *tx) error {
		stale = nil
		idle, err := t.idleLanes()
		if err != nil {
			return err
		}
		for _, lane := range slices.Sorted(maps.Keys(idle)) {
			old, err := t.waitsUnheard(idle[lane])
			if err != nil {
				return err
			}
			if !old {
				continue
			}
			l := service.StaleLane{Lane: lane}
			var p params
			q := sqlCountLine + list(&p, idle[lane]) + " LIMIT " + p.add(service.MaxStaleCount) + ") AS line"
			if _, err := t.get(&l.Queued, q, p...); err != nil {
				return err
			}
			stale = append(stale, l)
		}
		return nil
	})
	return stale, err
}

// idleLanes maps the lanes without a run to the classes routed to them.
func (t *tx) idleLanes() (map[string][]string, error) {
	cfg, err := t.configNow()
	if err != nil {
		return nil, err
	}
	running, err := t.inFlight()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, r := range running {
		out[r.Lane] = true
	}
	for _, l := range cfg.Lanes {
		out[l.Name] = out[l.Name] || l.Paused
	}
	idle := map[string][]string{}
	for _, c := range cfg.Classes {
		if route, wait := admission.RouteOf(c, cfg.Lanes); !wait && !c.Paused && !out[route.Lane] {
			idle[route.Lane] = append(idle[route.Lane], c.ID)
		}
	}
	return idle, nil
}

// headsOf is the first due job of each of the classes.
func (t *tx) headsOf(classes []string) ([]string, error) {
	names, err := json.Marshal(classes)
	if err != nil {
		return nil, err
	}
	var rows []headRow
	if err := t.all(&rows, t.s.d.heads, string(names), 1); err != nil {
		return nil, fmt.Errorf("read the heads of the lines: %w", err)
	}
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.Job
	}
	return ids, nil
}

// waitsUnheard says whether the first job of one of the classes has no bell to come
// and was rung, or became due unrung, longer ago than its next interval.
func (t *tx) waitsUnheard(classes []string) (bool, error) {
	jobs, err := t.headsOf(classes)
	if err != nil || len(jobs) == 0 {
		return false, err
	}
	var p params
	var rows []struct {
		RungAt  dbTime `db:"rung_at"`
		ReadyAt dbTime `db:"ready_at"`
		Rings   int    `db:"rings"`
	}
	q := "SELECT rung_at, ready_at, rings FROM jobs WHERE ring_at IS NULL AND id IN " + list(&p, jobs)
	if err := t.all(&rows, q, p...); err != nil {
		return false, err
	}
	for _, r := range rows {
		since := r.RungAt.t
		if since.IsZero() {
			since = r.ReadyAt.t
		}
		if t.at.Sub(since) >= sweepAfter(r.Rings) {
			return true, nil
		}
	}
	return false, nil
}

// sweepAfter is how long after its last ring a job that was rung so often is rung again.
func sweepAfter(rings int) time.Duration {
	return min(sweepFirst<<min(max(rings-1, 0), 10), sweepMost)
}

// RingLane implements service.BellStore.
func (s *Store) RingLane(ctx context.Context, lane string) error {
	return s.inTx(ctx, "ring lane "+lane, func(t *tx) error {
		laneOf, err := t.routes()
		if err != nil {
			return err
		}
		cfg, err := t.config()
		if err != nil {
			return err
		}
		var classes []string
		for _, c := range cfg.Classes {
			if laneOf(c.ID) == lane {
				classes = append(classes, c.ID)
			}
		}
		heads, err := t.headsOf(classes)
		if err != nil || len(heads) == 0 {
			return err
		}
		return t.lockedJobs(heads, "ring_at IS NULL AND state = ", lanegate.StateQueued, func(p *params) string {
			return "ring_at = " + p.add(at(t.at))
		})
	})
}

// LaneQueueSeen implements service.BellStore.
func (s *Store) LaneQueueSeen(ctx context.Context, lane string) error {
	return s.inAdmissionTx(ctx, "note the queue of lane "+lane, func(t *tx) error {
		_, err := t.exec(sqlSeeLaneQueue, at(t.at), lane)
		return err
	})
}

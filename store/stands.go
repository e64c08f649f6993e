package store

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What an admission reads besides classes and lines comes in one answer, as a round
// trip costs more than to find these few rows. A row's kind says what it is of, and
// its other columns are named after those of an attempt in flight.
const (
	sqlReadStands = standRunning + `
  FROM attempts
 WHERE outcome IS NULL` + standOthers
	standRunning = `
SELECT 'running' AS kind, job_id AS name, started_at AS at, CAST(NULL AS timestamptz) AS seen, class, lane,
       CAST(units AS text) AS more, worker, verification, 0 AS slots, FALSE AS draining`
	standOthers = `
 UNION ALL
SELECT 'lane', name, last_served_at, queue_seen_at, '', '', '', '', '', 0, FALSE
  FROM lanes
 UNION ALL
SELECT 'blocked', job_id, since, NULL, '', '', '', '', '', 0, FALSE
  FROM blocked_heads
 UNION ALL
SELECT 'next', '', (` + sqlNextReady + `), NULL, '', '', '', '', '', 0, FALSE`
	standOfWorker = `
SELECT 'worker', id, NULL, NULL, '', coalesce(CAST(lanes AS text), ''), CAST(commands AS text), agent, '', slots, draining`
	// Admission keeps the asking worker from being declared dead, not from beating.
	// Its row is the locked one, read behind the wait. The other rows may be older by
	// that wait, but nothing starts meanwhile: the admission row is locked.
	sqlReadStandsFor = standMe + sqlReadStands + standWorkers
	standMe          = `
  WITH me AS MATERIALIZED (
    SELECT ` + workerColumns + `
      FROM workers
     WHERE id = $1 {{share}})`
	standWorkers = `
 UNION ALL` + standOfWorker + `
  FROM me
 WHERE ended_at IS NULL
 UNION ALL` + standOfWorker + `
  FROM workers
 WHERE ended_at IS NULL AND id <> $1`
	// For readers: with all live workers, the first due job of each class in $1, and
	// those that became due by $2 without an admission that noted it, $3 at most. Of jobs at is first_at, seen place_at, and lane place_id.
	sqlReadStandsOfAll = sqlReadStands + `
 UNION ALL` + standOfWorker + `
  FROM workers
 WHERE ended_at IS NULL
 UNION ALL
SELECT 'head', id, first_at, place_at, class, place_id, '', worker, '', 0, FALSE
  FROM ({{head}}) AS heads
 UNION ALL
SELECT 'ready', id, first_at, place_at, class, place_id, '', worker, '', 0, FALSE
  FROM (SELECT id, first_at, place_at, class, place_id, worker
          FROM jobs {{use jobs_ready_idx}}
         WHERE state = 'queued' AND NOT due AND ready_at <= $2
         ORDER BY ready_at, place_at, place_id
         LIMIT $3) AS ready`
)

// stands is the answer.
type stands struct {
	running []inFlightRow // by id
	live    []workerRow   // by id, with what the planner needs; not with sqlReadStands
	heads   []headRow     // of each class one, with sqlReadStandsOfAll
	ready   []headRow     // with sqlReadStandsOfAll
	lanes   []servedRow
	written map[string]time.Time // heads that the database remembers as blocked
	blocked map[string]time.Time // these, and those that only this process does
	next    dbTime               // see sqlNextReady
}

// standsFor reads them once for the admission of a worker, which it keeps alive until
// the transaction ends; or they were read with its beginning.
func (t *tx) standsFor(worker string) (*stands, error) {
	if t.joined != nil && t.standing != nil {
		return t.standing, nil
	}
	return t.readStands(sqlReadStandsFor, worker)
}

// standsOfAll reads them for somebody who looks, with the head of each class.
func (t *tx) standsOfAll(cfg *configState) (*stands, error) {
	classes := make([]string, len(cfg.Classes))
	for i, c := range cfg.Classes {
		classes[i] = c.ID
	}
	return t.readStands(sqlReadStandsOfAll, dbJSON[[]string]{classes}, at(t.at), maxPromoted)
}

// stands are those that were read, or are read now. Whoever asks twice holds the
// admission row, or sees one state.
func (t *tx) stands() (*stands, error) {
	if t.standing != nil {
		return t.standing, nil
	}
	return t.readStands(sqlReadStands)
}

// standRow is one row of sqlReadStands.
type standRow struct {
	inFlightRow
	Kind     string `db:"kind"`
	Name     string `db:"name"`
	At       dbTime `db:"at"`
	Seen     dbTime `db:"seen"`
	More     string `db:"more"`
	Slots    int    `db:"slots"`
	Draining bool   `db:"draining"`
}

func (r standRow) head() headRow {
	return headRow{Job: r.Name, Class: r.Class, FirstAt: r.At, PlaceAt: r.Seen, PlaceID: r.Lane, Worker: r.Worker}
}

func (t *tx) readStands(q string, args ...any) (*stands, error) {
	var rows []standRow
	if err := t.all(&rows, q, args...); err != nil {
		return nil, fmt.Errorf("read what is in flight, workers, lanes and blocked heads: %w", err)
	}
	s, err := t.standsOf(rows)
	if err == nil && q == sqlReadStandsOfAll && s.heads == nil {
		s.heads = []headRow{} // read, and there are none
	}
	return s, err
}

// standsOf keeps what was read.
func (t *tx) standsOf(rows []standRow) (*stands, error) {
	s := &stands{written: map[string]time.Time{}}
	for _, r := range rows {
		var err error
		switch r.Kind {
		case "running":
			r.Job, r.StartedAt = r.Name, r.At
			err = r.Units.Scan(r.More)
			s.running = append(s.running, r.inFlightRow)
		case "worker":
			w := workerRow{ID: r.Name, Slots: r.Slots, Draining: r.Draining, Agent: r.Worker}
			if r.Lane != "" {
				err = w.Lanes.Scan(r.Lane)
			}
			err = cmp.Or(err, w.Commands.Scan(r.More))
			s.live = append(s.live, w)
		case "head":
			s.heads = append(s.heads, r.head())
		case "ready":
			s.ready = append(s.ready, r.head())
		case "lane":
			s.lanes = append(s.lanes, servedRow{r.Name, r.At, r.Seen})
		case "blocked":
			s.written[r.Name] = r.At.t
		case "next":
			s.next = r.At
		}
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", r.Kind, r.Name, err)
		}
	}
	slices.SortFunc(s.running, func(a, b inFlightRow) int { return cmp.Compare(a.Job, b.Job) })
	slices.SortFunc(s.live, func(a, b workerRow) int { return cmp.Compare(a.ID, b.ID) })
	s.blocked = t.s.blocked.with(s.written, t.at)
	t.standing = s
	return s, nil
}

package e2e

import (
	"database/sql"
	"sync"
	"testing"
	"time"
)

// stalls measures how late this machine wakes who asked to be woken: what it holds
// up here, it holds up in the processes under test, too. A bound that is promised
// for a machine with time is judged with that added.
type stalls struct {
	mu  sync.Mutex
	sum time.Duration // guarded by mu
}

// stallTick is how often stalls looks; being late by half of it is nobody's stall.
const stallTick = 20 * time.Millisecond

// newStalls begins to measure; it ends with the test.
func newStalls(t *testing.T) *stalls {
	t.Helper()
	s := &stalls{}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for at := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(stallTick):
			}
			if late := time.Since(at) - stallTick; late > stallTick/2 {
				s.mu.Lock()
				s.sum += late
				s.mu.Unlock()
			}
			at = time.Now()
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
	return s
}

func (s *stalls) total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum
}

// leaseSlack is what a declaration of death, an admission and their commits may take
// on a machine that has time for them.
const leaseSlack = time.Second

// leased is how soon the line is free again after a worker is gone.
type leased struct {
	db    *sql.DB
	lease time.Duration
	look  time.Duration // between two looks of others: their beat
	slow  *stalls       // since the worker was gone
}

// freed judges by the database's rows when another attempt followed the first one of
// a job, whose worker was gone: not before a whole lease after that worker's last
// beat, and not later than a lease and a look after it. Others see a beat up to one
// look after it was written, and look again up to one after the lease is over.
func (l leased) freed(w *world, gone, next string, number int) {
	w.t.Helper()
	last := l.lastBeat(w, gone)
	var started rowTime
	if err := l.db.QueryRow("SELECT started_at FROM attempts WHERE job_id = $1 AND number = $2", next, number).Scan(&started); err != nil {
		w.t.Fatal(err)
	}
	took, most := started.Sub(last), l.lease+2*l.look+leaseSlack+l.slow.total()
	w.t.Logf("attempt %d of %s started %v after the last beat of the worker before it; stalls %v", number, next, took, l.slow.total())
	if took < l.lease || took > most {
		w.t.Errorf("attempt %d of %s started %v after the last beat of the worker before it, want %v to %v", number, next, took, l.lease, most)
	}
}

// lastBeat is when the worker of the job's first attempt last beat, by the database's
// clock: not before that beat was sent.
func (l leased) lastBeat(w *world, job string) time.Time {
	w.t.Helper()
	var at rowTime
	if err := l.db.QueryRow("SELECT w.beat_at FROM workers w JOIN attempts a ON a.worker = w.id WHERE a.job_id = $1 AND a.number = 1", job).Scan(&at); err != nil {
		w.t.Fatal(err)
	}
	return at.Time
}

// sqlite opens the gateway's database beside it, to read.
func (w *world) sqlite() *sql.DB {
	w.t.Helper()
	db, err := sql.Open("sqlite", w.path("lanegate.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	return db
}

// rowTime reads a time from either database.
type rowTime struct{ time.Time }

// Scan implements sql.Scanner.
func (r *rowTime) Scan(v any) (err error) {
	switch v := v.(type) {
	case time.Time:
		r.Time = v
		return nil
	case string:
		r.Time, err = time.Parse(time.RFC3339Nano, v)
		return err
	}
	return sql.ErrNoRows
}

// Package pgprobe counts the connections that jobs really hold in a PostgreSQL
// server, so that the units a class declares can be compared with what it uses.
//
// A job's connections are found by their application_name, which is what its
// PGAPPNAME says (lg/<job>) unless the job chose another one. The count is
// sampled: connections that live for less than the pause between two samples may
// be missed, so a peak is a lower bound. What a connection pooler holds for a job
// is not seen as the job's.
package pgprobe

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// DefaultEvery is the pause between two samples.
const DefaultEvery = 200 * time.Millisecond

// callTimeout bounds one sample.
const callTimeout = 5 * time.Second

// Options configure a Probe.
type Options struct {
	// Resource is the name used in the log.
	Resource string
	// URL of the server: postgres://…. Any role may count its own connections and
	// see the names of others'; pg_read_all_stats lets it tell parallel query
	// workers from connections.
	URL   string
	Every time.Duration // DefaultEvery when zero
	Log   *slog.Logger  // slog.Default when nil
}

// Probe samples one server, only while something is watched, over one connection.
// It is safe for concurrent use.
type Probe struct {
	every  time.Duration
	log    *slog.Logger
	sample func(ctx context.Context, names []string) (map[string]int, error)
	close  func() error

	mu      sync.Mutex
	watched map[string]*watch // by application_name; guarded by mu
	running bool              // the sampling goroutine runs; guarded by mu
	failing bool              // the last sample failed; guarded by mu
	// now asks for a sample at once. It holds one token.
	now  chan struct{}
	done context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// watch is one job under observation; guarded by Probe.mu.
type watch struct {
	holders int // calls of Watch that have not been stopped
	peak    int
}

// Open checks the options. It does not connect: a server that is away makes
// nothing fail but the measurement. The caller closes it.
func Open(o Options) (*Probe, error) {
	dsn, err := named(o.URL)
	if err != nil {
		return nil, err
	}
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, errors.New("the probe's URL is not a PostgreSQL URL that can be used") // the cause may quote its password
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "postgres")
	db.SetMaxOpenConns(1)
	db.SetConnMaxIdleTime(30 * time.Second)
	p := newProbe(o, (&server{db}).sample)
	p.close = db.Close
	return p, nil
}

func newProbe(o Options, sample func(context.Context, []string) (map[string]int, error)) *Probe {
	p := &Probe{
		every: o.Every, log: o.Log, sample: sample,
		watched: map[string]*watch{}, now: make(chan struct{}, 1),
	}
	if p.every <= 0 {
		p.every = DefaultEvery
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	p.log = p.log.With("resource", o.Resource)
	p.close = func() error { return nil }
	p.done, p.stop = context.WithCancel(context.Background())
	return p
}

// Check says why o.URL can't be a probe's, nil when it can; see Open.
func Check(rawURL string) error {
	_, err := named(rawURL)
	return err
}

// named is the URL with a connect timeout and the probe's own application_name,
// where it has none.
func named(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") || u.Host == "" && u.Query().Get("host") == "" {
		return "", errors.New("a probe is a PostgreSQL URL: postgres://user@host/database")
	}
	q := u.Query()
	for key, value := range map[string]string{"application_name": "lanegate-probe", "connect_timeout": "5"} {
		if !q.Has(key) {
			q.Set(key, value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// AppName is the application_name of a job's connections.
func AppName(job string) string { return "lg/" + job }

// Watch begins to count the job's connections. The returned function ends that
// and returns the most that were seen at once; 0 means that none was seen, which
// is not the same as none used. It may be called once.
func (p *Probe) Watch(job string) (peak func() int) {
	name := AppName(job)
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.watched[name]
	if !ok {
		w = &watch{}
		p.watched[name] = w
	}
	w.holders++
	if !p.running && p.done.Err() == nil {
		p.running = true
		p.wg.Go(p.run)
	}
	p.poke()
	return func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.holders--; w.holders == 0 {
			delete(p.watched, name)
			p.poke() // so that the sampling ends when nothing is left
		}
		return w.peak
	}
}

func (p *Probe) poke() {
	select {
	case p.now <- struct{}{}:
	default:
	}
}

// Close ends the sampling and the connection. Watches that are open keep what
// they saw.
func (p *Probe) Close() error {
	p.stop()
	p.wg.Wait()
	return p.close()
}

// run samples until nothing is watched or the probe is closed.
func (p *Probe) run() {
	timer := time.NewTimer(p.every)
	defer timer.Stop()
	for {
		names, ok := p.names()
		if !ok {
			return
		}
		p.take(names)
		timer.Reset(p.every)
		select {
		case <-timer.C:
		case <-p.now:
		case <-p.done.Done():
		}
	}
}

// names lists what is watched; false when the sampling must end, which it then does.
func (p *Probe) names() ([]string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.watched) == 0 || p.done.Err() != nil {
		p.running = false
		return nil, false
	}
	names := make([]string, 0, len(p.watched))
	for name := range p.watched {
		names = append(names, name)
	}
	return names, true
}

// take makes one sample. An outage is logged when it begins and when it is over.
func (p *Probe) take(names []string) {
	ctx, cancel := context.WithTimeout(p.done, callTimeout)
	defer cancel()
	counts, err := p.sample(ctx, names)
	if p.done.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil && !p.failing:
		p.log.WarnContext(ctx, "the connections of jobs can't be counted; their units count as not measured meanwhile", "err", err)
	case err == nil && p.failing:
		p.log.InfoContext(ctx, "the connections of jobs are counted again")
	}
	p.failing = err != nil
	for name, n := range counts {
		if w, ok := p.watched[name]; ok {
			w.peak = max(w.peak, n)
		}
	}
}

// server is the real source of samples.
type server struct{ db *sqlx.DB }

// sqlCount leaves out parallel query workers, which carry their leader's name but
// are no connections, where the role may see what they are.
const sqlCount = `
SELECT application_name, count(*) AS n
  FROM pg_stat_activity
 WHERE application_name = ANY($1)
   AND (backend_type IS NULL OR backend_type = 'client backend')
 GROUP BY application_name`

func (s *server) sample(ctx context.Context, names []string) (map[string]int, error) {
	var rows []struct {
		Name string `db:"application_name"`
		N    int    `db:"n"`
	}
	if err := s.db.SelectContext(ctx, &rows, sqlCount, pq.Array(names)); err != nil {
		return nil, fmt.Errorf("count connections: %w", err)
	}
	counts := make(map[string]int, len(rows))
	for _, r := range rows {
		counts[r.Name] = r.N
	}
	return counts, nil
}

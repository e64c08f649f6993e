// Package service holds lanegate's use cases: submit, explain, cancel, edit
// classes, lanes and resources, and everything workers report. It declares the
// ports it needs (Store, Doorbell, Commands) and knows neither SQL nor HTTP.
//
// Jobs start nowhere but in AdmissionStore.Admit, which calls admission.Plan;
// this package only asks for it and tells who is to be woken.
package service

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate"
)

// Actor names for changes that no person made.
const (
	ActorFile     = "file"
	ActorLanegate = "lanegate"
)

// Options configure a Service. Store, Doorbell, Commands and Log are required.
type Options struct {
	Store    Store
	Doorbell Doorbell
	Commands Commands
	Log      *slog.Logger
	Metrics  *Metrics
	// ConfigFile is shown where an edit is refused because the file declares the class.
	ConfigFile string
	// DefaultTarget, when not nil, is what a class gets that was never registered:
	// its first submission creates it from this spec.
	DefaultTarget *lanegate.ClassSpec
	// Intakes are the queues, by name or URL, whose messages this process makes jobs
	// of: none is handed over to them.
	Intakes []string
	// MaxPayload bounds one payload in bytes (default 1 MiB), MaxDepth its nesting (default 512).
	MaxPayload int
	MaxDepth   int
	// Retention of finished jobs and of run log rows (defaults 30 and 90 days).
	KeepJobs   time.Duration
	KeepRunLog time.Duration
	// Lease is how long a worker's beat may stand still before its attempts are
	// shown as silent (default DefaultLease).
	Lease time.Duration
}

// Service carries out the use cases. It is safe for concurrent use.
type Service struct {
	store   Store
	bell    Doorbell
	cmds    Commands
	log     *slog.Logger
	metrics *Metrics
	opts    Options
	hub     *hub
	lines   *linesCache
	watch   *watcher
	// standings remembers what the standing of classes was warned of.
	standings *standingWatcher
	trials    *trials
	memo      *memo
	oracle    *oracle
	hearts    heartWatch
	agents    agentWakes
	lanes     lanesSeen
	far       farPlaces
	nudges    chan struct{}                      // holds one token; see Nudges
	target    atomic.Pointer[lanegate.ClassSpec] // Options.DefaultTarget, until SetDefaultTarget
}

// Limits and defaults.
const (
	DefaultMaxPayload = 1 << 20
	DefaultMaxDepth   = 512
	MaxBatchItems     = 1000
	DefaultKeepJobs   = 30 * 24 * time.Hour
	DefaultKeepRunLog = 90 * 24 * time.Hour
	DefaultLease      = 60 * time.Second
	// MinKeepJobs keeps idempotency keys alive for the seven days they are promised.
	MinKeepJobs = 7 * 24 * time.Hour
)

// New returns a Service. It panics on missing parts, which is a wiring mistake.
func New(o Options) *Service {
	if o.Store == nil || o.Doorbell == nil || o.Commands == nil || o.Log == nil {
		panic("service: New: Store, Doorbell, Commands and Log are required")
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = DefaultMaxPayload
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	if o.KeepJobs == 0 {
		o.KeepJobs = DefaultKeepJobs
	}
	if o.KeepRunLog == 0 {
		o.KeepRunLog = DefaultKeepRunLog
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	s := &Service{
		store: o.Store, bell: o.Doorbell, cmds: o.Commands, log: o.Log,
		metrics: o.Metrics, opts: o, hub: newHub(), watch: newWatcher(), standings: newStandingWatcher(), trials: newTrials(), nudges: make(chan struct{}, 1),
	}
	s.lines = newLinesCache(o.Store)
	s.memo, s.oracle = newMemo(), newOracle()
	s.lanes.open()
	s.target.Store(o.DefaultTarget)
	return s
}

// SetDefaultTarget replaces Options.DefaultTarget from now on; nil means that
// classes have to be registered.
func (s *Service) SetDefaultTarget(spec *lanegate.ClassSpec) { s.target.Store(spec) }

// Ping checks that the database takes writes.
func (s *Service) Ping(ctx context.Context) error { return s.store.Ping(ctx) }

// MaxPayload is the limit of one payload in bytes.
func (s *Service) MaxPayload() int { return s.opts.MaxPayload }

// ringAll wakes every lane: after a change of limits anything may have become admissible.
func (s *Service) ringAll(lanes []lanegate.Lane) {
	for _, l := range lanes {
		s.ring(l.Name)
	}
}

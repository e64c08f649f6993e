package service_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store"
)

// fixture is a service on a real SQLite store whose clock stands until it is moved.
type fixture struct {
	t        testing.TB
	svc      *service.Service
	store    service.Store
	bell     *fakeBell
	commands *fakeCommands
	logs     *fakeLogs
	registry *prometheus.Registry
	clock    *fakeClock
}

// setup is what a test may change before the service is made.
type setup struct {
	starveAfter time.Duration
	options     service.Options
	wrap        func(service.Store) service.Store
}

func newFixture(t testing.TB, edits ...func(*setup)) *fixture {
	t.Helper()
	f := &fixture{
		t: t, bell: newBell(), logs: &fakeLogs{}, registry: prometheus.NewRegistry(),
		commands: &fakeCommands{digests: map[string]string{"cmd": "d1"}},
		clock:    &fakeClock{now: lanegate.Micro(time.Now())},
	}
	cfg := setup{options: service.Options{Doorbell: f.bell, Commands: f.commands, Log: slog.New(f.logs), Metrics: service.NewMetrics()}}
	for _, edit := range edits {
		edit(&cfg)
	}
	path := filepath.Join(t.TempDir(), "lanegate.db")
	empty, err := emptyDatabase()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, empty, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{
		Path: path, Logger: slog.New(slog.DiscardHandler),
		Now: f.clock.Now, StarveAfter: cfg.starveAfter,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	f.store = s
	if cfg.wrap != nil {
		f.store = cfg.wrap(s)
	}
	cfg.options.Store = f.store
	f.svc = service.New(cfg.options)
	if err := cfg.options.Metrics.Register(f.registry, f.svc); err != nil {
		t.Fatal(err)
	}
	return f
}

// emptyDatabase is a database file with all tables and no rows, made once: the
// migrations are the slowest part of a test.
var emptyDatabase = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "lanegate-service-test-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "lanegate.db")
	s, err := store.Open(context.Background(), store.Options{Path: path, Logger: discard()})
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil { // brings everything into the one file
		return nil, err
	}
	return os.ReadFile(path)
})

// withTarget configures a default target.
func withTarget(spec lanegate.ClassSpec) func(*setup) {
	return func(s *setup) { s.options.DefaultTarget = &spec }
}

// admin is a person who accepts nothing in advance.
var admin = service.ChangeOptions{Actor: "ann", Reason: "because"}

// acceptWidth, demote: the same person, having read the 409.
var (
	acceptWidth = service.ChangeOptions{Actor: "ann", Reason: "because", AcceptWidth: true}
	demote      = service.ChangeOptions{Actor: "ann", Reason: "because", Demote: true}
)

// execSpec runs the catalogue's command with the units given ("db", 5, …); none
// given means not declared.
func execSpec(units ...any) lanegate.ClassSpec {
	s := lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunExec, Command: "cmd"}}
	for i := 0; i+1 < len(units); i += 2 {
		if s.Units == nil {
			s.Units = lanegate.Units{}
		}
		s.Units[units[i].(string)] = units[i+1].(int)
	}
	return s
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) mustPut(id string, spec lanegate.ClassSpec) lanegate.Class {
	f.t.Helper()
	c, _, err := f.svc.PutClass(f.t.Context(), id, spec, acceptWidth)
	f.must(err)
	return c
}

func (f *fixture) mustResource(name string, capacity int, pool bool) {
	f.t.Helper()
	_, err := f.svc.PutResource(f.t.Context(), lanegate.Resource{Name: name, Capacity: capacity, Pool: pool}, acceptWidth)
	f.must(err)
}

// lane is a fair lane that falls back to serial.
func lane(name string, width int) lanegate.Lane {
	return lanegate.Lane{Name: name, WidthSetting: width, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackSerial}
}

func (f *fixture) mustLane(l lanegate.Lane) {
	f.t.Helper()
	_, err := f.svc.PutLane(f.t.Context(), l, acceptWidth)
	f.must(err)
}

// mustPromote stands for a proven promotion.
func (f *fixture) mustPromote(id, to string, maxInFlight int) {
	f.t.Helper()
	f.must(f.store.Change(f.t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		for _, c := range cfg.Classes {
			if c.ID == id {
				c.Lane, c.MaxInFlight = to, maxInFlight
				return tx.SaveClass(c)
			}
		}
		return errors.New("no class " + id)
	}))
}

func (f *fixture) mustClass(id string) lanegate.Class {
	f.t.Helper()
	c, err := f.svc.Class(f.t.Context(), id)
	f.must(err)
	return c
}

func (f *fixture) mustSubmit(class string, edits ...func(*service.Submission)) lanegate.Job {
	f.t.Helper()
	sub := service.Submission{Class: class}
	for _, edit := range edits {
		edit(&sub)
	}
	res, err := f.svc.Submit(f.t.Context(), "cron", sub)
	f.must(err)
	return res.Job
}

// mustWorker makes a live worker with the catalogue as it is now.
func (f *fixture) mustWorker(id string, slots int, lanes ...string) {
	f.t.Helper()
	f.must(f.svc.RegisterWorker(f.t.Context(), service.WorkerInfo{
		ID: id, Host: "h", PID: 1, Slots: slots, Lanes: lanes, Commands: f.commands.Digests(), StartedAt: f.clock.Now(),
	}))
}

// mustAdmit asks for work with free slots outside serial, and serial's.
func (f *fixture) mustAdmit(worker string, free int) service.Admitted {
	f.t.Helper()
	res, err := f.svc.Admit(f.t.Context(), service.Ask{Worker: worker, Free: free, SerialFree: true})
	f.must(err)
	return res
}

// mustStart admits and wants exactly these jobs to start, in any order.
func (f *fixture) mustStart(worker string, free int, jobs ...string) map[string]lanegate.Fence {
	f.t.Helper()
	fences := map[string]lanegate.Fence{}
	for _, g := range f.mustAdmit(worker, free).Grants {
		fences[g.Job.ID] = g.Attempt.Fence()
	}
	if started := slices.Sorted(maps.Keys(fences)); !slices.Equal(started, slices.Sorted(slices.Values(jobs))) {
		f.t.Fatalf("started %v, want %v", started, jobs)
	}
	return fences
}

func (f *fixture) mustEnd(fence lanegate.Fence, e lanegate.Ending) service.Ended {
	f.t.Helper()
	ended, err := f.svc.EndAttempt(f.t.Context(), fence, e)
	f.must(err)
	return ended
}

// events lists the names of a subject's events, oldest first.
func (f *fixture) events(subject string) []string {
	f.t.Helper()
	var names []string
	for _, e := range f.history(subject) {
		names = append(names, e.Event)
	}
	return names
}

// history lists a subject's events, oldest first.
func (f *fixture) history(subject string) []service.HistoryEvent {
	f.t.Helper()
	events, err := f.store.History(f.t.Context(), subject, 0, 100)
	f.must(err)
	slices.Reverse(events)
	return events
}

func (f *fixture) width(lane string) int {
	f.t.Helper()
	l, err := f.svc.Lane(f.t.Context(), lane)
	f.must(err)
	return l.Width.InForce
}

// config is what is stored, for comparing before and after; the version aside,
// which counts attempts, too.
func (f *fixture) config() service.Config {
	f.t.Helper()
	cfg, err := f.store.Config(f.t.Context())
	f.must(err)
	cfg.Version = 0
	return cfg
}

// metric is the value of one series, 0 when there is none; labels as "name=value".
func (f *fixture) metric(name string, labels ...string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	f.must(err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			for _, l := range labels {
				if !slices.Contains(have, l) {
					continue series
				}
			}
			switch {
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				return m.GetGauge().GetValue()
			default:
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// wantError checks that err is the named error and returns it whole.
func wantError(t testing.TB, err error, want *lanegate.Error) *lanegate.Error {
	t.Helper()
	got, ok := errors.AsType[*lanegate.Error](err)
	if !ok || !errors.Is(err, want) {
		t.Fatalf("error %v, want %s", err, want.Code)
	}
	return got
}

// wantFields checks that err is a 422 that points at exactly these places.
func wantFields(t testing.TB, err error, pointers ...string) {
	t.Helper()
	e := wantError(t, err, &lanegate.Error{Kind: lanegate.KindInvalid, Code: "invalid_fields"})
	var got []string
	for _, f := range e.Fields {
		got = append(got, f.Pointer)
		if f.Detail == "" {
			t.Errorf("%s has no detail", f.Pointer)
		}
	}
	slices.Sort(got)
	slices.Sort(pointers)
	if !slices.Equal(got, pointers) {
		t.Errorf("faults at %q, want %q", got, pointers)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

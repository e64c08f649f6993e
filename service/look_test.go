package service_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// lookedStore counts looks, walks along a line, and reads that are no part of a look.
type lookedStore struct {
	service.Store
	looks, walks, apart atomic.Int64
}

type insideKey struct{}

func (s *lookedStore) Look(ctx context.Context, fn func(ctx context.Context) error) error {
	s.looks.Add(1)
	return s.Store.Look(ctx, func(ctx context.Context) error { return fn(context.WithValue(ctx, insideKey{}, true)) })
}

func (s *lookedStore) read(ctx context.Context) {
	if ctx.Value(insideKey{}) == nil {
		s.apart.Add(1)
	}
}

func (s *lookedStore) Job(ctx context.Context, id string) (service.JobDetail, error) {
	s.read(ctx)
	return s.Store.Job(ctx, id)
}

func (s *lookedStore) Jobs(ctx context.Context, f service.JobFilter) ([]lanegate.Job, string, error) {
	s.read(ctx)
	return s.Store.Jobs(ctx, f)
}

func (s *lookedStore) Snapshot(ctx context.Context) (admission.Input, error) {
	s.read(ctx)
	return s.Store.Snapshot(ctx)
}

func (s *lookedStore) Ahead(ctx context.Context, jobs []lanegate.Job, classes []string, most, named int) ([]service.Ahead, error) {
	s.read(ctx)
	s.walks.Add(1)
	return s.Store.Ahead(ctx, jobs, classes, most, named)
}

func (s *lookedStore) FirstInLine(ctx context.Context, classes []string, max int) ([]string, error) {
	s.read(ctx)
	return s.Store.FirstInLine(ctx, classes, max)
}

func (s *lookedStore) Silent(ctx context.Context, older time.Duration) (map[string]int, error) {
	s.read(ctx)
	return s.Store.Silent(ctx, older)
}

func (s *lookedStore) Interruptions(ctx context.Context, jobs []string) (map[string]int, error) {
	s.read(ctx)
	return s.Store.Interruptions(ctx, jobs)
}

func (s *lookedStore) LastSuccess(ctx context.Context) (map[string]time.Time, error) {
	s.read(ctx)
	return s.Store.LastSuccess(ctx)
}

func (s *lookedStore) FirstWaits(ctx context.Context, classes []string) (map[string]time.Time, error) {
	s.read(ctx)
	return s.Store.FirstWaits(ctx, classes)
}

// A transaction costs round trips, and on a busy machine waits for a turn: whatever a
// page or a scrape shows is read in one.
func TestPagesAreOneLook(t *testing.T) {
	counted := &lookedStore{}
	f := newFixture(t, func(s *setup) {
		s.wrap = func(real service.Store) service.Store { counted.Store = real; return counted }
	})
	spec := execSpec()
	spec.FreshWithin = lanegate.Duration(time.Hour)
	f.mustPut("c", spec)
	f.mustPut("d", execSpec())
	id := f.mustSubmit("c").ID
	f.mustSubmit("d")
	for name, look := range map[string]func() error{
		"a page":   func() error { _, err := f.svc.Jobs(t.Context(), service.JobFilter{}); return err },
		"a job":    func() error { _, err := f.svc.Job(t.Context(), id); return err },
		"a scrape": func() error { _, err := f.registry.Gather(); return err },
	} {
		counted.looks.Store(0)
		counted.apart.Store(0)
		if err := look(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if looks, apart := counted.looks.Load(), counted.apart.Load(); looks != 1 || apart != 0 {
			t.Errorf("%s took %d looks and %d reads apart, want one look", name, looks, apart)
		}
	}
}

// farStore has one line in memory, of as many due jobs as it says, of which the first
// are gone.
type farStore struct {
	service.Store
	due, gone int
	walks     int
}

func (s *farStore) id(i int) string { return fmt.Sprintf("job-%05d", i) }

func (s *farStore) job(i int) lanegate.Job {
	return lanegate.Job{ID: s.id(i), Class: "c", State: lanegate.StateQueued, PlaceAt: time.Unix(int64(i), 0), PlaceID: s.id(i)}
}

func (s *farStore) Look(ctx context.Context, fn func(ctx context.Context) error) error {
	return fn(ctx)
}

func (s *farStore) Jobs(context.Context, service.JobFilter) (jobs []lanegate.Job, _ string, _ error) {
	for i := s.due - 1; i >= max(s.gone, s.due-5); i-- {
		jobs = append(jobs, s.job(i))
	}
	return jobs, "", nil
}

func (s *farStore) Snapshot(context.Context) (admission.Input, error) {
	return admission.Input{
		Now: time.Now(), Lanes: []lanegate.Lane{{Name: lanegate.LaneSerial, Available: true}},
		Classes: []lanegate.Class{{ID: "c", Lane: lanegate.LaneSerial}},
		Due:     []admission.Due{{Job: s.id(s.gone), Class: "c", PlaceAt: time.Unix(int64(s.gone), 0), PlaceID: s.id(s.gone)}},
	}, nil
}

func (s *farStore) FirstInLine(_ context.Context, _ []string, max int) (ids []string, _ error) {
	for i := range min(max, s.due-s.gone) {
		ids = append(ids, s.id(s.gone+i))
	}
	return ids, nil
}

func (s *farStore) Ahead(_ context.Context, jobs []lanegate.Job, _ []string, most, named int) ([]service.Ahead, error) {
	s.walks++
	out := make([]service.Ahead, len(jobs))
	for k, j := range jobs {
		n := int(j.PlaceAt.Unix()) - s.gone
		out[k] = service.Ahead{Count: min(n, most), AtLeast: n > most}
		for i := range min(named, out[k].Count) {
			out[k].First = append(out[k].First, s.id(s.gone+i))
		}
	}
	return out, nil
}

// Whoever looks at the far end of a line within two seconds is told what was counted
// there; nearer to the front, also where that has come to it meanwhile, it is counted for
// each.
func TestFarEndOfALineIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &farStore{due: service.AheadCounted + 1000}
		svc := service.New(service.Options{Store: s, Doorbell: newBell(), Commands: &fakeCommands{}, Log: discard()})
		look := func(what string, walks int, atLeast bool) {
			t.Helper()
			s.walks = 0
			page, err := svc.Jobs(t.Context(), service.JobFilter{})
			if err != nil {
				t.Fatal(err)
			}
			if s.walks != walks {
				t.Errorf("%s: the line was walked %d times, want %d", what, s.walks, walks)
			}
			for _, j := range page.Items {
				want := min(service.AheadCounted, int(j.PlaceAt.Unix())-s.gone)
				if a := j.Waiting.Ahead; a.Count != want || a.AtLeast != atLeast || len(a.First) != min(20, want) {
					t.Errorf("%s: ahead of %s are %d, at least %v, %d named", what, j.ID, a.Count, a.AtLeast, len(a.First))
				}
			}
		}
		look("the first", 1, true)
		look("the second", 0, true)
		s.due += 10
		look("behind it", 0, true)
		<-time.After(2 * time.Second)
		look("two seconds later", 1, true)
		s.gone = s.due - 10
		look("when only ten are left", 1, false)
		s.gone = s.due - 20
		look("when all are named", 1, false)
		s.gone = 0
		s.due = service.AheadCounted - 100
		look("nearer to the front", 1, false)
		look("nearer to the front again", 1, false)
	})
}

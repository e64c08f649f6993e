package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
	"github.com/lanegate/lanegate/service"
)

// countedLog counts the readings of the whole run log, each of which waits for
// open, if that is set.
type countedLog struct {
	service.Store
	reads *atomic.Int32
	open  chan struct{}
}

func (s countedLog) WholeRunLog(ctx context.Context, from, to time.Time, row func(lanegate.RunRecord) error) error {
	s.reads.Add(1)
	if s.open != nil {
		select {
		case <-s.open:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Store.WholeRunLog(ctx, from, to, row)
}

func counted(reads *atomic.Int32, open chan struct{}) func(*setup) {
	return func(s *setup) {
		s.wrap = func(real service.Store) service.Store { return countedLog{real, reads, open} }
	}
}

// mustImport imports CSV rows "class,submitted,started,finished" in minutes after
// six days ago.
func (f *fixture) mustImport(rows ...string) service.Imported {
	f.t.Helper()
	begin := f.clock.Now().Add(-6 * 24 * time.Hour).Truncate(time.Minute)
	var text strings.Builder
	text.WriteString("class,submitted,started,finished,status\n")
	for _, row := range rows {
		var class string
		var a, b, c int
		if _, err := fmt.Sscanf(row, "%s %d %d %d", &class, &a, &b, &c); err != nil {
			f.t.Fatal(row, err)
		}
		text.WriteString(class)
		for _, minutes := range []int{a, b, c} {
			text.WriteString("," + begin.Add(time.Duration(minutes)*time.Minute).Format(time.RFC3339))
		}
		text.WriteString(",success\n")
	}
	res, err := f.svc.ImportRunLog(f.t.Context(), runlog.Source{Name: "test", Reader: strings.NewReader(text.String())}, runlog.ReadOptions{}, "ann")
	f.must(err)
	return res
}

// nights is five nights in which heavy holds up pos and weather; weather, due
// before heavy has ended, always comes after pos.
func nights() []string {
	var rows []string
	for night := range 5 {
		at := night * 24 * 60
		rows = append(rows, fmt.Sprintf("heavy %d %d %d", at, at, at+900))
		for i := range 4 {
			rows = append(rows, fmt.Sprintf("c%d %d %d %d", i, at+1, at+900+3*i, at+903+3*i))
		}
		rows = append(rows, fmt.Sprintf("pos %d %d %d", at+1, at+912, at+915), fmt.Sprintf("weather %d %d %d", at+2, at+915, at+918))
	}
	return rows
}

func TestAdviceOnImportedRuns(t *testing.T) {
	var reads atomic.Int32
	f := newFixture(t, counted(&reads, nil))
	f.mustResource("db", 15, true)
	f.mustPut("pos", execSpec("db", 5))
	f.mustPut("heavy", execSpec("db", 9))
	if _, err := f.svc.Advice(t.Context(), 7*24*time.Hour); !errors.Is(err, service.ErrNoRuns) {
		t.Errorf("advice on nothing: %v", err)
	}
	if res := f.mustImport(nights()...); res.Added != 35 || res.Account.Used != 35 {
		t.Errorf("imported %+v", res)
	}
	if res := f.mustImport(nights()...); res.Added != 0 || res.Account.Used != 35 {
		t.Errorf("imported again %+v", res)
	}
	reads.Store(0)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			advice, err := f.svc.Advice(t.Context(), 6*24*time.Hour+time.Hour)
			if err != nil || advice.Report.Verdict.Kind != runlog.Isolate || advice.Report.Span.Runs != 35 {
				t.Errorf("advice %+v, %v", advice.Report, err)
			}
		})
	}
	all.Wait()
	if n := reads.Load(); n != 1 {
		t.Errorf("the log was read %d times for twenty who asked", n)
	}
	// Nothing but advice knows of these runs.
	st, err := f.svc.Stats(t.Context(), "heavy", 7*24*time.Hour)
	if err != nil || st.Runs != 0 {
		t.Errorf("statistics have %d of the imported runs, %v", st.Runs, err)
	}
	if last, err := f.store.LastSuccess(t.Context()); err != nil || len(last) != 0 {
		t.Errorf("last successes %v, %v", last, err)
	}
	job := f.mustSubmit("heavy").ID
	f.mustSubmit("pos")
	f.mustForesee()
	if view, err := f.svc.Job(t.Context(), job); err != nil || view.Waiting.Expected.Known() && view.Waiting.Expected.P50.After(f.clock.Now()) {
		t.Errorf("expected start %+v, %v", view.Waiting.Expected, err)
	}
}

// Whoever can't wait is told to ask again, and the work is done for them meanwhile.
func TestAdviceThatTakesLong(t *testing.T) {
	var reads atomic.Int32
	open := make(chan struct{})
	f := newFixture(t, counted(&reads, open))
	f.mustImport(nights()...)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := f.svc.Advice(ctx, 7*24*time.Hour)
		cancel()
		wantError(t, err, &lanegate.Error{Kind: lanegate.KindUnavailable, Code: "in_progress"})
	}
	close(open)
	if _, err := f.svc.Advice(t.Context(), 7*24*time.Hour); err != nil {
		t.Error(err)
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("the log was read %d times", n)
	}
}

// Questions are bounded, and the end of the service ends their answering.
func TestAdviceIsBounded(t *testing.T) {
	var reads atomic.Int32
	f := newFixture(t, counted(&reads, make(chan struct{})))
	ask := func(hours int) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := f.svc.Advice(ctx, time.Duration(hours)*time.Hour)
		return err
	}
	for i := range 16 {
		wantError(t, ask(i+1), &lanegate.Error{Kind: lanegate.KindUnavailable, Code: "in_progress"})
	}
	wantError(t, ask(17), &lanegate.Error{Kind: lanegate.KindLimited, Code: "too_many_questions"})
	f.must(f.svc.Close())
	if n := reads.Load(); n > 1 {
		t.Errorf("%d readings at once", n)
	}
	if _, err := f.svc.Advice(t.Context(), 99*time.Hour); !errors.Is(err, lanegate.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
}

// Promoting a class that the line kept behind another says so, and waits a second
// at most to learn it.
func TestPromotionWarnsOfHiddenOrders(t *testing.T) {
	var reads atomic.Int32
	f := newFixture(t, counted(&reads, nil))
	f.mustResource("db", 15, true)
	f.mustPut("weather", execSpec("db", 1))
	f.mustImport(nights()...)
	f.trial(passed("weather"))
	dry := to(lanegate.LaneParallel)
	dry.DryRun = true
	for _, o := range []service.PromoteOptions{dry, to(lanegate.LaneParallel)} {
		p := f.promote(o, "weather")
		if text := strings.Join(p.Consequences.Warnings, "\n"); !strings.Contains(text, "weather started after pos had ended in 5 of 5 cycles") {
			t.Errorf("warnings of a promotion (dry run: %v): %q", o.DryRun, text)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("the log was read %d times", n)
	}

	slow := newFixture(t, counted(&reads, make(chan struct{})))
	slow.mustResource("db", 15, true)
	slow.mustPut("weather", execSpec("db", 1))
	slow.trial(passed("weather"))
	began := time.Now()
	if p := slow.promote(to(lanegate.LaneParallel), "weather"); len(p.Consequences.Warnings) > 0 && strings.Contains(fmt.Sprint(p.Consequences.Warnings), "cycles") {
		t.Errorf("warnings %q from nothing", p.Consequences.Warnings)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the promotion took %v", took)
	}
	slow.must(slow.svc.Close())
}

func TestPromotionsAreCompared(t *testing.T) {
	f := newFixture(t)
	f.mustResource("db", 15, true)
	f.mustPut("pos", execSpec("db", 1))
	f.mustPut("heavy", execSpec())
	f.mustWorker("w", 4)
	if list, err := newFixture(t).svc.Promotions(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("without a promotion: %+v, %v", list, err)
	}
	night := func(wait time.Duration) {
		job := f.mustSubmit("pos").ID
		f.clock.advance(wait)
		for _, g := range f.mustAdmit("w", 4).Grants {
			f.clock.advance(time.Minute)
			f.mustEnd(g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Minute})
			if g.Job.ID != job {
				t.Fatalf("job %s started", g.Job.ID)
			}
		}
		f.clock.advance(24 * time.Hour)
	}
	for range 5 {
		night(10 * time.Hour)
	}
	f.trial(passed("pos"))
	f.promote(to(lanegate.LaneParallel), "pos")
	for range 4 {
		night(0)
	}
	list, err := f.svc.Promotions(t.Context())
	f.must(err)
	if len(list) != 1 || !list[0].Enough || list[0].Class != "pos" || list[0].Actor != "ann" {
		t.Fatalf("comparisons %+v", list)
	}
	b, a := list[0].Before, list[0].After
	if b.Nights != 5 || a.Nights != 4 || b.Waits.P50 != 10*time.Hour || a.Waits.Max != 0 || b.Durations.P50 != time.Minute || a.Failures != 0 {
		t.Errorf("before %+v, after %+v", b, a)
	}
	if o := list[0].OthersAfter; o == nil || o.Runs != 0 {
		t.Errorf("others %+v", o)
	}
}

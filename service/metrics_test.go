package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// busy is a known state: one run in each lane, jobs waiting in serial, history.
func busy(t *testing.T, edits ...func(*setup)) *fixture {
	t.Helper()
	f := newFixture(t, edits...)
	f.mustResource("db", 15, true)
	f.mustWorker("w", 4)
	serial := execSpec("db", 5)
	serial.FreshWithin = lanegate.Duration(time.Hour)
	f.mustPut("nightly", serial)
	f.mustPut("fast", execSpec("db", 4))
	f.mustPromote("fast", lanegate.LaneParallel, 2)

	done := f.mustSubmit("nightly").ID
	f.mustEnd(f.mustStart("w", 4, done)[done], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 20 * time.Second})
	running, quick := f.mustSubmit("nightly").ID, f.mustSubmit("fast").ID
	f.clock.advance(time.Minute)
	f.mustStart("w", 4, running, quick)
	f.mustSubmit("nightly")
	f.clock.advance(30 * time.Second)
	f.mustSubmit("nightly")
	at := f.clock.Now().Add(time.Hour)
	f.mustSubmit("nightly", func(s *service.Submission) { s.RunAt = &at })
	f.clock.advance(30 * time.Second)
	return f
}

func TestMetricsOfAKnownState(t *testing.T) {
	f := busy(t)
	success, err := f.store.LastSuccess(t.Context())
	f.must(err)
	want := fmt.Sprintf(`
# HELP lanegate_attempts_finished_total Attempts with a recorded outcome.
# TYPE lanegate_attempts_finished_total counter
lanegate_attempts_finished_total{class="nightly",lane="serial",outcome="succeeded"} 1
# HELP lanegate_class_in_flight Attempts in flight of the class.
# TYPE lanegate_class_in_flight gauge
lanegate_class_in_flight{class="fast"} 1
lanegate_class_in_flight{class="nightly"} 1
# HELP lanegate_class_interruptions_in_row Most interruptions in a row, drains included, of the class's jobs in flight and first in line.
# TYPE lanegate_class_interruptions_in_row gauge
lanegate_class_interruptions_in_row{class="fast"} 0
lanegate_class_interruptions_in_row{class="nightly"} 0
# HELP lanegate_class_last_success_timestamp_seconds End of the class's last success.
# TYPE lanegate_class_last_success_timestamp_seconds gauge
lanegate_class_last_success_timestamp_seconds{class="nightly"} %v
# HELP lanegate_class_overdue_runs Attempts of the class running longer than warn_after.
# TYPE lanegate_class_overdue_runs gauge
lanegate_class_overdue_runs{class="fast"} 0
lanegate_class_overdue_runs{class="nightly"} 0
# HELP lanegate_class_queued_without_worker Due jobs of the class while no live worker can run it, else 0.
# TYPE lanegate_class_queued_without_worker gauge
lanegate_class_queued_without_worker{class="fast"} 0
lanegate_class_queued_without_worker{class="nightly"} 0
# HELP lanegate_class_stale 1 while the class's last success is older than fresh_within, else 0.
# TYPE lanegate_class_stale gauge
lanegate_class_stale{class="nightly"} 0
# HELP lanegate_jobs_submitted_total Jobs accepted, replays not counted.
# TYPE lanegate_jobs_submitted_total counter
lanegate_jobs_submitted_total{class="fast"} 1
lanegate_jobs_submitted_total{class="nightly"} 5
# HELP lanegate_lane_available 1 while the lane is available, else 0.
# TYPE lanegate_lane_available gauge
lanegate_lane_available{lane="parallel"} 1
lanegate_lane_available{lane="serial"} 1
# HELP lanegate_lane_in_flight Attempts in flight in the lane, counted from their rows.
# TYPE lanegate_lane_in_flight gauge
lanegate_lane_in_flight{lane="parallel"} 1
lanegate_lane_in_flight{lane="serial"} 1
# HELP lanegate_lane_in_flight_without_beat Attempts in flight in the lane whose worker is gone or shows no beat for a lease.
# TYPE lanegate_lane_in_flight_without_beat gauge
lanegate_lane_in_flight_without_beat{lane="parallel"} 1
lanegate_lane_in_flight_without_beat{lane="serial"} 1
# HELP lanegate_lane_oldest_queued_seconds Longest wait among the lane's due jobs.
# TYPE lanegate_lane_oldest_queued_seconds gauge
lanegate_lane_oldest_queued_seconds{lane="parallel"} 0
lanegate_lane_oldest_queued_seconds{lane="serial"} 60
# HELP lanegate_lane_overcommitted 1 while the lane's explicit width is above the arithmetic, else 0.
# TYPE lanegate_lane_overcommitted gauge
lanegate_lane_overcommitted{lane="parallel"} 0
lanegate_lane_overcommitted{lane="serial"} 0
# HELP lanegate_lane_queued Due jobs that wait and would run in this lane now.
# TYPE lanegate_lane_queued gauge
lanegate_lane_queued{lane="parallel"} 0
lanegate_lane_queued{lane="serial"} 2
# HELP lanegate_lane_width Width of the lane in force.
# TYPE lanegate_lane_width gauge
lanegate_lane_width{lane="parallel"} 2
lanegate_lane_width{lane="serial"} 1
# HELP lanegate_late_writes_total Outcomes refused because the attempt already had one.
# TYPE lanegate_late_writes_total counter
lanegate_late_writes_total 0
# HELP lanegate_oldest_running_seconds Age of the lane's oldest attempt in flight.
# TYPE lanegate_oldest_running_seconds gauge
lanegate_oldest_running_seconds{lane="parallel"} 60
lanegate_oldest_running_seconds{lane="serial"} 60
# HELP lanegate_resource_capacity Capacity of the resource.
# TYPE lanegate_resource_capacity gauge
lanegate_resource_capacity{resource="db"} 15
# HELP lanegate_resource_in_use Units of the resource in use.
# TYPE lanegate_resource_in_use gauge
lanegate_resource_in_use{resource="db"} 9
`, float64(success["nightly"].UnixMilli())/1000)
	var names []string
	for line := range strings.Lines(want) {
		name, ok := strings.CutPrefix(line, "# HELP ")
		if ok && !strings.Contains(line, "_submitted_total ") && !strings.Contains(line, "_finished_total ") && !strings.Contains(line, "_fallback_total ") {
			names = append(names, strings.Fields(name)[0])
		}
	}
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	for name, n := range map[string]float64{"lanegate_job_wait_seconds": 2, "lanegate_job_duration_seconds": 1} {
		if got := f.metric(name, "class=nightly", "lane=serial"); got != n {
			t.Errorf("%s: %v observed, want %v", name, got, n)
		}
	}
}

// C17: attempts that sit in running unseen are seen: the lane's gauge rises when
// their worker has shown no beat for a lease, and falls when it beats again, or
// when they were reclaimed.
func TestAttemptsWithoutABeatAreShown(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.options.Lease = 20 * time.Second })
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	f.mustStart("w", 1, f.mustSubmit("c").ID)
	want := func(n float64) {
		t.Helper()
		if got := f.metric("lanegate_lane_in_flight_without_beat", "lane=serial"); got != n {
			t.Errorf("%v attempts without a beat, want %v", got, n)
		}
		if got := f.metric("lanegate_lane_in_flight_without_beat", "lane=parallel"); got != 0 {
			t.Errorf("%v in the other lane", got)
		}
	}
	want(0)
	f.clock.advance(20 * time.Second)
	want(0)
	f.clock.advance(time.Second)
	want(1)
	_, err := f.svc.Beat(t.Context(), "w")
	f.must(err)
	want(0)
	f.clock.advance(91 * 24 * time.Hour)
	want(1)
	if age := f.metric("lanegate_oldest_running_seconds", "lane=serial"); age < (91 * 24 * time.Hour).Seconds() {
		t.Errorf("the oldest run is %v s old", age)
	}
	f.must(f.svc.ReapWorker(t.Context(), "w", 1))
	want(0)
}

// C37: due jobs that no live worker can run are shown, and are no longer when one
// can, or when there are none.
func TestJobsThatNobodyCanRunAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.mustPut("c", execSpec())
		f.mustPut("idle", execSpec())
		want := func(when string, n float64) {
			t.Helper()
			time.Sleep(time.Minute) // counts of lines are kept for a while
			if got := f.metric("lanegate_class_queued_without_worker", "class=c"); got != n {
				t.Errorf("%s: %v due jobs that nobody can run, want %v", when, got, n)
			}
			if got := f.metric("lanegate_class_queued_without_worker", "class=idle"); got != 0 {
				t.Errorf("%s: %v of a class without jobs", when, got)
			}
		}
		first := f.mustSubmit("c").ID
		f.mustSubmit("c")
		later := f.clock.Now().Add(time.Hour)
		f.mustSubmit("c", func(s *service.Submission) { s.RunAt = &later })
		want("without a worker", 2)
		f.mustWorker("other", 1, lanegate.LaneParallel)
		want("with one for another lane", 2)
		f.must(f.svc.RegisterWorker(t.Context(), service.WorkerInfo{ID: "old", Host: "h", PID: 1, Slots: 1, StartedAt: f.clock.Now()}))
		want("with one that does not know the command", 2)
		f.mustWorker("w", 1)
		want("with one that can", 0)
		f.mustStart("w", 1, first)
		f.must(f.svc.LeaveWorker(t.Context(), "w"))
		want("when it has left its run, too", 2)
	})
}

func TestMetricsAreWellFormed(t *testing.T) {
	f := busy(t)
	problems, err := testutil.GatherAndLint(f.registry)
	f.must(err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if err := service.NewMetrics().Register(f.registry, f.svc); err == nil {
		t.Error("registered twice in one registry")
	}
}

// Silence is the failure that fresh_within catches, that of a class which never
// succeeded included.
func TestStale(t *testing.T) {
	f := newFixture(t)
	spec := execSpec()
	spec.FreshWithin = lanegate.Duration(time.Hour)
	f.mustPut("c", spec)
	f.mustWorker("w", 1)
	stale := func(want float64) {
		t.Helper()
		if got := f.metric("lanegate_class_stale", "class=c"); got != want {
			t.Errorf("stale: %v, want %v", got, want)
		}
	}
	run := func(o lanegate.Outcome) {
		t.Helper()
		job := f.mustSubmit("c").ID
		f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: o, Permanent: true})
	}
	stale(0)
	f.clock.advance(time.Hour)
	stale(0)
	f.clock.advance(time.Second)
	stale(1)
	run(lanegate.Failed)
	stale(1)
	run(lanegate.Succeeded)
	stale(0)
	f.clock.advance(time.Hour + time.Second)
	stale(1)
}

// C86: more jobs, restarts of workers and invented classes make no more series.
func TestSeriesDoNotGrow(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.mustPut("c", execSpec())
	worker := 0
	round := func() {
		t.Helper()
		worker++
		id := fmt.Sprintf("worker-%d", worker)
		f.mustWorker(id, 1)
		job := f.mustSubmit("c", func(s *service.Submission) {
			s.Key = fmt.Sprintf("key-%d", worker)
			s.LogicalDate = f.clock.Now().Format(time.RFC3339)
		}).ID
		fence := f.mustStart(id, 1, job)[job]
		f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded})
		_, err := f.svc.EndAttempt(ctx, fence, lanegate.Ending{Outcome: lanegate.Failed})
		wantError(t, err, lanegate.ErrLateWrite)
		_, err = f.svc.Submit(ctx, id, service.Submission{Class: fmt.Sprintf("invented-%d", worker)})
		wantError(t, err, lanegate.ErrUnknownClass)
		f.must(f.svc.LeaveWorker(ctx, id))
	}
	round()
	before, err := testutil.GatherAndCount(f.registry)
	f.must(err)
	for range 30 {
		round()
	}
	after, err := testutil.GatherAndCount(f.registry)
	if err != nil || after != before {
		t.Errorf("%d series before, %d after, %v", before, after, err)
	}
}

func TestDeletedClassLeavesNoSeries(t *testing.T) {
	f := newFixture(t)
	f.mustWorker("w", 1)
	f.mustPut("keep", execSpec()) // the first change makes the lanes' counters
	f.must(f.svc.DeleteClass(t.Context(), "keep", admin))
	before, err := testutil.GatherAndCount(f.registry)
	f.must(err)
	for i := range 3 {
		spec := execSpec()
		spec.FreshWithin = 1
		id := fmt.Sprintf("c%d", i)
		f.mustPut(id, spec)
		job := f.mustSubmit(id).ID
		f.mustEnd(f.mustStart("w", 1, job)[job], lanegate.Ending{Outcome: lanegate.Succeeded})
		f.mustPromote(id, lanegate.LaneParallel, 1)
		f.mustPut("keep", execSpec())
		_, _, err := f.svc.PutClass(t.Context(), id, lanegate.ClassSpec{Run: lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://x/"}}, demote)
		f.must(err)
		f.must(f.svc.DeleteClass(t.Context(), id, admin))
		f.must(f.svc.DeleteClass(t.Context(), "keep", admin))
	}
	if after, err := testutil.GatherAndCount(f.registry); err != nil || after != before {
		t.Errorf("%d series before, %d after, %v", before, after, err)
	}
}

// A database that doesn't answer makes the scrape fail, rather than show zeroes.
func TestScrapeFailsVisibly(t *testing.T) {
	for _, broken := range []string{"snapshot", "lines", "silent", "interruptions", "successes"} {
		t.Run(broken, func(t *testing.T) {
			f := newFixture(t, func(s *setup) {
				s.wrap = func(real service.Store) service.Store { return &brokenStore{Store: real, broken: broken} }
			})
			if _, err := f.registry.Gather(); err == nil {
				t.Error("the scrape succeeded")
			}
		})
	}
}

// brokenStore fails in one of the reads of a scrape.
type brokenStore struct {
	service.Store
	broken string
}

func (s *brokenStore) Snapshot(ctx context.Context) (admission.Input, error) {
	if s.broken == "snapshot" {
		return admission.Input{}, lanegate.ErrUnavailable
	}
	return s.Store.Snapshot(ctx)
}

func (s *brokenStore) Interruptions(ctx context.Context, jobs []string) (map[string]int, error) {
	if s.broken == "interruptions" {
		return nil, lanegate.ErrUnavailable
	}
	return s.Store.Interruptions(ctx, jobs)
}

func (s *brokenStore) Lines(ctx context.Context) ([]service.ClassLine, error) {
	if s.broken == "lines" {
		return nil, lanegate.ErrUnavailable
	}
	return s.Store.Lines(ctx)
}

func (s *brokenStore) Silent(ctx context.Context, older time.Duration) (map[string]int, error) {
	if s.broken == "silent" {
		return nil, lanegate.ErrUnavailable
	}
	return s.Store.Silent(ctx, older)
}

func (s *brokenStore) LastSuccess(ctx context.Context) (map[string]time.Time, error) {
	if s.broken == "successes" {
		return nil, lanegate.ErrUnavailable
	}
	return s.Store.LastSuccess(ctx)
}

// What an earlier process lost is found at the start, before any scrape: it is
// counted all the same, beside series that have not risen. increase() can't see a
// series that begins at 1; the alarm in docs/operating.md takes the value itself
// while the process is young.
func TestLossesFoundAtStartAreCounted(t *testing.T) {
	f := newFixture(t)
	file := fileOf("h", classes{"c": execSpec(), "spared": execSpec()})
	f.mustSync(file, true)
	f.mustWorker("dead", 1)
	job := f.mustSubmit("c").ID
	f.mustStart("dead", 1, job)

	metrics := service.NewMetrics()
	next := service.New(service.Options{Store: f.store, Doorbell: newBell(), Commands: f.commands, Log: discard(), Metrics: metrics})
	f.registry = prometheus.NewRegistry()
	f.must(metrics.Register(f.registry, next))
	_, err := next.SyncFile(t.Context(), file)
	f.must(err)
	workers, err := next.LiveWorkers(t.Context())
	f.must(err)
	for _, w := range workers {
		f.must(next.ReapWorker(t.Context(), w.ID, w.Beat))
	}

	const name = "lanegate_attempts_finished_total"
	if n, err := testutil.GatherAndCount(f.registry, name); err != nil || n != 2*len(lanegate.Outcomes) {
		t.Errorf("%d series (%v), want one per class and outcome", n, err)
	}
	if got := f.metric(name, "class=c", "lane=serial", "outcome=lost"); got != 1 {
		t.Errorf("%v losses counted, want 1", got)
	}
	if got := f.metric(name, "class=spared", "lane=serial", "outcome=lost"); got != 0 {
		t.Errorf("%v losses of another class", got)
	}
}

// A class's counters exist from its registration on: a first loss after a restart
// is a rise that an alarm sees, not a new series.
func TestCountersExistBeforeTheirFirstEvent(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	for name, want := range map[string]int{
		"lanegate_jobs_submitted_total":    1,
		"lanegate_attempts_finished_total": len(lanegate.Outcomes),
		"lanegate_route_fallback_total":    1, // lane parallel
	} {
		if n, err := testutil.GatherAndCount(f.registry, name); err != nil || n != want {
			t.Errorf("%s has %d series (%v), want %d", name, n, err, want)
		}
	}
}

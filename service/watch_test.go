package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// warn_after is what is declared, or 3 × p99 of the good runs, a minute at least,
// or 2 h while fewer than five are known. It alarms only.
func TestWarnAfter(t *testing.T) {
	for _, tt := range []struct {
		name      string
		warnAfter time.Duration
		history   []lanegate.Ending
		want      time.Duration
	}{
		{"declared", 7 * time.Minute, runs(9, lanegate.Succeeded, time.Hour), 7 * time.Minute},
		{"no history", 0, nil, 2 * time.Hour},
		{"too little history", 0, runs(4, lanegate.Succeeded, time.Minute), 2 * time.Hour},
		{"failures are no history", 0, append(runs(4, lanegate.Succeeded, time.Minute), runs(9, lanegate.Failed, time.Minute)...), 2 * time.Hour},
		{"three times p99", 0, append(runs(4, lanegate.Succeeded, time.Minute), runs(1, lanegate.Succeeded, 10*time.Minute)...), 30 * time.Minute},
		{"of short runs", 0, runs(5, lanegate.Succeeded, time.Second), time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			spec := execSpec()
			spec.WarnAfter = lanegate.Duration(tt.warnAfter)
			f.mustPut("c", spec)
			f.mustWorker("w", 1)
			for _, e := range tt.history {
				job := f.mustSubmit("c").ID
				f.mustEnd(f.mustStart("w", 1, job)[job], e)
			}
			f.clock.advance(time.Millisecond) // the last of them is past
			job := f.mustSubmit("c").ID
			f.mustStart("w", 1, job)
			f.clock.advance(tt.want)
			f.wantOverdue(0, 0)
			f.clock.advance(time.Microsecond)
			f.wantOverdue(1, 1)
			if f.mustState(job) != lanegate.StateRunning {
				t.Errorf("state %s: an alarm must not stop anything", f.mustState(job))
			}
		})
	}
}

func runs(n int, o lanegate.Outcome, d time.Duration) []lanegate.Ending {
	endings := make([]lanegate.Ending, n)
	for i := range endings {
		endings[i] = lanegate.Ending{Outcome: o, Duration: d}
	}
	return endings
}

// wantOverdue looks once, then compares the gauge and the announcements so far.
func (f *fixture) wantOverdue(now, announced int) {
	f.t.Helper()
	f.must(f.svc.WatchRuns(f.t.Context()))
	if n := f.metric("lanegate_class_overdue_runs", "class=c"); n != float64(now) {
		f.t.Errorf("%v overdue, want %d", n, now)
	}
	if n := f.logs.count("job runs longer than expected"); n != announced {
		f.t.Errorf("announced %d times, want %d", n, announced)
	}
}

// C45: a job that outlasts its schedule three times. Nothing overlaps, the line
// grows, the alarm is raised once and the gauges show run and line.
func TestJobThatOutlastsItsSchedule(t *testing.T) {
	f := newFixture(t)
	spec := execSpec()
	spec.WarnAfter = lanegate.Duration(5 * time.Hour)
	f.mustPut("c", spec)
	f.mustWorker("w", 9)
	first := f.mustSubmit("c").ID
	fence := f.mustStart("w", 9, first)[first]
	var waiting []string
	for i := range 3 {
		f.clock.advance(4 * time.Hour)
		waiting = append(waiting, f.mustSubmit("c", func(s *service.Submission) { s.Key = fmt.Sprint(i) }).ID)
		f.mustStart("w", 9) // nothing beside it
		f.wantOverdue(min(i, 1), min(i, 1))
	}
	if w := f.mustWaiting(waiting[2]); w.Ahead.Count != 2 {
		t.Errorf("%d ahead of the last, want 2", w.Ahead.Count)
	}
	if n := f.metric("lanegate_oldest_running_seconds", "lane=serial"); n != 12*3600 {
		t.Errorf("oldest running: %v s", n)
	}
	f.mustEnd(fence, lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 12 * time.Hour})
	f.wantOverdue(0, 1)
	// The next one is announced for itself, and again in a second attempt.
	f.mustStart("w", 9, waiting[0])
	f.clock.advance(6 * time.Hour)
	f.wantOverdue(1, 2)
	f.must(f.svc.LeaveWorker(t.Context(), "w"))
	f.mustWorker("w2", 9)
	f.mustStart("w2", 9, waiting[0])
	f.wantOverdue(0, 2)
	f.clock.advance(6 * time.Hour)
	f.wantOverdue(1, 3)
}

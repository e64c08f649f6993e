package service_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// mustRun lets a job of the class run for some time and succeed.
func (f *fixture) mustRun(class string, took time.Duration) {
	f.t.Helper()
	job := f.mustSubmit(class).ID
	fences := f.mustStart("w", 1, job)
	f.clock.advance(took)
	f.mustEnd(fences[job], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: took})
}

// mustForesee foretells the line as it is now.
func (f *fixture) mustForesee() {
	f.t.Helper()
	f.must(f.svc.ForeseeNow(f.t.Context()))
}

func (f *fixture) mustFresh(class string) service.Freshness {
	f.t.Helper()
	view, err := f.svc.Freshness(f.t.Context())
	f.must(err)
	for _, c := range view.Classes {
		if c.Class == class {
			return c
		}
	}
	f.t.Fatalf("%s is not among %+v", class, view.Classes)
	return service.Freshness{}
}

// nightly is heavy (10 h) and pos (5 min, fresh within 26 h), with five good runs each.
func nightly(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	pos := execSpec()
	pos.FreshWithin = lanegate.Duration(26 * time.Hour)
	f.mustPut("pos", pos)
	f.mustPut("heavy", execSpec())
	f.mustPut("weather", execSpec())
	f.mustWorker("w", 1)
	for range 5 {
		f.mustRun("heavy", 10*time.Hour)
		f.mustRun("weather", time.Minute)
	}
	for range 5 {
		f.mustRun("pos", 5*time.Minute)
	}
	return f
}

// The story: heavy starts at a bad hour, pos is queued behind it, and nine hours
// before pos is missed, everybody can know.
func TestAMissIsForetold(t *testing.T) {
	f := nightly(t)
	f.clock.advance(17 * time.Hour)
	heavy := f.mustSubmit("heavy").ID
	f.mustSubmit("weather")
	f.mustStart("w", 1, heavy)
	f.mustForesee()
	if got := f.mustFresh("pos"); got.Status != service.Fresh || got.Finish.Known() || len(got.Help) != 0 {
		t.Errorf("without a job: %+v", got)
	}
	pos := f.mustSubmit("pos").ID
	f.mustForesee()
	got := f.mustFresh("pos")
	now := f.clock.Now()
	if want := now.Add(10*time.Hour + 6*time.Minute); got.Status != service.ExpectedLate || !got.Finish.P50.Equal(want) || !got.DueBy.Equal(now.Add(9*time.Hour)) {
		t.Errorf("status %s, finish %v, due %v", got.Status, got.Finish, got.DueBy)
	}
	if len(got.InTheWay) != 2 || got.InTheWay[0].Class != "heavy" || got.InTheWay[0].Running[0] != heavy || got.InTheWay[1].Class != "weather" || got.InTheWay[1].Queued != 1 {
		t.Errorf("in the way: %+v", got.InTheWay)
	}
	var actions []string
	for _, h := range got.Help {
		actions = append(actions, h.Action)
	}
	if strings.Join(actions, " ") != "run_next verify cancel" || !strings.Contains(got.Help[0].Sentence, pos) || got.Help[1].Command != "lanegate verify pos --alongside heavy --copies 1" {
		t.Errorf("help: %+v", got.Help)
	}
	for _, part := range []string{"pos will be late", "in 9h0m0s", "heavy (runs for 0s)", "weather (1 queued before it)"} {
		if !strings.Contains(got.Sentence, part) {
			t.Errorf("%q lacks %q", got.Sentence, part)
		}
	}
	job, err := f.svc.Job(t.Context(), pos)
	if err != nil || !job.Waiting.Expected.P50.Equal(now.Add(10*time.Hour+time.Minute)) {
		t.Errorf("pos starts %+v, %v", job.Waiting.Expected, err)
	}
	serial, err := f.svc.Lane(t.Context(), lanegate.LaneSerial)
	if err != nil || !serial.Empty.P50.Equal(now.Add(10*time.Hour+6*time.Minute)) {
		t.Errorf("serial is empty %+v, %v", serial.Empty, err)
	}
	if n := f.metric("lanegate_class_expected_late", "class=pos"); n != 1 {
		t.Errorf("the metric is %v", n)
	}

	// Once for each miss: when it is foretold, and when it has come.
	f.mustForesee()
	f.clock.advance(9*time.Hour + time.Minute)
	f.mustForesee()
	f.mustForesee()
	if a, b := f.logs.count("class is expected to be late"), f.logs.count("class is late"); a != 1 || b != 1 {
		t.Errorf("announced %d and %d times", a, b)
	}
	if got := f.mustFresh("pos"); got.Status != service.Late || !strings.Contains(got.Sentence, "1m0s ago") {
		t.Errorf("after it was due: %s, %s", got.Status, got.Sentence)
	}
}

// Where nobody can say when heavy ends, the miss is certain at the latest when even
// a run that started now would end too late.
func TestAMissIsForetoldWithoutAHistory(t *testing.T) {
	f := newFixture(t)
	pos := execSpec()
	pos.FreshWithin = lanegate.Duration(26 * time.Hour)
	f.mustPut("pos", pos)
	f.mustPut("heavy", execSpec())
	f.mustWorker("w", 1)
	for range 5 {
		f.mustRun("pos", 30*time.Minute)
	}
	heavy := f.mustSubmit("heavy").ID
	f.mustStart("w", 1, heavy)
	f.mustSubmit("pos")
	f.clock.advance(25*time.Hour + 20*time.Minute)
	f.mustForesee()
	if got := f.mustFresh("pos"); got.Status != service.Fresh || !strings.Contains(got.Finish.Why, "heavy has 0 good runs") {
		t.Errorf("while there is time: %s, %+v", got.Status, got.Finish)
	}
	f.clock.advance(15 * time.Minute)
	f.mustForesee()
	if got := f.mustFresh("pos"); got.Status != service.ExpectedLate || got.InTheWay[0].Class != "heavy" {
		t.Errorf("25 min before it is due: %s, %+v", got.Status, got.InTheWay)
	}
}

// A class for which nothing was submitted, and a paused one.
func TestSilenceIsForetold(t *testing.T) {
	f := nightly(t)
	f.clock.advance(25*time.Hour + 57*time.Minute)
	f.mustForesee()
	got := f.mustFresh("pos")
	if got.Status != service.ExpectedLate || len(got.Help) != 1 || got.Help[0].Action != "submit" || got.Help[0].Command != "lanegate submit pos" {
		t.Errorf("nothing submitted: %s, %+v", got.Status, got.Help)
	}
	if _, err := f.svc.PauseClass(t.Context(), "pos", admin); err != nil {
		t.Fatal(err)
	}
	f.mustSubmit("pos")
	f.mustForesee()
	got = f.mustFresh("pos")
	if got.Status != service.ExpectedLate || len(got.Help) == 0 || got.Help[0].Action != "resume" || !strings.Contains(got.Finish.Why, "paused") {
		t.Errorf("paused: %s, %+v, %+v", got.Status, got.Help, got.Finish)
	}
}

// A job that has not been looked at says so, and so do those far behind.
func TestOnlyTheFirstJobsAreForetold(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	f.mustWorker("w", 1)
	for range 5 {
		f.mustRun("c", time.Second)
	}
	var first, last string
	for range 3 {
		var subs []service.Submission
		for range 700 {
			subs = append(subs, service.Submission{Class: "c"})
		}
		list, err := f.svc.SubmitBatch(t.Context(), "cron", subs)
		f.must(err)
		if first == "" {
			first = list[0].Job.ID
		}
		last = list[len(list)-1].Job.ID
	}
	if job, err := f.svc.Job(t.Context(), first); err != nil || !strings.Contains(job.Waiting.Expected.Why, "not foretold yet") {
		t.Errorf("before any look: %+v, %v", job.Waiting.Expected, err)
	}
	f.mustForesee()
	if job, err := f.svc.Job(t.Context(), first); err != nil || !job.Waiting.Expected.P50.Equal(f.clock.Now()) {
		t.Errorf("the first starts %+v, %v", job.Waiting.Expected, err)
	}
	if job, err := f.svc.Job(t.Context(), last); err != nil || !strings.Contains(job.Waiting.Expected.Why, "no more than 2000 are foretold") {
		t.Errorf("the last starts %+v, %v", job.Waiting.Expected, err)
	}
	if l, err := f.svc.Lane(t.Context(), lanegate.LaneSerial); err != nil || !strings.Contains(l.Empty.Why, "only the first 2000") {
		t.Errorf("serial is empty %+v, %v", l.Empty, err)
	}
}

// A class that never succeeded: silence since its registration is late; its first
// job then has the whole of fresh_within, whatever silence went before; and when
// that is over without a success, or it fails, the class is late again.
func TestAFirstSuccessCountsFromTheFirstJob(t *testing.T) {
	f := newFixture(t)
	pos := execSpec()
	pos.FreshWithin = lanegate.Duration(26 * time.Hour)
	f.mustPut("pos", pos)
	f.mustPut("heavy", execSpec())
	f.mustWorker("w", 1)
	registered := f.clock.Now()
	want := func(when string, status service.FreshStatus, from service.FreshFrom, due time.Time, sentence string) {
		t.Helper()
		f.mustForesee()
		got := f.mustFresh("pos")
		if got.Status != status || got.From != from || !got.DueBy.Equal(due) || !strings.Contains(got.Sentence, sentence) {
			t.Errorf("%s: %s from %s, due %s, %q; want %s from %s, due %s, %q", when, got.Status, got.From, got.DueBy, got.Sentence, status, from, due, sentence)
		}
		stale := 0.0
		if status == service.Late {
			stale = 1
		}
		if n := f.metric("lanegate_class_stale", "class=pos"); n != stale {
			t.Errorf("%s: lanegate_class_stale is %v", when, n)
		}
	}
	want("just registered", service.Fresh, service.FromRegistration, registered.Add(26*time.Hour), "fresh until")
	f.clock.advance(30 * time.Hour)
	want("30 h of silence", service.Late, service.FromRegistration, registered.Add(26*time.Hour), "its first success was due by")

	heavy := f.mustSubmit("heavy").ID
	fences := f.mustStart("w", 1, heavy)
	job := f.mustSubmit("pos").ID
	submitted := f.clock.Now()
	due := submitted.Add(26 * time.Hour)
	want("the first job waits", service.Fresh, service.FromSubmission, due, "fresh until")
	f.clock.advance(25 * time.Hour)
	want("25 h later", service.Fresh, service.FromSubmission, due, "fresh until")
	if n := f.logs.count("class is late"); n != 1 {
		t.Errorf("announced %d times, want once for the silence", n)
	}
	f.clock.advance(2 * time.Hour)
	want("27 h later", service.Late, service.FromSubmission, due, "its first success was due by")
	f.mustEnd(fences[heavy], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: 27 * time.Hour})
	fences = f.mustStart("w", 1, job)
	f.mustEnd(fences[job], lanegate.Ending{Outcome: lanegate.Failed})
	f.mustSubmit("pos")
	want("the first failed, the second waits", service.Late, service.FromRegistration, registered.Add(26*time.Hour), "its first success was due by")
}

// A job for later is late no sooner than fresh_within after its time; and a class that
// was there long before it was to be fresh, without a job, is not late at once.
func TestAFirstSuccessCountsFromNoSoonerThanItCould(t *testing.T) {
	f := newFixture(t)
	pos := execSpec()
	f.mustPut("pos", pos)
	f.clock.advance(100 * time.Hour)
	pos.FreshWithin = lanegate.Duration(26 * time.Hour)
	f.mustPut("pos", pos)
	f.mustForesee()
	if got := f.mustFresh("pos"); got.Status != service.Fresh || !got.DueBy.Equal(f.clock.Now().Add(26*time.Hour)) {
		t.Errorf("fresh_within just set: %s, due %s", got.Status, got.DueBy)
	}
	at := f.clock.Now().Add(50 * time.Hour)
	f.mustSubmit("pos", func(s *service.Submission) { s.RunAt = &at })
	f.clock.advance(60 * time.Hour)
	f.mustForesee()
	if got := f.mustFresh("pos"); got.Status != service.Fresh || got.From != service.FromSubmission || !got.Since.Equal(at) {
		t.Errorf("10 h after its time: %s from %s at %s", got.Status, got.From, got.Since)
	}
}

// A lane with nothing in it says that it is empty, and one with a job for later what waits.
func TestAnEmptyLaneSaysSo(t *testing.T) {
	const already = "empty already: nothing is due or runs in it"
	for _, tt := range []struct {
		name   string
		submit func(f *fixture)
		known  bool
		why    string
	}{
		{"nothing in it", func(*fixture) {}, true, already},
		{"a job for later", func(f *fixture) {
			at := f.clock.Now().Add(time.Hour)
			f.mustSubmit("c", func(s *service.Submission) { s.RunAt = &at })
		}, true, already + "; 1 queued job not due yet"},
		{"a due job that the remembered counts don't know yet", func(f *fixture) {
			_, err := f.svc.Lanes(f.t.Context())
			f.must(err)
			f.mustSubmit("c")
		}, false, "not foretold yet; ask again in a few seconds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.mustPut("c", execSpec())
			tt.submit(f)
			lanes, err := f.svc.Lanes(t.Context())
			f.must(err)
			for _, l := range lanes {
				known, why := tt.known, tt.why
				if l.Name != lanegate.LaneSerial {
					known, why = true, already
				}
				if l.Empty.Known() != known || l.Empty.Why != why || known && !l.Empty.P50.Equal(f.clock.Now()) {
					t.Errorf("%s is empty %+v, want known %v, %q", l.Name, l.Empty, known, why)
				}
			}
		})
	}
}

// While nobody looks, and no class has to be fresh, nothing is foretold.
func TestNothingIsForetoldForNobody(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	job := f.mustSubmit("c").ID
	f.must(f.svc.Foresee(t.Context()))
	view, err := f.svc.Freshness(t.Context())
	if f.must(err); !view.ForetoldAt.IsZero() {
		t.Errorf("foretold at %v for nobody", view.ForetoldAt)
	}
	f.must(f.svc.Foresee(t.Context()))
	if _, err := f.svc.Job(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if view, err = f.svc.Freshness(t.Context()); err != nil || view.ForetoldAt.IsZero() {
		t.Errorf("not foretold for somebody: %+v, %v", view, err)
	}
}

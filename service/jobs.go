package service

import (
	"context"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/runlog"
)

const (
	// AheadCounted is where counting the jobs ahead of one ends: that there are more is
	// all that is said then, so that a look costs the same however long the line is.
	AheadCounted = 2000
	// aheadShown is how many of the jobs ahead are named.
	aheadShown = 20
)

// JobView is a job as people see it: with its bytes where asked for, and, while
// it is queued, with what it waits on.
type JobView struct {
	JobDetail
	Waiting *Waiting // nil unless queued
}

// Waiting explains a queued job.
type Waiting struct {
	// Route is the lane the job would start in now.
	Route lanegate.Route
	// On lists every reason that holds now; empty means it is about to start.
	On    []WaitingOn
	Ahead Ahead
	// Expected is when it is expected to start, or why nobody can say.
	Expected runlog.Foretold
}

// WaitHandedOver is the reason of a job that is being sent to somebody's queue, and
// stays in line until that is confirmed or given up; see HandOver.
const WaitHandedOver = "handed_over"

// WaitingOn is one reason for a wait.
type WaitingOn struct {
	Reason string     // e.g. "lane_full", "resource:db", "not_due", WaitHandedOver
	Jobs   []string   // that hold what the job needs
	Until  *time.Time // for not_due
}

// JobPage is one page of a list; Next is the Before of the next page, "" at the end.
// A page before the end may have fewer items than asked for, or none.
type JobPage struct {
	Items []JobView
	Next  string
}

// Job returns one job with payload, result and, while queued, its wait explained.
func (s *Service) Job(ctx context.Context, id string) (view JobView, err error) {
	err = s.store.Look(ctx, func(ctx context.Context) error {
		view, err = s.job(ctx, id)
		return err
	})
	return view, err
}

func (s *Service) job(ctx context.Context, id string) (JobView, error) {
	detail, err := s.store.Job(ctx, id)
	if err != nil {
		return JobView{}, err
	}
	view := JobView{JobDetail: detail}
	if detail.State != lanegate.StateQueued {
		return view, nil
	}
	ex, err := s.explainer(ctx)
	if err != nil {
		return JobView{}, err
	}
	waits, err := ex.explain(ctx, []lanegate.Job{detail.Job})
	if err != nil {
		return JobView{}, err
	}
	view.Waiting = waits[0]
	return view, nil
}

// defaultPage is how many items a list has when nobody says.
const defaultPage = 50

// Jobs lists jobs, newest first, without payloads and results.
func (s *Service) Jobs(ctx context.Context, f JobFilter) (page JobPage, err error) {
	if f.Limit <= 0 {
		f.Limit = defaultPage
	}
	err = s.store.Look(ctx, func(ctx context.Context) error {
		page, err = s.jobs(ctx, f)
		return err
	})
	return page, err
}

func (s *Service) jobs(ctx context.Context, f JobFilter) (JobPage, error) {
	jobs, next, err := s.store.Jobs(ctx, f)
	if err != nil {
		return JobPage{}, err
	}
	page := JobPage{Next: next}
	waits := make([]*Waiting, len(jobs))
	if slices.ContainsFunc(jobs, func(j lanegate.Job) bool { return j.State == lanegate.StateQueued }) {
		ex, err := s.explainer(ctx)
		if err != nil {
			return JobPage{}, err
		}
		if waits, err = ex.explain(ctx, jobs); err != nil {
			return JobPage{}, err
		}
	}
	for i, j := range jobs {
		page.Items = append(page.Items, JobView{JobDetail: JobDetail{Job: j}, Waiting: waits[i]})
	}
	return page, nil
}

// Attempts lists a job's attempts in order.
func (s *Service) Attempts(ctx context.Context, job string) ([]lanegate.Attempt, error) {
	return s.store.Attempts(ctx, job)
}

// Output returns what attempt n printed, head and tail; n 0 means the last one.
func (s *Service) Output(ctx context.Context, job string, n int) (lanegate.Output, error) {
	if n == 0 {
		j, err := s.store.Job(ctx, job)
		if err != nil {
			return lanegate.Output{}, err
		}
		if n = j.Attempts; n == 0 {
			return lanegate.Output{}, nil
		}
	}
	return s.store.Output(ctx, job, n)
}

// waitPoll is how often a waiter looks by itself, for ends that another process wrote.
const waitPoll = time.Second

// Wait returns the job when it has ended or when timeout is over; its state tells which.
func (s *Service) Wait(ctx context.Context, id string, timeout time.Duration) (JobView, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		ended, stop := s.hub.wait(id) // before the look, so that no end falls between
		job, err := s.store.Job(ctx, id)
		if err != nil || job.State.Final() {
			stop()
			return JobView{JobDetail: job}, err
		}
		poll := time.NewTimer(waitPoll)
		select {
		case <-ended:
		case <-poll.C:
		case <-deadline.C:
			stop()
			poll.Stop()
			return s.Job(ctx, id)
		case <-ctx.Done():
			stop()
			poll.Stop()
			return JobView{}, ctx.Err()
		}
		stop()
		poll.Stop()
	}
}

// Cancel ends a queued job at once and asks a running one to end.
func (s *Service) Cancel(ctx context.Context, id, actor string) (JobView, error) {
	job, err := s.store.Cancel(ctx, id, actor)
	if err != nil {
		return JobView{}, err
	}
	if job.State.Final() {
		s.hub.finished(id)
		s.ring(s.laneOf(ctx, job.Class)) // what was kept for it, others can have
	} else {
		s.nudge() // other processes' workers learn of it by their next beat
	}
	s.log.InfoContext(ctx, "job cancelled", "job", id, "actor", actor, "state", job.State)
	return s.Job(ctx, id)
}

// Retry puts a failed job back in its line with one more permitted failure.
func (s *Service) Retry(ctx context.Context, id, actor string) (JobView, error) {
	job, err := s.store.Retry(ctx, id, actor)
	if err != nil {
		return JobView{}, err
	}
	s.ring(s.laneOf(ctx, job.Class))
	s.log.InfoContext(ctx, "job retried", "job", id, "actor", actor)
	return s.Job(ctx, id)
}

// RunNext moves a queued job before all others of its class.
func (s *Service) RunNext(ctx context.Context, id, actor string) (JobView, error) {
	job, err := s.store.RunNext(ctx, id, actor)
	if err != nil {
		return JobView{}, err
	}
	s.ring(s.laneOf(ctx, job.Class))
	s.log.InfoContext(ctx, "job moved to the front", "job", id, "class", job.Class, "actor", actor)
	return s.Job(ctx, id)
}

// explainer answers "what does it wait on" for several jobs from one snapshot.
type explainer struct {
	store    Store
	in       admission.Input
	decision admission.Decision
	classes  map[string]*lanegate.Class
	heads    map[string]admission.Due  // class → its head
	routes   map[string]lanegate.Route // class → route now
	byLane   map[string][]string       // lane → classes routed there now that have due jobs
	foretold *foresight
	far      *farPlaces
}

func (s *Service) explainer(ctx context.Context) (*explainer, error) {
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	in.Asking = ""
	ex := &explainer{
		store: s.store, in: in, decision: admission.Plan(in), foretold: s.oracle.look(), far: &s.far,
		classes: map[string]*lanegate.Class{}, heads: map[string]admission.Due{},
		routes: map[string]lanegate.Route{}, byLane: map[string][]string{},
	}
	for _, d := range in.Due {
		if _, ok := ex.heads[d.Class]; !ok {
			ex.heads[d.Class] = d
		}
	}
	for i, c := range in.Classes {
		route, _ := admission.RouteOf(c, in.Lanes)
		ex.classes[c.ID], ex.routes[c.ID] = &in.Classes[i], route
		if _, due := ex.heads[c.ID]; due {
			ex.byLane[route.Lane] = append(ex.byLane[route.Lane], c.ID)
		}
	}
	return ex, nil
}

// explain says what each queued job among jobs waits on; the others stay nil. A
// job that changed since the snapshot may get an empty answer; the next look
// sees it whole.
func (ex *explainer) explain(ctx context.Context, jobs []lanegate.Job) ([]*Waiting, error) {
	waits := make([]*Waiting, len(jobs))
	byLane := map[string][]int{}
	for i, job := range jobs {
		if job.State != lanegate.StateQueued {
			continue
		}
		waits[i] = ex.reasons(job)
		waits[i].Expected = ex.foretold.start(job.ID, ex.in.Now)
		if lane := waits[i].Route.Lane; lane != "" { // "": its class was deleted, or is newer than the snapshot
			byLane[lane] = append(byLane[lane], i)
		}
	}
	for lane, indexes := range byLane {
		asked := make([]lanegate.Job, len(indexes))
		for k, i := range indexes {
			asked[k] = jobs[i]
		}
		ahead, err := ex.ahead(ctx, lane, asked)
		if err != nil {
			return nil, err
		}
		for k, i := range indexes {
			waits[i].Ahead = ahead[k]
		}
	}
	return waits, nil
}

// reasons says what one queued job waits on, by the planner's decision.
func (ex *explainer) reasons(job lanegate.Job) *Waiting {
	w := &Waiting{Route: ex.routes[job.Class]}
	switch head := ex.heads[job.Class]; {
	case job.HandedOver():
		w.On = append(w.On, WaitingOn{Reason: WaitHandedOver})
	case job.ReadyAt.After(ex.in.Now):
		until := job.ReadyAt
		w.On = append(w.On, WaitingOn{Reason: string(admission.NotDue), Until: &until})
	case head.Job == job.ID:
		if wait, ok := ex.decision.WaitOf(job.Class); ok && wait.Job == job.ID {
			for _, r := range wait.Reasons {
				w.On = append(w.On, WaitingOn{Reason: r.String(), Jobs: r.Jobs})
			}
		}
	case head.Job != "" && admission.Before(head, placeOf(job)):
		w.On = append(w.On, WaitingOn{Reason: string(admission.EarlierOf), Jobs: []string{head.Job}})
	}
	return w
}

// placeOf is a job's position in its class's line.
func placeOf(j lanegate.Job) admission.Due {
	d := admission.Due{Job: j.ID, Class: j.Class, PlaceAt: j.PlaceAt, PlaceID: j.PlaceID}
	if j.FirstAt != nil {
		d.FirstAt = *j.FirstAt
	}
	return d
}

package api

import (
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// visibleJob returns the job named by the path if the caller may see it.
func (a *API) visibleJob(r *http.Request) (service.JobView, error) {
	id, err := idOf(r)
	if err != nil {
		return service.JobView{}, err
	}
	v, err := a.svc.Job(r.Context(), id)
	if err != nil {
		return v, err
	}
	return v, callerOf(r.Context()).maySee(v.Job)
}

func idOf(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	if !lanegate.ValidID(id) {
		return "", lanegate.ErrJobNotFound.With("%q is not a job id: ids look like 0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d.", id)
	}
	return id, nil
}

// getJob shows a job; while it is queued, with what it waits on.
//
//	@Summary	Get a job
//	@ID			get-job
//	@Tags		jobs
//	@Produce	json
//	@Param		id	path		string	true	"Job id"
//	@Success	200	{object}	jobResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/jobs/{id} [get]
//	@Security	bearer
func (a *API) getJob(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	v, err := a.visibleJob(r)
	if err != nil {
		return err
	}
	return encodeJob(w, http.StatusOK, newJobResponse(v))
}

// listJobs lists jobs, newest first.
//
//	@Summary	List jobs
//	@Description	A page looks at a bounded number of jobs, however many there are. Where few of them pass the filter it may be short, or empty, and yet name a next one: the list ends where next_cursor is absent.
//	@ID			list-jobs
//	@Tags		jobs
//	@Produce	json
//	@Param		class			query	[]string	false	"Job classes"	collectionFormat(multi)
//	@Param		lane			query	string		false	"Lane"
//	@Param		state			query	[]string	false	"States"	collectionFormat(multi)
//	@Param		submitted_from	query	string		false	"RFC 3339 time, inclusive"
//	@Param		submitted_to	query	string		false	"RFC 3339 time, exclusive"
//	@Param		verification	query	string		false	"true: include jobs made up by verification runs"
//	@Param		limit			query	int			false	"1 to 500, default 50"
//	@Param		cursor			query	string		false	"next_cursor of the page before"
//	@Success	200	{object}	page[jobResponse]
//	@Failure	400,401,403,503	{object}	problem
//	@Router		/jobs [get]
//	@Security	bearer
func (a *API) listJobs(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	f, err := jobFilter(r)
	if err != nil {
		return err
	}
	res, err := a.svc.Jobs(r.Context(), f)
	if err != nil {
		return err
	}
	out := page[jobResponse]{Items: []jobResponse{}}
	for _, v := range res.Items {
		out.Items = append(out.Items, newJobResponse(v))
	}
	if res.Next != "" {
		out.NextCursor = sealCursor(res.Next)
	}
	return encode(w, http.StatusOK, out)
}

func jobFilter(r *http.Request) (service.JobFilter, error) {
	p := query(r)
	c := callerOf(r.Context())
	f := service.JobFilter{
		Classes: p.all("class"), Lane: p.str("lane"), SubmittedFrom: p.time("submitted_from"), SubmittedTo: p.time("submitted_to"),
		Verification: p.flag("verification", "true"), Limit: p.limit(), Before: openCursor(p, lanegate.ValidID),
	}
	for _, s := range p.all("state") {
		if !validState(s) {
			p.bad("state", "%q is not a state; states are queued, running, succeeded, failed, cancelled, skipped", s)
		}
		f.States = append(f.States, lanegate.State(s))
	}
	for _, class := range f.Classes {
		if !lanegate.ValidSlug(class) {
			p.bad("class", "%q is not a class name", class)
		}
	}
	if c.Role == RoleSubmit || c.Role == RoleRun {
		f.Client = c.Name
	}
	if len(c.Classes) > 0 {
		if f.Classes == nil {
			f.Classes = c.Classes
		}
		for _, class := range f.Classes {
			if err := c.mayUse(class); err != nil {
				return f, err
			}
		}
	}
	return f, p.done()
}

func validState(s string) bool {
	for _, known := range lanegate.States {
		if s == string(known) {
			return true
		}
	}
	return false
}

// Limits of the wait endpoint.
const (
	defaultWait = 30 * time.Second
	maxWait     = 5 * time.Minute
)

// waitJob answers when the job has ended or the timeout is over; its state tells which.
//
//	@Summary	Wait for a job's end
//	@ID			wait-job
//	@Tags		jobs
//	@Produce	json
//	@Param		id		path		string	true	"Job id"
//	@Param		timeout	query		string	false	"Go duration, default 30s, at most 5m"
//	@Success	200		{object}	jobResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/jobs/{id}/wait [get]
//	@Security	bearer
func (a *API) waitJob(w http.ResponseWriter, r *http.Request) error {
	p := query(r)
	timeout := p.duration("timeout", defaultWait, maxWait)
	if err := p.done(); err != nil {
		return err
	}
	v, err := a.visibleJob(r)
	if err != nil {
		return err
	}
	a.setDeadlines(w, r, timeout+handlerTimeout)
	r, cancel := timed(r, timeout+handlerTimeout)
	defer cancel()
	if v, err = a.svc.Wait(r.Context(), v.ID, timeout); err != nil {
		return err
	}
	return encodeJob(w, http.StatusOK, newJobResponse(v))
}

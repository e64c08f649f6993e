package api

import (
	"net/http"

	"github.com/lanegate/lanegate/service"
)

// act does one of people's actions on a job.
func (a *API) act(w http.ResponseWriter, r *http.Request, do func(r *http.Request, id, actor string) (service.JobView, error)) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	if err := a.noBody(w, r); err != nil {
		return err
	}
	v, err := a.visibleJob(r)
	if err != nil {
		return err
	}
	if v, err = do(r, v.ID, callerOf(r.Context()).Name); err != nil {
		return err
	}
	return encodeJob(w, http.StatusOK, newJobResponse(v))
}

// cancelJob ends a queued job at once and asks a running one to end.
//
//	@Summary	Cancel a job
//	@ID			cancel-job
//	@Tags		jobs
//	@Produce	json
//	@Param		id	path		string	true	"Job id"
//	@Success	200	{object}	jobResponse
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/jobs/{id}/cancel [post]
//	@Security	bearer
func (a *API) cancelJob(w http.ResponseWriter, r *http.Request) error {
	return a.act(w, r, func(r *http.Request, id, actor string) (service.JobView, error) {
		return a.svc.Cancel(r.Context(), id, actor)
	})
}

// retryJob puts a failed job back in its line with one more permitted failure.
//
//	@Summary	Retry a failed job
//	@ID			retry-job
//	@Tags		jobs
//	@Produce	json
//	@Param		id	path		string	true	"Job id"
//	@Success	200	{object}	jobResponse
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/jobs/{id}/retry [post]
//	@Security	bearer
func (a *API) retryJob(w http.ResponseWriter, r *http.Request) error {
	return a.act(w, r, func(r *http.Request, id, actor string) (service.JobView, error) {
		return a.svc.Retry(r.Context(), id, actor)
	})
}

// runNext moves a queued job before all others of its class; it is audited.
//
//	@Summary	Run a job next
//	@ID			run-next
//	@Tags		jobs
//	@Produce	json
//	@Param		id	path		string	true	"Job id"
//	@Success	200	{object}	jobResponse
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/jobs/{id}/run-next [post]
//	@Security	bearer
func (a *API) runNext(w http.ResponseWriter, r *http.Request) error {
	return a.act(w, r, func(r *http.Request, id, actor string) (service.JobView, error) {
		return a.svc.RunNext(r.Context(), id, actor)
	})
}

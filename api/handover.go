package api

import (
	"fmt"
	"net/http"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// handOverRequest asks for queued jobs as messages for a queue.
type handOverRequest struct {
	// To is the queue that the messages go to, by name or URL.
	To string `json:"to" example:"https://sqs.eu-west-1.amazonaws.com/123456789012/orders"`
	// Class and Lane choose jobs; all when left out.
	Class string `json:"class,omitempty"`
	Lane  string `json:"lane,omitempty"`
	// Limit is how many are taken at most, 10 when left out.
	Limit int `json:"limit,omitempty" example:"10"`
	// Skip names jobs that stay where they are.
	Skip []string `json:"skip,omitempty"`
	// DryRun counts, and takes nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// handOverResponse has jobs that can't start any more until each is confirmed or
// undone.
type handOverResponse struct {
	Jobs []departureResponse `json:"jobs"`
	// Left are jobs that no message can carry.
	Left   []remainingResponse   `json:"left"`
	Counts handOverCountResponse `json:"counts"`
}

type departureResponse struct {
	ID      string          `json:"id"`
	Class   string          `json:"class"`
	Message messageResponse `json:"message"`
}

// messageResponse is a message as SQS takes it.
type messageResponse struct {
	Body       string                               `json:"body"`
	Attributes map[string]lanegate.MessageAttribute `json:"attributes"`
	// Group and Dedup are its MessageGroupId and MessageDeduplicationId, for a FIFO queue.
	Group string `json:"group"`
	Dedup string `json:"dedup"`
}

type remainingResponse struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

type handOverCountResponse struct {
	Queued  int `json:"queued"`  // can be taken
	Taken   int `json:"taken"`   // for this queue, neither confirmed nor undone
	Running int `json:"running"` // are left alone
	Pinned  int `json:"pinned"`  // only one agent may run them; are left alone
}

// handOverJobs names taken jobs.
type handOverJobs struct {
	To   string   `json:"to" example:"https://sqs.eu-west-1.amazonaws.com/123456789012/orders"`
	Jobs []string `json:"jobs,omitempty"`
}

type handOverChanged struct {
	Changed int `json:"changed"`
}

// defaultHandOver is how many jobs are taken when nobody says: what one call to SQS sends.
const defaultHandOver = 10

// handOver takes queued jobs out of their lines, to be sent to a queue.
//
//	@Summary		Take queued jobs out, as messages
//	@Description	For lanegate drain. A taken job stays queued and can't start (waiting_on: handed_over) until it is confirmed, which cancels it, or undone. Jobs that an earlier call took for the same queue come first. Each message carries an idempotency key: one that is sent twice is one job.
//	@ID				hand-over
//	@Tags			jobs
//	@Accept			json
//	@Produce		json
//	@Param			request	body		handOverRequest	true	"Which jobs, and where they go"
//	@Success		200		{object}	handOverResponse
//	@Failure		400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router			/jobs/hand-over [post]
//	@Security		bearer
func (a *API) handOver(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	q, err := decode[handOverRequest](a, w, r, 128<<10)
	if err != nil {
		return err
	}
	h := service.HandOver{To: q.To, Class: q.Class, Lane: q.Lane, Limit: q.Limit, Skip: q.Skip}
	if h.Limit == 0 {
		h.Limit = defaultHandOver
	}
	out := handOverResponse{Jobs: []departureResponse{}, Left: []remainingResponse{}}
	if !q.DryRun {
		jobs, left, err := a.svc.HandOver(r.Context(), h)
		if err != nil {
			return err
		}
		for _, d := range jobs {
			m := d.Message
			out.Jobs = append(out.Jobs, departureResponse{ID: d.Job.ID, Class: d.Job.Class, Message: messageResponse{m.Body, m.Attributes, m.Group, m.Dedup}})
		}
		for _, l := range left {
			out.Left = append(out.Left, remainingResponse{l.Job, l.Why})
		}
	}
	n, err := a.svc.CountHandOver(r.Context(), h)
	if err != nil {
		return err
	}
	out.Counts = handOverCountResponse(n)
	return encode(w, http.StatusOK, out)
}

// confirmHandOver ends jobs whose messages are in the queue.
//
//	@Summary		Confirm that jobs were sent
//	@Description	Cancels each job that was taken for the queue, with where it went as its reason. May be repeated.
//	@ID				confirm-hand-over
//	@Tags			jobs
//	@Accept			json
//	@Produce		json
//	@Param			request	body		handOverJobs	true	"The jobs"
//	@Success		200		{object}	handOverChanged
//	@Failure		400,401,403,413,415,422,503	{object}	problem
//	@Router			/jobs/hand-over/confirm [post]
//	@Security		bearer
func (a *API) confirmHandOver(w http.ResponseWriter, r *http.Request) error {
	return a.settleHandOver(w, r, true, func(r *http.Request, q handOverJobs) (int, error) {
		return a.svc.ConfirmHandOver(r.Context(), q.To, q.Jobs, callerOf(r.Context()).Name)
	})
}

// undoHandOver puts taken jobs back to their places.
//
//	@Summary		Put taken jobs back
//	@Description	Each job that was taken for the queue returns to its place; without jobs, all of them. One whose message is in the queue would then run twice.
//	@ID				undo-hand-over
//	@Tags			jobs
//	@Accept			json
//	@Produce		json
//	@Param			request	body		handOverJobs	true	"The jobs"
//	@Success		200		{object}	handOverChanged
//	@Failure		400,401,403,413,415,422,503	{object}	problem
//	@Router			/jobs/hand-over/undo [post]
//	@Security		bearer
func (a *API) undoHandOver(w http.ResponseWriter, r *http.Request) error {
	return a.settleHandOver(w, r, false, func(r *http.Request, q handOverJobs) (int, error) {
		return a.svc.HandBack(r.Context(), q.To, q.Jobs)
	})
}

func (a *API) settleHandOver(w http.ResponseWriter, r *http.Request, named bool, do func(r *http.Request, q handOverJobs) (int, error)) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	q, err := decode[handOverJobs](a, w, r, 128<<10)
	if err != nil {
		return err
	}
	var errs []lanegate.FieldError
	if q.To == "" {
		errs = append(errs, lanegate.FieldError{Pointer: "/to", Detail: "is required: the queue, as it was named when the jobs were taken"})
	}
	if named && len(q.Jobs) == 0 || len(q.Jobs) > service.MaxHandOverSkip {
		errs = append(errs, lanegate.FieldError{Pointer: "/jobs", Detail: fmt.Sprintf("must name 1 to %d jobs", service.MaxHandOverSkip)})
	}
	if err := lanegate.Invalid(errs); err != nil {
		return err
	}
	n, err := do(r, q)
	if err != nil {
		return err
	}
	return encode(w, http.StatusOK, handOverChanged{n})
}

package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"encoding/base64"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// jobResponse is a job as clients see it.
type jobResponse struct {
	ID             string            `json:"id" example:"0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d"`
	Class          string            `json:"class" example:"pos-sales"`
	State          string            `json:"state" enums:"queued,running,succeeded,failed,cancelled,skipped"`
	Reason         string            `json:"reason,omitempty"`
	Client         string            `json:"client" example:"cron"`
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	LogicalDate    string            `json:"logical_date,omitempty"`
	SubmittedAt    time.Time         `json:"submitted_at" format:"date-time"`
	RunAt          *time.Time        `json:"run_at,omitempty" format:"date-time"`
	ReadyAt        time.Time         `json:"ready_at" format:"date-time"`
	StartedAt      *time.Time        `json:"started_at,omitempty" format:"date-time"`
	FinishedAt     *time.Time        `json:"finished_at,omitempty" format:"date-time"`
	Attempts       int               `json:"attempts"`
	Failures       int               `json:"failures"`
	Place          *placeResponse    `json:"place,omitempty"`
	Route          *lanegate.Route   `json:"route,omitempty"`
	WaitingOn      []waitingResponse `json:"waiting_on,omitzero"`
	Ahead          *aheadResponse    `json:"ahead,omitempty"`
	BlockedBy      string            `json:"blocked_by,omitempty"`
	CancelRequest  bool              `json:"cancel_requested,omitzero"`
	Payload        jsontext.Value    `json:"payload,omitzero" swaggertype:"object"`
	Result         jsontext.Value    `json:"result,omitzero" swaggertype:"object"`
	Links          map[string]string `json:"links"`
}

// placeResponse is a job's position in its class's line.
type placeResponse struct {
	At time.Time `json:"at" format:"date-time"`
	ID string    `json:"id"`
	// First is when a person moved the job before all others.
	First *time.Time `json:"first_at,omitempty" format:"date-time"`
}

// waitingResponse is one reason for a wait and the jobs that hold what is needed.
type waitingResponse struct {
	Reason string     `json:"reason" example:"resource:db"`
	Jobs   []string   `json:"jobs"`
	Until  *time.Time `json:"until,omitempty" format:"date-time"`
}

// aheadResponse counts the jobs that stand before this one in its lane.
type aheadResponse struct {
	Count int      `json:"count"`
	First []string `json:"first"`
}

// page is one page of a list; next_cursor is absent on the last one.
type page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
}

func newJobResponse(v service.JobView) jobResponse {
	j := v.Job
	r := jobResponse{
		ID: j.ID, Class: j.Class, State: string(j.State), Reason: j.Reason, Client: j.Client,
		IdempotencyKey: j.Key, LogicalDate: j.LogicalDate, SubmittedAt: j.SubmittedAt, RunAt: j.RunAt, ReadyAt: j.ReadyAt,
		StartedAt: j.StartedAt, FinishedAt: j.FinishedAt, Attempts: j.Attempts, Failures: j.Failures, Route: j.Route,
		BlockedBy: j.BlockedBy, CancelRequest: j.CancelRequested,
		Payload: jsontext.Value(v.Payload), Result: jsontext.Value(v.Result),
		Links: map[string]string{"self": "/jobs/" + j.ID, "wait": "/jobs/" + j.ID + "/wait", "output": "/jobs/" + j.ID + "/output"},
	}
	if j.State != lanegate.StateQueued {
		return r
	}
	r.Place = &placeResponse{At: j.PlaceAt, ID: j.PlaceID, First: j.FirstAt}
	r.Route = nil // a queued job has no lane of its own; where it would start now is in Waiting
	if w := v.Waiting; w != nil {
		if w.Route.Lane != "" {
			r.Route = &w.Route
		}
		r.WaitingOn = []waitingResponse{}
		for _, on := range w.On {
			r.WaitingOn = append(r.WaitingOn, waitingResponse{Reason: on.Reason, Jobs: on.Jobs, Until: on.Until})
		}
		r.Ahead = &aheadResponse{Count: w.Ahead.Count, First: w.Ahead.First}
	}
	return r
}

// encodeJob answers with a job. Payload and result are put in by hand: an encoder
// would write their white space and escapes anew, and the bytes that came in are
// the bytes that go out.
func encodeJob(w http.ResponseWriter, status int, doc jobResponse) error {
	payload, result := doc.Payload, doc.Result
	doc.Payload, doc.Result = nil, nil
	text, err := json.Marshal(doc, encodeOptions)
	if err != nil {
		return fmt.Errorf("encode job %s: %w", doc.ID, err)
	}
	text = bytes.TrimSuffix(text, []byte("}"))
	for _, raw := range []struct {
		name string
		text []byte
	}{{"payload", payload}, {"result", result}} {
		if raw.text != nil {
			text = fmt.Appendf(text, `,"%s":%s`, raw.name, raw.text)
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, "}\n"...)) // an error means that the client has left
	return nil
}

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
	if c.Role == RoleSubmit {
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

// Cursors are opaque to clients: what they hold may change.
func sealCursor(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("1:" + s)) }

// openCursor returns what a cursor of this list holds; valid judges it.
func openCursor(p *params, valid func(string) bool) string {
	v := p.str("cursor")
	if v == "" {
		return ""
	}
	b, err := base64.RawURLEncoding.DecodeString(v)
	s, ok := strings.CutPrefix(string(b), "1:")
	if err != nil || !ok || !valid(s) {
		p.bad("cursor", "is not one that this list gave out; take next_cursor from the page before")
		return ""
	}
	return s
}

// attemptResponse is one execution of a job.
type attemptResponse struct {
	Number          int               `json:"number"`
	Outcome         string            `json:"outcome,omitempty" enums:"succeeded,failed,timed_out,deferred,cancelled,interrupted,lost"`
	Lane            string            `json:"lane"`
	Route           lanegate.Route    `json:"route"`
	Units           lanegate.Units    `json:"units" swaggertype:"object,integer"`
	Fingerprint     string            `json:"fingerprint"`
	Worker          string            `json:"worker"`
	Verification    string            `json:"verification,omitempty"`
	ReadyAt         time.Time         `json:"ready_at" format:"date-time"`
	StartedAt       time.Time         `json:"started_at" format:"date-time"`
	EndedAt         *time.Time        `json:"ended_at,omitempty" format:"date-time"`
	Duration        lanegate.Duration `json:"duration,omitzero" swaggertype:"string" example:"12.5s"`
	Estimated       bool              `json:"estimated,omitzero"`
	Error           string            `json:"error,omitempty"`
	ExitCode        *int              `json:"exit_code,omitempty"`
	Signal          string            `json:"signal,omitempty" example:"SIGKILL"`
	Status          int               `json:"status,omitzero"`
	CancelRequested bool              `json:"cancel_requested,omitzero"`
}

// listAttempts lists a job's attempts, the first one first.
//
//	@Summary	List a job's attempts
//	@ID			list-attempts
//	@Tags		jobs
//	@Produce	json
//	@Param		id	path		string	true	"Job id"
//	@Success	200	{object}	page[attemptResponse]
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/jobs/{id}/attempts [get]
//	@Security	bearer
func (a *API) listAttempts(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	v, err := a.visibleJob(r)
	if err != nil {
		return err
	}
	list, err := a.svc.Attempts(r.Context(), v.ID)
	if err != nil {
		return err
	}
	out := page[attemptResponse]{Items: []attemptResponse{}}
	for _, t := range list {
		out.Items = append(out.Items, attemptResponse{
			Number: t.Number, Outcome: string(t.Outcome), Lane: t.Lane, Route: t.Route, Units: t.Units, Fingerprint: t.Fingerprint,
			Worker: t.Worker, Verification: t.Verification, ReadyAt: t.ReadyAt, StartedAt: t.StartedAt, EndedAt: t.EndedAt,
			Duration: lanegate.Duration(t.Duration), Estimated: t.Estimated, Error: t.Error, ExitCode: t.ExitCode, Signal: t.Signal,
			Status: t.Status, CancelRequested: t.CancelRequested,
		})
	}
	return encode(w, http.StatusOK, out)
}

// getOutput shows what an attempt printed: head and tail as text.
//
//	@Summary	Get what a job printed
//	@ID			get-output
//	@Tags		jobs
//	@Produce	plain
//	@Param		id		path		string	true	"Job id"
//	@Param		attempt	query		int		false	"Attempt number, default the last"
//	@Success	200		{string}	string
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/jobs/{id}/output [get]
//	@Security	bearer
func (a *API) getOutput(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	n := p.number("attempt")
	if err := p.done(); err != nil {
		return err
	}
	v, err := a.visibleJob(r)
	if err != nil {
		return err
	}
	out, err := a.svc.Output(r.Context(), v.ID, n)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	text := out.Head
	if out.Dropped > 0 {
		text += fmt.Sprintf("\n[… truncated: %d of %d bytes not kept …]\n", out.Dropped, out.Bytes)
	}
	_, _ = io.WriteString(w, text+out.Tail) // an error means that the client has left
	return nil
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

package api

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/lanegate/lanegate"
)

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

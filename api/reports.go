package api

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lanegate/lanegate"
)

// Largest bodies of reports, in bytes: output and result at their limits, every
// character escaped, fit.
const (
	maxHeartbeatBody = 4 << 10
	maxCompleteBody  = 2 << 20
)

// heartbeatRequest may be left out when the token is in the Authorization header.
type heartbeatRequest struct {
	// Token of the attempt; wins over the header.
	Token string `json:"token,omitempty"`
}

// heartbeatResponse says what the target has to do.
type heartbeatResponse struct {
	// CancelRequested: end the run, then complete it (cancelled, unless it succeeded).
	CancelRequested bool `json:"cancel_requested"`
	// TimedOut: the class's time limit is over; complete as timed_out. The deadline stays where it is.
	TimedOut bool `json:"timed_out,omitzero"`
	// WithinSeconds is how soon the next heartbeat or the completion must come.
	WithinSeconds float64 `json:"within_seconds" example:"300"`
}

// completeRequest says how an attempt ended.
type completeRequest struct {
	// Token of the attempt; wins over the header.
	Token   string `json:"token,omitempty"`
	Outcome string `json:"outcome" enums:"succeeded,failed,timed_out,deferred,cancelled,interrupted,lost" validate:"required"`
	// Error is one sentence about a bad outcome.
	Error string `json:"error,omitempty" example:"the export has no rows"`
	// Permanent: a failure that repeating can't mend.
	Permanent bool `json:"permanent,omitempty"`
	// DeferFor is how long a deferred job stands aside, at most 24h; the class's backoff base when left out.
	DeferFor string `json:"defer_for,omitempty" example:"10m"`
	// Result is any JSON value, at most 64 KiB; kept verbatim for a success.
	Result jsontext.Value `json:"result,omitempty" swaggertype:"object"`
	// Output is what the run printed; of a long text the first and the last 32 KiB are kept.
	Output string `json:"output,omitempty"`
	// OutputTail is for those who kept head and tail themselves, with output_bytes and output_dropped.
	OutputTail    string `json:"output_tail,omitempty"`
	OutputBytes   int64  `json:"output_bytes,omitempty"`
	OutputDropped int64  `json:"output_dropped,omitempty"`
	// Duration of the run as measured by a monotonic clock; the time since the start when left out.
	Duration string `json:"duration,omitempty" example:"12.5s"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty" example:"SIGKILL"`
}

// completeResponse says what became of the job.
type completeResponse struct {
	Outcome string `json:"outcome" example:"succeeded"`
	State   string `json:"state" enums:"queued,running,succeeded,failed,cancelled,skipped"`
	// Repeated: this very completion had been recorded before.
	Repeated bool `json:"repeated,omitzero"`
	// ResultKept is false when there was none or it was too large.
	ResultKept bool `json:"result_kept"`
}

var errNoAttemptToken = &lanegate.Error{
	Kind: lanegate.KindUnauthorized, Code: "token_required",
	Message: "send the attempt's token, which came with the job: Authorization: Bearer <token>, or \"token\" in the body.",
}

// readReport reads the body of a report, without white space around it; one that
// can't have a token is refused for that first.
func (a *API) readReport(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, _, err := a.readBody(w, r, limit)
	if err != nil {
		return nil, err
	}
	body = bytes.TrimSpace(body)
	if _, ok := bearer(r); !ok && len(body) == 0 {
		return nil, errNoAttemptToken
	}
	return body, nil
}

// fenceOf names the attempt that a report is about.
func fenceOf(r *http.Request, token string) (lanegate.Fence, error) {
	if token == "" {
		token, _ = bearer(r)
	}
	if token == "" {
		return lanegate.Fence{}, errNoAttemptToken
	}
	id := chi.URLParam(r, "id")
	if !lanegate.ValidID(id) {
		return lanegate.Fence{}, lanegate.ErrJobNotFound
	}
	n, err := strconv.Atoi(chi.URLParam(r, "n"))
	if err != nil || n < 1 {
		return lanegate.Fence{}, lanegate.ErrAttemptNotFound
	}
	return lanegate.Fence{Job: id, Number: n, Token: token}, nil
}

// heartbeatAttempt says that a detached attempt goes on, and brings a cancel to it.
//
//	@Summary		Say that a run goes on
//	@Description	For asynchronous targets. The attempt's token is enough, as Bearer token or in the body. 409 attempt_lost: the attempt has an outcome, or the token is another's; end the run.
//	@ID				heartbeat-attempt
//	@Tags			attempts
//	@Accept			json
//	@Produce		json
//	@Param			id		path		string				true	"Job id"
//	@Param			n		path		int					true	"Attempt number"
//	@Param			request	body		heartbeatRequest	false	"Token, unless it is in the header"
//	@Success		200		{object}	heartbeatResponse
//	@Failure		400,401,403,404,408,409,413,415,422,429,503	{object}	problem
//	@Router			/jobs/{id}/attempts/{n}/heartbeat [post]
//	@Security		bearer
func (a *API) heartbeatAttempt(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	body, err := a.readReport(w, r, maxHeartbeatBody)
	if err != nil {
		return err
	}
	var req heartbeatRequest
	if len(body) > 0 {
		if err := decodeBytes(body, &req, a.o.MaxDepth); err != nil {
			return err
		}
	}
	fence, err := fenceOf(r, req.Token)
	if err != nil {
		return err
	}
	heart, err := a.svc.Heartbeat(r.Context(), fence)
	if err != nil {
		return err
	}
	return encode(w, http.StatusOK, heartbeatResponse{
		CancelRequested: heart.CancelRequested, TimedOut: heart.TimedOut, WithinSeconds: heart.Within.Seconds(),
	})
}

// completeAttempt records how an attempt ended that runs elsewhere.
//
//	@Summary		Say how a run ended
//	@Description	For asynchronous targets and agents. The attempt's token is enough. The very same completion may be repeated and is answered 200. 409 attempt_lost: the attempt has another outcome, or the token is another's; nothing was changed.
//	@ID				complete-attempt
//	@Tags			attempts
//	@Accept			json
//	@Produce		json
//	@Param			id		path		string			true	"Job id"
//	@Param			n		path		int				true	"Attempt number"
//	@Param			request	body		completeRequest	true	"How it ended"
//	@Success		200		{object}	completeResponse
//	@Failure		400,401,403,404,408,409,413,415,422,429,503	{object}	problem
//	@Router			/jobs/{id}/attempts/{n}/complete [post]
//	@Security		bearer
func (a *API) completeAttempt(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	body, err := a.readReport(w, r, maxCompleteBody)
	if err != nil {
		return err
	}
	var req completeRequest
	if err := decodeBytes(body, &req, a.o.MaxDepth+8); err != nil {
		return err
	}
	fence, err := fenceOf(r, req.Token)
	if err != nil {
		return err
	}
	ending, err := req.ending()
	if err != nil {
		return err
	}
	ended, kept, err := a.svc.Complete(r.Context(), fence, ending)
	if err != nil {
		return err
	}
	return encode(w, http.StatusOK, completeResponse{
		Outcome: string(ended.Attempt.Outcome), State: string(ended.Job.State), Repeated: ended.Repeated, ResultKept: kept,
	})
}

// ending checks the fields that have a form.
func (c completeRequest) ending() (lanegate.Ending, error) {
	var errs []lanegate.FieldError
	if !slices.Contains(lanegate.Outcomes, lanegate.Outcome(c.Outcome)) {
		errs = append(errs, lanegate.FieldError{Pointer: "/outcome", Detail: "must be one of succeeded, failed, timed_out, deferred, cancelled, interrupted, lost"})
	}
	duration := func(pointer, text string) time.Duration {
		if text == "" {
			return 0
		}
		d, err := lanegate.ParseDuration(text)
		if err != nil {
			errs = append(errs, lanegate.FieldError{Pointer: pointer, Detail: err.Error()})
		}
		return d
	}
	took, wait := duration("/duration", c.Duration), duration("/defer_for", c.DeferFor)
	if c.OutputBytes < 0 || c.OutputDropped < 0 || c.OutputDropped > c.OutputBytes {
		errs = append(errs, lanegate.FieldError{Pointer: "/output_dropped", Detail: "must be from 0 to output_bytes"})
	}
	return lanegate.Ending{
		Outcome: lanegate.Outcome(c.Outcome), Duration: took, Permanent: c.Permanent, DeferFor: wait, Error: c.Error,
		ExitCode: c.ExitCode, Signal: c.Signal, Result: c.Result,
		Output: lanegate.Output{Head: c.Output, Tail: c.OutputTail, Bytes: c.OutputBytes, Dropped: c.OutputDropped},
	}, lanegate.Invalid(errs)
}

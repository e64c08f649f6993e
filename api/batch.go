package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// batchRequest is many jobs in one transaction. Only the specification is made
// from it: the jobs are read one by one.
//
//nolint:unused // read by the generator of openapi.json
type batchRequest struct {
	// Jobs holds 1 to 1000 of them; one that is wrong is refused in its place.
	Jobs []submitRequest `json:"jobs"`
}

// batchItem is the answer to one job of a batch: job or problem. The fields that
// a problem names are counted from the job, as if it had been sent alone.
type batchItem struct {
	Status   int          `json:"status" example:"201"`
	Replayed bool         `json:"replayed,omitzero"`
	Job      *jobResponse `json:"job,omitempty"`
	Problem  *problem     `json:"problem,omitempty"`
}

type batchResponse struct {
	Items []batchItem `json:"items"`
}

// submitBatch accepts up to 1,000 jobs in one transaction; each has its own answer.
//
//	@Summary		Submit many jobs
//	@Description	One transaction; the answers are in the order of the jobs. A job that can't be read or taken is refused in its place, with the status and problem that it would get alone, and does not hold up the others. The request is refused whole only when the document is not JSON, is not {"jobs": […]}, or is over the limits.
//	@ID				submit-batch
//	@Tags			jobs
//	@Accept			json
//	@Produce		json
//	@Param			request	body		batchRequest	true	"Jobs to run"
//	@Success		200		{object}	batchResponse
//	@Failure		400,401,403,413,415,422,429,503	{object}	problem
//	@Router			/jobs/batch [post]
//	@Security		bearer
func (a *API) submitBatch(w http.ResponseWriter, r *http.Request) error {
	if err := query(r).done(); err != nil {
		return err
	}
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		return errBatchKey
	}
	body, _, err := a.readBody(w, r, a.o.MaxBatch)
	if err != nil {
		return err
	}
	reqs, refused, err := a.decodeBatch(body)
	if err != nil {
		return err
	}
	leave, err := a.enter()
	if err != nil {
		return err
	}
	defer leave()
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	c := callerOf(r.Context())
	subs := make([]service.Submission, 0, len(reqs))
	for i := range reqs {
		if refused[i] != nil {
			continue
		}
		sub, err := reqs[i].submission(c, "")
		if err != nil {
			refused[i] = err
			continue
		}
		subs = append(subs, sub)
	}
	var results []service.Submitted
	if len(subs) > 0 {
		if results, err = a.svc.SubmitBatch(r.Context(), c.Name, subs); err != nil {
			return err
		}
	}
	return encodeBatch(w, refused, results)
}

// decodeBatch reads the jobs of a batch; refused holds, for each that can't be read,
// why. Its error refuses the batch whole.
func (a *API) decodeBatch(body []byte) (reqs []submitRequest, refused []error, err error) {
	if reqs, ok := plainBatch(body, a.o.MaxDepth, a.o.MaxPayload+envelope); ok {
		return reqs, make([]error, len(reqs)), nil
	}
	texts, err := service.SplitItems(body, "jobs", service.MaxBatchItems)
	if err != nil {
		return nil, nil, err
	}
	reqs, refused = make([]submitRequest, len(texts)), make([]error, len(texts))
	for i, text := range texts {
		reqs[i], refused[i] = a.decodeItem(text)
	}
	return reqs, refused, nil
}

// errBatchKey: one key can't stand for several jobs, and a key that is ignored lets
// a repeat run all of them twice.
var errBatchKey = &lanegate.Error{
	Kind: lanegate.KindBadRequest, Code: "idempotency_key_of_batch",
	Message: "the header Idempotency-Key is for a single job; give each job of the batch an idempotency_key of its own. Nothing was enqueued.",
}

// decodeItem reads one job of a batch by the rules for one that comes alone.
func (a *API) decodeItem(text []byte) (req submitRequest, err error) {
	if limit := a.o.MaxPayload + envelope; int64(len(text)) > limit {
		return req, &lanegate.Error{
			Kind: lanegate.KindTooLarge, Code: "body_too_large",
			Message: fmt.Sprintf("the job has %d bytes, the limit is %d; nothing was enqueued. Put the data where the job can fetch them and send a reference.", len(text), limit),
		}
	}
	if req, ok := plainSubmission(text, a.o.MaxDepth); ok {
		return req, nil
	}
	err = tooDeep(decodeBytes(text, &req, a.o.MaxDepth+1), "/payload", a.o.MaxDepth)
	if errors.Is(err, errArrayBody) || errors.Is(err, errNotObject) {
		err = errNotObject.With("each job is a JSON object, e.g. {\"class\": \"pos-sales\"}. Nothing was enqueued.")
	}
	return req, err
}

// ofItem makes sentences about a request that was refused whole true of one job
// of a batch, whose neighbours may stand.
var ofItem = strings.NewReplacer(
	"nothing was enqueued", "this job was not enqueued", "Nothing was enqueued", "This job was not enqueued",
	"nothing was changed", "this job was not enqueued", "Nothing was changed", "This job was not enqueued",
)

// refusedItem is the answer to one refused job of a batch.
func refusedItem(err error) batchItem {
	e, ok := errors.AsType[*lanegate.Error](err)
	if !ok {
		e = errInternal
	}
	status := statusOf(e.Kind)
	return batchItem{Status: status, Problem: &problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Code: e.Code, Detail: ofItem.Replace(e.Message),
		Fields: e.Fields, Details: e.Details,
	}}
}

package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// submitRequest is one job to run.
type submitRequest struct {
	Class string `json:"class" example:"pos-sales"`
	// Payload is any JSON value; the job gets these very bytes.
	Payload        jsontext.Value `json:"payload,omitempty" swaggertype:"object"`
	IdempotencyKey *string        `json:"idempotency_key,omitempty" example:"nightly-2026-11-29T00:00Z"`
	RunAt          *time.Time     `json:"run_at,omitempty" format:"date-time"`
	LogicalDate    string         `json:"logical_date,omitempty" example:"2026-11-29"`
	IfFailed       string         `json:"if_failed,omitempty" enums:"retry"`
	// Worker is an agent of the same token that waits to run this job, and nobody
	// else may: lanegate run. When it goes, the queued job is cancelled.
	Worker string `json:"worker,omitempty"`

	eventKey string             // of a CloudEvent, for when no other key is given
	plain    service.Submission // has the payload, judged already, where the body was plain
}

// submit accepts one job; its class's stored metadata decides the lane.
//
//	@Summary		Submit a job
//	@Description	201 when the job is new, 200 when the same key was sent before with the same body, or when the class's overlap policy skipped it. The answer comes as soon as the job is durable; it never waits for the run.
//	@ID				submit-job
//	@Tags			jobs
//	@Accept			json
//	@Produce		json
//	@Param			Idempotency-Key	header		string			false	"The same over a client's retries; instead of the body's idempotency_key"
//	@Param			request			body		submitRequest	true	"Job to run"
//	@Success		200				{object}	jobResponse		"Replayed or skipped"
//	@Header			200				{string}	Idempotency-Replayed	"true on a replay"
//	@Success		201				{object}	jobResponse
//	@Header			201				{string}	Location	"Where the job is"
//	@Failure		400,401,403,413,415,422,429,503	{object}	problem
//	@Router			/jobs [post]
//	@Security		bearer
func (a *API) submit(w http.ResponseWriter, r *http.Request) error {
	if err := query(r).done(); err != nil {
		return err
	}
	// The body may be read slowly: it does not hold a place among the submissions.
	body, typ, err := a.readBody(w, r, a.o.MaxPayload+envelope)
	if err != nil {
		return err
	}
	req, err := a.decodeSubmit(body, typ)
	if err != nil {
		return err
	}
	if err := req.takeKey(r); err != nil {
		return err
	}
	sub, err := req.submission(callerOf(r.Context()), "")
	if err != nil {
		return err
	}
	leave, err := a.enter()
	if err != nil {
		return err
	}
	defer leave()
	// Whoever has sent a whole submission and left gets it done all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), submitTimeout)
	defer cancel()
	res, err := a.svc.Submit(ctx, callerOf(r.Context()).Name, sub)
	if err != nil {
		return err
	}
	view := a.asItStands(r.Context(), res, sub.Payload)
	if res.Replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	if res.Replayed || res.Job.State == lanegate.StateSkipped {
		return encodeJob(w, http.StatusOK, newJobResponse(view))
	}
	// 201, not 202: some schedulers poll the Location of a 202 until it stops answering 202.
	w.Header().Set("Location", "/jobs/"+res.Job.ID)
	return encodeJob(w, http.StatusCreated, newJobResponse(view))
}

// Limits of what an answer to a submission looks up beside the acceptance.
const (
	maxViews  = 2
	viewLimit = 500 * time.Millisecond
)

// asItStands adds to a replayed job how it ended, or what it waits on. The latter
// is a courtesy: it counts the line, so under load, or when the database is slow,
// the answer goes without. A new job's answer never waits for such a look.
func (a *API) asItStands(ctx context.Context, res service.Submitted, payload []byte) service.JobView {
	bare := service.JobView{JobDetail: service.JobDetail{Job: res.Job, Payload: payload}}
	if !res.Replayed {
		return bare
	}
	if !res.Job.State.Final() {
		select {
		case a.views <- struct{}{}:
			defer func() { <-a.views }()
		default:
			return bare
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), viewLimit)
	defer cancel()
	view, err := a.svc.Job(ctx, res.Job.ID)
	if err != nil {
		return bare
	}
	return view
}

// envelope is what a submission may take beside its payload.
const envelope = 8 << 10

// enter takes a place among the submissions in work, or sheds the request.
func (a *API) enter() (leave func(), err error) {
	select {
	case a.submits <- struct{}{}:
		return func() { <-a.submits }, nil
	default:
		a.metrics.shed.Inc()
		return nil, lanegate.ErrOverloaded
	}
}

// decodeSubmit reads a submission in any of the forms schedulers send.
func (a *API) decodeSubmit(body []byte, typ string) (submitRequest, error) {
	if typ != typeCloudEvent {
		if req, ok := plainSubmission(body, a.o.MaxDepth); ok {
			return req, nil
		}
	}
	var req submitRequest
	if (typ == "" || typ == typeOctets) && !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
			return req, emptyBody()
		}
		if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
			return req, &lanegate.Error{
				Kind: lanegate.KindMediaType, Code: "unsupported_media_type",
				Message: "the body does not look like a JSON object and no JSON Content-Type was sent; send Content-Type: application/json. Nothing was enqueued.",
			}
		}
	}
	if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
		return req, emptyBody()
	}
	var err error
	if typ == typeCloudEvent {
		req, err = a.decodeCloudEvent(body)
	} else {
		err = tooDeep(decodeBytes(body, &req, a.o.MaxDepth+1), "/payload", a.o.MaxDepth)
	}
	if errors.Is(err, errArrayBody) {
		err = errArrayBody.With("the body is an array; one request takes one object. Set MaxBatchSize to 1 (EventBridge), or send up to %d jobs as {\"jobs\": […]} to /jobs/batch. Nothing was enqueued.", service.MaxBatchItems)
	}
	return req, err
}

// ReadSubmission reads a submission that came otherwise than over HTTP, as the body
// of POST /jobs with Content-Type application/json is read. maxDepth bounds the
// nesting of its payload.
func ReadSubmission(body []byte, maxDepth int) (service.Submission, error) {
	a := API{o: Options{MaxDepth: maxDepth}}
	req, err := a.decodeSubmit(body, typeJSON)
	if err != nil {
		return service.Submission{}, err
	}
	return req.submission(caller{}, "")
}

func emptyBody() error {
	return &lanegate.Error{
		Kind: lanegate.KindBadRequest, Code: "empty_body",
		Message: "the body is empty; send a JSON object, e.g. {\"class\": \"pos-sales\"}. Nothing was enqueued.",
	}
}

// cloudEvent is what is read of an event in structured mode (CloudEvents 1.0);
// attributes that are not needed are ignored.
type cloudEvent struct {
	SpecVersion string         `json:"specversion"`
	ID          string         `json:"id"`
	Source      string         `json:"source"`
	Data        jsontext.Value `json:"data"`
	DataBase64  jsontext.Value `json:"data_base64"`
}

func (a *API) decodeCloudEvent(body []byte) (submitRequest, error) {
	var req submitRequest
	if err := tooDeep(checkObject(body, a.o.MaxDepth+2), "/data", a.o.MaxDepth); err != nil {
		return req, err
	}
	var ev cloudEvent
	if err := json.Unmarshal(body, &ev); err != nil {
		return req, decodeError(err, &ev)
	}
	switch {
	case ev.DataBase64 != nil:
		return req, fieldProblem("bad_event", "/data_base64", "is not taken; send the submission as JSON in data")
	case ev.Data == nil:
		return req, fieldProblem("bad_event", "/data", "is required: the submission, e.g. {\"class\": \"pos-sales\"}")
	case ev.ID == "" || ev.Source == "":
		return req, fieldProblem("bad_event", "/id", "id and source are required; together they are the idempotency key")
	}
	if err := tooDeep(decodeBytes(ev.Data, &req, a.o.MaxDepth+1), "/data/payload", a.o.MaxDepth); err != nil {
		return req, below("/data", err)
	}
	if req.IdempotencyKey == nil {
		req.eventKey = eventKeyOf(ev.Source, ev.ID)
	}
	return req, nil
}

// eventKeyOf is an event's source and id, or a digest of them where they are too
// long for a key, or hold characters that a key may not have.
func eventKeyOf(source, id string) string {
	key := source + " " + id
	plain := len(key) <= maxKey
	for _, c := range key {
		plain = plain && unicode.IsPrint(c)
	}
	if plain {
		return key
	}
	sum := sha256.Sum256([]byte(source + "\x00" + id))
	return "cloudevent sha256:" + hex.EncodeToString(sum[:])
}

// maxKey is how long an idempotency key may be, in bytes.
const maxKey = 255

// takeKey brings the header's key into the request. The header is a structured
// field string (quoted) or bare.
func (req *submitRequest) takeKey(r *http.Request) error {
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		if req.eventKey != "" {
			req.IdempotencyKey = &req.eventKey
		}
		return nil
	}
	key := strings.TrimSpace(values[0])
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(key[1 : len(key)-1])
	}
	bad := func(code, message string) error {
		return &lanegate.Error{Kind: lanegate.KindBadRequest, Code: code, Message: message}
	}
	switch {
	case len(values) > 1:
		return bad("idempotency_key_twice", "the header Idempotency-Key is given more than once. Nothing was enqueued.")
	case key == "":
		return bad("idempotency_key_empty", "the header Idempotency-Key is empty; leave it out or give a key. Nothing was enqueued.")
	case req.IdempotencyKey != nil && *req.IdempotencyKey != key:
		return bad("idempotency_keys_differ", "the header Idempotency-Key and the field idempotency_key differ; send one of them. Nothing was enqueued.")
	}
	req.IdempotencyKey = &key
	return nil
}

// submission checks what only the API can check; pointer goes before the field
// names of a batch's item.
func (req *submitRequest) submission(c caller, pointer string) (service.Submission, error) {
	sub := req.plain
	sub.Class, sub.Payload, sub.RunAt, sub.LogicalDate = req.Class, req.Payload, req.RunAt, req.LogicalDate
	sub.Worker, sub.RetryFailed = req.Worker, req.IfFailed == "retry"
	var errs []lanegate.FieldError
	if req.IfFailed != "" && req.IfFailed != "retry" {
		errs = append(errs, lanegate.FieldError{Pointer: pointer + "/if_failed", Detail: "takes only the value \"retry\""})
	}
	if req.IdempotencyKey != nil {
		if sub.Key = *req.IdempotencyKey; sub.Key == "" {
			errs = append(errs, lanegate.FieldError{Pointer: pointer + "/idempotency_key", Detail: "must not be empty; leave it out or give a key"})
		}
	}
	if err := lanegate.Invalid(errs); err != nil {
		return sub, err
	}
	if req.Class != "" {
		return sub, c.mayUse(req.Class)
	}
	return sub, nil
}

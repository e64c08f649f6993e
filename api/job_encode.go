package api

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// jobLinks shows where more about the job of this id is.
type jobLinks string

// MarshalJSONTo implements json.MarshalerTo.
func (l jobLinks) MarshalJSONTo(enc *jsontext.Encoder) error { return enc.WriteValue(l.append(nil)) }

func (l jobLinks) append(b []byte) []byte {
	for i, link := range [...]struct{ name, behind string }{{"output", "/output"}, {"self", ""}, {"wait", "/wait"}} {
		b = append(b, "{,,"[i], '"')
		b = append(append(b, link.name...), `":"/jobs/`...)
		b = append(append(append(b, l...), link.behind...), '"')
	}
	return append(b, '}')
}

// headerJSON and headerNoStore are shared by all answers: nobody writes to them.
var headerJSON, headerNoStore = []string{typeJSON}, []string{"no-store"}

// answerJSON sends a text that is encoded already.
func answerJSON(w http.ResponseWriter, status int, text []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = headerJSON, headerNoStore
	w.WriteHeader(status)
	_, _ = w.Write(text) // an error means that the client has left
}

// encodeJob answers with a job.
func encodeJob(w http.ResponseWriter, status int, doc jobResponse) error {
	text, err := appendJob(make([]byte, 0, jobText+len(doc.Payload)+len(doc.Result)), &doc)
	if err != nil {
		return fmt.Errorf("encode job %s: %w", doc.ID, err)
	}
	answerJSON(w, status, append(text, '\n'))
	return nil
}

// jobText is what a job that was just accepted takes, without its payload, in bytes.
const jobText = 768

// appendJob writes a job as JSON. Payload and result come last, by hand: an encoder
// would write their white space and escapes anew, and the bytes that came in are the
// bytes that go out.
func appendJob(b []byte, doc *jobResponse) ([]byte, error) {
	var err error
	if doc.plain() {
		b, err = doc.appendPlain(b)
	} else {
		rest := *doc
		rest.Payload, rest.Result = nil, nil
		b, err = appendJSON(b, &rest)
	}
	if err != nil || len(doc.Payload) == 0 && len(doc.Result) == 0 {
		return b, err
	}
	b = b[:len(b)-1] // the brace
	if len(doc.Payload) > 0 {
		b = append(append(b, `,"payload":`...), doc.Payload...)
	}
	if len(doc.Result) > 0 {
		b = append(append(b, `,"result":`...), doc.Result...)
	}
	return append(b, '}'), nil
}

func appendJSON(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v, encodeOptions)
	return append(b, text...), err
}

// plain says whether appendPlain knows all that the job shows, as of one that was just
// accepted.
func (r *jobResponse) plain() bool {
	return r.Route == nil && r.WaitingOn == nil && r.Ahead == nil && r.ExpectedStart == nil && r.ExpectedReason == "" &&
		r.Verification == "" && r.Place.ID != "" && r.Place.First == nil
}

// appendPlain writes what the encoder would, without its reflection: each accepted job
// is answered with one of these.
func (r *jobResponse) appendPlain(b []byte) ([]byte, error) {
	e := plainEncoder{text: append(b, '{')}
	e.str("id", r.ID)
	e.str("class", r.Class)
	e.str("state", r.State)
	e.some("reason", r.Reason)
	e.str("client", r.Client)
	e.some("idempotency_key", r.IdempotencyKey)
	e.some("logical_date", r.LogicalDate)
	e.some("worker", r.Worker)
	e.time("submitted_at", &r.SubmittedAt)
	e.time("run_at", r.RunAt)
	e.time("ready_at", &r.ReadyAt)
	e.time("started_at", r.StartedAt)
	e.time("finished_at", r.FinishedAt)
	e.name("attempts")
	e.text = strconv.AppendInt(e.text, int64(r.Attempts), 10)
	e.name("failures")
	e.text = strconv.AppendInt(e.text, int64(r.Failures), 10)
	e.name("place")
	e.text = append(e.text, '{')
	e.time("at", &r.Place.At)
	e.str("id", r.Place.ID)
	e.text = append(e.text, '}')
	e.some("blocked_by", r.BlockedBy)
	if r.CancelRequest {
		e.name("cancel_requested")
		e.text = append(e.text, "true"...)
	}
	e.name("links")
	return append(r.Links.append(e.text), '}'), e.err
}

// plainEncoder writes members of an object.
type plainEncoder struct {
	text []byte
	err  error // the first
}

// name writes a member's name, with the comma before it.
func (e *plainEncoder) name(name string) {
	if e.text[len(e.text)-1] != '{' {
		e.text = append(e.text, ',')
	}
	e.text = append(append(append(e.text, '"'), name...), `":`...)
}

func (e *plainEncoder) value(v any) {
	var err error
	if e.text, err = appendJSON(e.text, v); err != nil && e.err == nil {
		e.err = err
	}
}

func (e *plainEncoder) str(name, s string) {
	e.name(name)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			e.value(s)
			return
		}
	}
	e.text = append(append(append(e.text, '"'), s...), '"')
}

// some leaves an empty string out.
func (e *plainEncoder) some(name, s string) {
	if s != "" {
		e.str(name, s)
	}
}

// time leaves nil out.
func (e *plainEncoder) time(name string, t *time.Time) {
	if t == nil {
		return
	}
	e.name(name)
	if year := t.Year(); t.Location() != time.UTC || year < 0 || year > 9999 {
		e.value(*t)
		return
	}
	e.text = append(t.AppendFormat(append(e.text, '"'), time.RFC3339Nano), '"')
}

// texts keeps the memory of large answers for the next ones.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// maxText bounds what is kept, in bytes.
const maxText = 1 << 20

// encodeBatch answers with one item for each of refused: the problem, or where there
// is none the next of results.
func encodeBatch(w http.ResponseWriter, refused []error, results []service.Submitted) error {
	kept, _ := texts.Get().(*[]byte)
	defer texts.Put(kept)
	text := (*kept)[:0]
	text = append(text, `{"items":[`...)
	for i, err := range refused {
		if i > 0 {
			text = append(text, ',')
		}
		var res service.Submitted
		if err == nil {
			res, results = results[0], results[1:]
			err = res.Err
		}
		if err != nil {
			text, err = appendJSON(text, refusedItem(err))
		} else {
			text, err = appendItem(text, &res)
		}
		if err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
	}
	text = append(text, "]}\n"...)
	answerJSON(w, http.StatusOK, text)
	if cap(text) <= maxText {
		*kept = text
	}
	return nil
}

// appendItem writes the batchItem of a job that was accepted. It is without the
// payload: the client has it.
func appendItem(b []byte, res *service.Submitted) ([]byte, error) {
	status := http.StatusCreated
	if res.Replayed || res.Job.State == lanegate.StateSkipped {
		status = http.StatusOK
	}
	b = strconv.AppendInt(append(b, `{"status":`...), int64(status), 10)
	if res.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	doc := newJobResponse(service.JobView{JobDetail: service.JobDetail{Job: res.Job}})
	b, err := appendJob(append(b, `,"job":`...), &doc)
	return append(b, '}'), err
}

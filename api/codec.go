package api

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// encodeOptions keep raw JSON as it was sent: escapes and digits untouched. Bytes
// of a request line that are not UTF-8 may be quoted in an answer: they are replaced.
var encodeOptions = json.JoinOptions(
	jsontext.PreserveRawStrings(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), json.Deterministic(true),
)

// encode writes v with the given status. What can't be encoded is an error
// before the status is sent, never half an answer.
func encode(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v, encodeOptions)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // an error means that the client has left
	return nil
}

// body kinds a route takes beside application/json.
const (
	typeJSON       = "application/json"
	typeMergePatch = "application/merge-patch+json"
	typeCloudEvent = "application/cloudevents+json"
	typeOctets     = "application/octet-stream"
	typeForm       = "application/x-www-form-urlencoded"
)

// mediaType returns the body's type without parameters, "" when none is given.
func mediaType(r *http.Request) (string, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return "", &lanegate.Error{
			Kind: lanegate.KindMediaType, Code: "unsupported_encoding",
			Message: fmt.Sprintf("Content-Encoding %q is not taken; send the JSON uncompressed. Nothing was enqueued.", enc),
		}
	}
	header := r.Header.Get("Content-Type")
	if header == "" || header == typeJSON {
		return header, nil
	}
	typ, _, err := mime.ParseMediaType(header)
	if err != nil && typ == "" {
		return "", unsupportedType(header)
	}
	switch {
	case typ == typeForm || typ == "multipart/form-data":
		return "", &lanegate.Error{
			Kind: lanegate.KindMediaType, Code: "form_body",
			Message: "a form body would damage JSON and is not taken: send Content-Type: application/json (curl: --json, or --data-binary with -H 'Content-Type: application/json'). Nothing was enqueued.",
		}
	case typ == typeJSON || typ == typeOctets || strings.HasSuffix(typ, "+json"):
		return typ, nil
	}
	return "", unsupportedType(header)
}

func unsupportedType(header string) error {
	return &lanegate.Error{
		Kind: lanegate.KindMediaType, Code: "unsupported_media_type",
		Message: fmt.Sprintf("Content-Type %q is not taken; send application/json. Nothing was enqueued.", header),
	}
}

// readBody reads at most limit bytes and judges the headers first, so that a
// client that waits for 100-continue never sends what would be refused.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, typ string, err error) {
	if typ, err = mediaType(r); err != nil {
		return nil, "", err
	}
	if r.ContentLength > limit {
		return nil, "", tooLarge(limit)
	}
	body, err = a.readAll(w, r, limit)
	return body, typ, err
}

func tooLarge(limit int64) error {
	return &lanegate.Error{
		Kind: lanegate.KindTooLarge, Code: "body_too_large",
		Message: fmt.Sprintf("the body is larger than the limit of %d bytes; nothing was enqueued. Put the data where the job can fetch them and send a reference.", limit),
	}
}

// decode reads a JSON object into a T: strictly, with every fault named.
func decode[T any](a *API, w http.ResponseWriter, r *http.Request, limit int64) (T, error) {
	var v T
	body, _, err := a.readBody(w, r, limit)
	if err != nil {
		return v, err
	}
	err = decodeBytes(body, &v, a.o.MaxDepth+8)
	return v, err
}

var errArrayBody = &lanegate.Error{
	Kind: lanegate.KindInvalid, Code: "array_body",
	Message: "the body is an array; this path takes one object.",
}

var errNotObject = &lanegate.Error{
	Kind: lanegate.KindInvalid, Code: "not_an_object",
	Message: "the body must be a JSON object: {…}. Nothing was enqueued.",
}

// decodeBytes decodes one JSON object into v, a pointer to a struct.
func decodeBytes(body []byte, v any, maxDepth int) error {
	if err := checkObject(body, maxDepth); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v, decodeOptions); err != nil {
		return decodeError(err, v)
	}
	return nil
}

// decodeOptions read what people declare: nothing is ignored, and no duration is
// so short that it can't be meant.
var decodeOptions = json.JoinOptions(
	json.RejectUnknownMembers(true),
	json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, d *lanegate.Duration) error {
		if dec.PeekKind() != '"' {
			return errors.ErrUnsupported // the usual fault says what belongs here
		}
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if *d, err = lanegate.ParseDeclared(tok.String()); err != nil {
			return &durationError{err}
		}
		return nil
	})),
)

// durationError says what is wrong with a duration that is at least a string.
type durationError struct{ error }

// tooDeep makes the refusal of a document that is nested too deeply speak of the
// part that has the limit, which people know by that number.
func tooDeep(err error, pointer string, limit int) error {
	e, ok := errors.AsType[*lanegate.Error](err)
	if !ok || e.Code != "too_deep" {
		return err
	}
	told := *e
	told.Fields = []lanegate.FieldError{{Pointer: pointer, Detail: "is nested deeper than " + lanegate.Count(limit, "level")}}
	return &told
}

// checkObject says whether body is one JSON object that can be kept unharmed.
func checkObject(body []byte, maxDepth int) error {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) > 0 && trimmed[0] == '[' {
		return errArrayBody
	}
	if err := service.CheckJSON(body, maxDepth, ""); err != nil {
		return err
	}
	if trimmed[0] != '{' {
		return errNotObject
	}
	return nil
}

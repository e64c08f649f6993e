package api

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

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
	if header == "" {
		return "", nil
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
func readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, typ string, err error) {
	if typ, err = mediaType(r); err != nil {
		return nil, "", err
	}
	if r.ContentLength > limit {
		return nil, "", tooLarge(limit)
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, "", tooLarge(limit)
		}
		w.Header().Set("Connection", "close") // what may still come is not waited for
		return nil, "", &lanegate.Error{
			Kind: lanegate.KindBadRequest, Code: "body_cut_off",
			Message: "the body ended early or came too slowly; nothing was enqueued.", Err: err,
		}
	}
	// The body is here: its deadline (see deadlines) must not cut the handler off.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a recorder knows no deadlines
	return buf.Bytes(), typ, nil
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
	body, _, err := readBody(w, r, limit)
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

// decodeBytes decodes one JSON object into v, a pointer to a struct.
func decodeBytes(body []byte, v any, maxDepth int) error {
	if err := checkObject(body, maxDepth); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v, json.RejectUnknownMembers(true)); err != nil {
		return decodeError(err, v)
	}
	return nil
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
		return &lanegate.Error{
			Kind: lanegate.KindInvalid, Code: "not_an_object",
			Message: "the body must be a JSON object: {…}. Nothing was enqueued.",
		}
	}
	return nil
}

// decodeError names the field that does not fit.
func decodeError(err error, v any) error {
	sem, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return &lanegate.Error{Kind: lanegate.KindBadRequest, Code: "bad_json", Message: "the body is not valid JSON; nothing was enqueued.", Err: err}
	}
	pointer := string(sem.JSONPointer)
	if errors.Is(err, json.ErrUnknownName) {
		name := pointer[strings.LastIndexByte(pointer, '/')+1:]
		detail := "is not a field here"
		if near := nearest(name, fieldsOf(reflect.TypeOf(v).Elem(), pointer)); near != "" {
			detail += fmt.Sprintf("; did you mean %q?", near)
		}
		return fieldProblem("unknown_field", pointer, detail)
	}
	return fieldProblem("wrong_type", pointer, typeFault(sem))
}

// typeFault says why a value does not fit its field.
func typeFault(sem *json.SemanticError) string {
	_, isTime := errors.AsType[*time.ParseError](sem.Err)
	switch {
	case isTime || sem.GoType == reflect.TypeFor[time.Time]():
		return "must be an RFC 3339 time, e.g. \"2026-11-29T00:00:00Z\""
	case sem.Err != nil && (sem.GoType == reflect.TypeFor[lanegate.Duration]() || sem.GoType == reflect.TypeFor[widthSetting]()):
		return sem.Err.Error() // our own types say what to write
	case sem.JSONKind == '0' && wholeKind(sem.GoType):
		return "must be a whole number within range"
	}
	return "has the wrong type: " + kindName(sem.JSONKind) + " is not taken here"
}

func wholeKind(t reflect.Type) bool {
	return t != nil && t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64
}

func fieldProblem(code, pointer, detail string) error {
	return &lanegate.Error{
		Kind: lanegate.KindInvalid, Code: code, Message: "some fields are wrong; nothing was changed. Correct what \"fields\" names and send it again.",
		Fields: []lanegate.FieldError{{Pointer: pointer, Detail: detail}},
	}
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "this value"
}

// fieldsOf lists the field names of the struct that pointer's parent stands for.
func fieldsOf(t reflect.Type, pointer string) []string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for _, part := range parts[:len(parts)-1] {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			continue // an index into a slice
		}
		for f := range flatFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == part {
				t = f.Type
				break
			}
		}
	}
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for f := range flatFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// flatFields yields a struct's fields with embedded ones laid flat.
func flatFields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for _, f := range reflect.VisibleFields(t) {
			if !f.Anonymous && !yield(f) {
				return
			}
		}
	}
}

// nearest returns the name within two edits of s, "" when there is none.
func nearest(s string, names []string) string {
	best, at := 3, ""
	for _, n := range names {
		if d := editDistance(strings.ToLower(s), n); d < best {
			best, at = d, n
		}
	}
	return at
}

// editDistance is Levenshtein's (Wagner & Fischer 1974), by one row.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			up := row[j]
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j]+1, row[j-1]+1, diagonal+cost)
			diagonal = up
		}
	}
	return row[len(b)]
}

package api

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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

// params reads query parameters strictly: unknown, repeated and malformed ones
// are refused, each by name.
type params struct {
	values url.Values
	errs   []lanegate.FieldError
	known  []string
}

func query(r *http.Request) *params {
	values, err := url.ParseQuery(r.URL.RawQuery)
	p := &params{values: values}
	if err != nil {
		p.bad("", "the part behind the question mark is malformed: %v", err)
	}
	return p
}

func (p *params) bad(name, format string, args ...any) {
	p.errs = append(p.errs, lanegate.FieldError{Pointer: "?" + name, Detail: fmt.Sprintf(format, args...)})
}

func (p *params) all(name string) []string {
	p.known = append(p.known, name)
	for _, v := range p.values[name] {
		if !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			p.bad(name, "must be UTF-8 text without control characters")
			return nil
		}
	}
	return p.values[name]
}

func (p *params) str(name string) string {
	v := p.all(name)
	if len(v) > 1 {
		p.bad(name, "is given %d times; give it once", len(v))
	}
	if len(v) == 0 {
		return ""
	}
	if v[0] == "" {
		p.bad(name, "is empty; give a value, or leave it out")
	}
	return v[0]
}

// flag is true when name has the one value that makes sense, e.g. accept=width.
func (p *params) flag(name, value string) bool {
	v := p.str(name)
	if v != "" && v != value {
		p.bad(name, "takes only the value %q", value)
	}
	return v == value
}

const (
	defaultLimit = 50
	maxLimit     = 500
)

func (p *params) limit() int {
	v := p.str("limit")
	if v == "" {
		return defaultLimit
	}
	n, ok := wholeNumber(v)
	if !ok || n < 1 || n > maxLimit {
		p.bad("limit", "must be a whole number from 1 to %d", maxLimit)
		return defaultLimit
	}
	return n
}

func wholeNumber(s string) (int, bool) {
	if s == "" || len(s) > 9 {
		return 0, false
	}
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

func (p *params) number(name string) int {
	v := p.str(name)
	if v == "" {
		return 0
	}
	n, ok := wholeNumber(v)
	if !ok || n < 1 {
		p.bad(name, "must be a whole number of at least 1")
	}
	return n
}

func (p *params) duration(name string, def, most time.Duration) time.Duration {
	v := p.str(name)
	if v == "" {
		return def
	}
	d, err := lanegate.ParseDuration(v)
	if err != nil {
		p.bad(name, "%v", err)
		return def
	}
	if d > most {
		p.bad(name, "must be at most %s", lanegate.FormatDuration(most))
		return def
	}
	return d
}

func (p *params) time(name string) *time.Time {
	v := p.str(name)
	if v == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		p.bad(name, "must be an RFC 3339 time, e.g. 2026-11-29T00:00:00Z")
		return nil
	}
	t = lanegate.Micro(t)
	return &t
}

func (p *params) knownOnes() string {
	if len(p.known) == 0 {
		return "there is none"
	}
	return "known are: " + strings.Join(p.known, ", ")
}

// done returns every fault at once.
func (p *params) done() error {
	for name := range p.values {
		if !slices.Contains(p.known, name) {
			p.bad(name, "is not a parameter here; %s", p.knownOnes())
		}
	}
	if len(p.errs) == 0 {
		return nil
	}
	slices.SortFunc(p.errs, func(a, b lanegate.FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return &lanegate.Error{
		Kind: lanegate.KindBadRequest, Code: "bad_parameter",
		Message: "some query parameters are wrong; nothing was done.", Fields: p.errs,
	}
}

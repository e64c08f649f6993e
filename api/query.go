package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

// params reads query parameters strictly: unknown, repeated and malformed ones
// are refused, each by name.
type params struct {
	values url.Values
	errs   []lanegate.FieldError
	known  []string
}

func query(r *http.Request) *params {
	if r.URL.RawQuery == "" {
		return &params{}
	}
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

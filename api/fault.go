package api

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lanegate/lanegate"
)

// decodeError names the field that does not fit, and what belongs there.
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
	return fieldProblem("wrong_type", pointer, wanted(sem))
}

// below puts prefix before the pointers of an error about a part of the body.
func below(prefix string, err error) error {
	e, ok := errors.AsType[*lanegate.Error](err)
	if !ok || len(e.Fields) == 0 {
		return err
	}
	moved := *e
	moved.Fields = make([]lanegate.FieldError, len(e.Fields))
	for i, f := range e.Fields {
		moved.Fields[i] = lanegate.FieldError{Pointer: prefix + f.Pointer, Detail: f.Detail}
	}
	return &moved
}

// wanted says what belongs in a field that holds something else.
func wanted(sem *json.SemanticError) string {
	t := sem.GoType
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return "has a value that is not taken here"
	}
	got := ", not " + kindName(sem.JSONKind)
	switch t {
	case reflect.TypeFor[time.Time]():
		return "must be an RFC 3339 time in quotes, like \"2026-11-29T02:00:00Z\""
	case reflect.TypeFor[lanegate.Duration]():
		if e, ok := errors.AsType[*durationError](sem); ok {
			return "is wrong: " + e.Error()
		}
		return "must be a duration in quotes, like \"90s\" or \"26h\"" + got
	case reflect.TypeFor[widthSetting]():
		return "must be \"auto\" or a whole number from 1 to 10000"
	}
	switch t.Kind() {
	case reflect.String:
		return "must be a string" + got
	case reflect.Bool:
		return "must be true or false" + got
	case reflect.Int, reflect.Int64:
		if sem.JSONKind == '0' {
			return "must be a whole number of ordinary size"
		}
		return "must be a whole number" + got
	case reflect.Slice:
		return "must be an array" + got
	case reflect.Struct, reflect.Map:
		return "must be an object" + got
	}
	return "has a value that is not taken here"
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

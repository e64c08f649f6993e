package service

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
)

// SplitItems takes an object with one member, an array of 1 to most items, apart:
// it returns the items' texts, which are parts of text and not copies. It judges
// only what concerns the document: that it is JSON in UTF-8, and that it has this
// form. What may be wrong with one item (double keys, NUL, half a surrogate pair,
// its depth up to 10,000 levels, its type) is left to whoever reads the item.
//
// The errors are *lanegate.Error and refuse the document whole.
func SplitItems(text []byte, member string, most int) ([][]byte, error) {
	if at := notUTF8(text); at >= 0 {
		return nil, invalidUTF8(int64(at), nil)
	}
	// A bytes.Buffer is read in place, without a copy.
	dec := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	switch dec.PeekKind() {
	case '{':
	case '[':
		return nil, documentError("array_body", "the body is an array; put it into an object: {%q: […]}. Nothing was enqueued.", member)
	case jsontext.KindInvalid: // ReadToken says what is wrong
	default:
		return nil, documentError("not_an_object", "the body must be a JSON object: {%q: […]}. Nothing was enqueued.", member)
	}
	if _, err := dec.ReadToken(); err != nil {
		if len(bytes.TrimLeft(text, jsonSpace)) == 0 {
			return nil, &lanegate.Error{
				Kind: lanegate.KindBadRequest, Code: "empty_body",
				Message: fmt.Sprintf("the body is empty; send {%q: […]}. Nothing was enqueued.", member),
			}
		}
		return nil, jsonError(err, "")
	}
	items, err := readMember(dec, text, member, most)
	if err != nil {
		return nil, err
	}
	if err := nothingBehind(text, dec.InputOffset(), ""); err != nil {
		return nil, err
	}
	if len(items) == 0 || len(items) > most {
		return nil, payloadError("bad_batch", "/"+member, "must hold 1 to "+lanegate.Count(most, "job"))
	}
	return items, nil
}

// readMember reads the members of the object that dec is in, up to its end.
func readMember(dec *jsontext.Decoder, text []byte, member string, most int) (items [][]byte, err error) {
	for seen := false; ; seen = true {
		name, err := dec.ReadToken()
		switch {
		case err != nil:
			return nil, jsonError(err, "")
		case name.Kind() == '}':
			return items, nil
		case name.String() != member:
			return nil, payloadError("unknown_field", string(dec.StackPointer()), fmt.Sprintf("is not a field here; the jobs go into %q", member))
		case seen:
			return nil, payloadError("duplicate_key", "/"+member, "appears twice in one object")
		}
		switch dec.PeekKind() {
		case '[', jsontext.KindInvalid:
		default:
			return nil, payloadError("wrong_type", "/"+member, "must be an array")
		}
		if items, err = readItems(dec, text, most); err != nil {
			return nil, jsonError(err, "")
		}
	}
}

// readItems reads an array to its end, but keeps no more than one item above most.
func readItems(dec *jsontext.Decoder, text []byte, most int) (items [][]byte, err error) {
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != ']' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		if end := dec.InputOffset(); len(items) <= most {
			items = append(items, text[end-int64(len(value)):end:end])
		}
	}
	_, err = dec.ReadToken()
	return items, err
}

func documentError(code, format string, args ...any) error {
	return &lanegate.Error{Kind: lanegate.KindInvalid, Code: code, Message: fmt.Sprintf(format, args...)}
}

// notUTF8 is where the first byte stands that is not part of UTF-8, -1 without one.
func notUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

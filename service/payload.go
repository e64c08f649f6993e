package service

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
)

// CheckJSON says whether text is one JSON value that can be kept and handed on
// unharmed: valid UTF-8, no duplicate keys, no lone surrogates, no NUL in any
// string or key (judged after decoding), nesting at most maxDepth, nothing
// behind the value. Numbers may have any length; they are never converted.
//
// The error is a *lanegate.Error whose field points at the place by JSON
// pointer below prefix, e.g. "/payload".
func CheckJSON(text []byte, maxDepth int, prefix string) error {
	if plainlyGood(text, maxDepth) {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return payloadError("bad_body", prefix, "is empty: a JSON value was expected")
		}
		if err != nil {
			return jsonError(err, prefix)
		}
		if dec.StackDepth() > maxDepth {
			return payloadError("too_deep", prefix, "is nested deeper than "+lanegate.Count(maxDepth, "level"))
		}
		if tok.Kind() == '"' && strings.IndexByte(tok.String(), 0) >= 0 {
			return payloadError("nul_character", prefix+string(dec.StackPointer()), "contains U+0000, which can't be stored or passed to programs; remove it")
		}
		if dec.StackDepth() == 0 {
			return nothingBehind(text, dec.InputOffset(), prefix)
		}
	}
}

// plainlyGood says that CheckJSON has nothing against text; false means nothing. The
// decoder's own check (RFC 7493) misses NUL, which can only be written as an escape,
// and depth, which is at most the number of brackets.
func plainlyGood(text []byte, maxDepth int) bool {
	from := len(text) - len(bytes.TrimLeft(text, jsonSpace))
	if end, ok := PlainValue(text[from:], maxDepth); ok && nothingBehind(text, int64(from+end), "") == nil {
		return true
	}
	return bytes.Count(text, []byte{'{'})+bytes.Count(text, []byte{'['}) <= maxDepth &&
		!bytes.Contains(text, []byte(`\u0000`)) && jsontext.Value(text).IsValid()
}

// nothingBehind refuses what follows a JSON value that ends at the given byte. It
// is not read as JSON: whatever it is, the fault is that it is there.
func nothingBehind(text []byte, end int64, prefix string) error {
	if len(bytes.TrimLeft(text[end:], jsonSpace)) == 0 {
		return nil
	}
	return payloadError("trailing_data", prefix, fmt.Sprintf("has data behind the JSON value, which ends at byte %d", end))
}

// jsonSpace is the white space of JSON (RFC 8259, section 2).
const jsonSpace = " \t\r\n"

// maxPointer bounds how much of a request its own refusal repeats, in bytes.
const maxPointer = 200

func payloadError(code, pointer, detail string) error {
	if len(pointer) > maxPointer {
		pointer = strings.ToValidUTF8(pointer[:maxPointer], "") + "…"
	}
	return &lanegate.Error{
		Kind: lanegate.KindInvalid, Code: code,
		Message: "the JSON can't be taken as it is; nothing was enqueued.",
		Fields:  []lanegate.FieldError{{Pointer: pointer, Detail: detail}},
	}
}

// jsonError turns a decoder's error into ours: 422 for readable text that breaks
// a rule (duplicate keys, lone surrogates), 400 for text that is not JSON.
func jsonError(err error, prefix string) error {
	syn, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return &lanegate.Error{Kind: lanegate.KindBadRequest, Code: "bad_body", Message: "the body could not be read; nothing was enqueued.", Err: err}
	}
	pointer := prefix + string(syn.JSONPointer)
	switch text := syn.Err.Error(); {
	case errors.Is(syn.Err, jsontext.ErrDuplicateName):
		return payloadError("duplicate_key", pointer, "appears twice in one object")
	case strings.Contains(text, "surrogate"):
		return payloadError("lone_surrogate", pointer, "contains half of a surrogate pair, which is not a character")
	case strings.Contains(text, "UTF-8"):
		return invalidUTF8(syn.ByteOffset, err)
	case strings.Contains(text, "max depth"):
		return payloadError("too_deep", pointer, "is nested deeper than 10000 levels")
	default:
		return &lanegate.Error{
			Kind: lanegate.KindBadRequest, Code: "bad_json",
			Message: fmt.Sprintf("the body is not valid JSON near byte %d: %s. Nothing was enqueued.", syn.ByteOffset, text), Err: err,
		}
	}
}

func invalidUTF8(at int64, err error) error {
	return &lanegate.Error{
		Kind: lanegate.KindBadRequest, Code: "invalid_utf8",
		Message: fmt.Sprintf("the body is not valid UTF-8 near byte %d; send JSON encoded as UTF-8. Nothing was enqueued.", at), Err: err,
	}
}

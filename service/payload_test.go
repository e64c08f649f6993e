package service_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestCheckJSON(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tt := range []struct {
		name, text, code, pointer string
	}{
		{"null", "null", "", ""},
		{"a string", `"x"`, "", ""},
		{"white space around", " \t\r\n{ } \n", "", ""},
		{"long numbers", `[3889108265204450030, 899999999999999990, 1e400, 0.1000000000000000055, -0]`, "", ""},
		{"a surrogate pair", `"\ud835\udc59"`, "", ""},
		{"key order", `{"b":1,"a":2}`, "", ""},
		{"the same key in different objects", `{"a":{"a":1},"b":{"a":1}}`, "", ""},
		{"the replacement character", `"\ufffd"`, "", ""},
		{"as deep as allowed", deep(16), "", ""},

		{"nothing", "", "bad_body", "/payload"},
		{"white space only", " \n", "bad_body", "/payload"},
		{"too deep", deep(17), "too_deep", "/payload"},
		{"objects too deep", strings.Repeat(`{"a":`, 17) + "1" + strings.Repeat("}", 17), "too_deep", "/payload"},
		{"many on one level", "[" + strings.Repeat("{},", 40) + "[]]", "", ""},
		{"too deep and not closed", strings.Repeat("[", 1000), "too_deep", "/payload"},
		{"NUL", `{"a":["x","\u0000"]}`, "nul_character", "/payload/a/1"},
		{"NUL in a key", `{"a":{"b\u0000":1}}`, "nul_character", "/payload/a/b\x00"},
		{"half a pair", `"\ud835"`, "lone_surrogate", "/payload"},
		{"the wrong half first", `["\udc59\ud835"]`, "lone_surrogate", "/payload/0"},
		{"half a pair in a key", `{"\ud835":1}`, "lone_surrogate", "/payload"},
		{"a double key", `{"a":{"b":1,"b":2}}`, "duplicate_key", "/payload/a/b"},
		{"a double key, once escaped", `{"a":1,"\u0061":2}`, "duplicate_key", "/payload/a"},
		{"two values", `1 2`, "trailing_data", "/payload"},
		{"two objects", `{} {}`, "trailing_data", "/payload"},
		{"rubbish behind", `{} x`, "trailing_data", "/payload"},
		{"a comma behind", `[1],`, "trailing_data", "/payload"},
		{"not closed", `{"a":1`, "bad_json", ""},
		{"a second one not closed", `{} [`, "trailing_data", "/payload"},
		{"words", `hello`, "bad_json", ""},
		{"NaN", `NaN`, "bad_json", ""},
		{"a comment", `{} // x`, "trailing_data", "/payload"},
		{"a trailing comma", `[1,]`, "bad_json", ""},
		{"single quotes", `{'a':1}`, "bad_json", ""},
		{"one brace too many", `{}}`, "trailing_data", "/payload"},
		{"bytes behind that are no UTF-8", "{}\xf8", "trailing_data", "/payload"},
		{"a leading zero, which is a 0 and more", `01`, "trailing_data", "/payload"},
		{"a raw control byte", "\"\x01\"", "bad_json", ""},
		{"a byte order mark", "\ufeff{}", "bad_json", ""},
		{"bytes that are no UTF-8", "\"\xf8\"", "invalid_utf8", ""},
		{"overlong UTF-8", "\"\xc0\x80\"", "invalid_utf8", ""},
		{"a surrogate in UTF-8", "\"\xed\xa0\xb5\"", "invalid_utf8", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := service.CheckJSON([]byte(tt.text), 16, "/payload")
			if tt.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e, ok := errors.AsType[*lanegate.Error](err)
			if !ok || e.Code != tt.code {
				t.Fatalf("error %v, want %s", err, tt.code)
			}
			pointer := ""
			if len(e.Fields) > 0 {
				pointer = e.Fields[0].Pointer
			}
			if pointer != tt.pointer {
				t.Errorf("points at %q, want %q", pointer, tt.pointer)
			}
			if !strings.Contains(e.Message+fieldText(e), "othing was enqueued") {
				t.Errorf("message %q doesn't say that nothing was enqueued", e.Message)
			}
			if want := map[bool]lanegate.Kind{true: lanegate.KindBadRequest, false: lanegate.KindInvalid}[tt.pointer == ""]; e.Kind != want {
				t.Errorf("kind %d, want %d", e.Kind, want)
			}
		})
	}
}

func TestCheckJSONCountsItsLevels(t *testing.T) {
	for most, want := range map[int]string{1: "is nested deeper than 1 level", 2: "is nested deeper than 2 levels"} {
		e, ok := errors.AsType[*lanegate.Error](service.CheckJSON([]byte(strings.Repeat("[", 9)), most, ""))
		if !ok || e.Fields[0].Detail != want {
			t.Errorf("at most %d: %v, want %q", most, e, want)
		}
	}
}

func fieldText(e *lanegate.Error) string {
	var b strings.Builder
	for _, f := range e.Fields {
		b.WriteString(f.Detail)
	}
	return b.String()
}

// What is taken is JSON for everybody else, too, and harmless: valid UTF-8, no
// NUL or lone surrogate in any string, no double keys, no deeper than allowed.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{
		`null`, ` {"a":[1,2.50,{"b":"\ud835\udc59"}]} `, `{"a":1,"a":2}`, `"\u0000"`, `"\ud835"`, `"\\ud835"`, "\"\xf8\"", `[[[[[]]]]]`, `1e400`, `{} x`, `"�"`,
	} {
		f.Add([]byte(seed))
	}
	const maxDepth = 4
	f.Fuzz(func(t *testing.T, text []byte) {
		if service.CheckJSON(text, maxDepth, "") != nil {
			return
		}
		if !json.Valid(text) || !utf8.Valid(text) {
			t.Fatalf("took %q", text)
		}
		depth, err := harm(json.NewDecoder(strings.NewReader(string(text))))
		if err != nil {
			t.Fatalf("took %q: %v", text, err)
		}
		if depth > maxDepth {
			t.Fatalf("took %q, %d levels deep", text, depth)
		}
		// encoding/json writes U+FFFD for a lone surrogate, where none was before.
		var v any
		dec := json.NewDecoder(strings.NewReader(string(text)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("took %q: %v", text, err)
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), "\ufffd") && !strings.Contains(string(text), "\ufffd") && !strings.Contains(strings.ToLower(string(text)), `\ufffd`) {
			t.Fatalf("took %q with half a surrogate pair", text)
		}
	})
}

// harm reads one value token by token, with another library than the code under
// test, and says how deep it is and what is wrong with it.
func harm(dec *json.Decoder) (depth int, err error) {
	dec.UseNumber()
	type level struct {
		keys  map[string]bool // nil in arrays
		isKey bool
	}
	var stack []level
	for {
		tok, err := dec.Token()
		if err != nil {
			return depth, err
		}
		if delim, ok := tok.(json.Delim); ok && (delim == '}' || delim == ']') {
			stack = stack[:len(stack)-1]
		} else {
			if n := len(stack); n > 0 && stack[n-1].keys != nil {
				if top := &stack[n-1]; !top.isKey {
					top.isKey = true
				} else {
					top.isKey = false
					if top.keys[tok.(string)] {
						return depth, errors.New("double key")
					}
					top.keys[tok.(string)] = true
				}
			}
			if s, ok := tok.(string); ok && strings.ContainsRune(s, 0) {
				return depth, errors.New("NUL")
			}
			switch tok {
			case json.Delim('{'):
				stack = append(stack, level{keys: map[string]bool{}, isKey: true})
			case json.Delim('['):
				stack = append(stack, level{})
			}
			depth = max(depth, len(stack))
		}
		if len(stack) == 0 {
			return depth, nil
		}
	}
}

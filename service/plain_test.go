package service_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lanegate/lanegate/service"
)

// TestPlainValue: what most programs write is plain, and what is not quite right never is.
func TestPlainValue(t *testing.T) {
	for text, want := range map[string]int{
		`null`: 4, `true,`: 4, `false]`: 5, `0`: 1, `-0`: 2, `12.50e+3 `: 8, `1E5}`: 3, `01`: 1, `""`: 2, `"é\n\"\\\/" `: 12,
		`{}`: 2, `[ ]x`: 3, `{"day":"2026-11-29","store":1234,"kind":["a", {"b" : null}]},`: 60,
		`{"a":{"a":1},"b":{"a":1}}`:                           25,
		strings.Repeat("[", 16) + strings.Repeat("]", 16):     32,
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}  `: 49,
	} {
		if end, ok := service.PlainValue([]byte(text), 16); !ok || end != want {
			t.Errorf("PlainValue(%s) = %d, %v; want %d", text, end, ok, want)
		}
	}
	for _, text := range []string{
		"", " 1", "nul", "-", "1.", "1e", ".5", "+1", "NaN", `"`, `"\`, `"\x"`, `"\u0041"`, "\"\x01\"", "\"\xf8\"", `{"a":1`, `{"a"}`, `{a:1}`, `{"a":1,}`,
		`[1,]`, `[1 2]`, `{"a":1,"a":2}`, `{"\u0061":1}`, `{"é":1}`, strings.Repeat("[", 17) + strings.Repeat("]", 17),
	} {
		if end, ok := service.PlainValue([]byte(text), 16); ok {
			t.Errorf("PlainValue(%q) = %d, want that it is not plain", text, end)
		}
	}
}

// FuzzPlainValue holds the quick pass against the decoder: whatever it lets through,
// the decoder would, and it ends where the decoder does.
func FuzzPlainValue(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-0.5e+3,true,null,"é\n"],"b":{}}`, `{"a":1,"a":2}`, `"\u0000"`, "[\"\xed\xa0\xb5\"]", `[[[[[[[[1]]]]]]]] x`, `01`, `1.e5`, "\"\x7f\"",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		const depth = 8
		end, ok := service.PlainValue(text, depth)
		if !ok {
			return
		}
		dec := jsontext.NewDecoder(bytes.NewReader(text[:end]))
		for {
			tok, err := dec.ReadToken()
			if errors.Is(err, io.EOF) && dec.StackDepth() == 0 {
				break
			}
			if err != nil || dec.StackDepth() > depth || (tok.Kind() == '"' && strings.ContainsRune(tok.String(), 0)) {
				t.Fatalf("PlainValue takes %q up to byte %d; the decoder: %v, depth %d", text, end, err, dec.StackDepth())
			}
			if dec.StackDepth() == 0 && int(dec.InputOffset()) != end {
				t.Fatalf("PlainValue(%q) ends at byte %d, the decoder's value at %d", text, end, dec.InputOffset())
			}
		}
	})
}

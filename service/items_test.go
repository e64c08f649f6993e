package service_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/lanegate/lanegate/service"
)

// The items are parts of the text, byte for byte, whatever is wrong inside them.
func TestSplitItemsKeepsTheBytes(t *testing.T) {
	text := []byte(" {\n\"jobs\" : [ {\"a\":1, \"a\" : 1.50} ,\"\\ud800\\u0000\",[1,[2]] , -0 ] } ")
	items, err := service.SplitItems(text, "jobs", 4)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"a":1, "a" : 1.50}`, `"\ud800\u0000"`, `[1,[2]]`, `-0`}
	got := make([]string, len(items))
	for i, item := range items {
		got[i] = string(item)
		if cap(item) != len(item) {
			t.Errorf("item %d can be appended to, over its neighbour", i)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("items %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(10, func() { _, err = service.SplitItems(text, "jobs", 4) }); n > 30 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever is split is JSON for everybody else, and has the same items.
func FuzzSplitItems(f *testing.F) {
	for _, seed := range []string{`{"jobs":[1,{"class":"c"}]}`, `{"jobs":[]}`, ` { "jobs" : [ null ] } `, `{"jobs":[1],"jobs":[2]}`, `{"jobs":[1]}x`, `[1]`, "{\"jobs\":[\"\xf8\"]}", `{"j\u006fbs":["\ud800"]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		items, err := service.SplitItems(text, "jobs", 5)
		if err != nil {
			return
		}
		var doc map[string][]json.RawMessage
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatalf("took %q: %v", text, err)
		}
		if len(doc) != 1 || !slices.EqualFunc(items, doc["jobs"], func(a []byte, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Fatalf("%q gave %q, want %q", text, items, doc["jobs"])
		}
	})
}

package runlog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// keys lists the JSON fields of a type with their kinds, e.g. "verdict.verify[].class string".
func keys(prefix string, typ reflect.Type) []string {
	switch typ.Kind() {
	case reflect.Pointer:
		list := keys(prefix, typ.Elem())
		list[0] += " or null"
		return list
	case reflect.Slice:
		return keys(prefix+"[]", typ.Elem())
	case reflect.Map:
		return keys(prefix+"{}", typ.Elem())
	case reflect.Struct:
	default:
		return []string{prefix + " " + typ.Kind().String()}
	}
	if typ == reflect.TypeFor[time.Time]() {
		return []string{prefix + " time"}
	}
	var list []string
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			list = append(list, keys(prefix, f.Type)...)
		case f.IsExported():
			list = append(list, keys(strings.TrimPrefix(prefix+"."+name, "."), f.Type)...)
		}
	}
	return list
}

// The fields of the JSON report are a promise: none of them goes or changes its
// kind under the same schema number. New ones are added to the list, and to
// docs/advise.md.
func TestSchemaIsStable(t *testing.T) {
	file := filepath.Join("testdata", "schema.txt")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(keys("", reflect.TypeFor[Report]()), "\n") + "\n"
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s has the fields of schema %d (−promised +now):\n%s", file, SchemaVersion, diff)
	}
}

// Every field of the report is in the documentation, and every word that the
// documentation has for verdicts, roles and layouts is one.
func TestSchemaIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "advise.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, doc, ok := strings.Cut(string(text), "## `--json`")
	if !ok {
		t.Fatal("docs/advise.md has no part about --json")
	}
	words := map[string]bool{}
	for _, m := range regexp.MustCompile("`[^`]+`").FindAllString(doc, -1) {
		for _, w := range regexp.MustCompile(`[a-z0-9_]+`).FindAllString(m, -1) {
			words[w] = true
		}
	}
	for _, key := range keys("", reflect.TypeFor[Report]()) {
		path, _, _ := strings.Cut(key, " ")
		for _, name := range regexp.MustCompile(`[a-z0-9_]+`).FindAllString(path, -1) {
			if !words[name] {
				t.Errorf("%s: %s is not documented", path, name)
			}
		}
	}
	for _, word := range []string{Separate, Isolate, AddWorkers, LeaveAlone, FixFailures, CannotTell, layoutOneLine, layoutIsolate, layoutPromote, "blocker", "victim", "peer"} {
		if !words[word] {
			t.Errorf("%s is not documented", word)
		}
	}
}

// A report holds no null where a list is promised, whatever the log.
func TestListsAreNeverNull(t *testing.T) {
	for _, text := range []string{inOneLine(story()), inOneLine(story()[:3]), "class,start,end\na,1,2\n"} {
		b, err := json.Marshal(mustAnalyse(t, mustRead(t, text, ReadOptions{}), Options{}))
		if err != nil {
			t.Fatal(err)
		}
		var report map[string]any
		if err := json.Unmarshal(b, &report); err != nil {
			t.Fatal(err)
		}
		nullable := []string{"recorded_waits", "recorded_wait_own_share", "trend", "dies_early", "days_to_next_start"}
		var walk func(path string, v any)
		walk = func(path string, v any) {
			switch v := v.(type) {
			case map[string]any:
				for name, inner := range v {
					if inner == nil && !slices.Contains(nullable, name) {
						t.Errorf("%s.%s is null", path, name)
					}
					walk(path+"."+name, inner)
				}
			case []any:
				for _, inner := range v {
					walk(path+"[]", inner)
				}
			}
		}
		walk("", report)
	}
}

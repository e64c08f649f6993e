package lanegate

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The map of invariants in docs/architecture.md names tests that exist, and at
// least one for each of the thirteen.
func TestInvariantsHaveTheirTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	exist := testNames(t)
	row := regexp.MustCompile(`(?m)^\| (\d+) \|[^|]*\|(.*)\|$`)
	name := regexp.MustCompile("`([^`]*)`")
	next := 1
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		if m[1] != strconv.Itoa(next) {
			t.Fatalf("row %s of the map, want %d", m[1], next)
		}
		next++
		tests := name.FindAllStringSubmatch(m[2], -1)
		if len(tests) == 0 {
			t.Errorf("invariant %s has no test", m[1])
		}
		for _, test := range tests {
			if !exist[test[1]] {
				t.Errorf("invariant %s: there is no test %s", m[1], test[1])
			}
		}
	}
	if next != 14 {
		t.Errorf("the map has %d invariants, want 13", next-1)
	}
	for test := range exist {
		if strings.HasPrefix(test, "TestInvariant") && test != t.Name() && !strings.Contains(string(page), "`"+test+"`") {
			t.Errorf("%s is not in the map", test)
		}
	}
}

// testNames are the names of all tests of this repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == "bin" || len(d.Name()) > 1 && d.Name()[0] == '.') {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

package store

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The driver binds $N to the Nth argument, which plain SQLite does not do; every
// shared statement counts on it.
func TestDriverBindsByNumber(t *testing.T) {
	s := newStore(t, Options{})
	for q, want := range map[string]string{
		"SELECT $2 || $1 || $2":                           "two-onetwo",
		"SELECT $1 || (SELECT $2 || $1)":                  "-onetwo-one",
		"SELECT CASE WHEN $2 = 'two' THEN $1 ELSE '' END": "-one",
		"SELECT coalesce($2, $1) || $1":                   "two-one",
	} {
		var got string
		if err := s.write.Get(&got, q, "-one", "two"); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s = %q, want %q", q, got, want)
		}
	}
	var both []struct {
		A string `db:"a"`
	}
	const keyset = `SELECT v.column1 AS a FROM (VALUES ('a', 1), ('a', 2), ('b', 1)) AS v WHERE (v.column1, v.column2) > ($2, $1) ORDER BY 1`
	if err := s.write.Select(&both, keyset, 1, "a"); err != nil || len(both) != 2 || both[0].A != "a" || both[1].A != "b" {
		t.Errorf("keyset: %+v, %v", both, err)
	}
}

// modernc.org/sqlite is generated against one version of modernc.org/libc and
// breaks, sometimes silently, with others.
func TestLibcIsTheOneSQLiteNames(t *testing.T) {
	list := func(args ...string) map[string]string {
		out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-m", "-json"}, args...)...).Output()
		if err != nil {
			t.Fatalf("go list -m %v: %v", args, err)
		}
		var m struct{ Path, Version, GoMod string }
		if err := json.Unmarshal(out, &m); err != nil {
			t.Fatal(err)
		}
		return map[string]string{"version": m.Version, "gomod": m.GoMod}
	}
	chosen := list("modernc.org/libc")["version"]
	mod, err := os.ReadFile(list("modernc.org/sqlite")["gomod"])
	if err != nil {
		t.Fatal(err)
	}
	var named string
	for line := range strings.Lines(string(mod)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "modernc.org/libc" {
			named = f[1]
		}
	}
	if named == "" || named != chosen {
		t.Errorf("go.mod selects libc %s, modernc.org/sqlite names %q", chosen, named)
	}
}

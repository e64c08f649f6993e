package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// importGateway answers POST /run-log as a gateway that drops what ended before 2020.
func importGateway(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		type drop struct {
			Reason string `json:"reason"`
			Count  int    `json:"count"`
			Lines  []int  `json:"first_lines"`
		}
		var res struct {
			Added        int    `json:"added"`
			AlreadyThere int    `json:"already_there"`
			Dropped      []drop `json:"dropped"`
		}
		dec := json.NewDecoder(r.Body)
		for n := 1; ; n++ {
			var row struct {
				EndedAt time.Time `json:"ended_at"`
			}
			if err := dec.Decode(&row); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("row %d: %v", n, err)
				break
			}
			if row.EndedAt.Year() >= 2020 {
				res.Added++
				continue
			}
			if res.Dropped == nil {
				res.Dropped = []drop{{Reason: "it ended before what is kept", Lines: []int{n}}}
			}
			res.Dropped[0].Count++
		}
		if err := json.NewEncoder(w).Encode(res); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// An import that used no row of a file is no success, whoever dropped them; the
// other files are imported all the same.
func TestImportOfNothingIsNoSuccess(t *testing.T) {
	gateway := importGateway(t)
	dir := t.TempDir()
	file := func(name string, rows ...string) string {
		path := filepath.Join(dir, name)
		text := "class,submitted_at,started_at,finished_at,status\n" + strings.Join(rows, "\n") + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const (
		good       = "a,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,2026-03-01T00:01:00Z,ok"
		old        = "a,1970-03-01T00:00:00Z,1970-03-01T00:00:00Z,1970-03-01T00:01:00Z,ok"
		unfinished = "a,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,,running"
		unreadable = "a,2026-03-01T00:00:00Z,soon,2026-03-01T00:01:00Z,ok"
	)
	const nothing = "nothing was imported from "
	for _, tt := range []struct {
		name      string
		files     []string
		code      int
		out, errs string
	}{
		{"one row is used", []string{file("some.csv", good, old)}, 0, "2 rows, 1 used: 1 added", ""},
		{"all too old for the gateway", []string{file("old.csv", old, old)}, 1, "2 rows, 0 used", nothing + "old.csv: no row of it could be used"},
		{"all unfinished", []string{file("open.csv", unfinished)}, 1, "1 rows, 0 used: 0 added, 0 there already, 1 unfinished", nothing + "open.csv"},
		{"nothing readable", []string{file("bad.csv", unreadable)}, 1, "dropped 1: bad.csv, line 2", nothing + "bad.csv"},
		{"one of two files", []string{filepath.Join(dir, "old.csv"), filepath.Join(dir, "some.csv")}, 1, "1 used: 1 added", nothing + "old.csv:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runLine(t, "", nil, append([]string{"import", "--url", gateway}, tt.files...)...).want(t, tt.code, tt.out, tt.errs)
			o := runLine(t, "", nil, append([]string{"import", "--json", "--url", gateway}, tt.files...)...)
			o.want(t, tt.code, "", tt.errs)
			if !json.Valid([]byte(o.out)) {
				t.Errorf("the account is no JSON: %s", o.out)
			}
		})
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nightLog is a log of one line in which heavy makes pos-sales wait every night.
func nightLog() string {
	var b strings.Builder
	b.WriteString("class,submitted_at,started_at,finished_at,status\n")
	row := func(class string, due, start, end time.Time) {
		fmt.Fprintf(&b, "%s,%s,%s,%s,ok\n", class, due.Format(time.DateTime), start.Format(time.DateTime), end.Format(time.DateTime))
	}
	for d := range 10 {
		night := time.Date(2026, 3, 2+d, 19, 0, 0, 0, time.UTC)
		end := night.Add(10 * time.Hour)
		row("heavy", night, night, end)
		row("pos-sales", night.Add(time.Hour), end, end.Add(5*time.Minute))
		row("weather", night.Add(2*time.Hour), end.Add(5*time.Minute), end.Add(6*time.Minute))
	}
	return b.String()
}

func TestAdvise(t *testing.T) {
	file := filepath.Join(t.TempDir(), "night.csv")
	if err := os.WriteFile(file, []byte(nightLog()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("the verdict comes first", func(t *testing.T) {
		o := runLine(t, "", nil, "advise", file, "--tz", "UTC")
		o.want(t, 0, "pos-sales", "")
		if !strings.HasPrefix(o.out, "Isolate heavy: it makes the others wait.\n") {
			t.Errorf("output begins with %.80q", o.out)
		}
	})
	t.Run("json from standard input", func(t *testing.T) {
		o := runLine(t, nightLog(), nil, "advise", "-", "--tz", "UTC", "--json", "--resource", "db=15", "--units", "pos-sales=5", "--units", "weather=db:1")
		o.want(t, 0, `"kind": "isolate"`, "")
		var report struct {
			Schema  int `json:"schema"`
			Layouts []struct {
				Name  string         `json:"name"`
				Peaks map[string]int `json:"peak_units"`
			} `json:"layouts"`
		}
		if err := json.Unmarshal([]byte(o.out), &report); err != nil || report.Schema != 1 || len(report.Layouts) != 10 {
			t.Fatalf("%v: %+v", err, report)
		}
		// heavy declares nothing: 1 of the pool; beside it pos-sales takes 5.
		if p := report.Layouts[2]; p.Name != "promote" || p.Peaks["db"] != 6 {
			t.Errorf("promote: %+v", p)
		}
	})
	t.Run("a page beside the text", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "report.html")
		o := runLine(t, "", nil, "advise", file, "--tz", "UTC", "--html", page)
		o.want(t, 0, "Isolate heavy", "lanegate: wrote "+page)
		text, err := os.ReadFile(page)
		if err != nil || !strings.HasPrefix(string(text), "<!DOCTYPE html>") || !strings.HasSuffix(string(text), "</html>\n") || !strings.Contains(string(text), "<h1>Isolate heavy") {
			t.Errorf("%v: the page is %.80q", err, text)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(page), ".lanegate*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%v: left behind: %v", err, left)
		}
		// A file of that name is replaced; a folder that isn't there is an error.
		runLine(t, "", nil, "advise", file, "--tz", "UTC", "--html", page, "--json").want(t, 0, `"verify_command": "curl -X POST `, "")
		runLine(t, "", nil, "advise", file, "--tz", "UTC", "--html", filepath.Join(page, "x", "y.html")).want(t, exitUsage, "", "--html")
	})
	t.Run("wrong usage is explained", func(t *testing.T) {
		for _, tt := range []struct {
			want string
			args []string
		}{
			{"line 2, column 7: the submitted time can't be used", []string{file}},
			{"no such file", []string{file + ".gz"}},
			{"is a directory", []string{filepath.Dir(file)}},
			{`"Mars" is not a zone`, []string{file, "--tz", "Mars"}},
			{`--columns: "when" is not something a column can be about`, []string{file, "--columns", "when=x"}},
			{"needs both --start-regex and --end-regex", []string{file, "--start-regex", "(?P<time>.)"}},
			{"--end-regex: error parsing regexp", []string{file, "--end-regex", "("}},
			{`--resource "db" is not of the form NAME=NUMBER`, []string{file, "--resource", "db"}},
			{`must name the resource`, []string{file, "--units", "heavy=5"}},
			{`class heavy takes 16 of db, which has 15: it could never run`, []string{file, "--tz", "UTC", "--resource", "db=15", "--units", "heavy=16"}},
			{`units are given for class "hevy", which the log doesn't have; it has "heavy", "pos-sales", "weather"`, []string{file, "--tz", "UTC", "--resource", "db=15", "--units", "hevy=1"}},
			{"--tolerable must be more than nothing", []string{file, "--tolerable", "0s"}},
			{"must be one of", []string{file, "--format", "xls"}},
			{"can be given once", []string{"-", "-"}},
		} {
			runLine(t, "", nil, append([]string{"advise"}, tt.args...)...).want(t, exitUsage, "", tt.want)
		}
	})
}

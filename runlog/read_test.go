package runlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

func mustZone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func gzipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// worker expressions for a log such as "2026-03-02 01:00:00 INFO start pos-sales 17".
var (
	startLine = regexp.MustCompile(`^(?P<time>\S+ \S+) INFO start (?P<class>\S+) (?P<id>\d+)`)
	endLine   = regexp.MustCompile(`^(?P<time>\S+ \S+) INFO end (?P<id>\d+) (?P<status>\w+)`)
)

// Every format tells of the same two runs: pos-sales, submitted 01:00, ran 02:00 to
// 02:05, good; and one that failed, due 03:00, ran 03:00:10 to 03:10:10.
func TestFormats(t *testing.T) {
	at := func(hms string) int64 {
		v, err := time.Parse(time.RFC3339, "2026-03-02T"+hms+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return v.UnixMicro()
	}
	want := []Run{
		{Ready: at("01:00:00"), Start: at("02:00:00"), Took: 300e6, HasReady: true, HasStart: true},
		{Ready: at("03:00:00"), Start: at("03:00:10"), Took: 600e6, Result: Failure, HasReady: true, HasStart: true},
	}
	csvText := "class,submitted_at,started_at,finished_at,status\n" +
		"pos-sales,2026-03-02T01:00:00Z,2026-03-02T02:00:00Z,2026-03-02T02:05:00Z,succeeded\n" +
		"pos-sales,2026-03-02T03:00:00Z,2026-03-02T03:00:10Z,2026-03-02T03:10:10Z,failed\n"
	for _, tt := range []struct {
		name, text string
		opts       ReadOptions
		format     Format
	}{
		{"CSV", csvText, ReadOptions{}, CSV},
		{"CSV with a byte order mark and CRLF", "\xef\xbb\xbf" + strings.ReplaceAll(csvText, "\n", "\r\n"), ReadOptions{}, CSV},
		{"CSV in gzip", gzipped(t, csvText), ReadOptions{}, CSV},
		{"semicolons and local times", strings.NewReplacer(",", ";", "Z", "", "T", " ").Replace(csvText), ReadOptions{Zone: time.UTC}, CSV},
		{"tabs and offsets", strings.NewReplacer(",", "\t", "T01:00:00Z", "T02:00:00+01:00").Replace(csvText), ReadOptions{}, CSV},
		{"named columns", strings.Replace(csvText, "class,submitted_at,started_at", "a,b,c", 1), ReadOptions{Columns: Columns{"class": "a", "submitted": "b", "started": "c"}}, CSV},
		{
			"durations instead of ends",
			"job_name,created_at,started_at,duration_s,state\npos-sales,2026-03-02T01:00:00Z,2026-03-02T02:00:00Z,300,SUCCESS\n" +
				"pos-sales,2026-03-02T03:00:00Z,2026-03-02T03:00:10Z,00:10:00,FAILED\n", ReadOptions{}, CSV,
		},
		{
			"Unix seconds and milliseconds", fmt.Sprintf("task,submit,start,end_ms,exit_code\npos-sales,%d,%d,%d,0\npos-sales,%d,%d.0,%d,137\n",
				at("01:00:00")/1e6, at("02:00:00")/1e6, at("02:05:00")/1e3, at("03:00:00")/1e6, at("03:00:10")/1e6, at("03:10:10")/1e3), ReadOptions{}, CSV,
		},
		{
			"JSON lines", `{"class":"pos-sales","submitted_at":"2026-03-02T01:00:00Z","started_at":"2026-03-02T02:00:00Z","ended_at":"2026-03-02T02:05:00Z","outcome":"succeeded","units":{"db":5}}` + "\n\n" +
				`{"class":"pos-sales","submitted_at":"2026-03-02T01:00:00Z","ready_at":"2026-03-02T03:00:00Z","started_at":"2026-03-02T03:00:10Z","duration":"10m","outcome":"timed_out","attempt":2}` + "\n",
			ReadOptions{}, JSON,
		},
		{
			"sacct -P", "JobID|JobName|Submit|Eligible|Start|End|State|ExitCode\n" +
				"17|pos-sales|2026-03-02T00:30:00|2026-03-02T01:00:00|2026-03-02T02:00:00|2026-03-02T02:05:00|COMPLETED|0:0\n" +
				"17.batch|batch|2026-03-02T02:00:00|2026-03-02T02:00:00|2026-03-02T02:00:00|2026-03-02T02:05:00|COMPLETED|0:0\n" +
				"18|pos-sales|2026-03-02T03:00:00|2026-03-02T03:00:00|2026-03-02T03:00:10|2026-03-02T03:10:10|TIMEOUT|0:0\n", ReadOptions{Zone: time.UTC}, Slurm,
		},
		{
			"SWF", fmt.Sprintf("; UnixStartTime: %d\n1 0 3600 300 1 -1 -1 1 -1 -1 1 7 -1 -1 -1 -1 -1 -1\n2 7200 10 600 1 -1 -1 1 -1 -1 0 7 -1 -1 -1 -1 -1 -1\n", at("01:00:00")/1e6),
			ReadOptions{}, SWF,
		},
		{
			"Airflow", "task_id,dag_id,run_id,start_date,end_date,duration,state,try_number,queued_dttm\n" +
				"load,sales,r1,2026-03-02 02:00:00.000000+00,2026-03-02 02:05:00+00,300,success,1,2026-03-02 01:00:00+00\n" +
				"load,sales,r2,2026-03-02 03:00:10+00,2026-03-02 03:10:10+00,600,failed,1,2026-03-02 03:00:00+00\n", ReadOptions{}, CSV,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := mustRead(t, tt.text, tt.opts)
			if diff := cmp.Diff(want, log.Runs); diff != "" {
				t.Errorf("runs (−want +got):\n%s", diff)
			}
			name := map[string]string{"SWF": "user 7", "Airflow": "sales/load"}[tt.name]
			if name == "" {
				name = "pos-sales"
			}
			if !slices.Equal(log.Classes, []string{name}) {
				t.Errorf("classes %q, want %q", log.Classes, name)
			}
			if a := log.Accounts[0]; a.Format != string(tt.format) || a.Used != 2 || a.dropped() != 0 {
				t.Errorf("account %+v", a)
			}
		})
	}
}

func TestWorkerLog(t *testing.T) {
	text := "2026-03-02 00:59:00 INFO hello\n" +
		"2026-03-02 01:00:00 INFO start pos-sales 1\n2026-03-02 01:00:30 INFO start weather 2\n" +
		"2026-03-02 01:05:00 INFO end 1 ok\n2026-03-02 01:06:00 INFO end 2 failed\n" +
		"2026-03-02 01:07:00 INFO end 9 ok\n2026-03-02 02:00:00 INFO start weather 3\n"
	log := mustRead(t, text, ReadOptions{Zone: time.UTC, StartLine: startLine, EndLine: endLine})
	if len(log.Runs) != 2 || log.Runs[0].Took != 300e6 || log.Runs[1].Took != 330e6 || log.Runs[1].Result != Failure || log.Runs[0].HasReady {
		t.Errorf("runs %+v", log.Runs)
	}
	a := log.Accounts[0]
	if a.Rows != 4 || a.Used != 2 || a.Unfinished != 1 || a.Ignored != 1 || len(a.Dropped) != 1 {
		t.Errorf("account %+v", a)
	}
	if d := a.Dropped[0]; !strings.Contains(d.Example, `line 6, column 1: an end without a start: "9"`) {
		t.Errorf("dropped %+v", d)
	}
	for _, bad := range [][2]string{
		{`(?P<time>\S+)`, `(?P<time>\S+)`}, {`(?P<class>\S+)`, `(?P<time>\S+)`}, {`(?P<time>.)(?P<class>.)(?P<id>.)`, `(?P<time>.)`},
		{`(?P<time>.)(?P<class>.)`, `(?P<time>.)`}, {`(?P<time>.)(?P<class>.)(?P<pid>.)`, `(?P<time>.)(?P<class>.)`},
	} {
		if err := CheckLineRegexps(regexp.MustCompile(bad[0]), regexp.MustCompile(bad[1])); err == nil {
			t.Errorf("%q and %q can't work together", bad[0], bad[1])
		}
	}
}

func TestEveryRowIsAccountedFor(t *testing.T) {
	text := "class,submitted,started,finished,status,attempt\n" +
		"a,2026-03-02T01:00:00.500Z,2026-03-02T01:00:00Z,2026-03-02T01:00:20Z,ok,1\n" + // clamped
		"a,2026-03-02T01:00:03Z,2026-03-02T01:00:00Z,2026-03-02T01:00:20Z,ok,1\n" + // starts 3 s early
		"a,2026-03-02T01:00:00Z,2026-03-02T01:00:00Z,2026-03-02T00:59:00Z,ok,1\n" + // ends before it starts
		"a,2026-03-02T01:00:00Z,2026-03-02T01:00:00Z,,running,1\n" + // unfinished
		"a,2026-03-02T01:00:00Z,,,pending,1\n" + // never started
		",2026-03-02T01:00:00Z,2026-03-02T01:00:00Z,2026-03-02T01:00:20Z,ok,1\n" + // no class
		"a,2026-03-02T01:00:00Z,2026-13-02T01:00:00Z,2026-03-02T01:00:20Z,ok,1\n" + // no such month
		"a,2026-03-02T01:00:00Z,2026-03-02T05:00:00Z,2026-03-02T05:00:00Z,ok,2\n" + // a repeat, of zero length
		"a,b\n"
	log := mustRead(t, text, ReadOptions{})
	a := log.Accounts[0]
	if a.Rows != 9 || a.Used != 2 || a.Clamped != 1 || a.Unfinished != 1 || a.NeverStarted != 1 || a.Repeats != 1 || a.dropped() != 5 {
		t.Errorf("account %+v", a)
	}
	if a.Rows != a.Used+a.Unfinished+a.NeverStarted+a.Steps+a.dropped() {
		t.Error("the rows don't add up")
	}
	var lines []int
	for _, d := range a.Dropped {
		lines = append(lines, d.Lines...)
	}
	if slices.Sort(lines); !slices.Equal(lines, []int{3, 4, 7, 8, 10}) {
		t.Errorf("dropped on lines %v", lines)
	}
	if r := log.Runs[0]; r.Ready != r.Start || r.Took != 20e6 {
		t.Errorf("clamped %+v: the start must stay", r)
	}
	if r := log.Runs[1]; r.HasReady || r.Took != 0 {
		t.Errorf("repeat %+v: its wait is not known", r)
	}
}

func TestOpenRunsWithADurationSoFar(t *testing.T) {
	text := "class,created_at,exec_time_seconds,status\na,2026-03-02T01:00:00Z,12.5,SUCCEED\na,2026-03-02T01:00:00Z,3,PROCESSING\na,2026-03-02T01:00:00Z,0,PENDING\n"
	if a := mustRead(t, text, ReadOptions{}).Accounts[0]; a.Used != 1 || a.NeverStarted != 2 {
		t.Errorf("account %+v", a)
	}
}

// In Berlin, 2026-10-25 has 02:00 to 03:00 twice, and 2026-03-29 has no such hour.
func TestClockChanges(t *testing.T) {
	for _, tt := range []struct {
		name, started, finished string
		took                    time.Duration
	}{
		{"over the repeated hour", "2026-10-25 01:30:00", "2026-10-25 03:30:00", 3 * time.Hour},
		{"back in the repeated hour", "2026-10-25 02:50:00", "2026-10-25 02:10:00", 20 * time.Minute},
		{"within the repeated hour", "2026-10-25 02:10:00", "2026-10-25 02:50:00", 40 * time.Minute},
		{"over the missing hour", "2026-03-29 01:30:00", "2026-03-29 03:30:00", time.Hour},
		{"a day without a change", "2026-07-01 01:30:00", "2026-07-01 03:30:00", 2 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := "class,start,end\na," + tt.started + "," + tt.finished + "\n"
			log := mustRead(t, text, ReadOptions{Zone: mustZone(t, "Europe/Berlin")})
			if got := time.Duration(log.Runs[0].Took) * time.Microsecond; got != tt.took {
				t.Errorf("took %v, want %v", got, tt.took)
			}
		})
	}
}

// Whatever local times the clocks show of runs that really happened, no duration
// and no wait comes out negative, and only the repeated hour is ever in doubt.
func TestClockChangesNeverGiveNegativeDurations(t *testing.T) {
	zone := mustZone(t, "Europe/Berlin")
	begin := time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC)
	var b strings.Builder
	b.WriteString("class,submitted,started,finished\n")
	const layout = "2006-01-02 15:04:05"
	n := 0
	for submit := begin; submit.Before(begin.Add(8 * time.Hour)); submit = submit.Add(7 * time.Minute) {
		for _, wait := range []time.Duration{0, 9 * time.Minute, 70 * time.Minute} {
			for _, took := range []time.Duration{time.Second, 31 * time.Minute, 2 * time.Hour} {
				start := submit.Add(wait)
				fmt.Fprintf(&b, "a,%s,%s,%s\n", submit.In(zone).Format(layout), start.In(zone).Format(layout), start.Add(took).In(zone).Format(layout))
				n++
			}
		}
	}
	log := mustRead(t, b.String(), ReadOptions{Zone: zone})
	if len(log.Runs) != n {
		t.Errorf("%d of %d runs used: %+v", len(log.Runs), n, log.Accounts[0].Dropped)
	}
	for _, r := range log.Runs {
		if r.Took < 0 || r.Start < r.Ready {
			t.Fatalf("negative: %+v", r)
		}
	}
}

func TestOwnRecords(t *testing.T) {
	at := func(m int) *time.Time { v := monday.Add(time.Duration(m) * time.Minute); return &v }
	var log Log
	err := log.Add(
		lanegate.RunRecord{Class: "b", Attempt: 1, SubmittedAt: at(5), ReadyAt: at(6), StartedAt: *at(7), Duration: time.Minute, Outcome: lanegate.Succeeded},
		lanegate.RunRecord{Class: "a", Attempt: 2, SubmittedAt: at(1), StartedAt: *at(3), Duration: time.Minute, Outcome: lanegate.Lost},
		lanegate.RunRecord{Class: "a", Verification: "v", StartedAt: *at(3), Duration: time.Minute, Outcome: lanegate.Succeeded},
	)
	if err != nil {
		t.Fatal(err)
	}
	log.sort()
	want := []Run{
		{Ready: at(3).UnixMicro(), Start: at(3).UnixMicro(), Took: 60e6, Class: 1, Result: Failure, HasStart: true},
		{Ready: at(6).UnixMicro(), Start: at(7).UnixMicro(), Took: 60e6, HasReady: true, HasStart: true},
	}
	if diff := cmp.Diff(want, log.Runs); diff != "" {
		t.Errorf("runs (−want +got):\n%s", diff)
	}
}

func TestMalformedLogsAreExplained(t *testing.T) {
	const head = "class,submitted,started,finished\n"
	const good = "a,2026-03-02T01:00:00Z,2026-03-02T01:00:00Z,2026-03-02T01:00:20Z\n"
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "line 1, column 1: the file is empty"},
		{"blank", "\n\n \n", "line 1, column 1: the file has only empty lines"},
		{"a header alone", head, "line 2, column 1: there is no row after the header"},
		{"no class column", "x,started,finished\n1,2,3\n", `line 1, column 1: no column looks like class; the columns are "x", "started", "finished". Say which with --columns class=…`},
		{"no end", "class,started\na,1\n", "no column looks like finished (or duration)"},
		{"no start", "class,finished\na,1\n", "no column looks like started"},
		{"no zone", head + "a,2026-03-02 01:00:00,,\n", `line 2, column 3: the submitted time can't be used: "2026-03-02 01:00:00": it has no zone; say which with --tz`},
		{"no time", head + "a,yesterday,today,now\n", `line 2, column 3: the submitted time can't be used: "yesterday": it is not a time such as`},
		{"no such day", head + "a,2026-02-30T01:00:00Z,,\n", `line 2, column 3`},
		{"a far year", head + "a,2026-03-02T01:00:00Z,9999-01-01T00:00:00Z,\n", `line 2, column 24: the started time can't be used: "9999-01-01T00:00:00Z": it lies outside the years 1900 to 2200`},
		{"an open quote", head + good + "\"a,2026-03-02T01:00:00Z\n", `line 3, column 25: there is a stray "`},
		{"a bare quote", head + "a\"b,1,2,3\n", `line 2, column 2: there is a bare "`},
		{"too few fields", head + "a,1,2\n", "line 2, column 1: the row has another number of fields than the header: 3 instead of 4"},
		{"ends before it starts", head + "a,1,10,5\n", "line 2, column 8: it ends before it starts"},
		{"starts before it was submitted", head + "a,100,10,50\n", "line 2, column 7: it starts more than 2 s before it was submitted"},
		{"nothing has ended", head + "a,1,2,\n", "of 1 run none has ended"},
		{"a negative duration", "class,started,duration_s\na,1,-5\n", `line 2, column 5: the duration can't be used: "-5": a duration can't be negative`},
		{"no duration", "class,started,duration_s\na,1,long\n", `line 2, column 5: the duration can't be used: "long": it is not a duration`},
		{"broken JSON", `{"class":"a",` + "\n", "line 1, column 14: the line is not a JSON object: it ends in the middle"},
		{"JSON with a slip", "{\"class\":\"a\"}\n{\"class\" \"b\"}\n", "line 2, column 10: the line is not a JSON object"},
		{"two objects on a line", `{"class":"a"} {"class":"b"}`, "line 1, column 14: there is more than one JSON value on the line"},
		{"a JSON array", `[{"class":"a"}]`, "line 1, column 1: this is one JSON array; write one object per line: jq -c '.[]'"},
		{"JSON without a class", `{"started":1,"finished":2}`, "no column looks like class"},
		{"HTML", "<!doctype html>", "line 1, column 1: this looks like HTML or XML"},
		{"UTF-16", "\xff\xfec\x00", "line 1, column 1: the file is UTF-16; convert it first: iconv"},
		{"binary", "abc\nde\x00f", "line 2, column 3: there is a zero byte: this is not a text file"},
		{"cut gzip", gzipped(t, strings.Repeat(head, 9000))[:60], "the gzip data is damaged or cut off"},
		{"SWF with 17 fields", "; Version: 2.2\n1 0 -1 5 1 -1 -1 1 -1 -1 1 7 -1 -1 -1 -1 -1\n", "line 2, column 1: the line has not 18 fields: it has 17"},
		{"SWF with a word", "; Version: 2.2\n1 0 -1 abc 1 -1 -1 1 -1 -1 1 7 -1 -1 -1 -1 -1 -1\n", `line 2, column 8: a field is not a number that a log can have: "abc"`},
		{"a class that is no text", head + "\xc3\x28,1,2,3\n", "line 2, column 1: the class is not UTF-8 text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(t.Context(), []Source{{"night.csv", strings.NewReader(tt.text)}}, ReadOptions{})
			e, ok := errors.AsType[*lanegate.Error](err)
			if !ok || e.Kind != lanegate.KindInvalid {
				t.Fatalf("error %v, want one for the caller", err)
			}
			if !strings.HasPrefix(e.Message, "night.csv") || !strings.Contains(e.Message, tt.want) {
				t.Errorf("message %q\nwant      %q", e.Message, tt.want)
			}
		})
	}
}

func TestTooManyClasses(t *testing.T) {
	var b strings.Builder
	b.WriteString("class,started,finished\n")
	for i := range maxClasses + 1 {
		fmt.Fprintf(&b, "job-%d,1,2\n", i)
	}
	_, err := Read(t.Context(), []Source{{"x", strings.NewReader(b.String())}}, ReadOptions{})
	if err == nil || !strings.Contains(err.Error(), "line 10002, column 1") || !strings.Contains(err.Error(), "--columns class=…") {
		t.Errorf("error %v", err)
	}
}

func TestColumns(t *testing.T) {
	if c, err := ParseColumns("class=a, started=b"); err != nil || c["class"] != "a" || c["started"] != "b" {
		t.Errorf("%v, %v", c, err)
	}
	for _, bad := range []string{"class", "class=", "who=a", "id=a", "class=a,class=b"} {
		if _, err := ParseColumns(bad); err == nil {
			t.Errorf("%q is no list of columns", bad)
		}
	}
	_, err := Read(t.Context(), []Source{{"x", strings.NewReader("class,started,finished\na,1,2\n")}}, ReadOptions{Columns: Columns{"class": "kind"}})
	if err == nil || !strings.Contains(err.Error(), `there is no column "kind" (given for class)`) {
		t.Errorf("error %v", err)
	}
}

func FuzzAuto(f *testing.F) {
	fuzzReader(f, Auto, "", "a;b\n\"x", gzipped(f, "class,start,end\na,1,2\n"), "\xef\xbb\xbfclass\tstart\tend\na\t1\t2")
}

func FuzzCSV(f *testing.F) {
	fuzzReader(f, CSV, "class,submitted,started,finished,status\na,1,2,3,ok\n", "class,start,end\na,2026-10-25 02:50:00,2026-10-25 02:10:00\n",
		"dag_id,task_id,start_date,duration,try_number\nd,t,2026-10-25 02:50:00+00,5,2\n")
}

func FuzzSlurm(f *testing.F) {
	fuzzReader(f, Slurm, "JobID|JobName|Submit|Start|End|State\n1|a|1|2|3|FAILED\n1.batch|b|1|2|3|COMPLETED\n", "JobID|JobName|Start|Elapsed|\n1|a|Unknown|1-02:00:00|\n")
}

func FuzzJSON(f *testing.F) {
	fuzzReader(f, JSON, `{"class":"a","submitted":1,"duration":"26h","attempt":2}`, `{"class":null,"started":{"x":1},"end_ms":1e300}`)
}

func FuzzSWF(f *testing.F) {
	fuzzReader(f, SWF, "; UnixStartTime: 5\n1 0 -1 5 1 -1 -1 1 -1 -1 1 7 -1 -1 -1 -1 -1 -1\n", "1 0 3 5 1 -1 -1 1 -1 -1 5 7 2 9 -1 -1 -1 -1")
}

func FuzzLines(f *testing.F) {
	fuzzReader(f, Lines, "2026-03-02 01:00:00 INFO start a 1\n2026-10-25 02:10:00 INFO end 1 ok\n")
}

// fuzzReader holds of any text that every row is accounted for, no run is
// impossible, and what was read can be analysed and shown.
func fuzzReader(f *testing.F, format Format, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	zone := mustZone(f, "Europe/Berlin")
	f.Fuzz(func(t *testing.T, text string) {
		opts := ReadOptions{Zone: zone, Format: format}
		if format == Lines {
			opts.StartLine, opts.EndLine = startLine, endLine
		}
		log, err := Read(t.Context(), []Source{{"fuzz", strings.NewReader(text)}}, opts)
		if err != nil {
			return
		}
		a := log.Accounts[0]
		if a.Used != len(log.Runs) || a.Rows != a.Used+a.Unfinished+a.NeverStarted+a.Steps+a.dropped() {
			t.Fatalf("rows don't add up: %+v, %d runs", a, len(log.Runs))
		}
		for _, r := range log.Runs {
			if r.Took < 0 || r.Start < r.Ready || int(r.Class) >= len(log.Classes) {
				t.Fatalf("impossible run %+v", r)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		report, err := Analyse(ctx, log, Options{})
		if err != nil {
			t.Skip(err) // too long for a fuzz run
		}
		textOf(t, report)
		if err := report.HTML(io.Discard); err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(report); err != nil {
			t.Fatal(err) // NaN or infinite somewhere
		}
	})
}

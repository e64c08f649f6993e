package runlog

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// element is a tag of a page with its attributes and everything inside as text.
type element struct {
	name string
	attr map[string]string
	text strings.Builder
}

// parsePage reads a page as strictly as XML, but for HTML's void elements, and
// fails when tags don't match.
func parsePage(t *testing.T, page string) []*element {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var all, open []*element
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			e := &element{name: x.Name.Local, attr: map[string]string{}}
			for _, a := range x.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			all, open = append(all, e), append(open, e)
		case xml.EndElement:
			if last := open[len(open)-1]; last.name != x.Name.Local {
				t.Fatalf("</%s> ends <%s>", x.Name.Local, last.name)
			}
			open = open[:len(open)-1]
		case xml.CharData:
			for _, e := range open {
				e.text.Write(x)
			}
		}
	}
	if len(open) > 0 {
		t.Fatalf("<%s> is never ended", open[0].name)
	}
	return all
}

// elementsNamed lists the elements with a name.
func elementsNamed(all []*element, name string) []*element {
	return slices.DeleteFunc(slices.Clone(all), func(e *element) bool { return e.name != name })
}

func pageOf(t *testing.T, r *Report) (string, []*element) {
	t.Helper()
	var b strings.Builder
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	all := parsePage(t, page)
	checkPage(t, page, all)
	return page, all
}

// checkPage holds what is true of every page: it asks the network for nothing, and
// says in words what it shows.
func checkPage(t *testing.T, page string, all []*element) {
	t.Helper()
	for _, bad := range []string{"ZgotmplZ", "NaN", "Inf", "url(", "@import"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	ids := map[string]bool{}
	for _, e := range all {
		for _, a := range []string{"src", "href", "srcset", "onload", "onerror", "onclick"} {
			if v, ok := e.attr[a]; ok {
				t.Errorf("<%s %s=%q>", e.name, a, v)
			}
		}
		if slices.Contains([]string{"script", "link", "iframe", "object", "form", "img"}, e.name) {
			t.Errorf("the page has <%s>", e.name)
		}
		ids[e.attr["id"]] = true
	}
	for _, e := range all {
		if id := e.attr["aria-labelledby"]; id != "" && !ids[id] {
			t.Errorf("<%s> is labelled by %q, which is not there", e.name, id)
		}
		if e.name == "svg" && (e.attr["role"] != "img" || len(e.attr["aria-label"]) < 10) {
			t.Errorf("a plot without words: %v", e.attr)
		}
	}
	if tables, captions := elementsNamed(all, "table"), elementsNamed(all, "caption"); len(tables) != len(captions) || len(tables) == 0 {
		t.Errorf("%d tables with %d captions", len(tables), len(captions))
	}
	if h1 := elementsNamed(all, "h1"); len(h1) != 1 {
		t.Errorf("%d headings of the first level", len(h1))
	}
}

func textIn(all []*element, name string) string {
	var b strings.Builder
	for _, e := range elementsNamed(all, name) {
		b.WriteString(e.text.String() + "\n")
	}
	return b.String()
}

func TestPageTellsTheStory(t *testing.T) {
	jobs := story()
	for d := range 7 { // report needs what extract writes
		jobs = append(jobs,
			job{"extract", time.Duration(d)*day + 20*hour, 10 * time.Minute, false},
			job{"report", time.Duration(d)*day + 20*hour + time.Minute, 5 * time.Minute, false})
	}
	log := mustRead(t, inOneLine(jobs), ReadOptions{})
	r := mustAnalyse(t, log, Options{Resources: db15, Units: map[string]lanegate.Units{"heavy": {"db": 5}}})
	page, all := pageOf(t, r)

	if h1 := textIn(all, "h1"); !strings.Contains(h1, "Isolate heavy: it makes the others wait.") {
		t.Errorf("the heading is %q", h1)
	}
	if got := elementsNamed(all, "pre")[0].text.String(); got != r.Verdict.CLI || !strings.HasPrefix(got, "lanegate verify heavy ") {
		t.Errorf("the command line is %q, want %q", got, r.Verdict.CLI)
	}
	if got := elementsNamed(all, "pre")[1].text.String(); got != r.Verdict.Command || !strings.Contains(got, `{"class": "heavy", "copies": 1}`) {
		t.Errorf("the command is %q, want %q", got, r.Verdict.Command)
	}
	order := []string{"What to do now", "Verify first", "Who blocks whom", "Waits before and after", "What if", "Slow jobs to mend", "How long jobs take", "Orders that the line kept", "What became of every row"}
	if got := textIn(all, "h2"); len(strings.Split(strings.TrimSpace(got), "\n")) != len(order) {
		t.Errorf("headings:\n%s", got)
	}
	at := 0
	for _, h := range order {
		next := strings.Index(page[at:], ">"+h)
		if next < 0 {
			t.Fatalf("%q is not there, or comes too early", h)
		}
		at += next
	}
	labels := map[string]bool{}
	for _, e := range elementsNamed(all, "svg") {
		labels[e.attr["aria-label"]] = true
	}
	for _, want := range []string{
		"heavy: 7 runs, 5 failed (71 %), 90 % of the run time. Of all runs half take up to 12 h, 90 % up to 35 h, 99 % up to 35 h, the longest 35 h.",
		"pos-sales, Promoted: nobody waits.",
	} {
		if !labels[want] {
			t.Errorf("no plot says %q, of\n%s", want, strings.Join(sortedKeys(labels), "\n"))
		}
	}
	mustContain(t, textIn(all, "table"), "report started after extract had ended in 7 of 7 cycles", "As recorded", "2 workers")
}

// Every kind of verdict and every real log makes a page that holds together.
func TestPagesOfAllKinds(t *testing.T) {
	var short, bursts []job
	for i := range 300 {
		short = append(short, job{"a", time.Duration(i) * hour, time.Minute, false})
		bursts = append(bursts, job{"a", time.Duration(i/60)*day + 2*hour, 5 * time.Minute, false})
	}
	for _, tt := range []struct{ name, kind, text, want string }{
		{"short jobs", LeaveAlone, inOneLine(short), "Nothing. Keep the one line"},
		{"bursts", AddWorkers, inOneLine(bursts), "No class makes another one wait"},
		{"too few", CannotTell, inOneLine(short[:5]), "Log a week or more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustAnalyse(t, mustRead(t, tt.text, ReadOptions{}), Options{})
			_, all := pageOf(t, r)
			if r.Verdict.Kind != tt.kind {
				t.Errorf("verdict %s", r.Verdict.Kind)
			}
			mustContain(t, textIn(all, "main"), tt.want)
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.gz"))
	if err != nil || len(files) < 3 {
		t.Fatalf("test data: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			pageOf(t, mustAnalyse(t, readTestdata(t, filepath.Base(file)), Options{}))
		})
	}
}

func TestForeignNamesStayText(t *testing.T) {
	names := []string{
		`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, `'; rm -rf "$HOME"; '`, `</style><b>x`, "a\u202eb\x1b[2J", `{{.Verdict}}`, strings.Repeat("long", 40),
	}
	var jobs []job
	for d := range 20 {
		at := time.Duration(d) * day
		jobs = append(jobs, job{names[0], at, 10 * hour, false})
		for i, n := range names[1:] {
			jobs = append(jobs, job{n, at + time.Duration(i+1)*10*time.Minute, time.Minute, i == 0 && d%2 == 0})
		}
	}
	var csv strings.Builder
	for line := range strings.Lines(inOneLine(jobs)) {
		at := strings.LastIndex(line[:len(line)-1], ",2026-") // before the last of three times
		for range 2 {
			if at > 0 {
				at = strings.LastIndex(line[:at], ",2026-")
			}
		}
		if at < 0 {
			csv.WriteString(line)
			continue
		}
		csv.WriteString(`"` + strings.ReplaceAll(line[:at], `"`, `""`) + `"` + line[at:])
	}
	r := mustAnalyse(t, mustRead(t, csv.String(), ReadOptions{}), Options{})
	if r.Verdict.Kind != Isolate || len(r.Classes) != len(names) {
		t.Fatalf("%s with %d classes", r.Verdict.Kind, len(r.Classes))
	}
	page, all := pageOf(t, r)
	if strings.ContainsAny(page, "\x1b\u202e") {
		t.Error("a name can turn the text around")
	}
	if !strings.Contains(textIn(all, "h1"), "Isolate <script>alert(1)</script>") {
		t.Errorf("the heading is %q", textIn(all, "h1"))
	}
	mustContain(t, strings.Join(r.Verdict.Next, " "), `the command writes "<script>alert(1)</script>" as script-alert-1---script, `)
	// The command is pasted into a shell: nothing of a name may end its quotes.
	if strings.Count(r.Verdict.Command, "'") != 4 || strings.ContainsAny(r.Verdict.Command, ";`<>") {
		t.Errorf("the command is %s", r.Verdict.Command)
	}
}

func TestMatrixAddsUp(t *testing.T) {
	for _, file := range []string{"nasa.swf.gz", "phillips.csv.gz"} {
		r := mustAnalyse(t, readTestdata(t, file), Options{})
		m := newMatrixView(r)
		sum := 0.0
		for _, row := range m.Rows {
			for _, c := range row.Cells {
				if sum += c.Hours; c.Heat < 0 || c.Heat > 100 {
					t.Errorf("%s: heat %d", file, c.Heat)
				}
			}
		}
		if total := r.Layouts[0].Waits.Hours; math.Abs(sum-total) > 0.001*total {
			t.Errorf("%s: the matrix holds %v of %v hours", file, sum, total)
		}
	}
}

func TestAxis(t *testing.T) {
	a := newAxis(1, 36000)
	last := -1.0
	for _, tick := range a.ticks() {
		if tick.X <= last || tick.X > 1000 {
			t.Errorf("tick %+v after %v", tick, last)
		}
		last = tick.X
	}
	if x := a.x(0); x != 0 {
		t.Errorf("nothing is at %v", x)
	}
	if a.x(1e12) != 1000 || a.x(60)-a.x(6) < 100 {
		t.Errorf("60 s at %v, 6 s at %v", a.x(60), a.x(6))
	}
	// Equal distances for equal factors.
	if d := (a.x(100) - a.x(10)) - (a.x(1000) - a.x(100)); math.Abs(d) > 0.2 {
		t.Errorf("a decade is not a decade: off by %v", d)
	}
}

func TestPageReportsAFailedWrite(t *testing.T) {
	r := mustAnalyse(t, mustRead(t, inOneLine(story()), ReadOptions{}), Options{})
	f, err := os.Open(os.DevNull) // for reading only
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := r.HTML(f); err == nil {
		t.Error("a page that could not be written is no success")
	}
}

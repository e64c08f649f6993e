package runlog

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/lanegate/lanegate"
)

//go:embed report.html.tmpl
var htmlText string

// htmlPage is parsed once; every value from a log passes its escaping.
var htmlPage = template.Must(template.New("report").Funcs(template.FuncMap{
	"human":   human,
	"percent": percent,
	"digits":  digits3,
	"grouped": grouped3,
	"visible": visible,
}).Parse(htmlText))

// Rows of each part of the page; JSON has all.
const (
	htmlClasses = 40
	htmlWaits   = 12
	htmlMend    = 12
	htmlOrders  = 20
	htmlLeftOut = 20
)

// HTML writes the report as one page that needs nothing else: its style and plots
// are inside, and it forbids itself to fetch anything. It follows the reader's
// colour scheme, and prints.
func (r *Report) HTML(w io.Writer) error {
	if err := htmlPage.Execute(w, newPage(r)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// page is a report in the shape of the template.
type page struct {
	*Report
	Kind       string
	Overloaded bool // one line could never carry the log
	Matrix     *matrixView
	Waits      *plot
	What       []whatRow
	Widths     []LaneReport
	Durations  *plot
	Splits     []string
	MendRows   []Mend
	OrderRows  []Order
	LeftOut    []string
	From, To   string
	More       more
}

// more counts what the page leaves out.
type more struct{ Mend, Order, Classes, Waits, LeftOut int }

func newPage(r *Report) page {
	p := page{
		Report: r, Kind: verdictWords[r.Verdict.Kind], Overloaded: r.Load.Rho >= 1 && !r.Load.OneLine,
		Matrix: newMatrixView(r), Durations: durationPlot(r),
		MendRows: r.Mend[:min(htmlMend, len(r.Mend))], OrderRows: r.Order[:min(htmlOrders, len(r.Order))],
	}
	p.Waits, p.More.Waits = waitPlot(r)
	p.What = whatRows(r)
	p.From, p.To = r.Span.dates()
	p.LeftOut = r.Verdict.leftOutReasons()
	p.More.LeftOut = max(0, len(p.LeftOut)-htmlLeftOut)
	p.LeftOut = p.LeftOut[:len(p.LeftOut)-p.More.LeftOut]
	for _, l := range r.Layouts {
		for _, lane := range l.Lanes {
			if l.Name == layoutPromote && lane.Name == lanegate.LaneParallel {
				p.Widths = append(p.Widths, lane)
			}
		}
	}
	p.Splits = splitSentences(r, htmlClasses)
	p.More.Mend, p.More.Order = len(r.Mend)-len(p.MendRows), len(r.Order)-len(p.OrderRows)
	p.More.Classes = max(0, len(r.Classes)-htmlClasses)
	return p
}

var verdictWords = map[string]string{
	Separate: "Separate long from short", Isolate: "Isolate one class", AddWorkers: "Add workers", LeaveAlone: "Leave it alone",
	FixFailures: "Fix failures first", CannotTell: "The log can't tell",
}

// MatrixIntro says what the matrix is about.
func (p page) MatrixIntro() string {
	if p.Overloaded {
		return "One line could never carry this log: its waits only grow, so look at the shares, not at the hours."
	}
	return ""
}

// whatRow is a layout in the what-if table.
type whatRow struct {
	Title, Description, Peaks, Note string
	AtOnce                          int
	Waits                           Waits
	Now                             bool // recorded, not replayed
}

func whatRows(r *Report) []whatRow {
	var rows []whatRow
	if r.Recorded != nil {
		rows = append(rows, whatRow{
			Title: "As recorded", Description: "the waits that the log itself has, to judge the replays by",
			Waits: *r.Recorded, AtOnce: r.Load.MostAtOnce, Now: true,
		})
	}
	for _, l := range r.Layouts {
		var peaks []string
		for _, name := range sortedKeys(l.Peaks) {
			peaks = append(peaks, fmt.Sprintf("%s %d", visible(name), l.Peaks[name]))
		}
		title := layoutTitle(l)
		if strings.HasPrefix(l.Name, layoutWorkers) {
			l.Description = "every class beside every other"
		}
		rows = append(rows, whatRow{
			Title: strings.ToUpper(title[:1]) + title[1:], Description: visible(l.Description), Note: l.Note,
			Waits: l.Waits, AtOnce: l.MostAtOnce, Peaks: strings.Join(peaks, ", "),
		})
		if l.Waits.Max == 0 && strings.HasPrefix(l.Name, layoutWorkers) {
			break // more of them can't bring less
		}
	}
	return rows
}

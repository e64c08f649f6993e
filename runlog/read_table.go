package runlog

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"strconv"
	"strings"
)

// table reads rows of fields under a header.
type table struct {
	b      *builder
	layout *layout
	clock  clock
	fields []string
	line   int
	// column is where a field of the present row begins.
	column func(i int) int
	entry  entry
	steps  bool // rows whose id has a dot are steps of another row
}

func newTable(header []string, opts ReadOptions, b *builder) (*table, error) {
	l, err := finder{wanted: opts.Columns}.layoutOf(header)
	if err != nil {
		return nil, fault{line: 1, column: 1, reason: err.Error()}.err(b.account.File)
	}
	b.account.Columns = l.used()
	t := &table{b: b, layout: l, clock: clock{zone: opts.Zone}}
	t.entry.at = func(r role) int {
		if i := l.index[r]; i >= 0 && i < len(t.fields) {
			return t.column(i)
		}
		return 1
	}
	return t, nil
}

// value is a field of the present row, "" when there is no such column.
func (t *table) value(r role) string {
	if i := t.layout.index[r]; i >= 0 {
		return t.fields[i]
	}
	return ""
}

// row takes one row in.
func (t *table) row(line int, fields []string) error {
	t.b.row()
	t.line, t.fields = line, fields
	e := &t.entry
	*e = entry{line: line, at: e.at}
	if len(fields) != len(t.layout.names) {
		t.b.account.drop(fault{
			line: line, column: 1, reason: "the row has another number of fields than the header",
			detail: strconv.Itoa(len(fields)) + " instead of " + strconv.Itoa(len(t.layout.names)),
		})
		return nil
	}
	if t.steps && strings.Contains(t.value(roleID), ".") {
		t.b.account.Steps++
		return nil
	}
	e.class = t.value(roleClass)
	if t.layout.dag >= 0 {
		e.class = fields[t.layout.dag] + "/" + e.class
	}
	if !checkText(e.class) {
		t.b.account.drop(e.fault(roleClass, "the class is not UTF-8 text", ""))
		return nil
	}
	e.status, e.exit = t.value(roleStatus), t.value(roleExit)
	e.id, e.attempt = t.value(roleID), t.value(roleAttempt)
	if n, err := strconv.ParseFloat(strings.TrimSpace(t.value(roleAttempt)), 64); err == nil {
		e.repeat = n > 1
	}
	f, err := e.read(&t.clock, t.value, t.layout.unit)
	if err != nil {
		return f.err(t.b.account.File)
	}
	if f.reason != "" {
		t.b.account.drop(f)
		return nil
	}
	return t.b.add(e)
}

// read fills the times of an entry. A fault is a row to drop; with an error it
// ends the reading, because every other row will have it too.
func (e *entry) read(c *clock, value func(role) string, unit [roles]float64) (fault, error) {
	for _, p := range []struct {
		r  role
		to *instant
	}{{roleSubmitted, &e.submitted}, {roleEligible, &e.eligible}, {roleStarted, &e.started}, {roleFinished, &e.finished}} {
		s := value(p.r)
		if s == "" {
			continue
		}
		at, err := c.parse(s, unit[p.r])
		if err != nil {
			f := e.fault(p.r, "the "+roleNames[p.r]+" time can't be used", quote(s)+": "+err.Error())
			if errors.Is(err, errNoZone) {
				return f, err
			}
			return f, nil
		}
		*p.to = at
	}
	u := unit[roleDuration]
	if u == 0 {
		u = 1e6
	}
	if s := value(roleDuration); s != "" {
		took, ok, err := parseDuration(s, u)
		if err != nil && !e.finished.ok {
			return e.fault(roleDuration, "the duration can't be used", quote(s)+": "+err.Error()), nil
		}
		e.took, e.hasTook = took, ok && err == nil
	}
	return fault{}, nil
}

// readCSV reads comma, semicolon or tab separated values with a header.
func readCSV(in io.Reader, head []byte, opts ReadOptions, b *builder) error {
	r := csv.NewReader(in)
	r.Comma = delimiter(firstLine(bytes.TrimPrefix(head, utf8BOM)))
	r.ReuseRecord = true
	r.FieldsPerRecord = -1 // a row of another length is dropped and counted
	header, err := r.Read()
	if err != nil {
		return csvError(b.account.File, err)
	}
	t, err := newTable(header, opts, b)
	if err != nil {
		return err
	}
	t.column = func(i int) int {
		_, column := r.FieldPos(i)
		return column
	}
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return csvError(b.account.File, err)
		}
		line, _ := r.FieldPos(0)
		if err := t.row(line, fields); err != nil {
			return err
		}
	}
}

// delimiter is the most frequent of the usual ones in a header.
func delimiter(header []byte) rune {
	best, most := ',', 0
	for _, d := range []rune{',', ';', '\t'} {
		if n := bytes.Count(header, []byte(string(d))); n > most {
			best, most = d, n
		}
	}
	return best
}

// csvError words a syntax error with its place.
func csvError(file string, err error) error {
	parse, ok := errors.AsType[*csv.ParseError](err)
	if !ok {
		return err
	}
	f := fault{line: parse.Line, column: parse.Column}
	switch {
	case errors.Is(parse.Err, csv.ErrQuote):
		f.reason = `there is a stray " in this row; a quote inside a quoted field is written twice`
		if parse.StartLine != parse.Line {
			f.detail = "the row begins on line " + strconv.Itoa(parse.StartLine)
		}
	case errors.Is(parse.Err, csv.ErrBareQuote):
		f.reason = `there is a bare " inside a field; put the field in quotes and write the quote twice`
	default:
		f.reason = parse.Err.Error()
	}
	return f.err(file)
}

// readPipes reads what `sacct -P` prints: fields between bars, no quoting.
func readPipes(in *bufio.Reader, opts ReadOptions, b *builder) error {
	lines := newLineReader(in)
	var t *table
	for {
		line, ok := lines.next()
		if !ok {
			return lines.scan.Err()
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		fields := strings.Split(line, "|")
		if t == nil {
			var err error
			if t, err = newTable(fields, opts, b); err != nil {
				return err
			}
			t.steps = true
			t.column = func(i int) int { return 1 + i + len(strings.Join(t.fields[:i], "")) }
			continue
		}
		if len(fields) == len(t.layout.names)+1 && fields[len(fields)-1] == "" { // sacct -p ends rows with a bar
			fields = fields[:len(fields)-1]
		}
		if err := t.row(lines.line, fields); err != nil {
			return err
		}
	}
}

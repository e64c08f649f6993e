package runlog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// Fields of the Standard Workload Format, version 2.2, by number (Feitelson and
// others, Parallel Workloads Archive, "The Standard Workload Format").
const (
	swfSubmit     = 2
	swfWait       = 3
	swfRun        = 4
	swfStatus     = 11
	swfUser       = 12
	swfGroup      = 13
	swfExecutable = 14
	swfQueue      = 15
	swfFields     = 18
)

// swfClasses are the fields that can tell a job's class, the best first.
var swfClasses = []struct {
	field int
	name  string
}{{swfExecutable, "app"}, {swfGroup, "group"}, {swfUser, "user"}, {swfQueue, "queue"}}

// isSWF says whether a line is a job of a Standard Workload Format file.
func isSWF(line []byte) bool {
	fields := bytes.Fields(line)
	if len(fields) != swfFields {
		return false
	}
	for _, f := range fields {
		if _, err := strconv.ParseFloat(string(f), 64); err != nil {
			return false
		}
	}
	return true
}

// readSWF reads a Standard Workload Format file. Times count from the header's
// UnixStartTime. A wait of −1 is unknown, and so then is the start: of two times
// that are all the format has, the submission is the one it promises.
func readSWF(in *bufio.Reader, opts ReadOptions, b *builder) error {
	head, err := in.Peek(peekSize)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return err
	}
	class, prefix, err := swfClass(head, opts.Columns)
	if err != nil {
		return fault{line: 1, column: 1, reason: err.Error()}.err(b.account.File)
	}
	b.account.Columns = map[string]string{"class": "field " + strconv.Itoa(class)}
	s := &swfReader{b: b, class: class, prefix: prefix}
	lines := newLineReader(in)
	for {
		line, ok := lines.next()
		if !ok {
			return lines.scan.Err()
		}
		line = strings.TrimSpace(line)
		if header, ok := strings.CutPrefix(line, ";"); ok {
			s.header(header)
		} else if line != "" {
			if err := s.job(lines.line, line); err != nil {
				return err
			}
		}
	}
}

// swfClass picks the field that is the class: the given one, or the first of
// swfClasses that any job at the beginning of the file has.
func swfClass(head []byte, columns Columns) (field int, prefix string, err error) {
	for role := range columns {
		if role != "class" {
			return 0, "", errors.New("an SWF file has fixed columns; only class can be chosen, as the number of a field")
		}
	}
	if given := columns["class"]; given != "" {
		n, err := strconv.Atoi(given)
		if err != nil || n < 1 || n > swfFields {
			return 0, "", errors.New("the class of an SWF file is the number of a field, 1 to 18, e.g. --columns class=13")
		}
		for _, c := range swfClasses {
			if c.field == n {
				return n, c.name, nil
			}
		}
		return n, "field" + given, nil
	}
	known := map[int]bool{}
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		fields := bytes.Fields(line)
		if len(fields) != swfFields {
			continue
		}
		for _, c := range swfClasses {
			known[c.field] = known[c.field] || string(fields[c.field-1]) != "-1"
		}
	}
	for _, c := range swfClasses {
		if known[c.field] {
			return c.field, c.name, nil
		}
	}
	return swfUser, "user", nil
}

type swfReader struct {
	b      *builder
	class  int
	prefix string
	origin float64 // seconds
	fields [swfFields]float64
}

func (s *swfReader) header(text string) {
	key, value, _ := strings.Cut(text, ":")
	if strings.TrimSpace(key) != "UnixStartTime" {
		return
	}
	if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && v > 0 && v*1e6 < maxTime {
		s.origin = v
	}
}

func (s *swfReader) job(number int, line string) error {
	s.b.row()
	fields := strings.Fields(line)
	column := func(field int) int { return 1 + strings.Index(line, fields[field-1]) }
	if len(fields) != swfFields {
		s.b.account.drop(fault{line: number, column: 1, reason: "the line has not 18 fields", detail: "it has " + strconv.Itoa(len(fields))})
		return nil
	}
	for i, f := range fields {
		v, ok := swfNumber(f)
		if !ok {
			s.b.account.drop(fault{line: number, column: column(i + 1), reason: "a field is not a number that a log can have", detail: quote(f)})
			return nil
		}
		s.fields[i] = v
	}
	get := func(field int) float64 { return s.fields[field-1] }
	e := &entry{line: number, class: s.prefix + " " + strings.TrimSuffix(fields[s.class-1], ".0"), status: swfStatusWord(get(swfStatus)), id: fields[0]}
	e.at = func(r role) int {
		switch r {
		case roleSubmitted:
			return column(swfSubmit)
		case roleStarted:
			return column(swfWait)
		case roleClass:
			return column(s.class)
		}
		return column(swfRun)
	}
	if get(s.class) == -1 {
		e.class = s.prefix + " unknown"
	}
	at := func(seconds float64) instant {
		us := int64((s.origin + seconds) * 1e6)
		return instant{us, us, true}
	}
	if get(swfSubmit) >= 0 {
		e.submitted = at(get(swfSubmit))
		if get(swfWait) >= 0 {
			e.started = at(get(swfSubmit) + get(swfWait))
		}
	}
	if get(swfRun) >= 0 {
		e.took, e.hasTook = int64(get(swfRun)*1e6), true
	}
	return s.b.add(e)
}

// swfNumber reads a number that a time could be.
func swfNumber(s string) (v float64, ok bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && v*1e6 <= maxTime && v*1e6 >= minTime
}

// swfStatusWord translates field 11: 0 failed, 1 completed, 2 to 4 partial
// executions, 5 cancelled, −1 unknown.
func swfStatusWord(v float64) string {
	switch v {
	case 0:
		return "failed"
	case 1, 4:
		return "completed"
	case 2, 3:
		return "partial"
	case 5:
		return "cancelled"
	}
	return ""
}

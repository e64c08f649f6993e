package runlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Source is one log to read. Name is only used in sentences.
type Source struct {
	Name   string
	Reader io.Reader
}

// Format is a kind of log.
type Format string

// Formats. Auto looks at the first line; a log of lines is only read as such when
// ReadOptions has its expressions.
const (
	Auto  Format = ""
	CSV   Format = "csv"
	JSON  Format = "jsonl"
	SWF   Format = "swf"
	Slurm Format = "sacct"
	Lines Format = "lines"
)

// Formats lists what ReadOptions.Format may be, Auto left out.
var Formats = []Format{CSV, JSON, SWF, Slurm, Lines}

// ReadOptions say how to read logs.
type ReadOptions struct {
	// Format of all sources; Auto finds out for each.
	Format Format
	// Columns that the names alone don't tell.
	Columns Columns
	// Zone is that of times without one; nil makes such a time an error.
	Zone *time.Location
	// StartLine and EndLine recognise the lines of a worker's log that say that a
	// run has started or ended. Their named groups: time (required), class, id,
	// in StartLine submitted, in EndLine status.
	StartLine, EndLine *regexp.Regexp
	// Progress, when set, is called about every 250,000 rows with their number so far.
	Progress func(rows int)
}

// progressStep is how many rows lie between two calls of ReadOptions.Progress.
const progressStep = 250_000

// Read reads all sources into one log. Gzip is recognised by its first bytes.
//
// Rows that can't be used are dropped and counted with their reasons, see
// Account. An error, a *lanegate.Error with the code bad_run_log, names file,
// line and column and says what to do: what is no log at all, broken syntax,
// times without a zone when Zone is nil, or a file without one usable row.
func Read(ctx context.Context, sources []Source, opts ReadOptions) (*Log, error) {
	log := &Log{}
	rows, statuses := 0, 0
	for _, src := range sources {
		log.Accounts = append(log.Accounts, Account{File: src.Name, Dropped: []Drop{}})
		b := &builder{log: log, account: &log.Accounts[len(log.Accounts)-1]}
		b.count = func() {
			if rows++; rows%progressStep == 0 && opts.Progress != nil {
				opts.Progress(rows)
			}
		}
		if err := readOne(ctx, src, opts, b); err != nil {
			return nil, err
		}
		statuses += b.statuses
	}
	log.NoStatus = statuses == 0
	log.sort()
	return log, nil
}

func readOne(ctx context.Context, src Source, opts ReadOptions, b *builder) error {
	in := bufio.NewReaderSize(&stoppable{ctx, src.Reader}, peekSize)
	if magic, err := in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fault{line: 1, column: 1, reason: "the gzip data is damaged; copy the file again"}.err(src.Name)
		}
		in = bufio.NewReaderSize(z, peekSize)
	}
	head, err := in.Peek(peekSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return readError(src.Name, err)
	}
	format, err := sniff(src.Name, head, opts)
	if err != nil {
		return err
	}
	if bytes.HasPrefix(head, utf8BOM) {
		_, _ = in.Discard(len(utf8BOM)) // it was just peeked at
	}
	b.account.Format = string(format)
	switch format {
	case SWF:
		err = readSWF(in, opts, b)
	case JSON:
		err = readJSON(in, opts, b)
	case Slurm:
		err = readPipes(in, opts, b)
	case Lines:
		err = readLines(in, opts, b)
	default:
		err = readCSV(in, head, opts, b)
	}
	if err != nil {
		return readError(src.Name, err)
	}
	if b.each != nil && b.account.Rows > 0 {
		return nil // what became of each row is in the account
	}
	return b.usable()
}

const peekSize = 64 << 10

var utf8BOM = []byte("\xef\xbb\xbf")

// stoppable ends a read when its context ends.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s *stoppable) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

// readError words what a reader of bytes reports; our own errors stay as they are.
func readError(name string, err error) error {
	switch {
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("%s: the gzip data is damaged or cut off; copy the file again", name)
	case errors.Is(err, bufio.ErrTooLong):
		return invalid("%s: a line is longer than 1 MiB; this is not a run log", name)
	}
	return fmt.Errorf("read %s: %w", name, err)
}

// sniff finds the format by the first line, and refuses what is no text.
func sniff(name string, head []byte, opts ReadOptions) (Format, error) {
	bad := func(column int, format string, args ...any) (Format, error) {
		return "", fault{line: 1, column: column, reason: fmt.Sprintf(format, args...)}.err(name)
	}
	switch {
	case len(head) == 0:
		return bad(1, "the file is empty")
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")):
		return bad(1, "the file is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
	}
	if i := bytes.IndexByte(head, 0); i >= 0 {
		line := 1 + bytes.Count(head[:i], []byte("\n"))
		column := i - bytes.LastIndexByte(head[:i], '\n')
		return "", fault{line: line, column: column, reason: "there is a zero byte: this is not a text file"}.err(name)
	}
	first := firstLine(bytes.TrimPrefix(head, utf8BOM))
	switch {
	case opts.Format != Auto:
		return opts.Format, nil
	case opts.StartLine != nil || opts.EndLine != nil:
		return Lines, nil
	case len(first) == 0:
		return bad(1, "the file has only empty lines")
	case first[0] == '{':
		return JSON, nil
	case first[0] == '[':
		return bad(1, "this is one JSON array; write one object per line: jq -c '.[]'")
	case first[0] == '<':
		return bad(1, "this looks like HTML or XML, not like a run log")
	case first[0] == ';', isSWF(first):
		return SWF, nil
	case bytes.IndexByte(first, '|') >= 0 && bytes.IndexByte(first, ',') < 0:
		return Slurm, nil
	}
	return CSV, nil
}

// firstLine is the first line that is not blank, without its end.
func firstLine(head []byte) []byte {
	for len(head) > 0 {
		line, rest, _ := bytes.Cut(head, []byte("\n"))
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line
		}
		head = rest
	}
	return nil
}

// usable makes a file without one usable row an error that says why.
func (b *builder) usable() error {
	a := b.account
	if a.Used > 0 {
		return nil
	}
	switch {
	case a.Rows == 0 && a.Ignored > 0:
		return fault{line: 1, column: 1, reason: "--start-regex matches none of " + count(a.Ignored, "line", "lines")}.err(a.File)
	case a.Rows == 0:
		return fault{line: 2, column: 1, reason: "there is no row after the header"}.err(a.File)
	case len(a.Dropped) > 0:
		return invalid("%s (%s; none could be used)", a.Dropped[0].Example, count(a.Rows, "row", "rows"))
	}
	return invalid("%s, line 1, column 1: of %s none has ended: %d started, %d never did", a.File, count(a.Rows, "run", "runs"), a.Unfinished, a.NeverStarted)
}

// lineReader hands out lines with their numbers. Lines longer than 1 MiB end the
// reading with bufio.ErrTooLong.
type lineReader struct {
	scan *bufio.Scanner
	line int
}

func newLineReader(in io.Reader) *lineReader {
	scan := bufio.NewScanner(in)
	scan.Buffer(make([]byte, 0, 64<<10), 1<<20)
	return &lineReader{scan: scan}
}

// next returns the next line without its end, and false at the end of the input.
func (r *lineReader) next() (string, bool) {
	if !r.scan.Scan() {
		return "", false
	}
	r.line++
	return strings.TrimSuffix(r.scan.Text(), "\r"), true
}

// checkText refuses what can't be a name: it would garble every report.
func checkText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

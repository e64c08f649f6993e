package runlog

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// CheckLineRegexps says what is wrong with the expressions for a worker's log.
func CheckLineRegexps(start, end *regexp.Regexp) error {
	if start == nil || end == nil {
		return invalid("a worker's log needs both --start-regex and --end-regex")
	}
	for _, x := range []struct {
		flag string
		re   *regexp.Regexp
		may  []string
	}{
		{"--start-regex", start, []string{"time", "class", "id", "submitted"}},
		{"--end-regex", end, []string{"time", "class", "id", "status"}},
	} {
		for _, name := range x.re.SubexpNames() {
			if name != "" && !slices.Contains(x.may, name) {
				return invalid("%s has a group %q; it may have %s", x.flag, name, strings.Join(x.may, ", "))
			}
		}
		if x.re.SubexpIndex("time") < 0 {
			return invalid("%s has no named group for the time, e.g. (?P<time>\\S+ \\S+)", x.flag)
		}
	}
	if start.SubexpIndex("class") < 0 {
		return invalid("--start-regex has no named group for the class, e.g. (?P<class>\\w+)")
	}
	if (start.SubexpIndex("id") >= 0) != (end.SubexpIndex("id") >= 0) {
		return invalid("give a group id in both --start-regex and --end-regex, or in neither")
	}
	if start.SubexpIndex("id") < 0 && end.SubexpIndex("class") < 0 {
		return invalid("without a group id, --end-regex needs a group class, so that ends find their starts")
	}
	return nil
}

// maxOpen bounds the runs that are open at once: a log with more of them has ids
// that never end.
const maxOpen = 1_000_000

// lineLog pairs the lines that say a run has started with those that say it has ended.
type lineLog struct {
	b          *builder
	clock      clock
	start, end *regexp.Regexp
	open       map[string]*entry // by id, or by class when there is none
}

// readLines reads a worker's log. A row, for the account, is a line that matches.
func readLines(in io.Reader, opts ReadOptions, b *builder) error {
	if err := CheckLineRegexps(opts.StartLine, opts.EndLine); err != nil {
		return err
	}
	l := &lineLog{b: b, clock: clock{zone: opts.Zone}, start: opts.StartLine, end: opts.EndLine, open: map[string]*entry{}}
	lines := newLineReader(in)
	for {
		text, ok := lines.next()
		if !ok {
			break
		}
		if err := l.line(lines.line, text); err != nil {
			return err
		}
	}
	if err := lines.scan.Err(); err != nil {
		return err
	}
	for range l.open { // still running when the log ends
		b.account.Unfinished++
	}
	return nil
}

func (l *lineLog) line(number int, text string) error {
	if m := l.start.FindStringSubmatchIndex(text); m != nil {
		return l.started(number, text, m)
	}
	if m := l.end.FindStringSubmatchIndex(text); m != nil {
		return l.ended(number, text, m)
	}
	l.b.account.Ignored++
	return nil
}

// group is a named group of a match, with its column.
func group(re *regexp.Regexp, text string, m []int, name string) (s string, column int) {
	i := re.SubexpIndex(name)
	if i < 0 || m[2*i] < 0 {
		return "", 1
	}
	return text[m[2*i]:m[2*i+1]], m[2*i] + 1
}

// time reads a group that is a time; a fault with an error ends the reading.
func (l *lineLog) time(re *regexp.Regexp, number int, text string, m []int, name string) (instant, fault, error) {
	s, column := group(re, text, m, name)
	at, err := l.clock.parse(s, 0)
	if err == nil {
		return at, fault{}, nil
	}
	f := fault{line: number, column: column, reason: "the " + name + " can't be used", detail: quote(s) + ": " + err.Error()}
	if errors.Is(err, errNoZone) {
		return at, f, f.err(l.b.account.File)
	}
	return at, f, nil
}

func (l *lineLog) key(re *regexp.Regexp, text string, m []int) string {
	if re.SubexpIndex("id") >= 0 {
		s, _ := group(re, text, m, "id")
		return s
	}
	s, _ := group(re, text, m, "class")
	return s
}

func (l *lineLog) started(number int, text string, m []int) error {
	l.b.row()
	class, column := group(l.start, text, m, "class")
	e := &entry{line: number, class: strings.Clone(class), at: func(role) int { return column }}
	if !checkText(class) {
		l.b.account.drop(e.fault(roleClass, "the class is not UTF-8 text", ""))
		return nil
	}
	for _, p := range []struct {
		group string
		to    *instant
	}{{"time", &e.started}, {"submitted", &e.submitted}} {
		at, f, err := l.time(l.start, number, text, m, p.group)
		if err != nil {
			return err
		}
		if f.reason != "" {
			l.b.account.drop(f)
			return nil
		}
		*p.to = at
	}
	key := l.key(l.start, text, m)
	if _, ok := l.open[key]; ok {
		l.b.account.Unfinished++ // it started again without an end
	} else if len(l.open) >= maxOpen {
		return fault{line: number, column: 1, reason: fmt.Sprintf("more than %d runs are open at once; do the ids of starts and ends agree?", maxOpen)}.err(l.b.account.File)
	}
	key = strings.Clone(key)
	if l.start.SubexpIndex("id") >= 0 {
		e.id = key
	}
	l.open[key] = e
	return nil
}

func (l *lineLog) ended(number int, text string, m []int) error {
	key := l.key(l.end, text, m)
	e, ok := l.open[key]
	if !ok {
		l.b.row()
		_, column := group(l.end, text, m, "time")
		l.b.account.drop(fault{line: number, column: column, reason: "an end without a start", detail: quote(key)})
		return nil
	}
	at, f, err := l.time(l.end, number, text, m, "time")
	if err != nil {
		return err
	}
	delete(l.open, key)
	if f.reason != "" {
		l.b.account.drop(f)
		return nil
	}
	e.finished = at
	status, _ := group(l.end, text, m, "status")
	e.status = strings.Clone(status)
	return l.b.add(e)
}

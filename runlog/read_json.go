package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// readJSON reads one JSON object per line. Null, missing and nested values are
// as good as none.
func readJSON(in io.Reader, opts ReadOptions, b *builder) error {
	r := &jsonReader{b: b, finder: finder{wanted: opts.Columns}, clock: clock{zone: opts.Zone}, known: map[string]*jsonKey{}}
	b.account.Columns = map[string]string{}
	lines := newLineReader(in)
	for {
		line, ok := lines.next()
		if !ok {
			break
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		if err := r.row(lines.line, line); err != nil {
			return err
		}
	}
	if err := lines.scan.Err(); err != nil {
		return err
	}
	return r.enough()
}

type jsonReader struct {
	b      *builder
	finder finder
	clock  clock
	known  map[string]*jsonKey
}

// jsonKey is what a key of the objects is about.
type jsonKey struct {
	role  role
	rank  int
	unit  float64
	about bool // false: nothing that matters here
}

func (r *jsonReader) key(name string) *jsonKey {
	k, ok := r.known[name]
	if !ok {
		k = &jsonKey{}
		k.role, k.rank, k.unit, k.about = r.finder.match(name)
		if len(r.known) < 10_000 { // keys may be data; they must not fill the memory
			r.known[name] = k
		}
	}
	return k
}

func (r *jsonReader) row(line int, text string) error {
	values, f := decodeObject(line, text)
	if f.reason != "" {
		return f.err(r.b.account.File)
	}
	r.b.row()
	var value [roles]string
	var from [roles]string
	var best [roles]*jsonKey
	var unit [roles]float64
	for name, v := range values {
		k := r.key(name)
		if !k.about {
			continue
		}
		s, ok := scalar(v)
		if ok && (best[k.role] == nil || k.rank < best[k.role].rank) {
			best[k.role], value[k.role], unit[k.role], from[k.role] = k, s, k.unit, name
		}
	}
	for i, name := range from {
		if name != "" && role(i) != roleID {
			r.b.account.Columns[roleNames[i]] = name
		}
	}
	e := &entry{line: line, class: value[roleClass], status: value[roleStatus], exit: value[roleExit], id: value[roleID], attempt: value[roleAttempt]}
	e.at = func(ro role) int { return max(0, strings.Index(text, strconv.Quote(from[ro]))) + 1 }
	if !checkText(e.class) {
		r.b.account.drop(e.fault(roleClass, "the class is not UTF-8 text", ""))
		return nil
	}
	if dag, ok := scalar(values["dag_id"]); ok && r.finder.wanted["class"] == "" {
		if task, ok := scalar(values["task_id"]); ok {
			e.class = dag + "/" + task
		}
	}
	if n, err := strconv.ParseFloat(value[roleAttempt], 64); err == nil {
		e.repeat = n > 1
	}
	f, err := e.read(&r.clock, func(ro role) string { return value[ro] }, unit)
	if err != nil {
		return f.err(r.b.account.File)
	}
	if f.reason != "" {
		r.b.account.drop(f)
		return nil
	}
	return r.b.add(e)
}

// enough says what to do when no row of the whole file named a class or a time.
func (r *jsonReader) enough() error {
	if r.b.account.Used > 0 || len(r.known) == 0 {
		return nil
	}
	l := &layout{names: sortedKeys(r.known)}
	for i := range l.index {
		l.index[i] = -1
		if r.b.account.Columns[roleNames[i]] != "" {
			l.index[i] = 0
		}
	}
	if err := l.enough(); err != nil {
		return fault{line: 1, column: 1, reason: err.Error()}.err(r.b.account.File)
	}
	return nil
}

// decodeObject reads the one object on a line.
func decodeObject(line int, text string) (map[string]any, fault) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var values map[string]any
	err := dec.Decode(&values)
	if err == nil && dec.InputOffset() < int64(len(bytes.TrimRight([]byte(text), " \t\r"))) {
		return nil, fault{line: line, column: int(dec.InputOffset()) + 1, reason: "there is more than one JSON value on the line"}
	}
	if err == nil {
		return values, fault{}
	}
	f := fault{line: line, column: 1, reason: "the line is not a JSON object"}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		f.column, f.detail = int(syntax.Offset), syntax.Error()
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		f.column, f.detail = len(text)+1, "it ends in the middle"
	}
	return nil, f
}

// scalar is the text of a string, number or boolean; other values are none.
func scalar(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

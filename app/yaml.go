package app

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/lanegate/lanegate"
)

// positioned is what the library's syntax errors have.
type positioned interface {
	error
	GetToken() *token.Token
	GetMessage() string
}

// A document is a YAML file read strictly. The library's own decoder ends at its
// first error, guesses types (a hash of digits becomes a number) and quotes the
// file in its errors, secrets included. So the library parses, and this walks
// the tree: every fault is collected with its line, texts stay as they were
// written, and no value is repeated in a message unless it was said to be harmless.
type document struct {
	name    string // as shown in faults
	faults  *faults
	lines   map[string]int // dotted key → line
	anchors map[string]ast.Node
	// because explains why a key that is not known can't exist; "" without a reason.
	because func(key string) string
}

// parseDocument returns the top-level entries; nil for an empty file.
func parseDocument(name string, text []byte, f *faults) (*document, []entry) {
	d := &document{name: name, faults: f, lines: map[string]int{}, anchors: map[string]ast.Node{}}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !utf8.Valid(text) {
		f.add(origin{name: name}, "", "is not UTF-8 text")
		return d, nil
	}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, message := 0, "is not valid YAML"
		if y, ok := errors.AsType[positioned](err); ok { // its Error() quotes the file
			line, message = y.GetToken().Position.Line, "is not valid YAML: "+y.GetMessage()
		}
		f.add(origin{name, line}, "", "%s", message)
		return d, nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			f.add(origin{name, lineOf(doc.Body)}, "", "a second document (---) starts here; one file is one document")
			return d, nil
		}
		body = doc.Body
	}
	if body == nil {
		return d, nil
	}
	entries := d.mapping(body, "")
	return d, entries
}

func lineOf(n ast.Node) int {
	if n == nil || n.GetToken() == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// entry is one key of a mapping.
type entry struct {
	name  string
	key   string // dotted
	value ast.Node
}

func (d *document) bad(n ast.Node, key, format string, args ...any) {
	d.faults.add(origin{d.name, lineOf(n)}, key, format, args...)
}

// at is where key stands, or its nearest parent that the file has.
func (d *document) at(key string) origin {
	for {
		if line, ok := d.lines[key]; ok {
			return origin{d.name, line}
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return origin{name: d.name}
		}
		key = key[:i]
	}
}

// resolve follows anchors, aliases and tags to the node that carries the value.
// It reports false after a fault.
func (d *document) resolve(n ast.Node, key string) (ast.Node, bool) {
	switch v := n.(type) {
	case *ast.AnchorNode:
		// Known from here on, inside itself too; since no type in here contains
		// itself, reading such a value ends all the same.
		d.anchors[v.Name.GetToken().Value] = v.Value
		return d.resolve(v.Value, key)
	case *ast.AliasNode:
		name := v.Value.GetToken().Value
		target, ok := d.anchors[name]
		if !ok {
			d.bad(n, key, "*%s names no anchor above it", name)
			return nil, false
		}
		return d.resolve(target, key)
	case *ast.TagNode:
		d.bad(n, key, "tags (%s) are not supported; write a text in quotes", v.GetToken().Value)
		return nil, false
	}
	return n, true
}

// mapping returns n's entries and notes their lines; a duplicate key is a fault.
func (d *document) mapping(n ast.Node, key string) []entry {
	n, ok := d.resolve(n, key)
	if !ok {
		return nil
	}
	var values []*ast.MappingValueNode
	switch v := n.(type) {
	case *ast.MappingNode:
		values = v.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{v}
	default:
		d.bad(n, key, "must be a list of keys with values (key: value), not %s", kindOf(n))
		return nil
	}
	entries := make([]entry, 0, len(values))
	first := map[string]int{}
	for _, v := range values {
		if v.Key.IsMergeKey() {
			d.bad(v.Key, key, "merge keys (<<) are not supported; write the keys out")
			continue
		}
		if _, scalar := v.Key.(ast.ScalarNode); !scalar {
			d.bad(v.Key, key, "a key must be a plain text")
			continue
		}
		e := entry{name: v.Key.GetToken().Value, value: v.Value}
		e.key = join(key, e.name)
		if line, dup := first[e.name]; dup {
			d.bad(v.Key, e.key, "appears twice; the first is in line %d", line)
			continue
		}
		first[e.name] = lineOf(v.Key)
		d.lines[e.key] = lineOf(v.Key)
		entries = append(entries, e)
	}
	return entries
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	}
	return "a single value"
}

// scalar returns a single value as it was written, quotes and escapes undone.
func (d *document) scalar(n ast.Node, key string) (string, bool) {
	n, ok := d.resolve(n, key)
	if !ok {
		return "", false
	}
	switch v := n.(type) {
	case *ast.NullNode:
		d.bad(n, key, "has no value; leave the key out, or write \"\" for an empty text")
	case *ast.LiteralNode:
		return v.Value.Value, true
	case ast.ScalarNode:
		return n.GetToken().Value, true
	default:
		d.bad(n, key, "must be a single value, not %s", kindOf(n))
	}
	return "", false
}

// list returns the items of a list of single values; one single value is a list
// of its parts between commas.
func (d *document) list(n ast.Node, key string) (string, bool) {
	r, ok := d.resolve(n, key)
	if !ok {
		return "", false
	}
	seq, ok := r.(*ast.SequenceNode)
	if !ok {
		return d.scalar(r, key)
	}
	var items []string
	for _, v := range seq.Values {
		s, ok := d.scalar(v, key)
		if !ok {
			return "", false
		}
		items = append(items, s)
	}
	return strings.Join(items, ","), true
}

// decode fills the value behind target from n by the `yaml` tags of structs.
func (d *document) decode(n ast.Node, key string, target any) {
	d.into(n, key, reflect.ValueOf(target).Elem())
}

func (d *document) into(n ast.Node, key string, v reflect.Value) {
	if declared, ok := v.Addr().Interface().(*lanegate.Duration); ok {
		d.intoDuration(n, key, declared)
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if s, ok := d.scalar(n, key); ok {
			if err := text.UnmarshalText([]byte(s)); err != nil {
				d.bad(n, key, "%v", err)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.into(n, key, v.Elem())
	case reflect.Struct:
		d.intoStruct(n, key, v)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, e := range d.mapping(n, key) {
			item := reflect.New(v.Type().Elem()).Elem()
			d.into(e.value, e.key, item)
			v.SetMapIndex(reflect.ValueOf(e.name).Convert(v.Type().Key()), item)
		}
	case reflect.Slice:
		d.intoSlice(n, key, v)
	default:
		d.intoScalar(n, key, v)
	}
}

func (d *document) intoDuration(n ast.Node, key string, target *lanegate.Duration) {
	s, ok := d.scalar(n, key)
	if !ok {
		return
	}
	v, err := lanegate.ParseDeclared(s)
	if err != nil {
		d.bad(n, key, "%v", err)
		return
	}
	*target = v
}

func (d *document) intoSlice(n ast.Node, key string, v reflect.Value) {
	r, ok := d.resolve(n, key)
	if !ok {
		return
	}
	seq, ok := r.(*ast.SequenceNode)
	if !ok {
		d.bad(r, key, "must be a list, like [a, b], not %s", kindOf(r))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		itemKey := fmt.Sprintf("%s[%d]", key, i)
		d.lines[itemKey] = lineOf(item)
		d.into(item, itemKey, v.Index(i))
	}
}

func (d *document) intoScalar(n ast.Node, key string, v reflect.Value) {
	s, ok := d.scalar(n, key)
	if !ok {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Int:
		i, err := strconv.Atoi(s)
		if err != nil {
			d.bad(n, key, "%q is not a whole number", s)
			return
		}
		v.SetInt(int64(i))
	case reflect.Bool:
		b, err := parseBool(s)
		if err != nil {
			d.bad(n, key, "%v", err)
			return
		}
		v.SetBool(b)
	default:
		panic("app: a config field of kind " + v.Kind().String() + " can't be read from YAML")
	}
}

func (d *document) intoStruct(n ast.Node, key string, v reflect.Value) {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ","); name != "" {
			fields[name] = v.Field(i)
		}
	}
	for _, e := range d.mapping(n, key) {
		field, ok := fields[e.name]
		if !ok {
			names := make([]string, 0, len(fields))
			for name := range fields {
				names = append(names, name)
			}
			d.unknown(e, names)
			continue
		}
		d.into(e.value, e.key, field)
	}
}

// unknown is the fault of a key that does not exist.
func (d *document) unknown(e entry, known []string) {
	at := origin{d.name, d.lines[e.key]}
	if d.because != nil {
		if why := d.because(e.key); why != "" {
			d.faults.add(at, e.key, "%s", why)
			return
		}
	}
	if near := nearest(e.name, known); near != "" {
		d.faults.add(at, e.key, "is not a known key; did you mean %q?", near)
		return
	}
	slices.Sort(known)
	d.faults.add(at, e.key, "is not a known key; known here are: %s", strings.Join(known, ", "))
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("must be true or false, not %q", s)
}

// nearest returns the known name that differs from name by at most two edits,
// "" when none does or name is too short to tell.
func nearest(name string, known []string) string {
	best, least := "", 3
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := edits(name, k); d < least && d < len(name)/2+1 {
			best, least = k, d
		}
	}
	return best
}

// edits is the Levenshtein distance in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

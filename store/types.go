package store

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
)

// timeForm is how SQLite keeps a time: fixed width, so that text order is time order.
const timeForm = "2006-01-02T15:04:05.000000Z"

// never stands for "no time" in columns that are sorted by: it comes after all others.
var never = dbTime{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}

// dbTime is a time as both engines keep it: UTC with microseconds. The zero
// value is NULL.
type dbTime struct{ t time.Time }

// at brings t to the stored form; the zero time is NULL.
func at(t time.Time) dbTime {
	if t.IsZero() {
		return dbTime{}
	}
	return dbTime{lanegate.Micro(t)}
}

// atPtr is at for an optional time.
func atPtr(t *time.Time) dbTime {
	if t == nil {
		return dbTime{}
	}
	return at(*t)
}

// ptr is nil for NULL and for never.
func (d dbTime) ptr() *time.Time {
	if d.t.IsZero() || d.t.Equal(never.t) {
		return nil
	}
	t := d.t
	return &t
}

// Value implements driver.Valuer.
func (d dbTime) Value() (driver.Value, error) {
	if d.t.IsZero() {
		return nil, nil
	}
	return d.t.UTC().Format(timeForm), nil
}

// Scan implements sql.Scanner.
func (d *dbTime) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		d.t = time.Time{}
	case time.Time:
		d.t = lanegate.Micro(v)
	case string:
		return d.parse(v)
	case []byte:
		return d.parse(string(v))
	default:
		return fmt.Errorf("a time can't be read from %T", src)
	}
	return nil
}

func (d *dbTime) parse(s string) error {
	t, err := time.Parse(timeForm, s)
	if err != nil {
		return fmt.Errorf("stored time: %w", err)
	}
	d.t = t.UTC()
	return nil
}

// dbJSON keeps our own metadata as JSON text. A value that is null in JSON (a nil
// map, slice or pointer) is NULL.
type dbJSON[T any] struct{ v T }

// Value implements driver.Valuer.
func (j dbJSON[T]) Value() (driver.Value, error) {
	b, err := json.Marshal(j.v)
	if err != nil {
		return nil, err
	}
	if string(b) == "null" {
		return nil, nil
	}
	return string(b), nil
}

// Scan implements sql.Scanner.
func (j *dbJSON[T]) Scan(src any) error {
	var zero T
	j.v = zero
	switch v := src.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(v), &j.v)
	case []byte:
		return json.Unmarshal(v, &j.v)
	}
	return fmt.Errorf("JSON can't be read from %T", src)
}

// params collects the arguments of a statement that is put together at run time.
type params []any

// add appends one argument and returns its placeholder.
func (p *params) add(v any) string {
	*p = append(*p, v)
	return fmt.Sprintf("$%d", len(*p))
}

// list appends several and returns them as "($1, $2)"; vs must not be empty.
func list[T any](p *params, vs []T) string {
	marks := make([]string, len(vs))
	for i, v := range vs {
		marks[i] = p.add(v)
	}
	return "(" + strings.Join(marks, ", ") + ")"
}

// text makes s storable on every engine: valid UTF-8 without NUL, which
// PostgreSQL refuses. No outcome may fail to be written over a byte.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", `\x00`)
}

package store

import (
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// bulkSQL is a statement that many rows go through, with one argument list each.
// Where a statement costs a round trip, the rows go in one.
type bulkSQL struct {
	// one is for one row.
	one string
	// many is for any number: {{rows T1 T2 …}} stands for the table of their
	// arguments, with one column of that type for each.
	many string
}

// each runs the statement for every row. Each must change exactly one row of the
// table; their order is that of the rows.
func (t *tx) each(b bulkSQL, rows [][]any) error {
	if !t.s.d.bulk || len(rows) < 2 {
		for _, row := range rows {
			if err := t.one(b.one, nil, row...); err != nil {
				return err
			}
		}
		return nil
	}
	args, err := columnsOf(rows)
	if err != nil {
		return err
	}
	n, err := t.exec(b.many, args...)
	if err == nil && n != int64(len(rows)) {
		return &faultError{kind: faultBug, text: fmt.Sprintf("%d rows changed instead of %d by:%s", n, len(rows), b.many)}
	}
	return err
}

// eachReturning runs the statement for every row and appends the rows that it
// returns to dst, in no order: at most one for each.
func eachReturning[T any](t *tx, dst *[]T, b bulkSQL, rows [][]any) error {
	if t.s.d.bulk && len(rows) > 1 {
		args, err := columnsOf(rows)
		if err != nil {
			return err
		}
		return t.all(dst, b.many, args...)
	}
	for _, row := range rows {
		var got T
		found, err := t.get(&got, b.one, row...)
		if err != nil {
			return err
		}
		if found {
			*dst = append(*dst, got)
		}
	}
	return nil
}

// columnsOf turns the argument lists of rows into one array for each column.
func columnsOf(rows [][]any) ([]any, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	args := make([]any, len(rows[0]))
	for c := range args {
		var b strings.Builder
		b.WriteByte('{')
		for r, row := range rows {
			if r > 0 {
				b.WriteByte(',')
			}
			if err := writeElement(&b, row[c]); err != nil {
				return nil, fmt.Errorf("argument %d: %w", c+1, err)
			}
		}
		b.WriteByte('}')
		args[c] = b.String()
	}
	return args, nil
}

// writeElement writes v as an element of a PostgreSQL array literal.
// Source of the form: PostgreSQL 15 documentation, 8.15.2 and 8.4.1.
func writeElement(b *strings.Builder, v any) error {
	v, err := driver.DefaultParameterConverter.ConvertValue(v)
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("NULL")
	case string:
		b.WriteByte('"')
		for i := range len(v) {
			if v[i] == '"' || v[i] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(v[i])
		}
		b.WriteByte('"')
	case []byte:
		if v == nil {
			b.WriteString("NULL")
			return nil
		}
		b.WriteString(`"\\x`)
		b.WriteString(hex.EncodeToString(v))
		b.WriteByte('"')
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	default:
		return fmt.Errorf("a %T can't be an element of an array", v)
	}
	return nil
}

// rowsTable fills {{rows T1 T2 …}}.
func rowsTable(types string) string {
	var args []string
	for i, typ := range strings.Fields(types) {
		args = append(args, fmt.Sprintf("CAST($%d AS %s[])", i+1, typ))
	}
	return "unnest(" + strings.Join(args, ", ") + ")"
}

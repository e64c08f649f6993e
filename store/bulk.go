package store

import (
	"fmt"
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
	args, err := columnsOf(b.many, rows)
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
		args, err := columnsOf(b.many, rows)
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

// columnsOf turns the argument lists of rows into one array for each column of the
// rows that q takes.
func columnsOf(q string, rows [][]any) ([]any, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	types := rowTypes(q)
	if len(types) != len(rows[0]) {
		return nil, fmt.Errorf("%d arguments for %d columns of:%s", len(rows[0]), len(types), q)
	}
	args := make([]any, len(types))
	for c, typ := range types {
		id, ok := elementTypes[typ]
		if !ok {
			return nil, fmt.Errorf("argument %d: no arrays of %s are made", c+1, typ)
		}
		a := newPGArray(id, len(rows), 16*len(rows))
		for _, row := range rows {
			if err := a.element(id, row[c]); err != nil {
				return nil, fmt.Errorf("argument %d: %w", c+1, err)
			}
		}
		args[c] = []byte(a)
	}
	return args, nil
}

// rowTypes are the types of {{rows T1 T2 …}} in q, nil when it has none.
func rowTypes(q string) []string {
	_, rest, _ := strings.Cut(q, "{{rows ")
	types, _, ok := strings.Cut(rest, "}}")
	if !ok {
		return nil
	}
	return strings.Fields(types)
}

// rowsTable fills {{rows T1 T2 …}}.
func rowsTable(types string) string {
	var args []string
	for i, typ := range strings.Fields(types) {
		args = append(args, fmt.Sprintf("CAST($%d AS %s[])", i+1, typ))
	}
	return "unnest(" + strings.Join(args, ", ") + ")"
}

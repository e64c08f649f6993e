package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate"
)

// pgAtOnce makes what it can of a group's changes in one round trip: a statement that
// commits by itself, see sqlPGAccept and sqlPGSucceed. Items that it leaves unmade
// and unanswered are for the long way.
func (g *group) pgAtOnce(items []*item) error {
	for _, it := range items {
		it.reset()
	}
	if err := g.pgAccept(items); err != nil {
		return err
	}
	g.pgSucceed(items)
	return nil
}

// pgOnce runs a statement that commits by itself and gives one row, or none when it
// changed nothing, and scans that into dst. An error is the answer to all whose
// changes the statement makes: it was not to be had, or nobody knows what became of
// it. Whatever else the server says, nothing was changed, and the long way tells why,
// for each item; that is found being false.
func (g *group) pgOnce(what, text string, args []any, dst ...sql.Scanner) (found bool, err error) {
	s, ctx := g.s, context.Background()
	conn, err := s.connection(ctx, s.write)
	if err != nil {
		return false, s.mapped(ctx, fmt.Errorf("%s: %w", what, err))
	}
	var sent bool
	err = conn.Raw(func(c any) (err error) {
		found, sent, err = c.(*pgConn).once(text, args, dst)
		return err
	})
	if err != nil && s.spent(err) {
		s.drop(conn)
	} else {
		_ = conn.Close() // the pool drops it when it is broken
	}
	switch {
	case err == nil:
		return found, nil
	case !sent:
		return false, nil
	case pq.As(err) == nil:
		// The answer was lost, and with it whether there was a commit.
		return false, lanegate.ErrOutcomeUnknown.Because(&faultError{kind: faultAway, text: err.Error(), spent: s.spent(err)})
	case s.d.sort(err) == faultAway:
		return false, s.mapped(ctx, fmt.Errorf("%s: %w", what, err))
	}
	return false, nil
}

// once runs a statement for pgOnce on this connection; found: it has given a row.
// Unless it was sent nothing can have happened.
func (c *pgConn) once(text string, args []any, dst []sql.Scanner) (found, sent bool, err error) {
	if c.stale() {
		return false, false, nil
	}
	st := c.own[text]
	if st == nil {
		prepared, err := c.PrepareContext(context.Background(), text)
		if err != nil {
			return false, false, err
		}
		st = prepared.(driver.StmtQueryContext)
		if c.own == nil {
			c.own = map[string]driver.StmtQueryContext{}
		}
		c.own[text] = st
	}
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	// Its end is bounded by the server's statement_timeout and silentConn: a context
	// that can end would cost a goroutine.
	rows, err := st.QueryContext(context.Background(), named)
	if err != nil {
		return false, true, err
	}
	row := make([]driver.Value, len(dst))
	err = rows.Next(row)
	if found = err == nil; found {
		for i, d := range dst {
			err = errors.Join(err, d.Scan(row[i]))
		}
		// The commit comes behind the row, and may fail.
		if end := rows.Next(row); err == nil {
			err = end
		}
	}
	if err == io.EOF { //nolint:errorlint // the end of the rows, by the contract of driver.Rows
		err = rows.Close()
	}
	return found, true, err
}

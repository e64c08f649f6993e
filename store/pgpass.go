package store

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// A pass of admission on PostgreSQL takes two round trips, where a few jobs start: one
// that begins, locks the admission row and reads what is in flight and the starts of
// the lines, and one that starts and commits. Several statements share a round trip
// in the server's simple protocol, which takes no arguments; so each connection has
// them prepared under a name, and executes them with literals. In READ COMMITTED each
// still has a snapshot of its own, of the moment when the one before was done: what is
// read is as new as by one round trip each, behind the lock.
//
// What the planner needs to know of the configuration is what this process read last.
// Should the locked row say that there is a newer one, the lines are read again.

// pgPassed is the most jobs that start and commit in one round trip: of more, arrays in
// binary are worth a round trip.
const pgPassed = 4

// sqlPGStartKept is sqlPGStartJobs for a commit that comes with it, behind which nothing
// can be taken back: a job without its payload doesn't start.
const sqlPGStartKept = pgStarting + `
       AND (SELECT true FROM job_payloads AS p WHERE p.job_id = w.job)` + pgBegun + `
SELECT ` + jobColumns + `, p.payload
  FROM j
  JOIN job_payloads AS p ON p.job_id = j.id`

// pgNamed prepares on a connection what passes execute by name.
func pgNamed(d *dialect) string {
	return "PREPARE lanegate_lock AS " + d.sql(d.lockAdmission) +
		"; PREPARE lanegate_stands (text) AS " + d.sql(sqlPGStandsAll) +
		"; PREPARE lanegate_since (text, bigint, json) AS " + d.sql(sqlPGStandsSince) +
		"; PREPARE lanegate_lines (json) AS " + d.sql(d.starts) +
		"; PREPARE lanegate_start (" + strings.Join(rowTypes(sqlPGStartKept), "[], ") + "[]) AS " + d.sql(sqlPGStartKept)
}

// joinedKey is where the context of a begin says that BEGIN comes with the first
// statements: a **joinedTx, which is set to the transaction.
type joinedKey struct{}

// joinedTx is a transaction whose BEGIN comes with its first statements, and maybe its
// COMMIT with the last. Who sends them says so here; database/sql looks from a goroutine
// of its own, too, when the transaction's time is over.
type joinedTx struct {
	driver.Tx
	begun, committed atomic.Bool
	reads            *sessionReads // of its connection
}

// Commit implements driver.Tx.
func (j *joinedTx) Commit() error {
	if j.committed.Load() {
		return nil
	}
	return j.Tx.Commit()
}

// Rollback implements driver.Tx.
func (j *joinedTx) Rollback() error {
	if !j.begun.Load() || j.committed.Load() {
		return nil
	}
	return j.Tx.Rollback()
}

// beginJoined returns a transaction that its first statements are to begin.
func (c *pgConn) beginJoined(ctx context.Context) (*joinedTx, error) {
	if !c.prepared {
		if _, err := c.ExecContext(ctx, c.named, nil); err != nil {
			return nil, fmt.Errorf("prepare admission's statements: %w", err)
		}
		c.prepared = true
	}
	return &joinedTx{Tx: c.pqConn, reads: &c.reads}, nil
}

// errNotAtOnce: a pass changed nothing, as its starts can't be made and committed
// together; the long way tells why.
var errNotAtOnce = errors.New("a pass in two round trips is not possible")

// pgInPass is inAdmissionTx for an admission of ask, with all that it reads at first
// in t when fn is called. fn may end the transaction by startAndCommit.
func (s *Store) pgInPass(ctx context.Context, what string, ask service.Ask, fn func(t *tx) error) error {
	done, err := s.takeTurn(ctx, what)
	if err != nil {
		return err
	}
	defer done()
	return s.retry(ctx, func() error {
		dead, err := s.pgPass(ctx, ask, fn)
		if dead { // as in beginOn
			_, err = s.pgPass(ctx, ask, fn)
		}
		if err == nil || errors.Is(err, errNotAtOnce) {
			return err
		}
		return s.mapped(ctx, wrap(what, err))
	}, what)
}

// pgPass runs one transaction of pgInPass. dead: the connection turned out to be so when
// it was to begin, as after a restart of the server. Nothing has happened on it, and it
// is dropped with all that nobody uses.
func (s *Store) pgPass(ctx context.Context, ask service.Ask, fn func(t *tx) error) (dead bool, err error) {
	var joined *joinedTx
	err = s.once(context.WithValue(ctx, joinedKey{}, &joined), s.write, func(t *tx) error {
		t.joined = joined
		err := t.pgBeginPass(ask)
		switch {
		case err == nil:
			return fn(t)
		case diedIdle(err):
			dead = true
			return &faultError{kind: faultAway, text: err.Error(), spent: true}
		}
		return err
	})
	return dead, err
}

// pgBeginPass begins, locks the admission row, and reads stands and lines.
func (t *tx) pgBeginPass(ask service.Ask) error {
	seen, began := t.joined.reads, time.Now()
	anew := seen.rewind(began)
	stands, err := seen.stands(ask)
	if err != nil {
		return err
	}
	statements := []string{"BEGIN", "EXECUTE lanegate_lock", stands}
	lines := t.s.linesAhead(ask)
	if lines != nil {
		want, err := seen.wanted(lines.first)
		if err != nil {
			return err
		}
		statements = append(statements, "EXECUTE lanegate_lines("+pq.QuoteLiteral(want)+")")
	}
	t.joined.begun.Store(true)
	rows, err := t.q.QueryxContext(t.ctx, strings.Join(statements, "; "))
	if err != nil {
		return fmt.Errorf("lock the admission row, and read what is in flight: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var locked []admissionRow
	var standing []standRow
	var heads []headRow
	if err := scanSets(rows, &locked, &standing, &heads); err != nil {
		return fmt.Errorf("lock the admission row, and read what is in flight: %w", err)
	}
	if err := t.begun(append(locked, admissionRow{})[0], len(locked) > 0); err != nil {
		return err
	}
	if _, err := t.standsOf(standing); err != nil {
		return err
	}
	seen.stood(standing)
	if anew {
		seen.sweep = time.Now().Add(max(sweepEvery, sweepShare*time.Since(began)))
	}
	switch {
	case t.at.Before(seen.at): // the clock went back, and who comes is before others
		seen.from, seen.at = nil, t.at
	case lines != nil:
		lines.due = dues(nil, heads)
		t.lines = lines
		seen.read(t.at, lines.first, heads, t.s.lateBy)
	}
	return nil
}

// scanSets scans one result set after the other; those that don't come leave theirs as
// it is. It reads to the end of rows, where the error of the last statement is.
func scanSets(rows *sqlx.Rows, sets ...any) error {
	for i, set := range sets {
		if i > 0 && !rows.NextResultSet() {
			break
		}
		if err := sqlx.StructScan(rows, set); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// startAndCommit starts those of the jobs that still wait and commits, in one round
// trip, or changes nothing: then the error is errNotAtOnce, or one of the database. If
// the commit may have been made, it is errUnconfirmed.
func (t *tx) startAndCommit(grants []admission.Grant) ([]service.Grant, error) {
	given, begun, err := t.startsOf(grants)
	if err != nil {
		return nil, err
	}
	args, err := literalsOf(sqlPGStartKept, given)
	if err != nil {
		return nil, err
	}
	statement := "EXECUTE lanegate_start(" + strings.Join(args, ", ") + "); COMMIT"
	if strings.Contains(statement, "\x00") {
		return nil, errNotAtOnce // it would end there
	}
	t.wrote = true
	var jobs []startedRow
	rows, err := t.q.QueryxContext(t.ctx, statement)
	if err == nil {
		defer func() { _ = rows.Close() }()
		err = scanSets(rows, &jobs)
	}
	if err == nil {
		t.joined.committed.Store(true)
		return granted(grants, begun, jobs), nil
	}
	switch kind := t.s.d.sort(err); {
	case pq.As(err) == nil: // no answer: the commit may have been under way
		return nil, errUnconfirmed.Because(&faultError{kind: faultAway, text: err.Error(), spent: t.s.spent(err)})
	case kind == faultAway || kind == faultConflict: // the server's answer, and nothing was committed
		return nil, fmt.Errorf("start jobs: %w", err)
	default:
		return nil, fmt.Errorf("%w: %w", errNotAtOnce, err)
	}
}

// literalsOf turns the argument lists of rows into one literal of an array for each
// column of the rows that q takes.
func literalsOf(q string, rows [][]any) ([]string, error) {
	literals := make([]string, len(rowTypes(q)))
	for c := range literals {
		array := []byte{'{'}
		for i, row := range rows {
			if i > 0 {
				array = append(array, ',')
			}
			var err error
			if array, err = appendElement(array, row[c]); err != nil {
				return nil, fmt.Errorf("argument %d: %w", c+1, err)
			}
		}
		literals[c] = pq.QuoteLiteral(string(append(array, '}')))
	}
	return literals, nil
}

// appendElement appends v, of any kind that is an argument of a statement, as an
// element of an array's text.
func appendElement(to []byte, v any) ([]byte, error) {
	v, err := driver.DefaultParameterConverter.ConvertValue(v)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil:
		return append(to, "NULL"...), nil
	case bool:
		return strconv.AppendBool(to, v), nil
	case int64:
		return strconv.AppendInt(to, v, 10), nil
	case []byte:
		return append(hex.AppendEncode(append(to, `"\\x`...), v), '"'), nil
	case string:
		to = append(to, '"')
		for i := range len(v) {
			if v[i] == '"' || v[i] == '\\' {
				to = append(to, '\\')
			}
			to = append(to, v[i])
		}
		return append(to, '"'), nil
	}
	return nil, fmt.Errorf("a %T can't be an element of an array's text", v)
}

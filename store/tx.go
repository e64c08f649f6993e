package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/lanegate/lanegate"
)

// Pool is a connection pool as far as statistics need it.
type Pool interface{ Stats() sql.DBStats }

// tx is one open transaction. It belongs to the goroutine that runs it.
type tx struct {
	s   *Store
	ctx context.Context
	q   *sqlx.Tx
	// hot are the pool's prepared statements by their text.
	hot map[string]*sqlx.Stmt
	// classes are those whose rows are locked, where transactions run side by side.
	classes map[string]bool
	// locked are the jobs of a group's outcomes as they were when they were locked,
	// where transactions run side by side.
	locked map[string]jobRow
	// known are those of a group's keys that were used before; nil when they are to
	// be looked for.
	known map[lockKey]bool
	// standing is what stands has read.
	standing *stands
	// joined: begun by pgInPass. lines are then the starts of the lines that were read
	// with it; nil when they were not, or are of no use any more.
	joined *joinedTx
	lines  *linesRead
	// gone: jobs that were to start by startAndCommit did not wait any more.
	gone bool
	// wrote: exec was called, or a start. void: nothing was changed, so there is nothing to commit,
	// which would wait for the disk only because rows were locked.
	wrote, void bool
	// singly: what could be done for many rows at once has failed so, and is done
	// row by row.
	singly bool
	// successes are noted at the end of a group, in one order; nil outside of one.
	successes *[]success
	// at is the transaction's one time, by the database's clock. In a
	// transaction that locks the admission row it is read behind the lock.
	at time.Time
	// version of classes, lanes and resources, as of the first statement.
	version int64
}

const (
	sqlReadAdmission = `
SELECT version, {{now}} AS at
  FROM admission
 WHERE id = 1`
)

// begin reads what every transaction starts with; first is sqlReadAdmission or
// dialect.lockAdmission, and with the latter every read comes after the lock.
func (t *tx) begin(first string) error {
	var row admissionRow
	found, err := t.get(&row, first)
	if err != nil {
		return fmt.Errorf("read the admission row: %w", err)
	}
	return t.begun(row, found)
}

// admissionRow is the one row that all transactions begin with.
type admissionRow struct {
	Version int64  `db:"version"`
	At      dbTime `db:"at"`
}

func (t *tx) begun(row admissionRow, found bool) error {
	if !found {
		return &faultError{kind: faultBug, text: "the admission row is missing: restore the database from a backup"}
	}
	t.version, t.at = row.Version, row.At.t
	if t.s.d.clock != nil {
		t.at = lanegate.Micro(t.s.d.clock())
	}
	return nil
}

// inTx runs fn in one write transaction; what names it in errors. ctx bounds the
// wait for a connection; once begun, the transaction runs under its own limit, so
// that no caller's end leaves its outcome unknown. fn touches t only, and may run
// again when another transaction was in the way. A failed commit is ErrOutcomeUnknown.
func (s *Store) inTx(ctx context.Context, what string, fn func(t *tx) error) error {
	return s.transact(ctx, s.write, what, sqlReadAdmission, fn)
}

// inAdmissionTx is inTx with the admission row locked first.
func (s *Store) inAdmissionTx(ctx context.Context, what string, fn func(t *tx) error) error {
	done, err := s.takeTurn(ctx, what)
	if err != nil {
		return err
	}
	defer done()
	return s.transact(ctx, s.write, what, s.d.lockAdmission, fn)
}

// takeTurn waits until no other transaction of the process has the admission row, or
// wants it: they would hold a connection each, only to wait for it.
func (s *Store) takeTurn(ctx context.Context, what string) (done func(), err error) {
	if s.turn == nil {
		return func() {}, nil
	}
	wait, cancel := s.connWait(ctx)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-wait.Done():
		return nil, s.mapped(ctx, wrap(what, fmt.Errorf("wait for this process's other admission: %w", wait.Err())))
	}
}

func (s *Store) transact(ctx context.Context, db *sqlx.DB, what, first string, fn func(t *tx) error) error {
	return s.retry(ctx, func() error {
		err := s.once(ctx, db, func(t *tx) error {
			if err := t.begin(first); err != nil {
				return err
			}
			return fn(t)
		})
		if err == nil {
			return nil
		}
		return s.mapped(ctx, wrap(what, err))
	}, what)
}

// retry runs fn until it does something else than give way to another transaction.
func (s *Store) retry(ctx context.Context, fn func() error, what string) error {
	for n := 1; ; n++ {
		err := fn()
		if err == nil || !faultConflict.is(err) || n >= s.opts.Retry.Attempts {
			return err
		}
		wait := time.Duration(rand.Float64() * float64(s.opts.Retry.Wait<<min(n-1, 10)))
		s.log.WarnContext(ctx, "transaction repeated", "what", what, "attempt", n, "err", err)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// once runs fn in one transaction of a pool and commits it. Errors are the
// driver's, except that of a failed commit.
func (s *Store) once(ctx context.Context, db *sqlx.DB, fn func(t *tx) error) (err error) {
	b, err := s.beginOn(ctx, db, nil, s.opts.TxTimeout)
	if err != nil {
		return err
	}
	defer func() { b.end(err) }()
	t := &tx{s: s, ctx: b.ctx, q: b.q, hot: s.hot[db]}
	if err := fn(t); err != nil || t.void || t.joined != nil && t.joined.committed.Load() {
		return err
	}
	if err := b.q.Commit(); err != nil {
		return errUnconfirmed.Because(&faultError{kind: faultAway, text: err.Error(), spent: s.spent(err)})
	}
	return nil
}

// errUnconfirmed is ErrOutcomeUnknown for changes that are not submissions.
var errUnconfirmed = lanegate.ErrOutcomeUnknown.With("the commit was not confirmed: the change may or may not have been made. Look, and repeat it if it was not.")

// inRead runs fn in one transaction of the read pool: all its reads see the same
// state. Writes fail.
//
// Within a look they are part of that.
func (s *Store) inRead(ctx context.Context, what string, fn func(t *tx) error) (err error) {
	if t := s.looking(ctx); t != nil {
		defer func(outer context.Context) { t.ctx = outer }(t.ctx)
		t.ctx = ctx
		if err := fn(t); err != nil {
			return s.mapped(ctx, wrap(what, err))
		}
		return nil
	}
	b, err := s.beginOn(ctx, s.read, &s.d.reads, 0)
	if err == nil {
		defer func() { b.end(err) }()
		t := &tx{s: s, ctx: ctx, q: b.q, hot: s.hot[s.read]}
		if err = t.begin(sqlReadAdmission); err == nil {
			err = fn(t)
		}
	}
	if err == nil {
		return nil
	}
	return s.mapped(ctx, wrap(what, err))
}

// wrap names what was attempted; our own errors are for callers and stay as they are.
func wrap(what string, err error) error {
	if _, ok := errors.AsType[*lanegate.Error](err); ok {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// get reads one row into dst; false when there is none.
func (t *tx) get(dst any, q string, args ...any) (bool, error) {
	var err error
	text := t.s.d.sql(q)
	if st := t.hot[text]; st != nil {
		err = t.q.StmtxContext(t.ctx, st).GetContext(t.ctx, dst, args...) //nolint:sqlclosecheck // ends with the transaction
	} else {
		err = t.q.GetContext(t.ctx, dst, text, args...)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// all reads every row into dst, a pointer to a slice.
func (t *tx) all(dst any, q string, args ...any) error {
	text := t.s.d.sql(q)
	if st := t.hot[text]; st != nil {
		return t.q.StmtxContext(t.ctx, st).SelectContext(t.ctx, dst, args...) //nolint:sqlclosecheck // ends with the transaction
	}
	return t.q.SelectContext(t.ctx, dst, text, args...)
}

// exec runs a statement and says how many rows it changed.
func (t *tx) exec(q string, args ...any) (int64, error) {
	var res sql.Result
	var err error
	t.wrote = true
	text := t.s.d.sql(q)
	if st := t.hot[text]; st != nil {
		res, err = t.q.StmtxContext(t.ctx, st).ExecContext(t.ctx, args...)
	} else {
		res, err = t.q.ExecContext(t.ctx, text, args...)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// one runs a statement that must change exactly one row; otherwise the answer is
// miss, or a fault when miss is nil.
func (t *tx) one(q string, miss error, args ...any) error {
	n, err := t.exec(q, args...)
	switch {
	case err != nil:
		return err
	case n == 1:
		return nil
	case miss != nil:
		return miss
	}
	return &faultError{kind: faultBug, text: fmt.Sprintf("%d rows changed instead of one by:%s", n, q)}
}

// savepoint runs fn so that an error, or a panic, leaves nothing of it behind
// while the transaction goes on. A savepoint that can't be ended means that the
// whole transaction is lost: errTxLost.
func (t *tx) savepoint(name string, fn func() error) error {
	if _, err := t.exec("SAVEPOINT " + name); err != nil {
		return errors.Join(errTxLost, err)
	}
	failed := t.s.guarded(t.ctx, fn)
	if failed != nil {
		if _, err := t.exec("ROLLBACK TO SAVEPOINT " + name); err != nil {
			return errors.Join(errTxLost, failed, err)
		}
	}
	if _, err := t.exec("RELEASE SAVEPOINT " + name); err != nil {
		return errors.Join(errTxLost, failed, err)
	}
	return failed
}

// alone runs fn for one row of many under a savepoint: a row that can't be
// handled, however it came to be, is logged and left out, and doesn't stop the
// others. Only an error of the database itself is returned.
func (t *tx) alone(what, job string, fn func() error) (done bool, err error) {
	err = t.savepoint("alone", fn)
	if err == nil {
		return true, nil
	}
	kind := t.s.d.sort(err)
	if errors.Is(err, errTxLost) || kind == faultAway || kind == faultConflict || t.ctx.Err() != nil {
		return false, err
	}
	t.s.log.ErrorContext(t.ctx, "row left out", "what", what, "job", job, "err", err)
	return false, nil
}

// errTxLost: the database ended the transaction by itself (a full disk, a lost
// connection), so nothing in it can stand.
var errTxLost = errors.New("the transaction is lost")

package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// passFunc is the kind of dialect.inPass.
type passFunc func(s *Store, ctx context.Context, what string, ask service.Ask, fn func(t *tx) error) error

// dialect is everything the engines don't share. Adding one means filling this
// struct and a folder of migrations.
type dialect struct {
	name string
	// now fills {{now}}: the database's clock. NULL where clock takes its place.
	now string
	// lock fills {{lock}}: the row lock behind a SELECT; empty where a
	// transaction is alone anyway.
	lock string
	// share fills {{share}}: a row lock that keeps FOR UPDATE away and lets plain
	// updates pass; skip fills {{skip}}: the lock of rows that nobody has locked,
	// without those that somebody has. Both empty where lock is.
	share, skip string
	// use fills {{use NAME}} behind a table: how to demand that index, with $1 for
	// its name. SQLite without statistics prefers an equality on state to the
	// narrow partial index, and then reads the whole backlog. Empty where the
	// planner knows its data.
	use string
	// spans fills {{spans}}: the rows of $3, a JSON list of spanRow. among fills
	// {{among}} behind a column: is it one of $4, a JSON list of texts? Both are seeks
	// where the column leads an index. {{among N}} is that with another argument.
	spans, among string
	// clock is the process's clock where the database has none of its own to
	// agree on (one process); nil otherwise.
	clock func() time.Time
	// lockAdmission is sqlReadAdmission behind the lock of the admission row.
	lockAdmission string
	// heads reads the first $2 due jobs in line of each class in $1, a JSON list
	// of names: one index seek per class, whatever the backlog. Columns: headRow. It
	// fills {{heads}}, and {{head}} with one job of each class: with the number written
	// out PostgreSQL sees that a plan for all values is as good, and plans once.
	heads string
	// first is heads for one job of each class; "" where it would be no faster.
	first string
	// starts is heads with a number for each class, and maybe a place from where its line
	// is read, $1 being a JSON list of lineWanted; "" where LIMIT takes no column.
	starts string
	// groups reads the last $2 ids of each group of $1, a JSON list of listGroup, before
	// an id: one index seek for each. Columns: i, id.
	groups string
	// reads is how a transaction of the read pool is begun, so that all its reads
	// see one state.
	reads sql.TxOptions
	// bulk: a statement costs a round trip, so that many rows go through one.
	bulk bool
	// atOnce makes, in a statement that commits by itself, what it can of a group's
	// changes, and may answer items; an error is the answer to all others. nil where a
	// transaction costs no round trips.
	atOnce func(g *group, items []*item) error
	// inPass is inAdmissionTx for an admission, by as few round trips as can be: what
	// it reads comes with its beginning, and fn may end it by tx.startAndCommit. It may
	// answer errNotAtOnce, having changed nothing. nil where there are none.
	inPass passFunc
	// beginGroup locks what the items of a group will touch and begins t behind these
	// locks, lockClass locks the row of a class that was not among it, lockGrants the
	// jobs that are about to start, returning those that still may; nil where a
	// transaction is alone anyway.
	beginGroup func(t *tx, items []*item) error
	lockClass  func(t *tx, id string) error
	lockGrants func(t *tx, grants []admission.Grant) ([]admission.Grant, error)
	// ready lists up to max queued jobs whose time has come and that no admission
	// has noted yet, in the order in which they became so, for a change.
	ready func(t *tx, max int) ([]jobRow, error)
	// sort says what kind of failure a driver's error is; faultNone for errors
	// that are not the driver's.
	sort func(error) faultKind
	// spent says whether a connection that gave this error, and all that are like
	// it, must be dropped; nil where a connection is as good as another.
	spent func(error) bool

	resolved sync.Map // text with holes → text
}

var (
	useHole   = regexp.MustCompile(`\{\{use (\w+)\}\}`)
	rowsHole  = regexp.MustCompile(`\{\{rows ([\w ]+)\}\}`)
	amongHole = regexp.MustCompile(`\{\{among (\d)\}\}`)
)

// sql fills the holes of a statement.
func (d *dialect) sql(q string) string {
	if s, ok := d.resolved.Load(q); ok {
		return s.(string)
	}
	s := strings.NewReplacer("{{now}}", d.now, "{{lock}}", d.lock, "{{share}}", d.share, "{{skip}}", d.skip, "{{heads}}", d.heads, "{{head}}", cmp.Or(d.first, strings.ReplaceAll(d.heads, "$2", "1")), "{{spans}}", d.spans, "{{among}}", d.among).Replace(q)
	s = useHole.ReplaceAllString(s, d.use)
	s = rowsHole.ReplaceAllStringFunc(s, func(hole string) string { return rowsTable(rowsHole.FindStringSubmatch(hole)[1]) })
	s = amongHole.ReplaceAllStringFunc(s, func(hole string) string {
		return strings.ReplaceAll(d.among, "$4", "$"+amongHole.FindStringSubmatch(hole)[1])
	})
	d.resolved.Store(q, s)
	return s
}

// faultKind sorts what a database can answer instead of a result.
type faultKind int

const (
	faultNone      faultKind = iota // not the database's
	faultBug                        // a statement or a value of ours is wrong
	faultDuplicate                  // a unique or primary key exists already
	faultConflict                   // another transaction was in the way; nothing happened
	faultAway                       // no answer, read-only, full, damaged
)

// faultError is a driver's error without the driver's type.
type faultError struct {
	kind  faultKind
	text  string
	spent bool // the connection is of no use any more
}

func (f *faultError) Error() string { return f.text }

// is says whether err is a fault of that kind.
func (k faultKind) is(err error) bool {
	f, ok := errors.AsType[*faultError](err)
	return ok && f.kind == k
}

// spent says whether the connection that gave err must not be used again.
func (s *Store) spent(err error) bool {
	if f, ok := errors.AsType[*faultError](err); ok && f.spent {
		return true
	}
	return s.d.spent != nil && s.d.spent(err)
}

// mapped turns a driver's error into ours, keeping the context that callers
// added as text; other errors pass unchanged. ctx is the caller's: when it has
// ended, that is the answer.
func (s *Store) mapped(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*lanegate.Error](err); ok {
		return err
	}
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	kind := s.d.sort(err)
	if f, ok := errors.AsType[*faultError](err); ok {
		kind = f.kind
	}
	switch {
	case kind == faultNone && !ended:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%v: %w", err, ctx.Err())
	case ended: // our own limit on a transaction
		kind = faultAway
	}
	f := &faultError{kind: kind, text: err.Error(), spent: s.spent(err)}
	if kind == faultConflict || kind == faultAway {
		return lanegate.ErrUnavailable.Because(f)
	}
	return f
}

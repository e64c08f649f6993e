package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

func postgresDialect() *dialect {
	return &dialect{
		name: "postgres", now: "clock_timestamp()",
		lock: "FOR UPDATE", share: "FOR KEY SHARE", skip: "FOR UPDATE SKIP LOCKED",
		spans: sqlPGSpans, among: "= ANY (ARRAY(SELECT json_array_elements_text(CAST($4 AS json))))",
		lockAdmission: sqlPGLockAdmission, heads: sqlPGHeads, starts: sqlPGLineStarts, groups: sqlPGGroups,
		reads: sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
		sort:  sortPostgres, spent: spentPostgres, bulk: true, atOnce: (*group).pgAtOnce, inPass: (*Store).pgInPass,
		beginGroup: (*tx).pgBeginGroup, lockClass: (*tx).pgLockClass, lockGrants: (*tx).pgLockGrants, ready: (*tx).pgReady,
	}
}

const (
	// The lock is taken inside the WITH, so that time and version are read behind
	// it: in one plain SELECT the row's columns are computed before the wait, and
	// stay so when the holder did not change the row.
	sqlPGLockAdmission = `
  WITH locked AS MATERIALIZED (SELECT version FROM admission WHERE id = 1 FOR UPDATE)
SELECT version, clock_timestamp() AS at
  FROM locked`
	sqlPGSpans = `SELECT i, from_first, from_at, from_id, to_first, to_at, to_id, moved_to, low_at, low_id, last_id
                          FROM json_to_recordset(CAST($3 AS json)) AS given (i bigint, from_first timestamptz, from_at timestamptz, from_id text,
                               to_first timestamptz, to_at timestamptz, to_id text, moved_to timestamptz, low_at timestamptz, low_id text, last_id text)`
	// One index seek per class, whatever the backlog.
	sqlPGHeads = `
SELECT j.id, j.class, j.first_at, j.place_at, j.place_id, j.worker
  FROM json_array_elements_text(CAST($1 AS json)) AS want (class)
 CROSS JOIN LATERAL (SELECT h.id, h.class, h.first_at, h.place_at, h.place_id, h.worker
                       FROM jobs AS h
                      WHERE h.state = 'queued' AND h.due AND h.class = want.class
                      ORDER BY h.first_at, h.place_at, h.place_id
                      LIMIT $2) AS j
 ORDER BY j.class, j.first_at, j.place_at, j.place_id`
	// In front of the place from where a line is read stand only jobs that returned there
	// (see sessionReads), which have an index of their own.
	sqlPGLineStarts = `
SELECT j.id, j.class, j.first_at, j.place_at, j.place_id, j.worker
  FROM json_to_recordset(CAST($1 AS json)) AS want (class text, n bigint, first timestamptz, at timestamptz, id text)
 CROSS JOIN LATERAL (SELECT *
                       FROM ((SELECT h.id, h.class, h.first_at, h.place_at, h.place_id, h.worker
                                FROM jobs AS h
                               WHERE h.state = 'queued' AND h.due AND h.class = want.class
                                 AND (h.first_at, h.place_at, h.place_id) >= (coalesce(want.first, '-infinity'), coalesce(want.at, '-infinity'), coalesce(want.id, ''))
                               ORDER BY h.first_at, h.place_at, h.place_id
                               LIMIT want.n)
                              UNION ALL
                             (SELECT h.id, h.class, h.first_at, h.place_at, h.place_id, h.worker
                                FROM jobs AS h
                               WHERE want.first IS NOT NULL AND h.class = want.class
                                 AND h.state = 'queued' AND h.due AND (h.ready_at <> h.submitted_at OR h.place_id <> h.id OR h.first_at < '9999-12-31 00:00:00+00' OR h.attempts > 0)
                                 AND (h.first_at, h.place_at, h.place_id) < (want.first, want.at, want.id)
                               ORDER BY h.first_at, h.place_at, h.place_id
                               LIMIT want.n)) AS parts
                      ORDER BY first_at, place_at, place_id
                      LIMIT want.n) AS j
 ORDER BY j.class, j.first_at, j.place_at, j.place_id`
	// The comparison of rows and their order leave no other index to read it by, such
	// as that of the keys, which may have a backlog in between. (A scan does not end by
	// the second column of such a comparison, so the lower bound is a plain one.)
	sqlPGGroups = `
SELECT given.i, j.id
  FROM json_to_recordset(CAST($1 AS json)) AS given (i bigint, state text, class text, before text)
 CROSS JOIN LATERAL (SELECT h.id
                       FROM jobs AS h
                      WHERE h.state = given.state AND (h.class, h.id) < (given.class, given.before) AND h.class >= given.class
                        AND h.state || '' <> 'running'
                      ORDER BY h.class DESC, h.id DESC
                      LIMIT $2) AS j`
)

// sortPostgres sorts a driver error by its SQLSTATE. A wait for a lock that took
// too long is no conflict: whoever holds it may be frozen, and the time is over.
func sortPostgres(err error) faultKind {
	if e := pq.As(err); e != nil {
		return sortSQLState(e.Code)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return faultNone
	}
	if isLost(err) || errors.Is(err, sql.ErrTxDone) || isClosed(err) {
		return faultAway
	}
	return faultNone
}

func sortSQLState(code pqerror.Code) faultKind {
	switch code {
	case pqerror.UniqueViolation:
		return faultDuplicate
	case pqerror.TRSerializationFailure, pqerror.TRDeadlockDetected,
		// A prepared statement from before another replica's migration, or of another
		// server; its connection is dropped, the next one prepares anew.
		pqerror.FeatureNotSupported, pqerror.InvalidSQLStatementName, pqerror.DuplicatePstatement:
		return faultConflict
	case pqerror.ReadOnlySQLTransaction, pqerror.IdleInTransactionSessionTimeout,
		pqerror.LockNotAvailable, pqerror.InsufficientPrivilege, pqerror.InvalidCatalogName:
		return faultAway
	}
	switch code.Class() {
	case "08", // connection
		"28", // authorization
		"53", // out of something
		"57", // operator intervention: shut down, cancelled, starting up
		"58", // the machine's
		"F0", // config file
		"XX": // damaged
		return faultAway
	}
	return faultBug
}

// diedIdle says of an error at a connection's first message whether the connection had
// died before, as after a restart of the server, so that another one is worth a try. A
// server that is silent will be so there, too.
func diedIdle(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return isLost(err) && !(ok && e.Timeout())
}

// isLost says whether the connection itself is gone.
func isLost(err error) bool {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

// spentPostgres says whether the connection that gave this error must not be used
// again: after a failover it leads to a server that takes no writes, or its
// prepared statements are of no use.
func spentPostgres(err error) bool {
	return pq.As(err, pqerror.ReadOnlySQLTransaction, pqerror.FeatureNotSupported,
		pqerror.InvalidSQLStatementName, pqerror.DuplicatePstatement) != nil
}

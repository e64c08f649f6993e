package store

import (
	"maps"
	"slices"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// sqlPGAccept accepts a group of plain submissions in one round trip: one statement
// that commits by itself. It finds out for itself all that the long way (pgBeginGroup,
// submitTogether) locks and reads for, and where something is not plain it changes
// nothing and leaves that to the long way. READ COMMITTED gives it the snapshot of
// its beginning, so it counts on this:
//
//   - Classes. Their rows are locked as on the long way, in the order of their ids. A
//     row that was changed meanwhile is judged anew as it is behind the lock, one that
//     was deleted is gone, and one that was made since is not seen: of held there are
//     then too few, no moment comes, and nothing is changed. So no job enters a class
//     that was deleted, or decides overlap beside another transaction. Lanes are those
//     of the locked rows, so the answer tells them as they are at the commit; no
//     version of the configuration is needed.
//   - Time. The clock is read behind these locks, which last until the commit: of two
//     jobs of a class, whichever replicas took them in, the one with the earlier place
//     is committed first, as on the long way. (Locks that let replicas share a class
//     would be given up for that: a later commit could have an earlier place.)
//   - Keys. One that the snapshot knows is left out, for the long way to answer. One
//     that was committed since, or is about to be, violates the primary key: then the
//     whole statement fails and changes nothing. Who replays or revives under a key
//     needs no lock against this: it found the key, so this won't enter it. The
//     advisory locks of the long way are not taken. They keep transactions that enter
//     the same keys for different classes from waiting for each other in a ring; here
//     all classes are locked before the first key, and keys enter in one order.
//
// The parameters are arrays of the same length, in which one without elements stands
// for nothing but empty values; $1 has each class once. $11: the jobs get bells. $12:
// no part of the group may be left out. The answer is one row, or none when nothing
// was changed: the time, the numbers from 1 of the submissions under known keys, and
// the lanes of the classes in $1, which is sorted by the bytes of their names.
//
// The subquery for the key is a seek in its index for each row, whatever the planner
// makes of a table that was empty once; a join could become a walk through all keys.
const sqlPGAccept = `
  WITH held AS MATERIALIZED (
    SELECT id, lane
      FROM job_classes
     WHERE id = ANY(CAST($1 AS text[])) AND coalesce(spec->>'overlap', '') NOT IN ('skip', 'coalesce')
     ORDER BY id
       FOR UPDATE),
       moment AS MATERIALIZED (
    SELECT clock_timestamp() AS at
      FROM (SELECT count(*) AS n FROM held) AS h
     WHERE h.n = cardinality(CAST($1 AS text[]))),
       w AS MATERIALIZED (
    SELECT r.*, CASE WHEN r.run_at > moment.at THEN r.run_at ELSE moment.at END AS ready_at, moment.at,
           r.key <> '' AND (SELECT k.job_id FROM idempotency_keys AS k WHERE k.client = r.client AND k.key = r.key) IS NOT NULL AS known
      FROM moment
     CROSS JOIN unnest(CAST($2 AS text[]), CAST($3 AS text[]), CAST($4 AS text[]), CAST($5 AS text[]), CAST($6 AS text[]),
           CAST($7 AS timestamptz[]), CAST($8 AS text[]), CAST($9 AS bytea[]), CAST($10 AS bytea[]))
           WITH ORDINALITY AS r (id, class, client, key, logical_date, run_at, worker, payload, digest, n)),
       old AS MATERIALIZED (
    SELECT coalesce(array_agg(n), '{}') AS known
      FROM w
     WHERE known),
       j AS (
    INSERT INTO jobs (id, class, client, idempotency_key, logical_date, run_at, state, submitted_at, ready_at, due,
           place_at, place_id, ring_at, worker)
    SELECT w.id, w.class, coalesce(w.client, ''), coalesce(w.key, ''), coalesce(w.logical_date, ''), w.run_at, 'queued', w.at, w.ready_at,
           w.ready_at = w.at, w.ready_at, w.id, CASE WHEN CAST($11 AS boolean) THEN w.ready_at END, coalesce(w.worker, '')
      FROM w, old
     WHERE w.known IS NOT TRUE AND (NOT CAST($12 AS boolean) OR old.known = '{}')),
       k AS (
    INSERT INTO idempotency_keys (client, key, digest, job_id)
    SELECT coalesce(w.client, ''), w.key, coalesce(w.digest, ''), w.id
      FROM w, old
     WHERE w.key <> '' AND NOT w.known AND (NOT CAST($12 AS boolean) OR old.known = '{}')
     ORDER BY w.client COLLATE "C", w.key COLLATE "C"),
       p AS (
    INSERT INTO job_payloads (job_id, payload)
    SELECT w.id, coalesce(w.payload, '')
      FROM w, old
     WHERE w.known IS NOT TRUE AND (NOT CAST($12 AS boolean) OR old.known = '{}'))
SELECT moment.at, old.known, ARRAY(SELECT lane FROM held ORDER BY id)
  FROM moment, old`

// acceptance is a group of plain submissions on its way through sqlPGAccept.
type acceptance struct {
	subs    []*submission
	classes []string // sorted
	whole   bool     // all or none: a batch with keys is among them
}

// pgAcceptable says whether all items may be plain: submissions of classes that took
// others as they come when the configuration was read last, each under a key of its
// own, without a message to be kept. What is so in truth the statement finds out.
func (g *group) pgAcceptable(items []*item) (a acceptance, ok bool) {
	cfg := g.s.config.Load()
	if cfg == nil {
		return a, false
	}
	keys, classes, size := map[lockKey]bool{}, map[string]bool{}, 0
	for _, it := range items {
		if it.end != nil || len(it.submits) == 0 {
			return a, false
		}
		for i := range it.submits {
			sub := &it.submits[i]
			class, known := cfg.class(sub.Class)
			if !known || class.Overlap == lanegate.OverlapSkip || class.Overlap == lanegate.OverlapCoalesce || sub.Origin != nil {
				return a, false
			}
			if sub.Key != "" {
				key := lockKey{sub.Client, sub.Key}
				if keys[key] {
					return a, false
				}
				keys[key] = true
				a.whole = a.whole || len(it.submits) > 1
			}
			size += len(sub.Payload)
			classes[sub.Class] = true
			a.subs = append(a.subs, sub)
		}
	}
	a.classes = slices.Sorted(maps.Keys(classes))
	return a, len(a.subs) <= maxRows && size <= maxBytes
}

// args are the arguments of sqlPGAccept.
func (a acceptance) args(bells bool) []any {
	n := len(a.subs)
	texts := func(of func(*submission) string) []byte {
		return textColumn(n, func(i int) string { return of(a.subs[i]) })
	}
	return []any{
		textColumn(len(a.classes), func(i int) string { return a.classes[i] }),
		texts(func(s *submission) string { return s.ID }),
		texts(func(s *submission) string { return s.Class }),
		texts(func(s *submission) string { return s.Client }),
		texts(func(s *submission) string { return s.Key }),
		texts(func(s *submission) string { return s.LogicalDate }),
		timeColumn(n, func(i int) dbTime { return atPtr(a.subs[i].RunAt) }),
		texts(func(s *submission) string { return s.Worker }),
		bytesColumn(n, func(i int) []byte { return a.subs[i].Payload }),
		bytesColumn(n, func(i int) []byte { return a.subs[i].Digest }),
		bells, a.whole,
	}
}

// accepted is the answer of sqlPGAccept.
type accepted struct {
	at    dbTime
	known pq.Int64Array  // numbers from 1
	lanes pq.StringArray // of acceptance.classes
}

// answer answers the submissions that were accepted.
func (a acceptance) answer(res accepted) {
	left := make(map[int64]bool, len(res.known))
	for _, n := range res.known {
		left[n] = true
	}
	if a.whole && len(left) > 0 {
		return // nothing was changed
	}
	for i, sub := range a.subs {
		if left[int64(i+1)] {
			continue
		}
		class, _ := slices.BinarySearch(a.classes, sub.Class)
		sub.res, sub.made = service.Submitted{Job: newRow(sub.NewJob, res.at.t).job(), Lane: res.lanes[class]}, true
	}
}

// pgAccept accepts what it can of a group in one round trip; see pgAtOnce.
func (g *group) pgAccept(items []*item) error {
	a, ok := g.pgAcceptable(items)
	if !ok {
		return nil
	}
	var res accepted
	found, err := g.pgOnce("accept a group", sqlPGAccept, a.args(g.s.opts.Bells), &res.at, &res.known, &res.lanes)
	if err == nil && found && len(res.lanes) == len(a.classes) {
		a.answer(res)
	}
	return err
}

package store

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/lib/pq"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// Where transactions run side by side they wait for each other in one order:
//
//	admission row → worker → lanes → verification run → keys → classes by id → jobs by id → attempts
//
// A verification run is changed by three: a change, which has the admission row;
// admission for its owner, which has that and the owner's row, and so may come to
// the run last; and the end of the owner, which has the owner's row. An owner that
// is alive never has it taken away.
//
// A group of submissions takes keys, classes and the jobs it may change before
// its first item runs. An outcome takes jobs only, never the admission row, and
// admission takes the classes of what becomes due before it touches these jobs, so
// that overlap is decided by one transaction at a time for each class.
//
// sqlPGAccept is the exception: it takes no locks of keys, and waits for a key that
// another transaction enters once it has its classes. That one has all its classes,
// too. Keys are entered in one order, so the two wait for each other at most where
// keys are used for several classes and a savepoint's worth is made singly; the
// server then ends one, which runs again.
//
// sqlPGSucceed takes jobs by id, then attempts. Whoever ends attempts notes successes
// last, in the order of the classes' names by their bytes, and so does it.

// keyLocks is how many locks stand for all idempotency keys: a group may have
// hundreds of thousands of keys, the server has room for some thousand locks.
// Two keys that share a lock only wait for each other.
const keyLocks = 256

// keyLockSpace is the first half of these advisory locks' names: "lgky" in ASCII.
const keyLockSpace = 0x6c676b79

const (
	// The inner ORDER BY holds: a subquery with one is not merged into its outer query.
	sqlPGLockKeys = `
SELECT pg_advisory_xact_lock($1, k.n)
  FROM (SELECT w.n FROM unnest(CAST($2 AS int[])) AS w (n) ORDER BY w.n) AS k`
	// Keys and classes in one round trip. The count is a filter on no row of
	// job_classes, so it is computed, and the keys are locked, before the first is read.
	sqlPGLockSubmissions = `
  WITH held AS MATERIALIZED (` + sqlPGLockKeys + `)
SELECT id, coalesce(spec->>'overlap', '') AS overlap
  FROM job_classes
 WHERE id = ANY($3) AND (SELECT count(*) FROM held) >= 0
 ORDER BY id
   FOR UPDATE`
	// What a group's transaction begins with, behind its locks: sqlReadAdmission, and
	// which of its keys are known, by their numbers from 1.
	sqlPGReadGroup = `
SELECT version, clock_timestamp() AS at,
       ARRAY(SELECT w.n
               FROM unnest(CAST($1 AS text[]), CAST($2 AS text[])) WITH ORDINALITY AS w (client, key, n)
               JOIN idempotency_keys AS k ON k.client = w.client AND k.key = w.key) AS known
  FROM admission
 WHERE id = 1`
	sqlPGLockClasses = `
SELECT id, coalesce(spec->>'overlap', '') AS overlap
  FROM job_classes
 WHERE id = ANY($1)
 ORDER BY id
   FOR UPDATE`
	sqlPGFindWaiting = `
SELECT id
  FROM jobs
 WHERE state = 'queued' AND due AND attempts = 0 AND class = ANY($1) AND logical_date = ANY($2)`
	sqlPGFindFailed = `
SELECT j.id
  FROM unnest(CAST($1 AS text[]), CAST($2 AS text[])) AS w (client, key)
  JOIN idempotency_keys AS k ON k.client = w.client AND k.key = w.key
  JOIN jobs AS j ON j.id = k.job_id
 WHERE j.state = 'failed'`
	sqlPGLockJobs = `
SELECT ` + jobColumns + `
  FROM jobs
 WHERE id = ANY($1)
 ORDER BY id
   FOR UPDATE`
)

// pgBeginGroup locks what the items will touch, and reads behind the locks what the
// group begins with.
func (t *tx) pgBeginGroup(items []*item) error {
	keys := map[lockKey]bool{}
	classes, days, jobs := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, it := range items {
		if it.end != nil {
			jobs[it.end.fence.Job] = true
		}
		for _, n := range it.submits {
			classes[n.Class], days[n.LogicalDate] = true, true
			if n.Key != "" {
				keys[lockKey{n.Client, n.Key}] = keys[lockKey{n.Client, n.Key}] || n.RetryFailed
			}
		}
	}
	waiting, err := t.pgLockSubmissions(keys, classes, days)
	if err != nil {
		return err
	}
	failed, err := t.pgFailedOf(keys)
	if err != nil {
		return err
	}
	for _, id := range slices.Concat(waiting, failed) {
		jobs[id] = true
	}
	if t.locked, err = t.pgLockJobs(jobs); err != nil {
		return err
	}
	return t.pgReadGroup(keys)
}

// pgReadGroup begins the transaction of a group with these keys.
func (t *tx) pgReadGroup(keys map[lockKey]bool) error {
	if len(keys) == 0 {
		return t.begin(sqlReadAdmission)
	}
	list := slices.Collect(maps.Keys(keys))
	clients, names := make([]string, len(list)), make([]string, len(list))
	for i, k := range list {
		clients[i], names[i] = k.client, k.key
	}
	var row struct {
		admissionRow
		Known pq.Int64Array `db:"known"`
	}
	found, err := t.get(&row, sqlPGReadGroup, pq.Array(clients), pq.Array(names))
	if err != nil {
		return fmt.Errorf("read the admission row and the known keys: %w", err)
	}
	t.known = make(map[lockKey]bool, len(row.Known))
	for _, n := range row.Known {
		t.known[list[n-1]] = true
	}
	return t.begun(row.admissionRow, found)
}

// lockKey is a scoped idempotency key.
type lockKey struct{ client, key string }

// bucket is which of the keys' locks stands for k. Every replica must agree.
func (k lockKey) bucket() int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.client + "\x00" + k.key)) // never fails
	return int64(h.Sum32() % keyLocks)
}

// pgLockSubmissions locks keys, then classes, and returns the waiting jobs of those
// days that a new job of these classes could be coalesced with.
func (t *tx) pgLockSubmissions(keys map[lockKey]bool, classes, days map[string]bool) (waiting []string, err error) {
	if len(keys) == 0 {
		return t.pgLockClasses(classes, days)
	}
	buckets := map[int64]bool{}
	for k := range keys {
		buckets[k.bucket()] = true
	}
	var rows []classLock
	if err := t.all(&rows, sqlPGLockSubmissions, keyLockSpace, pq.Array(slices.Collect(maps.Keys(buckets))), textArray(classes)); err != nil {
		return nil, fmt.Errorf("lock the idempotency keys and the classes: %w", err)
	}
	return t.pgLocked(rows, days)
}

// classLock is a locked row of a class.
type classLock struct {
	ID      string           `db:"id"`
	Overlap lanegate.Overlap `db:"overlap"`
}

// pgLockClasses locks the rows of classes and returns the waiting jobs of those
// days that a new job of theirs could be coalesced with.
func (t *tx) pgLockClasses(classes, days map[string]bool) (waiting []string, err error) {
	if len(classes) == 0 {
		return nil, nil
	}
	var rows []classLock
	if err := t.all(&rows, sqlPGLockClasses, textArray(classes)); err != nil {
		return nil, fmt.Errorf("lock the classes: %w", err)
	}
	return t.pgLocked(rows, days)
}

// pgLocked notes locked classes, and finds what waits in those that coalesce.
func (t *tx) pgLocked(rows []classLock, days map[string]bool) (waiting []string, err error) {
	if t.classes == nil {
		t.classes = map[string]bool{}
	}
	coalescing := map[string]bool{}
	for _, r := range rows {
		t.classes[r.ID] = true
		if r.Overlap == lanegate.OverlapCoalesce {
			coalescing[r.ID] = true
		}
	}
	if len(coalescing) == 0 {
		return nil, nil
	}
	if err := t.all(&waiting, sqlPGFindWaiting, textArray(coalescing), textArray(days)); err != nil {
		return nil, fmt.Errorf("find the waiting jobs: %w", err)
	}
	return waiting, nil
}

// pgLockClass locks one class that was made since the group's classes were locked.
func (t *tx) pgLockClass(id string) error {
	if t.classes[id] {
		return nil
	}
	_, err := t.pgLockClasses(map[string]bool{id: true}, nil)
	return err
}

// pgFailedOf finds the failed jobs that repeated submissions may revive.
func (t *tx) pgFailedOf(keys map[lockKey]bool) (failed []string, err error) {
	var clients, names []string
	for k, revives := range keys {
		if revives {
			clients, names = append(clients, k.client), append(names, k.key)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	if err := t.all(&failed, sqlPGFindFailed, pq.Array(clients), pq.Array(names)); err != nil {
		return nil, fmt.Errorf("find the failed jobs of known keys: %w", err)
	}
	return failed, nil
}

// pgLockJobs locks jobs in the order of their ids and returns those that exist.
func (t *tx) pgLockJobs(ids map[string]bool) (map[string]jobRow, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var rows []jobRow
	if err := t.all(&rows, sqlPGLockJobs, textArray(ids)); err != nil {
		return nil, fmt.Errorf("lock the jobs: %w", err)
	}
	locked := make(map[string]jobRow, len(rows))
	for _, r := range rows {
		locked[r.ID] = r
	}
	return locked, nil
}

const (
	sqlPGFindReady = `
SELECT id, class, logical_date
  FROM jobs
 WHERE state = 'queued' AND NOT due AND ready_at <= $1
 ORDER BY ready_at, place_at, place_id
 LIMIT $2`
	sqlPGListReady = `
SELECT ` + jobColumns + `
  FROM jobs
 WHERE id = ANY($1) AND coalesce(state, '') = 'queued' AND NOT due
 ORDER BY ready_at, place_at, place_id`
)

// pgReady lists what has become due, with its classes and all it may replace locked.
func (t *tx) pgReady(max int) ([]jobRow, error) {
	var found []struct {
		ID    string `db:"id"`
		Class string `db:"class"`
		Day   string `db:"logical_date"`
	}
	if err := t.all(&found, sqlPGFindReady, at(t.at), max); err != nil || len(found) == 0 {
		return nil, err
	}
	ids, classes, days := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range found {
		ids[f.ID], classes[f.Class], days[f.Day] = true, true, true
	}
	waiting, err := t.pgLockClasses(classes, days)
	if err != nil {
		return nil, err
	}
	lock := maps.Clone(ids)
	for _, id := range waiting {
		lock[id] = true
	}
	if _, err := t.pgLockJobs(lock); err != nil {
		return nil, err
	}
	var ready []jobRow
	err = t.all(&ready, sqlPGListReady, textArray(ids))
	return ready, err
}

const sqlPGLockGrants = `
SELECT id
  FROM jobs
 WHERE id = ANY($1) AND coalesce(state, '') = 'queued' AND due
 ORDER BY id
   FOR UPDATE`

// pgLockGrants locks the jobs of a decision and returns those that still may
// start: a cancel or a coalescing takes no admission row, so a head may be gone.
func (t *tx) pgLockGrants(grants []admission.Grant) ([]admission.Grant, error) {
	if len(grants) == 0 {
		return grants, nil
	}
	ids := map[string]bool{}
	for _, g := range grants {
		ids[g.Job] = true
	}
	var queued []string
	if err := t.all(&queued, sqlPGLockGrants, textArray(ids)); err != nil {
		return nil, fmt.Errorf("lock the granted jobs: %w", err)
	}
	still := make([]admission.Grant, 0, len(grants))
	for _, g := range grants {
		if slices.Contains(queued, g.Job) {
			still = append(still, g)
		}
	}
	return still, nil
}

func textArray(set map[string]bool) any { return pq.Array(slices.Collect(maps.Keys(set))) }

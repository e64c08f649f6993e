package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// oneGroup makes the items' changes in one transaction, as the writer does.
func oneGroup(t *testing.T, g *group, items []*item) {
	t.Helper()
	if err := g.commit(items); err != nil {
		t.Fatal(err)
	}
}

// singly makes the same changes one after the other inside one transaction.
func singly(t *testing.T, g *group, items []*item) {
	t.Helper()
	err := g.s.once(context.Background(), g.s.write, func(t *tx) error { return g.run(t, items, nil) })
	if err != nil {
		t.Fatal(err)
	}
}

func submitItem(jobs ...service.NewJob) *item {
	it := &item{submits: make([]submission, len(jobs))}
	for i, n := range jobs {
		it.submits[i].NewJob = n
	}
	it.run = func(t *tx) error { return t.submitSingly(it.submits) }
	return it
}

func endItem(f lanegate.Fence, e lanegate.Ending) *item {
	it := &item{end: &ending{fence: f, Ending: e}}
	it.run = func(t *tx) (err error) {
		it.end.res, err = t.endAttempt(f, e, false)
		return err
	}
	return it
}

// eachEngine runs a test on every engine's store.
func eachEngine(t *testing.T, test func(t *testing.T, open func(testing.TB) *Store)) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// dump is what the tables hold that submissions and outcomes write, without what
// differs from one database to another: tokens and times.
func dump(t *testing.T, s *Store) map[string][]map[string]any {
	t.Helper()
	tables := map[string][]map[string]any{}
	for table, order := range map[string]string{
		"jobs": "id", "job_messages": "job_id", "job_payloads": "job_id", "idempotency_keys": "client, key", "attempts": "job_id, number", "job_results": "job_id",
		"attempt_outputs": "job_id, number", "run_log": "job_id, attempt", "class_successes": "class", "findings": "job_id, attempt",
	} {
		tables[table] = dumpTable(t, s, "SELECT * FROM "+table+" ORDER BY "+order)
	}
	return tables
}

func dumpTable(t *testing.T, s *Store, q string) (table []map[string]any) {
	t.Helper()
	rows, err := s.read.Queryx(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Error(err)
		}
	}()
	for rows.Next() {
		row := map[string]any{}
		if err := rows.MapScan(row); err != nil {
			t.Fatal(err)
		}
		delete(row, "token")
		delete(row, "start_number") // goes on with each store
		if _, own := row["attempt"]; own {
			delete(row, "id") // a number of the log's own
		}
		for column, v := range row {
			switch _, isTime := v.(time.Time); {
			case isTime, v != nil && (column == "at" || strings.HasSuffix(column, "_at")):
				row[column] = "a time"
			}
		}
		table = append(table, row)
	}
	return table
}

// What many items make together is what each would make alone: the same rows, the
// same answers.
func TestTogetherIsAsSingly(t *testing.T) {
	eachEngine(t, func(t *testing.T, open func(testing.TB) *Store) {
		for seed := range uint64(3) {
			var tables [2]map[string][]map[string]any
			var answers [2][]string
			for i, do := range []func(*testing.T, *group, []*item){oneGroup, singly} {
				s := open(t)
				s.jitter = func() float64 { return 0.5 }
				if i == 1 {
					s.d.bulk = false // a statement for each row
				}
				answers[i] = mixedGroups(t, s, rand.New(rand.NewPCG(seed, 1)), do)
				tables[i] = dump(t, s)
			}
			if d := cmp.Diff(answers[1], answers[0]); d != "" {
				t.Errorf("seed %d: answers (-singly +together):\n%s", seed, d)
			}
			if d := cmp.Diff(tables[1], tables[0], cmpopts.EquateEmpty()); d != "" {
				t.Errorf("seed %d: tables (-singly +together):\n%s", seed, d)
			}
		}
	})
}

// mixedGroups submits, starts and ends jobs of all kinds in groups, and tells the answers.
func mixedGroups(t *testing.T, s *Store, rnd *rand.Rand, do func(*testing.T, *group, []*item)) (answers []string) {
	t.Helper()
	const classes = 4
	addWide(t, s, classes, 20)
	policies := []lanegate.Overlap{lanegate.OverlapQueue, lanegate.OverlapSkip, lanegate.OverlapCoalesce, lanegate.OverlapQueue}
	err := s.Change(t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		if err != nil {
			return err
		}
		for i, policy := range policies {
			c := cfg.Classes[i]
			c.Overlap, c.MaxAttempts = policy, 1+i%3
			if err := tx.SaveClass(c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: 20}); err != nil {
		t.Fatal(err)
	}
	n := 0
	newJob := func() service.NewJob {
		n++
		j := service.NewJob{
			ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", n), Class: fmt.Sprintf("wide-%02d", rnd.IntN(classes+1)),
			Client: fmt.Sprintf("c%d", rnd.IntN(2)), Payload: fmt.Appendf(nil, `{"n":%d,"s":"\"\\ñ"}`, n), LogicalDate: fmt.Sprintf("day-%d", rnd.IntN(3)),
		}
		if rnd.IntN(2) == 0 {
			j.Key, j.Digest = fmt.Sprintf(`k"{%d},\`, rnd.IntN(12)), []byte{byte(rnd.IntN(2))}
		}
		if rnd.IntN(3) == 0 {
			j.Origin = &service.Origin{Queue: "in", Message: lanegate.Message{ID: j.ID, Body: `{"another":"body"}`}}
			if rnd.IntN(2) == 0 {
				j.Origin.Message.Body = string(j.Payload)
				j.Origin.Message.Attributes = map[string]lanegate.MessageAttribute{"a": {Type: "String", Text: `"\`}}
			}
		}
		if rnd.IntN(5) == 0 {
			later := time.Now().Add(time.Hour)
			j.RunAt = &later
		}
		return j
	}
	for range 4 {
		var submits []*item
		for range 12 {
			batch := make([]service.NewJob, 1+rnd.IntN(3))
			for i := range batch {
				batch[i] = newJob()
			}
			submits = append(submits, submitItem(batch...))
		}
		do(t, s.group, submits)
		for _, it := range submits {
			for _, sub := range it.submits {
				answers = append(answers, fmt.Sprintf("%s %s %s %v %q %v %v", sub.ID, sub.res.Lane, sub.res.Job.State, sub.res.Replayed, sub.res.Coalesced, sub.res.Revived, sub.res.Err))
			}
		}
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 15})
		if err != nil {
			t.Fatal(err)
		}
		var ends []*item
		for _, g := range res.Grants {
			e := lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second, Result: []byte(`"ñ\\"`), Output: lanegate.Output{Head: "a\x00\"{}\\", Bytes: 7}}
			switch rnd.IntN(5) {
			case 0:
				e = lanegate.Ending{Outcome: lanegate.Failed, Duration: time.Minute, ExitCode: new(3), Error: "NULL\x00"}
			case 1:
				e = lanegate.Ending{Outcome: lanegate.Failed, Trouble: []lanegate.PhraseMatch{{Phrase: "deadlock detected"}}, Duration: 1}
			case 2:
				e.Duration = time.Hour
				ends = append(ends, endItem(g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Failed, Duration: 2}))
			}
			ends = append(ends, endItem(g.Attempt.Fence(), e))
			wrong := g.Attempt.Fence()
			wrong.Token = "another"
			ends = append(ends, endItem(wrong, e))
		}
		do(t, s.outcomes, ends)
		for _, it := range ends {
			answers = append(answers, fmt.Sprintf("%s/%d %v %q %v %v", it.end.fence.Job, it.end.fence.Number, it.end.res.Job.State, it.end.res.Job.Reason, it.end.res.Repeated, it.err))
		}
	}
	return answers
}

// A row that the database refuses fails alone, though it came with others.
func TestTogetherBadRowFailsAlone(t *testing.T) {
	eachEngine(t, func(t *testing.T, open func(testing.TB) *Store) {
		s := open(t)
		addClasses(t, s, 1)
		twice := newID(t)
		items := []*item{
			submitItem(service.NewJob{ID: newID(t), Class: "class-000", Payload: []byte("1")}),
			submitItem(service.NewJob{ID: twice, Class: "class-000", Payload: []byte("2")}, service.NewJob{ID: twice, Class: "class-000", Payload: []byte("3")}),
			submitItem(service.NewJob{ID: newID(t), Class: "class-000", Payload: []byte("4")}),
		}
		oneGroup(t, s.group, items)
		for i, it := range items {
			if it.err != nil {
				t.Errorf("item %d: %v", i, it.err)
			}
		}
		if first, second := items[1].submits[0].res.Err, items[1].submits[1].res.Err; first != nil || second == nil {
			t.Errorf("the same id twice: %v, then %v", first, second)
		}
		var n int
		if err := s.read.Get(&n, "SELECT count(*) FROM jobs JOIN job_payloads ON job_id = id"); err != nil || n != 3 {
			t.Errorf("%d jobs with a payload, want 3; %v", n, err)
		}
	})
}

// A batch that fails after some of its jobs were accepted together with others'
// leaves none of them: its caller is told that nothing was enqueued.
func TestTogetherFailedItemLeavesNothing(t *testing.T) {
	eachEngine(t, func(t *testing.T, open func(testing.TB) *Store) {
		s := open(t)
		addClasses(t, s, 1)
		failing := submitItem(
			service.NewJob{ID: newID(t), Class: "class-000", Payload: []byte("1")},
			service.NewJob{ID: newID(t), Class: "nobody's", Payload: []byte("2")}) // is left to run
		failing.run = func(*tx) error { return &faultError{kind: faultAway, text: "canceling statement due to lock timeout"} }
		other := submitItem(service.NewJob{ID: newID(t), Class: "class-000", Payload: []byte("3")})
		oneGroup(t, s.group, []*item{failing, other})
		if !errors.Is(failing.err, lanegate.ErrUnavailable) || other.err != nil {
			t.Errorf("answers %v and %v", failing.err, other.err)
		}
		var ids []string
		if err := s.read.Select(&ids, "SELECT id FROM jobs"); err != nil || len(ids) != 1 || ids[0] != other.submits[0].ID {
			t.Errorf("jobs %v, want the other item's only; %v", ids, err)
		}
	})
}

// A job that can't start doesn't keep back those that were granted with it.
func TestStartTogetherLeavesOutTheBadOne(t *testing.T) {
	eachEngine(t, func(t *testing.T, open func(testing.TB) *Store) {
		s := open(t)
		addWide(t, s, 3, 10)
		var ids []string
		for i := range 3 {
			id := newID(t)
			ids = append(ids, id)
			if _, err := s.Submit(t.Context(), service.NewJob{ID: id, Class: fmt.Sprintf("wide-%02d", i), Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.write.Exec("DELETE FROM job_payloads WHERE job_id = $1", ids[1]); err != nil {
			t.Fatal(err)
		}
		if err := s.RegisterWorker(t.Context(), service.WorkerInfo{ID: "w", Host: "h", PID: 1, Slots: 10}); err != nil {
			t.Fatal(err)
		}
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 10})
		if err != nil {
			t.Fatal(err)
		}
		started := map[string]bool{}
		for _, g := range res.Grants {
			started[g.Job.ID] = true
		}
		if len(started) != 2 || started[ids[1]] {
			t.Errorf("started %v, want all but %s", started, ids[1])
		}
		if d, err := s.Job(t.Context(), ids[1]); err != nil || d.State != lanegate.StateQueued || d.Attempts != 0 {
			t.Errorf("the bad one: %+v, %v", d.Job, err)
		}
	})
}

// Any text and bytes arrive as they are when they go as an element of an array.
func TestElementsArriveUnchanged(t *testing.T) {
	s := newPG(t, Options{})
	texts := []string{"", "NULL", "null", `"`, `\`, `\"`, "{", "}", ",", "a,b", " a ", "ñ\u2028😀", "\n\t", `{"a":[1,"\\x00"]}`, `\x41`}
	rows := make([][]any, 0, len(texts)+1)
	for i, v := range texts {
		rows = append(rows, []any{v, []byte(v), i%2 == 0, i - 3, at(time.Unix(int64(i), 1000))})
	}
	rows = append(rows, []any{nil, []byte(nil), nil, (*int)(nil), dbTime{}})
	const q = `SELECT * FROM {{rows text bytea boolean bigint timestamptz}} AS w (s, b, t, n, a)`
	args, err := columnsOf(q, rows)
	if err != nil {
		t.Fatal(err)
	}
	var got []struct {
		S *string `db:"s"`
		B []byte  `db:"b"`
		T *bool   `db:"t"`
		N *int    `db:"n"`
		A dbTime  `db:"a"`
	}
	if err := s.read.Select(&got, s.d.sql(q), args...); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(rows) {
		t.Fatalf("%d rows, want %d", len(got), len(rows))
	}
	for i, v := range texts {
		if g := got[i]; g.S == nil || *g.S != v || string(g.B) != v || *g.T != (i%2 == 0) || *g.N != i-3 || !g.A.t.Equal(time.Unix(int64(i), 1000)) {
			t.Errorf("%q arrived as %+v", v, g)
		}
	}
	if last := got[len(texts)]; last.S != nil || last.B != nil || last.T != nil || last.N != nil || !last.A.t.IsZero() {
		t.Errorf("NULLs arrived as %+v", last)
	}
	for _, bad := range []any{1.5, "1", true, at(time.Now())} {
		if _, err := columnsOf("{{rows bigint}}", [][]any{{bad}}); err == nil {
			t.Errorf("%v was taken for a number", bad)
		}
	}
	if _, err := columnsOf(q, [][]any{{"a"}}); err == nil {
		t.Error("one argument was taken for five columns")
	}
}

package runlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

func imported(t *testing.T, text string, opts ReadOptions, keep Keep) ([]lanegate.RunRecord, Account) {
	t.Helper()
	var list []lanegate.RunRecord
	account, err := Import(t.Context(), Source{Name: "night", Reader: strings.NewReader(text)}, opts, keep, func(_ int, r lanegate.RunRecord) error {
		list = append(list, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list, account
}

const importLog = `class,submitted,started,finished,status
pos,2026-03-01T01:00:00Z,2026-03-01T01:05:00Z,2026-03-01T01:06:30.5Z,success
heavy,2026-03-01T01:00:00Z,2026-03-01T01:06:30Z,2026-03-01T09:00:00Z,timed_out
pos,2026-03-01T01:00:00Z,2026-03-01T01:05:00Z,2026-03-01T01:06:30.5Z,success
odd,2026-03-01T01:00:00Z,2026-03-01T01:05:00Z,2026-03-01T01:06:00Z,who knows
gone,2026-03-01T01:00:00Z,2026-03-01T01:05:00Z,2026-03-01T01:06:00Z,cancelled
`

func TestImportedRecords(t *testing.T) {
	list, account := imported(t, importLog, ReadOptions{}, Keep{})
	if len(list) != 5 || account.Used != 5 || account.Rows != 5 {
		t.Fatalf("%d records, account %+v", len(list), account)
	}
	r := list[0]
	want := time.Date(2026, 3, 1, 1, 5, 0, 0, time.UTC)
	if r.Class != "pos" || !r.StartedAt.Equal(want) || r.Duration != 90500*time.Millisecond || !r.EndedAt.Equal(want.Add(r.Duration)) ||
		!r.ReadyAt.Equal(want.Add(-5*time.Minute)) || r.Source != SourceImport || r.Outcome != lanegate.Succeeded {
		t.Errorf("record %+v", r)
	}
	for i, o := range map[int]lanegate.Outcome{1: lanegate.TimedOut, 3: lanegate.Deferred, 4: lanegate.Cancelled} {
		if list[i].Outcome != o {
			t.Errorf("row %d is %s, want %s", i, list[i].Outcome, o)
		}
	}
	if list[0].Job == list[2].Job {
		t.Error("two rows that are alike, in a log without ids, have one name")
	}
	again, _ := imported(t, importLog, ReadOptions{}, Keep{})
	for i := range list {
		if list[i].Job != again[i].Job {
			t.Errorf("row %d has another name when it is read again", i)
		}
	}

	// On its way as JSON lines a record keeps its name and content.
	var lines strings.Builder
	for _, r := range list {
		text, err := json.Marshal(map[string]any{
			"id": r.Job, "class": r.Class, "submitted_at": r.ReadyAt, "ready_at": r.ReadyAt, "started_at": r.StartedAt, "ended_at": r.EndedAt,
			"attempt": r.Attempt, "status": r.Outcome,
		})
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(text, '\n'))
	}
	sent, _ := imported(t, lines.String(), ReadOptions{}, Keep{})
	if diff := cmp.Diff(list, sent); diff != "" {
		t.Errorf("−sent +got:\n%s", diff)
	}
}

// In a log with ids, a row that is there twice is one run.
func TestImportedRowsWithIDs(t *testing.T) {
	list, _ := imported(t, `{"job_id":"7","class":"a","submitted":"2026-03-01T01:00:00Z","started":"2026-03-01T01:00:00Z","finished":"2026-03-01T01:01:00Z","attempt":1}
{"job_id":"7","class":"a","submitted":"2026-03-01T01:00:00Z","started":"2026-03-01T01:00:00Z","finished":"2026-03-01T01:01:00Z","attempt":1}
{"job_id":"7","class":"a","submitted":"2026-03-01T01:00:00Z","started":"2026-03-01T01:00:00Z","finished":"2026-03-01T01:01:00Z","attempt":2}
`, ReadOptions{}, Keep{})
	if list[0].Job != list[1].Job || list[1].Job == list[2].Job || list[2].Attempt != 2 || list[2].ReadyAt != nil {
		t.Errorf("records %+v", list)
	}
}

// What can't be kept is counted with its reason, and nothing else is.
func TestImportAccountsForEveryRow(t *testing.T) {
	list, account := imported(t, `class,submitted,started,finished,duration
kept,2026-03-05T01:00:00Z,2026-03-05T01:00:01Z,2026-03-05T01:01:00Z,
clamped,2026-03-05T01:00:01Z,2026-03-05T01:00:00Z,2026-03-05T01:01:00Z,
old,2026-02-01T01:00:00Z,2026-02-01T01:00:00Z,2026-02-01T01:01:00Z,
new,2026-03-09T01:00:00Z,2026-03-09T01:00:00Z,2026-03-09T01:01:00Z,
nostart,2026-03-05T01:00:00Z,,,60
open,2026-03-05T01:00:00Z,2026-03-05T01:00:01Z,,
bad,2026-03-05T01:00:00Z,never on a Monday,2026-03-05T01:01:00Z,
`, ReadOptions{}, Keep{EndedFrom: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), EndedTo: time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)})
	if len(list) != 2 || account.Rows != 7 || account.Used != 2 || account.Clamped != 1 || account.Unfinished != 1 || account.DroppedRows() != 4 {
		t.Errorf("%d records, account %+v", len(list), account)
	}
	reasons := fmt.Sprint(account.Dropped)
	for _, want := range []string{"ended before the time that the run log is kept", "ends in the future", "no start time", "the started time can't be used"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("reasons %s lack %q", reasons, want)
		}
	}
}

func TestImportEndsWithItsReader(t *testing.T) {
	boom := errors.New("boom")
	n := 0
	account, err := Import(t.Context(), Source{Name: "x", Reader: strings.NewReader(importLog)}, ReadOptions{}, Keep{}, func(line int, _ lanegate.RunRecord) error {
		if n++; line == 3 {
			return boom
		}
		return nil
	})
	if !errors.Is(err, boom) || n != 2 || account.Used != 2 {
		t.Errorf("error %v after %d rows, account %+v", err, n, account)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Import(ctx, Source{Name: "x", Reader: strings.NewReader(importLog)}, ReadOptions{}, Keep{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a context that has ended", err)
	}
}

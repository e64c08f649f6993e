package verification_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

func mustMatcher(t *testing.T, phrases, ignore []string) *verification.Matcher {
	t.Helper()
	m, err := verification.NewMatcher(phrases, ignore)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestBuiltinPhrases(t *testing.T) {
	m := mustMatcher(t, nil, nil)
	for _, line := range []string{
		`FATAL:  sorry, too many clients already`,
		`psql: error: connection to server at "db" (10.0.0.5), port 5432 failed: FATAL:  sorry, too many clients already`,
		`FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute`,
		`FATAL:  remaining connection slots are reserved for non-replication superuser connections`,
		`FATAL:  too many connections for role "batch"`,
		`ERROR 1040 (HY000): Too many connections`,
		`ERROR 1203 (42000): User batch has exceeded the 'max_user_connections' resource (current value: 10)`,
		`ERROR:  deadlock detected`,
		`2026-01-31 02:10:11 UTC [123] ERROR:  deadlock detected`,
		`{"level":"error","msg":"pq: deadlock detected","job":"x"}`,
		`level=error msg="deadlock detected"`,
		`error: "deadlock detected"`,
		`retry: deadlock detected`,
		`no rows written: deadlock detected`,
		`10 errors, deadlock detected`,
		`ERROR 1213 (40001): Deadlock found when trying to get lock; try restarting transaction`,
		`Transaction (Process ID 52) was deadlocked on lock resources with another process and has been chosen as the deadlock victim.`,
		`ERROR:  could not obtain lock on row in relation "sales"`,
		`ERROR:  could not obtain lock on relation "sales"`,
		`E: Could not get lock /var/lib/dpkg/lock-frontend`,
		`ERROR:  canceling statement due to lock timeout`,
		`ERROR 1205 (HY000): Lock wait timeout exceeded; try restarting transaction`,
		`ERROR:  could not serialize access due to concurrent update`,
		`sqlite3.OperationalError: database is locked`,
		`database table is locked: sales`,
		`ORA-00060: deadlock detected while waiting for resource`,
		`ORA-00020: maximum number of processes (150) exceeded`,
		`ORA-00054: resource busy and acquire with NOWAIT specified or timeout expired`,
		`java.sql.SQLException: ... SQLSTATE: 40P01`,
		`sqlalchemy.exc.TimeoutError: QueuePool limit of size 5 overflow 10 reached, connection timed out`,
		`HikariPool-1 - Connection is not available; connection pool for tenant 5 exhausted`,
		`Timeout waiting for a free connection`,
		`invalid session: logged out`,
		`Session abc123 was invalidated by another login`,
		`the session for batch@vendor has expired`,
		`Session expired, please log in`,
		`user logged in from another device`,
		`HTTP 429`,
		`HTTP/1.1 429 Too Many Requests`,
		`curl: (22) The requested URL returned error: HTTP 429`,
		`requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://x`,
		`status=429`, `"status_code": 429`, `status code 429`,
		`API rate limit exceeded for 10.0.0.1`,
		`Rate limit exceeded`,
		`botocore: ThrottlingException: Rate exceeded`,
	} {
		t.Run(line, func(t *testing.T) {
			got := m.Find(lanegate.Output{Head: "start\n" + line + "\nend\n"}, "")
			if len(got) != 1 || got[0].Line != line || got[0].Before != "start" || got[0].After != "end" || got[0].Phrase == "" {
				t.Errorf("found %+v", got)
			}
			if got := m.Find(lanegate.Output{}, line); len(got) != 1 {
				t.Errorf("in the error: found %+v", got)
			}
		})
	}
}

func TestBuiltinPhrasesLeaveOrdinaryLinesAlone(t *testing.T) {
	m := mustMatcher(t, nil, nil)
	for _, line := range []string{
		`0 deadlocks detected`, `no deadlocks detected`, `no deadlock detected`, `0 deadlock detected`,
		`finished without deadlock detected`, `deadlocks: 0`, `deadlock detected: 0`, `"deadlock detected": 0,`,
		`too many connections errors: 0`, `too many connections = 0`, `HTTP 429: 0`, `HTTP 429 responses: 0`, `rate limit exceeded: none`,
		`deadlock_timeout = 1s`, `lock_timeout = 0`, `innodb_lock_wait_timeout=50`, `log_lock_waits = on`,
		`max_connections = 100`, `rate_limit: 100`, `session_timeout=30`, `pool_size: 5`,
		`retry_on = ["deadlock detected", "could not serialize access"]`,
		`retry_errors: "too many connections"`,
		`  phrases: ["deadlock detected"]`, `  - pattern: "HTTP 429"`, `ignore_phrases: ['invalid session']`, `trouble_regex="database is locked"`,
		`+ grep -c "deadlock detected" run.log`, `++ psql -c "select 'database is locked'"`,
		`copied 429 rows`, `HTTP 200`, `HTTP/1.1 200 OK`, `status=200`, `status=4290`, `GET /orders/429 HTTP/1.1 200`, `HTTP 4290`,
		`order 40001 shipped`, `ORA-000600`, `session opened`, `session 12 closed`, `new session for batch`,
		`got lock`, `lock obtained`, `obtained lock on sales`, `opened connection pool`, `pool limit of 5 connections`,
		`requests: 15`, `not too many`, `the database was unlocked`, `rate limit is 100 per minute`,
		``, ` `, `done`,
	} {
		t.Run(line, func(t *testing.T) {
			if got := m.Find(lanegate.Output{Head: line + "\n"}, line); got != nil {
				t.Errorf("found %+v", got)
			}
		})
	}
}

func TestOwnAndIgnoredPhrases(t *testing.T) {
	m := mustMatcher(t, []string{`^E\d{3}: vendor busy$`, `Deadlock detected`}, []string{`^WARN `, `replica-2`})
	got := m.Find(lanegate.Output{Head: strings.Join([]string{
		"E123: vendor busy",
		"WARN deadlock detected, tried again",      // ignored
		"replica-2: too many connections",          // ignored
		"Deadlock detected on sales",               // own before built-in
		"note: no Deadlock detected",               // an own phrase is taken at its word
		"see E123: vendor busy",                    // anchored
		"e123: vendor busy",                        // as written: case counts
		"database is locked; retry_on: something ", // built-in ones stay
	}, "\n")}, "E999: vendor busy")
	var lines []string
	for _, p := range got {
		lines = append(lines, p.Phrase+" | "+p.Line)
	}
	want := []string{
		`^E\d{3}: vendor busy$ | E123: vendor busy`,
		`Deadlock detected | Deadlock detected on sales`,
		`Deadlock detected | note: no Deadlock detected`,
		`\bdatabase (?:table )?is locked\b | database is locked; retry_on: something`,
		`^E\d{3}: vendor busy$ | E999: vendor busy`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func TestFindIsBounded(t *testing.T) {
	m := mustMatcher(t, nil, nil)
	long := strings.Repeat("é", 1000) + " deadlock detected " + strings.Repeat("ü", 1000)
	got := m.Find(lanegate.Output{Head: long + "\n" + long + "\r\n" + long}, "")
	if len(got) != 3 {
		t.Fatalf("%d matches", len(got))
	}
	for _, s := range []string{got[1].Line, got[1].Before, got[1].After} {
		if len(s) > verification.MaxLine || len(s) < verification.MaxLine/2 || !utf8.ValidString(s) {
			t.Errorf("%d bytes, valid %v: %q", len(s), utf8.ValidString(s), s)
		}
	}
	if !strings.Contains(got[1].Line, "deadlock detected") {
		t.Errorf("the phrase was cut away: %q", got[1].Line)
	}
	if got := m.Find(lanegate.Output{Head: strings.Repeat("deadlock detected\n", 100)}, "deadlock detected"); len(got) != verification.MaxMatches {
		t.Errorf("%d matches", len(got))
	}
	end := strings.Repeat("x", 2000) + " deadlock detected"
	if got := m.Find(lanegate.Output{Head: end}, ""); len(got) != 1 || !strings.HasSuffix(got[0].Line, "deadlock detected") {
		t.Errorf("at the end of a line: %+v", got)
	}
}

// Head and tail are one text when nothing was dropped between them, else two.
func TestFindAcrossHeadAndTail(t *testing.T) {
	m := mustMatcher(t, nil, nil)
	if got := m.Find(lanegate.Output{Head: "a\nERROR: dead", Tail: "lock detected\nb"}, ""); len(got) != 1 || got[0].Line != "ERROR: deadlock detected" || got[0].After != "b" {
		t.Errorf("without a gap: %+v", got)
	}
	gap := lanegate.Output{Head: "a\nERROR: dead", Tail: "lock detected\nb\ndatabase is locked", Dropped: 9}
	if got := m.Find(gap, ""); len(got) != 1 || got[0].Line != "database is locked" || got[0].Before != "b" {
		t.Errorf("with a gap: %+v", got)
	}
}

func TestCheckPhrases(t *testing.T) {
	many := make([]string, verification.MaxExpressions+1)
	for i := range many {
		many[i] = "x"
	}
	for _, tt := range []struct {
		name            string
		phrases, ignore []string
		want            map[string]string // pointer → part of the detail
	}{
		{"fine", []string{`vendor busy`, `^E\d+`}, []string{`^WARN`}, nil},
		{"no expression", []string{"ok", "("}, []string{"[z-a]"}, map[string]string{"/phrases/1": "missing closing )", "/ignore_phrases/0": "invalid character class range"}},
		{"not RE2", []string{`(?<!no )deadlock`}, nil, map[string]string{"/phrases/0": "RE2"}},
		{"empty", []string{""}, nil, map[string]string{"/phrases/0": "is empty"}},
		{"everything", []string{"a*", ".+", `^`}, []string{".", `\S`}, map[string]string{
			"/phrases/0": "empty line", "/phrases/1": "every line", "/phrases/2": "empty line", "/ignore_phrases/0": "every line", "/ignore_phrases/1": "every line",
		}},
		{"long", []string{strings.Repeat("x", 501)}, nil, map[string]string{"/phrases/0": "500 bytes"}},
		{"lines", []string{"a\nb"}, nil, map[string]string{"/phrases/0": "spans lines"}},
		{"many", many, nil, map[string]string{"/phrases": "at most 50"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := verification.CheckPhrases(lanegate.ClassSpec{Phrases: tt.phrases, IgnorePhrases: tt.ignore})
			if len(got) != len(tt.want) {
				t.Fatalf("faults %+v", got)
			}
			for _, f := range got {
				if part, ok := tt.want[f.Pointer]; !ok || !strings.Contains(f.Detail, part) {
					t.Errorf("%s: %s", f.Pointer, f.Detail)
				}
			}
			_, err := verification.NewMatcher(tt.phrases, tt.ignore)
			if faulty := len(tt.want) > 0 && tt.name != "many"; (err != nil) != faulty {
				t.Errorf("NewMatcher: %v", err)
			}
		})
	}
}

// A trial matcher knows nothing but what it was given.
func TestTrialMatcher(t *testing.T) {
	m, err := verification.NewTrialMatcher([]string{"busy"}, []string{"not busy"})
	if err != nil {
		t.Fatal(err)
	}
	got := m.Find(lanegate.Output{Head: "deadlock detected\nbusy\nnot busy"}, "")
	if len(got) != 1 || got[0].Line != "busy" {
		t.Errorf("found %+v", got)
	}
	none, err := verification.NewTrialMatcher(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := none.Find(lanegate.Output{Head: "deadlock detected"}, ""); got != nil {
		t.Errorf("no phrase found %+v", got)
	}
}

func TestBuiltinIsACopy(t *testing.T) {
	verification.Builtin()[0] = "changed"
	if verification.Builtin()[0] == "changed" {
		t.Error("a caller changed the built-in phrases")
	}
}

func FuzzFind(f *testing.F) {
	f.Add("deadlock detected\n\r\x00", "x", int64(0))
	m, err := verification.NewMatcher(nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, head, tail string, dropped int64) {
		for _, p := range m.Find(lanegate.Output{Head: head, Tail: tail, Dropped: dropped}, tail) {
			if len(p.Line) > verification.MaxLine || len(p.Before) > verification.MaxLine || len(p.After) > verification.MaxLine {
				t.Errorf("too long: %+v", p)
			}
			if utf8.ValidString(head+tail) && utf8.ValidString(tail) && !utf8.ValidString(p.Line) {
				t.Errorf("cut within a character: %q", p.Line)
			}
		}
	})
}

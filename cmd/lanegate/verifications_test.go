package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// trialServer answers as a gateway with one verification run, which is in each
// of the given documents in turn; the last one stays.
func trialServer(t *testing.T, documents ...string) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/verification-runs" && r.Method == http.MethodGet:
			if got := r.URL.Query().Encode(); got != "class=a&limit=20&state=done&state=aborted" {
				t.Errorf("asked for %s", got)
			}
			io.WriteString(w, `{"items":[`+documents[0]+`]}`)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, documents[0])
		case r.URL.Path == "/verification-runs/v1":
			n := int(asked.Add(1))
			io.WriteString(w, documents[min(n, len(documents))-1])
		default:
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"code":"verification_not_found","title":"Not found","detail":"no such run"}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

const (
	plannedRun = `{"id":"v1","state":"planned","verdict":null,"sentence":"Waits for its turn: a × 2 in 1 round. It waits: lane serial is full (j7).",
 "waiting_on":[{"reason":"lane_full:serial","jobs":["j7"]}],
 "spec":{"members":[{"class":"a","copies":2},{"class":"b","copies":1}],"source":"queue","max_hold":"15m"},
 "plan":[{"kind":"beside","classes":["a","a","b"]}],"round":0,"created_at":"2026-11-28T02:00:00Z","evidence":{"not_checked":["Nothing yet."]}}`
	failedRun = `{"id":"v1","state":"done","verdict":"failed","sentence":"Failed: it is wrong.",
 "reasons":[{"code":"check_failed","message":"the check after round 1 says no"},{"code":"phrase","message":"a printed a phrase"}],
 "spec":{"members":[{"class":"a","copies":2},{"class":"b","copies":1}],"source":"queue","max_hold":"15m"},
 "plan":[{"kind":"beside","classes":["a","a","b"]},{"kind":"beside","classes":["a","a","b"]}],"round":2,"created_at":"2026-11-28T02:00:00Z",
 "evidence":{
  "baseline":{"a":{"from":"run_log","n":5,"p50_seconds":0.25}},
  "rounds":[
   {"round":1,"kind":"beside","picture":["a |==|","b |==|"],"beside":["x j1","x j2","x j3","x j4","x j5","x j6"],
    "check":{"outcome":"failed","exit_code":1,"error":"the command exited with 1","output":"counting\nexpected 2 got 1\n\n"},
    "runs":[
     {"job":"j1","attempt":1,"class":"a","outcome":"failed","error":"the command exited with 3","measured_units":{"db":7},"declared_units":{"db":5},
      "phrases":[{"phrase":"x","line":"deadlock detected","before":"UPDATE t","after":"rolled back"}]},
     {"job":"j2","attempt":1,"class":"b","outcome":"succeeded"}]},
   {"round":2,"kind":"beside","check":{"outcome":"succeeded"},"runs":[{"job":"j1","attempt":1,"class":"a","outcome":"failed","error":"again"}]}],
  "pairs":[{"a":"a","b":"a","overlap_seconds":0.2,"needed_seconds":0.125,"proven":true,"copies":2},{"a":"a","b":"b","overlap_seconds":1.5,"needed_seconds":30,"proven":false}],
  "slowdown":{"a":{"n":4,"p50_seconds":0.5,"baseline_p50_seconds":0.25,"ratio":2}},
  "not_checked":["Results were not compared."]}}`
)

const failedText = `round 1: a + a + b
  a |==|
  b |==|
  beside: x j1, x j2, x j3, x j4, x j5 and 1 more
  check: failed (the command exited with 1): expected 2 got 1
  a j1: failed (the command exited with 3)
  a j1 printed a phrase of trouble:
      UPDATE t
    > deadlock detected
      rolled back
  a j1 used 7 of db at its peak and declares 5
round 2: a + a + b
  check: well
ran at once
  a + a: 200 ms, needed 125 ms: proven, 2 copies
  a + b: 1.5 s, needed 30.0 s: not proven
took
  a: 500 ms beside others (median of n=4), 250 ms alone (median of n=5): × 2.00

Failed: it is wrong.
  the check after round 1 says no
  a printed a phrase
not checked:
  Results were not compared.
`

// The whole evidence is shown, alike at the end of a wait and afterwards.
func TestVerdictIsShownWhole(t *testing.T) {
	url, _ := trialServer(t, plannedRun, failedRun)
	waited := runLine(t, "", nil, "verify", "a", "--alongside", "b", "--wait", "--url", url)
	waited.want(t, exitVerifyFailed, "", "verification run v1 is planned")
	url, _ = trialServer(t, failedRun)
	shown := runLine(t, "", nil, "verifications", "v1", "--url", url)
	shown.want(t, 0, "", "")
	for _, got := range []string{waited.out, shown.out} {
		if diff := cmp.Diff(failedText, got); diff != "" {
			t.Errorf("shown (-want +got):\n%s", diff)
		}
	}
	runLine(t, "", nil, "verifications", "v1", "--json", "--url", url).want(t, 0, `"verdict":"failed"`, "")
	runLine(t, "", nil, "verifications", "v2", "--url", url).want(t, exitUsage, "", "verification_not_found")
	runLine(t, "", nil, "verifications", "v1", "--class", "a", "--url", url).want(t, exitUsage, "", "leave --class")
}

func TestVerificationsListed(t *testing.T) {
	url, _ := trialServer(t, failedRun)
	o := runLine(t, "", nil, "verifications", "--class", "a", "--state", "done", "--state", "aborted", "--url", url)
	o.want(t, 0, "a×2,b", "")
	for _, want := range []string{"RUN", "v1", "done", "failed", "Failed: it is wrong."} {
		o.want(t, 0, want, "")
	}
}

// A planned run shows its plan, and what it waits for.
func TestPlannedVerificationShown(t *testing.T) {
	url, _ := trialServer(t, plannedRun)
	o := runLine(t, "", nil, "verifications", "v1", "--url", url)
	o.want(t, 0, "a + a + b", "")
	o.want(t, 0, "It waits: lane serial is full (j7).", "")
	if strings.Contains(o.out, "not checked") {
		t.Errorf("what is not checked is said before anything was:\n%s", o.out)
	}
}

// A wait that is interrupted leaves the run alone and exits with a code of its own.
func TestVerifyWaitInterrupted(t *testing.T) {
	url, asked := trialServer(t, plannedRun)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan outcome)
	go func() {
		done <- runLineCtx(ctx, "", nil, "verify", "a", "--wait", "--url", url)
	}()
	for deadline := time.Now().Add(20 * time.Second); asked.Load() < 2; {
		if time.Now().After(deadline) {
			t.Fatal("it does not poll")
		}
		<-time.After(5 * time.Millisecond)
	}
	stop()
	o := <-done
	o.want(t, exitStillOpen, "", "waits on lane_full:serial (j7)")
	o.want(t, exitStillOpen, "", "verification run v1 goes on")
	runLine(t, "", nil, "verify", "--help").want(t, 0, "5  with --wait: interrupted", "")
	if n := asked.Load(); n < 2 || n > 100 {
		t.Errorf("asked %d times", n)
	}
}

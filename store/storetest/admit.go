package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

var admitCases = []testCase{
	{"a grant has everything a runner needs", func(e *env) {
		e.resource("db", 15)
		c := e.class("pos-sales", units(lanegate.Units{"db": 5}))
		id := e.submit("pos-sales", payload(`{"n":1}`)).Job.ID
		w := e.worker()
		g := e.start(w, id)[0]
		a := g.Attempt
		want := lanegate.Attempt{
			Job: id, Number: 1, Token: a.Token, Class: "pos-sales", Lane: lanegate.LaneSerial,
			Route: lanegate.Route{Lane: lanegate.LaneSerial}, Units: lanegate.Units{"db": 5}, Fingerprint: c.Fingerprint,
			Worker: w, ReadyAt: g.Job.ReadyAt, StartedAt: a.StartedAt,
		}
		if diff := cmp.Diff(want, a); diff != "" {
			e.Errorf("attempt (-want +got):\n%s", diff)
		}
		if len(a.Token) != 32 || strings.Trim(a.Token, "0123456789abcdef") != "" {
			e.Errorf("token %q is not 128 bits of hex", a.Token)
		}
		equal(e, "payload", string(g.Payload), `{"n":1}`)
		if diff := cmp.Diff(e.classNow("pos-sales"), g.Class); diff != "" {
			e.Errorf("class (-stored +granted):\n%s", diff)
		}
		j := e.wantState(id, lanegate.StateRunning)
		if diff := cmp.Diff(j.Job, g.Job); diff != "" {
			e.Errorf("job (-stored +granted):\n%s", diff)
		}
		if j.Attempts != 1 || j.StartedAt == nil || !j.StartedAt.Equal(a.StartedAt) || j.Route == nil || *j.Route != a.Route {
			e.Errorf("job %+v does not show the attempt", j.Job)
		}
		attempts, err := e.s.Attempts(e.ctx(), id)
		e.must(err)
		if diff := cmp.Diff([]lanegate.Attempt{a}, attempts); diff != "" {
			e.Errorf("attempts (-granted +stored):\n%s", diff)
		}
	}},
	{"one class among many fills all free slots in one pass, in its order, time after time", func(e *env) {
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			return tx.SaveLane(lanegate.Lane{Name: lanegate.LaneParallel, WidthSetting: 40, AllowOvercommit: true, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackSerial})
		}))
		wide := func(c *lanegate.Class) { c.Lane, c.MaxInFlight = lanegate.LaneParallel, 30 }
		for i := range 30 {
			e.class(fmt.Sprintf("idle-%02d", i), wide)
		}
		e.class("busy", wide)
		ids := e.queue("busy", 50)
		w := e.worker(func(w *service.WorkerInfo) { w.Slots = 40 })
		for _, want := range [][]string{ids[:20], ids[20:30]} { // the second pass is up to the class's limit
			res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, Free: 20})
			e.must(err)
			equal(e, "granted", fmt.Sprint(granted(res)), fmt.Sprint(want))
		}
	}},
	{"every attempt has a number and a token of its own", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		seen := map[string]bool{}
		for n := range 5 {
			g := e.start(w, id)[0]
			equal(e, "number", g.Attempt.Number, n+1)
			if seen[g.Attempt.Token] {
				e.Fatalf("token %s was given twice", g.Attempt.Token)
			}
			seen[g.Attempt.Token] = true
			e.end(g, lanegate.Interrupted)
		}
	}},
	{"a worker that is unknown, has left or drains gets nothing", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		_, err := e.s.Admit(e.ctx(), service.Ask{Worker: "nobody", Free: 1, SerialFree: true})
		e.wantErr(err, lanegate.ErrWorkerGone)
		gone := e.worker()
		_, err = e.s.LeaveWorker(e.ctx(), gone)
		e.must(err)
		_, err = e.s.Admit(e.ctx(), service.Ask{Worker: gone, Free: 1, SerialFree: true})
		e.wantErr(err, lanegate.ErrWorkerGone)
		e.start(e.worker(func(w *service.WorkerInfo) { w.Draining = true }))
		e.wantState(id, lanegate.StateQueued)
	}},
	{"slot before job: without a free slot nothing is taken", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, Free: 8})
		e.must(err)
		equal(e, "grants without a serial slot", len(res.Grants), 0)
		e.width(4)
		e.class("p", parallel(4))
		e.queue("p", 4)
		res, err = e.s.Admit(e.ctx(), service.Ask{Worker: w, Free: 3})
		e.must(err)
		equal(e, "grants for three slots", len(res.Grants), 3)
		e.wantState(id, lanegate.StateQueued)
	}},
	{"one pass fills all free slots, within width and max_in_flight", func(e *env) {
		e.width(5)
		e.class("p", parallel(3))
		e.class("q", parallel(4))
		e.class("s")
		e.queue("p", 6)
		e.queue("q", 6)
		e.queue("s", 2)
		res := e.admit(e.worker())
		count := map[string]int{}
		for _, g := range res.Grants {
			count[g.Attempt.Lane]++
			count[g.Class.ID]++
		}
		if count["serial"] != 1 || count["parallel"] != 5 || count["p"] > 3 || count["q"] > 4 {
			e.Errorf("granted %v", count)
		}
		if again := e.admit(e.worker()); len(again.Grants) != 0 {
			e.Errorf("a second worker was granted %v beyond the width", granted(again))
		}
	}},
	{"concurrent asks never exceed a limit", func(e *env) {
		e.width(3)
		e.class("p", parallel(2))
		e.class("q", parallel(2))
		e.class("s")
		e.queue("p", 20)
		e.queue("q", 20)
		e.queue("s", 20)
		var workers []string
		for range 4 {
			workers = append(workers, e.worker())
		}
		e.together(40, func(i int) error {
			res, err := e.s.Admit(e.ctx(), service.Ask{Worker: workers[i%4], Free: 2, SerialFree: true})
			if err != nil {
				return err
			}
			in, err := e.s.Snapshot(e.ctx())
			if err != nil {
				return err
			}
			if over := overLimit(in.InFlight); over != "" {
				return fmt.Errorf("in flight exceeds a limit: %s", over)
			}
			for _, g := range res.Grants {
				if _, err := e.s.EndAttempt(e.ctx(), g.Attempt.Fence(), lanegate.Ending{Outcome: lanegate.Succeeded}); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{"units are counted as written on the attempt", func(e *env) {
		e.resource("db", 10)
		e.width(4)
		e.class("p", parallel(4), units(lanegate.Units{"db": 6}))
		ids := e.queue("p", 2)
		w := e.worker()
		g := e.start(w, ids[0]) // the second one would need 12 of 10
		e.class("p", parallel(4), units(lanegate.Units{"db": 5}))
		e.start(w) // 6 + 5, by what is written
		e.end(g[0], lanegate.Succeeded)
		again := e.start(w, ids[1])
		equal(e, "units", again[0].Attempt.Units["db"], 5)
	}},
	{"a paused class and a paused lane start nothing", func(e *env) {
		e.class("c", func(c *lanegate.Class) { c.Paused = true })
		id := e.submit("c").Job.ID
		w := e.worker()
		e.start(w)
		e.class("c")
		e.start(w, id)
	}},
	{"C43 a failed job in backoff stands aside and returns to its place", func(e *env) {
		e.class("c", attempts(2, 40*time.Millisecond))
		ids := e.queue("c", 3)
		w := e.worker()
		first := e.end(e.start(w, ids[0])[0], lanegate.Failed)
		equal(e, "state", first.Job.State, lanegate.StateQueued)
		if !first.Job.PlaceAt.Equal(e.job(ids[0]).SubmittedAt) || first.Job.PlaceID != ids[0] {
			e.Errorf("place changed to (%v, %s)", first.Job.PlaceAt, first.Job.PlaceID)
		}
		e.eventually("its backoff ends", func() bool { return time.Now().After(first.Job.ReadyAt.Add(time.Millisecond)) })
		g := e.start(w, ids[0]) // before 2 and 3
		e.end(g[0], lanegate.Failed)
		e.wantState(ids[0], lanegate.StateFailed)
		e.start(w, ids[1])
	}},
	{"a job in backoff lets the next ones pass", func(e *env) {
		e.class("c", attempts(2, time.Hour))
		ids := e.queue("c", 2)
		w := e.worker()
		ended := e.end(e.start(w, ids[0])[0], lanegate.Failed)
		if wait := ended.Settlement.ReadyIn; wait > 0 {
			if got := ended.Job.ReadyAt.Sub(*ended.Attempt.EndedAt); (got - wait).Abs() > time.Millisecond {
				e.Errorf("ready %v after the end, want %v", got, wait)
			}
		}
		res := e.admit(w)
		if got := granted(res); !slices.Equal(got, []string{ids[1]}) {
			e.Errorf("granted %v, want the second job", got)
		}
		if res.NextDue <= 0 || res.NextDue > time.Hour {
			e.Errorf("next due in %v, want within the hour", res.NextDue)
		}
	}},
	{"next due says when to come again", func(e *env) {
		e.class("c")
		w := e.worker()
		if got := e.admit(w).NextDue; got >= 0 {
			e.Errorf("with nothing waiting: %v, want negative", got)
		}
		e.submit("c", runAt(time.Now().Add(time.Hour)))
		e.submit("c", runAt(time.Now().Add(2*time.Hour)))
		if got := e.admit(w).NextDue; got > time.Hour || got < 59*time.Minute {
			e.Errorf("next due in %v, want an hour", got)
		}
	}},
	{"a job starts once its run_at has come", func(e *env) {
		e.class("c")
		at := e.soon()
		id := e.submit("c", runAt(at)).Job.ID
		w := e.worker()
		var g []service.Grant
		e.eventually("it starts", func() bool { g = e.admit(w).Grants; return len(g) > 0 })
		equal(e, "job", g[0].Job.ID, id)
		if !g[0].Attempt.ReadyAt.Equal(lanegate.Micro(at)) || g[0].Attempt.StartedAt.Before(lanegate.Micro(at)) {
			e.Errorf("ready %v, started %v, want %v and later", g[0].Attempt.ReadyAt, g[0].Attempt.StartedAt, at)
		}
	}},
	{"run-next jobs go first, the one asked for first before the others", func(e *env) {
		e.class("c")
		ids := e.queue("c", 4)
		for _, id := range []string{ids[2], ids[3]} {
			_, err := e.s.RunNext(e.ctx(), id, "ada")
			e.must(err)
		}
		w := e.worker()
		for _, i := range []int{2, 3, 0, 1} {
			e.end(e.start(w, ids[i])[0], lanegate.Succeeded)
		}
	}},
	{"without a worker for the lane its classes fall back to serial, counted", func(e *env) {
		e.width(4)
		e.class("p", parallel(4))
		ids := e.queue("p", 2)
		w := e.worker(func(w *service.WorkerInfo) { w.Lanes = []string{lanegate.LaneSerial} })
		res := e.admit(w)
		if got := granted(res); !slices.Equal(got, ids[:1]) {
			e.Fatalf("granted %v, want one", got)
		}
		want := lanegate.Route{Lane: lanegate.LaneSerial, Reason: lanegate.ReasonLaneUnavailable, Wanted: lanegate.LaneParallel}
		equal(e, "route", res.Grants[0].Attempt.Route, want)
		equal(e, "stored route", *e.job(ids[0]).Route, want)
		equal(e, "fallbacks", res.Fallbacks[lanegate.LaneParallel], 1)
		other := e.worker() // serves all lanes
		res = e.admit(other)
		if got := granted(res); !slices.Equal(got, ids[1:]) {
			e.Fatalf("granted %v to the lane's worker, want %v", got, ids[1:])
		}
		equal(e, "lane", res.Grants[0].Attempt.Lane, lanegate.LaneParallel)
	}},
	{"blocked heads are remembered with the time since when", func(e *env) {
		e.resource("r", 1)
		e.width(4)
		e.class("p", parallel(1), units(lanegate.Units{"r": 1}))
		e.class("q", parallel(1), units(lanegate.Units{"r": 1}))
		p, q := e.submit("p").Job.ID, e.submit("q").Job.ID
		w := e.worker()
		g := e.start(w, p)
		since := e.blocked()
		if len(since) != 1 || since[q].IsZero() {
			e.Fatalf("blocked %v, want job %s", since, q)
		}
		e.start(w)
		if again := e.blocked(); !again[q].Equal(since[q]) {
			e.Errorf("since %v after another pass, want %v", again[q], since[q])
		}
		e.end(g[0], lanegate.Succeeded)
		e.start(w, q)
		if left := e.blocked(); len(left) != 0 {
			e.Errorf("still remembered: %v", left)
		}
	}},
	{"an admission says whether it left a job in line", func(e *env) {
		e.class("c")
		w := e.worker()
		equal(e, "none waits before any job", e.admit(w).NoneWaits, true)
		e.submit("c")
		e.submit("c")
		res := e.admit(w)
		equal(e, "granted", len(res.Grants), 1)
		equal(e, "none waits behind the first of two", res.NoneWaits, false)
		equal(e, "none waits while it runs", e.admit(w).NoneWaits, false)
		e.end(res.Grants[0], lanegate.Succeeded)
		res = e.admit(w)
		equal(e, "granted", len(res.Grants), 1)
		e.end(res.Grants[0], lanegate.Succeeded)
		equal(e, "none waits at last", e.admit(w).NoneWaits, true)
	}},
	{"a snapshot explains every wait", func(e *env) {
		e.class("c")
		e.class("d", func(c *lanegate.Class) { c.Run.Command, c.CommandDigest = "absent", "x" })
		e.class("paused", func(c *lanegate.Class) { c.Paused = true })
		ids := e.queue("c", 2)
		d, p := e.submit("d").Job.ID, e.submit("paused").Job.ID
		e.start(e.worker(), ids[0])
		in, err := e.s.Snapshot(e.ctx())
		e.must(err)
		if len(in.InFlight) != 1 || in.InFlight[0].Job != ids[0] || in.InFlight[0].Lane != lanegate.LaneSerial {
			e.Errorf("in flight %+v", in.InFlight)
		}
		heads := map[string]string{}
		for _, due := range in.Due {
			heads[due.Class] = due.Job
		}
		if diff := cmp.Diff(map[string]string{"c": ids[1], "d": d, "paused": p}, heads); diff != "" {
			e.Errorf("heads (-want +got):\n%s", diff)
		}
		in.Asking = ""
		decision := admission.Plan(in)
		for class, want := range map[string]string{"c": "lane_full", "d": "no_worker:absent", "paused": "paused"} {
			wait, ok := decision.WaitOf(class)
			if !ok || !slices.ContainsFunc(wait.Reasons, func(r admission.Reason) bool { return strings.HasPrefix(r.String(), want) }) {
				e.Errorf("%s waits for %v, want %s", class, wait.Reasons, want)
			}
		}
		e.wantState(ids[1], lanegate.StateQueued) // a snapshot starts nothing
	}},
	{"a snapshot counts a job as due whose time has come without an admission", func(e *env) {
		e.class("c")
		at := e.soon()
		id := e.submit("c", runAt(at)).Job.ID
		e.eventually("it is due", func() bool {
			in, err := e.s.Snapshot(e.ctx())
			e.must(err)
			return len(in.Due) == 1 && in.Due[0].Job == id
		})
		if time.Now().Before(at) {
			e.Error("due before its time")
		}
		e.wantLine("c", 1)
	}},
	{"detached runs carry a heartbeat deadline", func(e *env) {
		e.class("h", func(c *lanegate.Class) {
			c.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://target", Mode: lanegate.ModeAsync, Heartbeat: lanegate.Duration(time.Minute)}
		})
		a := e.start(e.worker(), e.submit("h").Job.ID)[0].Attempt
		if !a.Detached || a.HeartbeatBy == nil || !a.HeartbeatBy.Equal(a.StartedAt.Add(time.Minute)) {
			e.Errorf("detached %v until %v, want a minute after %v", a.Detached, a.HeartbeatBy, a.StartedAt)
		}
	}},
}

// overLimit names a limit of the test's set-up that the attempts exceed.
func overLimit(running []admission.Running) string {
	count := map[string]int{}
	for _, r := range running {
		count["lane "+r.Lane]++
		count["class "+r.Class]++
	}
	for name, limit := range map[string]int{"lane serial": 1, "lane parallel": 3, "class p": 2, "class q": 2, "class s": 1} {
		if count[name] > limit {
			return fmt.Sprintf("%s has %d of %d", name, count[name], limit)
		}
	}
	return ""
}

func (e *env) blocked() map[string]time.Time {
	e.Helper()
	in, err := e.s.Snapshot(e.ctx())
	e.must(err)
	return in.BlockedSince
}

// classNow reads a class back.
func (e *env) classNow(id string) lanegate.Class {
	e.Helper()
	cfg, err := e.s.Config(e.ctx())
	e.must(err)
	for _, c := range cfg.Classes {
		if c.ID == id {
			return c
		}
	}
	e.Fatalf("no class %s", id)
	return lanegate.Class{}
}

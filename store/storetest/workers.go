package storetest

import (
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var workerCases = []testCase{
	{"a registered worker is listed as it registered", func(e *env) {
		w := service.WorkerInfo{
			ID: newID(), Host: "h", PID: 7, Lanes: []string{"serial"}, Slots: 3, Commands: map[string]string{"a": "1"},
			StartedAt: lanegate.Micro(time.Now()),
		}
		e.must(e.s.RegisterWorker(e.ctx(), w))
		all := service.WorkerInfo{ID: newID(), Host: "h", PID: 7, Slots: 1, Commands: map[string]string{}, StartedAt: w.StartedAt}
		e.must(e.s.RegisterWorker(e.ctx(), all))
		live := e.live()
		for i := range live {
			if live[i].BeatAt.IsZero() {
				e.Errorf("no time of the last beat: registering is one")
			}
			live[i].BeatAt = time.Time{}
		}
		if diff := cmp.Diff([]service.WorkerInfo{w, all}, live); diff != "" {
			e.Errorf("live workers (-want +got):\n%s", diff)
		}
		e.wantErr(e.s.RegisterWorker(e.ctx(), w), lanegate.ErrWorkerGone)
	}},
	{"an update changes lanes, slots, commands and draining", func(e *env) {
		id := e.worker()
		w := service.WorkerInfo{ID: id, Lanes: []string{}, Slots: 2, Commands: map[string]string{"b": "2"}, Draining: true}
		e.must(e.s.UpdateWorker(e.ctx(), w))
		got := e.live()[0]
		if got.Lanes == nil || len(got.Lanes) != 0 || got.Slots != 2 || got.Commands["b"] != "2" || !got.Draining || got.Host != "host-1" {
			e.Errorf("worker %+v", got)
		}
		_, err := e.s.LeaveWorker(e.ctx(), id)
		e.must(err)
		e.wantErr(e.s.UpdateWorker(e.ctx(), w), lanegate.ErrWorkerGone)
		w.ID = newID()
		e.wantErr(e.s.UpdateWorker(e.ctx(), w), lanegate.ErrWorkerGone)
	}},
	{"a beat counts up and lists what the worker holds", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w, other := e.worker(), e.worker()
		g := e.start(w, id)[0]
		held := e.beat(w)
		if diff := cmp.Diff([]service.Held{{Fence: g.Attempt.Fence()}}, held); diff != "" {
			e.Errorf("held (-want +got):\n%s", diff)
		}
		if held := e.beat(other); len(held) != 0 {
			e.Errorf("the other worker holds %v", held)
		}
		_, err := e.s.Cancel(e.ctx(), id, "ada")
		e.must(err)
		if held := e.beat(w); !held[0].CancelRequested {
			e.Error("the beat does not tell of the cancel")
		}
		for _, info := range e.live() {
			equal(e, "beat", info.Beat, map[string]int64{w: 2, other: 1}[info.ID])
		}
		e.end(g, lanegate.Cancelled)
		if held := e.beat(w); len(held) != 0 {
			e.Errorf("still holds %v", held)
		}
		_, err = e.s.Beat(e.ctx(), "nobody")
		e.wantErr(err, lanegate.ErrWorkerGone)
	}},
	{"C17 attempts whose worker does not beat are counted", func(e *env) {
		e.width(2)
		e.class("c")
		e.class("p", parallel(2))
		serial, wide := e.submit("c").Job.ID, e.queue("p", 2)
		w := e.worker(func(w *service.WorkerInfo) { w.Slots = 2 })
		wantSilent := func(what string, older time.Duration, want map[string]int) {
			got, err := e.s.Silent(e.ctx(), older)
			e.must(err)
			if diff := cmp.Diff(want, got); diff != "" {
				e.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		wantSilent("nothing runs", 0, map[string]int{})
		res, err := e.s.Admit(e.ctx(), service.Ask{Worker: w, Free: 2, SerialFree: true})
		e.must(err)
		equal(e, "grants", len(res.Grants), 3)
		wantSilent("beaten within the hour", time.Hour, map[string]int{})
		e.eventually("the database's clock moves on", func() bool {
			got, err := e.s.Silent(e.ctx(), time.Microsecond)
			e.must(err)
			return got[lanegate.LaneSerial] == 1 && got[lanegate.LaneParallel] == 2
		})
		for _, g := range res.Grants {
			if g.Job.ID != serial && g.Job.ID != wide[0] && g.Job.ID != wide[1] {
				e.Errorf("unknown grant %s", g.Job.ID)
			}
			e.end(g, lanegate.Succeeded)
		}
		wantSilent("ended attempts need no beat", 0, map[string]int{})
	}},
	{"a worker that leaves is gone, its attempts are lost", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		e.start(w, id)
		ended, err := e.s.LeaveWorker(e.ctx(), w)
		e.must(err)
		if len(ended) != 1 || ended[0].Attempt.Outcome != lanegate.Lost || ended[0].Job.State != lanegate.StateQueued {
			e.Errorf("ended %+v", ended)
		}
		equal(e, "live workers", len(e.live()), 0)
		_, err = e.s.Beat(e.ctx(), w)
		e.wantErr(err, lanegate.ErrWorkerGone)
		for _, again := range []string{w, "nobody"} {
			if ended, err = e.s.LeaveWorker(e.ctx(), again); err != nil || len(ended) != 0 {
				e.Errorf("leaving again: %v, %v", ended, err)
			}
		}
	}},
	{"a reaper acts only on the beat it saw", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		e.start(w, id)
		e.beat(w)
		for _, stale := range []int64{0, 2} {
			ended, err := e.s.ReapWorker(e.ctx(), w, stale)
			if err != nil || ended != nil {
				e.Errorf("reaped at beat %d: %v, %v", stale, ended, err)
			}
		}
		e.wantState(id, lanegate.StateRunning)
		ended, err := e.s.ReapWorker(e.ctx(), w, 1)
		e.must(err)
		equal(e, "ended", len(ended), 1)
		a := ended[0].Attempt
		if a.Outcome != lanegate.Lost || !a.Estimated || a.Duration < 0 {
			e.Errorf("attempt %+v, want it lost with an estimated duration", a)
		}
		if log := e.runLog(""); len(log) != 1 || !log[0].Estimated || log[0].Outcome != lanegate.Lost || log[0].Duration != a.Duration {
			e.Errorf("run log %+v", log)
		}
		if ended, err = e.s.ReapWorker(e.ctx(), w, 1); err != nil || ended != nil {
			e.Errorf("reaped twice: %v, %v", ended, err)
		}
		if ended, err = e.s.ReapWorker(e.ctx(), "nobody", 0); err != nil || ended != nil {
			e.Errorf("reaped nobody: %v, %v", ended, err)
		}
	}},
	{"detached runs survive their worker", func(e *env) {
		e.class("h", func(c *lanegate.Class) {
			c.Run = lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://target", Mode: lanegate.ModeAsync}
		})
		id := e.submit("h").Job.ID
		w := e.worker()
		g := e.start(w, id)[0]
		ended, err := e.s.ReapWorker(e.ctx(), w, 0)
		e.must(err)
		equal(e, "ended by the reaper", len(ended), 0)
		ended, err = e.s.ReapOrphans(e.ctx())
		e.must(err)
		equal(e, "ended as orphans", len(ended), 0)
		equal(e, "in flight", e.inFlight(), 1)
		e.end(g, lanegate.Succeeded)
	}},
	{"C15 C23 orphans of a dead process are found though it looks like the new one", func(e *env) {
		e.class("c")
		ids := e.queue("c", 2)
		old := e.worker()
		e.start(old, ids[0])
		fresh := e.worker() // same host, same pid, another identity
		e.start(fresh)      // serial is taken
		ended, err := e.s.ReapOrphans(e.ctx())
		e.must(err)
		equal(e, "orphans while the old worker's row lives", len(ended), 0)
		_, err = e.s.ReapWorker(e.ctx(), old, 0)
		e.must(err)
		e.start(fresh, ids[0])
		ended, err = e.s.ReapOrphans(e.ctx())
		e.must(err)
		equal(e, "orphans of a live worker", len(ended), 0)
	}},
	{"C25 C27 after a kill the serial line moves and never has two, 50 times", func(e *env) {
		e.class("c")
		ids := e.queue("c", 3)
		for i := range 50 {
			w := e.worker()
			if i > 0 { // the one before was killed
				res := e.admit(w)
				equal(e, "grants before the dead one is reaped", len(res.Grants), 0)
			}
			for _, old := range e.live() {
				if old.ID == w {
					continue
				}
				_, err := e.s.ReapWorker(e.ctx(), old.ID, old.Beat)
				e.must(err)
			}
			res := e.admit(w)
			equal(e, "grants", len(res.Grants), 1)
			equal(e, "in flight", e.inFlight(), 1)
			if i%(lanegate.MaxLosses-1) == lanegate.MaxLosses-2 { // before a fifth loss ends the job
				e.end(res.Grants[0], lanegate.Succeeded)
				ids = append(ids[1:], e.submit("c").Job.ID)
				e.start(w, ids[0])
			}
		}
	}},
	{"a lane is available at once when a worker serves it", func(e *env) {
		available := func() []string {
			cfg, err := e.s.Config(e.ctx())
			e.must(err)
			var names []string
			for _, l := range cfg.Lanes {
				if l.Available {
					names = append(names, l.Name)
				}
			}
			return names
		}
		if got := available(); len(got) != 0 {
			e.Errorf("available without a worker: %v", got)
		}
		e.worker(func(w *service.WorkerInfo) { w.Lanes = []string{lanegate.LaneParallel} })
		if got := available(); !slices.Equal(got, []string{lanegate.LaneParallel}) {
			e.Errorf("available: %v, want parallel", got)
		}
		w := e.worker()
		if got := available(); len(got) != 2 {
			e.Errorf("available: %v, want both", got)
		}
		_, err := e.s.LeaveWorker(e.ctx(), w)
		e.must(err)
		if got := available(); len(got) != 2 {
			e.Errorf("available just after the worker left: %v, want both", got)
		}
	}},
}

func (e *env) live() []service.WorkerInfo {
	e.Helper()
	live, err := e.s.LiveWorkers(e.ctx())
	e.must(err)
	return live
}

func (e *env) beat(worker string) []service.Held {
	e.Helper()
	held, err := e.s.Beat(e.ctx(), worker)
	e.must(err)
	return held
}

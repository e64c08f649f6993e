package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var configCases = []testCase{
	{"a new store has the two built-in lanes", func(e *env) {
		cfg := e.config()
		equal(e, "classes and resources", len(cfg.Classes)+len(cfg.Resources), 0)
		equal(e, "lanes", len(cfg.Lanes), 2)
		p, s := cfg.Lanes[0], cfg.Lanes[1]
		if p.Name != lanegate.LaneParallel || p.WidthSetting != lanegate.WidthAuto || p.Order != lanegate.OrderFair || p.WhenUnavailable != lanegate.FallbackSerial {
			e.Errorf("parallel: %+v", p)
		}
		if s.Name != lanegate.LaneSerial || s.WidthSetting != 1 || s.Order != lanegate.OrderFIFO || s.Paused || s.CreatedAt.IsZero() {
			e.Errorf("serial: %+v", s)
		}
	}},
	{"what is saved is read back, unchanged", func(e *env) {
		yes, now := true, lanegate.Micro(time.Now())
		c := lanegate.Class{
			ID: "c", Lane: lanegate.LaneSerial, MaxInFlight: 3, ManagedBy: lanegate.ManagedByFile, CommandDigest: "d", Fingerprint: "f",
			CreatedAt: now, UpdatedAt: now,
		}
		c.ClassSpec = lanegate.ClassSpec{
			Description: "é \" \\", SerialBecause: "because", Units: lanegate.Units{"db": 5, "api": 0}, Timeout: lanegate.Duration(35 * time.Hour),
			WarnAfter: lanegate.Duration(time.Second), MaxAttempts: 3, Overlap: lanegate.OverlapSkip, Repeatable: &yes, Paused: true,
			FreshWithin: lanegate.Duration(26 * time.Hour), Backoff: &lanegate.Backoff{Base: lanegate.Duration(time.Second), Max: lanegate.Duration(time.Minute)},
			Run: lanegate.Run{Kind: lanegate.RunHTTP, URL: "http://h/", Mode: lanegate.ModeAsync, Headers: map[string]string{"X": "1"}, Heartbeat: lanegate.Duration(time.Minute), Version: "v1"},
		}
		l := lanegate.Lane{
			Name: "long", WidthSetting: 2, AllowOvercommit: true, Order: lanegate.OrderFair, Queue: "q", Paused: true,
			WhenUnavailable: lanegate.FallbackWait, ManagedBy: lanegate.ManagedByFile, CreatedAt: now, UpdatedAt: now,
		}
		r := lanegate.Resource{Name: "db", Capacity: 15, Pool: true, ManagedBy: lanegate.ManagedByFile, CreatedAt: now, UpdatedAt: now}
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			return errors.Join(tx.SaveClass(c), tx.SaveLane(l), tx.SaveResource(r))
		}))
		cfg := e.config()
		if diff := cmp.Diff([]lanegate.Class{c}, cfg.Classes); diff != "" {
			e.Errorf("class (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(l, cfg.Lanes[0]); diff != "" {
			e.Errorf("lane (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]lanegate.Resource{r}, cfg.Resources); diff != "" {
			e.Errorf("resource (-want +got):\n%s", diff)
		}
	}},
	{"undeclared units are not the same as none", func(e *env) {
		e.class("undeclared")
		e.class("none", units(lanegate.Units{}))
		if u := e.classNow("undeclared").Units; u != nil {
			e.Errorf("undeclared units came back as %v", u)
		}
		if u := e.classNow("none").Units; u == nil {
			e.Error("declared empty units came back as undeclared")
		}
	}},
	{"saving again keeps the time of making", func(e *env) {
		first := e.class("c")
		stored := e.classNow("c")
		first.Description, first.CreatedAt = "edited", stored.CreatedAt.Add(time.Hour)
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.SaveClass(first) }))
		if got := e.classNow("c"); got.Description != "edited" || !got.CreatedAt.Equal(stored.CreatedAt) {
			e.Errorf("class %+v", got)
		}
	}},
	{"every change counts the version up, and lists are ordered by name", func(e *env) {
		v := e.config().Version
		for _, id := range []string{"b", "a", "c"} {
			e.class(id)
			e.resource("r"+id, 1)
		}
		cfg := e.config()
		equal(e, "version", cfg.Version, v+6)
		for i, id := range []string{"a", "b", "c"} {
			equal(e, "class", cfg.Classes[i].ID, id)
			equal(e, "resource", cfg.Resources[i].Name, "r"+id)
		}
	}},
	{"a change sees what it did so far", func(e *env) {
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			before, err := tx.Config()
			e.must(err)
			e.must(tx.SaveResource(lanegate.Resource{Name: "db", Capacity: 3}))
			after, err := tx.Config()
			e.must(err)
			equal(e, "resources before", len(before.Resources), 0)
			equal(e, "resources after", len(after.Resources), 1)
			if tx.Now().IsZero() || tx.Now().Location() != time.UTC {
				e.Errorf("now = %v", tx.Now())
			}
			return nil
		}))
	}},
	{"a failing change leaves nothing and returns its error as it is", func(e *env) {
		e.class("keep")
		before := e.config()
		boom := fmt.Errorf("boom")
		err := e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			e.must(tx.SaveClass(lanegate.Class{ID: "c", Lane: lanegate.LaneSerial, MaxInFlight: 1}))
			e.must(tx.DeleteClass("keep"))
			e.must(tx.SaveLane(lanegate.Lane{Name: "long", WidthSetting: 1, Order: lanegate.OrderFIFO, WhenUnavailable: lanegate.FallbackSerial}))
			e.must(tx.SaveResource(lanegate.Resource{Name: "db", Capacity: 3}))
			e.must(tx.AppendHistory(service.HistoryEvent{Subject: "class:c", Event: "created", Actor: "ada"}))
			e.must(tx.SetSetting("k", "v"))
			_, err := tx.Config() // must not be kept for others
			e.must(err)
			return boom
		})
		if !errors.Is(err, boom) || err.Error() != "boom" {
			e.Errorf("error = %v, want the very error of the callback", err)
		}
		if diff := cmp.Diff(before, e.config()); diff != "" {
			e.Errorf("the failed change left:\n%s", diff)
		}
		events, err := e.s.History(e.ctx(), "class:c", 0, 10)
		e.must(err)
		equal(e, "history", len(events), 0)
		equal(e, "setting", e.setting("k"), "")
	}},
	{"a change that panics leaves nothing and the store goes on", func(e *env) {
		before := e.config()
		func() {
			defer func() {
				if recover() == nil {
					e.Error("the panic was swallowed")
				}
			}()
			_ = e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
				e.must(tx.SaveResource(lanegate.Resource{Name: "db", Capacity: 3}))
				panic("boom")
			})
		}()
		if diff := cmp.Diff(before, e.config()); diff != "" {
			e.Errorf("the change left:\n%s", diff)
		}
		e.resource("db", 4)
	}},
	{"a change dies with its callback", func(e *env) {
		var kept service.ConfigTx
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { kept = tx; return nil }))
		if err := kept.SetSetting("k", "v"); err == nil {
			e.Error("written after the end")
		}
		if _, err := kept.Config(); err == nil {
			e.Error("read after the end")
		}
	}},
	{"concurrent changes run one after the other", func(e *env) {
		e.together(20, func(int) error {
			return e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
				v, err := tx.Setting("count")
				if err != nil {
					return err
				}
				return tx.SetSetting("count", v+"x")
			})
		})
		equal(e, "changes that counted", len(e.setting("count")), 20)
	}},
	{"deleting what is absent or in use is refused", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		long := lanegate.Lane{Name: "long", WidthSetting: 1, Order: lanegate.OrderFIFO, WhenUnavailable: lanegate.FallbackSerial}
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.SaveLane(long) }))
		e.class("in-long", func(c *lanegate.Class) { c.Lane = "long" })
		for name, c := range map[string]struct {
			del  func(tx service.ConfigTx) error
			want error
		}{
			"an absent class":     {func(tx service.ConfigTx) error { return tx.DeleteClass("nope") }, lanegate.ErrClassNotFound},
			"an absent lane":      {func(tx service.ConfigTx) error { return tx.DeleteLane("nope") }, lanegate.ErrLaneNotFound},
			"an absent resource":  {func(tx service.ConfigTx) error { return tx.DeleteResource("nope") }, lanegate.ErrResourceNotFound},
			"a class with jobs":   {func(tx service.ConfigTx) error { return tx.DeleteClass("c") }, lanegate.ErrInUse},
			"a lane with classes": {func(tx service.ConfigTx) error { return tx.DeleteLane("long") }, lanegate.ErrInUse},
			"a built-in lane":     {func(tx service.ConfigTx) error { return tx.DeleteLane(lanegate.LaneParallel) }, lanegate.ErrBuiltinLane},
			"a class of an odd lane": {func(tx service.ConfigTx) error {
				return tx.SaveClass(lanegate.Class{ID: "x", Lane: "nope", MaxInFlight: 1})
			}, lanegate.ErrLaneNotFound},
		} {
			err := e.s.Change(e.ctx(), c.del)
			if !errors.Is(err, c.want) {
				e.Errorf("%s: error = %v, want %v", name, err, c.want)
			}
		}
		_, err := e.s.Cancel(e.ctx(), id, "ada")
		e.must(err)
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			return errors.Join(tx.DeleteClass("c"), tx.DeleteClass("in-long"), tx.DeleteLane("long"))
		}))
		if cfg := e.config(); len(cfg.Classes) != 0 || len(cfg.Lanes) != 2 {
			e.Errorf("left: %+v", cfg)
		}
	}},
	{"a refused delete leaves the class even if the change goes on", func(e *env) {
		e.class("c")
		e.submit("c")
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			e.wantErr(tx.DeleteClass("c"), lanegate.ErrInUse)
			return nil
		}))
		equal(e, "class", e.classNow("c").ID, "c")
	}},
	{"a lane in which something runs stays", func(e *env) {
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			return tx.SaveLane(lanegate.Lane{Name: "long", WidthSetting: 1, Order: lanegate.OrderFIFO, WhenUnavailable: lanegate.FallbackSerial})
		}))
		e.class("c", func(c *lanegate.Class) { c.Lane = "long" })
		g := e.start(e.worker(), e.submit("c").Job.ID)
		equal(e, "lane", g[0].Attempt.Lane, "long")
		e.class("c") // demoted while it runs
		del := func(tx service.ConfigTx) error { return tx.DeleteLane("long") }
		e.wantErr(e.s.Change(e.ctx(), del), lanegate.ErrInUse)
		e.end(g[0], lanegate.Succeeded)
		e.must(e.s.Change(e.ctx(), del))
	}},
	{"a change knows what is in flight", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		w := e.worker()
		e.start(w, id)
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			running, err := tx.InFlight()
			e.must(err)
			if len(running) != 1 || running[0].Job != id || running[0].Class != "c" || running[0].Worker != w {
				e.Errorf("in flight %+v", running)
			}
			return nil
		}))
	}},
	{"the next admission sees a change at once", func(e *env) {
		e.class("c")
		ids := e.queue("c", 2)
		w := e.worker()
		e.end(e.start(w, ids[0])[0], lanegate.Succeeded)
		e.class("c", func(c *lanegate.Class) { c.Paused = true })
		e.start(w)
	}},
	{"a reader's copy is its own", func(e *env) {
		e.class("c")
		first := e.config()
		first.Classes[0].ID, first.Lanes[0].Name = "spoiled", "spoiled"
		if again := e.config(); again.Classes[0].ID != "c" || again.Lanes[0].Name != lanegate.LaneParallel {
			e.Errorf("another reader got %+v", again)
		}
	}},
	{"history is listed newest first, page by page, per subject", func(e *env) {
		e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error {
			for i := range 5 {
				e.must(tx.AppendHistory(service.HistoryEvent{
					Subject: "class:c", Event: fmt.Sprint("e", i), Actor: "ada", Reason: "why", Evidence: map[string]any{"n": float64(i)},
				}))
			}
			return tx.AppendHistory(service.HistoryEvent{Subject: "class:d", Event: "other", Actor: "ada"})
		}))
		var got []string
		var before int64
		for {
			page, err := e.s.History(e.ctx(), "class:c", before, 2)
			e.must(err)
			if len(page) == 0 {
				break
			}
			for _, ev := range page {
				got = append(got, ev.Event)
				if ev.Actor != "ada" || ev.Reason != "why" || ev.At.IsZero() || fmt.Sprint("e", ev.Evidence["n"]) != ev.Event {
					e.Errorf("event %+v", ev)
				}
			}
			before = page[len(page)-1].ID
		}
		if want := []string{"e4", "e3", "e2", "e1", "e0"}; !slices.Equal(got, want) {
			e.Errorf("events %v, want %v", got, want)
		}
	}},
	{"settings are kept", func(e *env) {
		equal(e, "absent", e.setting("k"), "")
		for _, v := range []string{"1", "2"} {
			e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) error { return tx.SetSetting("k", v) }))
			equal(e, "setting", e.setting("k"), v)
		}
	}},
	{"a ping writes", func(e *env) {
		e.must(e.s.Ping(e.ctx()))
		e.must(e.s.Ping(e.ctx()))
	}},
	{"a closed store answers that it is away", func(e *env) {
		e.class("c")
		e.must(e.s.Close())
		_, err := e.s.Submit(e.ctx(), newJob("c"))
		e.wantErr(err, lanegate.ErrUnavailable)
		e.wantErr(e.s.Ping(e.ctx()), lanegate.ErrUnavailable)
		_, err = e.s.Job(e.ctx(), newID())
		e.wantErr(err, lanegate.ErrUnavailable)
	}},
}

func (e *env) config() service.Config {
	e.Helper()
	cfg, err := e.s.Config(e.ctx())
	e.must(err)
	return cfg
}

func (e *env) setting(k string) (v string) {
	e.Helper()
	e.must(e.s.Change(e.ctx(), func(tx service.ConfigTx) (err error) {
		v, err = tx.Setting(k)
		return err
	}))
	return v
}

package storetest

import (
	"fmt"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

var standingCases = []testCase{
	{"the latest event of a subject is found by its names", func(e *env) {
		events := []string{"created", "edited", "promoted", "edited", "demoted", "edited"}
		last := func(tx service.ConfigTx, want int, names ...string) {
			ev, err := tx.LastEvent("class:a", names...)
			e.must(err)
			if want < 0 {
				equal(e, fmt.Sprint("id of none of ", names), ev.ID, 0)
				return
			}
			if ev.Reason != fmt.Sprint("a", want) || ev.Event != events[want] || ev.Subject != "class:a" || ev.At.IsZero() {
				e.Errorf("last of %v: %+v, want number %d", names, ev, want)
			}
		}
		e.change(func(tx service.ConfigTx) error {
			last(tx, -1, "created")
			for i, name := range events {
				for _, id := range []string{"a", "b"} {
					err := tx.AppendHistory(service.HistoryEvent{Subject: "class:" + id, Event: name, Reason: fmt.Sprint(id, i), Evidence: map[string]any{"i": i}})
					if err != nil {
						return err
					}
				}
				last(tx, i, name)
			}
			return nil
		})
		e.change(func(tx service.ConfigTx) error {
			last(tx, 2, "promoted")
			last(tx, 4, "promoted", "demoted", "created")
			last(tx, -1, "paused")
			last(tx, -1)
			return nil
		})
	}},
	{"class facts say where classes stand", func(e *env) {
		e.width(4)
		e.class("a", attempts(1, 0))
		e.class("b")
		e.class("gone")
		e.change(func(tx service.ConfigTx) error {
			for _, ev := range []service.HistoryEvent{
				{Subject: "class:a", Event: "created"}, {Subject: "class:a", Event: "demoted", Reason: "by hand"},
				{Subject: "class:a", Event: "edited"}, {Subject: "class:gone", Event: "created"},
			} {
				if err := tx.AppendHistory(ev); err != nil {
					return err
				}
			}
			return tx.DeleteClass("gone")
		})
		v, w := newVerification(lanegate.SourceQueue, "a", "b"), newVerification(lanegate.SourceQueue, "a")
		e.plan(v)
		e.finish(v.ID, lanegate.VerdictPassed)
		e.plan(w)
		e.finish(w.ID, lanegate.VerdictFailed)
		facts, now, err := e.s.ClassFacts(e.ctx(), []string{"a", "b", "gone", "never"})
		e.must(err)
		if now.IsZero() || len(facts) != 3 {
			e.Errorf("at %v: %+v", now, facts)
		}
		a := facts["a"]
		if a.Because.Event != "demoted" || a.Because.Reason != "by hand" || a.Failures != 0 || facts["gone"].Because.Event != "created" {
			e.Errorf("facts %+v", facts)
		}
		e.same("proofs of a", e.proofs("a"), a.Proofs)
		e.same("proofs of b", e.proofs("b"), facts["b"].Proofs)
		if facts, _, err = e.s.ClassFacts(e.ctx(), nil); err != nil || len(facts) != 0 {
			e.Errorf("facts of no class: %v, %v", facts, err)
		}
	}},
	{"failures in a row count ordinary bad ends since the last success, up to a limit", func(e *env) {
		e.class("a")
		e.class("b")
		w := e.worker()
		want := 0
		for i, o := range []lanegate.Outcome{
			lanegate.Failed, lanegate.TimedOut, lanegate.Lost, lanegate.Cancelled, lanegate.Succeeded, lanegate.Failed, lanegate.Deferred, lanegate.Interrupted, lanegate.Failed,
		} {
			job := e.submit("a").Job.ID
			e.end(e.start(w, job)[0], o)
			if d := e.job(job); d.State == lanegate.StateQueued {
				_, err := e.s.Cancel(e.ctx(), job, "ada")
				e.must(err)
			}
			switch o {
			case lanegate.Succeeded:
				want = 0
			case lanegate.Failed, lanegate.TimedOut, lanegate.Lost:
				want++
			}
			equal(e, fmt.Sprintf("failures after %d, %s", i, o), e.failures("a"), want)
		}
		e.end(e.madeUp(w, "a"), lanegate.Failed)
		equal(e, "failures after a made-up one", e.failures("a"), want)
		for range service.FailuresCounted {
			e.end(e.start(w, e.submit("a").Job.ID)[0], lanegate.Failed)
		}
		equal(e, "failures at most", e.failures("a"), service.FailuresCounted)
		equal(e, "failures of b", e.failures("b"), 0)
	}},
}

func (e *env) failures(class string) int {
	e.Helper()
	facts, _, err := e.s.ClassFacts(e.ctx(), []string{class})
	e.must(err)
	return facts[class].Failures
}

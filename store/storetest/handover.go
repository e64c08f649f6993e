package storetest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const theirQueue = "https://sqs.example.com/1/theirs"

// cameIn gives a job the message that it came in with.
func cameIn(m lanegate.Message) func(*service.NewJob) {
	return func(n *service.NewJob) { n.Origin = &service.Origin{Queue: "orders", Message: m} }
}

// takeOut takes up to limit jobs of some classes, of all when none is named.
func (e *env) takeOut(limit int, classes ...string) (ids []string) {
	e.Helper()
	for _, j := range e.handOver(service.HandOverChoice{To: theirQueue, Classes: classes, Limit: limit}) {
		ids = append(ids, j.ID)
	}
	return ids
}

func (e *env) handOver(c service.HandOverChoice) []service.HandedJob {
	e.Helper()
	jobs, err := e.s.TakeOut(e.ctx(), c)
	e.must(err)
	return jobs
}

func (e *env) sameList(what string, got, want []string) {
	e.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		e.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

var handOverCases = []testCase{
	{"a message is kept with its job as it came", func(e *env) {
		e.class("c")
		m := lanegate.Message{ID: "m-1", Body: "{\"a\": \t1}", Group: "g", Attributes: map[string]lanegate.MessageAttribute{
			"text": {Type: "String", Text: "é <&> \\u0000"}, "bytes": {Type: "Binary.gz", Bytes: []byte{0, 0xff, 1}}, "n": {Type: "Number", Text: "1e400"},
		}}
		other := m
		other.Body, other.Attributes, other.Group = `{"class": "c"}`, nil, ""
		first := e.submit("c", payload(m.Body), cameIn(m)).Job.ID
		second := e.submit("c", payload("1"), cameIn(other)).Job.ID
		third := e.submit("c", payload("2")).Job.ID
		jobs := e.handOver(service.HandOverChoice{To: theirQueue, Classes: []string{"c"}, Limit: 10})
		if len(jobs) != 3 || jobs[0].ID != first || jobs[1].ID != second || jobs[2].ID != third {
			e.Fatalf("took %+v", jobs)
		}
		if diff := cmp.Diff([]*service.Origin{{Queue: "orders", Message: m}, {Queue: "orders", Message: other}, nil},
			[]*service.Origin{jobs[0].Origin, jobs[1].Origin, jobs[2].Origin}); diff != "" {
			e.Errorf("messages (-want +got):\n%s", diff)
		}
		equal(e, "payload", string(jobs[2].Payload), "2")
	}},
	{"a job that was taken can't start, and another drain of the queue takes it again first", func(e *env) {
		e.class("c")
		w := e.worker()
		first, second := e.submit("c").Job.ID, e.submit("c").Job.ID
		e.sameList("taken", e.takeOut(1, "c"), []string{first})
		j := e.job(first).Job
		equal(e, "handed over", j.HandedOver(), true)
		equal(e, "state", j.State, lanegate.StateQueued)
		e.must(func() error { _, err := e.s.RunNext(e.ctx(), first, "somebody"); return err }())
		e.end(e.start(w, second)[0], lanegate.Succeeded)
		e.start(w)
		third := e.submit("c").Job.ID
		e.sameList("taken again", e.takeOut(5, "c"), []string{first, third})
		if jobs := e.handOver(service.HandOverChoice{To: "elsewhere", Classes: []string{"c"}, Limit: 5}); len(jobs) > 0 {
			e.Errorf("another queue got %+v", jobs)
		}
	}},
	{"a confirmed job is cancelled, once", func(e *env) {
		e.class("c")
		id := e.submit("c").Job.ID
		e.takeOut(5, "c")
		for _, want := range []int{1, 0} {
			ended, err := e.s.ConfirmOut(e.ctx(), theirQueue, []string{id, newID()}, "sent away")
			e.must(err)
			equal(e, "ended", len(ended), want)
		}
		j := e.job(id).Job
		if j.State != lanegate.StateCancelled || j.Reason != "sent away" || j.FinishedAt == nil || j.ReadyAt.After(*j.FinishedAt) {
			e.Errorf("job %+v", j)
		}
	}},
	{"what was not taken for the queue, or was cancelled meanwhile, is not confirmed", func(e *env) {
		e.class("c")
		gone, stays := e.submit("c").Job.ID, e.submit("c").Job.ID
		e.sameList("taken", e.takeOut(1, "c"), []string{gone})
		_, err := e.s.Cancel(e.ctx(), gone, "somebody")
		e.must(err)
		ended, err := e.s.ConfirmOut(e.ctx(), theirQueue, []string{gone, stays}, "sent away")
		e.must(err)
		equal(e, "ended", len(ended), 0)
		equal(e, "state", e.job(stays).State, lanegate.StateQueued)
		equal(e, "reason", e.job(gone).Reason, "cancelled by somebody")
		equal(e, "its time", e.job(gone).ReadyAt, e.job(gone).SubmittedAt)
	}},
	{"a job that is put back is at its place again", func(e *env) {
		e.class("c")
		w := e.worker()
		first, second := e.submit("c").Job, e.submit("c").Job
		later := e.submit("c", func(n *service.NewJob) { at := lanegate.Micro(time.Now().Add(time.Hour)); n.RunAt = &at }).Job
		e.sameList("taken", e.takeOut(5, "c"), []string{first.ID, second.ID, later.ID})
		back, err := e.s.TakeBack(e.ctx(), theirQueue, []string{second.ID})
		e.must(err)
		equal(e, "put back", len(back), 1)
		if back, err = e.s.TakeBack(e.ctx(), theirQueue, nil); err != nil || len(back) != 2 {
			e.Fatalf("put back %+v, %v", back, err)
		}
		for _, want := range []lanegate.Job{first, second, later} {
			if want.ReadyAt.Equal(want.SubmittedAt) { // it is another moment, so that one can tell
				want.ReadyAt = want.ReadyAt.Add(time.Microsecond)
			}
			if diff := cmp.Diff(want, e.job(want.ID).Job); diff != "" {
				e.Errorf("after its return (-want +got):\n%s", diff)
			}
		}
		e.end(e.start(w, first.ID)[0], lanegate.Succeeded)
		e.start(w, second.ID)
	}},
	{"the jobs to leave are chosen and counted", func(e *env) {
		e.class("a")
		e.class("b")
		e.class("far", far)
		e.class("x")
		w := e.worker()
		running := e.submit("a").Job.ID
		e.start(w, running)
		agent := e.worker(waitsFor("far"))
		e.submit("far", on(agent))
		b1, a1, b2 := e.submit("b").Job.ID, e.submit("a").Job.ID, e.submit("b").Job.ID
		e.submit("x")
		all := []string{"a", "b", "far"}
		n, err := e.s.CountOut(e.ctx(), theirQueue, all)
		e.must(err)
		equal(e, "counts", n, service.HandOverCount{Queued: 3, Running: 1, Pinned: 1})
		var ids []string
		for _, j := range e.handOver(service.HandOverChoice{To: theirQueue, Classes: all, Limit: 5, Skip: []string{a1}}) {
			ids = append(ids, j.ID)
		}
		e.sameList("in the order of their lines", ids, []string{b1, b2})
		n, err = e.s.CountOut(e.ctx(), theirQueue, all)
		e.must(err)
		equal(e, "counts", n, service.HandOverCount{Queued: 1, Taken: 2, Running: 1, Pinned: 1})
	}},
}

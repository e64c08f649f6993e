package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// A history that keeps the rules is not complained about, however it goes.
func TestCheckIsSilentOnGoodHistories(t *testing.T) {
	starts, lost := 0, 0
	for seed := range uint64(60) {
		h := makeHistory(seed, 250)
		if found := Check(h); len(found) > 0 {
			t.Fatalf("seed %d: %v", seed, found[0])
		}
		rows := h
		rows.Changes, rows.RunLog, rows.NoLog, rows.MustSucceed = nil, nil, true, true
		if found := Check(rows); len(found) > 0 {
			t.Fatalf("seed %d, without a log: %v", seed, found[0])
		}
		for _, a := range h.Attempts {
			starts++
			if a.Outcome != lanegate.Succeeded {
				lost++
			}
		}
	}
	if starts < 2000 || lost < 200 {
		t.Errorf("%d starts, %d of them cut off: too few to show anything", starts, lost)
	}
}

// plant is a fault that is put into a good history; it says whether there was a
// place for it.
type plant struct {
	name string
	rule Rule
	put  func(rng *rand.Rand, h *History) bool
}

// TestCheckFindsPlantedFaults puts each kind of fault at a random place of many
// good histories: each one is found, by the rule that it breaks.
func TestCheckFindsPlantedFaults(t *testing.T) {
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			put := 0
			for seed := range uint64(20) {
				h := makeHistory(seed, 150)
				rng := rand.New(rand.NewPCG(seed, 2))
				if !p.put(rng, &h) {
					continue
				}
				put++
				if found := Check(h); !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == p.rule }) {
					t.Fatalf("seed %d: no %q among %v", seed, p.rule, found)
				}
			}
			if put < 8 {
				t.Errorf("there was a place for it in %d histories only", put)
			}
		})
	}
}

var plants = []plant{
	{"an accepted job is missing", RuleLost, func(rng *rand.Rand, h *History) bool {
		h.Jobs = without(rng, h.Jobs)
		return true
	}},
	{"a job is left running", RuleFinal, func(rng *rand.Rand, h *History) bool {
		h.Jobs[rng.IntN(len(h.Jobs))].State = lanegate.StateRunning
		return true
	}},
	{"a queued job is deleted", RuleLost, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, queuedJob, func(c Change) Change { return Change{Job: c.Job, Gone: true} })
	}},
	{"an attempt never ends", RuleFinal, func(rng *rand.Rand, h *History) bool {
		i := pick(rng, h.Changes, isEnd)
		h.Changes = slices.Delete(h.Changes, i, i+1)
		return true
	}},
	{"an attempt has no row", RuleLost, func(rng *rand.Rand, h *History) bool {
		h.Attempts = without(rng, h.Attempts)
		return true
	}},
	{"one key is answered with two jobs", RuleKey, func(rng *rand.Rand, h *History) bool {
		a := h.Accepted[rng.IntN(len(h.Accepted))]
		for _, j := range h.Jobs {
			if j.ID != a.Job {
				a.Job = j.ID
				h.Accepted = append(h.Accepted, a)
				return true
			}
		}
		return false
	}},
	{"two jobs have one key", RuleKey, func(rng *rand.Rand, h *History) bool {
		j := h.Jobs[rng.IntN(len(h.Jobs))]
		j.ID += "-again"
		h.Jobs = append(h.Jobs, j)
		return true
	}},
	{"two in serial, by the database", RuleSerial, func(rng *rand.Rand, h *History) bool {
		return endLater(rng, h, lanegate.LaneSerial)
	}},
	{"two in serial, by their own record", RuleSerial, overlapping},
	{"two process trees in serial", RuleSerial, func(rng *rand.Rand, h *History) bool {
		var serial []Ref
		for _, a := range h.Attempts {
			if a.Lane == lanegate.LaneSerial {
				serial = append(serial, a.ref())
			}
		}
		a, b := serial[rng.IntN(len(serial))], serial[rng.IntN(len(serial))]
		i := slices.IndexFunc(h.Marks, func(m Mark) bool { return m.Ref == a })
		h.Marks = append(h.Marks, Mark{Ref: a, Kind: MarkBeside, At: h.Marks[i].At, Other: b})
		return a.Job != b.Job
	}},
	{"two process trees of one job", RuleInside, func(rng *rand.Rand, h *History) bool {
		for _, m := range h.Marks {
			if m.Kind == MarkStart && m.Number == 2 {
				m.Kind, m.Other = MarkBeside, Ref{m.Job, 1}
				h.Marks = append(h.Marks, m)
				return true
			}
		}
		return false
	}},
	{"serial starts beside a hold", RuleSerial, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, startIn(lanegate.LaneSerial), func(Change) Change { return Change{Hold: &Hold{"v9", true}} })
	}},
	{"a lane is too full", RuleLane, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, startIn(lanegate.LaneParallel), func(c Change) Change {
			n := inFlight(h, c, func(a Attempt) bool { return a.Lane == lanegate.LaneParallel })
			if n == 0 { // a width of 0 is none
				return Change{}
			}
			return Change{Lane: &Lane{Name: lanegate.LaneParallel, Width: n}}
		})
	}},
	{"a class is too many", RuleClass, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, isStart, func(c Change) Change {
			class := classAt(h, c)
			class.MaxInFlight = inFlight(h, c, func(a Attempt) bool { return a.Class == class.ID })
			return Change{Class: &class}
		})
	}},
	{"a resource is overdrawn", RuleResource, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, isStart, func(c Change) Change {
			used := 0
			inFlight(h, c, func(a Attempt) bool { used += a.Units["db"]; return true })
			return Change{Resource: &Resource{"db", used + c.Attempt.Units["db"] - 1, true}}
		})
	}},
	{"serial's reserve is taken", RuleResource, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, startIn(lanegate.LaneParallel), func(c Change) Change {
			outside, serial := 0, 0
			inFlight(h, c, func(a Attempt) bool {
				if a.Lane == lanegate.LaneSerial {
					serial += a.Units["db"]
				} else {
					outside += a.Units["db"]
				}
				return true
			})
			j := upTo(h, c)
			room := outside + c.Attempt.Units["db"] // just enough without any reserve
			if serial > 0 || j.reserve(Resource{"db", room, true}) == 0 {
				return Change{}
			}
			return Change{Resource: &Resource{"db", room, true}}
		})
	}},
	{"a paused class starts", RulePaused, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, isStart, func(c Change) Change {
			class := classAt(h, c)
			class.Paused = true
			return Change{Class: &class}
		})
	}},
	{"a paused lane starts", RulePaused, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, isStart, func(c Change) Change {
			return Change{Lane: &Lane{c.Attempt.Lane, 3, true}}
		})
	}},
	{"a class runs in a lane that is not its own", RuleRoute, func(rng *rand.Rand, h *History) bool {
		return edited(rng, h, startIn(lanegate.LaneSerial), func(a *Attempt) { a.Lane = lanegate.LaneParallel })
	}},
	{"a start without a proof", RuleProof, func(rng *rand.Rand, h *History) bool {
		return edited(rng, h, startIn(lanegate.LaneParallel), func(a *Attempt) { a.Fingerprint = "another" })
	}},
	{"a proof that a later run refuted", RuleProof, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, startIn(lanegate.LaneParallel), func(c Change) Change {
			return Change{Proof: &Proof{"v2", c.Attempt.Class, c.Attempt.Fingerprint, "failed", 2}}
		})
	}},
	{"a promotion beyond what is proven", RuleProof, func(rng *rand.Rand, h *History) bool {
		return insertBefore(rng, h, startIn(lanegate.LaneParallel), func(c Change) Change {
			class := classAt(h, c)
			class.MaxInFlight = 3
			return Change{Class: &class}
		})
	}},
	{"a job is passed by in its line", RuleOrder, passedBy},
	{"a job starts before its time", RuleEarly, func(rng *rand.Rand, h *History) bool {
		i := pick(rng, h.Accepted, func(a Accepted) bool { return !a.RunAt.IsZero() })
		n := slices.IndexFunc(h.Attempts, func(a Attempt) bool { return a.Job == h.Accepted[i].Job })
		h.Attempts[n].StartedAt = h.Accepted[i].RunAt.Add(-time.Microsecond)
		return true
	}},
	{"a start is written before its job's time", RuleEarly, func(rng *rand.Rand, h *History) bool {
		i := pick(rng, h.Accepted, func(a Accepted) bool { return !a.RunAt.IsZero() })
		n := slices.IndexFunc(h.Changes, func(c Change) bool { return c.Attempt != nil && c.Attempt.Job == h.Accepted[i].Job })
		h.Changes[n].At = h.Accepted[i].RunAt.Add(-time.Microsecond)
		return true
	}},
	{"a second outcome", RuleOutcome, func(rng *rand.Rand, h *History) bool {
		i := pick(rng, h.Changes, isEnd)
		again := *h.Changes[i].Attempt
		if again.Outcome = lanegate.Lost; h.Changes[i].Attempt.Outcome == lanegate.Lost {
			again.Outcome = lanegate.Succeeded
		}
		h.Changes = append(h.Changes, Change{At: h.Changes[len(h.Changes)-1].At, Attempt: &again})
		return true
	}},
	{"an outcome is taken back", RuleOutcome, func(rng *rand.Rand, h *History) bool {
		again := *h.Changes[pick(rng, h.Changes, isEnd)].Attempt
		again.Outcome = ""
		h.Changes = append(h.Changes, Change{At: h.Changes[len(h.Changes)-1].At, Attempt: &again})
		return true
	}},
	{"a job succeeds twice", RuleOutcome, func(_ *rand.Rand, h *History) bool {
		for i, a := range h.Attempts {
			if a.Number == 1 && a.Outcome != lanegate.Succeeded {
				h.Attempts[i].Outcome = lanegate.Succeeded
				return true
			}
		}
		return false
	}},
	{"a run is logged twice", RuleOutcome, func(rng *rand.Rand, h *History) bool {
		h.RunLog = append(h.RunLog, h.RunLog[rng.IntN(len(h.RunLog))])
		return true
	}},
	{"a run is not logged", RuleOutcome, func(rng *rand.Rand, h *History) bool {
		h.RunLog = without(rng, h.RunLog)
		return true
	}},
	{"a number is left out", RuleNumber, func(rng *rand.Rand, h *History) bool {
		return edited(rng, h, isStart, func(a *Attempt) { a.Number += 5 })
	}},
	{"attempts are counted wrong", RuleNumber, func(rng *rand.Rand, h *History) bool {
		h.Jobs[rng.IntN(len(h.Jobs))].Attempts++
		return true
	}},
	{"a success is started again", RuleState, func(rng *rand.Rand, h *History) bool {
		i := pick(rng, h.Changes, func(c Change) bool { return c.Job != nil && c.Job.State == lanegate.StateSucceeded })
		again := *h.Changes[i].Job
		again.State = lanegate.StateQueued
		h.Changes = append(h.Changes, Change{At: h.Changes[len(h.Changes)-1].At, Job: &again})
		return true
	}},
	{"a job fails for nothing", RuleState, func(rng *rand.Rand, h *History) bool {
		h.Jobs[rng.IntN(len(h.Jobs))].State = lanegate.StateFailed
		return true
	}},
	{"a job that only one worker may run fails for nothing", RuleState, func(rng *rand.Rand, h *History) bool {
		cut := map[string]bool{}
		for _, a := range h.Attempts {
			cut[a.Job] = cut[a.Job] || a.Outcome != lanegate.Succeeded
		}
		i := pick(rng, h.Jobs, func(j Job) bool { return !cut[j.ID] })
		h.Jobs[i].State, h.Jobs[i].Worker = lanegate.StateFailed, "w1"
		return true
	}},
	{"a run that nobody granted", RuleRecord, func(rng *rand.Rand, h *History) bool {
		m := h.Marks[rng.IntN(len(h.Marks))]
		m.Number += 7
		h.Marks = append(h.Marks, m)
		return true
	}},
	{"a run starts twice", RuleRecord, func(rng *rand.Rand, h *History) bool {
		h.Marks = append(h.Marks, h.Marks[pick(rng, h.Marks, func(m Mark) bool { return m.Kind == MarkStart })])
		return true
	}},
	{"a success that did not run to its end", RuleRecord, func(rng *rand.Rand, h *History) bool {
		i := pick(rng, h.Marks, func(m Mark) bool { return m.Kind == MarkEnd })
		h.Marks = slices.Delete(h.Marks, i, i+1)
		return true
	}},
	{"a run before its grant", RuleInside, func(rng *rand.Rand, h *History) bool {
		m := &h.Marks[pick(rng, h.Marks, func(m Mark) bool { return m.Kind == MarkStart })]
		m.At = m.At.Add(-time.Second)
		return true
	}},
	{"a late start", RuleInside, func(rng *rand.Rand, h *History) bool {
		c := h.Changes[pick(rng, h.Changes, isEnd)]
		for i := range h.Marks {
			if m := &h.Marks[i]; m.Ref == c.Attempt.ref() {
				m.At = c.At.Add(5 * time.Millisecond)
			}
		}
		return true
	}},
	{"the lock of serial was taken", RuleSerial, func(rng *rand.Rand, h *History) bool {
		m := h.Marks[rng.IntN(len(h.Marks))]
		m.Kind = MarkOverlap
		h.Marks = append(h.Marks, m)
		return true
	}},
	{"a success lacks a line that it should have", RuleRecord, func(_ *rand.Rand, h *History) bool {
		h.Whole = []string{MarkStart, "grandchild", MarkEnd}
		return true
	}},
	{"a job that must succeed is cancelled", RuleState, func(rng *rand.Rand, h *History) bool {
		h.MustSucceed = true
		h.Jobs[rng.IntN(len(h.Jobs))].State = lanegate.StateCancelled
		return true
	}},
	{"an attempt of a job that must succeed fails", RuleOutcome, func(rng *rand.Rand, h *History) bool {
		h.MustSucceed = true
		h.Attempts[rng.IntN(len(h.Attempts))].Outcome = lanegate.Failed
		return true
	}},
	{"without a log, a run outlives its attempt", RuleInside, func(rng *rand.Rand, h *History) bool {
		h.NoLog = true
		a := h.Attempts[rng.IntN(len(h.Attempts))]
		h.Marks = append(h.Marks, Mark{Ref: a.ref(), Kind: MarkAlive, At: a.EndedAt.Add(time.Second)})
		return true
	}},
	{"without a log, two in serial", RuleSerial, func(rng *rand.Rand, h *History) bool {
		h.NoLog = true
		return overlapping(rng, h)
	}},
	{"without a log, an attempt has two rows", RuleOutcome, func(rng *rand.Rand, h *History) bool {
		h.NoLog = true
		h.Attempts = append(h.Attempts, h.Attempts[rng.IntN(len(h.Attempts))])
		return true
	}},
	{"a run outlives its worker's lease", RuleCut, func(rng *rand.Rand, h *History) bool {
		m := h.Marks[rng.IntN(len(h.Marks))]
		worker := h.Attempts[slices.IndexFunc(h.Attempts, func(a Attempt) bool { return a.ref() == m.Ref })].Worker
		h.Cuts = append(h.Cuts, Cut{worker, m.At.Add(-testLease - time.Millisecond), m.At.Add(time.Second)})
		return true
	}},
}

func isStart(c Change) bool { return c.Attempt != nil && c.Attempt.Outcome == "" }
func isEnd(c Change) bool   { return c.Attempt != nil && c.Attempt.Outcome != "" }
func queuedJob(c Change) bool {
	return c.Job != nil && c.Job.State == lanegate.StateRunning // it is queued just before
}

func startIn(lane string) func(Change) bool {
	return func(c Change) bool { return isStart(c) && c.Attempt.Lane == lane }
}

// pick chooses one of those that are meant; there must be one.
func pick[T any](rng *rand.Rand, all []T, meant func(T) bool) int {
	var at []int
	for i, v := range all {
		if meant(v) {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		panic("the good history has no such entry")
	}
	return at[rng.IntN(len(at))]
}

func without[T any](rng *rand.Rand, all []T) []T {
	i := rng.IntN(len(all))
	return slices.Delete(slices.Clone(all), i, i+1)
}

// insertBefore puts a change before one that is meant; an empty one is no change.
func insertBefore(rng *rand.Rand, h *History, meant func(Change) bool, make func(Change) Change) bool {
	for range 20 {
		i := pick(rng, h.Changes, meant)
		c := make(h.Changes[i])
		if c == (Change{}) {
			continue
		}
		c.At = h.Changes[i].At
		h.Changes = slices.Insert(h.Changes, i, c)
		return true
	}
	return false
}

// edited changes the row of a start.
func edited(rng *rand.Rand, h *History, meant func(Change) bool, edit func(*Attempt)) bool {
	c := &h.Changes[pick(rng, h.Changes, meant)]
	a := *c.Attempt
	edit(&a)
	c.Attempt = &a
	return true
}

// upTo is the judge as it stands before a change.
func upTo(h *History, c Change) *judge {
	j := newJudge(*h)
	for _, b := range h.Before {
		j.apply(b)
	}
	for _, b := range h.Changes {
		if b == c {
			break
		}
		j.apply(b)
	}
	return j
}

func inFlight(h *History, c Change, meant func(Attempt) bool) (n int) {
	for _, a := range upTo(h, c).now.running {
		if meant(a) {
			n++
		}
	}
	return n
}

func classAt(h *History, c Change) Class { return upTo(h, c).now.classes[c.Attempt.Class] }

// endLater moves the end of an attempt behind the next start of its lane.
func endLater(rng *rand.Rand, h *History, lane string) bool {
	i := pick(rng, h.Changes, func(c Change) bool { return isEnd(c) && c.Attempt.Lane == lane })
	for n := i + 1; n < len(h.Changes); n++ {
		if c := h.Changes[n]; startIn(lane)(c) {
			end := h.Changes[i]
			end.At = c.At
			h.Changes = slices.Delete(slices.Insert(h.Changes, n+1, end), i, i+1)
			return true
		}
	}
	return false
}

// overlapping makes a run of serial live into the next one.
func overlapping(rng *rand.Rand, h *History) bool {
	serial := map[Ref]bool{}
	for _, a := range h.Attempts {
		serial[a.ref()] = a.Lane == lanegate.LaneSerial
	}
	i := pick(rng, h.Marks, func(m Mark) bool { return m.Kind == MarkEnd && serial[m.Ref] })
	for n := range h.Marks {
		if m := h.Marks[n]; m.Kind == MarkStart && serial[m.Ref] && m.At.After(h.Marks[i].At) {
			h.Marks[i].At = m.At.Add(time.Microsecond)
			return true
		}
	}
	return false
}

// passedBy gives a waiting job a smaller place than one that starts before it.
func passedBy(rng *rand.Rand, h *History) bool {
	for range 20 {
		c := h.Changes[pick(rng, h.Changes, isStart)]
		j := upTo(h, c)
		for id := range j.now.waiting[c.Attempt.Class] {
			other := j.now.jobs[id]
			if !other.since.Add(h.OrderSlack).Before(c.Attempt.StartedAt) {
				continue
			}
			for i := range h.Changes {
				if b := h.Changes[i].Job; b != nil && b.ID == id {
					moved := *b
					moved.PlaceAt = moved.PlaceAt.Add(-time.Hour)
					h.Changes[i].Job = &moved
				}
			}
			return true
		}
	}
	return false
}

// What needs only one sentence each: histories made by hand.
func TestCheckByHand(t *testing.T) {
	at := func(ms int) time.Time { return time.Date(2026, 11, 30, 2, 0, 0, ms*1e6, time.UTC) }
	job := func(state lanegate.State, place, attempts int) *Job {
		return &Job{ID: fmt.Sprintf("j%d", place), Class: "a", State: state, Due: true, PlaceAt: at(place), PlaceID: fmt.Sprintf("j%d", place), Attempts: attempts}
	}
	start := func(place, number int, lane string) *Attempt {
		return &Attempt{Job: fmt.Sprintf("j%d", place), Number: number, Class: "a", Lane: lane, Worker: "w", StartedAt: at(50)}
	}
	before := []Change{
		{Lane: &Lane{Name: "serial", Width: 1}}, {Lane: &Lane{Name: "parallel", Width: 2}},
		{Class: &Class{ID: "a", Lane: "serial", MaxInFlight: 1}},
	}
	fallback := start(1, 1, "serial")
	fallback.Reason, fallback.Wanted = lanegate.ReasonLaneUnavailable, "parallel"
	first := job(lanegate.StateQueued, 2, 0)
	first.FirstAt = at(10)
	for _, tt := range []struct {
		name    string
		changes []Change
		want    []Rule // in any order
	}{
		{"a start", []Change{{At: at(1), Job: job("queued", 1, 0)}, {At: at(50), Attempt: start(1, 1, "serial")}}, nil},
		{"a job of nobody", []Change{{At: at(50), Attempt: start(1, 1, "serial")}}, []Rule{RuleLost}},
		{"the first in line", []Change{{At: at(1), Job: job("queued", 1, 0)}, {At: at(2), Job: job("queued", 2, 0)}, {At: at(50), Attempt: start(1, 1, "serial")}}, nil},
		{"the second in line", []Change{{At: at(1), Job: job("queued", 1, 0)}, {At: at(2), Job: job("queued", 2, 0)}, {At: at(50), Attempt: start(2, 1, "serial")}}, []Rule{RuleOrder}},
		{"the second in line, asked for by a person", []Change{{At: at(1), Job: job("queued", 1, 0)}, {At: at(2), Job: first}, {At: at(50), Attempt: start(2, 1, "serial")}}, nil},
		{"the first in line became visible too late", []Change{{At: at(1), Committed: at(49), Job: job("queued", 1, 0)}, {At: at(2), Job: job("queued", 2, 0)}, {At: at(50), Attempt: start(2, 1, "serial")}}, nil},
		{"a fallback to serial", []Change{
			{Proof: &Proof{"v", "a", "", "passed", 1}}, {Class: &Class{ID: "a", Lane: "parallel", MaxInFlight: 1}},
			{At: at(1), Job: job("queued", 1, 0)}, {At: at(50), Attempt: fallback},
		}, nil},
		{"serial without a reason", []Change{
			{Proof: &Proof{"v", "a", "", "passed", 1}}, {Class: &Class{ID: "a", Lane: "parallel", MaxInFlight: 1}},
			{At: at(1), Job: job("queued", 1, 0)}, {At: at(50), Attempt: start(1, 1, "serial")},
		}, []Rule{RuleRoute}},
		{"a promotion without a proof", []Change{{Class: &Class{ID: "a", Lane: "parallel", MaxInFlight: 1}}}, []Rule{RuleProof}},
		{"two attempts of one job", []Change{
			{At: at(1), Job: job("queued", 1, 0)}, {At: at(50), Attempt: start(1, 1, "serial")}, {At: at(51), Attempt: start(1, 2, "serial")},
		}, []Rule{RuleOutcome, RuleSerial, RuleClass}},
		{"a width that nobody knows", []Change{{Lane: &Lane{Name: "serial"}}, {At: at(1), Job: job("queued", 1, 0)}, {At: at(50), Attempt: start(1, 1, "serial")}}, []Rule{RuleNotJudged}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := newJudge(History{Before: before, Changes: tt.changes, OrderSlack: 5 * time.Millisecond})
			j.sweep()
			var got []Rule
			for _, v := range j.found {
				if v.Rule != RuleFinal && !slices.Contains(got, v.Rule) { // the history breaks off
					got = append(got, v.Rule)
				}
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

func TestReadMarks(t *testing.T) {
	got, err := ReadMarks("start a j1 1 1796000000000000005\nbeside a j1 1 1796000000000000007 j0.2\n")
	at := func(ns int64) time.Time { return time.Unix(1796000000, ns).UTC() }
	want := []Mark{
		{Ref: Ref{"j1", 1}, Kind: MarkStart, At: at(5)},
		{Ref: Ref{"j1", 1}, Kind: MarkBeside, At: at(7), Other: Ref{"j0", 2}},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, torn := range []string{"start a j1 1 17", "start a j1 17\n", "start a j1 x 17\n", "start a j1 1 x\n", "beside a j1 1 17\n", "start a j1 1 17 j0.2\n", "beside a j1 1 17 j0\n", "\n"} {
		if got, err := ReadMarks(torn); err == nil {
			t.Errorf("%q was read as %v", torn, got)
		}
	}
}

// A job that only one process may run fails when its run is cut off: nobody else is
// there to start it again.
func TestCheckKnowsThatSomeJobsAreRunOnTheSpot(t *testing.T) {
	for _, outcome := range []lanegate.Outcome{lanegate.Lost, lanegate.Interrupted} {
		h := History{
			NoLog:    true,
			Jobs:     []Job{{ID: "j", State: lanegate.StateFailed, Attempts: 1, Worker: "w1"}},
			Attempts: []Attempt{{Job: "j", Number: 1, Worker: "w1", Outcome: outcome}},
		}
		if found := Check(h); len(found) > 0 {
			t.Errorf("%s: %v", outcome, found)
		}
		if h.Jobs[0].Worker = ""; len(Check(h)) == 0 {
			t.Errorf("%s: nothing is said of a job that anybody may run", outcome)
		}
	}
}

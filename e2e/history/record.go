package history

import (
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// deathsAllowed is how many lost attempts end a job: it may be what kills workers.
const deathsAllowed = 5

// fromRows takes from the rows when attempts began and ended.
func (j *judge) fromRows() {
	for _, a := range j.Attempts {
		if _, ok := j.starts[a.ref()]; ok {
			j.fault(RuleOutcome, "attempt %v has two rows", a.ref())
		}
		row := a
		j.starts[a.ref()] = Change{At: a.StartedAt, Attempt: &row}
		if a.Outcome != "" {
			j.ends[a.ref()] = Change{At: a.EndedAt, Attempt: &row}
		}
	}
}

// rows compares the rows at the end with what was promised and with the log.
func (j *judge) rows() {
	jobs, keys := map[string]Job{}, map[[2]string]string{}
	for _, job := range j.Jobs {
		jobs[job.ID] = job
		if !job.State.Final() {
			j.fault(RuleFinal, "job %s is %s", job.ID, job.State)
		}
		if job.Key == "" {
			continue
		}
		of := [2]string{job.Client, job.Key}
		if first, ok := keys[of]; ok {
			j.fault(RuleKey, "jobs %s and %s both have the key %q", first, job.ID, job.Key)
		}
		keys[of] = job.ID
	}
	told := map[[2]string]string{}
	for _, a := range j.Accepted {
		if _, ok := jobs[a.Job]; !ok {
			j.fault(RuleLost, "job %s was accepted (key %q), the database doesn't have it", a.Job, a.Key)
		}
		if a.Key == "" {
			continue
		}
		of := [2]string{a.Client, a.Key}
		if first, ok := told[of]; ok && first != a.Job {
			j.fault(RuleKey, "the key %q was answered with job %s and with job %s", a.Key, first, a.Job)
		}
		told[of] = a.Job
	}
	byJob := j.attempts(jobs)
	j.early(byJob)
	if !j.NoLog {
		j.log()
	}
	for _, job := range j.Jobs {
		j.outcome(job, byJob[job.ID])
	}
}

// attempts compares the attempts' rows with the log of changes.
func (j *judge) attempts(jobs map[string]Job) map[string][]Attempt {
	byJob, rows := map[string][]Attempt{}, map[Ref]bool{}
	for _, a := range j.Attempts {
		ref := a.ref()
		byJob[a.Job] = append(byJob[a.Job], a)
		rows[ref] = true
		if _, ok := jobs[a.Job]; !ok {
			j.fault(RuleLost, "attempt %v is of a job that the database doesn't have", ref)
		}
		if _, ok := j.starts[ref]; !ok {
			j.fault(RuleNotJudged, "attempt %v is in no log of changes", ref)
			continue
		}
		if end, ok := j.ends[ref]; ok && end.Attempt.Outcome != a.Outcome {
			j.fault(RuleOutcome, "attempt %v ended as %s and is %s", ref, end.Attempt.Outcome, a.Outcome)
		}
	}
	for ref := range j.starts {
		if !rows[ref] {
			j.fault(RuleLost, "attempt %v has started and has no row", ref)
		}
	}
	return byJob
}

// early: no attempt of a job starts before the run_at that its client asked for, by
// the database's clock: when the start was decided, and when it was written.
func (j *judge) early(byJob map[string][]Attempt) {
	for _, accepted := range j.Accepted {
		if accepted.RunAt.IsZero() {
			continue
		}
		for _, a := range byJob[accepted.Job] {
			if a.StartedAt.Before(accepted.RunAt) {
				j.fault(RuleEarly, "attempt %v was started at %s, its job's run_at is %s", a.ref(), stamp(a.StartedAt), stamp(accepted.RunAt))
			}
			if start, ok := j.starts[a.ref()]; ok && start.At.Before(accepted.RunAt) {
				j.fault(RuleEarly, "the start of attempt %v was written at %s, its job's run_at is %s", a.ref(), stamp(start.At), stamp(accepted.RunAt))
			}
		}
	}
}

// log wants one row of the run log for each attempt with an outcome.
func (j *judge) log() {
	logged := map[Ref]Logged{}
	for _, l := range j.RunLog {
		if _, ok := logged[l.Ref]; ok {
			j.fault(RuleOutcome, "attempt %v is in the run log twice", l.Ref)
		}
		logged[l.Ref] = l
	}
	for _, a := range j.Attempts {
		l, ok := logged[a.ref()]
		delete(logged, a.ref())
		if ok != (a.Outcome != "") || l.Outcome != a.Outcome {
			j.fault(RuleOutcome, "attempt %v is %q, the run log says %q", a.ref(), a.Outcome, l.Outcome)
		}
	}
	for ref := range logged {
		j.fault(RuleOutcome, "attempt %v is in the run log only", ref)
	}
}

// outcome compares a job's final state with its attempts.
func (j *judge) outcome(job Job, attempts []Attempt) {
	slices.SortFunc(attempts, func(a, b Attempt) int { return a.Number - b.Number })
	if len(attempts) != job.Attempts {
		j.fault(RuleNumber, "job %s counts %d attempts and has %d", job.ID, job.Attempts, len(attempts))
	}
	count := map[lanegate.Outcome]int{}
	for i, a := range attempts {
		count[a.Outcome]++
		if a.Number != i+1 {
			j.fault(RuleNumber, "attempt %d of job %s has the number %d", i+1, job.ID, a.Number)
		}
		if a.Outcome == lanegate.Succeeded && i != len(attempts)-1 {
			j.fault(RuleOutcome, "job %s succeeded by attempt %d and was started again", job.ID, a.Number)
		}
	}
	if j.MustSucceed {
		j.success(job, attempts)
	}
	if succeeded := count[lanegate.Succeeded] > 0; succeeded != (job.State == lanegate.StateSucceeded) {
		j.fault(RuleOutcome, "job %s is %s, %d of its attempts succeeded", job.ID, job.State, count[lanegate.Succeeded])
	}
	if job.Verification != "" {
		return // made up, and never started again
	}
	if job.Worker != "" && count[lanegate.Lost]+count[lanegate.Interrupted] > 0 {
		return // nobody else may run it, so that it fails once it is cut off
	}
	if job.State == lanegate.StateFailed && count[lanegate.Failed]+count[lanegate.TimedOut] == 0 && count[lanegate.Lost] < deathsAllowed {
		j.fault(RuleState, "job %s failed, though no attempt did and only %d were lost", job.ID, count[lanegate.Lost])
	}
}

// cutOff are the outcomes of attempts that ended before their runs did, or before
// these had begun.
var cutOff = []lanegate.Outcome{lanegate.Lost, lanegate.Interrupted, lanegate.Deferred}

// success wants a job to succeed, or to be given up because it may be what kills
// its workers.
func (j *judge) success(job Job, attempts []Attempt) {
	if job.State != lanegate.StateSucceeded && job.State != lanegate.StateFailed {
		j.fault(RuleState, "job %s ended as %s", job.ID, job.State)
	}
	for _, a := range attempts {
		if a.Outcome != lanegate.Succeeded && !slices.Contains(cutOff, a.Outcome) {
			j.fault(RuleOutcome, "attempt %v is %q, those that were cut off are %v", a.ref(), a.Outcome, cutOff)
		}
	}
}

// lived is what a run's own record says of it.
type lived struct {
	kinds       map[string]int
	first, last time.Time
	lane        string
}

// record compares the jobs' own record with the database.
func (j *judge) record() {
	runs := map[Ref]*lived{}
	attempts := map[Ref]Attempt{}
	for _, a := range j.Attempts {
		attempts[a.ref()] = a
	}
	for _, m := range j.Marks {
		if _, ok := attempts[m.Ref]; !ok {
			j.fault(RuleRecord, "%v wrote %q, the database doesn't know that attempt", m.Ref, m.Kind)
			continue
		}
		r := runs[m.Ref]
		if r == nil {
			r = &lived{kinds: map[string]int{}, first: m.At, last: m.At, lane: attempts[m.Ref].Lane}
			if attempts[m.Ref].Verification != "" {
				r.lane = "" // bounded by its plan
			}
			runs[m.Ref] = r
		}
		if m.At.Before(r.first) {
			r.first = m.At
		}
		if m.At.After(r.last) {
			r.last = m.At
		}
		r.kinds[m.Kind]++
		switch m.Kind {
		case MarkBeside:
			j.beside(m, attempts)
		case MarkOverlap:
			j.fault(RuleSerial, "%v found the lock taken that it should have had", m.Ref)
		}
	}
	for ref, r := range runs {
		j.inside(ref, *r)
	}
	j.serial(runs)
	j.succeeded(runs)
	j.cuts(attempts)
}

// beside judges two process trees that were alive at once.
func (j *judge) beside(m Mark, attempts map[Ref]Attempt) {
	me, other := attempts[m.Ref], attempts[m.Other]
	switch {
	case m.Ref.Job == m.Other.Job:
		j.fault(RuleInside, "%v found %v of the same job alive", m.Ref, m.Other)
	case me.Lane == lanegate.LaneSerial && other.Lane == lanegate.LaneSerial && me.Verification == "" && other.Verification == "":
		j.fault(RuleSerial, "%v found the process tree of %v alive, both in serial", m.Ref, m.Other)
	}
	// Where both attempts are in flight their limits were judged at their starts.
	start, started := j.starts[m.Ref]
	if end, ok := j.ends[m.Other]; ok && started && end.At.Before(start.At) {
		j.fault(RuleInside, "%v found %v alive, whose outcome %s was written before", m.Ref, m.Other, end.Attempt.Outcome)
	}
}

// inside: a run starts once, after its grant, and is over when its outcome is written.
func (j *judge) inside(ref Ref, r lived) {
	if r.kinds[MarkStart] > 1 || r.kinds[MarkEnd] > 1 {
		j.fault(RuleRecord, "%v started %d times and ended %d times", ref, r.kinds[MarkStart], r.kinds[MarkEnd])
	}
	if r.kinds[MarkStart] == 0 {
		j.fault(RuleRecord, "%v wrote something and no start", ref)
	}
	start, ok := j.starts[ref]
	if ok && r.first.Add(j.ClockSlack).Before(start.At) {
		j.fault(RuleInside, "%v ran at %s, before it was granted at %s", ref, stamp(r.first), stamp(start.At))
	}
	if end, ok := j.ends[ref]; ok && r.last.Add(-j.ClockSlack).After(end.At) {
		j.fault(RuleInside, "%v still ran at %s, its outcome %s was written at %s", ref, stamp(r.last), end.Attempt.Outcome, stamp(end.At))
	}
}

func stamp(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

// serial: by the runs' own clock, no two of that lane at once.
func (j *judge) serial(runs map[Ref]*lived) {
	var in []Ref
	for ref, r := range runs {
		if r.lane == lanegate.LaneSerial {
			in = append(in, ref)
		}
	}
	slices.SortFunc(in, func(a, b Ref) int { return runs[a].first.Compare(runs[b].first) })
	var before Ref // the one that lived longest so far
	for i, ref := range in {
		if i > 0 && runs[ref].first.Before(runs[before].last) {
			j.fault(RuleSerial, "%v ran from %s, %v until %s, both in serial", ref, stamp(runs[ref].first), before, stamp(runs[before].last))
		}
		if i == 0 || runs[ref].last.After(runs[before].last) {
			before = ref
		}
	}
}

// succeeded: what the database calls a success did run, once and to its end.
func (j *judge) succeeded(runs map[Ref]*lived) {
	whole := j.Whole
	if len(whole) == 0 {
		whole = []string{MarkStart, MarkEnd}
	}
	for _, a := range j.Attempts {
		if a.Outcome != lanegate.Succeeded {
			continue
		}
		r := runs[a.ref()]
		for _, kind := range whole {
			if r == nil || r.kinds[kind] != 1 {
				j.fault(RuleRecord, "%v succeeded, its own record doesn't have one line %q", a.ref(), kind)
			}
		}
	}
}

// cuts: no run outlives its worker's lease when the worker is cut off.
func (j *judge) cuts(attempts map[Ref]Attempt) {
	for _, m := range j.Marks {
		worker := attempts[m.Ref].Worker
		for _, c := range j.Cuts {
			if c.Worker == worker && m.At.After(c.From.Add(j.Lease)) && m.At.Before(c.To) {
				j.fault(RuleCut, "%v was alive %v after its worker was cut off, the lease is %v", m.Ref, m.At.Sub(c.From), j.Lease)
			}
		}
	}
}

package runlog

import (
	"strings"
)

// entry is one row of a log as a reader found it.
type entry struct {
	line                                   int
	class                                  string
	submitted, eligible, started, finished instant
	took                                   int64
	hasTook                                bool
	// repeat: a second or later attempt of something submitted once.
	repeat bool
	// id and attempt are what the log calls the run and its attempt, "" when nothing.
	id, attempt string
	// status and exit are what the log says about the result, "" when nothing.
	status, exit string
	// at finds the column of a role, for sentences about the row.
	at func(role) int
}

func (e *entry) fault(r role, reason, detail string) fault {
	return fault{line: e.line, column: e.at(r), reason: reason, detail: detail}
}

// builder turns entries into runs and accounts for each.
type builder struct {
	log      *Log
	account  *Account
	statuses int // rows that say how their run ended
	// count, when set, is told of every row.
	count func()
	// each, when set, gets the runs instead of the log.
	each *sink
}

// row counts a row in; every row then ends in exactly one of: used, unfinished,
// never started, a step, dropped.
func (b *builder) row() {
	b.account.Rows++
	if b.count != nil {
		b.count()
	}
}

// add takes an entry in, or counts it out. An error ends the reading.
func (b *builder) add(e *entry) error {
	run, f, ok := b.run(e)
	if f.reason != "" {
		b.account.drop(f)
		return nil
	}
	if !ok {
		return nil
	}
	name := strings.TrimSpace(e.class)
	if name == "" {
		b.account.drop(e.fault(roleClass, "the row names no class", ""))
		return nil
	}
	class, err := b.log.class(name)
	if err != nil {
		return e.fault(roleClass, err.Error(), "").err(b.account.File)
	}
	if f := b.each.refuses(e, run); f.reason != "" {
		b.account.drop(f)
		return nil
	}
	run.Class = class
	if e.status != "" || e.exit != "" {
		b.statuses++
	}
	run.Result = resultOf(e.status)
	if e.status == "" {
		run.Result = resultOfExit(e.exit)
	}
	b.account.Used++
	if b.each != nil {
		return b.each.take(e, run, b.log.Classes[class])
	}
	b.log.Runs = append(b.log.Runs, run)
	b.log.sorted = false
	return nil
}

// run settles the times of an entry. It is false for a run that has not ended;
// a fault with a reason is a row to drop.
func (b *builder) run(e *entry) (Run, fault, bool) {
	submitted, eligible, started := e.times()
	r := Run{HasReady: e.submitted.ok, HasStart: e.started.ok}
	ended := e.finished.ok || (e.hasTook && !open(e.status)) // a duration may be the one so far
	switch {
	case e.finished.ok && e.started.ok:
		finished := e.finished.after(started + clockTolerance)
		if finished < started {
			return r, e.fault(roleFinished, "it ends before it starts", ""), false
		}
		r.Took = finished - started
	case ended && e.hasTook && (e.started.ok || e.submitted.ok):
		r.Took = e.took
	case e.hasTook && e.finished.ok:
		started = e.finished.early - e.took
		r.Took, r.HasStart = e.took, true
	case e.finished.ok && !e.started.ok, !e.started.ok && e.submitted.ok:
		b.account.NeverStarted++
		return r, fault{}, false
	case e.started.ok:
		b.account.Unfinished++
		return r, fault{}, false
	default:
		return r, e.fault(roleStarted, "the row has no time", ""), false
	}
	if r.Took > maxTook {
		return r, e.fault(roleFinished, "it ran for more than ten years", ""), false
	}
	r.Start, r.Ready = started, started
	if !r.HasReady {
		return r, fault{}, true
	}
	return b.waited(e, r, submitted, eligible)
}

// waited settles since when a run with a submission was waiting.
func (b *builder) waited(e *entry, r Run, submitted, eligible int64) (Run, fault, bool) {
	if e.repeat && !e.eligible.ok {
		b.account.Repeats++
		r.HasReady = false
		if !r.HasStart {
			r.Ready, r.Start = submitted, submitted
		}
		return r, fault{}, true
	}
	r.Ready = submitted
	if e.eligible.ok && eligible > submitted && (!r.HasStart || eligible <= r.Start) {
		r.Ready = eligible
	}
	if !r.HasStart {
		r.Start = r.Ready
		return r, fault{}, true
	}
	switch early := r.Ready - r.Start; {
	case early > clockTolerance:
		return r, e.fault(roleStarted, "it starts more than 2 s before it was submitted", ""), false
	case early > 0:
		b.account.Clamped++
		r.Ready = r.Start
	}
	return r, fault{}, true
}

// times settles local times that stand for two points in time: each is the
// earliest that does not lie before the one it follows.
func (e *entry) times() (submitted, eligible, started int64) {
	last := int64(minTime)
	settle := func(i instant) int64 {
		if !i.ok {
			return 0
		}
		last = i.after(last)
		return last
	}
	submitted = settle(e.submitted)
	if e.eligible.ok {
		eligible = e.eligible.after(submitted)
	}
	started = settle(e.started)
	return submitted, eligible, started
}

// open says whether a status is that of a run that has not ended.
func open(status string) bool {
	switch strings.ToLower(strings.TrimSpace(status)) {
	case "pending", "queued", "running", "processing", "submitted", "created", "scheduled", "waiting", "in_progress", "started", "new":
		return true
	}
	return false
}

// resultOf reads the words that schedulers write for a result.
func resultOf(status string) Result {
	word, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(status)), " ") // "CANCELLED by 1000"
	switch strings.TrimRight(word, "+") {
	case "", "success", "succeeded", "succeed", "successful", "completed", "complete", "ok", "done", "finished", "passed", "pass", "0", "true":
		return Good
	case "failed", "fail", "failure", "error", "errored", "timeout", "timed_out", "timedout", "node_fail", "out_of_memory",
		"oom", "preempted", "boot_fail", "deadline", "lost", "crashed", "dead", "upstream_failed", "startup_failure", "false", "1":
		return Failure
	case "cancelled", "canceled", "revoked", "aborted", "killed", "interrupted", "removed", "skipped":
		return Cancelled
	}
	return Other
}

// resultOfExit reads an exit code, or Slurm's code:signal.
func resultOfExit(exit string) Result {
	code, signal, _ := strings.Cut(strings.TrimSpace(exit), ":")
	code = strings.TrimSuffix(code, ".0") // a column of floats
	if (code == "" || code == "0" || noTimes[strings.ToLower(code)]) && (signal == "" || signal == "0") {
		return Good
	}
	return Failure
}

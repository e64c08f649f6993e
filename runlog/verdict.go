package runlog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// judge reaches the verdict. The order of the questions is its logic:
//
//  1. Is there enough to tell? Otherwise: the log can't tell.
//  2. Does anybody wait longer than tolerable? By the recorded waits where the log
//     was not one line, else by its replay in one line. If not: leave it alone; or
//     fix failures first, when a class dies early.
//  3. Do long classes make the others wait, and does a lane of their own help the
//     others? Then isolate (one class) or separate (several); but when such a
//     class dies early, fix failures first, because runs that end early come back.
//  4. Otherwise there is too much at a time for one line: add workers.
func (a *analysis) judge() {
	v := &a.report.Verdict
	*v = Verdict{Kind: a.kind, Reasons: []string{}, Classes: []string{}, Verify: []Candidate{}, LeftOut: []LeftOut{}, Next: []string{}}
	a.mend()
	a.sortClasses()
	switch v.Kind {
	case LeaveAlone:
		a.leaveAlone()
	case Isolate, Separate:
		a.isolateOrSeparate()
	case FixFailures:
		a.fixFailures(a.dying())
	case AddWorkers:
		a.addWorkers()
	default:
		a.cannotTell()
	}
}

// decide answers the questions above; the classes to verify follow from it.
func (a *analysis) decide() string {
	dying := a.dying()
	switch {
	case !a.anybodyWaits() && len(dying) > 0:
		return FixFailures
	case !a.anybodyWaits():
		return LeaveAlone
	case a.isolationHelps() && !a.anyOf(dying, a.heavy):
		if len(a.heavy) > 1 {
			return Separate
		}
		return Isolate
	case len(dying) > 0:
		return FixFailures
	}
	return AddWorkers
}

func (a *analysis) because(format string, args ...any) {
	a.report.Verdict.Reasons = append(a.report.Verdict.Reasons, fmt.Sprintf(format, args...))
}

func (a *analysis) next(format string, args ...any) {
	a.report.Verdict.Next = append(a.report.Verdict.Next, fmt.Sprintf(format, args...))
}

// mend lists what to look at for its own sake, by busy time.
func (a *analysis) mend() {
	for i := range a.report.Classes {
		if why := a.report.Classes[i].mend(); len(why) > 0 {
			a.report.Mend = append(a.report.Mend, Mend{Class: a.report.Classes[i].Class, Why: why})
		}
	}
	busy := map[string]float64{}
	for i := range a.report.Classes {
		busy[a.report.Classes[i].Class] = a.report.Classes[i].BusyHours
	}
	slices.SortStableFunc(a.report.Mend, func(x, y Mend) int { return cmp.Compare(busy[y.Class], busy[x.Class]) })
}

// sortClasses puts the classes with the most run time first. Until then they are
// parallel to the log's.
func (a *analysis) sortClasses() {
	slices.SortStableFunc(a.report.Classes, func(x, y ClassReport) int { return cmp.Compare(y.BusyHours, x.BusyHours) })
}

// dying names the classes that die early, in enough runs to be sure, and matter: a
// twentieth of all runs or of the busy time.
func (a *analysis) dying() []ClassReport {
	var list []ClassReport
	for _, c := range a.report.Classes {
		if c.DiesEarly != nil && c.Runs >= minRuns && (c.BusyShare >= 0.05 || 20*c.Runs >= len(a.log.Runs)) {
			list = append(list, c)
		}
	}
	return list
}

func (a *analysis) anyOf(dying []ClassReport, classes []int) bool {
	return slices.ContainsFunc(dying, func(c ClassReport) bool {
		return slices.ContainsFunc(classes, func(i int) bool { return a.log.Classes[i] == c.Class })
	})
}

// asRecorded says whether the log's own waits are to be judged: it has them, and
// it was not one line, so that its replay in one is only a thought.
func (a *analysis) asRecorded() bool { return a.report.Recorded != nil && !a.report.Load.OneLine }

// anybodyWaits says whether a hundredth of all jobs, or a tenth of those of some
// class, wait longer than tolerable.
func (a *analysis) anybodyWaits() bool {
	tolerable := a.opts.Tolerable.Seconds()
	if a.asRecorded() {
		return a.report.Recorded.P99 > tolerable || slices.ContainsFunc(a.report.Classes, func(c ClassReport) bool {
			return c.Recorded != nil && c.Recorded.N >= 5 && c.Recorded.P90 > tolerable
		})
	}
	line := a.layouts[layoutOneLine]
	return line.Waits.P99 > tolerable || slices.ContainsFunc(line.Classes, func(c ClassWaits) bool {
		return c.N >= 5 && c.P90 > tolerable
	})
}

func (a *analysis) cannotTell() {
	v := &a.report.Verdict
	v.Kind = CannotTell
	if n := len(a.log.Runs); n < minRuns {
		v.Sentence = "The log can't tell: it has too few finished runs."
		a.because("%s; at least %d are needed", count(n, "finished run", "finished runs"), minRuns)
		a.next("Log a week or more and ask again.")
		return
	}
	v.Sentence = "The log can't tell: it does not say when jobs were submitted."
	a.because("without submit times nobody can know who waited, and for whom")
	a.next("Log when each job was submitted (or was due), beside its start and end, and ask again.")
}

func (a *analysis) leaveAlone() {
	v, l := &a.report.Verdict, &a.report.Load
	tolerable := human(a.opts.Tolerable.Seconds())
	if a.asRecorded() {
		w := a.report.Recorded
		v.Sentence = "Leave it alone: as it ran, hardly anybody waited."
		a.because("recorded waits: %s (tolerable: %s)", halfAndMost(w.Spread), tolerable)
		a.because("up to %d at once; the load of one line would have been %s", l.MostAtOnce, l.Words())
		return
	}
	w := a.layouts[layoutOneLine].Waits
	v.Sentence = "Leave it alone: one line is enough; separate lanes would be over-engineering."
	a.because("in one line 99 %% of the jobs %s, none over %s (tolerable: %s)", waitUnder(w.P99), human(w.Max), tolerable)
	if l.known() {
		a.because("the line is busy %s of the time", percent(l.Rho))
	}
	if !a.report.Mix.Split {
		a.because("the durations are one group, not short jobs beside long ones")
	}
}

func (a *analysis) fixFailures(dying []ClassReport) {
	v := &a.report.Verdict
	for _, c := range dying {
		v.Classes = append(v.Classes, c.Class)
		a.because("%s: %s of %s fail %s; good runs take %s",
			c.Class, grouped3(c.DiesEarly.Runs), count(c.Runs, "run", "runs"), soon(c.DiesEarly.FailedMedian), human(c.DiesEarly.GoodMedian))
	}
	v.Sentence = fmt.Sprintf("Fix failures first: %s dies early in %s of its runs. That is no reason for a lane.",
		dying[0].Class, percent(dying[0].DiesEarly.Share))
	a.next("Find out why these runs fail, then ask again with a new log.")
}

// enoughWorkers is the fewest workers with which hardly anybody waits, and the waits
// then; where all that were tried are too few, at least so many that the load of each
// is under 1, with the waits of the most that were tried.
func (a *analysis) enoughWorkers() (n int, best Waits) {
	for n := 2; n <= maxWorkers; n++ {
		if best = a.layouts[layoutWorkers+strconv.Itoa(n)].Waits; best.P99 <= a.opts.Tolerable.Seconds() {
			return n, best
		}
	}
	return max(2, int(math.Floor(a.report.Load.Rho))+1), best
}

// addWorkers recommends enoughWorkers, and the classes to begin with.
func (a *analysis) addWorkers() {
	v, l := &a.report.Verdict, &a.report.Load
	tolerable := a.opts.Tolerable.Seconds()
	line := a.layouts[layoutOneLine].Waits
	var best Waits
	v.Workers, best = a.enoughWorkers()
	a.because("in one line half of the jobs wait over %s, 1 %% over %s (load %s)", human(line.P50), human(line.P99), l.Words())
	if a.asRecorded() {
		a.because("as it ran, up to %d at once: half over %s, 1 %% over %s", l.MostAtOnce, human(a.report.Recorded.P50), human(a.report.Recorded.P99))
	}
	a.crowd()
	if best.P99 > tolerable {
		v.Sentence = fmt.Sprintf("Add workers, not lanes: at least %d; even %d leave some long waits.", v.Workers, maxWorkers)
		if v.Workers > maxWorkers {
			v.Sentence = fmt.Sprintf("Add workers, not lanes: this much work needs at least %d.", v.Workers)
		} else {
			w := a.layouts[layoutWorkers+strconv.Itoa(v.Workers)].Waits
			a.because("with %d workers half of the jobs wait over %s, 1 %% over %s", v.Workers, human(w.P50), human(w.P99))
		}
		a.because("with %d workers 1 %% still wait over %s", maxWorkers, human(best.P99))
	} else {
		v.Sentence = fmt.Sprintf("Add workers, not lanes: with %d of them hardly anybody waits.", v.Workers)
		a.because("with %d workers 99 %% %s", v.Workers, waitUnder(best.P99))
	}
	if l.Dispersion >= 2 {
		a.because("jobs come in bursts (dispersion %s; 1 is no bursts), up to %s of work in one hour", digits3(l.Dispersion), human(l.BusiestHour*3600))
	}
	for _, c := range a.candidates {
		v.Verify = append(v.Verify, a.candidate("peer", c))
	}
	a.littleInAll()
	a.next("Workers side by side need classes that may run side by side, with others and with themselves.")
	a.nextVerify()
}

// crowd says why no lane of its own would do.
func (a *analysis) crowd() {
	if l := &a.report.Load; a.overloaded() {
		a.because("one line could never carry this log: a load of 1 is all that it can do, and %s came", digits3(l.Rho))
	}
	if len(a.heavy) > 0 {
		before, after := a.others(layoutOneLine), a.others(layoutIsolate)
		a.because("a lane of its own for %s would not be enough: 1 %% of the other jobs would wait over %s instead of %s",
			a.names(a.heavy), human(after.P99), human(before.P99))
	} else {
		a.because("no class stands out: long ones are not what the others wait for")
	}
	for i := range a.report.Classes {
		c := &a.report.Classes[i]
		if own := c.OwnShare; a.asRecorded() && own != nil && *own >= 0.9 && c.MostAtOnce == 1 &&
			c.Recorded.P90 > a.opts.Tolerable.Seconds() {
			a.because("%s waited for itself: %s of its waiting was while its own one run was on", c.Class, percent(*own))
		}
	}
}

// overloaded says whether more work came than one line can do, in a log that was
// not one line: a replay in one then only tells how far behind it would be.
func (a *analysis) overloaded() bool { return a.report.Load.Rho >= 1 && !a.report.Load.OneLine }

// isolationHelps says whether a lane of their own for the heavy classes brings the
// waits of all other jobs (99 of 100) to what is tolerable; to a tenth is enough
// where one line could carry the log at all.
func (a *analysis) isolationHelps() bool {
	if len(a.heavy) == 0 {
		return false
	}
	before, after := a.others(layoutOneLine), a.others(layoutIsolate)
	return after.P99 <= a.opts.Tolerable.Seconds() || (!a.overloaded() && after.P99 <= before.P99/10)
}

// others is the waits of all jobs but the heavy classes' under a layout.
func (a *analysis) others(name string) Spread {
	starts := a.layouts[name].starts
	var waits []int64
	for i := range a.log.Runs {
		if r := &a.log.Runs[i]; !slices.Contains(a.heavy, int(r.Class)) {
			waits = append(waits, starts[i]-r.Ready)
		}
	}
	return spread(waits)
}

// isolateOrSeparate recommends a lane of its own for the one long class, or
// parallel for those that wait for several.
func (a *analysis) isolateOrSeparate() {
	v := &a.report.Verdict
	worst := a.log.Classes[a.heavy[0]]
	for _, h := range a.heavy {
		v.Classes = append(v.Classes, a.log.Classes[h])
	}
	v.Sentence = fmt.Sprintf("Isolate %s: it makes the others wait.", worst)
	if v.Kind == Separate {
		v.Sentence = fmt.Sprintf("Separate long from short: %s make the others wait.", a.names(a.heavy))
	}
	a.explainHeavy()
	if v.Kind == Isolate {
		v.Verify = append(v.Verify, a.blocker())
	}
	for _, c := range a.candidates {
		v.Verify = append(v.Verify, a.candidate("victim", c))
	}
	if v.Kind == Separate {
		a.littleInAll()
	}
	before, after := a.others(layoutOneLine), a.others(layoutIsolate)
	a.because("with %s in a lane of its own 1 %% of the other jobs would wait over %s, not %s", a.names(a.heavy), human(after.P99), human(before.P99))
	if two, ok := a.layouts[layoutWorkers+"2"]; ok {
		line := a.layouts[layoutOneLine].Waits
		a.because("2 workers for everything would bring the waits of 1 %% from %s to %s", human(line.P99), human(two.Waits.P99))
	}
	a.nextVerify()
}

func (a *analysis) explainHeavy() {
	for _, h := range a.heavy[:min(3, len(a.heavy))] {
		i := slices.IndexFunc(a.report.Blockers, func(b Blocker) bool { return b.Class == a.log.Classes[h] })
		b := a.report.Blockers[i]
		a.because("%s causes %s of all waiting for others: %s of jobs waiting in %s",
			b.Class, percent(b.Share), count(int(math.Round(b.Harm)), "hour", "hours"), daysText(a.report.Span.Days))
	}
	if len(a.candidates) > 0 {
		c := a.log.Classes[a.candidates[0]]
		w := a.layouts[layoutOneLine].of(c)
		i := slices.IndexFunc(a.report.Classes, func(r ClassReport) bool { return r.Class == c })
		a.because("%s takes %s and waits up to %s", c, human(a.report.Classes[i].typical().P50), human(w.Max))
	}
	if !a.report.Load.OneLine {
		if a.report.Load.MostAtOnce > 1 {
			a.because("the log was no single line (up to %d at once): this is what one line would do", a.report.Load.MostAtOnce)
		}
		if w := a.report.Recorded; w != nil {
			a.because("recorded waits: half over %s, 1 %% over %s", human(w.P50), human(w.P99))
		}
	}
}

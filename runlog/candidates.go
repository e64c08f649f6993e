package runlog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Bounds of the classes to verify first.
const (
	maxCandidates = 10 // that wait for long ones
	maxPeers      = 5  // for more workers
)

// choose finds the classes to verify for the kind of verdict, and keeps of every other
// class why it is not among them.
func (a *analysis) choose() {
	var fault func(class int) string
	var gain func(class int) float64
	most := maxCandidates
	switch a.kind {
	case Isolate, Separate:
		fault, gain = a.victimFault(), a.waitedForHeavy
	case AddWorkers:
		fault, gain, most = a.peerFault, func(class int) float64 { return a.layouts[layoutOneLine].of(a.log.Classes[class]).Hours }, maxPeers
	default:
		return
	}
	hours := make([]float64, len(a.groups))
	for class := range a.groups {
		if why := fault(class); why != "" {
			a.leaveOut(class, why)
			continue
		}
		hours[class] = gain(class)
		a.candidates = append(a.candidates, class)
	}
	slices.SortStableFunc(a.candidates, func(x, y int) int { return cmp.Compare(hours[y], hours[x]) })
	for len(a.candidates) > most {
		last := len(a.candidates) - 1
		a.leaveOut(a.candidates[last], fmt.Sprintf("waits less than the %d above; it is for later", most))
		a.candidates = a.candidates[:last]
	}
}

// leaveOut keeps why a class is not to be verified; the blocker of Isolate is.
func (a *analysis) leaveOut(class int, why string) {
	if a.kind == Isolate && class == a.heavy[0] {
		return
	}
	name := a.log.Classes[class]
	a.leftOut = append(a.leftOut, LeftOut{Class: name, Why: why, Hours: a.layouts[layoutOneLine].of(name).Hours})
}

func (a *analysis) leftOutSorted() []LeftOut {
	list := append([]LeftOut{}, a.leftOut...)
	slices.SortStableFunc(list, func(x, y LeftOut) int { return cmp.Compare(y.Hours, x.Hours) })
	return list
}

// fault says what is wrong with any class as a candidate, "" for nothing: at least
// five runs, and at most a fifth of them failed.
func (a *analysis) fault(class int) string {
	c := &a.report.Classes[class]
	switch {
	case a.named.names[a.named.slot[class]] != a.log.Classes[class]:
		return "has so little run time that it was not looked at alone"
	case c.Runs < 5:
		return "has fewer than 5 runs, too few to judge it by"
	case c.DiesEarly != nil:
		return fmt.Sprintf("dies early in %s of its runs; mend that first", percent(c.DiesEarly.Share))
	case c.Failed*5 > c.Runs:
		return fmt.Sprintf("fails %s of %s times; mend that first", grouped3(c.Failed), grouped3(c.Runs))
	}
	return ""
}

// victimFault judges classes as ones that the heavy ones make wait: sound, and short
// beside them.
func (a *analysis) victimFault() func(class int) string {
	least := int64(math.MaxInt64)
	for _, h := range a.heavy {
		least = min(least, lengthBiased(a.groups[h].runs))
	}
	return func(class int) string {
		why := a.fault(class)
		switch {
		case slices.Contains(a.heavy, class):
			return "stays in serial: it is one of those that the others wait for"
		case why != "":
			return why
		case 10*lengthBiased(a.groups[class].runs) > least:
			return "has runs that are long themselves, and would be in the way of the others again"
		case a.waitedForHeavy(class) == 0:
			return "does not wait for " + a.names(a.heavy)
		}
		return ""
	}
}

// waitedForHeavy is how long the jobs of a class wait for the heavy ones in one line,
// in microseconds.
func (a *analysis) waitedForHeavy(class int) float64 {
	waited := 0.0
	for _, h := range a.heavy {
		if row := a.matrix.hours[a.named.slot[h]]; row != nil {
			waited += row[a.named.slot[class]]
		}
	}
	return waited
}

// peerFault judges classes as ones to run beside others and themselves: sound, and
// waiting.
func (a *analysis) peerFault(class int) string {
	if why := a.fault(class); why != "" {
		return why
	}
	if a.layouts[layoutOneLine].of(a.log.Classes[class]).Hours <= 0 {
		return "does not wait"
	}
	return ""
}

// blocker is what giving the heavy class a lane of its own would do.
func (a *analysis) blocker() Candidate {
	before, after := a.layouts[layoutOneLine].Waits, a.layouts[layoutIsolate].Waits
	class := a.log.Classes[a.heavy[0]]
	c := Candidate{Class: class, Role: "blocker", Layout: layoutIsolate, Before: before.Spread, After: after.Spread, Warnings: a.warnings(class)}
	a.effect(&c, before.Hours, after.Hours)
	return c
}

// candidate is what the promotion of the candidates would do for one of them.
func (a *analysis) candidate(role string, i int) Candidate {
	class := a.log.Classes[i]
	before, after := a.layouts[layoutOneLine].of(class), a.layouts[layoutPromote].of(class)
	c := Candidate{Class: class, Role: role, Layout: layoutPromote, Before: before.Spread, After: after.Spread, Warnings: a.warnings(class)}
	a.effect(&c, before.Hours, after.Hours)
	return c
}

// effect fills in what is to be expected, from the hours waited before and after: of
// all jobs for a blocker, else of the class. It is little when
//
//   - the waits were tolerable before (99 of 100),
//   - less than a tenth of them goes, or
//   - for a peer, whose promotion is to shorten the line, what goes is less than a
//     hundredth of all waiting.
func (a *analysis) effect(c *Candidate, before, after float64) {
	c.Saved = round(before-after, 1e3)
	all := a.layouts[layoutOneLine].Waits.Hours
	goes := percent(max(0, c.Saved) / max(before, 1e-9))
	whose := "its waiting"
	if c.Role == "blocker" {
		whose = "all waiting"
	}
	ofAll := ""
	if c.Role != "blocker" && all > 0 {
		ofAll = fmt.Sprintf(", which is %s of all waiting", percent(max(0, c.Saved)/all))
	}
	still := halfAndMost(c.After) + " then"
	c.Little = true
	switch {
	case c.Before.P99 <= a.opts.Tolerable.Seconds():
		c.Effect = fmt.Sprintf("brings little: 99 %% of its jobs %s in one line already", waitUnder(c.Before.P99))
	case c.Saved <= 0:
		c.Effect = "brings nothing: " + still
	case c.Saved < 0.1*before:
		c.Effect = fmt.Sprintf("brings little: %s of %s goes; %s", goes, whose, still)
	case c.Role == "peer" && c.Saved < 0.01*all:
		c.Effect = fmt.Sprintf("brings little: %s of its waiting goes%s", goes, ofAll)
	default:
		c.Little = false
		c.Effect = fmt.Sprintf("takes off %s of %s%s; %s", goes, whose, ofAll, still)
	}
}

// littleInAll says so when the classes to verify, all together, take off less than a
// tenth of all waiting, and which of the others wait instead.
func (a *analysis) littleInAll() {
	then, ok := a.layouts[layoutPromote]
	if !ok {
		return
	}
	before, after := a.layouts[layoutOneLine].Waits, then.Waits
	saved := before.Hours - after.Hours
	if saved >= 0.1*before.Hours {
		return
	}
	s := fmt.Sprintf("verifying and promoting what can be verified brings little: %s of all waiting goes, half of all jobs still wait over %s",
		percent(max(0, saved)/before.Hours), human(after.P50))
	if left := a.leftOutSorted(); len(left) > 0 && left[0].Hours > 0 {
		s += fmt.Sprintf("; %s of the waiting is that of %s, which %s", percent(left[0].Hours/before.Hours), left[0].Class, left[0].Why)
	}
	a.because("%s", s)
}

// leftOutReasons is LeftOut in sentences, one for each reason, with the first classes
// that it is true of; the reason of the class that waits most comes first.
func (v *Verdict) leftOutReasons() []string {
	const most = 4
	var order []string
	classes := map[string][]string{}
	for _, l := range v.LeftOut {
		if classes[l.Why] == nil {
			order = append(order, l.Why)
		}
		classes[l.Why] = append(classes[l.Why], l.Class)
	}
	list := make([]string, 0, len(order))
	for _, why := range order {
		names := classes[why]
		s := strings.Join(names[:min(most, len(names))], ", ")
		if more := len(names) - most; more > 0 {
			s += " and " + grouped3(more) + " more"
		}
		if len(names) > 1 {
			s += ", each"
		}
		list = append(list, s+": "+why)
	}
	return list
}

package runlog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lanegate/lanegate"
)

// maxWarnings bounds the hidden orders named beside a candidate.
const maxWarnings = 3

func (a *analysis) warnings(class string) []string {
	list := []string{}
	more := 0
	for _, o := range a.report.Order {
		if o.First != class && o.Then != class {
			continue
		}
		if len(list) == maxWarnings {
			more++
			continue
		}
		list = append(list, o.Sentence())
	}
	if more > 0 {
		list = append(list, "and "+count(more, "more pair", "more pairs")+" kept an order")
	}
	if len(a.opts.Resources) > 0 && a.opts.Units[class] == nil {
		list = append(list, "its units are not declared (--units); it counts as 1 of each resource")
	}
	return list
}

// nextVerify says what to do with the list: advice promotes nothing.
func (a *analysis) nextVerify() {
	v := &a.report.Verdict
	defer func() { v.LeftOut = a.leftOutSorted() }()
	if len(v.Verify) == 0 {
		a.next("No class is fit to be verified now; the report says of each why.")
		return
	}
	if v.Verify = a.stillInLine(v.Verify); len(v.Verify) == 0 {
		a.next("Nothing is left to verify: what would help runs outside serial already.")
		return
	}
	members := a.members()
	ids := classIDs(members)
	if a.opts.Present == nil {
		a.next("Nothing was changed. Register these classes as they are; they run in serial, one at a time, as before.")
	} else {
		a.next("Nothing was changed.")
	}
	what, copies := list(ids), 1
	if v.Kind == AddWorkers {
		what, copies = "two runs each of "+what, 2
	}
	v.Command, v.CLI = verifyCommand(ids, copies), verifyCLI(ids, copies)
	a.next("Verify: the command below starts %s side by side once, in a recorded experiment, and compares their results with what they do alone.", what)
	switch v.Kind {
	case Isolate:
		a.next("When that has passed, promote %s to a lane of its own of width 1; verify and promote the others to parallel after it, as far as you need.", ids[0])
	case AddWorkers:
		a.next("When that has passed, promote them to parallel, with as many at once as were proven; go on with more copies and more classes.")
	default:
		a.next("When that has passed, promote the short classes to parallel, one after the other; the long ones stay in serial.")
	}
	var renamed []string
	for i, name := range members {
		if ids[i] != name {
			renamed = append(renamed, quote(name)+" as "+ids[i])
		}
	}
	if len(renamed) > 0 {
		a.next("Class ids are of lower-case letters, digits, points, dashes and underscores, so the command writes %s.", strings.Join(renamed, ", "))
	}
}

// stillInLine leaves out the victims and peers that are outside serial already, and
// says where they are.
func (a *analysis) stillInLine(candidates []Candidate) []Candidate {
	lane := map[string]string{}
	for _, c := range a.apart() {
		lane[c.ID] = c.Lane
	}
	var gone []string
	kept := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool {
		if lane[c.Class] == "" {
			return false
		}
		gone = append(gone, c.Class+" ("+lane[c.Class]+")")
		a.leaveOut(int(a.log.index[c.Class]), "is outside serial already, in "+lane[c.Class])
		return true
	})
	if len(gone) > 0 {
		a.next("Outside serial already: %s. The layout \"present\" has the lanes as they are.", strings.Join(gone, ", "))
	}
	return kept
}

// members are the classes of the first verification run: the first to verify, with
// those that it would run beside.
func (a *analysis) members() []string {
	v := &a.report.Verdict
	var names []string
	if v.Kind == Separate { // which stays in serial, where the others will run beside it
		names = append(names, v.Classes[0])
	}
	for _, c := range v.Verify[:min(3, len(v.Verify))] {
		names = append(names, c.Class)
	}
	return names
}

// classIDs turns names from a log into different class ids; a name that is one
// stays.
func classIDs(names []string) []string {
	ids := make([]string, 0, len(names))
	for _, name := range names {
		id := classID(name)
		for n := 2; slices.Contains(ids, id); n++ {
			id = fmt.Sprintf("%s-%d", classID(name), n)
		}
		ids = append(ids, id)
	}
	return ids
}

func classID(name string) string {
	if lanegate.ValidSlug(name) {
		return name
	}
	id := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	const longest = 60 // leaves room for a number
	id = strings.Trim(id, "-._")
	if id = id[:min(longest, len(id))]; id == "" {
		return "class"
	}
	return id
}

// verifyCLI is the same verification run as verifyCommand's, by command line, in
// lines that fit the text report.
func verifyCLI(ids []string, copies int) string {
	const room = 70
	line, s := "lanegate verify", ""
	for _, word := range append(slices.Clone(ids), fmt.Sprintf("--copies %d", copies)) {
		if len(line)+1+len(word) > room {
			s, line = s+line+" \\\n", "   "
		}
		line += " " + word
	}
	return s + line
}

// verifyCommand is a shell command of lines that fit the text report. The ids are safe
// to stand in quotes.
func verifyCommand(ids []string, copies int) string {
	var s strings.Builder
	s.WriteString(`curl -X POST "$LANEGATE_URL/verification-runs" \
  -H "Authorization: Bearer $LANEGATE_TOKEN" \
  -H 'Content-Type: application/json' \
  -d '{"members": [`)
	for i, id := range ids {
		if i > 0 {
			s.WriteString(",")
		}
		between := " "
		if len(id) > 36 { // JSON minds no line breaks
			between = "\n     "
		}
		s.WriteString("\n    {\"class\":" + between + strconv.Quote(id) + "," + between + fmt.Sprintf(`"copies": %d}`, copies))
	}
	s.WriteString("]}'")
	return s.String()
}

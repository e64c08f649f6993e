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
		list = append(list, fmt.Sprintf("%s started after %s had ended in %d of %d cycles, held by the line in %d; is that by chance?",
			o.Then, o.First, o.Kept, o.Cycles, o.Held))
	}
	if more > 0 {
		list = append(list, fmt.Sprintf("and %d more pairs kept an order", more))
	}
	if len(a.opts.Resources) > 0 && a.opts.Units[class] == nil {
		list = append(list, "its units are not declared (--units); it counts as 1 of each resource")
	}
	return list
}

// nextVerify says what to do with the list: advice promotes nothing.
func (a *analysis) nextVerify() {
	v := &a.report.Verdict
	if len(v.Verify) == 0 {
		return
	}
	members := a.members()
	ids := classIDs(members)
	v.Command = verifyCommand(ids)
	a.next("Nothing was changed. Register these classes as they are; they run in serial, one at a time, as before.")
	a.next("Verify: the command below starts %s side by side once, in a recorded experiment, and compares their results with what they do alone.", list(ids))
	if v.Kind == Isolate {
		a.next("When that has passed, promote %s to a lane of its own of width 1; verify and promote the others to parallel after it, as far as you need.", ids[0])
	} else {
		a.next("When that has passed, promote the short classes to parallel, one after the other; the long ones stay in serial.")
	}
	for i, name := range members {
		if ids[i] != name {
			a.next("%q can't be a class id in lanegate, which has lower-case letters, digits, points and dashes; it is %s here.", name, ids[i])
		}
	}
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

// verifyCommand is a shell command of lines that fit the text report. The ids are safe
// to stand in quotes.
func verifyCommand(ids []string) string {
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
		s.WriteString("\n    {\"class\":" + between + strconv.Quote(id) + "," + between + `"copies": 1}`)
	}
	s.WriteString("]}'")
	return s.String()
}

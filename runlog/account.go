package runlog

import (
	"fmt"
	"slices"
	"strings"
)

// Account says what became of the rows of one file:
//
//	Rows = Used + Unfinished + NeverStarted + Steps + Σ Dropped
type Account struct {
	File   string `json:"file"`
	Format string `json:"format"`
	// Columns says which column of the file was taken for what.
	Columns map[string]string `json:"columns,omitempty"`
	Rows    int               `json:"rows"`
	// Used rows are in the analysis; Clamped and Repeats are among them.
	Used int `json:"used"`
	// Clamped: it started up to two seconds before it was submitted (two clocks,
	// or two precisions); taken as submitted when it started.
	Clamped int `json:"clamped"`
	// Repeats: a second or later attempt, whose submit time is that of the first;
	// its wait is not known.
	Repeats int `json:"repeats"`
	// Unfinished runs started and have no end; NeverStarted have no start either, as
	// far as the log says.
	Unfinished   int `json:"unfinished"`
	NeverStarted int `json:"never_started"`
	// Steps are parts of a run that is counted itself (Slurm's 123.batch).
	Steps   int    `json:"steps"`
	Dropped []Drop `json:"dropped"`
	// Ignored lines of a worker's log match neither expression.
	Ignored int `json:"ignored_lines"`
}

// Drop is a reason why rows were dropped.
type Drop struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	// Lines are the first line numbers that it happened on, at most 5.
	Lines []int `json:"first_lines"`
	// Example names file, line and column of the first one, in a sentence.
	Example string `json:"example"`
}

// maxLines is how many line numbers a Drop keeps.
const maxLines = 5

// drop counts a row out.
func (a *Account) drop(f fault) {
	i := slices.IndexFunc(a.Dropped, func(d Drop) bool { return d.Reason == f.reason })
	if i < 0 {
		i = len(a.Dropped)
		a.Dropped = append(a.Dropped, Drop{Reason: f.reason, Example: f.sentence(a.File)})
	}
	d := &a.Dropped[i]
	d.Count++
	if len(d.Lines) < maxLines {
		d.Lines = append(d.Lines, f.line)
	}
}

// dropped counts the rows that were dropped for any reason.
func (a *Account) dropped() int {
	n := 0
	for _, d := range a.Dropped {
		n += d.Count
	}
	return n
}

// fault is what is wrong with a row, and where. Lines and columns count from 1;
// columns are bytes, as an editor's "go to" wants them.
type fault struct {
	line, column int
	// reason is the same for all rows with the same fault; detail is about this one.
	reason, detail string
}

func (f fault) sentence(file string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, line %d, column %d: %s", file, f.line, max(1, f.column), f.reason)
	if f.detail != "" {
		b.WriteString(": " + f.detail)
	}
	return b.String()
}

// err is the fault as an error that ends the reading.
func (f fault) err(file string) error { return invalid("%s", f.sentence(file)) }

// quote shortens a value for a sentence.
func quote(s string) string {
	const longest = 40
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// DroppedRows counts the rows that were dropped for any reason.
func (a Account) DroppedRows() int { return a.dropped() }

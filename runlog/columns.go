package runlog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// role is what a column is about.
type role int

const (
	roleSubmitted role = iota
	roleEligible
	roleStarted
	roleFinished
	roleDuration
	roleClass
	roleStatus
	roleExit
	roleAttempt
	roleID
	roles
)

// names of the roles in --columns and in an Account.
var roleNames = [roles]string{"submitted", "eligible", "started", "finished", "duration", "class", "status", "exit", "attempt", "id"}

// synonyms are the usual names of each role's column, the most telling first;
// lower case, letters and digits only.
var synonyms = [roles][]string{
	roleSubmitted: {
		"submittedat", "submitted", "submittime", "submit", "submissiontime", "createdat", "created", "creationtime", "createtime",
		"creationtimestamp", "queueddttm", "queuedat", "queued", "enqueuedat", "enqueued", "enqueuetime", "arrivedat", "arrivaltime",
		"arrival", "requestedat", "receivedat", "publishedat",
	},
	roleEligible: {"readyat", "ready", "eligibleat", "eligible", "runat", "notbefore"},
	roleStarted: {
		"startedat", "started", "starttime", "startdate", "start", "beganat", "begin", "begintime", "runstartedat",
		"scheduled",
	},
	roleFinished: {
		"finishedat", "finished", "finishtime", "finish", "endedat", "ended", "endtime", "enddate", "end", "completedat", "completed",
		"completiontime", "completetime", "stoppedat", "stoptime", "deleted", "deletedat", "donetime",
	},
	roleDuration: {
		"duration", "elapsedraw", "elapsed", "elapsedtime", "exectime", "executiontime", "runtime", "walltime", "realtime", "took", "processingtime",
	},
	roleClass: {
		"class", "jobclass", "taskclass", "jobname", "taskname", "jobtype", "type", "job", "task", "name", "command",
		"workflow", "pipeline", "function", "queue",
	},
	roleStatus:  {"outcome", "status", "state", "result", "conclusion", "phase"},
	roleExit:    {"exitcode", "exitstatus", "returncode", "exit", "rc"},
	roleAttempt: {"attempt", "attemptnumber", "runattempt", "trynumber"},
	roleID:      {"jobidraw", "jobid", "runid", "taskid", "id"},
}

// unitSuffixes are the ways to say in a column's name what its numbers count,
// with the microseconds of one.
var unitSuffixes = []struct {
	suffix string
	unit   float64
}{
	{"_milliseconds", 1e3},
	{"_millis", 1e3},
	{"_ms", 1e3},
	{"_microseconds", 1},
	{"_us", 1},
	{"_ns", 1e-3},
	{"_seconds", 1e6},
	{"_secs", 1e6},
	{"_sec", 1e6},
	{"_s", 1e6},
	{"_minutes", 60e6},
	{"_hours", 3600e6},
}

// plain brings a column's name in the form of the synonyms. unit is what its
// name says that its numbers count, 0 when it says nothing.
func plain(name string) (word string, unit float64) {
	name = strings.ToLower(strings.TrimSpace(name))
	name = strings.ReplaceAll(strings.ReplaceAll(name, " ", "_"), "-", "_")
	for _, u := range unitSuffixes {
		if before, ok := strings.CutSuffix(name, u.suffix); ok {
			name, unit = before, u.unit
			break
		}
	}
	word = strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return -1
		}
		return r
	}, name)
	return word, unit
}

// Columns maps a role ("submitted", "started", "finished", "class", "status",
// "duration", "eligible", "exit", "attempt") to the name of its column; of an SWF
// file only "class" may be given, as the number of a field.
type Columns map[string]string

// ParseColumns reads "submitted=…,started=…,class=…".
func ParseColumns(s string) (Columns, error) {
	columns := Columns{}
	if strings.TrimSpace(s) == "" {
		return columns, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		key, name, ok := strings.Cut(part, "=")
		key, name = strings.TrimSpace(key), strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, invalid("%s is not of the form role=column", quote(part))
		}
		if key == "id" || !slices.Contains(roleNames[:], key) {
			return nil, invalid("%q is not something a column can be about; use %s", key, strings.Join(roleNames[:roleID], ", "))
		}
		if columns[key] != "" {
			return nil, invalid("%q is given twice", key)
		}
		columns[key] = name
	}
	return columns, nil
}

// finder decides which columns are about what, name by name.
type finder struct {
	wanted Columns
}

// match returns the role of a column, with a rank: of several columns with one
// role the lowest rank counts. ok is false when the name says nothing.
func (f finder) match(name string) (r role, rank int, unit float64, ok bool) {
	word, unit := plain(name)
	for r := range roles {
		if want, given := f.wanted[roleNames[r]]; given {
			if name == want {
				return r, 0, unit, true
			}
			continue
		}
		if i := slices.Index(synonyms[r], word); i >= 0 && !f.taken(name) {
			return r, i, unit, true
		}
	}
	return 0, 0, 0, false
}

// taken says whether the name was given for some role, and so has no other.
func (f finder) taken(name string) bool {
	for _, want := range f.wanted {
		if want == name {
			return true
		}
	}
	return false
}

// layout is the columns of a table with a header.
type layout struct {
	index [roles]int // −1: there is none
	unit  [roles]float64
	names []string
	// dag is the column that goes before the class (Airflow: dag_id beside task_id), −1 when none does.
	dag int
}

// layoutOf finds the columns of a header.
func (f finder) layoutOf(header []string) (*layout, error) {
	l := &layout{names: slices.Clone(header), dag: -1}
	rank := [roles]int{}
	for r := range l.index {
		l.index[r] = -1
	}
	for i, name := range l.names {
		name = strings.TrimSpace(name)
		l.names[i] = name
		if r, rk, unit, ok := f.match(name); ok && (l.index[r] < 0 || rk < rank[r]) {
			l.index[r], rank[r], l.unit[r] = i, rk, unit
		}
	}
	for key, name := range f.wanted {
		if !slices.Contains(l.names, name) {
			return nil, fmt.Errorf("there is no column %q (given for %s); the columns are %s", name, key, list(l.names))
		}
	}
	l.airflow(f)
	if err := l.enough(); err != nil {
		return nil, err
	}
	return l, nil
}

// airflow: a task instance's class is dag/task, unless another class was asked for.
func (l *layout) airflow(f finder) {
	dag, task := slices.Index(l.names, "dag_id"), slices.Index(l.names, "task_id")
	if dag >= 0 && task >= 0 && f.wanted["class"] == "" {
		l.dag, l.index[roleClass] = dag, task
		l.index[roleID] = -1
	}
}

// enough says what is missing for an analysis.
func (l *layout) enough() error {
	has := func(r role) bool { return l.index[r] >= 0 }
	var missing []string
	if !has(roleClass) {
		missing = append(missing, "class")
	}
	if !has(roleStarted) && !has(roleSubmitted) && !(has(roleFinished) && has(roleDuration)) {
		missing = append(missing, "started")
	}
	if !has(roleFinished) && !has(roleDuration) {
		missing = append(missing, "finished (or duration)")
	} else if !has(roleDuration) && !has(roleStarted) && has(roleSubmitted) {
		missing = append(missing, "started")
	}
	if len(missing) > 0 {
		return fmt.Errorf("no column looks like %s; the columns are %s. Say which with --columns %s",
			strings.Join(missing, " or "), list(l.names), example(missing))
	}
	return nil
}

func example(missing []string) string {
	parts := make([]string, len(missing))
	for i, m := range missing {
		word, _, _ := strings.Cut(m, " ")
		parts[i] = word + "=…"
	}
	return strings.Join(parts, ",")
}

// list quotes the first names of a list.
func list(names []string) string {
	const most = 20
	quoted := make([]string, 0, len(names))
	for _, n := range names[:min(most, len(names))] {
		quoted = append(quoted, quote(n))
	}
	if len(names) > most {
		quoted = append(quoted, fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(quoted, ", ")
}

// used is the layout for an Account.
func (l *layout) used() map[string]string {
	m := map[string]string{}
	for r, i := range l.index {
		if i >= 0 && role(r) != roleID {
			m[roleNames[r]] = l.names[i]
		}
	}
	if l.dag >= 0 {
		m["class"] = l.names[l.dag] + "/" + m["class"]
	}
	return m
}

// sortedKeys is the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

package runlog

import (
	"fmt"
	"math"
	"slices"

	"github.com/lanegate/lanegate"
)

// Result is how a run ended, as far as the analysis cares.
type Result uint8

// Results of a run. Good is also what a run counts as in a log that says nothing
// about results; Log.NoStatus then says so.
const (
	Good      Result = iota
	Failure          // failed, timed out, preempted, out of memory, lost
	Cancelled        // ended by a person
	Other            // the log says something that is none of these
)

// Run is one finished run. Times are microseconds since the Unix epoch.
type Run struct {
	// Ready is since when it could have started: when it was submitted, or the
	// later time it was not to start before. It is Start when HasReady is false.
	Ready int64
	// Start is when it started; Ready when HasStart is false.
	Start int64
	Took  int64 // how long it ran, ≥ 0
	Class int32 // index into Log.Classes
	// Result is how it ended.
	Result Result
	// HasReady and HasStart say which of the times the log has. Without both there
	// is no recorded wait, and without a start nobody knows what ran beside it.
	HasReady, HasStart bool
}

// End is when the run ended; meaningful only with HasStart.
func (r Run) End() int64 { return r.Start + r.Took }

// Log is the runs of one or several files.
type Log struct {
	// Classes are the class names, in order of first appearance.
	Classes []string
	// Runs are all usable runs, by Ready (then in the order of the files).
	Runs []Run
	// Accounts says what became of every row, one entry per file.
	Accounts []Account
	// NoStatus: no row says how its run ended, so all count as good.
	NoStatus bool

	index  map[string]int32
	sorted bool
}

// maxClasses bounds the classes of a log. More of them than this means that the
// class column holds something unique to each run.
const maxClasses = 10_000

// class returns the index of a class, adding it when it is new.
func (l *Log) class(name string) (int32, error) {
	if i, ok := l.index[name]; ok {
		return i, nil
	}
	if len(l.Classes) >= maxClasses {
		return 0, fmt.Errorf("there are more than %d different classes, so the class column seems to hold run ids; name the right column with --columns class=…", maxClasses)
	}
	if l.index == nil {
		l.index = make(map[string]int32)
	}
	i := int32(len(l.Classes))
	name = string([]byte(name)) // not a slice of a whole row, which would live as long as the log
	l.index[name] = i
	l.Classes = append(l.Classes, name)
	return i, nil
}

// Add appends finished attempts from a run log of lanegate itself. Attempts of
// verification runs are left out: an experiment says nothing about the line.
func (l *Log) Add(records ...lanegate.RunRecord) error {
	for _, rec := range records {
		if rec.Verification != "" {
			continue
		}
		class, err := l.class(rec.Class)
		if err != nil {
			return err
		}
		r := Run{
			Start:    rec.StartedAt.UnixMicro(),
			Took:     max(0, rec.Duration.Microseconds()),
			Class:    class,
			Result:   resultOf(string(rec.Outcome)),
			HasStart: true,
		}
		switch {
		case rec.ReadyAt != nil:
			r.Ready, r.HasReady = rec.ReadyAt.UnixMicro(), true
		case rec.SubmittedAt != nil && rec.Attempt <= 1:
			r.Ready, r.HasReady = rec.SubmittedAt.UnixMicro(), true
		}
		if !r.HasReady || r.Ready > r.Start {
			r.Ready = r.Start
		}
		l.Runs = append(l.Runs, r)
		l.sorted = false
	}
	return nil
}

// Trim keeps the n runs that were added last; it is for before the analysis.
func (l *Log) Trim(n int) {
	if len(l.Runs) > n {
		l.Runs = slices.Delete(l.Runs, 0, len(l.Runs)-n)
	}
}

// sort brings the runs in the order of the line: by Ready, equal ones as they came.
func (l *Log) sort() {
	if !l.sorted {
		slices.SortStableFunc(l.Runs, func(a, b Run) int {
			switch {
			case a.Ready < b.Ready:
				return -1
			case a.Ready > b.Ready:
				return 1
			}
			return 0
		})
		l.sorted = true
	}
}

// Only returns the part of the log that is about the named classes; the accounts
// stay those of the whole. Unknown names are an error.
func (l *Log) Only(classes ...string) (*Log, error) {
	part := &Log{Accounts: l.Accounts, NoStatus: l.NoStatus}
	want := make(map[int32]int32, len(classes))
	for _, name := range classes {
		i, ok := l.index[name]
		if !ok {
			return nil, invalid("the log has no class %q", name)
		}
		to, err := part.class(name)
		if err != nil {
			return nil, err
		}
		want[i] = to
	}
	for _, r := range l.Runs {
		if to, ok := want[r.Class]; ok {
			r.Class = to
			part.Runs = append(part.Runs, r)
		}
	}
	return part, nil
}

// invalid is an error about what the caller gave.
func invalid(format string, args ...any) error {
	return &lanegate.Error{Kind: lanegate.KindInvalid, Code: "bad_run_log", Message: fmt.Sprintf(format, args...)}
}

// seconds and hours convert microseconds for a Report.
func seconds(us int64) float64 { return round(float64(us)/1e6, 1e3) }

func hours(us float64) float64 { return round(us/3.6e9, 1e3) }

// round keeps as many decimals as the power of ten has.
func round(v, power float64) float64 { return math.Round(v*power) / power }

package runlog

import "time"

// SchemaVersion is Report.Schema. It changes only when a field changes its meaning
// or goes; new fields may come at any time.
const SchemaVersion = 1

// Report is the answer to a run log. Its JSON form is described in docs/advise.md.
type Report struct {
	Schema  int     `json:"schema"`
	Verdict Verdict `json:"verdict"`
	// Tolerable is the wait that nobody minds, as it was asked for.
	Tolerable float64 `json:"tolerable_seconds"`
	// Mend lists slow or failing jobs to look at for their own sake, whatever the
	// verdict about lanes: being slow and making others wait are different troubles.
	Mend    []Mend        `json:"mend"`
	Span    Span          `json:"span"`
	Load    Load          `json:"load"`
	Mix     Split         `json:"mix"`
	Classes []ClassReport `json:"classes"`
	// Blockers is who makes others wait in one line, the worst first; Blame is the
	// same by pairs.
	Blockers []Blocker `json:"blockers"`
	Blame    []Blame   `json:"blame"`
	Layouts  []Layout  `json:"layouts"`
	// Recorded is the waits that the log has itself, nil when it has none.
	Recorded *Waits `json:"recorded_waits"`
	// Order is pairs of classes that the line kept in order.
	Order []Order `json:"hidden_order"`
	// Notes say what can't be known from this log.
	Notes []string  `json:"notes"`
	Files []Account `json:"files"`
}

// Span is the time that a log is about.
type Span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	Days float64   `json:"days"`
	Runs int       `json:"runs"`
	// Relative: the log counts its times from a start that it does not name. From
	// and To are then that far after 1970-01-01, and no dates.
	Relative bool `json:"relative"`
}

// Load is how much work came in one line's way.
type Load struct {
	BusyHours float64 `json:"busy_hours"`
	// Rho is the offered load of one line: the sum of all durations over the time in
	// which the jobs arrived. At 1 and above a line never catches up. It is 0, and not
	// known, when all of them arrived at one moment.
	Rho float64 `json:"rho"`
	// BusiestHour is the largest work that arrived within one hour of the clock, in hours.
	BusiestHour float64 `json:"busiest_hour_work_hours"`
	// Dispersion is the index of dispersion of arrivals per hour, variance over
	// mean: 1 for arrivals independent of each other, more for bursts.
	Dispersion float64 `json:"dispersion"`
	// MostAtOnce is the largest number of runs at once that the log recorded; 0 when
	// it has no start times.
	MostAtOnce int `json:"most_at_once"`
	// Overlap is the share of the recorded busy time with two or more runs at once.
	Overlap float64 `json:"overlap"`
	// OneLine: the recorded runs went (almost) one at a time.
	OneLine bool `json:"one_line"`
}

// ClassReport is one class in numbers.
type ClassReport struct {
	Class     string `json:"class"`
	Runs      int    `json:"runs"`
	Failed    int    `json:"failed"`
	Cancelled int    `json:"cancelled"`
	Other     int    `json:"other"`
	// Good is the durations of good runs, All those of all runs.
	Good Spread `json:"good"`
	All  Spread `json:"all"`
	// Durations is how many runs took how long; empty bins are left out.
	Durations []Bin `json:"durations"`
	// BusyShare of all classes' run time.
	BusyShare float64 `json:"busy_share"`
	BusyHours float64 `json:"busy_hours"`
	// MostAtOnce runs of the class; OverlapsNext counts runs that had not ended when
	// the next one of the class started. Both 0 without start times.
	MostAtOnce   int `json:"most_at_once"`
	OverlapsNext int `json:"overlaps_next"`
	// Trend is the change of the duration of good runs, nil when there are fewer
	// than 10, or less than 2 days of them.
	Trend *Trend `json:"trend"`
	// Within is whether good runs fall into two far-apart groups.
	Within Split `json:"within"`
	// DiesEarly: failed runs end much earlier than good ones, nil when they don't.
	DiesEarly *DiesEarly `json:"dies_early"`
	// Recorded waits of the class, nil when the log has none.
	Recorded *Spread `json:"recorded_waits"`
	// OwnShare is the share of its recorded waiting in which a run of the class
	// itself was on, nil without recorded waits.
	OwnShare *float64 `json:"recorded_wait_own_share"`
}

// Bin counts the runs that took from From to less than 10^(1/10), about 1.26,
// times as long: ten bins for each power of ten. Runs under a millisecond count
// as one.
type Bin struct {
	From   float64 `json:"from_seconds"`
	Good   int     `json:"good"`
	Failed int     `json:"failed"`
	// Other is cancelled runs, and those with an end that says neither.
	Other int `json:"other"`
}

// Trend is a duration that changes over time.
type Trend struct {
	SecondsPerDay float64 `json:"seconds_per_day"`
	// Z is the Mann–Kendall statistic in standard deviations.
	Z float64 `json:"z"`
	// Clear: |Z| ≥ 2.58 and over the log's time the change is at least a quarter of
	// the median.
	Clear bool `json:"clear"`
	// DaysToNextStart is when the median duration reaches the median time between
	// two starts, if it goes on like this; nil when it doesn't grow.
	DaysToNextStart *float64 `json:"days_to_next_start"`
}

// DiesEarly is a class whose failures are short.
type DiesEarly struct {
	Runs         int     `json:"runs"`
	Share        float64 `json:"share"`
	FailedMedian float64 `json:"failed_median_seconds"`
	GoodMedian   float64 `json:"good_median_seconds"`
}

// Blocker is a class with the waiting that it causes in one line.
type Blocker struct {
	Class string `json:"class"`
	// Harm is the hours that jobs of other classes waited while it had the line,
	// Share its part of all hours that jobs waited for other classes.
	Harm  float64 `json:"harm_hours"`
	Share float64 `json:"share"`
	// Own is the hours that its own jobs waited while it had the line.
	Own float64 `json:"own_hours"`
}

// Blame is the hours that jobs of one class waited for another.
type Blame struct {
	Blocker string  `json:"blocker"`
	Victim  string  `json:"victim"`
	Hours   float64 `json:"hours"`
	// Share of all hours that any job waited.
	Share float64 `json:"share"`
}

// Waits is waits over all classes.
type Waits struct {
	Spread
	Hours float64 `json:"hours"`
}

// Layout is a what-if: the log replayed under other lanes.
type Layout struct {
	// Name is one_line, isolate, promote, or workers_N.
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Lanes       []LaneReport `json:"lanes"`
	Waits       Waits        `json:"waits"`
	Classes     []ClassWaits `json:"classes"`
	// Peaks is the most units of each resource in use at once.
	Peaks      map[string]int `json:"peak_units"`
	MostAtOnce int            `json:"most_at_once"`
	// Note, of promote, compares it with as many workers for everything.
	Note string `json:"note"`

	starts []int64 // of one_line and isolate, parallel to Log.Runs
}

// LaneReport is a lane of a layout.
type LaneReport struct {
	Name       string `json:"name"`
	Width      int    `json:"width"`
	Arithmetic string `json:"arithmetic"`
}

// ClassWaits is the waits of one class under a layout.
type ClassWaits struct {
	Class string `json:"class"`
	Waits
}

// Order is a pair of classes that kept an order that nothing declared.
type Order struct {
	First string `json:"first"`
	Then  string `json:"then"`
	// Cycles in which both ran; Kept those in which Then started after First had
	// ended; Held those in which Then was due before that, so that only the line
	// kept it back.
	Cycles int `json:"cycles"`
	Kept   int `json:"kept"`
	Held   int `json:"held"`
	// Gap is the median time from First's end to Then's start.
	Gap float64 `json:"median_gap_seconds"`
}

// Kinds of a Verdict.
const (
	Separate    = "separate"
	Isolate     = "isolate"
	AddWorkers  = "add_workers"
	LeaveAlone  = "leave_alone"
	FixFailures = "fix_failures"
	CannotTell  = "cannot_tell"
)

// Verdict is what to do, and why.
type Verdict struct {
	Kind string `json:"kind"`
	// Sentence is the verdict in words; Reasons are the numbers behind it.
	Sentence string   `json:"sentence"`
	Reasons  []string `json:"reasons"`
	// Classes are those that it is about: the blockers, or the failing ones.
	Classes []string `json:"classes"`
	// Workers is the number to run, 0 when it is not about that.
	Workers int `json:"workers"`
	// Verify lists the classes to verify first, in order.
	Verify []Candidate `json:"verify"`
	// LeftOut is the other classes with the reason why they are not in Verify, the
	// one that waits most first; empty when the verdict asks to verify nothing.
	LeftOut []LeftOut `json:"left_out"`
	// Next is what to do next, a sentence each.
	Next []string `json:"next"`
	// CLI is the same as Command by lanegate verify.
	CLI string `json:"verify_cli"`
	// Command asks a gateway for the verification run that comes first; empty when
	// there is nothing to verify.
	Command string `json:"verify_command"`
}

// Candidate is a class that could leave the line once that was verified.
type Candidate struct {
	Class string `json:"class"`
	// Role is "blocker" (to run in a lane of its own), "victim" (to go to parallel) or
	// "peer" (to go to parallel, beside itself too, where workers are added).
	Role string `json:"role"`
	// Layout names the one that After is from: isolate for a blocker, promote for the
	// others, where the classes to verify are in parallel and the rest is in serial.
	Layout string `json:"layout"`
	Before Spread `json:"waits_before"`
	After  Spread `json:"waits_after"`
	// Saved is the hours of waiting that the layout takes off: for a blocker those of
	// all jobs, for others their own.
	Saved float64 `json:"saved_hours"`
	// Little: Saved is not worth much, see analysis.effect. Effect says in words what
	// is to be expected, and begins with "brings little" then.
	Little bool   `json:"brings_little"`
	Effect string `json:"effect"`
	// Warnings name hidden orders and missing declarations.
	Warnings []string `json:"warnings"`
}

// LeftOut is a class that is not among those to verify first.
type LeftOut struct {
	Class string `json:"class"`
	Why   string `json:"why"`
	// Hours that its jobs wait in one line.
	Hours float64 `json:"waited_hours"`
}

// Mend is a class to mend for its own sake.
type Mend struct {
	Class string   `json:"class"`
	Why   []string `json:"why"`
}

package lanegate

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// VerificationState is where a verification run stands.
type VerificationState string

// States of a verification run: planned → running → done, or aborted from either.
const (
	VerificationPlanned VerificationState = "planned" // waits for its turn; nobody owns it
	VerificationRunning VerificationState = "running" // a live worker, its owner, carries it out
	VerificationDone    VerificationState = "done"
	VerificationAborted VerificationState = "aborted"
)

// Final says whether the run is over.
func (s VerificationState) Final() bool { return s == VerificationDone || s == VerificationAborted }

// Verdict is what a verification run says; "" until it is over, and for aborted ones.
type Verdict string

// Verdicts. The first two are conclusive.
const (
	VerdictPassed       Verdict = "passed"
	VerdictFailed       Verdict = "failed"
	VerdictInconclusive Verdict = "inconclusive"
)

// VerificationSource says where the runs of an experiment come from.
type VerificationSource string

// Sources.
const (
	// SourceQueue starts jobs together that are due anyway; nothing runs that would not have run.
	SourceQueue VerificationSource = "queue"
	// SourcePayloads makes up jobs with given payloads.
	SourcePayloads VerificationSource = "payloads"
)

// VerificationMember is one class of an experiment.
type VerificationMember struct {
	Class string `json:"class" example:"pos-sales"`
	// Copies of the class that run at once, at least 1.
	Copies int `json:"copies" example:"2"`
	// Payloads are used in turn, verbatim; for the source "payloads" only, where null is used when there are none.
	Payloads []json.RawMessage `json:"payloads,omitempty" swaggertype:"array,object"`
}

// Criteria say what passes.
type Criteria struct {
	// MaxSlowdown is the largest allowed ratio of a member's median duration beside
	// others to its baseline's; a member that lost less than a second passes always.
	MaxSlowdown float64 `json:"max_slowdown" example:"2"`
	// SameResult: each payload's result must have the same digest as when it ran alone.
	SameResult bool `json:"same_result"`
	// MinOverlap is the share of the shorter of two runs, 0 to 1, during which both
	// must really have run for the pair to count as proven; Window, if given, is
	// enough, too.
	MinOverlap float64 `json:"min_overlap" example:"0.5"`
	// Window is how much overlap is enough for runs too long to wait for. With it
	// the verdict falls when the last window closes; such a run goes on.
	Window Duration `json:"window,omitzero" swaggertype:"string" example:"10m"`
}

// VerificationSpec is what a person asked for, with the defaults filled in.
type VerificationSpec struct {
	Members []VerificationMember `json:"members"`
	Source  VerificationSource   `json:"source" enums:"queue,payloads"`
	// Rounds is how often the plan that covers every pair is repeated.
	Rounds   int      `json:"rounds"`
	Criteria Criteria `json:"criteria"`
	// HoldSerial keeps serial empty meanwhile. HoldReason says why not.
	HoldSerial bool   `json:"hold_serial"`
	HoldReason string `json:"hold_reason,omitempty"`
	// MaxHold bounds the hold, from its beginning.
	MaxHold Duration `json:"max_hold" swaggertype:"string" example:"15m"`
	// Check is run after each round and judges the data; it fails the run by failing.
	Check  *Run   `json:"check,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Defaults of a verification run.
const (
	DefaultMaxSlowdown    = 2.0
	DefaultMinOverlap     = 0.5
	DefaultMaxHold        = Duration(15 * time.Minute)
	DefaultRoundsQueue    = 1
	DefaultRoundsPayloads = 3
	// MaxGang is how many runs one round starts at most.
	MaxGang = 16
	// BaselineRuns is how many good runs of the present fingerprint the run log must
	// hold as a baseline for the source "queue".
	BaselineRuns = 5
	// ProofAge is how old a proof may be for a new promotion.
	ProofAge = 90 * 24 * time.Hour
)

// RoundKind says what a round is for.
type RoundKind string

// Kinds of rounds.
const (
	RoundBaseline RoundKind = "baseline" // one run alone
	RoundBeside   RoundKind = "beside"   // several at once
)

// Round is one step of the plan: the classes that shall run at once, one entry
// for each run, sorted.
type Round struct {
	Kind    RoundKind `json:"kind"`
	Classes []string  `json:"classes"`
}

// Verification is a verification run. Spec, Plan and Fingerprints are fixed when
// it is created; the rest is written by its owner, by admission (Owner, HeldAt,
// StartedAt, RoundStarted) and by whoever ends it. At most one is running.
type Verification struct {
	ID        string // UUIDv7
	State     VerificationState
	Verdict   Verdict
	Spec      VerificationSpec
	Plan      []Round
	Round     int  // index of the round that is under way or comes next; len(Plan) when all are over
	Started   bool // Plan[Round] has been started
	Owner     string
	Actor     string
	CreatedAt time.Time
	StartedAt *time.Time // when a worker took it
	HeldAt    *time.Time // when it took serial's slot
	EndedAt   *time.Time
	// Fingerprints are the members' when it was created.
	Fingerprints map[string]string
	// Reasons say why the verdict is what it is, worst first.
	Reasons  []VerificationReason
	Evidence Evidence
}

// Holds says whether the run holds serial's slot now.
func (v Verification) Holds() bool { return v.State == VerificationRunning && v.HeldAt != nil }

// VerificationReason is one cause of a verdict.
type VerificationReason struct {
	Code    string `json:"code" example:"phrase"` // run_failed phrase check_failed result_differs slowdown units_above_declared late_failure overlap max_hold fresh owner_lost stopped aborted …
	Class   string `json:"class,omitempty"`
	Message string `json:"message"`
}

// Evidence is what a verification run saw; kept for good.
type Evidence struct {
	Baseline map[string]Baseline `json:"baseline,omitempty"` // by class
	Rounds   []RoundEvidence     `json:"rounds,omitempty"`
	Pairs    []PairEvidence      `json:"pairs,omitempty"`
	Slowdown map[string]Slowdown `json:"slowdown,omitempty"` // by class
	// NotChecked says, in sentences, what this run can't tell.
	NotChecked []string `json:"not_checked,omitempty"`
}

// Baseline is how long good runs of a class take alone, in seconds.
type Baseline struct {
	From string  `json:"from" enums:"run_log,alone"`
	N    int     `json:"n"`
	P50  float64 `json:"p50_seconds"`
	P90  float64 `json:"p90_seconds"`
	Max  float64 `json:"max_seconds"`
}

// Slowdown compares a class's runs beside others with its baseline, medians in seconds.
type Slowdown struct {
	N        int     `json:"n"`
	P50      float64 `json:"p50_seconds"`
	Baseline float64 `json:"baseline_p50_seconds"`
	Ratio    float64 `json:"ratio"`
}

// PairEvidence says how long two members, or two copies of one, really ran at once.
type PairEvidence struct {
	A       string  `json:"a"`
	B       string  `json:"b"`
	Overlap float64 `json:"overlap_seconds"` // the longest stretch
	Needed  float64 `json:"needed_seconds"`
	Proven  bool    `json:"proven"`
	// Copies is the most runs of the class at once; for a pair of copies only.
	Copies int `json:"copies,omitzero"`
}

// RoundEvidence is one round as it went.
type RoundEvidence struct {
	Round     int           `json:"round"` // from 1
	Kind      RoundKind     `json:"kind"`
	StartedAt time.Time     `json:"started_at"`
	EndedAt   time.Time     `json:"ended_at,omitzero"` // zero while it is under way
	Runs      []RunEvidence `json:"runs"`
	// Beside names jobs of others that ran meanwhile, as "class job".
	Beside []string       `json:"beside,omitempty"`
	Check  *CheckEvidence `json:"check,omitempty"`
	// Picture shows who ran when, one line for each run, on one time axis.
	Picture []string `json:"picture,omitempty"`
}

// RunEvidence is one run of a round.
type RunEvidence struct {
	Job       string         `json:"job"`
	Attempt   int            `json:"attempt"`
	Class     string         `json:"class"`
	StartedAt time.Time      `json:"started_at"`
	EndedAt   *time.Time     `json:"ended_at,omitempty"` // nil: it went on
	Seconds   float64        `json:"seconds"`
	Outcome   Outcome        `json:"outcome,omitempty"`
	ExitCode  *int           `json:"exit_code,omitempty"`
	Signal    string         `json:"signal,omitempty"`
	Status    int            `json:"status,omitzero"`
	Error     string         `json:"error,omitempty"`
	Result    string         `json:"result_sha256,omitempty"`
	Payload   string         `json:"payload_sha256,omitempty"`
	Phrases   []PhraseMatch  `json:"phrases,omitempty"`
	Declared  Units          `json:"declared_units,omitempty"`
	Measured  map[string]int `json:"measured_units,omitempty"`
	// Dropped counts output bytes that were not kept and so not searched.
	Dropped int64 `json:"output_dropped,omitzero"`
}

// CheckEvidence is what a check said after a round. It has said something only
// with an exit code, or with an HTTP status.
type CheckEvidence struct {
	Outcome  Outcome `json:"outcome"`
	ExitCode *int    `json:"exit_code,omitempty"`
	Status   int     `json:"status,omitzero"`
	Error    string  `json:"error,omitempty"`
	Output   string  `json:"output,omitempty"` // its beginning and its end
}

// PhraseMatch is a phrase of trouble found in what a run printed, or in its error.
type PhraseMatch struct {
	Phrase string `json:"phrase"` // the expression
	Line   string `json:"line"`   // the line it was found in
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Proof is what one conclusive verification run says of one class at one fingerprint.
type Proof struct {
	Verification string
	Class        string
	Fingerprint  string
	Verdict      Verdict // passed or failed
	Copies       int     // that really ran at once
	Beside       []string
	EndedAt      time.Time
}

// Proven sums up the proofs of a class at a fingerprint, given in any order:
// what holds since the latest failed run. latest is the latest conclusive run,
// nil when there is none; copies is 0 when nothing is proven.
func Proven(proofs []Proof, fingerprint string) (latest *Proof, copies int, beside []string) {
	var own []Proof
	for _, p := range proofs {
		if p.Fingerprint == fingerprint && p.Verdict != VerdictInconclusive {
			own = append(own, p)
		}
	}
	slices.SortFunc(own, func(a, b Proof) int {
		return cmp.Or(b.EndedAt.Compare(a.EndedAt), cmp.Compare(b.Verification, a.Verification))
	})
	for i, p := range own {
		if i == 0 {
			latest = &own[0]
		}
		if p.Verdict != VerdictPassed {
			break // it voids everything before
		}
		copies = max(copies, p.Copies)
		beside = append(beside, p.Beside...)
	}
	slices.Sort(beside)
	return latest, copies, slices.Compact(beside)
}

// Proofs returns what the run says of each of its members, in the order of
// their classes; nil unless its verdict is conclusive. A passed run proves as
// many copies as its evidence saw at once, one at least, beside the classes of
// its proven pairs; a failed one proves none.
func (v Verification) Proofs() []Proof {
	if v.State != VerificationDone || (v.Verdict != VerdictPassed && v.Verdict != VerdictFailed) {
		return nil
	}
	proofs := make([]Proof, 0, len(v.Spec.Members))
	for _, m := range v.Spec.Members {
		p := Proof{Verification: v.ID, Class: m.Class, Fingerprint: v.Fingerprints[m.Class], Verdict: v.Verdict}
		if v.EndedAt != nil {
			p.EndedAt = *v.EndedAt
		}
		if v.Verdict == VerdictPassed {
			p.Copies, p.Beside = v.Evidence.proves(m.Class)
		}
		proofs = append(proofs, p)
	}
	slices.SortFunc(proofs, func(a, b Proof) int { return cmp.Compare(a.Class, b.Class) })
	return proofs
}

// proves sums up the proven pairs that a class is part of.
func (e Evidence) proves(class string) (copies int, beside []string) {
	copies = 1
	for _, p := range e.Pairs {
		switch {
		case !p.Proven:
		case p.A == class && p.B == class:
			copies = max(copies, p.Copies)
		case p.A == class:
			beside = append(beside, p.B)
		case p.B == class:
			beside = append(beside, p.A)
		}
	}
	slices.Sort(beside)
	return copies, slices.Compact(beside)
}

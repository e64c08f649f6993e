package lanegate

import (
	"fmt"
	"net/url"
	"sort"
	"strings"
	"time"
)

// Units says how much of each resource one run takes. A nil map means "not
// declared"; an empty one declares that nothing is used.
type Units map[string]int

// RunKind is how a class's jobs are run.
type RunKind string

// Kinds of runs. Agent and SQS targets belong to the production set-up.
const (
	RunExec  RunKind = "exec"
	RunHTTP  RunKind = "http"
	RunAgent RunKind = "agent"
	RunSQS   RunKind = "sqs"
)

// HTTP modes of a run.
const (
	ModeSync  = "sync"
	ModeAsync = "async"
)

// Run is what is executed for a job: a command named in the operator's
// catalogue (exec, agent), a URL (http) or a queue (sqs).
type Run struct {
	Kind    RunKind           `json:"kind" yaml:"kind" enums:"exec,http,agent,sqs" example:"exec"`
	Command string            `json:"command,omitempty" yaml:"command,omitempty" example:"pos-sales"`
	URL     string            `json:"url,omitempty" yaml:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty" yaml:"headers,omitempty"`
	// Mode of an http run: "sync" (default) or "async".
	Mode  string `json:"mode,omitempty" yaml:"mode,omitempty" enums:"sync,async"`
	Queue string `json:"queue,omitempty" yaml:"queue,omitempty"`
	// Heartbeat is the deadline between heartbeats of a detached run; 5m when zero.
	Heartbeat Duration `json:"heartbeat,omitzero" yaml:"heartbeat,omitempty" swaggertype:"string" example:"5m"`
	// Version is free text that is part of the fingerprint, e.g. a git SHA.
	Version string `json:"version,omitempty" yaml:"version,omitempty"`
}

// Backoff spaces the retries of failed attempts: full jitter over
// min(max, base × 2^(failures−1)).
type Backoff struct {
	Base Duration `json:"base" yaml:"base" swaggertype:"string" example:"30s"`
	Max  Duration `json:"max" yaml:"max" swaggertype:"string" example:"1h"`
}

// Complete fills in the half of a declared backoff that was left out (zero): base
// 30s or a smaller max, max 1h or a larger base.
func (b Backoff) Complete() Backoff {
	if b.Base == 0 {
		b.Base = DefaultBackoffBase
		if b.Max > 0 {
			b.Base = min(b.Base, b.Max)
		}
	}
	if b.Max == 0 {
		b.Max = max(DefaultBackoffMax, b.Base)
	}
	return b
}

// Overlap is what happens to a new job while one of its class is due or runs.
type Overlap string

// Overlap policies.
const (
	OverlapQueue    Overlap = "queue"    // keep all, in order
	OverlapSkip     Overlap = "skip"     // the new one ends as skipped
	OverlapCoalesce Overlap = "coalesce" // the newest takes the waiting one's place
)

// ClassSpec is the part of a class that people declare: the body of
// PUT /job-classes/{id} and an entry under classes in the config file.
type ClassSpec struct {
	Description   string `json:"description,omitempty" yaml:"description,omitempty"`
	Run           Run    `json:"run" yaml:"run"`
	SerialBecause string `json:"serial_because,omitempty" yaml:"serial_because,omitempty"`
	// Units: nil is left out; an empty map is a declaration and must stay.
	Units       Units    `json:"units,omitzero" yaml:"units,omitempty" swaggertype:"object,integer"`
	Timeout     Duration `json:"timeout,omitzero" yaml:"timeout,omitempty" swaggertype:"string" example:"2h"`
	WarnAfter   Duration `json:"warn_after,omitzero" yaml:"warn_after,omitempty" swaggertype:"string" example:"2h"`
	MaxAttempts int      `json:"max_attempts,omitempty" yaml:"max_attempts,omitempty" example:"1"`
	Backoff     *Backoff `json:"backoff,omitempty" yaml:"backoff,omitempty"`
	// Repeatable: may a cut-off run be started again? nil: exec and agent yes, the others no.
	Repeatable  *bool    `json:"repeatable,omitempty" yaml:"repeatable,omitempty"`
	Overlap     Overlap  `json:"overlap,omitempty" yaml:"overlap,omitempty" enums:"queue,skip,coalesce"`
	FreshWithin Duration `json:"fresh_within,omitzero" yaml:"fresh_within,omitempty" swaggertype:"string" example:"26h"`
	Paused      bool     `json:"paused,omitempty" yaml:"paused,omitempty"`
	// Phrases are expressions (RE2) of trouble beside the built-in ones; each is
	// tried on every kept line of output. A line that one of IgnorePhrases matches is
	// never trouble.
	Phrases       []string `json:"phrases,omitempty" yaml:"phrases,omitempty"`
	IgnorePhrases []string `json:"ignore_phrases,omitempty" yaml:"ignore_phrases,omitempty"`
}

// Class is a kind of job with its stored metadata.
type Class struct {
	ID string
	ClassSpec
	// Lane and MaxInFlight change only by promote and demote.
	Lane        string
	MaxInFlight int
	ManagedBy   ManagedBy
	// CommandDigest is the digest of the command definition last seen for Run.Command, "" when none was.
	CommandDigest string
	// Fingerprint is Fingerprint(spec, CommandDigest) as of the last save.
	Fingerprint string
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// Defaults of a class.
const (
	DefaultMaxAttempts = 1
	DefaultBackoffBase = Duration(30 * time.Second)
	DefaultBackoffMax  = Duration(time.Hour)
	DefaultHeartbeat   = Duration(5 * time.Minute)
)

// WithDefaults fills what was left out; it leaves Units nil when undeclared.
func (s ClassSpec) WithDefaults() ClassSpec {
	if s.MaxAttempts == 0 {
		s.MaxAttempts = DefaultMaxAttempts
	}
	if s.Backoff == nil {
		s.Backoff = &Backoff{Base: DefaultBackoffBase, Max: DefaultBackoffMax}
	}
	if s.Overlap == "" {
		s.Overlap = OverlapQueue
	}
	if s.Run.Kind == RunHTTP && s.Run.Mode == "" {
		s.Run.Mode = ModeSync
	}
	return s
}

// MayRepeat says whether a run that was cut off may be started again without a person.
func (s ClassSpec) MayRepeat() bool {
	if s.Repeatable != nil {
		return *s.Repeatable
	}
	return s.Run.Kind == RunExec || s.Run.Kind == RunAgent
}

// Detached says whether a run outlives the worker that started it.
func (r Run) Detached() bool {
	return r.Kind == RunSQS || (r.Kind == RunHTTP && r.Mode == ModeAsync)
}

// Using returns the units one run takes: the declared ones, or 1 of every pool
// resource when nothing is declared.
func (s ClassSpec) Using(resources []Resource) Units {
	if s.Units != nil {
		return s.Units
	}
	u := Units{}
	for _, r := range resources {
		if r.Pool {
			u[r.Name] = 1
		}
	}
	return u
}

// Validate returns every fault of the spec. Resources named in units need not
// exist yet; the service checks that.
func (s ClassSpec) Validate() []FieldError {
	var errs []FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, FieldError{pointer, fmt.Sprintf(format, args...)})
	}
	errs = append(errs, s.Run.validate()...)
	if len(s.Description) > 2000 {
		bad("/description", "must be at most 2000 bytes")
	}
	if len(s.SerialBecause) > 2000 {
		bad("/serial_because", "must be at most 2000 bytes")
	}
	names := make([]string, 0, len(s.Units))
	for name := range s.Units {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if !ValidSlug(name) {
			bad("/units", "%q is not a resource name", name)
		}
		if n := s.Units[name]; n < 0 || n > 1_000_000 {
			bad("/units/"+name, "must be a whole number from 0 to 1000000")
		}
	}
	if s.MaxAttempts < 0 || s.MaxAttempts > 100 {
		bad("/max_attempts", "must be a whole number from 1 to 100")
	}
	if b := s.Backoff; b != nil && b.Max < b.Base {
		bad("/backoff/max", "must not be less than base")
	}
	switch s.Overlap {
	case "", OverlapQueue, OverlapSkip, OverlapCoalesce:
	default:
		bad("/overlap", "must be \"queue\", \"skip\" or \"coalesce\"")
	}
	return errs
}

func (r Run) validate() []FieldError {
	var errs []FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, FieldError{"/run" + pointer, fmt.Sprintf(format, args...)})
	}
	needsCommand, needsURL, needsQueue := false, false, false
	switch r.Kind {
	case RunExec, RunAgent:
		needsCommand = true
	case RunHTTP:
		needsURL = true
	case RunSQS:
		needsQueue = true
	default:
		bad("/kind", "must be \"exec\", \"http\", \"agent\" or \"sqs\"")
		return errs
	}
	if needsCommand != (r.Command != "") {
		bad("/command", "is required for exec and agent runs, and only there")
	} else if needsCommand && !ValidSlug(r.Command) {
		bad("/command", "must be a name from the operator's commands, not a command line")
	}
	if needsURL != (r.URL != "") {
		bad("/url", "is required for http runs, and only there")
	} else if needsURL {
		u, err := url.Parse(r.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
			bad("/url", "must be an absolute http or https URL without user name")
		}
	}
	if needsQueue != (r.Queue != "") {
		bad("/queue", "is required for sqs runs, and only there")
	} else if needsQueue {
		if fault := CheckQueue(r.Queue); fault != "" {
			bad("/queue", "%s", fault)
		}
	}
	if r.Heartbeat != 0 && !r.Detached() {
		bad("/heartbeat", "is for runs that report by themselves: http runs with mode async, and sqs runs")
	} else if r.Heartbeat != 0 && (r.Heartbeat.Std() < time.Second || r.Heartbeat.Std() > 24*time.Hour) {
		bad("/heartbeat", "must be from 1s to 24h")
	}
	if r.Mode != "" && (!needsURL || (r.Mode != ModeSync && r.Mode != ModeAsync)) {
		bad("/mode", "must be \"sync\" or \"async\", for http runs only")
	}
	if len(r.Headers) > 0 && !needsURL {
		bad("/headers", "are for http runs only")
	}
	for name, value := range r.Headers {
		if !validHeader(name, value) {
			bad("/headers", "%q is not a valid header", name)
		}
	}
	if len(r.Version) > 200 {
		bad("/version", "must be at most 200 bytes")
	}
	return errs
}

func validHeader(name, value string) bool {
	if name == "" || strings.ContainsAny(value, "\r\n\x00") {
		return false
	}
	for _, c := range name {
		if c <= ' ' || c >= 0x7f || strings.ContainsRune("()<>@,;:\\\"/[]?={}", c) {
			return false
		}
	}
	switch strings.ToLower(name) {
	case "host", "content-length", "transfer-encoding", "connection":
		return false // these belong to the transport
	}
	return true
}
